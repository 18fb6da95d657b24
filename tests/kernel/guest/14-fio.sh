# Verified loads of several sizes and patterns on several queues.
start_target
connect -i 4
verified() {
  echo "--- $*"
  fio --filename=$ns1 --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting \
    --output-format=terse --terse-version=3 "$@" | cut -c 1-200
}
verified --name=random --rw=randwrite --bs=4k --iodepth=32 --size=8m
verified --name=sequential --rw=write --bs=128k --iodepth=8 --size=32m
verified --name=mixed --rw=randrw --bsrange=512-1m --bs_unaligned=0 --blockalign=512 --iodepth=16 --size=24m
verified --name=jobs --rw=randwrite --bs=8k --iodepth=16 --numjobs=4 --size=4m --offset_increment=32m
fio --name=large --filename=$ns2 --direct=1 --rw=randwrite --bs=4k --iodepth=64 --ioengine=libaio --size=4m \
  --verify=crc32c --verify_fatal=1 --fsync=16 --output-format=terse --terse-version=3 | cut -c 1-200
is_live
no_io_errors

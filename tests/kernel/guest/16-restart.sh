# The target ends and comes back under a verified load: politely, and by SIGKILL. The kernel reconnects, and nothing
# of the load fails or is lost.
start_target
connect -i 2 -c 1 -l 60
fio --name=load --filename=$ns1 --direct=1 --ioengine=libaio --rw=randwrite --bs=8k --iodepth=8 --size=32m \
  --time_based --runtime=17 --verify=crc32c --verify_fatal=1 --rate_iops=400 --output=/tmp/fio.log &
load=$!
for signal in TERM KILL; do
  sleep 3
  stop_target $signal || fail "the target does not end by $signal"
  wait_for 10 not_live
  sleep 1
  serve
  wait_for 20 is_live
done
wait $load || { cat /tmp/fio.log; fail "the load"; }
grep -E 'err=|issued' /tmp/fio.log
no_io_errors

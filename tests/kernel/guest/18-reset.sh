# Resets, idle and under load, and disconnects under load.
start_target
connect -i 4
for _ in 1 2; do
  nvme reset /dev/$controller
  wait_for 20 is_live
done
fio --name=load --filename=$ns1 --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=16 --size=64m --time_based \
  --runtime=5 --output=/tmp/fio.log &
load=$!
for _ in 1 2; do
  sleep 1.5
  nvme reset /dev/$controller
  wait_for 20 is_live
done
wait $load || { cat /tmp/fio.log; fail "the load"; }
nvme disconnect -n $nqn
connect -i 4
fio --name=load --filename=$ns1 --direct=1 --ioengine=libaio --rw=randread --bs=64k --iodepth=16 --size=64m --time_based \
  --runtime=20 --output=/tmp/fio.log &
load=$!
sleep 2
nvme disconnect -n $nqn
! wait $load
connect -i 4
dd if=$ns1 of=/dev/null bs=64k count=16 iflag=direct status=none

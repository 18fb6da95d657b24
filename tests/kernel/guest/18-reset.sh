#!/usr/bin/env bash
# Resets, idle and under load, and disconnects under load.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_target
may_warn "resetting controller"
# The host had an answer to act upon when its own reset had ended the connection: not connected.
may_warn 'Queueing INV WR for rkey .* failed \(-107\)'
connect "${four[@]}"
nvme reset "$device"
wait_for 20 is_live
verified "$ns1" --rw=randwrite --bs=16k --iodepth=16 --rate_iops=,200 --number_ios=1000 --size=16m &
load=$!
for _ in 1 2; do
    host_is_loaded
    nvme reset "$device"
    wait_for 20 is_live
done
wait $load
no_io_errors
nvme disconnect -n "$nqn"

connect "${four[@]}"
may_warn 'I/O error' 'Buffer I/O' 'no available path - failing I/O'
fio --name=load --filename="$ns1" --direct=1 --ioengine=libaio --rw=randread --bs=64k --iodepth=16 --size=64m \
    --time_based --runtime=30 >/tmp/fio.log 2>&1 &
load=$!
host_is_loaded
nvme disconnect -n "$nqn"
if wait $load; then fail "a load outlived its disk"; fi
connect "${four[@]}"
dd if="$ns1" of=/dev/null bs=64k count=16 iflag=direct status=none

#!/usr/bin/env bash
# Our RDMA device is removed under a verified load and comes back: the driver gets it back at once, our end goes on
# without it, and afterwards with it.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

# Its queue pairs are broken by their peer's device.
may_warn 'nvmet_rdma: received IB QP event'
only verbs 'the software RNIC has no device that could be removed'

our_device=(rdma link)
if ! ${together:-false}; then our_device=("${far[@]}" rdma link); fi

# A driver waits for whoever uses its device; here it may not have to wait.
remove_device() {
    timeout 20 "${our_device[@]}" del "${driver}0"
}

return_device() {
    "${our_device[@]}" add "${driver}0" type "$driver" netdev "$far_link"
}

echo "--- the target's"
start_target
connect -i 2 -c 1 -l 60
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=1600 --size=16m &
load=$!
host_is_loaded
remove_device
wait_for 15 not_live
target_said 'the RDMA device was removed; its connections end'
return_device
wait_for 30 is_live
target_said 'listens again'
wait $load
no_io_errors
nvme disconnect -n "$nqn"
stop_target TERM

echo "--- the initiator's"
start_kernel_target "$nqn"
"${ringfab[@]}" -v --json bench "$(url "$nqn" 'ns=1&queues=2&depth=8&keepalive=8&replaydelay=0')" \
    --rw randrw --bs 8k --size 16M \
    --time 10s --warmup 0s --io-timeout 5s --verify --destroy-data 1 >/tmp/bench 2>/tmp/load.log &
load=$!
their_target_is_loaded
remove_device
wait_for 20 has_lost /tmp/load.log
return_device
wait $load
holds /tmp/bench
value_of losses "$(</tmp/bench)"
((REPLY >= 1)) || fail "no connection was lost"

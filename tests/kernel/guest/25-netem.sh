#!/usr/bin/env bash
# Verified loads of the kernel's host and of ours at once, with digests, over a link that delays, loses, reorders and
# repeats packets. The connections stay.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "what a link does to packets shows in how a stream arrives; in the other lanes drivers are in between"
start_target
start_kernel_target "$nqn"
connect -i 2 --hdr-digest --data-digest
connections=$(grep -c ' connected ' "$target_log")

# over OPTIONS OF netem...
over() {
    echo "--- $*"
    disturb_link "$@"
    verified "$ns1" --rw=randrw --bsrange=4k-256k --iodepth=8 --size=4m &
    local load=$!
    bench "$(url "$nqn" "ns=1&queues=2&depth=8&hdgst=on&ddgst=on")" --rw randrw --bs 32k --size 8M --time 2s
    wait $load
    tc -s qdisc show dev "$near_link"
    is_live
}

# Packets that the near end lost.
lost() {
    tc -s -j qdisc show dev "$near_link" | jq '.[0].drops'
}

over delay 2ms 1ms
over loss 1%
(($(lost) > 0)) || fail "nothing was lost"
over delay 2ms reorder 25% 50% duplicate 1%
over delay 2ms 1ms loss 1% reorder 25% 50% duplicate 1%
(($(lost) > 0)) || fail "nothing was lost"
mend_link
expect "connections of the kernel's host" "$(grep -c ' connected ' "$target_log")" "$connections"
no_io_errors

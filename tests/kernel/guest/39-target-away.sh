#!/usr/bin/env bash
# The kernel's target throws our initiator out under a verified load and comes back, and the link is cut for a moment.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

# A kernel's target that ends connections under a load may wait for ever for their requests, and with it whoever removes
# its port (seen with Linux 6.12 over siw). Our end has to come back all the same; nothing else runs on that kernel
# after this.
last_of_all
may_warn nvmet
start_kernel_target "$nqn"
"${ringfab[@]}" -v --json bench "$(url "$nqn" 'ns=1&queues=2&depth=16&keepalive=8&replaydelay=0')" \
    --rw randrw --bs 8k --size 32M \
    --time 10s --warmup 0s --io-timeout 5s --verify --destroy-data 1 >/tmp/bench 2>/tmp/load.log &
load=$!
their_target_is_loaded
rm "$nvmet/ports/1/subsystems/$nqn"
wait_for 20 has_lost /tmp/load.log
ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/1/subsystems/
their_target_is_loaded
cut_far_link
# A moment, less than any timeout: the connection outlives it.
sleep 3
mend_link
wait $load
holds /tmp/bench
value_of losses "$(</tmp/bench)"
((REPLY >= 1)) || fail "no connection was lost"

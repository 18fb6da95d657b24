#!/usr/bin/env bash
# The kernel's target throws our initiator out under a verified load and comes back, and the link is cut for a moment.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "$(dirname "$0")/lib.sh"

start_kernel_target "$nqn"
"${ringfab[@]}" --json bench "$(url "$nqn" 'ns=1&queues=2&depth=16&keepalive=20')" --rw randrw --bs 8k --size 32M \
    --time 10s --warmup 0s --verify --destroy-data 1 >/tmp/bench &
load=$!
sleep 2
rm "$nvmet/ports/1/subsystems/$nqn"
sleep 1
ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/1/subsystems/
sleep 2
# Longer than that, and the kernel's target gives the controller up; over siw it then waits for ever for requests of that
# controller (seen with Linux 6.12), and so does whoever removes the port.
cut_far_link
sleep 3
mend_link
wait $load
jq -c '{iops, losses, verify}' /tmp/bench
jq -e '.losses == 1 and .verify.mismatches == 0 and .verify.read_back > 0' /tmp/bench >/dev/null

echo "--- it ends under a load, and the target forgets it"
"${ringfab[@]}" bench "$(url "$nqn" 'ns=1&queues=4&depth=16')" --rw randread --time 30s >/tmp/bench 2>&1 &
load=$!
sleep 2
kill -TERM $load
status=0
wait $load || status=$?
expect "its status" $status 130

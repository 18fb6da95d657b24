#!/usr/bin/env bash
# Our initiator is told to end under a load: it does so in order, and the kernel's target is as it was.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_kernel_target "$nqn"
"${ringfab[@]}" bench "$(url "$nqn" 'ns=1&queues=4&depth=16')" --rw randread --time 30s >/tmp/bench 2>&1 &
load=$!
their_target_is_loaded
kill -TERM $load
status=0
wait $load || status=$?
expect "its status" $status 130
ringfab list "$(url "$nqn")"

#!/usr/bin/env bash
# An idle connection stays; a host that is cut off under a load is noticed by both ends, and comes back.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_target
connect -i 2 -k 2 -c 1 -l 60
# Three times as long as the Keep Alive Timeout: nothing may happen.
sleep 6
is_live
if target_said 'keep-alive expired'; then fail "an idle host was thrown out"; fi
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=1800 --size=16m &
load=$!
host_is_loaded
cut_near_link
wait_for 15 not_live
wait_for 15 target_said 'keep-alive expired'
mend_link
wait_for 30 is_live
wait $load
no_io_errors

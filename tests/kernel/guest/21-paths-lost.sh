#!/usr/bin/env bash
# The kernel's host has two paths to our target. One after the other is lost in every way that there is, and comes back,
# under a load that is verified; at the end the only one that is left. ROUNDS=n for more than one round.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/host-paths.sh
. "${0%/*}/host-paths.sh"

attach_by_both
rm -f /tmp/enough
verify_in_turns "$ns1" &
load=$!
watch_gaps "$ns2"
loaded
in_turns "${ROUNDS:-1}" drained listener link from_far from_near access controller

# With one path, the host sleeps for its reconnect delay (`-c`).
select_path 2
lose_controller
select_path 1
begin_gap
lose_listener
is_noticed listener
heal_listener
wait_for 30 is_live_at "$our_address"
loaded
end_gap "listener, the only path" 1

touch /tmp/enough
wait $load
stop_gaps
no_io_errors

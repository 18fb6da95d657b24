#!/usr/bin/env bash
# Our initiator has two paths to the kernel's target. One after the other is lost in every way that there is, and comes
# back, under a load that is verified. That target has no Cross-Controller Reset, so writes that a lost path has not
# answered wait for the clock. ROUNDS=n for more than one round.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/paths.sh
. "${0%/*}/paths.sh"

# Over siw, a kernel's target that has lost its connections under a load may wait for ever for their requests (seen with
# Linux 6.12), and is in no state for what follows.
[[ $fabric == tcp ]] || not_here "the kernel's target does not bear it over its software RDMA drivers"

rm -f /tmp/enough /tmp/ringfab.ready

# Path 1 and 2 as our commands call them.
url_of() {
    case $1 in
    1) url "$nqn" 'ns=1&queues=2&depth=16&keepalive=2' ;;
    2) address "$theirs_2" "$nqn" 'ns=1&queues=2&depth=16&keepalive=2' ;;
    esac
}

# paths: what our end says of each, a line: address, state, access states.
paths() {
    ringfab --json path list "$nqn" | python3 -IS -c '
import json, sys
for path in json.load(sys.stdin)["paths"]:
    host = path["address"].split("//")[1].split(":")[0]
    print(host, path["state"], *(group["state"] for group in path["groups"]))'
}

# path_is ADDRESS STATE... : whether the path there is in one of these states.
path_is() {
    local address state wanted=$1
    shift
    while read -r address state _; do
        [[ $address != "$wanted" || " $* " != *" $state "* ]] || return 0
    done < <(paths)
    return 1
}
is_used() { path_is "$1" ready recovering; }
is_gone() { ! paths | grep -q "^$1 "; }
has_access() { paths | grep -q "^$1 .* $2\$"; }

port_of() {
    case $1 in 1) echo $nvmet/ports/1 ;; 2) echo $nvmet/ports/2 ;; esac
}

lose_access() { echo inaccessible >"$(port_of "$1")/ana_groups/1/ana_state"; }
heal_access() { echo optimized >"$(port_of "$1")/ana_groups/1/ana_state"; }
lose_path() { ringfab path remove "$nqn" "$(url_of "$1")"; }
heal_path() { ringfab path add "$nqn" "$(url_of "$1")"; }

is_noticed() {
    case $1 in
    access) wait_for 20 has_access "$their_address" inaccessible ;;
    path) wait_for 20 is_gone "$their_address" ;;
    *) wait_for 20 path_is "$their_address" lost ;;
    esac
}

all_is_well() {
    local address
    for address in "$theirs" "$theirs_2"; do
        wait_for 30 is_used "$address"
        wait_for 20 has_access "$address" optimized
    done
}

loaded() { some_more /sys/block/nbd0; }

may_warn 'nbd0: shutting down sockets' 'nvmet: ctrl .* keep-alive timer' 'nvmet: ctrl .* fatal error occurred'
may_warn 'nvmet_tcp: failed cmd'
modprobe nbd nbds_max=1
set_up_second_link
start_kernel_target "$nqn"
add_port 2 "$theirs_2"
ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/2/subsystems/
timeout --foreground $((280 * ${ROUNDS:-1})) "${far[@]}" "$bin/ringfab" -v nbd "$(url_of 1)" \
    --path "$(url_of 2)" --reconnect-delay 100ms \
    --socket /tmp/nbd.sock --ready-file /tmp/ringfab.ready 2>/tmp/ringfab.log &
server=$!
wait_for 20 test -e /tmp/ringfab.ready
all_is_well
nbd-client -unix /tmp/nbd.sock /dev/nbd0 -persist
verify_in_turns /dev/nbd0 &
load=$!
watch_gaps /dev/nbd0
loaded
in_turns "${ROUNDS:-1}" link from_far from_near access path
touch /tmp/enough
wait $load
stop_gaps
nbd-client -d /dev/nbd0
kill -TERM $server
wait $server
grep -aE 'over after|failed over' /tmp/ringfab.log

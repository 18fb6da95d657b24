#!/usr/bin/env bash
# The kernel's host has two paths to our target. One after the other is lost in every way that there is, and comes back,
# under a load that is verified. ROUNDS=n for more than one round.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/paths.sh
. "${0%/*}/paths.sh"

options=(-i 2 -k 2 -c 1 -l 60)
rm -f /tmp/enough

# controller_at ADDRESS: sets `controller`.
controller_at() {
    local folder
    controller=
    for folder in /sys/class/nvme/nvme*; do
        first_line "$folder/address"
        [[ $REPLY != *"traddr=$1,"* ]] || controller=${folder##*/}
    done
    [[ -n $controller ]]
}

is_live_at() { controller_at "$1" && is_live; }
not_live_at() { ! is_live_at "$1"; }

# access_of ADDRESS: the state of the group, as the host knows it, in REPLY.
access_of() {
    local folder
    controller_at "$1" || return 0
    for folder in /sys/class/nvme/"$controller"/nvme*n1; do first_line "$folder/ana_state"; done
}
has_access() {
    access_of "$1"
    [[ $REPLY == "$2" ]]
}

lose_listener() { control listener remove "$our_address:4420"; }
heal_listener() { add_listener "$our_address"; }
add_listener() { control listener add "$1" ${listener_options[@]+"${listener_options[@]}"}; }
lose_drained() { control listener drain "$our_address:4420"; }
heal_drained() { add_listener "$our_address"; }
lose_access() { control ana set 1 inaccessible --subsystem "$nqn" --listener "$our_address:4420"; }
heal_access() { control ana set 1 optimized --subsystem "$nqn" --listener "$our_address:4420"; }
lose_controller() { controller_at "$our_address" && nvme disconnect -d "$controller"; }
heal_controller() { nvme connect -t "$fabric" -a "$our_address" -s 4420 -n "$nqn" "${options[@]}"; }

is_noticed() {
    case $1 in
    access) wait_for 20 has_access "$our_address" inaccessible ;;
    *) wait_for 20 not_live_at "$our_address" ;;
    esac
}

all_is_well() {
    local address
    for address in "$ours" "$ours_2"; do
        wait_for 30 is_live_at "$address"
        wait_for 20 has_access "$address" optimized
    done
}

loaded() { host_is_loaded; }

# Linux 6.1 says so of a link that is lost, and every Linux of a controller that ends while its states are read (EINTR).
may_warn 'queue [0-9]+: timeout request' 'Failed to get ANA log: -4'

if [[ $fabric == tcp ]]; then listener_options=(--transport tcp); else listener_options=(--provider "$provider"); fi
set_up_second_link
start_target
add_listener "$ours_2"
connect "${options[@]}"
nvme connect -t "$fabric" -a "$ours_2" -s 4420 -n "$nqn" "${options[@]}"
all_is_well
nvme list-subsys
verify_in_turns "$ns1" &
load=$!
watch_gaps "$ns2"
loaded
in_turns "${ROUNDS:-1}" drained listener link from_far from_near access controller
touch /tmp/enough
wait $load
stop_gaps
no_io_errors

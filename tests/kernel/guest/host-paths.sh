# shellcheck shell=bash disable=SC2154 # lib.sh and paths.sh have the variables
# The kernel's host has two paths to our target: how both are attached, and how each of them is lost and comes back.
# Sourced by scenarios that do so. `options` are those of a connection.

# shellcheck source=tests/kernel/guest/paths.sh
. "${0%/*}/paths.sh"

options=(-i 2 -k 2 -c 1 -l 60)
# Linux 6.1 says so of a link that is lost, and every Linux of a controller that ends while its states are read (EINTR).
may_warn 'queue [0-9]+: timeout request' 'Failed to get ANA log: -4'

# Our target has a listener on each link, and the host is connected by both.
attach_by_both() {
    set_up_second_link
    start_target
    add_listener "$ours_2"
    connect "${options[@]}"
    nvme connect -t "$fabric" -a "$ours_2" -s 4420 -n "$nqn" "${options[@]}"
    all_is_well
    nvme list-subsys
}

add_listener() {
    if [[ $fabric == tcp ]]; then
        control listener add "$1" --transport tcp
    else
        control listener add "$1" --provider "$provider"
    fi
}

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
lose_drained() { control listener drain "$our_address:4420"; }
heal_drained() { add_listener "$our_address"; }
lose_access() { control ana set 1 inaccessible --subsystem "$nqn" --listener "$our_address:4420"; }
heal_access() { control ana set 1 optimized --subsystem "$nqn" --listener "$our_address:4420"; }
lose_preference() { control ana set 1 non-optimized --subsystem "$nqn" --listener "$our_address:4420"; }
heal_preference() { heal_access; }
lose_controller() { controller_at "$our_address" && nvme disconnect -d "$controller"; }
heal_controller() { nvme connect -t "$fabric" -a "$our_address" -s 4420 -n "$nqn" "${options[@]}"; }

is_noticed() {
    case $1 in
    access) wait_for 20 has_access "$our_address" inaccessible ;;
    preference) wait_for 20 has_access "$our_address" non-optimized ;;
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

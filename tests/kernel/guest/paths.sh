# shellcheck shell=bash disable=SC2154,SC2034 # lib.sh has the variables, and scenarios use those of here
# Two ways between both ends: the link of the lane, and a second pair beside it with addresses of its own. Sourced by
# the scenarios that lose one of them.

second_far=ve6 second_near=ve7 ours_2=10.9.6.1 theirs_2=10.9.6.2

# An earlier scenario may have left the pair.
set_up_second_link() {
    # rxe has both ends in one network namespace, and rules for one pair.
    [[ ${#far[@]} -gt 0 ]] || not_here "there is one link where both ends are in one network namespace"
    take_down_second_link
    "${far[@]}" ip link add "$second_far" type veth peer name "$second_near"
    "${far[@]}" ip link set "$second_near" netns 1
    "${far[@]}" ip addr add "$ours_2/24" dev "$second_far"
    ip addr add "$theirs_2/24" dev "$second_near"
    mend_second_link
    [[ $driver != siw ]] || rdma link add siw2 type siw netdev "$second_near"
}

take_down_second_link() {
    [[ -d /sys/class/net/$second_near ]] || return 0
    [[ $driver != siw ]] || rdma link del siw2 || true
    ip link del "$second_near"
}

mend_second_link() {
    "${far[@]}" ip link set "$second_far" up
    ip link set "$second_near" up
    "${far[@]}" tc qdisc replace dev "$second_far" root noqueue
    tc qdisc replace dev "$second_near" root noqueue
}

# Sets `far_device`, `near_device`, `our_address` and `their_address` to those of path 1 or 2.
select_path() {
    case $1 in
    1) far_device=$far_link near_device=$near_link our_address=$ours their_address=$theirs ;;
    2) far_device=$second_far near_device=$second_near our_address=$ours_2 their_address=$theirs_2 ;;
    esac
}

# mend_path PATH
mend_path() {
    if [[ $1 == 1 ]]; then mend_link; else mend_second_link; fi
}

# --- Losses: each is a function of the path, and `heal_NAME` undoes it ------------------------------------------------

lose_link() {
    [[ $1 == 2 ]] || touch "$disturbed"
    "${far[@]}" ip link set "$far_device" down
    ip link set "$near_device" down
}
heal_link() { mend_path "$1"; }

# What our end sends is lost.
lose_from_far() {
    [[ $1 == 2 ]] || touch "$disturbed"
    "${far[@]}" tc qdisc replace dev "$far_device" root netem loss 100%
}
heal_from_far() { mend_path "$1"; }

# What the kernel's end sends is lost.
lose_from_near() {
    [[ $1 == 2 ]] || touch "$disturbed"
    tc qdisc replace dev "$near_device" root netem loss 100%
}
heal_from_near() { mend_path "$1"; }

# in_turns ROUNDS LOSS...: for each round, loss and path. The scenario says by `loses PATH` when it is noticed, and by
# `all_is_well` when both paths are used again; `loaded` waits for the load.
in_turns() {
    local rounds=$1 round loss path
    shift
    for ((round = 1; round <= rounds; round++)); do
        for loss in "$@"; do
            for path in 1 2; do
                select_path $path
                echo "--- round $round: $loss, path $path"
                begin_gap
                "lose_$loss" $path
                is_noticed "$loss" $path
                loaded
                end_gap "$loss" $path
                "heal_$loss" $path
                all_is_well
                loaded
            done
        done
    done
}

# --- How long nothing was answered: gaps.py looks ---------------------------------------------------------------------

# watch_gaps DISK
watch_gaps() {
    rm -f /tmp/gaps
    python3 "$out/gaps.py" "$1" /tmp/gaps &
    gaps=$!
    wait_for 20 test -s /tmp/gaps
}

begin_gap() { kill -USR1 "$gaps"; }

# end_gap LOSS PATH: says the longest time between two answers since `begin_gap`.
end_gap() {
    : >/tmp/gaps
    kill -USR2 "$gaps"
    wait_for 20 test -s /tmp/gaps
    echo "gap $1 path $2: $(</tmp/gaps)"
}

stop_gaps() {
    kill -TERM "$gaps"
    wait "$gaps"
}

# --- A load that goes on until it is told to end ----------------------------------------------------------------------

# verify_in_turns DISK: one after the other, each is written, read back and compared.
verify_in_turns() {
    while [[ ! -e /tmp/enough ]]; do
        verified "$1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,300 --number_ios=600 --size=16m
    done
}

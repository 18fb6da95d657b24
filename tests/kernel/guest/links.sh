# shellcheck shell=bash
# The network of a lane: a veth pair, so that every packet crosses a link that can be cut. The far end is ours, the near
# end has the kernel's RDMA device.
#
# The far end is in a network namespace of its own. rxe in this kernel receives in the first namespace only: there both
# ends are in it, and rules see to it that packets between them cross the pair all the same. `together` asks for that
# with siw, too: what the kernel's own target needs, which listens in the first namespace only.

# The variables here are for the scripts that source this, which also set `driver` and `provider`.
# shellcheck disable=SC2034,SC2154
case $driver in
siw) far_link=ve0 near_link=ve1 ours=10.9.0.1 theirs=10.9.0.2 far=(ip netns exec far) ;;
tcp) far_link=ve4 near_link=ve5 ours=10.9.2.1 theirs=10.9.2.2 far=(ip netns exec far) ;;
rxe) far_link=ve2 near_link=ve3 ours=10.9.1.1 theirs=10.9.1.2 together=true ;;
esac
if ${together:-false}; then far=(); fi

# There while the link is not as it should be.
disturbed=/tmp/disturbed

set_up_links() {
    case $driver in
    siw) modprobe siw ;;
    tcp) modprobe -a nvme-tcp nvmet-tcp sch_netem ;;
    rxe) modprobe -a rdma_rxe sch_netem ;;
    esac
    if ${together:-false}; then
        ip link add "$far_link" type veth peer name "$near_link"
        route_through_link
    else
        ip netns add far
        "${far[@]}" ip link set lo up
        ip link add "$far_link" netns far type veth peer name "$near_link"
    fi
    "${far[@]}" ip addr add "$ours/24" dev "$far_link"
    ip addr add "$theirs/24" dev "$near_link"
    mend_link
    [[ $driver != tcp ]] || return 0
    rdma link add "${driver}1" type "$driver" netdev "$near_link"
    if [[ ${together:-} || $provider == verbs ]]; then
        "${far[@]}" rdma link add "${driver}0" type "$driver" netdev "$far_link"
    fi
}

# What arrives on the pair is for this machine; what leaves for the other end goes through the pair, or nowhere.
route_through_link() {
    local device
    for device in all $far_link $near_link; do
        sysctl -q -w "net.ipv4.conf.$device.accept_local=1" "net.ipv4.conf.$device.rp_filter=0"
    done
    ip rule add pref 10 iif "$far_link" lookup local
    ip rule add pref 10 iif "$near_link" lookup local
    ip rule add pref 20 to "$theirs" lookup 120
    ip rule add pref 20 to "$ours" lookup 121
    ip route add unreachable "$theirs" table 120 metric 1000
    ip route add unreachable "$ours" table 121 metric 1000
    ip rule add pref 30 lookup local
    ip rule del pref 0
}

take_down_links() {
    local device
    for device in ${driver}0 ${driver}1; do rdma link del "$device" 2>/dev/null || true; done
    ip link del "$near_link"
    if ${together:-false}; then
        ip rule add pref 0 lookup local
        ip route flush table 120
        ip route flush table 121
        for device in 10 10 20 20 30; do ip rule del pref "$device"; done
    else
        ip netns del far
    fi
}

# The near end goes down, and the kernel's RDMA device with it; with rxe the link loses everything instead. A send to an
# interface that is down ends the queue pair with which rxe's connection manager speaks, for good (seen with Linux 6.12,
# also where both ends are the kernel's own).
cut_near_link() {
    touch "$disturbed"
    case $driver in
    siw | tcp) ip link set "$near_link" down ;;
    rxe) disturb_link loss 100% ;;
    esac
}

# The far end goes down; the kernel's device only hears nothing more.
cut_far_link() {
    touch "$disturbed"
    case $driver in
    siw | tcp) "${far[@]}" ip link set "$far_link" down ;;
    rxe) disturb_link loss 100% ;;
    esac
}

# disturb_link OPTIONS OF netem...: what it does to packets, in both directions. What replaces netem by netem keeps
# options and counts of the one before.
disturb_link() {
    touch "$disturbed"
    calm_link
    "${far[@]}" tc qdisc replace dev "$far_link" root netem "$@"
    tc qdisc replace dev "$near_link" root netem "$@"
}

calm_link() {
    "${far[@]}" tc qdisc replace dev "$far_link" root noqueue
    tc qdisc replace dev "$near_link" root noqueue
}

# Routes go with the link.
mend_link() {
    rm -f "$disturbed"
    "${far[@]}" ip link set "$far_link" up
    ip link set "$near_link" up
    calm_link
    if ${together:-false}; then
        ip route replace "$theirs" dev "$far_link" src "$ours" table 120
        ip route replace "$ours" dev "$near_link" src "$theirs" table 121
    fi
}

# set_siw NAME VALUE: the driver's constants are parameters of the module in the build of this recipe.
set_siw() {
    echo "$2" >"/sys/module/siw/parameters/$1"
}

reset_siw() {
    [[ $driver == siw ]] || return 0
    set_siw mpa_crc_required 0
    set_siw mpa_crc_strict 0
    set_siw mpa_version 2
    set_siw peer_to_peer 0
}

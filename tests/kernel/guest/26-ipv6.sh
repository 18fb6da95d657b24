#!/usr/bin/env bash
# IPv6, for both roles: a listener on one address and on all of them, and discovery that names what was asked.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "the RDMA lanes have devices for IPv4"
ours4=$ours ours=fd00:9::1 theirs=fd00:9::2
# Without the seconds in which an address may still be another's.
"${far[@]}" ip addr replace "$ours/64" dev "$far_link" nodad
ip addr replace "$theirs/64" dev "$near_link" nodad

# shown_at ADDRESS: what discovery through this address says of where the subsystem is.
shown_at() {
    nvme discover -t tcp -a "$1" -s 4420 -o json >/tmp/discovery.json
    jq -r ".records[] | select(.subnqn == \"$nqn\") |
        \"\(.trtype) \(.adrfam) \(.traddr) \(.trsvcid)\"" /tmp/discovery.json
}

echo "--- a listener on one address"
start_target
expect "the entry" "$(shown_at "$ours")" "tcp ipv6 $ours 4420"
nvme connect-all -t tcp -a "$ours" -s 4420
find_controller "$nqn"
nvme disconnect -n "$nqn"
connect -i 2 --hdr-digest --data-digest
verified "$ns1" --rw=randrw --bsrange=4k-512k --iodepth=8 --size=2m
is_live
nvme disconnect -n "$nqn"
bench "$(own_url "$nqn" ns=1)" --rw randrw --bs 4k --size 4M --time 1s
stop_target TERM

echo "--- a listener on all addresses"
listen_at=:: start_target
expect "the entry" "$(shown_at "$ours")" "tcp ipv6 $ours 4420"
expect "the entry for IPv4" "$(shown_at "$ours4")" "tcp ipv4 $ours4 4420"
connect -i 1
verified "$ns1" --rw=randrw --bs=4k --iodepth=8 --size=1m
no_io_errors

nvme disconnect -n "$nqn"
stop_target TERM

echo "--- link-local addresses, which each end reaches by an interface of its own"
"${far[@]}" ip addr replace fe80::9:1/64 dev "$far_link" nodad
ip addr replace fe80::9:2/64 dev "$near_link" nodad
listen_at="fe80::9:1%$far_link" start_target
ours6=$ours ours="fe80::9:1%$near_link"
expect "the entry" "$(shown_at "$ours")" "tcp ipv6 fe80::9:1 4420"
connect -i 2
verified "$ns1" --rw=randrw --bs=4k --iodepth=8 --size=1m
no_io_errors
nvme disconnect -n "$nqn"
bench "$(address "fe80::9:1%$far_link" "$nqn" ns=1)" --rw randrw --bs 4k --size 4M --time 1s
stop_target TERM
ours=$ours6

echo "--- the kernel's target"
start_kernel_target "$nqn"
ringfab --json discover "$(address "$theirs")" >/tmp/found
cat /tmp/found
jq -e --arg nqn "$nqn" --arg at "$theirs" \
    '[.. | objects | select(.subsystem? == $nqn and .address_family == "ipv6" and .address == $at)] | length == 1' \
    /tmp/found
bench "$(url "$nqn" "ns=1&queues=2&depth=16")" --rw randrw --bs 4k --size 16M --time 1s
bench "$(url "$nqn" "ns=1&queues=1&depth=4&hdgst=on&ddgst=on")" --rw randrw --bs 512k --size 16M --time 1s

echo "--- the kernel's target on a link-local address"
remove_kernel_target
theirs="fe80::9:2%$near_link" start_kernel_target "$nqn"
bench "$(address "fe80::9:2%$far_link" "$nqn" "ns=1&queues=2&depth=16")" --rw randrw --bs 4k --size 16M --time 1s

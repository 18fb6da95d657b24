#!/usr/bin/env bash
# A provider of ours at each end, over the same link: RDMA device and software RNIC, both ways round.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only verbs "the lane with verbs has both providers"
[[ $driver == siw ]] || not_here "the software RNIC speaks iWARP, which $driver does not"
# From the near end, where the kernel's own host is in the other scenarios.
far=()
ringfab=(timeout --foreground -k 5 60 "$bin/ringfab")
target=(ip netns exec far)

for of_target in iwarp verbs; do
    [[ $of_target == iwarp ]] && of_host=verbs || of_host=iwarp
    echo "--- target: $of_target, initiator: $of_host"
    provider=$of_host
    far=("${target[@]}")
    start_target
    ringfab discover "nvme+rdma://$ours:4420?provider=$provider"
    has queues 4 "$(ringfab --json list "$(own_url "$nqn" queues=4)")"
    bench "$(own_url "$nqn" "ns=1&queues=4&depth=16")" --rw randrw --bs 4k --size 16M --time 2s
    bench "$(own_url "$nqn" "ns=1&queues=1&depth=8")" --rw randrw --bs 512 --size 4M --time 1s
    bench "$(own_url "$nqn" "ns=1&queues=1&depth=4")" --rw write --bs 128k --size 16M --time 2s
    bench "$(own_url "$nqn" "ns=1&queues=2&depth=4")" --rw randrw --bs 1M --size 64M --time 2s
    head -c 4M /dev/urandom >/tmp/data
    ringfab write "$(own_url "$nqn" ns=1)" -i /tmp/data --destroy-data 1
    cmp -n $((4 << 20)) /tmp/data /tmp/disk.img
    stop_target TERM
done

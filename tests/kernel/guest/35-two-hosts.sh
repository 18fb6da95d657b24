#!/usr/bin/env bash
# Two hosts of ours on the kernel's target at once, each with a verified load of its own part of the disk.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_kernel_target "$nqn"
loads=()
for host in 0 1; do
    options="ns=1&queues=2&depth=8&hostnqn=nqn.2026-11.org.ringfab:host$host"
    "${ringfab[@]}" --json bench "$(url "$nqn" "$options")" --rw randrw --bs 8k \
        --time 4s --warmup 0s --verify --destroy-data 1 --size 16M --offset $((host * 64))M >/tmp/bench.$host &
    loads+=($!)
done
for load in "${loads[@]}"; do wait "$load"; done
held /tmp/bench.0
held /tmp/bench.1

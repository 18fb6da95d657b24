#!/usr/bin/env bash
# The kernel's host and two of ours on one target at once, each with a verified load.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_target
connect -i 2
# host NSID OPTIONS-OF-THE-URL OFFSET
host() {
    "${ringfab[@]}" --json bench "$(own_url "$nqn" "$2")" --rw randrw --bs 8k --time 5s --warmup 0s --verify \
        --destroy-data "$1" --size 16M --offset "$3" >"/tmp/bench.$1" &
}
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=1000 --size=16m &
loads=($!)
host 1 "ns=1&queues=2&depth=8&hostnqn=nqn.2026-11.org.ringfab:second" 128M
loads+=($!)
host 2 "ns=2&queues=1&depth=8&hostnqn=nqn.2026-11.org.ringfab:third" 0
loads+=($!)
for load in "${loads[@]}"; do wait "$load"; done
held /tmp/bench.1
held /tmp/bench.2
is_live
no_io_errors

#!/usr/bin/env bash
# The kernel's host and two of ours on one target at once, each with a verified load.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "$(dirname "$0")/lib.sh"

start_target
connect -i 2
bench() {
    "${ringfab[@]}" --json bench "$(own_url "$nqn" "$1")" --rw randrw --bs 8k --time 5s --warmup 0s --verify \
        --destroy-data "$2" --size 16M --offset "$3" >"/tmp/bench.$2" &
}
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=1000 --size=16m &
loads=($!)
bench "ns=1&queues=2&depth=8&hostnqn=nqn.2026-11.org.ringfab:second" 1 128M
loads+=($!)
bench "ns=2&queues=1&depth=8&hostnqn=nqn.2026-11.org.ringfab:third" 2 0
loads+=($!)
for load in "${loads[@]}"; do wait "$load"; done
for result in /tmp/bench.1 /tmp/bench.2; do
    jq -c '{iops, losses, verify}' $result
    jq -e '.losses == 0 and .verify.mismatches == 0 and .verify.read_back > 0' $result >/dev/null
done
is_live
no_io_errors

#!/usr/bin/env bash
# The corners of connection establishment with siw as the side that accepts.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only iwarp "MPA is spoken by our own RNIC only"
start_kernel_target "$nqn"
for required in 0 1; do
    for crc in on off; do
        echo "--- siw requires crc: $required; ours: $crc"
        set_siw mpa_crc_required $required
        ringfab --json bench "$(url "$nqn" "ns=1&crc=$crc")" --rw randrw --bs 16k --size 4M --time 1s \
            --warmup 0s --verify --destroy-data 1 >/dev/null
    done
done
echo "--- siw will not have CRCs"
set_siw mpa_crc_required 0
set_siw mpa_crc_strict 1
ringfab list "$(url "$nqn" crc=off)"
refuses ringfab list "$(url "$nqn" crc=on)"
grep -qi 'reject\|refuse' /tmp/said

echo "--- reads outstanding: no more than a short queue offers, and than siw can do"
reset_siw
for depth in 8 1000; do
    ringfab -vv list "$(url "$nqn" "depth=$depth")" >/tmp/list 2>/tmp/said
    grep -o 'negotiated=.*' /tmp/said | tail -n 1 | tee /tmp/agreed
    grep "ird: $((depth == 8 ? 9 : 128))\\b" /tmp/agreed
done

echo "--- what listens there accepts, and does not speak NVMe/RDMA"
modprobe -a ib_uverbs rdma_ucm
timeout 20 rping -s -a "$theirs" -p 4421 -C 1 >/tmp/rping 2>&1 &
wait_for 20 listens_at 4421
refuses ringfab list "nvme+rdma://$theirs:4421/$nqn?provider=$provider"
grep 'private data' /tmp/said

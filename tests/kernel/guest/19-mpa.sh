#!/usr/bin/env bash
# The corners of connection establishment with siw as the side that connects: each revision and CRC choice of each side,
# reads outstanding, peer-to-peer mode, and a refusal that says why.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only iwarp "MPA is spoken by our own RNIC only"

# What was agreed on, as our side saw it, of the last connection.
agreed() {
    grep 'RDMA connection established' "$target_log" | tail -n 1
}

# Ours as "revision, whether we ask for CRCs", and siw's for each.
for case in "1 true: 1 0, 2 0" "2 false: 1 1, 2 0, 2 1"; do
    read -r revision crc <<<"${case%:*}"
    IFS=, read -ra of_siw <<<"${case#*:}"
    listener="mpa_revision = $revision
crc = $crc"
    start_target
    for siw_is in "${of_siw[@]}"; do
        read -r siw_revision siw_crc <<<"$siw_is"
        echo "--- ours: revision $revision, crc $crc; siw: revision $siw_revision, crc $siw_crc"
        set_siw mpa_version "$siw_revision"
        set_siw mpa_crc_required "$siw_crc"
        if ((siw_revision > revision)); then
            # siw does not fall back by itself; it gets a clean answer at once, not a timeout.
            refuses timeout 5 nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" -i 1
            grep -i reset /tmp/said
            continue
        fi
        connect -i 1
        agreed | grep "revision: $([[ $siw_revision == 1 ]] && echo One || echo Two)"
        agreed | grep "crc: $([[ $crc == true || $siw_crc == 1 ]] && echo true || echo false)"
        head -c 256K /dev/urandom >/tmp/data
        dd if=/tmp/data of="$ns1" bs=64k oflag=direct status=none
        cmp /tmp/data <(dd if="$ns1" bs=64k count=4 iflag=direct status=none)
        nvme disconnect -n "$nqn"
    done
    stop_target TERM
done

echo "--- siw asks for peer-to-peer mode"
reset_siw
set_siw peer_to_peer 1
listener=
start_target
connect -i 2
agreed
agreed | grep 'ready: Some'
# Neither side has more reads outstanding than the other serves: 128 is siw's most, 64 ours.
agreed | grep 'ord: 64'
dd if="$ns1" of=/dev/null bs=64k count=4 iflag=direct status=none
nvme disconnect -n "$nqn"
stop_target TERM

echo "--- a host without the private data of NVMe/RDMA is refused, and told so by siw"
reset_siw
modprobe -a ib_uverbs rdma_ucm
start_target
refuses timeout 10 rping -c -a "$ours" -p 4420 -C 1
grep RDMA_CM_EVENT_REJECTED /tmp/said
target_said 'connection refused.*Invalid Private Data Length'

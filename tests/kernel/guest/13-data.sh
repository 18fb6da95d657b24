#!/usr/bin/env bash
# Each I/O command by itself, against what a file says the disk should hold.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/table.sh
. "${0%/*}/table.sh"

only tcp "how data move makes no difference to this"
start_target
connect -i 2
rm -f /tmp/read
head -c 65536 /dev/urandom >/tmp/data
head -c 65536 /dev/zero >/tmp/zeroes

# 64 KiB from block 8.
read_back() {
    nvme read "$ns" --start-block=8 --block-count=$last --data-size=65536 --data=/tmp/read 2>/dev/null
}

# Commands with data, and what they leave. Block counts are zero's based.
data() {
    local block last
    block=$(blockdev --getss "$ns")
    last=$((65536 / block - 1))
    local at=(--start-block=8 --block-count="$last")
    works "64 KiB of random bytes" nvme write "$ns" "${at[@]}" --data-size=65536 --data=/tmp/data
    works "the same bytes" nvme read "$ns" "${at[@]}" --data-size=65536 --data=/tmp/read
    cmp /tmp/data /tmp/read
    works "equal" nvme compare "$ns" "${at[@]}" --data-size=65536 --data=/tmp/data
    refused "Compare Failure" "not equal" nvme compare "$ns" "${at[@]}" --data-size=65536 --data=/tmp/zeroes
    works "accepted" nvme flush "$ns"
    works "one block, through the cache; read back" \
        nvme write "$ns" --start-block=8 --block-count=0 --data-size="$block" --data=/tmp/zeroes --force-unit-access
    read_back
    cmp -n "$block" /tmp/zeroes /tmp/read
    nvme write "$ns" "${at[@]}" --data-size=65536 --data=/tmp/data
    works "zeroes there, and its neighbours as before" \
        nvme write-zeroes "$ns" --start-block=9 --block-count=$((last - 2))
    read_back
    cmp -n "$block" /tmp/data /tmp/read
    cmp -i "0:$block" -n $((65536 - 2 * block)) /tmp/zeroes /tmp/read
    cmp -i $((65536 - block)) /tmp/data /tmp/read
    nvme write "$ns" "${at[@]}" --data-size=65536 --data=/tmp/data
    works "two ranges; what lies between them stays" nvme dsm "$ns" --ad --slbs=8,12 --blocks=2,2
    read_back
    cmp -i $((2 * block)) -n $((2 * block)) /tmp/data /tmp/read
    cmp -i $((6 * block)) /tmp/data /tmp/read
    nvme write "$ns" "${at[@]}" --data-size=65536 --data=/tmp/data
    works "reads, sends nothing" nvme verify "$ns" "${at[@]}"
    # The blocks of a range are zero's based: blocks 12 and 13, then 8 to 11.
    works "two ranges, in their order" nvme copy "$ns" --sdlba=512 --slbs=12,8 --blocks=1,3
    nvme read "$ns" --start-block=512 --block-count=5 --data-size=$((6 * block)) --data=/tmp/read 2>/dev/null
    cmp -i "$((4 * block)):0" -n $((2 * block)) /tmp/data /tmp/read
    cmp -i "0:$((2 * block))" -n $((4 * block)) /tmp/data /tmp/read
    refused "Invalid Field in Command" "format 0 only" nvme copy "$ns" --sdlba=512 --slbs=8 --blocks=1 --format=1
}

limits() {
    local block end
    block=$(blockdev --getss "$ns")
    value_of nsze "$(nvme id-ns "$ns" -o json)"
    end=$REPLY
    works "the last block" \
        nvme read "$ns" --start-block=$((end - 1)) --block-count=0 --data-size="$block" --data=/tmp/read
    refused "LBA Out of Range" "the block behind it" \
        nvme read "$ns" --start-block="$end" --block-count=0 --data-size="$block" --data=/tmp/read
    refused "LBA Out of Range" "half of it behind the end" \
        nvme write "$ns" --start-block=$((end - 1)) --block-count=1 --data-size=$((2 * block)) --data=/tmp/data
    refused "LBA Out of Range" "behind the end" nvme write-zeroes "$ns" --start-block="$end" --block-count=0
    refused "LBA Out of Range" "behind the end" nvme verify "$ns" --start-block="$end" --block-count=0
    refused "LBA Out of Range" "behind the end" nvme copy "$ns" --sdlba=0 --slbs="$end" --blocks=0
    refused "Invalid Command Opcode" "reserved" \
        nvme io-passthru "$ns" --opcode=0x7d --namespace-id="$(<"/sys/class/block/${ns##*/}/nsid")"
    refused "Invalid Command Opcode" "there is none" nvme write-uncor "$ns" --start-block=0 --block-count=0
    refused "Invalid Command Opcode" "there are no reservations" nvme resv-report "$ns" --numd=16
}

ns=$ns1
data
limits
# The other block size needs no rows of its own.
commands=/dev/null
ns=$ns2
data
limits
is_live
none_wrong

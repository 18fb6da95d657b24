#!/usr/bin/env bash
# Namespaces that come, grow and go while the kernel works on another one.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "how data move makes no difference to this"

# manage ARGUMENTS...: of the target that runs.
manage() {
    "$bin/ringfab-target" "$@" --socket "$socket"
}

has_bytes() {
    find_namespace "$nqn" "$1"
    [[ $(blockdev --getsize64 "$found" 2>/dev/null) == "$2" ]]
}

is_gone() {
    ! is_block "$nqn" "$1"
}

start_target
connect "${four[@]}"
report=/tmp/fio.beside.json verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 \
    --number_ios=1500 --size=16m &
load=$!
for round in 1 2; do
    echo "--- round $round"
    rm -f /tmp/added.img
    truncate -s 32M /tmp/added.img
    manage namespace add /tmp/added.img --subsystem "$nqn" --nsid 3 --page-cache
    wait_for 20 is_block "$nqn" 3
    wait_for 20 has_bytes 3 $((32 << 20))
    find_namespace "$nqn" 3
    verified "$found" --rw=randwrite --bs=4k --iodepth=8 --size=1m
    manage namespace resize 3 --subsystem "$nqn" --size 48MiB
    wait_for 20 has_bytes 3 $((48 << 20))
    # Without a word to the target, which looks from time to time.
    truncate -s 64M /tmp/added.img
    wait_for 20 has_bytes 3 $((64 << 20))
    find_namespace "$nqn" 3
    verified "$found" --rw=randwrite --bs=4k --iodepth=8 --offset=63m --size=1m
    manage status
    manage namespace remove 3 --subsystem "$nqn"
    wait_for 20 is_gone 3
    refuses manage namespace remove 3 --subsystem "$nqn"
done
wait "$load"
manage namespace list
rm -f /tmp/added.img
is_live
no_io_errors

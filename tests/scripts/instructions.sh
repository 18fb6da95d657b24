#!/usr/bin/env bash
# What the target's core executes for a command of 4 KiB on a null namespace, without a system call: the example
# `instructions` of the tests under callgrind, with the caches of a common processor. Each number is the difference of
# two runs.
#
#   instructions.sh [rdma|tcp...]
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

cargo build --locked --release -p ringfab-tests --example instructions
load="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}/release/examples/instructions"
begin

# count DUMP ARGUMENTS...
count() {
    local dump=$1
    shift
    valgrind -q --tool=callgrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64 \
        '--toggle-collect=*target_turn*' --callgrind-out-file="$dump" "$load" "$@" 2>"$dump.log" ||
        { cat "$dump.log"; exit 1; }
}

arguments=()
for transport in "${@:-rdma}"; do
    for kind in read write fetched; do
        for depth in 1 32; do
            name="$transport $kind $depth"
            for commands in 2000 6000; do
                count "$TMP/$name $commands" "$transport" "$kind" "$depth" "$commands"
            done
            arguments+=("$name" 2000 "$TMP/$name 2000" 6000 "$TMP/$name 6000")
        done
    done
done
python3 tests/scripts/instructions.py engine "${arguments[@]}"

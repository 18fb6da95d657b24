#!/usr/bin/env bash
# Builds the fuzz targets and runs each of them for a while.
#
#   fuzz.sh SECONDS [TARGET...]
#
# What they find interesting stays in the build folder and is where the next run begins. An input that breaks something
# is kept there too; to see it again, run the target with that file as its argument.
#
# Without sanitizers they find panics, broken promises, endless loops and too much memory, which is what safe code can
# do.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

seconds=${1:?for how many seconds each}
shift
build="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}"
fuzz="$build/fuzz"

# Their names are those of their files.
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename -s .rs tests/fuzz/targets/*.rs)

# The program of a target.
program_of() { echo "fuzz-${1//_/-}"; }

# As parts of the workspace, so that what others have made has the same features as for the tests, and only our own
# crates are built once more; without the bindings of RDMA devices, since what builds libFuzzer gives those other
# features.
say "Building the fuzz targets"
programs=()
for target in "${targets[@]}"; do programs+=(--example "$(program_of "$target")"); done
RUSTC_WORKSPACE_WRAPPER="$RINGFAB_ROOT/tests/scripts/fuzz-rustc.sh" \
    cargo build --locked --workspace --no-default-features --features ringfab-fuzz/libfuzzer "${programs[@]}"

# run_target TARGET: says what it did, or what it found. What is right leaves a file that says so.
run_target() {
    local target=$1 corpus="$fuzz/corpus/$1" found="$fuzz/found/$1/" log="$fuzz/$1.log" seeds=()
    mkdir -p "$corpus" "$found"
    [ ! -d "tests/fuzz/seeds/$target" ] || seeds=("tests/fuzz/seeds/$target")
    if ! "$build/debug/examples/$(program_of "$target")" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=1024 -print_final_stats=1 -len_control=0 -max_len=8192 -dict=tests/fuzz/words.dict \
        -artifact_prefix="$found" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        fail "$target found something: see $found"
    fi
    local figures
    figures=$(sed -nE 's/^stat::(number_of_executed_units|new_units_added): *//p' "$log" | paste -sd ' ')
    say "$target, $seconds s: $figures (inputs, and new ones among them)"
    touch "$fuzz/$target.passed"
}

# A target has one thread: as many at once as there are processors.
for target in "${targets[@]}"; do
    rm -f "$fuzz/$target.passed"
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n || true
    run_target "$target" &
done
wait
for target in "${targets[@]}"; do
    [ -e "$fuzz/$target.passed" ] || fail "the fuzz target $target"
done

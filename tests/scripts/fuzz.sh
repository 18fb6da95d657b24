#!/usr/bin/env bash
# Builds the fuzz targets and runs each of them for a while.
#
#   fuzz.sh SECONDS [TARGET...]
#
# What they find interesting stays in the build folder and is where the next run begins. An input that breaks something
# is kept there too; to see it again, run the target with that file as its argument.
#
# No nightly compiler is needed: coverage counters are a pass of LLVM that the stable compiler runs when it is told to.
# Without sanitizers they find panics, broken promises, endless loops and too much memory, which is what safe code can do.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

seconds=${1:?for how many seconds each}
shift
build="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}/fuzz"
triple=$(rustc -vV | sed -n 's/^host: //p')

# The flags that libFuzzer needs. They are for the target triple only, so that build scripts stay without.
flags=(
    --cfg fuzzing
    -C passes=sancov-module
    -C llvm-args=-sanitizer-coverage-level=4
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters
    -C llvm-args=-sanitizer-coverage-pc-table
    -C llvm-args=-sanitizer-coverage-trace-compares
    -C codegen-units=1
)

# The versions are those of the project, with what only the fuzz targets need beside them.
say "Building the fuzz targets"
cp Cargo.lock tests/fuzz/Cargo.lock
RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR="$build" \
    cargo build --release --bins --target "$triple" --manifest-path tests/fuzz/Cargo.toml

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(sed -n '/^\[\[bin\]\]/{n;s/^name = "\(.*\)"/\1/p}' tests/fuzz/Cargo.toml)

# run_target TARGET: says what it did, or what it found. What is right leaves a file that says so.
run_target() {
    local target=$1 corpus="$build/corpus/$1" found="$build/found/$1/" log="$build/$1.log" seeds=()
    mkdir -p "$corpus" "$found"
    [ ! -d "tests/fuzz/seeds/$target" ] || seeds=("tests/fuzz/seeds/$target")
    if ! "$build/$triple/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        -len_control=0 -max_len=8192 -dict=tests/fuzz/words.dict -artifact_prefix="$found" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        fail "$target found something: see $found"
    fi
    say "$target, $seconds s:" "$(sed -nE 's/^stat::(number_of_executed_units|new_units_added): *//p' "$log" | paste -sd ' ')" \
        "(inputs, and new ones among them)"
    touch "$build/$target.passed"
}

# A target has one thread: as many at once as there are processors.
for target in "${targets[@]}"; do
    rm -f "$build/$target.passed"
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n || true
    run_target "$target" &
done
wait
for target in "${targets[@]}"; do
    [ -e "$build/$target.passed" ] || fail "the fuzz target $target"
done

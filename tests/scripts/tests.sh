#!/usr/bin/env bash
# Runs every test of every crate, several programs of tests at once: most of their time they wait for something.
#
#   tests.sh
#
# `cargo test` does the same one program after the other, which takes more than twice as long. What a program says is said
# when it is over.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# More than the processors are, since these wait.
AT_ONCE=4
# Those that take longest begin first.
FIRST=(replay tcp slow)
# What measures how long something takes, or what of a processor it takes, runs by itself.
ALONE=(idle waiting watchdog)

main() {
    begin
    # What tests start, and where they look for it.
    cargo build --locked --workspace --bins --tests --example rdma_reach
    export RINGFAB_BIN_DIR="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}/debug"
    list_programs
    local name
    for name in "${FIRST[@]}" $(names_of_the_others); do
        [ "$(jobs -rp | wc -l)" -lt "$AT_ONCE" ] || wait -n || true
        run_program "$name" &
        PIDS+=("$!")
    done
    wait
    for name in "${ALONE[@]}"; do
        run_program "$name" &
        PIDS+=("$!")
        wait
    done
    report
    cargo test --locked --workspace --doc
}

# Each program's name, path and its package's folder, a line each.
list_programs() {
    cargo test --locked --workspace --lib --bins --tests --no-run --message-format=json >"$TMP/built"
    # A library and a program may be named alike, and two packages have tests of one name.
    sed -nE '/"profile":\{[^}]*"test":true/s/.*"manifest_path":"([^"]*)\/Cargo.toml".*"executable":"([^"]*)".*/\2 \1/p' "$TMP/built" |
        awk '{ name = $1; sub(/.*\//, "", name); sub(/-[0-9a-f]*$/, "", name); if (seen[name]++) name = name "-" seen[name]; print name, $0 }' \
            >"$TMP/programs"
    [ -s "$TMP/programs" ] || fail "cargo names no tests"
    for name in "${FIRST[@]}" "${ALONE[@]}"; do
        grep -q "^$name " "$TMP/programs" || fail "there is no program of tests called $name"
    done
}

names_of_the_others() {
    cut -d ' ' -f 1 "$TMP/programs" | grep -vxF "$(printf '%s\n' "${FIRST[@]}" "${ALONE[@]}")"
}

# run_program NAME: in its package's folder, as Cargo does it.
run_program() {
    local name program folder running='' started
    read -r name program folder < <(grep "^$1 " "$TMP/programs")
    # What did not end in time shows how far it came.
    trap 'kill "$running" 2>/dev/null; tail -v "$TMP/$name.said" >&2; exit 143' TERM
    started=$SECONDS
    cd "$folder"
    "$program" >"$TMP/$name.said" 2>&1 </dev/null &
    running=$!
    if wait "$running"; then touch "$TMP/$name.passed"; fi
    {
        say "$name ($((SECONDS - started)) s)"
        cat "$TMP/$name.said"
    } >"$TMP/$name.all"
    flock "$TMP/programs" cat "$TMP/$name.all"
}

# What failed fails here, and so does what never ran.
report() {
    local failed=() name
    while read -r name _; do
        [ -e "$TMP/$name.passed" ] || failed+=("$name")
    done <"$TMP/programs"
    [ "${#failed[@]}" -eq 0 ] || fail "tests failed in: ${failed[*]}"
    say "$(wc -l <"$TMP/programs") programs of tests have passed"
}

main "$@"

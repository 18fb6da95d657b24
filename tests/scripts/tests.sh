#!/usr/bin/env bash
# Runs the tests of every crate, several programs of tests at once: most of their time they wait for something.
#
#   tests.sh           every test, those in the documentation last
#   tests.sh units     the unit tests of libraries and programs
#
# `cargo test` does the same one program after the other, which takes more than twice as long. What a program says is
# said when it is over. The end says how many tests passed, which failed, and what could not run. Needs jq.
#
# What runs beside others on a busy machine may fail for their sake. If few tests fail, each runs once more, by itself.
# The end says which ones passed only then: one that needs this again and again is broken.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# More than the processors are, since these wait.
AT_ONCE=4
# Those that take longest begin first.
FIRST=(ringfab-tests:kill ringfab-tests:peers ringfab-tests:nbd ringfab-tests:mount ringfab-tests:simulation
    ringfab-tests:fuse ringfab-tests:replay ringfab-tests:slow ringfab-tests:tcp ringfab-tests:waits
    ringfab-tests:disks)
# What measures how long something takes, or what of a processor it takes, runs by itself,
# a test at a time.
ALONE=(ringfab-tests:idle ringfab-reactor:waiting ringfab-tests:watchdog)
# If more fail, it is not for the sake of others.
AGAIN_MAX=3

main() {
    local name what=(--lib --bins --tests)
    have jq || fail "jq is missing, which reads what cargo says of its programs (Debian: apt install jq)"
    begin
    : "${RINGFAB_NOT_RUN:=$TMP/not-run}"
    export RINGFAB_NOT_RUN
    touch "$RINGFAB_NOT_RUN"
    if [ "${1:-}" = units ]; then
        what=(--lib --bins) FIRST=() ALONE=()
    else
        # What tests start, and where they look for it.
        cargo build --locked --workspace --bins --tests --example rdma_reach
        export RINGFAB_BIN_DIR="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}/debug"
    fi
    list_programs "${what[@]}"
    for name in "${FIRST[@]}" $(names_of_the_others); do
        [ "$(jobs -rp | wc -l)" -lt "$AT_ONCE" ] || wait -n || true
        run_program "$name" &
        PIDS+=("$!")
    done
    wait
    for name in "${ALONE[@]}"; do
        run_program "$name" --test-threads=1 &
        PIDS+=("$!")
        wait
    done
    try_again
    report
    [ "${1:-}" = units ] || cargo test --quiet --locked --workspace --doc
}

# Each program's name, path and its package's folder, a line each. A package may have a library, programs and tests of
# one name, and two packages may have the same.
list_programs() {
    cargo test --locked --workspace "$@" --no-run --message-format=json >"$TMP/built"
    jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable) |
        (.manifest_path | rtrimstr("/Cargo.toml")) as $folder |
        ($folder | split("/") | last) as $last |
        (.package_id | split("#") | last | if contains("@") then split("@")[0] else $last end) as $package |
        ({lib: "", bin: ":program \(.target.name)"}[.target.kind[0]] // ":\(.target.name)" | sub(" "; "-")) as $which |
        "\($package)\($which) \(.executable) \($folder)"' "$TMP/built" >"$TMP/programs"
    [ -s "$TMP/programs" ] || fail "cargo names no tests"
    [ -z "$(cut -d ' ' -f 1 "$TMP/programs" | sort | uniq -d)" ] || fail "two programs of tests have one name"
    for name in "${FIRST[@]}" "${ALONE[@]}"; do
        grep -q "^$name " "$TMP/programs" || fail "there is no program of tests called $name"
    done
}

names_of_the_others() {
    cut -d ' ' -f 1 "$TMP/programs" | grep -vxF "$(printf '%s\n' none "${FIRST[@]}" "${ALONE[@]}")"
}

# run_program NAME [OPTION...]: in its package's folder, as Cargo does it.
run_program() {
    local name program folder running='' started
    read -r name program folder < <(grep "^$1 " "$TMP/programs")
    shift
    # What did not end in time shows how far it came.
    trap 'kill "$running" 2>/dev/null; tail -v "$TMP/$name.said" >&2; exit 143' TERM
    started=$SECONDS
    cd "$folder"
    "$program" "$@" >"$TMP/$name.said" 2>&1 </dev/null &
    running=$!
    if wait "$running"; then touch "$TMP/$name.passed"; fi
    {
        say "$name ($((SECONDS - started)) s)"
        cat "$TMP/$name.said"
    } >"$TMP/$name.all"
    flock "$TMP/programs" cat "$TMP/$name.all"
}

# failed_of NAME: the tests of a program that failed, a line each.
failed_of() {
    sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$TMP/$1.said"
}

# The programs that did not pass, a line each.
failed_programs() {
    local name
    while read -r name _; do
        [ -e "$TMP/$name.passed" ] || echo "$name"
    done <"$TMP/programs"
}

# A second try for a few failed tests, by themselves. A program that ended in another way than by failed tests has none.
try_again() {
    local name program folder programs=() failed=() tests
    mapfile -t programs < <(failed_programs)
    for name in "${programs[@]}"; do
        mapfile -t -O "${#failed[@]}" failed < <(failed_of "$name")
    done
    [ "${#failed[@]}" -le "$AGAIN_MAX" ] || return 0
    for name in "${programs[@]}"; do
        mapfile -t tests < <(failed_of "$name")
        [ "${#tests[@]}" -gt 0 ] || continue
        read -r _ program folder < <(grep "^$name " "$TMP/programs")
        say "Once more, by themselves: $name: ${tests[*]}"
        # A pass is one of exactly these tests: a filter that finds none passes, too.
        if (cd "$folder" && "$program" --exact --test-threads=1 "${tests[@]}" </dev/null) |& tee "$TMP/$name.again" &&
            grep -q "^test result: ok\. ${#tests[@]} passed" "$TMP/$name.again"; then
            touch "$TMP/$name.passed"
            printf '%s\n' "${tests[@]/#/$name: }" >>"$TMP/second"
        fi
    done
}

# What failed fails here, and so does what never ran.
report() {
    local failed=() name passed ignored
    mapfile -t failed < <(failed_programs)
    passed=$(total passed)
    ignored=$(total ignored)
    say "$passed tests passed in $(wc -l <"$TMP/programs") programs, $ignored are ignored"
    [ ! -s "$RINGFAB_NOT_RUN" ] || say "$(wc -l <"$RINGFAB_NOT_RUN") could not run:"
    sed 's/^/    /' "$RINGFAB_NOT_RUN"
    [ ! -e "$TMP/second" ] || while read -r name; do tried_again "second try, by itself: $name"; done <"$TMP/second"
    [ "${#failed[@]}" -gt 0 ] || return 0
    say "FAILED:"
    for name in "${failed[@]}"; do
        note "$name: $(failed_of "$name" | paste -sd ' ')"
    done
    fail "tests failed in: ${failed[*]}"
}

# total WORD: of what each program's last line counts under it.
total() {
    cat "$TMP"/*.said | sed -nE "s/^test result: .* ([0-9]+) $1;.*/\1/p" | awk '{ sum += $1 } END { print sum + 0 }'
}

main "$@"

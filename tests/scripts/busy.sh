#!/usr/bin/env bash
# Runs the tests of the workspace and the end-to-end tests three times beside a load that takes every processor: what
# waits for a time, instead of for what it needs, fails there. The virtual machine is not among them; with KERNEL=1 it
# is.
#
#   busy.sh [ROUNDS]
#
# The load is two processes for each processor, which end with this script. Fails if any round does.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Much longer than all rounds: the load must not outlive whoever is killed before it can end it.
LOAD_S_MAX=14400

main() {
    local rounds=${1:-3} round failed=() steps=(workspace-tests end-to-end)
    [ -z "${KERNEL:-}" ] || steps+=(kernel-test)
    # What is to be built is built without the load.
    cargo build --locked --workspace --bins --tests --example rdma_reach
    begin
    load
    for ((round = 1; round <= rounds; round++)); do
        say "Round $round of $rounds, beside a load on $(nproc) processors"
        alive "$STARTED" || fail "the load has ended"
        make --no-print-directory MINUTES_MAX=90 "${steps[@]}" || failed+=("$round")
    done
    [ "${#failed[@]}" -eq 0 ] || fail "on a busy machine, of $rounds rounds these failed: ${failed[*]}"
    say "$rounds rounds on a busy machine passed"
}

load() {
    local number
    for ((number = 0; number < 2 * $(nproc); number++)); do
        start "load-$number" timeout "$LOAD_S_MAX" bash -c 'while :; do :; done'
    done
}

main "$@"

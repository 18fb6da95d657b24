#!/usr/bin/env bash
# Runs targets of the Makefile, one after the other, and says at the end how long each took, how busy the processors
# were meanwhile, how much of them other machines had, and how many tests passed, but not at their first try: what needs
# that again and again is broken. Stops at the first that fails.
#
#   steps.sh STEP...      a step: a target, and variables of it in the same word: "fuzz SECONDS=5"
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

main() {
    local step words started before times=() again=() status=0
    begin
    export RINGFAB_TRIED_AGAIN="$TMP/tried-again"
    : >"$RINGFAB_TRIED_AGAIN"
    for step in "$@"; do
        started=$SECONDS
        before=$(processors)
        read -ra words <<<"$step"
        make --no-print-directory "${words[@]}" || status=$?
        times+=("$(printf '%-18s %4d s  %s' "$step" $((SECONDS - started)) "$(shares "$before" "$(processors)")")")
        [ "$status" -eq 0 ] || break
    done
    say "Where the time went: $((SECONDS / 60)) min $((SECONDS % 60)) s in all"
    printf '    %s\n' "${times[@]}"
    mapfile -t again <"$RINGFAB_TRIED_AGAIN"
    say "Passed, but not at the first try (there should be none): ${#again[@]}"
    [ "${#again[@]}" -eq 0 ] || printf '    %s\n' "${again[@]}"
    [ "$status" -eq 0 ] || fail "$step failed"
}

# What the processors did since the start, in ticks: busy, stolen by other machines, in all (proc_stat(5)).
processors() {
    awk '$1 == "cpu" { all = 0; for (i = 2; i <= 9; i++) all += $i; print all - $5 - $6 - $9, $9, all }' /proc/stat
}

# shares BEFORE AFTER: of two such lines.
shares() {
    awk '{ busy = $4 - $1; stolen = $5 - $2; all = $6 - $3 }
        all > 0 { printf "%3d %% busy, %2d %% stolen", 100 * busy / all, 100 * stolen / all }' <<<"$1 $2"
}

main "$@"

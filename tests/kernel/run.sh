#!/usr/bin/env bash
# Runs both our ends against a stock Linux kernel in a virtual machine: its NVMe/RDMA host and target over its software
# RDMA drivers. One boot for everything.
#
#   run.sh [LANE...] [-- SCENARIO...]
#
# A lane is DRIVER/PROVIDER: a driver of the kernel under test (siw, rxe) and a provider of ours (iwarp, verbs), or `kernel`
# for both ends of the kernel's own. A scenario is a file in guest/ without its ending. The default is all of both.
#
# Exits with 0 when all passed, 1 when one failed, 77 when nothing ran, because this machine cannot boot the kernel.
#
#   RINGFAB_BIN_DIR       a folder with ringfab-target and ringfab, instead of building them
#   RINGFAB_KERNEL_LOGS   a folder for the logs of each scenario
#   RINGFAB_KERNEL_WRITE  if set, COMMANDS.md is written anew instead of compared
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/scripts/lib.sh
. "$here/../scripts/lib.sh"

# The scenario 39 leaves a kernel that is of no further use: a lane that has it comes last.
LANES=(rxe/kernel siw/iwarp)

main() {
    prepare
    find_programs debug
    begin
    lay_out
    local status=0
    arrange "$@"
    "$here/vm.sh" run "$TMP/guest" "bash main.sh ${ARGUMENTS[*]}" || status=1
    keep_logs
    [ "$status" -eq 0 ] || fail "the tests against the Linux kernel"
}

# The machine, or the word that there is none.
prepare() {
    local status=0
    "$here/vm.sh" prepare || status=$?
    case $status in
    0) ;;
    77)
        not_run "the tests against a Linux kernel: there is no virtual machine to be had here"
        exit 77
        ;;
    *) fail "the virtual machine could not be prepared" ;;
    esac
}

# What the guest sees: its scripts, our programs, the table to compare with.
lay_out() {
    mkdir -p "$TMP/guest/bin"
    cp "$here"/guest/* "$here/COMMANDS.md" "$TMP/guest/"
    local program
    for program in ringfab ringfab-target; do strip -o "$TMP/guest/bin/$program" "$RINGFAB_BIN_DIR/$program"; done
}

# The default lanes in front of what was given, if that has none.
arrange() {
    ARGUMENTS=("$@")
    if [ $# -eq 0 ] || [ "$1" = -- ]; then ARGUMENTS=("${LANES[@]}" "$@"); fi
}

keep_logs() {
    local table=$TMP/guest/logs/COMMANDS.md
    if [ -n "${RINGFAB_KERNEL_WRITE:-}" ] && [ -e "$table" ]; then cp "$table" "$here/"; fi
    [ -n "${RINGFAB_KERNEL_LOGS:-}" ] || return 0
    mkdir -p "$RINGFAB_KERNEL_LOGS"
    cp -r "$TMP"/guest/logs/. "$RINGFAB_KERNEL_LOGS/"
    cp "$TMP"/guest/{dmesg,console} "$RINGFAB_KERNEL_LOGS/" || true
}

main "$@"

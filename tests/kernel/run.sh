#!/usr/bin/env bash
# Runs both our ends against a stock Linux kernel in a virtual machine: its NVMe/RDMA host and target over its software
# RDMA drivers, and its NVMe/TCP. A boot for each lane, two at a time.
#
#   run.sh [LANE...] [-- SCENARIO...]
#
# A lane is DRIVER/PROVIDER: a driver of the kernel under test (siw, rxe) and a provider of ours (iwarp, verbs), or
# `kernel` for both ends of the kernel's own; or tcp/tcp. With `@stable` behind it, the machine has the older kernel of
# this Debian release; with `@forky`, a newer one, with the programs that the kernel needs for TLS. A scenario is a file
# in guest/ without its ending. All of them run when none is named, and in every lane but `kernel` when none is; in some
# lanes only those that could differ from other lanes.
#
# The kernel's drivers have races of their own. What fails runs again after a fresh boot, twice at most, and the end
# says so: a scenario that needs this again and again is broken.
#
# Exits with 0 when all passed, 1 when one failed, 77 when nothing ran, because this machine cannot boot the kernel.
#
#   RINGFAB_BIN_DIR       a folder with ringfab-target and ringfab, instead of building them
#   RINGFAB_EXAMPLES_DIR  a folder with the examples that scenarios run (RINGFAB_BIN_DIR/examples)
#   RINGFAB_KERNEL_NVME   the Debian release whose nvme-cli all lanes use; empty for this machine's own
#   RINGFAB_KERNEL_LOGS   a folder for the logs of each scenario
#   ROUNDS                how often the scenarios that lose paths, or delay writes, do so
#   RINGFAB_KERNEL_WRITE  if set, COMMANDS.md is written anew instead of compared
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/scripts/lib.sh
. "$here/../scripts/lib.sh"

LANES=(tcp/tcp siw/iwarp siw/verbs rxe/verbs tcp/tcp@stable tcp/tcp@forky)
# What could differ with an older kernel: how its host and its target are spoken with, not what ours do on their own.
STABLE=(10-discover 11-connect 13-data 14-fio 16-restart 18-reset 20-two-hosts 21-paths-lost 24-digests 28-follow
    29-tls-ours 31-transfer 35-two-hosts 38-follow)
# What could differ where a driver and a provider meet that both face another in other lanes.
SIW_VERBS=(00-alone 10-discover 11-connect 14-fio 18-reset 21-cross 30-look 31-transfer 36-removal)
# TLS, which other machines have no programs for, and authentication, which it goes together with; and what another
# version of nvme-cli could be answered.
FORKY=(10-discover 11-connect 12-admin 13-data 20-two-hosts 21-paths-lost 22-late 24-namespaces
    29-authentication 29-keys 29-tls-alone 29-tls-host 29-tls-target 29-tls-keys 29-tls-concatenation
    29-tls-ours-concatenation 38-keys)
# The nvme-cli of a lane is this machine's own, or that of another Debian release: one version proves one version.
declare -A NVME=([tcp/tcp]=experimental [rxe/verbs]=experimental [tcp/tcp@forky]=forky)
# One machine leaves a part of two processors idle, two leave nothing.
AT_ONCE=2

main() {
    local lanes=() lane started=$SECONDS
    while (($#)) && [[ $1 != -- ]]; do
        lanes+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    [ "${#lanes[@]}" -gt 0 ] || lanes=("${LANES[@]}")
    prepare_all "${lanes[@]}"
    prepare_nvme "${PREPARED[@]}"
    lanes=("${PREPARED[@]}")
    [ "${#lanes[@]}" -gt 0 ] || exit 77
    find_programs debug
    begin
    lay_out
    for lane in "${lanes[@]}"; do
        [ "$(jobs -rp | wc -l)" -lt "$AT_ONCE" ] || wait -n || true
        run_lane_aside "$lane" "$@" &
        PIDS+=("$!")
    done
    wait
    local took=$((SECONDS - started))
    say "The kernel as the other end: ${#lanes[@]} lanes in $((took / 60)) min $((took % 60)) s"
    [ ! -e "$TMP/again" ] || while read -r lane; do tried_again "$lane"; done <"$TMP/again"
    for lane in "${lanes[@]}"; do
        [ -e "$(folder_of "$lane")/passed" ] || fail "the tests against the Linux kernel"
    done
}

folder_of() {
    echo "$TMP/${1/\//-}"
}

# The kernel that a lane's machine has, as vm.sh calls it.
kernel_of() {
    if [[ $1 == *@* ]]; then echo "${1#*@}"; else echo backports; fi
}

# The Debian release whose nvme-cli a lane uses; nothing is this machine's own.
nvme_of() {
    echo "${RINGFAB_KERNEL_NVME-${NVME[$1]:-}}"
}

# Runs a lane beside others, and says all of it when it is over.
run_lane_aside() {
    local folder machine=''
    folder=$(folder_of "$1")
    trap 'kill "$machine"; exit 143' TERM
    mkdir "$folder"
    cp -r "$TMP/guest" "$folder/"
    if run_lane "$@" >"$folder/said" 2>&1; then touch "$folder/passed"; fi
    flock "$TMP/guest" cat "$folder/said"
}

# run_lane LANE [SCENARIO...]
run_lane() {
    local lane=$1 scenarios try
    say "$lane"
    if [ $# -eq 1 ]; then
        case $lane in
        *@stable) set -- "$lane" "${STABLE[@]}" ;;
        *@forky) set -- "$lane" "${FORKY[@]}" ;;
        siw/verbs) set -- "$lane" "${SIW_VERBS[@]}" ;;
        esac
    fi
    boot "$@" && return
    for try in second third; do
        mapfile -t scenarios < <(not_passed "$@")
        [ "${#scenarios[@]}" -gt 0 ] || return 1
        say "Once more, after a fresh boot: ${scenarios[*]}"
        set -- "$lane" "${scenarios[@]}"
        boot "$@" || continue
        printf '%s\n' "${scenarios[@]/#/$try try: $lane }" >>"$TMP/again"
        return
    done
    return 1
}

# not_passed LANE [SCENARIO...]: those of the last boot that failed, or were not reached; where the table of commands
# was wrong, those that write it.
not_passed() {
    local lane=${1%@*} scenario scenarios=("${@:2}") results
    results=$(folder_of "$1")/guest/results
    [ $# -gt 1 ] || mapfile -t scenarios < <(basename -s .sh "$here"/guest/[0-9]*.sh)
    for scenario in "${scenarios[@]}"; do
        if [[ $scenario == 1[23]-* ]] && grep -q "^FAIL  $lane commands" "$results"; then
            echo "$scenario"
        elif ! grep -q "^\(PASS\|SKIP\)  $lane $scenario\b" "$results"; then
            echo "$scenario"
        fi
    done
}

# boot LANE [SCENARIO...]
boot() {
    local status=0 guest
    guest=$(folder_of "$1")/guest
    : >"$guest/results"
    RINGFAB_VM_KERNEL=$(kernel_of "$1") RINGFAB_VM_NVME=$(nvme_of "$1") RINGFAB_VM_SECONDS=${RINGFAB_VM_SECONDS:-1200} \
        "$here/vm.sh" run "$guest" "ROUNDS=${ROUNDS:-} bash main.sh ${1%@*} ${*:2}" &
    machine=$!
    wait "$machine" || status=$?
    keep_logs "$1"
    return "$status"
}

# The machines of some lanes. PREPARED are the lanes whose machine is there; of the others it says so.
prepare_all() {
    local lane kernel status
    declare -A statuses
    PREPARED=()
    for lane in "$@"; do
        kernel=$(kernel_of "$lane")
        if [ -z "${statuses[$kernel]:-}" ]; then
            status=0
            RINGFAB_VM_KERNEL=$kernel "$here/vm.sh" prepare || status=$?
            statuses[$kernel]=$status
            [ "$status" -ne 77 ] || not_run "the tests against a Linux kernel ($kernel): its machine cannot be had here"
        fi
        case ${statuses[$kernel]} in
        0) PREPARED+=("$lane") ;;
        77) ;;
        *) fail "the virtual machine could not be prepared" ;;
        esac
    done
}

# The nvme-cli of the lanes that have another one than this machine's. Where it cannot be had, they have this machine's.
prepare_nvme() {
    local lane suite status
    for lane in "$@"; do
        suite=$(nvme_of "$lane")
        [ -n "$suite" ] || continue
        status=0
        RINGFAB_VM_NVME=$suite "$here/vm.sh" prepare-nvme || status=$?
        [ "$status" -ne 0 ] || continue
        [ "$status" -eq 77 ] || fail "nvme-cli of $suite could not be prepared"
        not_run "the nvme-cli of $suite in lane $lane: it cannot be had here"
        NVME[$lane]=
    done
}

# What the guest sees: its scripts, our programs, the table to compare with.
lay_out() {
    mkdir -p "$TMP/guest/bin"
    cp "$here"/guest/* "$here/COMMANDS.md" "$TMP/guest/"
    local program examples=${RINGFAB_EXAMPLES_DIR:-$RINGFAB_BIN_DIR/examples}
    for program in "$RINGFAB_BIN_DIR"/ringfab{,-target} "$examples"/{rdma_reach,rdma_exchange,tls_exchange}; do
        strip -o "$TMP/guest/bin/${program##*/}" "$program"
    done
}

keep_logs() {
    local guest folder
    guest=$(folder_of "$1")/guest
    if [ -n "${RINGFAB_KERNEL_WRITE:-}" ] && [ -e "$guest/logs/COMMANDS.md" ]; then
        cp "$guest/logs/COMMANDS.md" "$here/"
    fi
    [ -n "${RINGFAB_KERNEL_LOGS:-}" ] || return 0
    folder=$RINGFAB_KERNEL_LOGS/${1/\//-}
    mkdir -p "$folder"
    cp -r "$guest"/logs/. "$folder/"
    cp "$guest"/{results,dmesg,console} "$folder/" || true
}

main "$@"

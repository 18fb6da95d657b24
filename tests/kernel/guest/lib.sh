# shellcheck shell=bash
# What the scenarios share: where things are, assertions, and both ends. Sourced by each of them.
#
# A lane is a driver of the kernel under test, of RDMA or of NVMe/TCP, and a provider of ours that faces it:
#
#   RINGFAB_DRIVER     siw, rxe or tcp
#   RINGFAB_PROVIDER   iwarp or verbs, tcp for NVMe/TCP; kernel where both ends are the kernel's own
set -Eeuo pipefail
trap 'echo "${0##*/}, line $LINENO: $BASH_COMMAND"' ERR

driver=${RINGFAB_DRIVER:?}
provider=${RINGFAB_PROVIDER:?}
# The transport, as the kernel's commands call it. The scenarios use it.
# shellcheck disable=SC2034
if [[ $driver == tcp ]]; then fabric=tcp; else fabric=rdma; fi
# The folder that the host sees; what is used often lies in memory.
out=/run/out
bin=/tmp/bin
logs=/tmp/logs/$driver-$provider
target_log=$logs/target.log
# What the kernel's helper for TLS says during one scenario, see tls.sh.
# shellcheck disable=SC2034
tlshd_log=$logs/tlshd.log
# Rows of the table of commands, in the order in which they were tried; main.sh and table.sh use it.
# shellcheck disable=SC2034
commands=$logs/commands
# Patterns of warnings that this scenario provokes on purpose.
expected=$logs/expected

# shellcheck source=tests/kernel/guest/links.sh
. "$out/links.sh"
# shellcheck source=tests/kernel/guest/ours.sh
. "$out/ours.sh"
# shellcheck source=tests/kernel/guest/theirs.sh
. "$out/theirs.sh"
# shellcheck source=tests/kernel/guest/loads.sh
. "$out/loads.sh"

# --- What the shell does itself: under emulation a process costs as much as thousands of reads ------------------------

exec {never}<> <(:)

# pause SECONDS
pause() {
    read -rt "$1" -u "$never" || true
}

# first_line FILE: in REPLY, which is empty where there is no such file.
first_line() {
    REPLY=
    { read -r REPLY <"$1"; } 2>/dev/null || true
}

# value_of NAME JSON: the first value with that name, in REPLY; a number or a string, without its quotes and last
# blanks.
value_of() {
    REPLY=
    [[ $2 =~ \"$1\"[[:space:]]*:[[:space:]]*(\"([^\"]*)\"|[-+.0-9a-z]+) ]] || fail "no $1 in: $2"
    REPLY=${BASH_REMATCH[1]//\"/}
    REPLY=${REPLY%"${REPLY##*[![:space:]]}"}
}

# has NAME VALUE JSON: as expect does it.
has() {
    value_of "$1" "$3"
    expect "$1" "$REPLY" "$2"
}

# --- Assertions ------------------------------------------------------------------------------------------------------

fail() {
    echo "failed: $*"
    exit 1
}

# expect WHAT FOUND WANTED
expect() {
    [[ $2 == "$3" ]] || fail "$1 is '$2', not '$3'"
}

# For what is no scenario of this lane: `only iwarp`, with the reason.
only() {
    [[ $provider == "$1" ]] || not_here "$2"
}

# For what there is with RDMA only.
only_rdma() {
    [[ $fabric == rdma ]] || not_here "NVMe/TCP has nothing of this"
}

# Ends the scenario as one that did not run.
not_here() {
    echo "$*"
    exit 77
}

# The opposite of a command that must succeed: what it says is in /tmp/said.
refuses() {
    if "$@" >/tmp/said 2>&1; then fail "not refused: $*"; fi
    sed 's/^/  refused: /' /tmp/said
}

# wait_for SECONDS COMMAND...: the seconds that it may take where nothing else runs. A busy machine gets more.
wait_for() {
    local end=$((SECONDS + 6 * $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || fail "in vain waited for: $*"
        pause 0.1
    done
}

# The kernel's messages of this scenario, with their levels.
kernel_said() {
    dmesg -x | awk '/ringfab-scenario/ { n = 0; next } { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }'
}

# Nothing is undone after this scenario, and no other follows it.
last_of_all() {
    touch "$logs/last"
}

# The kernel may warn of this: the scenario provokes it. Extended regular expressions, one each.
may_warn() {
    printf '%s\n' "$@" >>"$expected"
}

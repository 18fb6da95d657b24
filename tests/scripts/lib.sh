# shellcheck shell=bash
# What the scripts share: messages, one temporary folder, processes and mounts that are undone on every way out.
# Sourced, never run. Nothing here touches what the sourcing script did not make.
set -euo pipefail

RINGFAB_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$RINGFAB_ROOT"

# The sbin folders hold mkfs and losetup; Debian leaves them out of an ordinary user's PATH.
export PATH="$PATH:/usr/sbin:/sbin"

if [ -t 1 ]; then BOLD=$'\e[1m' PLAIN=$'\e[0m'; else BOLD='' PLAIN=''; fi

say() { printf '%s==> %s%s\n' "$BOLD" "$*" "$PLAIN"; }
note() { printf '    %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
# A check that could not run is neither passed nor failed, and the reader must see which one it was: here, and in the
# file that RINGFAB_NOT_RUN names, if it does.
not_run() {
    printf '%sNOT RUN: %s%s\n' "$BOLD" "$*" "$PLAIN"
    [ -z "${RINGFAB_NOT_RUN:-}" ] || printf '%s\n' "$*" >>"$RINGFAB_NOT_RUN"
}

# What passed, but not at its first try, is worth a look: here, and in the file that RINGFAB_TRIED_AGAIN names, if it
# does.
tried_again() {
    printf '    passed only at the %s\n' "$*"
    [ -z "${RINGFAB_TRIED_AGAIN:-}" ] || printf '%s\n' "$*" >>"$RINGFAB_TRIED_AGAIN"
}

have() { command -v "$1" >/dev/null 2>&1; }

# The time since an unspecified start, in milliseconds.
now_ms() {
    local t=${EPOCHREALTIME//[!0-9]/}
    printf '%s' $((t / 1000))
}

# --- What must be undone -------------------------------------------------------------------------------------

TMP=''
MOUNTS=()
PIDS=()
# The kernel's switch for FUSE over io_uring, and whether it was off before.
FUSE_SWITCH=/sys/module/fuse/parameters/enable_uring
FUSE_SWITCHED=''

# Makes TMP and arranges that everything is undone on every way out, a signal included.
begin() {
    TMP="$(mktemp -d "${TMPDIR:-/tmp}/ringfab.XXXXXX")"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
}

# A second signal must not stop this half way.
clean_up() {
    local status=$?
    trap '' INT TERM HUP
    trap - EXIT
    [ "$status" -eq 0 ] || show_logs
    undo
    exit "$status"
}

# Undoes in the reverse order: mounts before the processes that back them, the folder last. May be called twice.
undo() {
    local i
    fuse_uring_as_before
    # A mount by `ringfab mount` ends in order, with its process.
    if [ -n "${RINGFAB_RUNTIME_DIRECTORY:-}" ]; then ringfab umount "$TMP/mnt" >/dev/null 2>&1 || true; fi
    for ((i = ${#MOUNTS[@]} - 1; i >= 0; i--)); do unmount_now "${MOUNTS[i]}"; done
    # Not by their places: the system gives a number again, and `stop` takes away all that have it.
    while [ "${#PIDS[@]}" -gt 0 ]; do stop "${PIDS[-1]}" 5; done
    if [ -n "$TMP" ] && ! grep -qF " $TMP/" /proc/self/mounts; then rm -rf --one-file-system "$TMP"; fi
}

# Undoes now and insists that nothing is left.
undo_all() {
    undo
    [ ! -e "$TMP" ] || fail "$TMP could not be removed"
    [ -z "$(jobs -rp)" ] || fail "processes are still running"
}

# The end of every log, because the folder that holds them goes away.
show_logs() {
    local log
    for log in "$TMP"/*.log; do
        [ -s "$log" ] || continue
        printf -- '--- the end of %s ---\n' "$(basename "$log")" >&2
        tail -n 25 "$log" >&2
    done
}

is_mounted() { grep -qF " $1 " /proc/self/mounts; }

# Names a mount point, before it is mounted, that clean_up must see unmounted.
will_mount() {
    mkdir -p "$1"
    MOUNTS+=("$1")
}

# Takes a mount point away, politely first. A lazy unmount is the last resort: its process may be gone already.
unmount_now() {
    local tries
    for tries in 1 2 3 4 5 6 7 8 9 10; do
        is_mounted "$1" || return 0
        # Who still uses it may be about to end.
        umount "$1" 2>/dev/null || fusermount3 -u "$1" 2>/dev/null || sleep "0.$tries"
    done
    is_mounted "$1" || return 0
    umount -l "$1" 2>/dev/null || fusermount3 -u -z "$1" 2>/dev/null || note "could not unmount $1"
}

# Starts a process in the background with its output in TMP/NAME.log; its pid is in STARTED. It gets its own process
# group, so that ctrl-C reaches this script alone and the processes end in clean_up's order.
start() {
    local name=$1
    shift
    set -m
    "$@" >"$TMP/$name.log" 2>&1 </dev/null &
    STARTED=$!
    set +m
    PIDS+=("$STARTED")
}

# Whether one of our processes runs. The shell knows, also when the number belongs to somebody else by now.
alive() { jobs -rp | grep -qx "$1"; }

# Ends one of our processes: SIGTERM, then SIGKILL for it and its children after so many seconds. Its status is in
# STOPPED.
stop() {
    local pid=$1 deadline=$(($(now_ms) + ${2:-15} * 1000))
    STOPPED=0
    if alive "$pid"; then kill -TERM "$pid" 2>/dev/null || true; fi
    while alive "$pid"; do
        if [ "$(now_ms)" -ge "$deadline" ]; then kill -KILL -- "-$pid" 2>/dev/null || true; fi
        sleep 0.05
    done
    wait "$pid" 2>/dev/null || STOPPED=$?
    local kept=() p
    for p in "${PIDS[@]}"; do [ "$p" = "$pid" ] || kept+=("$p"); done
    PIDS=("${kept[@]}")
}

# Stops a process and insists that it ended by itself with status 0.
stop_cleanly() {
    stop "$2" 20
    [ "$STOPPED" -eq 0 ] || fail "$1 did not end cleanly (status $STOPPED)"
}

# Waits until a command succeeds. Fails when the process behind it ends first, or after so many seconds.
wait_for() {
    local what=$1 pid=$2 seconds=$3
    shift 3
    local deadline=$(($(now_ms) + seconds * 1000))
    until "$@" 2>/dev/null; do
        alive "$pid" || fail "$what: its process ended first"
        [ "$(now_ms)" -lt "$deadline" ] || fail "$what: not ready after $seconds seconds"
        sleep 0.05
    done
}

# --- Ringfab's programs --------------------------------------------------------------------------------------

# Where the programs are: RINGFAB_BIN_DIR, else the build folder of the given profile, built first.
find_programs() {
    local profile=$1
    if [ -z "${RINGFAB_BIN_DIR:-}" ]; then
        local build="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}"
        say "Building ($profile)"
        if [ "$profile" = release ]; then
            cargo build --locked --release -p ringfab-target -p ringfab --bins
        else
            cargo build --locked -p ringfab-target -p ringfab --bins
        fi
        RINGFAB_BIN_DIR="$build/$profile"
        [ "$profile" = release ] || RINGFAB_BIN_DIR="$build/debug"
    fi
    local program
    for program in ringfab-target ringfab; do
        [ -x "$RINGFAB_BIN_DIR/$program" ] || fail "$RINGFAB_BIN_DIR/$program is missing: the build did not make it"
    done
    export RINGFAB_BIN_DIR PATH="$RINGFAB_BIN_DIR:$PATH"
}

NQN=nqn.2024-01.org.example:scripts

# How the commands below attach: rdma, tcp, or tls, which is for a target that was started with TLS_HOST.
TRANSPORT=rdma

# The host that authenticates and connects over TLS. Without a name there is none.
TLS_HOST=''

# What else the target's configuration says, as tables of it.
CONFIG_MORE=''

# Starts a target on loopback ports of the kernel's choice, one for each transport, for the namespaces given as image
# files, in that order, `null` for one without a disk. Their URLs without a namespace are in URL, URL_TCP and URL_TLS.
start_target() {
    local ready="$TMP/target.ready"
    if [ -n "$TLS_HOST" ]; then
        ringfab keys pair --tls --directory "$TMP/keys" --host "$TLS_HOST" --subsystem "$NQN" >"$TMP/keys.log" ||
            fail "no keys were made"
    fi
    write_config "$@" >"$TMP/target.toml"
    ringfab-target check "$TMP/target.toml" >"$TMP/check.log" 2>&1 || fail "the target refuses its configuration"
    start target ringfab-target serve --config "$TMP/target.toml" --ready-file "$ready"
    TARGET=$STARTED
    wait_for "the target" "$TARGET" 15 test -s "$ready"
    URL="nvme+rdma://$(sed -n 1p "$ready")/$NQN"
    URL_TCP="nvme+tcp://$(sed -n 2p "$ready")/$NQN"
    [ -z "$TLS_HOST" ] || URL_TLS="nvme+tcp://$(sed -n 3p "$ready")/$NQN"
}

# The configuration of such a target; configs/full.toml explains every key.
write_config() {
    local image
    cat <<CONFIG
[target]
state_dir = "$TMP/state"

[control]
socket = "$TMP/control.sock"

$CONFIG_MORE

[[listener]]
address = "127.0.0.1"
port = 0

[[listener]]
address = "127.0.0.1"
port = 0
transport = "tcp"
CONFIG
    [ -z "$TLS_HOST" ] || cat <<CONFIG

[[listener]]
address = "127.0.0.1"
port = 0
transport = "tcp"
tls = "required"

[[host]]
nqn = "$TLS_HOST"
tls_key = "file:$TMP/keys/$TLS_HOST.keys"
dhchap_key = "file:$TMP/keys/$TLS_HOST.keys"
dhchap_controller_key = "file:$TMP/keys/$TLS_HOST.keys"
CONFIG
    cat <<CONFIG

[[subsystem]]
nqn = "$NQN"
allow_any_host = true
CONFIG
    for image in "$@"; do
        printf '\n[[subsystem.namespace]]\n'
        if [ "$image" = null ]; then echo 'null = "1GiB"'; else printf 'path = "%s"\n' "$image"; fi
    done
}

# The URL of one namespace.
namespace_url() {
    case "$TRANSPORT" in
    rdma) printf '%s?ns=%s&provider=iwarp' "$URL" "$1" ;;
    tcp) printf '%s?ns=%s' "$URL_TCP" "$1" ;;
    tls) printf '%s?ns=%s' "$URL_TLS" "$1" ;;
    esac
}

# Serves a namespace on a Unix socket; its pid is in NBD and its URI in NBD_URI.
start_nbd() {
    local socket="$TMP/nbd$1.sock" keys=()
    rm -f "$socket"
    if [ "$TRANSPORT" = tls ]; then
        keys=(--keys "$TMP/keys/$TLS_HOST.keys")
    fi
    start "nbd$1" ringfab nbd "$(namespace_url "$1")" --socket "$socket" "${keys[@]}"
    NBD=$STARTED
    NBD_URI="nbd+unix:///?socket=$socket"
    wait_for "the NBD server" "$NBD" 15 nbd_answers "$NBD_URI"
}

nbd_answers() { nbdinfo --size "$1" >/dev/null; }

# start_fuse DIR [NSID] [OPTION...]: presents a namespace, or all of them with no number, as files under DIR; the pid is
# in FUSE.
start_fuse() {
    local dir=$1 url="$URL?provider=iwarp"
    [ -z "${2:-}" ] || url=$(namespace_url "$2")
    will_mount "$dir"
    start fuse ringfab fuse "$url" "$dir" "${@:3}"
    FUSE=$STARTED
    wait_for "the FUSE mount" "$FUSE" 15 has_files "$dir"
}

# What is mounted from now on may come over io_uring, where the kernel can do that and lets us.
fuse_uring_on() {
    [ -e "$FUSE_SWITCH" ] || return 1
    [ "$(<"$FUSE_SWITCH")" = N ] || return 0
    { echo Y >"$FUSE_SWITCH"; } 2>/dev/null || return 1
    FUSE_SWITCHED=yes
}

fuse_uring_as_before() {
    [ -n "$FUSE_SWITCHED" ] || return 0
    echo N >"$FUSE_SWITCH"
    FUSE_SWITCHED=''
}

has_files() { is_mounted "$1" && [ -n "$(ls "$1")" ]; }

# The file of the n-th namespace, in the order of their names, which is the order of their numbers.
fuse_file() { find "$1" -maxdepth 1 -type f | sort -V | sed -n "${2}p"; }

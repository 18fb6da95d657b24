# shellcheck shell=bash disable=SC2154 # lib.sh has the variables
# Loads that run beside a scenario. A scenario goes on when the load does something, never after a time: on a busy
# machine, a load may need many seconds to begin.

# commands_of DEVICE...: how many reads and writes these block devices have done, in REPLY. A name may be a pattern.
commands_of() {
    local stat reads writes
    REPLY=0
    # shellcheck disable=SC2068  # a pattern
    for stat in ${@/%//stat}; do
        { read -r reads _ _ _ writes _ <"$stat"; } 2>/dev/null || continue
        REPLY=$((REPLY + reads + writes))
    done
}

# have_done NUMBER DEVICE...
have_done() {
    commands_of "${@:2}"
    ((REPLY >= $1))
}

# Waits until these have done some more commands.
some_more() {
    commands_of "$@"
    wait_for 20 have_done $((REPLY + 20)) "$@"
}

# Waits for a load of the kernel's host, on whatever disk. Where a disk has several paths, those count, since older
# kernels count nothing elsewhere.
host_is_loaded() {
    some_more '/sys/block/nvme*'
}

# Waits for a load on the kernel's target.
their_target_is_loaded() {
    some_more /sys/block/nullb0
}

# has_lost LOG [TIMES]: whether our initiator says so often that it has lost its connection.
has_lost() {
    local count
    count=$(grep -c 'connection lost' "$1" || true)
    ((count >= ${2:-1}))
}

# Whether somebody waits for RDMA connections at a port.
listens_at() {
    rdma resource show cm_id | grep -q "LISTEN.*:$1\b"
}

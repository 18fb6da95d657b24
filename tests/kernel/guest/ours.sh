# shellcheck shell=bash disable=SC2154 # lib.sh has the variables
# Our target and our initiator, on the far end of the link.

nqn=nqn.2026-11.org.ringfab:kernel
ready=/tmp/ready
pid_file=/tmp/target.pid
socket=/tmp/control.sock

# One subsystem, namespace 1 a file with 512-byte blocks, namespace 2 memory with 4096-byte blocks. The file outlives a
# restart. `of_target` may name another provider than the lane's, `listen_at` another address than ours, and `listener`
# hold more lines for the listener's table; `beneath` and `beneath_2` say what else the namespaces are.
file_beneath='path = "/tmp/disk.img"
direct = false
allow_page_cache = true'
memory_beneath='memory = "64MiB"
block_bytes = 4096'
start_target() {
    mkdir -p /tmp/state
    [[ -e /tmp/disk.img ]] || truncate -s 256M /tmp/disk.img
    cat >/tmp/target.toml <<TOML
[target]
state_dir = "/tmp/state"
cores = 2
log = "info,ringfab_target=debug,ringfab_fabric=debug"
[control]
socket = "$socket"
[[listener]]
address = "${listen_at:-$ours}"
$(transport_of_listener)
${listener:-}
[[subsystem]]
nqn = "$nqn"
serial = "KERNEL-0001"
model = "Ringfab under test"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
${beneath:-$file_beneath}
[[subsystem.namespace]]
nsid = 2
${beneath_2:-$memory_beneath}
[[subsystem]]
nqn = "nqn.2026-11.org.ringfab:private"
allowed_hosts = ["nqn.2026-11.org.ringfab:friend"]
[[subsystem.namespace]]
null = "1GiB"
TOML
    serve
}

# What a listener of this lane says of its transport.
transport_of_listener() {
    case $fabric in
    rdma) echo "provider = \"${of_target:-$provider}\"" ;;
    tcp) echo 'transport = "tcp"' ;;
    esac
}

# Starts the target with the configuration that is there, with another program if `under` names one.
under=()
serve() {
    rm -f $ready
    "${far[@]}" "${under[@]}" "$bin/ringfab-target" serve --config /tmp/target.toml --ready-file $ready \
        >>"$target_log" 2>&1 &
    echo $! >$pid_file
    wait_for 20 test -s $ready
}

# stop_target SIGNAL
stop_target() {
    [[ -s $pid_file ]] || return 0
    local pid
    pid=$(<$pid_file)
    kill "-$1" "$pid" 2>/dev/null || true
    wait_for 20 gone "$pid"
    rm -f $pid_file
}

gone() {
    ! kill -0 "$1" 2>/dev/null
}

control() {
    "${far[@]}" "$bin/ringfab-target" "$@" --socket "$socket"
}

# shows_key AGE: whether a host of our target uses its new, its old or a replaced key.
shows_key() {
    [[ $(control status --json) == *"\"key\":\"$1\""* ]]
}

target_said() {
    grep -qE "$1" "$target_log"
}

# address HOST [NQN [OPTIONS]]: as our commands take it.
address() {
    local host=$1
    [[ $host != *:* ]] || host="[$host]"
    case $fabric in
    rdma) echo "nvme+rdma://$host:4420/${2:-}?provider=$provider${3:+&$3}" ;;
    tcp) echo "nvme+tcp://$host:4420/${2:-}?${3:-}" ;;
    esac
}

# own_url NQN [OPTIONS]: of our own.
own_url() {
    address "$ours" "$@"
}

# Our command. A load that runs beside the scenario is started as `"${ringfab[@]}" ... &`, so that $! is its own.
ringfab=(timeout --foreground -k 5 60 "${far[@]}" "$bin/ringfab")
ringfab() {
    "${ringfab[@]}" "$@"
}

# url NQN [OPTIONS]: of the kernel's target.
url() {
    address "$theirs" "$@"
}

# bench URL OPTIONS...: a load with verify; the result is in /tmp/bench.
bench() {
    local url=$1
    shift
    echo "--- bench $url $*"
    ringfab --json bench "$url" "$@" --warmup 0s --verify --destroy-data 1 >/tmp/bench
    held /tmp/bench
}

# Whether the result of a load says that what was written was read back.
holds() {
    local said
    said=$(<"$1")
    value_of iops "$said"
    echo "$REPLY I/Os a second"
    has mismatches 0 "$said"
    value_of read_back "$said"
    ((REPLY > 0)) || fail "nothing was read back"
}

# The same, without a connection lost.
held() {
    holds "$1"
    has losses 0 "$(<"$1")"
}

# end_load PID LOSSES: ends a load with verify, whose result is in /tmp/bench. It has lost its connection so often. It
# reads nothing back at its end, but has compared what it read meanwhile.
end_load() {
    local said
    kill -INT "$1"
    wait "$1" || expect "the status of a load that was ended" $? 130
    said=$(</tmp/bench)
    has mismatches 0 "$said"
    value_of losses "$said"
    ((REPLY >= $2)) || fail "only $REPLY connections were lost"
}

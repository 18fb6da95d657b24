#!/usr/bin/env bash
# A host's write lies in the network when the host is cut off, and arrives after a newer one was answered. Ours must not
# be undone, on one path and on two. What happens to the kernel's own host, which waits for nothing, is written down.
# ROUNDS=n for more than a few.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

[[ $driver == tcp ]] || not_here "the proxy is one of TCP connections, and RDMA has none where the kernel has a device"

rounds=${ROUNDS:-3}

# start_proxy PORT...: each leads to our target.
start_proxy() {
    rm -f /tmp/go
    mkfifo /tmp/go
    "${far[@]}" python3 "$out/late.py" "$rounds" /tmp/disk.img "${@/%/=$ours:4420}" </tmp/go >/tmp/late 2>&1 &
    proxy=$!
    exec {go}>/tmp/go
    wait_for 20 grep -q ready /tmp/late
}

# run_rounds TITLE DISK
run_rounds() {
    echo "$2" >&"$go"
    exec {go}>&-
    wait $proxy || { cat /tmp/late; fail "the proxy"; }
    echo "$1: $(tail -n 2 /tmp/late | paste -sd,)"
}

# ours TITLE PORT [PORT]: our initiator, by way of the proxy, under the kernel's block layer.
ours() {
    local title=$1 paths=()
    shift
    [[ -z ${2:-} ]] || paths=(--path "nvme+tcp://$ours:$2/")
    start_proxy "$@"
    rm -f /tmp/ringfab.ready
    "${far[@]}" "$bin/ringfab" -v nbd "nvme+tcp://$ours:$1/$nqn?ns=1" "${paths[@]}" --reconnect-delay 100ms \
        --socket /tmp/nbd.sock --ready-file /tmp/ringfab.ready &
    local server=$!
    wait_for 20 test -e /tmp/ringfab.ready
    nbd-client -unix /tmp/nbd.sock /dev/nbd0 -persist
    run_rounds "$title" /dev/nbd0
    nbd-client -d /dev/nbd0
    kill -TERM $server
    wait $server
    grep -q '^undone 0 ' /tmp/late || fail "older data came late"
}

may_warn 'nbd0: shutting down sockets'
# Its paths are still cut when it is told to leave them.
may_warn 'Property Set error' 'failed to receive icresp' 'failed to connect socket'
modprobe nbd nbds_max=1
start_target
ours "our initiator, one path" 4421
ours "our initiator, two paths" 4421 4422

start_proxy 4421 4422
for port in 4421 4422; do nvme connect -t tcp -a "$ours" -s $port -n "$nqn" -i 1 -k 2 -c 1 -l 60; done
wait_for 20 is_block "$nqn" 1
find_namespace "$nqn" 1
run_rounds "the kernel's host, two paths" "$found"
no_io_errors

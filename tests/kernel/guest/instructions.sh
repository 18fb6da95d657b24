#!/usr/bin/env bash
# Runs in the guest: our target under callgrind, with the kernel's host that asks it for so many commands of 4 KiB.
#
#   instructions.sh DRIVER/PROVIDER COUNT
#
# Leaves a dump for each load in the folder `dumps`, and a line for each in `dumps/loads`: its name and its commands.
set -euo pipefail
lane=$1 count=$2
export RINGFAB_DRIVER=${lane%/*} RINGFAB_PROVIDER=${lane#*/} together=true
mkdir -p "/tmp/logs/$RINGFAB_DRIVER-$RINGFAB_PROVIDER"
cp -r bin /tmp/
# shellcheck source=tests/kernel/guest/lib.sh
. ./lib.sh

dumps=$out/dumps

main() {
    modprobe -a nvme-rdma nvmet-rdma
    set_up_links >/tmp/links.log 2>&1
    rm -rf "$dumps"
    mkdir "$dumps"
    measure read 16384 randread
    measure write 16384 randwrite
    measure fetched 0 randwrite
}

# measure NAME IN-CAPSULE KIND: at depth 1 with and without pauses, and at depth 32, more often the second time: what
# neither commands nor turns cost is the same in all of them.
measure() {
    local name=$1 kind=$3 disk
    serve_counted "$2"
    # The first connection takes so long here that the target gives it up. Ours soon tries again, the kernel's host does
    # not.
    wait_for 400 ringfab list "$(own_url "$nqn" ns=1)" >/dev/null 2>&1
    nvme connect -t rdma -a "$ours" -s 4420 -n "$nqn" -i 1
    wait_for 60 is_block "$nqn" 1
    find_namespace "$nqn" 1
    disk=$found
    load "$name-warm" "$kind" 32 200
    load "$name-1-a" "$kind" 1 "$count"
    load "$name-1-b" "$kind" 1 $((2 * count))
    load "$name-1-paused" "$kind" 1 "$count" --thinktime=20000
    load "$name-32-a" "$kind" 32 $((4 * count))
    load "$name-32-b" "$kind" 32 $((12 * count))
    # As long as the core has a queue it is awake, so that the signal is heard.
    stop_target TERM
    nvme disconnect -n "$nqn" >/dev/null
}

# Valgrind 3.19 takes io_uring_enter for a call that does not block, and stops all threads with it. So the core never
# sleeps once it has a queue, whose housekeeping is an event four times a second; before, only a connection wakes it,
# and nothing of the target says that it is ready.
serve_counted() {
    cat >/tmp/target.toml <<TOML
[target]
state_dir = "/tmp/state"
cores = 1
spin_us = 1000000
[[listener]]
address = "$ours"
provider = "$provider"
in_capsule_bytes = $1
[[subsystem]]
nqn = "$nqn"
allow_any_host = true
[[subsystem.namespace]]
null = "1GiB"
TOML
    mkdir -p /tmp/state
    valgrind -q --tool=callgrind --callgrind-out-file=/tmp/callgrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 \
        --LL=1048576,16,64 "$bin/ringfab-target" serve --config /tmp/target.toml >>"$target_log" 2>&1 &
    echo $! >$pid_file
}

# load NAME KIND DEPTH COUNT OPTIONS OF fio...
load() {
    local name=$1 kind=$2 depth=$3 number=$4
    shift 4
    echo "--- $name: $number"
    fio --name=load --filename="$disk" --direct=1 --ioengine=io_uring --rw="$kind" --bs=4k --iodepth="$depth" \
        --number_ios="$number" --norandommap --output-format=json "$@" >/tmp/fio.json ||
        { cat /tmp/fio.json; fail fio; }
    local said done=0 part
    said=$(</tmp/fio.json)
    for part in read write; do
        value_of total_ios "${said#*"\"$part\" :"}"
        done=$((done + REPLY))
    done
    vgdb --pid="$(<$pid_file)" dump "$name" >/dev/null 2>&1
    local dump
    for dump in /tmp/callgrind.[0-9]*; do mv "$dump" "$dumps/$name"; done
    echo "$name $done" | tee -a "$dumps/loads"
}

main

#!/bin/busybox sh
# shellcheck shell=dash disable=SC3040,SC3045  # busybox has these
# Runs in the arm64 machine as its first process: every program of tests, then the service with its client. Its words go
# to the console, see arm64.sh.
set -euo pipefail

export PATH=/bin HOME=/tmp TMPDIR=/tmp RINGFAB_BIN_DIR=/bin RINGFAB_NOT_RUN=/tmp/not-run
nqn=nqn.2024-01.org.example:arm64
failed=

main() {
    busybox mount -t proc proc /proc
    busybox --install -s /bin
    mount -t sysfs sys /sys
    mount -t devtmpfs dev /dev
    while read -r module; do insmod "/lib/$module"; done </lib/order
    mount -t ext4 /dev/vda /tmp
    # As most systems have it: what is not asked for is not made huge.
    echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
    ln -sf /proc/self/fd /dev/fd
    ip link set lo up
    ulimit -n 65536
    echo "==> $(uname -s -r -m), $(nproc) processors"
    while read -r name folder; do run_tests "$name" "$folder"; done </tests/list
    serve_and_use || failed="$failed service"
    if [ -z "$failed" ]; then echo "arm64: all passed"; else echo "error: failed on arm64:$failed"; fi
}

# run_tests NAME FOLDER: but for one test, which looks for its memory in the list of this kernel's mappings by where it
# begins, and where a mapping is merged with its neighbour it does not find it.
run_tests() {
    local started ended
    started=$(date +%s)
    if (cd "$2" && timeout 240 "/tests/$1" --skip gets_huge_pages >"/tmp/said" 2>&1 </dev/null); then
        ended=$(date +%s)
        echo "==> $1 ($((ended - started)) s): $(grep '^test result' /tmp/said)"
    else
        grep -v '^test .* ok$' /tmp/said
        echo "error: $1 failed"
        failed="$failed $1"
    fi
}

# The service with a file and with memory, and the client that writes, reads and compares, over both transports.
serve_and_use() {
    local target url namespace
    dd if=/dev/zero of=/tmp/disk.img bs=1M count=64 2>/dev/null
    cat >/tmp/target.toml <<CONFIG
[target]
state_dir = "/tmp/state"
[[listener]]
address = "127.0.0.1"
port = 4420
[[listener]]
address = "127.0.0.1"
port = 4421
transport = "tcp"
[[subsystem]]
nqn = "$nqn"
allow_any_host = true
[[subsystem.namespace]]
path = "/tmp/disk.img"
[[subsystem.namespace]]
memory = "64MiB"
CONFIG
    ringfab-target serve --config /tmp/target.toml --ready-file /tmp/ready >/tmp/target.log 2>&1 &
    target=$!
    until [ -s /tmp/ready ] || ! kill -0 "$target"; do sleep 0.1; done
    for url in "nvme+rdma://127.0.0.1:4420/$nqn" "nvme+tcp://127.0.0.1:4421/$nqn"; do
        for namespace in 1 2; do
            echo "==> ringfab bench --verify $url?ns=$namespace"
            ringfab bench "$url?ns=$namespace&queues=2&depth=16" --rw randrw --bs 16k --size 16M --time 2s --warmup 0s \
                --verify --destroy-data "$namespace" || { cat /tmp/target.log; return 1; }
        done
    done
    kill "$target"
    wait "$target" || { cat /tmp/target.log; return 1; }
}

main || echo "error: the init script failed"
busybox poweroff -f

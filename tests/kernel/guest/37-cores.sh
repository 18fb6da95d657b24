#!/usr/bin/env bash
# Two engine threads of our initiator, each with queues of its own of the kernel's target: a load that is verified, and
# what fio writes and reads back over NBD and FUSE.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

options='ns=1&queues=4&depth=16'

# start COMMAND ARGUMENTS...: in the background; sets `server`.
start() {
    rm -f /tmp/ringfab.ready
    "${far[@]}" "$bin/ringfab" "$1" "$(url "$nqn" "$options")" "${@:2}" --cores 2 --ready-file /tmp/ringfab.ready &
    server=$!
    wait_for 20 test -e /tmp/ringfab.ready
}

# The server has two engine threads, and each has done some of the work.
stop() {
    local stat fields threads=0
    for stat in /proc/"$server"/task/*/stat; do
        first_line "$stat"
        [[ $REPLY == *'(ringfab-'* ]] || continue
        read -ra fields <<<"${REPLY##*) }"
        echo "an engine thread: ${fields[11]} ticks for itself, ${fields[12]} in the kernel"
        ((fields[11] + fields[12] > 0)) || fail "an engine thread has done nothing"
        threads=$((threads + 1))
    done
    expect "engine threads" $threads 2
    kill -TERM "$server"
    wait "$server"
}

may_warn 'nbd0: shutting down sockets'
start_kernel_target "$nqn"
bench "$(url "$nqn" "$options")" --cores 2 --rw randrw --bs 4k --size 16M --time 2s
has queues 4 "$(</tmp/bench)"
has outstanding 64 "$(</tmp/bench)"

echo "--- NBD"
modprobe nbd nbds_max=1
start nbd --socket /tmp/nbd.sock
nbd-client -unix /tmp/nbd.sock /dev/nbd0 -persist -C 2
verified /dev/nbd0 --rw=randwrite --bs=4k --iodepth=16 --size=4m --numjobs=2 --offset_increment=4m
verified /dev/nbd0 --rw=write --bs=128k --iodepth=8 --size=8m
nbd-client -d /dev/nbd0
stop

echo "--- FUSE"
modprobe fuse
mkdir -p /tmp/mounted
start fuse /tmp/mounted
# Its mount may be in a namespace of its own.
file=/proc/$server/root/tmp/mounted/ns1
verified "$file" --rw=randwrite --bs=4k --iodepth=16 --size=4m --numjobs=2 --offset_increment=4m
verified "$file" --rw=write --bs=128k --iodepth=8 --size=8m
stop

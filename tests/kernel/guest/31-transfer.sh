#!/usr/bin/env bash
# Our initiator writes and reads the kernel's target, with each in-capsule size; the disk itself is compared.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

# load QUEUES DEPTH OPTIONS...: the kernel's target must be given room for a long read also where the queue is short.
load() {
    local queues=$1 depth=$2
    shift 2
    bench "$(url "$nqn" "ns=1&queues=$queues&depth=$depth")" "$@" --size 64M --time 1s
}

head -c 4M /dev/urandom >/tmp/data
# Over TCP a Connect has its data in the capsule, and the kernel's target refuses that when it is to take none.
if [[ $fabric == tcp ]]; then smallest=4096; else smallest=0; fi
for in_capsule in $smallest 16384; do
    echo "--- in-capsule data of $in_capsule bytes"
    start_kernel_target "$nqn" "$in_capsule"
    ringfab write "$(url "$nqn" 'ns=1&queues=2')" -i /tmp/data --destroy-data 1
    echo 3 >/proc/sys/vm/drop_caches
    cmp -n $((4 << 20)) /tmp/data /dev/nullb0
    ringfab read "$(url "$nqn" 'ns=1&queues=2')" --length 4M -o /tmp/read
    cmp /tmp/data /tmp/read
    load 4 8 --rw randrw --bs 4k
    load 1 128 --rw randwrite --bs 16k
    remove_kernel_target
done
start_kernel_target "$nqn"
load 1 8 --rw randrw --bs 512
load 2 8 --rw write --bs 128k
# Of the few I/Os that there is time for here, all might be reads; what is written is read back.
load 1 1 --rw randwrite --bs 1M
load 4 8 --rw randrw --bs 1M

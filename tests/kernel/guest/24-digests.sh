#!/usr/bin/env bash
# Header and data digests, alone and together, with the kernel's host at our target and our host at the kernel's.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "digests are NVMe/TCP's"
start_target
for options in --hdr-digest --data-digest "--hdr-digest --data-digest"; do
    echo "--- $options"
    # shellcheck disable=SC2086  # several words
    connect -i 2 $options
    verified "$ns1" --rw=randrw --bs=4k --iodepth=8 --size=1m
    verified "$ns2" --rw=write --bs=512k --iodepth=4 --size=8m
    is_live
    nvme disconnect -n "$nqn"
done
no_io_errors
stop_target TERM

start_kernel_target "$nqn"
for options in hdgst=on ddgst=on "hdgst=on&ddgst=on"; do
    bench "$(url "$nqn" "ns=1&queues=2&depth=8&$options")" --rw randrw --bs 4k --size 4M --time 1s
    bench "$(url "$nqn" "ns=1&queues=1&depth=4&$options")" --rw write --bs 512k --size 16M --time 1s
done

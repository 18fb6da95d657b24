#!/usr/bin/env bash
# The kernel against itself over the driver of this lane: what fails here is no fault of ours.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_kernel_target "$nqn"
nvme connect -t "$fabric" -a "$theirs" -s 4420 -n "$nqn" -i 1
wait_for 20 is_block "$nqn" 1
find_namespace "$nqn" 1
verified "$found" --rw=randwrite --bs=4k --iodepth=8 --size=1m
nvme disconnect -n "$nqn"

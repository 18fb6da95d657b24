#!/usr/bin/env bash
# The target ends and comes back under a verified load: politely, and by SIGKILL. The kernel reconnects, and nothing
# of the load fails or is lost.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

# What a process had that was killed is freed one by one: what arrives in between may find a queue pair without its
# memory.
if [[ $driver == rxe ]]; then
    may_warn 'do_complete: non-flush error status = 2' 'make_send_cqe: non-flush error status = 11'
fi
start_target
connect -i 2 -c 1 -l 60
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=2200 --size=16m &
load=$!
for signal in TERM KILL; do
    host_is_loaded
    stop_target $signal
    wait_for 10 not_live
    serve
    wait_for 20 is_live
done
wait $load
no_io_errors

#!/usr/bin/env bash
# A peer tries to reach memory that it may not, through the device; what it can do is what SECURITY.md says.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only verbs "the software RNIC is tried where it needs no kernel"
[[ $driver == rxe ]] ||
    not_here "$driver has no memory windows: a peer keeps what it was given until the connection ends"
# Each refusal is an error of the attacker's queue pair.
may_warn 'make_send_cqe: non-flush error status = 10'
"${far[@]}" timeout 200 "$bin/rdma_reach" "$ours" verbs loose

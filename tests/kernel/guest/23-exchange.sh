#!/usr/bin/env bash
# SEND, WRITE and READ in every size between our provider and the driver of this lane, and rping with it.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only_rdma
only iwarp 'what speaks here is the driver at both ends'

modprobe -a ib_uverbs rdma_ucm
exchange=(timeout 60 "$bin/rdma_exchange")

# listening LOG: whether what writes there waits for a connection.
listening() {
    grep -q 'listening' "$1"
}

echo "--- the driver connects"
"${far[@]}" "${exchange[@]}" serve "$ours:4431" "$provider" >/tmp/served &
served=$!
wait_for 20 listening /tmp/served
"${exchange[@]}" connect "$ours:4431" verbs
wait $served

echo "--- the driver accepts"
"${exchange[@]}" serve "$theirs:4432" verbs >/tmp/served &
served=$!
wait_for 20 listening /tmp/served
"${far[@]}" "${exchange[@]}" connect "$theirs:4432" "$provider"
wait $served

echo "--- rping connects"
for bytes in 64 4096 65535; do
    : >/tmp/served
    "${far[@]}" "${exchange[@]}" rping-serve "$ours:4433" "$provider" 10 >/tmp/served &
    served=$!
    wait_for 20 listening /tmp/served
    timeout 30 rping -c -a "$ours" -p 4433 -C 10 -S $bytes -V
    wait $served
done

echo "--- rping accepts"
for bytes in 64 4096 65535; do
    # Without a count of its own it serves until the other side hangs up, and calls that an error.
    timeout 60 rping -s -a "$theirs" -p 4434 -S $bytes -V >/tmp/rping 2>&1 &
    rping=$!
    wait_for 20 listens_at 4434
    "${far[@]}" "${exchange[@]}" rping-connect "$theirs:4434" "$provider" 10 $bytes || {
        cat /tmp/rping
        fail "with rping and $bytes bytes"
    }
    wait $rping || true
done

#!/usr/bin/env bash
# The kernel's host asks our discovery controller, and connects to everything that it names.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_target
nvme discover -t "$fabric" -a "$ours" -s 4420 -o json >/tmp/discovery.json
cat /tmp/discovery.json
of_this() { jq -r ".records[] | select(.subnqn == \"$nqn\") | \"\(.trtype) \(.adrfam) \(.traddr) \(.trsvcid)\"" "$1"; }
# What serves the listener: of the software RNIC, and of siw, iWARP.
if [[ $fabric == rdma ]]; then
    if [[ $driver == rxe ]]; then speaks=roce-v2; else speaks=iwarp; fi
    tsas=$(jq -r ".records[] | select(.subnqn == \"$nqn\") | \"\(.rdma_prtype) \(.rdma_cms)\"" /tmp/discovery.json)
    expect "the provider" "$tsas" "$speaks rdma-cm"
fi
hidden() { grep -c '"subnqn" *: *"[^"]*private"' "$1" || true; }
expect "the entry" "$(of_this /tmp/discovery.json)" "$fabric ipv4 $ours 4420"
own='.records[] | select(.subtype == "current discovery subsystem") | "\(.traddr) \(.trsvcid) \(.eflags)"'
[[ $(jq -r "$own" /tmp/discovery.json) == "$ours 4420 explicit discovery connections"* ]]
expect "private subsystems shown to a stranger" "$(hidden /tmp/discovery.json)" 0
nvme discover -t "$fabric" -a "$ours" -s 4420 -q nqn.2026-11.org.ringfab:friend -o json >/tmp/discovery.json
expect "private subsystems shown to a friend" "$(hidden /tmp/discovery.json)" 1

nvme connect-all -t "$fabric" -a "$ours" -s 4420
find_controller "$nqn"
wait_for 20 is_block "$nqn" 2
nvme list -o json >/tmp/list.json
cat /tmp/list.json
expect "namespaces of ours that nvme list shows" \
    "$(grep -c '"ModelNumber" *: *"Ringfab under test *"' /tmp/list.json)" 2
nvme disconnect -n "$nqn"

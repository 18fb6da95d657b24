#!/usr/bin/env bash
# Our initiator at our target over TLS, with this kernel's TLS at both ends, at one, and at none.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

only tcp "TLS is NVMe/TCP's"
modprobe tls
mkdir -p $keys
start_target
with_ktls=("${ringfab[@]}")
for choice in "both 256" "initiator 384" "target 256" "none 384"; do
    read -r ends suite <<<"$choice"
    echo "--- SHA-$suite, the kernel's TLS at: $ends"
    (umask 077 && "$bin/ringfab" keys generate --tls --hmac "sha$suite" >$keys/host)
    stop_target TERM
    under=() ringfab=("${with_ktls[@]}") by='the kernel protects'
    case $ends in initiator | none) under=("${without_ktls[@]}") by='this process protects' ;; esac
    case $ends in target | none) ringfab=("${ringfab_without_ktls[@]}") ;; esac
    : >"$target_log"
    serve
    guard required optional "tls_key = \"file:$keys/host\""
    url=$(own_url "$nqn" "ns=1&hostnqn=$host&tls_key=file:$keys/host&queues=2&depth=8")
    bench "$url" --rw randrw --bs 4k --size 2M --time 500ms --cores 2
    bench "$url" --rw write --bs 256k --size 16M --time 500ms
    target_said "$by connections over TLS" || fail "not: $by"
done

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
for suite in 256 384; do
    (umask 077 && "$bin/ringfab" keys generate --tls --hmac sha$suite >$keys/host)
    for ends in both initiator target none; do
        echo "--- SHA-$suite, the kernel's TLS at: $ends"
        stop_target TERM
        under=() ringfab=("${with_ktls[@]}")
        case $ends in initiator | none) under=("${without_ktls[@]}") ;; esac
        case $ends in target | none) ringfab=("${ringfab_without_ktls[@]}") ;; esac
        serve
        guard required optional "tls_key = \"file:$keys/host\""
        url=$(own_url "$nqn" "hostnqn=$host&tls_key=file:$keys/host&queues=2&depth=8")
        bench "$url&ns=1" --rw randrw --bs 4k --size 2M --time 500ms --cores 2
        bench "$url&ns=2" --rw write --bs 256k --size 16M --time 500ms
    done
done

#!/usr/bin/env bash
# Our initiator comes to the kernel's target over TLS: both hash functions, one port for TLS and clear text, a wrong key,
# and a subsystem that requires TLS, as discovery says.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

# load KEY OPTIONS...: a load with verify over TLS.
load() {
    bench "$(url "$nqn" "ns=1&queues=2&depth=16&hostnqn=$host&tls_key=file:$keys/$1")" --rw randrw --size 16M --time 1s \
        "${@:2}"
}

start_tlshd
with_tls=required start_kernel_target "$nqn"
for version in 0 1; do
    for hash in 1 2; do
        echo "--- identity of version $version, hash $hash"
        new_key both $hash
        insert_key "$REPLY" $version
        load both --bs 4k
        load both --bs 128k
        forget_keys
    done
done
echo "--- refused"
may_warn 'TLS handshake complete, error -[0-9]+' 'nvmet_tcp: failed to allocate queue, error -[0-9]+'
new_key both
insert_key "$REPLY" 1
new_key other
refuses ringfab list "$(url "$nqn" "hostnqn=$host&tls_key=file:$keys/other")"
grep -q 'compare the key' /tmp/said || fail "it does not say what to do"
refuses ringfab list "$(url "$nqn" "hostnqn=$host")"
remove_kernel_target

echo "--- one port for both"
may_warn 'nvmet: Allow non-TLS connections while TLS1.3 is enabled'
with_tls='not required' start_kernel_target "$nqn"
ringfab list "$(url "$nqn" "hostnqn=$host")"
ringfab list "$(url "$nqn" "hostnqn=$host&tls=on&tls_key=file:$keys/both")"
forget_keys

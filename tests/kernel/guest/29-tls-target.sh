#!/usr/bin/env bash
# Our initiator at the kernel's target over TLS: with both hash functions, loads on two cores, with the kernel's TLS in
# our process and without, discovery, a target that goes and comes back; and what is refused.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

# secure_url [NQN [OPTIONS]]: of the kernel's target, for TLS.
secure_url() {
    url "${1-$nqn}" "hostnqn=$host&tls_key=file:$keys/host${2:+&$2}"
}

# Our command fails, and says why.
is_refused() {
    refuses timeout 60 "${far[@]}" "$bin/ringfab" bench "$@" --rw randread --time 1s
}

start_tlshd
with_tls=required start_kernel_target "$nqn"
for hash in 1 2; do
    echo "--- hash $hash"
    new_key host $hash
    forget_keys
    insert_key "$REPLY" 1
    bench "$(secure_url "$nqn" 'ns=1&queues=2&depth=8')" --rw randrw --bs 4k --size 2M --time 1s
done

echo "--- a key that has only an identity of version 0"
for hash in 1 2; do
    new_key host $hash
    forget_keys
    insert_key "$REPLY" 0
    bench "$(secure_url "$nqn" 'ns=1&queues=2&depth=8')" --rw randrw --bs 4k --size 2M --time 1s
done
forget_keys
insert_key "$(<$keys/host)" 1

echo "--- large transfers on two cores"
bench "$(secure_url "$nqn" 'ns=1&queues=2&depth=4')" --rw write --bs 256k --size 16M --time 1s --cores 2

echo "--- discovery"
insert_key "$(<$keys/host)" 1 $discovery
ringfab discover "$(secure_url '')" | tee /tmp/discovered
grep -q "$nqn" /tmp/discovered

echo "--- a process that protects its connections itself"
with_ktls=("${ringfab[@]}")
ringfab=("${ringfab_without_ktls[@]}")
bench "$(secure_url "$nqn" 'ns=1&queues=2&depth=8')" --rw randrw --bs 4k --size 2M --time 1s
bench "$(secure_url "$nqn" 'ns=1&queues=2&depth=4')" --rw write --bs 256k --size 16M --time 1s --cores 2
ringfab=("${with_ktls[@]}")

echo "--- refused: clear text, a wrong key, another host"
may_warn 'nvmet_tcp: failed to allocate queue, error -[0-9]+'
is_refused "$(url "$nqn" "hostnqn=$host&ns=1")"
is_refused "$(url "$nqn" "hostnqn=$host-other&ns=1&tls_key=file:$keys/host")"
new_key host 1
forget_keys
insert_key "$REPLY" 1
new_key host 1
is_refused "$(secure_url "$nqn" ns=1)"

echo "--- the target goes and comes back"
may_warn nvmet
forget_keys
insert_key "$(<$keys/host)" 1
"${ringfab[@]}" -v --json bench "$(secure_url "$nqn" 'ns=1&queues=1&depth=4')" --rw randrw --bs 4k --size 2M \
    --time 6s --warmup 0s --io-timeout 10s --verify --destroy-data 1 >/tmp/bench 2>/tmp/load.log &
load=$!
their_target_is_loaded
rm "$nvmet/ports/1/subsystems/$nqn"
wait_for 20 has_lost /tmp/load.log
ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/1/subsystems/
wait $load
holds /tmp/bench
value_of losses "$(</tmp/bench)"
((REPLY >= 1)) || fail "no connection was lost"

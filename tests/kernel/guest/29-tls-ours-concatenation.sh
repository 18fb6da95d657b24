#!/usr/bin/env bash
# Secure channel concatenation: our initiator has only keys for authentication, which make one for TLS at the kernel's
# target. Each connection makes another.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

# dhchap_key NAME: in a file and in REPLY.
dhchap_key() {
    REPLY=$(ringfab keys generate --dhchap --hmac none)
    (umask 077 && mkdir -p $keys && echo "$REPLY" >"$keys/$1")
}

# guard HASH GROUP: what the kernel's target takes from now on.
guard_theirs() {
    echo "hmac($1)" >"$guarded/dhchap_hash"
    echo "$2" >"$guarded/dhchap_dhgroup"
}

# made NUMBER: so many keys were made since the one before.
made() {
    generated_keys
    local count
    count=$(grep -c . <<<"$REPLY" || true)
    expect "keys that were made" "$count" "$1"
}

start_tlshd
forget_keys
with_tls='not required' start_kernel_target "$nqn"
guarded=$nvmet/hosts/$host
mkdir "$guarded"
echo 0 >"$nvmet/subsystems/$nqn/attr_allow_any_host"
ln -s "$guarded" "$nvmet/subsystems/$nqn/allowed_hosts/"
dhchap_key host
echo "$REPLY" >"$guarded/dhchap_key"
dhchap_key controller
echo "$REPLY" >"$guarded/dhchap_ctrl_key"
may_warn nvmet

disk() { url "$nqn" "ns=1&hostnqn=$host&dhchap_key=file:$keys/host&concat=on&$1"; }

count=0
for choice in 'sha256 ffdhe2048' 'sha384 ffdhe3072' 'sha512 ffdhe4096'; do
    echo "--- $choice"
    # The kernel's target takes another hash than SHA-512, which makes no key.
    # shellcheck disable=SC2086
    guard_theirs $choice
    bench "$(disk 'queues=2&depth=8')" --rw randrw --bs 4k --size 2M --time 1s
    made $((++count))
done
guard_theirs sha256 ffdhe3072

echo "--- large transfers on two cores"
bench "$(disk 'queues=2&depth=4')" --rw write --bs 256k --size 16M --time 1s --cores 2
made $((++count))

echo "--- it authenticates again and again under load, and each time another key is made"
bench "$(disk 'queues=2&depth=4')" --rw randrw --bs 4k --size 2M --time 4s --reauthenticate 1s
generated_keys
now=$(grep -c . <<<"$REPLY" || true)
((now > count + 2)) || fail "only $((now - count)) keys were made"
count=$now

echo "--- a process that protects its connections itself"
with_ktls=("${ringfab[@]}")
ringfab=("${ringfab_without_ktls[@]}")
bench "$(disk 'queues=2&depth=8')" --rw randrw --bs 4k --size 2M --time 1s
ringfab=("${with_ktls[@]}")
made $((++count))

echo "--- the target goes and comes back under load"
"${ringfab[@]}" -v --json bench "$(disk 'queues=2&depth=4')" --rw randrw --bs 4k --size 2M \
    --time 8s --warmup 0s --io-timeout 10s --verify --destroy-data 1 >/tmp/bench 2>/tmp/load.log &
load=$!
their_target_is_loaded
made $((++count))
rm "$nvmet/ports/1/subsystems/$nqn"
wait_for 20 has_lost /tmp/load.log
ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/1/subsystems/
wait $load
holds /tmp/bench
value_of losses "$(</tmp/bench)"
((REPLY >= 1)) || fail "no connection was lost"
made $((++count))

echo "--- refused"
dhchap_key other
# wrong SAID OPTIONS...
wrong() {
    local said=$1
    shift
    refuses ringfab list "$(url "$nqn" "hostnqn=$host")" --concat "$@"
    grep -q "$said" /tmp/said || fail "it does not say: $said"
}
wrong 'the target \(may refuse\|refuses\) the key of this host' --dhchap-key file:$keys/other
wrong 'the target has another controller key' --dhchap-key file:$keys/host --dhchap-controller-key file:$keys/other
wrong 'without a DH group' --dhchap-key file:$keys/host --dhchap-groups null
# Both ways, the kernel's target forgets what the key is made of before it makes one.
wrong 'with the key that authentication has made' --dhchap-key file:$keys/host \
    --dhchap-controller-key file:$keys/controller
grep -q 'failed to generate PSK' <<<"$(kernel_said)" || fail "the kernel can do both ways now: say so in docs/tls.md"
made $count

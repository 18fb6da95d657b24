#!/usr/bin/env bash
# The kernel's host comes to our target over TLS: both versions of the identity with both hash functions, one port for
# TLS and clear text, a wrong key, a key that goes, discovery, and secure channel concatenation.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

control() { "${far[@]}" "$bin/ringfab-target" "$@" --socket "$socket"; }

# guard LISTENER SUBSYSTEM KEYS...: what is required of whom, and which keys the host has.
guard() {
    local line lines=()
    for line in "${@:3}"; do lines+=("$line = \"file:$keys/$line\""); done
    sed -e "/^\[\[listener\]\]/a tls = \"$1\"" -e "/^nqn = \"${nqn//\//\\/}\"/a tls = \"$2\"" /tmp/open.toml >/tmp/target.toml
    {
        echo "[[host]]"
        echo "nqn = \"$host\""
        printf '%s\n' "${lines[@]}"
    } >>/tmp/target.toml
    control reload
}

# Connects, writes and reads, and leaves.
try() {
    connect -q "$host" -i 2 "$@"
    is_live
    verified "$ns1" --rw=randrw --bs=16k --size=2M --iodepth=8
}

leave() {
    nvme disconnect -n "$nqn"
}

away() { nvme "$1" -t tcp -a "$ours" -s 4420 -q "$host" "${@:2}"; }

start_tlshd
start_target
cp /tmp/target.toml /tmp/open.toml
for version in 0 1; do
    for hash in 1 2; do
        echo "--- identity of version $version, hash $hash"
        new_key tls_key $hash
        insert_key "$REPLY" $version
        guard required required tls_key
        try --tls
        kernel_has tls_mode tls
        control status | grep 'TLS'
        target_said "connected.*identity of version $version" || fail "another identity"
        leave
        forget_keys
    done
done

echo "--- clear text where TLS is required, and a key that the target does not have"
may_warn 'TLS handshake complete, error -[0-9]+' 'failed to receive icresp, error -[0-9]+' 'Connect command failed' \
    'Connect Invalid Host' 'queue 0: .*error' 'failed to connect socket' 'resetting controller' \
    'starting error recovery' 'Reconnecting in' 'Removing ctrl' 'failed to send request' 'I/O tag'
refuses away connect -n "$nqn"
new_key other
insert_key "$REPLY" 1
refuses away connect -n "$nqn" --tls
target_said "TLS.*has another identity" || fail "the log does not say why"
forget_keys

echo "--- one port for both"
new_key tls_key
insert_key "$REPLY" 1
guard allowed optional tls_key
try
leave
try --tls
echo "--- its key goes, and it goes"
rm $keys/tls_key
new_key tls_key
control reload
wait_for 20 target_said "its host has another key for TLS"
leave
forget_keys

echo "--- discovery"
insert_key "$(<$keys/tls_key)" 1 $discovery
insert_key "$(<$keys/tls_key)" 1
guard required required tls_key
away discover --tls | grep -c 'sectype: *tls13'
refuses away discover
forget_keys

echo "--- secure channel concatenation"
secret=$(nvme gen-dhchap-key --hmac=0 --nqn="$host")
(umask 077 && echo "$secret" >$keys/dhchap_key)
guard allowed required dhchap_key
try --dhchap-secret="$secret" --concat
kernel_has tls_mode concat
target_said "authenticated, and made a key for TLS" || fail "no key was made"
target_said "connected.*generated key" || fail "it was not used"
generated_keys
before=$REPLY
nvme reset "$device"
wait_for 20 is_live
generated_keys
[[ -n $REPLY && $REPLY != "$before" ]] || fail "a reset made no other key"
verified "$ns1" --rw=randrw --bs=16k --size=2M --iodepth=8
leave

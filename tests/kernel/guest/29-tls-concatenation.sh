#!/usr/bin/env bash
# Secure channel concatenation: the kernel's host has only a key for authentication, which makes one for TLS at our
# target. A reset and a restart of the target make another.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

# accept HASH GROUP: what our target accepts; TLS is required in the end.
accept() {
    guard allowed required "dhchap_key = \"file:$keys/host\"" "dhchap_controller_key = \"file:$keys/controller\"" \
        "dhchap_hashes = [$1]" "dhchap_groups = [\"$2\"]"
}

# another_key: sets `generated` to the keys that the kernel has, which have to differ from those of before.
another_key() {
    generated_keys
    [[ -n $REPLY && $REPLY != "${generated:-}" ]] || fail "no other key was made"
    generated=$REPLY
}

# dhchap_key NAME: in a file and in REPLY.
dhchap_key() {
    REPLY=$(umask 077 && nvme gen-dhchap-key --hmac=0 --nqn="$host")
    (umask 077 && mkdir -p $keys && echo "$REPLY" >"$keys/$1")
}

leave() { nvme disconnect -n "$nqn"; }

start_tlshd
dhchap_key host
secret=$REPLY
dhchap_key controller
both_ways=(--dhchap-ctrl-secret="$REPLY")
start_target
may_warn "resetting controller"

# The second is both ways, and SHA-512, which the target prefers there, makes no key.
for choice in '"sha256" ffdhe2048' '"sha512","sha384" ffdhe3072'; do
    echo "--- $choice"
    read -r hashes group <<<"$choice"
    accept "$hashes" "$group"
    asks=()
    [[ $hashes == '"sha256"' ]] || asks=("${both_ways[@]}")
    connect -q "$host" -i 2 --dhchap-secret="$secret" "${asks[@]}" --concat
    kernel_has tls_mode concat
    another_key
    [[ $(control status --json) == *'"key":"generated"'* ]] || fail "the key of TLS is not a generated one"
    verified "$ns1" --rw=randrw --bs=4k --iodepth=8 --size=512k
    nvme reset "$device"
    wait_for 20 is_live
    another_key
    verified "$ns2" --rw=write --bs=256k --iodepth=4 --size=4m
    leave
done

echo "--- the target is started anew under load"
connect -q "$host" -i 2 -c 1 -l 60 --dhchap-secret="$secret" --concat
another_key
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=1000 --size=4m &
load=$!
host_is_loaded
stop_target TERM
wait_for 10 not_live
serve
wait_for 20 is_live
wait $load
another_key
no_io_errors
leave

echo "--- refused: clear text all the way, and another key"
may_warn 'qid 0: (controller )?authentication (setup )?failed' 'secure concatenation is not supported'
refuses nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host" --dhchap-secret="$secret"
dhchap_key other
refuses nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host" --dhchap-secret="$REPLY" --concat

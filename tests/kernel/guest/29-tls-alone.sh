#!/usr/bin/env bash
# TLS between the kernel's own host and target: what fails here is no fault of ours. Both versions of the identity with
# both hash functions, a port for TLS and clear text, a wrong key, discovery, and secure channel concatenation.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

near() { nvme "$1" -t tcp -a "$theirs" -s 4420 -q "$host" "${@:2}"; }

# Connects, reads, and leaves.
try() {
    near connect -n "$nqn" -i 1 "$@"
    find_controller "$nqn"
    wait_for 20 is_block "$nqn" 1
    dd if="$found" of=/dev/null bs=64k count=4 iflag=direct status=none
}

leave() {
    nvme disconnect -n "$nqn"
}

start_tlshd
with_tls=required start_kernel_target "$nqn"
for version in 0 1; do
    for hash in 1 2; do
        echo "--- identity of version $version, hash $hash"
        new_key both $hash
        insert_key "$REPLY" $version
        try --tls
        kernel_has tls_mode tls
        leave
        grep -q "Using psk identity NVMe${version}R0$hash $host $nqn" "$tlshd_log" || fail "another identity"
        forget_keys
    done
done

echo "--- a wrong key: the host has it from elsewhere"
may_warn 'TLS handshake complete, error -[0-9]+' 'nvmet_tcp: failed to allocate queue, error -[0-9]+' \
    'failed to receive icresp, error -[0-9]+'
new_key both
insert_key "$REPLY" 0
serial=$(head -c 32 /dev/urandom | keyctl padd psk "NVMe0R01 $host $nqn" @u)
keyctl setperm "$serial" 0x3f3f3f3f
refuses near connect -n "$nqn" --tls --tls_key="$serial"
grep -q "Handshake .*failed" "$tlshd_log" || fail "no handshake failed"
echo "--- clear text where TLS is required"
refuses near connect -n "$nqn"
remove_kernel_target

echo "--- one port for both, and discovery"
may_warn 'nvmet: Allow non-TLS connections while TLS1.3 is enabled'
with_tls='not required' start_kernel_target "$nqn"
try
leave
try --tls
kernel_has tls_mode tls
leave
new_key discovery
insert_key "$REPLY" 1 $discovery
near discover --tls | grep 'sectype: *tls13'
forget_keys

echo "--- secure channel concatenation"
secret=$(nvme gen-dhchap-key --hmac=0 --nqn="$host")
mkdir "$nvmet/hosts/$host"
echo "$secret" >"$nvmet/hosts/$host/dhchap_key"
echo ffdhe2048 >"$nvmet/hosts/$host/dhchap_dhgroup"
echo 0 >"$nvmet/subsystems/$nqn/attr_allow_any_host"
ln -s "$nvmet/hosts/$host" "$nvmet/subsystems/$nqn/allowed_hosts/"
try --dhchap-secret="$secret" --concat
kernel_has tls_mode concat
generated_keys
before=$REPLY
may_warn "resetting controller"
[[ -n $before ]] || fail "no key was generated"
nvme reset "$device"
wait_for 20 is_live
generated_keys
[[ -n $REPLY && $REPLY != "$before" ]] || fail "a reset made no other key"
dd if="$found" of=/dev/null bs=64k count=4 iflag=direct status=none
leave

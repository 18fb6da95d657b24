#!/usr/bin/env bash
# The kernel's host at our target over TLS: both versions of the identity with both hash functions, loads, resets,
# restarts of the target, discovery, one port for TLS and clear text, with the kernel's TLS in our process and without;
# and who is refused.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

# share_key VERSION HASH: a new key for both ends.
share_key() {
    new_key host "$2"
    forget_keys
    insert_key "$REPLY" "$1"
    control reload
}

secure() { connect -q "$host" --tls "$@"; }

leave() { nvme disconnect -n "$nqn"; }

# protected_by kernel|process: all queues of the host.
protected_by() {
    local said
    said=$(control status --json)
    [[ $said == *"\"tls\":\"$1\""* ]] || fail "the $1 protects nothing"
    [[ $1 == kernel || $said != *'"tls":"kernel"'* ]] || fail "the kernel protects a queue"
}

start_tlshd
new_key host
start_target
guard required optional "tls_key = \"file:$keys/host\""
suites=([1]=TLS_AES_128_GCM_SHA256 [2]=TLS_AES_256_GCM_SHA384)
for version in 0 1; do
    for hash in 1 2; do
        echo "--- identity of version $version, hash $hash"
        share_key $version $hash
        secure -i 2
        kernel_has tls_mode tls
        target_said " connected.*${suites[hash]}.*" || fail "the log does not name the suite"
        has suite "${suites[hash]}" "$(control status --json)"
        has identity_version $version "$(control status --json)"
        verified "$ns1" --rw=randrw --bs=4k --iodepth=8 --size=512k
        verified "$ns2" --rw=write --bs=256k --iodepth=4 --size=4m
        leave
    done
done

# It never says that it ends (close_notify), and has shut its controllers down before.
if grep -E ' (INFO|WARN) .*cut off' "$target_log"; then fail "an orderly end is called another one"; fi
target_said 'disconnected.*the host has left' || fail "nobody has left in order"

echo "--- resets under load"
may_warn "resetting controller"
share_key 1 1
secure "${four[@]}" -c 1 -l 60
protected_by kernel
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=600 --size=4m &
load=$!
host_is_loaded
nvme reset "$device"
wait_for 20 is_live
wait $load

echo "--- the target ends and comes back under load"
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=1600 --size=4m &
load=$!
for signal in TERM KILL; do
    host_is_loaded
    stop_target $signal
    wait_for 10 not_live
    serve
    wait_for 20 is_live
done
wait $load
no_io_errors
leave

echo "--- its key is revoked, and it goes"
may_warn 'Property Set error'
secure -i 2 -l 0
new_key newer
guard required optional "tls_keys = [\"file:$keys/newer\", \"file:$keys/host\"]"
is_live
control host revoke "$host"
wait_for 20 target_said "the key of its TLS is revoked"
wait_for 20 not_live
nvme disconnect -n "$nqn" || true
guard required optional "tls_key = \"file:$keys/host\""

echo "--- refused: a wrong key, clear text, no key"
may_warn 'TLS handshake complete, error -[0-9]+' 'failed to receive icresp, error -[0-9]+' 'no valid PSK found'
for version in 0 1; do
    share_key $version 1
    (umask 077 && nvme gen-tls-key --hmac=1 >"$keys/host")
    control reload
    refuses nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host" --tls
done
refuses nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host"
host=$host-other
share_key 1 1
refuses nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host" --tls
host=${host%-other}
grep -E 'WARN|refused' "$target_log" | tail -n 12
stop_target TERM

echo "--- one port for TLS and clear text, discovery, and a process that protects its connections itself"
sed -i 's/^tls = "required"/tls = "allowed"/' /tmp/target.toml
under=("${without_ktls[@]}")
serve
share_key 0 2
secure -i 2
kernel_has tls_mode tls
protected_by process
nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host-clear" -i 1 -D \
    --hostid=5a5a5a5a-0000-4000-8000-000000000041
verified "$ns1" --rw=randrw --bs=4k --iodepth=8 --size=512k
verified "$ns2" --rw=write --bs=256k --iodepth=4 --size=4m
leave
new_key host
insert_key "$REPLY" 1 $discovery
control reload
nvme discover -t tcp -a "$ours" -s 4420 -q "$host" --tls | tee /tmp/discovered
grep -q 'sectype: *tls13' /tmp/discovered
nvme discover -t tcp -a "$ours" -s 4420

#!/usr/bin/env bash
# The kernel's host proves who it is to our target, and asks for the same, with every hash function and every group that
# it knows. Whoever has another key stays outside, on either end.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

[[ $provider != verbs ]] || not_here "how data move makes no difference to this"

host=nqn.2014-08.org.nvmexpress:uuid:5a5a5a5a-0000-4000-8000-000000000029

keys=/tmp/keys
mkdir -p $keys
# key NAME HASH: a new key, in a file and in REPLY.
key() {
    REPLY=$(umask 077 && nvme gen-dhchap-key --hmac="$2" --nqn="$host")
    (umask 077 && echo "$REPLY" >"$keys/$1")
}

# guard HASHES GROUPS: the target accepts these, and reads its keys again.
guard() {
    cp /tmp/unguarded.toml /tmp/target.toml
    cat >>/tmp/target.toml <<TOML
[[host]]
nqn = "$host"
dhchap_key = "file:$keys/host"
dhchap_controller_key = "file:$keys/controller"
dhchap_hashes = [$1]
dhchap_groups = [$2]
TOML
    control reload
}

# Connects, reads, and leaves.
try() {
    connect -q "$host" "$@"
    is_live
    dd if="$ns1" of=/dev/null bs=4k count=16 iflag=direct status=none
    nvme disconnect -n "$nqn"
}

# What a newer kernel does differently is not in the groups, and the large ones take long.
groups=(null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192)
[[ -z $(type -P tlshd) ]] || groups=(null ffdhe2048 ffdhe3072)
start_target
cp /tmp/target.toml /tmp/unguarded.toml
key host 0
secret=$REPLY
key controller 0
controller_secret=$REPLY
# Every other one asks the target for the same.
asks=()
for hash in sha256 sha384 sha512; do
    for group in "${groups[@]}"; do
        echo "--- $hash $group ${asks[*]:+both ways}"
        guard "\"$hash\"" "\"$group\""
        try --dhchap-secret="$secret" "${asks[@]}" -i 2
        if ((${#asks[@]})); then asks=(); else asks=(--dhchap-ctrl-secret="$controller_secret"); fi
    done
    # So that each group has both.
    ((${#groups[@]} % 2)) || if ((${#asks[@]})); then asks=(); else asks=(--dhchap-ctrl-secret="$controller_secret"); fi
done
for hash in SHA-256 SHA-384 SHA-512; do
    for group in "${groups[@]/null/NULL}"; do
        target_said "I/O queue authenticated.* hash=$hash group=$group" || fail "no queue with $hash and $group"
    done
done
count=$(kernel_said | grep -c 'qid 0: controller authenticated')
expect "how often the host has authenticated the controller" "$count" $((3 * ${#groups[@]} / 2))

echo "--- keys that are transformed"
for hmac in 1 2 3; do
    key host $hmac
    guard '"sha256"' '"ffdhe2048"'
    try --dhchap-secret="$REPLY"
done

echo "--- refused"
may_warn 'qid 0: (controller )?authentication (setup )?failed' 'qid 0: no key' 'Connect command failed'
key other 0
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" -q "$host" --dhchap-secret="$REPLY"
target_said "not authenticated.*host=\"$host" || fail "the log does not name who was refused"
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" -q "$host"
# The host does not find our target to be the one that it wants.
secret=$(<$keys/host)
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" -q "$host" --dhchap-secret="$secret" \
    --dhchap-ctrl-secret="$REPLY"

#!/usr/bin/env bash
# Our initiator proves who it is to the kernel's target, and asks for the same, with every hash function and every group
# that it knows. Whoever has another key stays outside, on either end.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

[[ $provider != verbs ]] || not_here "how data move makes no difference to this"

host=nqn.2014-08.org.nvmexpress:uuid:5a5a5a5a-0000-4000-8000-000000000038
keys=/tmp/host-keys
rm -rf $keys
mkdir $keys
# key NAME HASH: a new key, in a file and in REPLY.
key() {
    REPLY=$(ringfab keys generate --dhchap --hmac "$2")
    (umask 077 && echo "$REPLY" >"$keys/$1")
}

# guard HASH GROUP: what the kernel's target takes from now on.
guard() {
    echo "hmac($1)" >"$guarded/dhchap_hash"
    echo "$2" >"$guarded/dhchap_dhgroup"
}

# Attaches with the options, and reads.
try() {
    ringfab read "$(url "$nqn" 'ns=1&queues=2')" --hostnqn $host --dhchap-key file:$keys/host "$@" \
        --length 64k -o /tmp/read
    cmp -n 65536 /tmp/read /dev/nullb0
}

may_warn nvmet
start_kernel_target "$nqn"
allow_only $host
key host none
echo "$REPLY" >"$guarded/dhchap_key"
key controller none
echo "$REPLY" >"$guarded/dhchap_ctrl_key"

# Every other one asks the target for the same, so that each group has both.
both=(--dhchap-controller-key "file:$keys/controller")
asks=()
for hash in sha256 sha384 sha512; do
    for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
        echo "--- $hash $group ${asks[*]:+both ways}"
        guard $hash $group
        offered=(--dhchap-hashes "$hash" --dhchap-groups "$group")
        # The kernel's target refuses whoever offers this one alone, and takes the configured one of several.
        [[ $group != null ]] || offered=(--dhchap-hashes "$hash" --dhchap-groups "null,ffdhe2048")
        try "${offered[@]}" "${asks[@]}"
        if ((${#asks[@]})); then asks=(); else asks=("${both[@]}"); fi
    done
    if ((${#asks[@]})); then asks=(); else asks=("${both[@]}"); fi
done

echo "--- keys that are transformed"
for hash in sha256 sha384 sha512; do
    key host $hash
    echo "$REPLY" >"$guarded/dhchap_key"
    key controller $hash
    echo "$REPLY" >"$guarded/dhchap_ctrl_key"
    guard sha256 ffdhe2048
    try --dhchap-controller-key file:$keys/controller
done

echo "--- again and again, under a load"
bench "$(url "$nqn" 'ns=1&queues=2&depth=8')" --hostnqn $host --dhchap-key file:$keys/host \
    --dhchap-controller-key file:$keys/controller --reauthenticate 1s --rw randrw --bs 4k --size 32M --time 5s
value_of losses "$(</tmp/bench)"
expect "connections lost" "$REPLY" 0

echo "--- refused"
key other none
# wrong SAID OPTIONS...
wrong() {
    local said=$1
    shift
    refuses ringfab list "$(url "$nqn")" --hostnqn $host "$@"
    grep -q "$said" /tmp/said || fail "it does not say: $said"
}
# Over RDMA it may be gone before it has said so.
wrong 'the target \(may refuse\|refuses\) the key of this host' --dhchap-key file:$keys/other
wrong 'the target has another controller key' --dhchap-key file:$keys/host --dhchap-controller-key file:$keys/other
wrong 'no key is given'
# It takes the configured group whatever is offered, which our host finds.
wrong 'has chosen a group that was not offered' --dhchap-key file:$keys/host --dhchap-groups null
# Without a key of its own the target does not prove who it is.
echo 1 >"$nvmet/subsystems/$nqn/attr_allow_any_host" 2>/dev/null || {
    rm "$nvmet/subsystems/$nqn/allowed_hosts/$host"
    echo 1 >"$nvmet/subsystems/$nqn/attr_allow_any_host"
}
wrong 'does not ask for authentication' --dhchap-key file:$keys/host --dhchap-controller-key file:$keys/controller

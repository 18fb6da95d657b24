#!/usr/bin/env bash
# The kernel's host at our target gets another key under a load: first the target has both, then the host gets the new
# one, then the old one is taken away. It comes back from resets at each step, and no command is lost.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "how data move makes no difference to this"

host=nqn.2014-08.org.nvmexpress:uuid:5a5a5a5a-0000-4000-8000-000000000029

keys=/tmp/rotated-keys
rm -rf $keys
mkdir $keys
# key NAME: a new key, in a file and in REPLY.
key() {
    REPLY=$(umask 077 && nvme gen-dhchap-key --hmac=0 --nqn="$host")
    (umask 077 && echo "$REPLY" >"$keys/$1")
}

# guard LINE...: what the host's table has.
guard() {
    cp /tmp/open.toml /tmp/target.toml
    printf '%s\n' '[[host]]' "nqn = \"$host\"" "$@" >>/tmp/target.toml
    control reload
}

may_warn "resetting controller"
start_target
cp /tmp/target.toml /tmp/open.toml
key first
first=$REPLY
key second
second=$REPLY
key third
third=$REPLY
key controller
controller_secret=$REPLY
controller_key="dhchap_controller_key = \"file:$keys/controller\""
guard "dhchap_key = \"file:$keys/first\"" "$controller_key"
connect -q "$host" -i 2 -l 60 --dhchap-secret="$first" --dhchap-ctrl-secret="$controller_secret"
shows_key new || fail "the only key is not the new one"
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=8000 --size=64m &
load=$!
host_is_loaded

echo "--- the target has both keys, the host has the old one"
guard "dhchap_keys = [\"file:$keys/second\", \"file:$keys/first\"]" "$controller_key"
shows_key old || fail "status does not say that the host has the old key"
control status | grep 'old key'
host_is_loaded
come_back
target_said "the host still has its old key" || fail "the log does not say that the host has the old key"
shows_key old || fail "the host has another key now"

echo "--- the host gets the new one"
echo -n "$second" >"/sys/class/nvme/$controller/dhchap_secret"
wait_for 20 shows_key new
host_is_loaded
come_back
shows_key new || fail "the host has come back with the old key"

echo "--- the old one is revoked, which disturbs nobody"
control host revoke "$host"
come_back

echo "--- a key that is replaced without an overlap counts from the next time on"
guard "dhchap_key = \"file:$keys/third\"" "$controller_key"
is_live
shows_key replaced || fail "status does not say that the key was replaced"
host_is_loaded
echo -n "$third" >"/sys/class/nvme/$controller/dhchap_secret"
wait_for 20 shows_key new
come_back

echo "--- the controller's key is replaced, too"
key other-controller
controller_secret=$REPLY
guard "dhchap_key = \"file:$keys/third\"" "dhchap_controller_key = \"file:$keys/other-controller\""
is_live
host_is_loaded
echo -n "$controller_secret" >"/sys/class/nvme/$controller/dhchap_ctrl_secret"
come_back

wait $load
no_io_errors
is_live
[[ $(control status --json) != *'"errors":'[1-9]* ]] || fail "commands have failed at the target"
nvme disconnect -n "$nqn"

echo "--- refused: whoever has a key that was revoked"
may_warn 'qid 0: (controller )?authentication (setup )?failed' 'Connect command failed' 'Property Set error'
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" -q "$host" --dhchap-secret="$second"
guard "dhchap_keys = [\"file:$keys/third\", \"file:$keys/second\"]"
connect -q "$host" --dhchap-secret="$second" -i 1 -l 0
control host revoke "$host"
wait_for 20 not_live
target_said "the key that its host has shown is revoked" || fail "the log does not say why it was disconnected"

#!/usr/bin/env bash
# The kernel's host at our target gets another key for TLS under a load: first the target has both, then the host gets
# the new one, then the old one is taken away. It comes back from resets at each step, and no command is lost. Then our
# initiator at the kernel's target, in the same steps.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/tls.sh
. "${0%/*}/tls.sh"

start_tlshd
may_warn "resetting controller"
new_key first
first=$REPLY
new_key second 2
second=$REPLY
start_target
guard required optional "tls_key = \"file:$keys/first\""
forget_keys
insert_key "$first" 1
connect -q "$host" --tls -i 2 -l 60
shows_key new || fail "the only key is not the new one"
verified "$ns1" --rw=randwrite --bs=8k --iodepth=8 --rate_iops=,200 --number_ios=5000 --size=40m &
load=$!
host_is_loaded

echo "--- the target has both keys, the host has the old one"
guard required optional "tls_keys = [\"file:$keys/second\", \"file:$keys/first\"]"
shows_key old || fail "status does not say that the host has the old key"
control status | grep 'old key'
host_is_loaded
come_back
shows_key old || fail "the host has another key now"

echo "--- the host gets the new one"
forget_keys
insert_key "$second" 1
come_back
shows_key new || fail "the host has come back with the old key"

echo "--- the old one is revoked, which disturbs nobody"
control host revoke "$host"
host_is_loaded
come_back
wait $load
no_io_errors
nvme disconnect -n "$nqn"

echo "--- refused: whoever has a key that was revoked"
may_warn 'TLS handshake complete, error -[0-9]+' 'failed to receive icresp, error -[0-9]+' 'no valid PSK found'
forget_keys
insert_key "$first" 1
refuses nvme connect -t tcp -a "$ours" -s 4420 -n "$nqn" -q "$host" --tls
stop_target TERM

echo "--- our initiator at the kernel's target"
with_tls=required start_kernel_target "$nqn"
cp -p $keys/first $keys/host
timeout --foreground -k 5 150 "${far[@]}" "$bin/ringfab" -v --json bench \
    "$(url "$nqn" "hostnqn=$host&tls_key=file:$keys/host&ns=1&queues=1&depth=4&replaydelay=0")" \
    --rw randrw --bs 4k --size 2M \
    --time 120s --warmup 0s --io-timeout 10s --verify --destroy-data 1 >/tmp/bench 2>/tmp/load.log &
load=$!
their_target_is_loaded
lose() {
    rm "$nvmet/ports/1/subsystems/$nqn"
    wait_for 20 has_lost /tmp/load.log "$1"
    ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/1/subsystems/
    their_target_is_loaded
}
may_warn nvmet
insert_key "$second" 1
lose 1
cp -p $keys/second $keys/host
lose 2
forget_keys
insert_key "$second" 1
their_target_is_loaded
lose 3
end_load $load 3

#!/usr/bin/env bash
# Our initiator at the kernel's target gets another key under a load, whichever end is first. It comes back from each
# loss, and no command is lost.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "how data move makes no difference to this"

host=nqn.2014-08.org.nvmexpress:uuid:5a5a5a5a-0000-4000-8000-000000000038
keys=/tmp/rotated-host-keys
rm -rf $keys
mkdir $keys

# new_keys: another one for each end, in NAME.next.
new_keys() {
    local name
    for name in host controller; do (umask 077 && ringfab keys generate --dhchap >$keys/$name.next); done
}
ours_changes() { mv $keys/host.next $keys/host && mv $keys/controller.next $keys/controller; }
theirs_changes() {
    cat "$keys/host${1:-}" >"$guarded/dhchap_key"
    cat "$keys/controller${1:-}" >"$guarded/dhchap_ctrl_key"
}

losses=0
# lose: cuts the connection, and lets it be made again.
lose() {
    losses=$((losses + 1))
    rm "$nvmet/ports/1/subsystems/$nqn"
    wait_for 20 has_lost /tmp/load.log $losses
    ln -s "$nvmet/subsystems/$nqn" $nvmet/ports/1/subsystems/
}
# refused TIMES: whether the kernel has refused a key of ours so often.
refused() {
    local count
    count=$(kernel_said | grep -c 'host response mismatch' || true)
    ((count >= $1))
}
# Waits for the next one.
refused_again() {
    local count
    count=$(kernel_said | grep -c 'host response mismatch' || true)
    wait_for 20 refused $((count + 1))
}

may_warn nvmet
start_kernel_target "$nqn"
allow_only $host
echo ffdhe2048 >"$guarded/dhchap_dhgroup"
new_keys
ours_changes
theirs_changes
timeout --foreground -k 5 150 "${far[@]}" "$bin/ringfab" -v --json \
    bench "$(url "$nqn" 'ns=1&queues=1&depth=4&replaydelay=0')" \
    --hostnqn $host --dhchap-key file:$keys/host --dhchap-controller-key file:$keys/controller --rw randrw --bs 4k \
    --size 2M --time 120s --warmup 0s --io-timeout 10s --verify --destroy-data 1 >/tmp/bench 2>/tmp/load.log &
load=$!
their_target_is_loaded

echo "--- the target is first, and nothing is lost meanwhile"
new_keys
theirs_changes .next
their_target_is_loaded
ours_changes
their_target_is_loaded
lose
their_target_is_loaded

echo "--- the target is first, and a loss comes before the host has the key"
new_keys
theirs_changes .next
lose
refused_again
ours_changes
their_target_is_loaded

echo "--- the host is first"
new_keys
ours_changes
lose
refused_again
theirs_changes
their_target_is_loaded
end_load $load 3

#!/usr/bin/env bash
# Our initiator looks at the kernel's target, whose names need not have the usual form.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

host=nqn.2026-11.org.ringfab:look
start_kernel_target "$nqn"
start_subsystem testnqn
ringfab discover "$(address "$theirs")" >/tmp/found
cat /tmp/found
grep -q "$nqn" /tmp/found
grep -q testnqn /tmp/found
ringfab list "$(url "$nqn")"
ringfab list "$(url testnqn hostnqn=$host)"
has mn Linux "$(ringfab --json id-ctrl "$(url "$nqn")")"
has nsze $((256 * 2048)) "$(ringfab --json id-ns "$(url "$nqn" ns=1)")"
ringfab smart "$(url "$nqn")"

echo "--- connecting again and again"
for _ in {1..5}; do
    has queues 4 "$(ringfab --json list "$(url "$nqn" queues=4)")"
done

echo "--- refused"
refuses ringfab list "$(url nqn.2026-11.org.ringfab:nowhere)"
grep -q 'Connect' /tmp/said
echo 0 >$nvmet/subsystems/testnqn/attr_allow_any_host
refuses ringfab list "$(url testnqn hostnqn=$host)"
mkdir "$nvmet/hosts/$host"
ln -s "$nvmet/hosts/$host" $nvmet/subsystems/testnqn/allowed_hosts/
ringfab list "$(url testnqn hostnqn=$host)"

#!/usr/bin/env bash
# One and four I/O queues, small and large depths (256 is the kernel's own limit); what is refused is refused with its
# reason.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

private=nqn.2026-11.org.ringfab:private
start_target
for options in "-i 1" "-i 1 -Q 16" "${four[*]} -Q 16" "${four[*]} -Q 256"; do
    echo "--- $options"
    # shellcheck disable=SC2086  # several words
    connect $options
    is_live
    dd if="$ns1" of=/dev/null bs=4k count=16 iflag=direct status=none
    nvme disconnect -n "$nqn"
done
four_queues_twice() {
    [ "$(grep -c 'disconnected.*io_queues=4' "$target_log")" = 2 ]
}
wait_for 10 four_queues_twice

echo "--- refused"
may_warn 'Connect Invalid Data Parameter, subsysnqn' 'Connect for subsystem .* is not allowed, hostnqn'
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n nqn.2026-11.org.ringfab:nowhere
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n $private -q nqn.2026-11.org.ringfab:stranger
kernel_said | grep 'Connect Invalid Data Parameter'
kernel_said | grep 'is not allowed, hostnqn'
nvme connect -t "$fabric" -a "$ours" -s 4420 -n $private -q nqn.2026-11.org.ringfab:friend
find_controller $private
nvme disconnect -n $private

echo "--- a host name without the usual form, and one that is not as usual but has it"
may_warn 'Connect Invalid Data Parameter, hostnqn'
refuses nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" -q testhost
# Who leaves at once may do so while the kernel looks for partitions.
may_warn 'no available path - failing I/O' 'Buffer I/O error on dev .*, async page read' 'unable to read RDB block'
connect -q nqn.2014-08.org.nvmexpress:uuid:4C4C4544-0051-5A10-8056-B9C04F4D3832
nvme disconnect -n "$nqn"

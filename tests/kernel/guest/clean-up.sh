#!/usr/bin/env bash
# Undoes whatever a scenario left, in a process of its own that can be given up.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. ./lib.sh

if [[ -e $disturbed ]]; then mend_link; fi
busybox killall -q -KILL ringfab fio rping || true
if [[ $(</proc/mounts) == *' /tmp/mounted '* ]]; then umount -l /tmp/mounted; fi
if [[ -e /sys/block/nbd0/pid ]]; then nbd-client -d /dev/nbd0; fi
if [[ $(echo /sys/class/nvme/nvme*) == */nvme[0-9]* ]]; then nvme disconnect-all; fi
stop_target KILL
busybox killall -q -KILL nbdkit || true
if [[ -e /dev/mapper/control ]]; then dmsetup remove_all -f; fi
busybox losetup -a | while IFS=: read -r loop _; do busybox losetup -d "$loop"; done
remove_kernel_target
reset_siw

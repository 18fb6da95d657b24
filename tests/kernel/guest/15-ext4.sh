#!/usr/bin/env bash
# A file system on our namespace, used by many at once, checked, and found again over a new connection.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_target
connect "${four[@]}"
mkfs.ext4 -q -F "$ns1"
mkdir -p /tmp/mounted
mount -o discard "$ns1" /tmp/mounted
python3 -IS "$out/files.py" use /tmp/mounted /tmp/files.json 3 150
fstrim -v /tmp/mounted
umount /tmp/mounted
fsck.ext4 -f -n "$ns1"
nvme disconnect -n "$nqn"
connect -i 1
mount -o ro "$ns1" /tmp/mounted
python3 -IS "$out/files.py" check /tmp/mounted /tmp/files.json
umount /tmp/mounted
no_io_errors

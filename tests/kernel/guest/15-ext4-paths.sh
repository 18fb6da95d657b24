#!/usr/bin/env bash
# A file system of the kernel's host on our target, in use while its two paths change: access states, listeners and
# controllers; twenty changes a round, ROUNDS=n for more than one. It is checked, and every file compared.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/host-paths.sh
. "${0%/*}/host-paths.sh"

[[ $fabric == tcp ]] || not_here "21-paths-lost loses the paths of this fabric"

# Round after round, each in a folder that is removed when its files were as they should be.
use_files() {
    local round=0 folder
    while [[ ! -e /tmp/enough ]]; do
        folder=/tmp/mounted/$((++round))
        mkdir "$folder"
        python3 -IS "$out/files.py" use "$folder" "/tmp/files.json" 2 20
        [[ -e /tmp/enough ]] || rm -r "$folder"
    done
    echo "$round rounds of files" >/tmp/rounds
}

attach_by_both
rm -f /tmp/enough /tmp/rounds
mkfs.ext4 -q -F "$ns1"
mkdir -p /tmp/mounted
mount "$ns1" /tmp/mounted
use_files &
load=$!
watch_gaps "$ns2"
loaded
in_turns "${ROUNDS:-1}" access preference drained listener controller
touch /tmp/enough
wait $load
cat /tmp/rounds
stop_gaps
umount /tmp/mounted
fsck.ext4 -f -n "$ns1"
mount -o ro "$ns1" /tmp/mounted
last=(/tmp/mounted/[0-9]*)
python3 -IS "$out/files.py" check "${last[0]}" /tmp/files.json
umount /tmp/mounted
no_io_errors

#!/usr/bin/env bash
# A file system of the kernel's host on what an NBD server exports to our target, in use while the server is killed and
# started again. It writes through, so nothing is lost with it.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

[[ $fabric == tcp ]] || not_here "what is beneath a namespace is the same over every fabric"

serve_image() {
    rm -f /tmp/nbd.sock
    nbdkit -f -U /tmp/nbd.sock file /tmp/nbd.img &
    server=$!
    wait_for 20 test -S /tmp/nbd.sock
}

truncate -s 256M /tmp/nbd.img
serve_image
beneath=$'nbd = "nbd+unix:///?socket=/tmp/nbd.sock"\nwrite_through = true' start_target
connect "${four[@]}"
mkfs.ext4 -q -F "$ns1"
mkdir -p /tmp/mounted
mount -o discard "$ns1" /tmp/mounted
python3 -IS "$out/files.py" use /tmp/mounted /tmp/files.json 3 100 &
load=$!
for _ in 1 2 3; do
    pause 2
    kill -KILL "$server"
    wait "$server" || true
    serve_image
done
wait $load
fstrim -v /tmp/mounted
umount /tmp/mounted
fsck.ext4 -f -n "$ns1"
mount -o ro "$ns1" /tmp/mounted
python3 -IS "$out/files.py" check /tmp/mounted /tmp/files.json
umount /tmp/mounted
target_said 'an NBD server is back'
no_io_errors
nvme disconnect -n "$nqn"
stop_target TERM
kill "$server"

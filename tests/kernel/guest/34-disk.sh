#!/usr/bin/env bash
# The kernel's target as a disk, by our NBD server: verified loads, trim, zeroes, a file system.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

modprobe nbd nbds_max=1
rm -f /tmp/nbd.ready
may_warn 'nbd0: shutting down sockets'
start_kernel_target "$nqn"
# It serves for longer than a command of ours may take elsewhere.
timeout --foreground 280 "${far[@]}" "$bin/ringfab" nbd "$(url "$nqn" 'ns=1&queues=4&depth=32')" \
    --socket /tmp/nbd.sock --ready-file /tmp/nbd.ready &
server=$!
wait_for 20 test -e /tmp/nbd.ready
nbd-client -unix /tmp/nbd.sock /dev/nbd0 -persist
verified /dev/nbd0 --rw=randwrite --bs=4k --iodepth=16 --size=2m
verified /dev/nbd0 --rw=write --bs=128k --iodepth=8 --size=8m
verified /dev/nbd0 --rw=randrw --bsrange=512-1m --bs_unaligned=0 --blockalign=512 --iodepth=8 --size=8m --fsync=16
verified /dev/nbd0 --rw=trimwrite --bs=64k --iodepth=4 --size=1m
blkdiscard -z -o 1M -l 1M /dev/nbd0
cmp -n $((1 << 20)) /dev/zero <(dd if=/dev/nbd0 bs=1M skip=1 count=1 iflag=direct status=none)
mkfs.ext4 -q -F /dev/nbd0
mkdir -p /tmp/mounted
mount -o discard /dev/nbd0 /tmp/mounted
python3 -IS "$out/files.py" use /tmp/mounted /tmp/files.json 2 100
umount /tmp/mounted
nbd-client -d /dev/nbd0
kill -TERM $server
wait $server
echo 3 >/proc/sys/vm/drop_caches
fsck.ext4 -f -n /dev/nullb0
mount -o ro /dev/nullb0 /tmp/mounted
python3 -IS "$out/files.py" check /tmp/mounted /tmp/files.json
umount /tmp/mounted

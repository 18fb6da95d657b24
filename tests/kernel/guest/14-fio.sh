#!/usr/bin/env bash
# Verified loads of several sizes and patterns on several queues.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

start_target
connect "${four[@]}"
verified "$ns1" --rw=randwrite --bs=4k --iodepth=32 --size=2m
verified "$ns1" --rw=write --bs=128k --iodepth=8 --size=8m

# From a block to the maximum transfer, which the kernel uses only when it is told to.
name=${ns1##*/}
longest_kib=$(<"/sys/block/$name/queue/max_hw_sectors_kb")
((longest_kib > 1000)) || fail "the longest transfer is $longest_kib KiB"
echo "$longest_kib" >"/sys/block/$name/queue/max_sectors_kb"
verified "$ns1" --rw=randrw --bsrange="512-${longest_kib}k" --bs_unaligned=0 --blockalign=512 --iodepth=16 --size=12m
verified "$ns1" --rw=randwrite --bs=8k --iodepth=16 --numjobs=4 --size=1m --offset_increment=32m
verified "$ns2" --rw=randwrite --bs=4k --iodepth=64 --size=1m --fsync=16

echo "--- trim and zeroes"
verified "$ns1" --rw=trimwrite --bs=64k --iodepth=4 --size=1m
head -c 4M /dev/urandom >/tmp/data
for ns in "$ns1" "$ns2"; do
    dd if=/tmp/data of="$ns" bs=1M oflag=direct status=none
    blkdiscard -z -o 1M -l 1M "$ns"
    cmp -n $((1 << 20)) /tmp/data <(dd if="$ns" bs=1M count=4 iflag=direct status=none)
    cmp -n $((1 << 20)) /dev/zero <(dd if="$ns" bs=1M skip=1 count=1 iflag=direct status=none)
    cmp <(tail -c +$(((2 << 20) + 1)) /tmp/data) <(dd if="$ns" bs=1M skip=2 count=2 iflag=direct status=none)
    blkdiscard -o 2M -l 1M "$ns"
    cmp <(tail -c 1M /tmp/data) <(dd if="$ns" bs=1M skip=3 count=1 iflag=direct status=none)
done

echo "--- what is trimmed takes no room"
dd if=/tmp/data of="$ns1" bs=1M oflag=direct status=none
room=$(stat -c %b /tmp/disk.img)
blkdiscard -o 1M -l 2M "$ns1"
expect "blocks of the file" "$(stat -c %b /tmp/disk.img)" $((room - 4096))
cmp -n $((2 << 20)) /dev/zero <(dd if="$ns1" bs=1M skip=1 count=2 iflag=direct status=none)
is_live
no_io_errors

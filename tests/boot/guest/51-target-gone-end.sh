#!/usr/bin/env bash
# What the machine said when it ended without its target, and what is on the disks. Then it ends with a target that is
# there, and as much that is not on the disk yet.
set -euo pipefail
. ./lib.sh
. ./volumes.sh

errors() { journalctl -q --no-pager -b -1 -p err -o cat; }

step "what was lost is an error in the journal"
for folder in "${folders[@]}"; do
    has "$(errors)" "$folder: ended without the target; what was not written yet is lost"
done
# umount(8) has ended with an error, too.
has "$(journalctl -q --no-pager -b -1 -o cat -u srv-more.mount)" 'Mount process exited, code=exited, status=2'

step "what was synced is there"
ip address add 192.0.2.5/32 dev lo
systemctl start $unit
systemctl start $volume srv-more.mount
for folder in "${folders[@]}"; do is file "$(cat "$folder/synced")" synced; done

step "the machine ends with a target that is there, and has much to write"
for folder in "${folders[@]}"; do
    rm -f "$folder/lost"
    sync -f "$folder"
    head -c 100M /dev/urandom >"$folder/kept"
    sha256sum <"$folder/kept" >"/$(basename "$folder").sum"
done
echo 20 >/boot-test/end-within
ends

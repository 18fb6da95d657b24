#!/usr/bin/env bash
# Nothing is lost where the target was there.
set -euo pipefail
. ./lib.sh
. ./volumes.sh

step "everything is on the disks"
is lost "$(logged -1 'ended without the target|have failed since it was mounted')" 0
ip address add 192.0.2.5/32 dev lo
systemctl start $unit
systemctl start $volume srv-more.mount
for folder in "${folders[@]}"; do
    is "$folder" "$(sha256sum <"$folder/kept")" "$(cat "/$(basename "$folder").sum")"
done
ends

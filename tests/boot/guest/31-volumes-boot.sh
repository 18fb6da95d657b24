#!/usr/bin/env bash
# The machine has booted, and both are there; they outlive their target, under load until the machine ends.
set -euo pipefail
. ./lib.sh
. ./volumes.sh

step "mounted at boot, after the network and the target"
for folder in "${folders[@]}"; do has "$(mounted_from "$folder")" '^/dev/loop'; done
is state "$(systemctl is-active $volume remote-fs.target)" $'active\nactive'
in_order 0 'Starting address.service' 'Reached target network-online.target' 'Started ringfab-target.service' \
    'Started ringfab-volume@data' 'Reached target remote-fs.target'
in_order 0 'Started ringfab-target.service' 'Mounted srv-more.mount' 'Reached target remote-fs.target'

step "a target that is not there holds up nothing"
# Whatever else is there has started, and this still waits for an answer.
is state "$(systemctl show -P ActiveState srv-absent.mount)" activating

step "under load, the target is restarted and killed"
start_writer /srv/data $volume.service
start_writer /srv/more srv-more.mount
both_go_on() {
    local name lines
    for name in data more; do
        lines=$(wc -l <"/writer-$name.noted")
        until_it has_lines "/writer-$name.noted" $((lines + 3))
    done
}
for _ in 1 2; do
    both_go_on
    systemctl restart $unit
done
both_go_on
systemctl kill -s KILL $unit
both_go_on
is restarts "$(state NRestarts)" 1
is writers "$(systemctl is-active writer-data writer-more)" $'active\nactive'
is restarts "$(systemctl show -P NRestarts $volume)" 0

step "a mount that had no answer has ended, and can be tried again"
until_it systemctl is-failed -q srv-absent.mount
has "$(journalctl -q --no-pager -o cat)" 'absent at 127.0.0.1:4500: ICReq: no answer'
# The machine ends under that load.
ends

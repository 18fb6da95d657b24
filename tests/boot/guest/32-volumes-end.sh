#!/usr/bin/env bash
# How the machine ended, and what it left; then it ends when the target has ended first.
set -euo pipefail
. ./lib.sh
. ./volumes.sh

step "who uses a volume ended first, then the volumes, the target, the network"
in_order -1 'writer-data.service: Deactivated' 'Stopping ringfab-volume@data' 'Stopped ringfab-volume@data' \
    'Stopping ringfab-target' 'Stopped ringfab-target' 'Stopped target network-online.target' 'Stopping address.service'
in_order -1 'writer-more.service: Deactivated' 'Unmounting srv-more.mount' 'Unmounted srv-more.mount' \
    'Stopping ringfab-target'
in_order -1 'writer-data.service: Deactivated' 'Unmounting srv-data.mount'
is detached "$(logged -1 'detached|what was not written')" 0
is failed "$(logged -1 'srv-(data|more).mount: Failed|ringfab-volume@.*: Failed|Failed unmounting.*srv')" 0
for folder in "${folders[@]}"; do is end "$(cat "$folder/ended")" ended; done

step "what was synced is there"
for folder in "${folders[@]}"; do compare "$folder"; done

step "the target ends first, and does not come back"
start_writer /srv/data $volume.service
start_writer /srv/more srv-more.mount
sleep 2
systemctl stop writer-data writer-more
# What is only in memory when there is nobody left to take it.
for folder in "${folders[@]}"; do echo lost >"$folder/lost"; done
systemctl mask --runtime $unit
systemctl kill -s KILL $unit
is_gone() { [ "$(state ActiveState)" = failed ]; }
until_it is_gone
# Its journals are replayed at the next mount.
touch not-unmounted
ends

#!/usr/bin/env bash
# The order in which the machine ended, and what it left.
set -euo pipefail
. ./lib.sh
. ./volumes.sh

step "who uses a volume ended first, then the volumes, the target, the network"
in_order -1 'writer-data.service: Deactivated' 'Stopping ringfab-volume@data' 'Stopped ringfab-volume@data' \
    'Stopping ringfab-target' 'Stopped ringfab-target' 'Stopped target network-online.target' 'Stopping address.service'
in_order -1 'writer-more.service: Deactivated' 'Unmounting srv-more.mount' 'Unmounted srv-more.mount' \
    'Stopping ringfab-target'
in_order -1 'writer-data.service: Deactivated' 'Unmounting srv-data.mount'
is failed "$(logged -1 'srv-(data|more).mount: Failed|ringfab-volume@.*: Failed|Failed unmounting.*srv')" 0
for folder in "${folders[@]}"; do is end "$(cat "$folder/ended")" ended; done

step "what was synced is there"
for folder in "${folders[@]}"; do compare "$folder"; done
ends

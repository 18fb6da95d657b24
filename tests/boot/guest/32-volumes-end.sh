#!/usr/bin/env bash
# The order in which the machine ended.
set -euo pipefail
. ./lib.sh
. ./volumes.sh

step "who uses a volume ended first, then the volumes, the target, the network"
in_order -1 'writer-data.service: Deactivated' 'Stopping ringfab-volume@data' 'Stopped ringfab-volume@data' \
    'Stopping ringfab-target' 'Stopped ringfab-target' 'Stopped target network-online.target' 'Stopping address.service'
in_order -1 'writer-more.service: Deactivated' 'Unmounting srv-more.mount' 'Unmounted srv-more.mount' \
    'Stopping ringfab-target'
in_order -1 'writer-data.service: Deactivated' 'Unmounting srv-data.mount'
ends

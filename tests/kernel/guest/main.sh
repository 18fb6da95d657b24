#!/usr/bin/env bash
# Runs in the guest: the scenarios of a lane in the order of their names, and says of each PASS, SKIP or FAIL.
#
#   main.sh LANE [SCENARIO...]     a lane is DRIVER/PROVIDER, see lib.sh
#
# Its last line counts them; the exit status tells whether all others passed.
set -euo pipefail
cd "$(dirname "$0")"

# A line for each scenario that ended, see lane.sh. It lies with the machine, which may have to know what a guest that
# hangs had done before.
results=results

main() {
    local lane=$1 scenarios=("${@:2}")
    (($# > 1)) || mapfile -t scenarios < <(printf '%s\n' [0-9]*.sh | sed 's/\.sh$//')
    mkdir -p /tmp/logs
    # The folder is the machine's, and may have those of an earlier boot.
    rm -rf logs
    mkdir logs
    cp -r bin /tmp/
    # One version of it proves one version: which one is seen.
    echo "$lane: kernel $(uname -r), $(nvme version | head -n 1)"
    # In this order: a device that is removed is taken from the last of them first. Where that is ib_uverbs, it waits
    # for programs that only the connection manager could tell of it.
    modprobe -a ib_uverbs rdma_ucm nvme-rdma nvmet-rdma
    modprobe null_blk nr_devices=0
    RINGFAB_DRIVER=${lane%/*} RINGFAB_PROVIDER=${lane#*/} bash ./lane.sh "${scenarios[@]}"
    cp -r /tmp/logs/. logs/
    echo "$(count PASS) passed, $(count FAIL) failed, $(count SKIP) are not for their lane"
    (($(count FAIL) == 0 && $(count PASS) > 0))
}

count() {
    grep -c "^$1" $results || true
}

main "$@"

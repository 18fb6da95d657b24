#!/usr/bin/env bash
# Both ends in a network of their own, whose sockets take little at once, as those of slow and distant machines do: a
# send waits for its peer then while much of what was in it is done already.
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target and ringfab, instead of building them
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

main() {
    find_programs debug
    if [ "${1:-}" = within ]; then
        within
    elif unshare --map-root-user --net true 2>/dev/null; then
        unshare --map-root-user --net "${BASH_SOURCE[0]}" within
    else
        not_run "both ends over narrow sockets: this machine lets us make no network of our own"
    fi
}

within() {
    begin
    ip link set lo up
    echo 4096 65536 65536 >/proc/sys/net/ipv4/tcp_wmem
    start_target null
    for TRANSPORT in rdma tcp; do
        for kind in randwrite randrw; do
            say "$kind over $TRANSPORT"
            ringfab bench "$(namespace_url 1)" --rw "$kind" --depth 128 --time 1s --destroy-data 1 \
                >"$TMP/bench.log" 2>&1 ||
                fail "ringfab bench over narrow sockets"
        done
    done
    stop_cleanly "the target" "$TARGET"
    undo_all
}

main "$@"

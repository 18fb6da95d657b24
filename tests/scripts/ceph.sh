#!/usr/bin/env bash
# A Ceph cluster for tests: a monitor and storage daemons (OSDs) that keep their objects in memory, all on 127.0.0.1 and
# in one folder, without systemd, disks or a manager. Authentication is cephx.
#
#   ceph.sh start FOLDER [OSDS]     starts a cluster with so many OSDs, two if not said, and makes the pool `rbd`
#   ceph.sh stop FOLDER             ends it; the folder stays
#   ceph.sh kill-osd FOLDER N       an OSD dies at once, with its objects
#   ceph.sh start-osd FOLDER N      it comes back, and gets its objects from the others
#   ceph.sh pause-osd FOLDER N      it does nothing and closes nothing, as when its machine hangs
#   ceph.sh resume-osd FOLDER N     it goes on
#   ceph.sh stop-mon FOLDER, start-mon FOLDER
#
# Each object is on two OSDs if there are two, and can be written on one. Clients use FOLDER/ceph.conf. FOLDER/keyring
# has the keys of client.admin, of client.reader, which may only read images, and of client.stranger, which may use no
# pool. Nothing is done as another user; the folder belongs to whoever starts it.
#
# Needs what `tests/scripts/install.sh ceph` installs.
set -euo pipefail
FOLDER=$(realpath -m "${2:-.}")
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# How long a command may wait for the cluster, in seconds. All of them take a moment, but machines are busy.
LIMIT=120

# All that asks the cluster goes through here.
bounded() { timeout "$LIMIT" "$@"; }

main() {
    local what=${1:-}
    [ $# -ge 2 ] || usage
    export CEPH_CONF=$FOLDER/ceph.conf
    # What is in the environment for another cluster is not for this one.
    unset CEPH_ARGS CEPH_KEYRING
    case "$what" in
    start) start_cluster "${3:-2}" ;;
    stop) stop_cluster ;;
    kill-osd) end_daemon "osd.$3" KILL ;;
    start-osd) start_osd "$3" ;;
    pause-osd) signal_daemon "osd.$3" STOP ;;
    resume-osd) signal_daemon "osd.$3" CONT ;;
    stop-mon) end_daemon mon.a TERM ;;
    start-mon) start_mon ;;
    *) usage ;;
    esac
}

usage() {
    sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2
    exit 2
}

# A port that nobody listens on, below those that the system gives to clients.
free_port() {
    local port tries
    for ((tries = 0; tries < 100; tries++)); do
        port=$((10000 + RANDOM % 20000))
        # Who listens would answer.
        (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { printf '%s' "$port" && return; }
    done
    fail "no port is free"
}

uuid() { cat /proc/sys/kernel/random/uuid; }

# write_conf FSID PORT COPIES
write_conf() {
    cat >"$CEPH_CONF" <<CONF
[global]
fsid = $1
mon host = v2:127.0.0.1:$2
public addr = 127.0.0.1
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = $FOLDER/keyring
run dir = $FOLDER
pid file = $FOLDER/\$name.pid
log file = $FOLDER/\$name.log
mon data = $FOLDER/\$name
osd data = $FOLDER/\$name
osd pool default size = $3
osd pool default min size = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0

[mon]
admin socket = $FOLDER/\$name.asok
mon allow pool size one = true
mon allow pool delete = true
mon osd min down reporters = 1
# The file system of a test machine may be nearly full.
mon data avail crit = 1
# Changes are decided at once.
paxos propose interval = 0.1

[osd]
admin socket = $FOLDER/\$name.asok
osd objectstore = memstore
memstore device bytes = 8589934592
# Others notice soon when one hangs.
osd heartbeat interval = 1
osd heartbeat grace = 6

[client]
log file = /dev/null
CONF
}

# new_key NAME [CAPABILITIES OF EACH KIND...]
new_key() {
    local name=$1 caps=()
    shift
    while [ $# -gt 0 ]; do
        caps+=(--cap "$1" "$2")
        shift 2
    done
    ceph-authtool "$FOLDER/keyring" --gen-key -n "$name" "${caps[@]}" >/dev/null
}

write_keys() {
    local n
    ceph-authtool --create-keyring "$FOLDER/keyring" >/dev/null
    new_key mon. mon 'allow *'
    new_key client.admin mon 'allow *' osd 'allow *' mgr 'allow *'
    new_key client.reader mon 'profile rbd' osd 'profile rbd-read-only'
    new_key client.stranger mon 'allow r'
    for ((n = 0; n < $1; n++)); do new_key "osd.$n" mon 'allow profile osd' osd 'allow *'; done
}

start_cluster() {
    local osds=$1 fsid port copies n
    [ ! -e "$FOLDER/ceph.conf" ] || fail "$FOLDER has a cluster already"
    mkdir -p "$FOLDER"
    fsid=$(uuid) port=$(free_port) copies=$((osds < 2 ? osds : 2))
    write_conf "$fsid" "$port" "$copies"
    write_keys "$osds"
    # Whatever fails from here on, nothing stays behind.
    trap stop_cluster EXIT
    monmaptool --create --addv a "[v2:127.0.0.1:$port]" --fsid "$fsid" "$FOLDER/monmap" >/dev/null
    mkdir "$FOLDER/mon.a"
    ceph-mon -i a --mkfs --monmap "$FOLDER/monmap" --keyring "$FOLDER/keyring" >"$FOLDER/start.log" 2>&1 ||
        show_start "the monitor has no place for its data"
    start_mon
    for ((n = 0; n < osds; n++)); do make_osd "$n"; done
    bounded ceph osd pool create rbd 8 8 >"$FOLDER/start.log" 2>&1 || show_start "there is no pool"
    bounded rbd pool init rbd >"$FOLDER/start.log" 2>&1 || show_start "the pool cannot be used"
    trap - EXIT
}

show_start() {
    tail -n 20 "$FOLDER/start.log" >&2
    fail "$1"
}

start_mon() {
    ceph-mon -i a >"$FOLDER/start.log" 2>&1 || show_start "the monitor does not start"
    bounded ceph mon stat >"$FOLDER/start.log" 2>&1 || show_start "the monitor does not answer"
}

make_osd() {
    local id
    id=$(uuid)
    [ "$(bounded ceph osd new "$id" 2>"$FOLDER/start.log")" = "$1" ] || show_start "OSD $1 gets no number"
    mkdir "$FOLDER/osd.$1"
    ceph-osd -i "$1" --mkfs --osd-uuid "$id" >"$FOLDER/start.log" 2>&1 || show_start "OSD $1 has no place for its data"
    start_osd "$1"
}

start_osd() { ceph-osd -i "$1" >"$FOLDER/start.log" 2>&1 || show_start "OSD $1 does not start"; }

# The number of a daemon's process, if it runs: a number that the system has given to another one is not taken for it.
daemon() {
    local pid
    pid=$(cat "$FOLDER/$1.pid" 2>/dev/null) || return 1
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q "^ceph-${1%%.*} -i ${1##*.} " || return 1
    printf '%s' "$pid"
}

signal_daemon() {
    local pid
    pid=$(daemon "$1") || fail "$1 does not run"
    kill "-$2" "$pid"
}

# Sends a signal and waits for the end; what does not end by itself is killed.
end_daemon() {
    local pid
    pid=$(daemon "$1") || return 0
    kill "-$2" "$pid"
    # What is paused ends only when it goes on.
    kill -CONT "$pid" 2>/dev/null || true
    has_ended "$1" || kill -KILL "$pid"
    has_ended "$1" || fail "$1 does not end"
    rm -f "$FOLDER/$1.pid"
}

# Waits for the end. Who has to take note of it may do so later, which is not waited for.
has_ended() {
    local deadline=$(($(now_ms) + 30000))
    while daemon "$1" >/dev/null; do
        [ "$(now_ms)" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

# The objects are gone with the OSDs, so nobody need write anything down.
stop_cluster() {
    local pid
    for pid in "$FOLDER"/osd.*.pid "$FOLDER/mon.a.pid"; do
        [ ! -e "$pid" ] || end_daemon "$(basename "$pid" .pid)" KILL
    done
}

main "$@"

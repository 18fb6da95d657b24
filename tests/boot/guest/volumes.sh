# shellcheck shell=bash
# Volumes of a target on the same machine, and a load on them. Sourced after lib.sh, never run.

# shellcheck disable=SC2034  # the scenarios use them
target=nvme+tcp://192.0.2.5/nqn.2024-01.org.example:volumes
# Of volumes.toml, and of fstab.
# shellcheck disable=SC2034
volume=ringfab-volume@data
folders=(/srv/data /srv/more)

# How often something that matches was logged in a boot: 0 for this one, -1 for the one before.
logged() { journalctl -q --no-pager -b "$1" -o cat | grep -c -E -- "$2" || true; }

# in_order BOOT PATTERN...: there is an entry of the first one, after it one of the second, and so on.
in_order() {
    local pattern at before=0
    journalctl -q --no-pager -b "$1" -o cat >/journal
    for pattern in "${@:2}"; do
        at=$(tail -n "+$((before + 1))" /journal | grep -n -m 1 -- "$pattern" | cut -d : -f 1 || true)
        [ -n "$at" ] || { echo "the journal has no '$pattern' after line $before" && return 1; }
        before=$((before + at))
    done
}

# Where a directory's file system is from; nothing if it has none.
mounted_from() { findmnt -n -o SOURCE --mountpoint "$1" || true; }

# start_writer DIRECTORY UNIT: a service that writes file after file, each synced, and notes outside what is there then.
# While the target is away, it waits. Its end takes a while, and needs the directory until then.
start_writer() {
    local name
    name=writer-$(basename "$1")
    rm -f "/$name.noted"
    cat >"/run/systemd/system/$name.service" <<END
[Unit]
# What docs/mounting.md says of services that use a volume.
Requires=$2
After=$2
RequiresMountsFor=$1
[Service]
ExecStart=/bin/bash /boot-test/writer.sh $1 /$name
KillMode=mixed
TimeoutStopSec=20
END
    systemctl daemon-reload
    systemctl start "$name"
}

# What was noted is there: all that was written is compared with what was noted.
compare() {
    local name file sum count
    name=writer-$(basename "$1")
    count=$(grep -v -c ' -$' "/$name.noted")
    [ "$count" -ge 5 ] || { echo "only $count files in $1" && return 1; }
    tac "/$name.noted" | sort -s -u -k 1,1 | grep -v ' -$' >"/$name.last"
    while read -r file sum; do
        is "$file" "$(dd "if=$file" iflag=direct bs=256K status=none | sha256sum | cut -d ' ' -f 1)" "$sum"
    done <"/$name.last"
    note "$count synced files, $(wc -l <"/$name.last") compared, in $1"
}

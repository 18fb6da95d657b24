#!/usr/bin/env bash
# Runs a target whose log goes to a journal of its own, and prints what `journalctl` finds in it. Needs the rights of
# root in a mount namespace of its own, and changes nothing outside.
#
#   unshare --mount [--map-root-user] journal.sh TARGET COMMAND PORT    TARGET and COMMAND are built programs
#
# The output has a line `== QUERY` before what each query of the journal finds.
set -euo pipefail

target=$1 command=$2 port=$3
nqn=nqn.2026-11.org.ringfab
host=$nqn:friend
[[ -x /usr/lib/systemd/systemd-journald ]] || { echo "NOT RUN: systemd-journald is not installed" && exit 77; }

# Nothing of the machine's own journal is to be seen, nor changed.
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/test
echo 0123456789abcdef0123456789abcdef >/run/test/machine-id
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nForwardToSyslog=no\n' >/run/test/journald.conf
mount --bind /run/test/machine-id /etc/machine-id
mount --bind /run/test/journald.conf /etc/systemd/journald.conf
processes=()
trap 'kill "${processes[@]}" 2>/dev/null; wait' EXIT

wait_for() {
    local end=$((SECONDS + 60))
    until "$@"; do
        if ((SECONDS >= end)); then echo "never: $*" >&2 && return 1; fi
        sleep 0.02
    done
}

/usr/lib/systemd/systemd-journald 2>/run/test/journald.log &
processes+=("$!")
wait_for test -S /run/systemd/journal/stdout

truncate --size 1M /run/test/disk
cat >/run/test/target.toml <<END
[target]
state_dir = "/run/test/state"
cores = 2
[control]
socket = "/run/test/control.sock"
[[listener]]
address = "127.0.0.1"
port = $port
transport = "tcp"
[[subsystem]]
nqn = "$nqn:a"
allowed_hosts = ["$host"]
[[subsystem.namespace]]
memory = "1MiB"
[[subsystem]]
nqn = "$nqn:b"
allowed_hosts = ["$host"]
[[subsystem.namespace]]
path = "/run/test/disk"
block_bytes = 512
allow_page_cache = true
END

# A service manager says which socket the standard error is.
# shellcheck disable=SC2016 # The inner shell expands it.
systemd-cat --identifier=ringfab-target bash -c \
    'JOURNAL_STREAM=$(stat --dereference --format=%d:%i /proc/self/fd/2) exec "$@"' bash \
    "$target" serve --config /run/test/target.toml --ready-file /run/test/ready &
processes+=("$!")
wait_for test -s /run/test/ready

reads() {
    "$command" read "nvme+tcp://127.0.0.1:$port/$nqn:$1?ns=1" --length 4096 --hostnqn "$2" --ctrl-loss-timeout 0s \
        >/dev/null 2>&1
}
reads a "$host"
reads a "$nqn:stranger" && exit 1
truncate --size 0 /run/test/disk
reads b "$host" && exit 1

found() { journalctl --quiet --no-pager "$@"; }
is_over() { [[ $(found --output=cat "RINGFAB_SUBSYSTEM=$nqn:b") == *disconnected* ]]; }
wait_for is_over
query() {
    echo "== $*"
    found "$@"
}
query --priority=err --output=cat
query --output=cat "RINGFAB_SUBSYSTEM=$nqn:b"
query --output=cat "RINGFAB_HOST=$nqn:stranger"
query --priority=warning --output=json "RINGFAB_SUBSYSTEM=$nqn:a"
query --output=cat RINGFAB_NSID=1

#!/usr/bin/env bash
# The service in a fresh Debian tree under a systemd of its own: README's steps as they stand there, and what an
# administrator does next. Needs root and network packages of this machine's own apt configuration.
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target and ringfab, instead of building them
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

main() {
    local missing
    if missing=$(what_is_missing); then
        not_run "the service under systemd: $missing"
        return
    fi
    find_programs debug
    begin
    TREE="$TMP/tree"
    make_tree
    # Beside it: the system that boots must not see users and folders before README's steps make them.
    make --no-print-directory install DESTDIR="$TREE/installed" >"$TMP/install.log"
    {
        echo "set -eux"
        steps_of_readme
        what_follows
    } >"$TREE/boot.sh"
    grep -q "systemctl enable" "$TREE/boot.sh" || fail "README has no steps for the service"
    say "Booting it"
    boot
    undo_all
    say "The service: passed"
}

# Succeeds when something is, and says what.
what_is_missing() {
    local program
    [ "$(id -u)" -eq 0 ] || { echo "it needs root"; return; }
    for program in mmdebstrap systemd-nspawn unshare script; do
        have "$program" || { echo "$program is not installed"; return; }
    done
    return 1
}

# A Debian of this machine's release, with systemd and the libraries that the programs want.
make_tree() {
    local suite sources=/etc/apt/sources.list.d/debian.sources
    local packages=systemd,systemd-sysv,dbus,procps,diffutils,libibverbs1,librdmacm1
    [ -e "$sources" ] || sources=/etc/apt/sources.list
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    say "Making a Debian tree"
    mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$TREE" "$sources" >"$TMP/tree.log" 2>&1 ||
        fail "no tree could be made"
}

# The first code block below "As a service". The programs are made already.
steps_of_readme() {
    awk '/^## As a service/ { found = 1 } found && /^```/ { inside = !inside; if (!inside) exit; next } inside' \
        README.md |
        sed 's,^make install$,cp -a /installed/. /,'
}

# What is looked at afterwards, as root in the tree. Each line that fails ends it.
what_follows() {
    cat <<'STEPS'
# A command that succeeds where it must not; `set -e` looks past a plain `!`.
not() { if "$@"; then echo "it should fail: $*"; exit 1; fi; }
in_journal() { journalctl -q -u ringfab-target | grep -q "$1"; }
is() {
    [ "$2" = "$3" ] && return
    echo "$1 is $2, not $3"
    systemctl status --no-pager ringfab-target
    journalctl -u ringfab-target
    exit 1
}
state() { systemctl show -P "$1" ringfab-target; }
until_active() { for i in $(seq 100); do ! systemctl is-active -q ringfab-target || return 0; sleep 0.1; done; }
is state "$(state ActiveState)" active
is enabled "$(systemctl is-enabled ringfab-target)" enabled
is user "$(ps -o user= -p "$(state MainPID)")" ringfab
ringfab-target status | grep -q 'ready'
url=nvme+rdma://127.0.0.1/nqn.2024-01.org.example:disk
ringfab list "$url"
head -c 1M /dev/urandom >/tmp/data
ringfab write "$url?ns=1" -i /tmp/data --destroy-data 1
# The journal says what happened, and is not a copy of the configuration.
in_journal 'serving'
not in_journal '\[\[listener\]\]'
# The unit lets it confine itself.
in_journal 'confined'
# A signal that nobody meant for it changes nothing.
pid=$(state MainPID)
systemctl kill -s HUP ringfab-target
sleep 0.5
is pid "$(state MainPID)" "$pid"
# One that ends it has it started again; what was written and flushed is still there.
systemctl kill -s KILL ringfab-target
sleep 1.5
until_active
not test "$(state MainPID)" = "$pid"
ringfab read "$url?ns=1" --length 1MiB | cmp - /tmp/data
systemctl restart ringfab-target
is state "$(state ActiveState)" active
# A mistake in the configuration is told with its line, and a start with it fails.
echo 'colour = 1' >>/etc/ringfab/target.toml
not systemctl restart ringfab-target
in_journal 'colour: is not a known key'
sed -i '$d' /etc/ringfab/target.toml
systemctl reset-failed ringfab-target
systemctl start ringfab-target
systemctl stop ringfab-target
is result "$(state Result)" success
is state "$(state ActiveState)" inactive
STEPS
}

boot() {
    local wants="$TREE/etc/systemd/system/multi-user.target.wants"
    mkdir -p "$wants"
    cat >"$TREE/etc/systemd/system/boot-steps.service" <<'UNIT'
[Unit]
After=network.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'bash /boot.sh >/boot.said 2>&1; echo $? >/boot.status; sync; systemctl poweroff --no-block'
UNIT
    ln -sf ../boot-steps.service "$wants/boot-steps.service"
    # systemd-nspawn wants /run to be a file system of its own, and systemd a terminal.
    # shellcheck disable=SC2016  # for the inner shell
    timeout 120 unshare --mount sh -c 'mount -t tmpfs tmpfs /run && exec script -qec "$0" /dev/null </dev/null' \
        "SYSTEMD_SECCOMP=0 systemd-nspawn --directory=$TREE --register=no --keep-unit --boot" \
        >"$TMP/boot.log" 2>&1 || true
    cp "$TREE/boot.said" "$TMP/said.log" 2>/dev/null || fail "it did not boot"
    [ "$(cat "$TREE/boot.status" 2>/dev/null)" = 0 ] || fail "a step failed"
}

main

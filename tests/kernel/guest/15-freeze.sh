#!/usr/bin/env bash
# Snapshots of LVM's thin volumes beneath two namespaces, made under a freeze while the kernel's host writes to both:
# they are of one instant.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

[[ $fabric == tcp ]] || not_here "what is beneath a namespace is the same over every fabric"

# There is no udev here, and no program that checks the pool.
cat >/tmp/lvm.conf <<CONF
activation { udev_sync = 0 udev_rules = 0 }
devices { use_devicesfile = 0 obtain_device_list_from_udev = 0 scan = "/dev" filter = [ "a|^/dev/loop|", "r|.*|" ] }
global { thin_check_executable = "" }
backup { backup = 0 archive = 0 }
CONF

# The scenarios have open files of their own.
export LVM_SUPPRESS_FD_WARNINGS=1
lvm() {
    command lvm "$1" --config "$(</tmp/lvm.conf)" "${@:2}"
}
export -f lvm

# Both snapshots: what runs while nothing is written.
snapshots() {
    lvm lvcreate -q -s -n "a$1" vg/a && lvm lvcreate -q -s -n "b$1" vg/b
}
export -f snapshots

may_warn 'operation not supported error, dev loop[0-9]+, .*WRITE_ZEROES' 'device-mapper: core: CONFIG_IMA_'
modprobe -a loop dm_thin_pool
truncate -s 512M /tmp/pool.img
loop=$(losetup --show -f /tmp/pool.img)
lvm pvcreate -q "$loop"
lvm vgcreate -q vg "$loop"
lvm lvcreate -q -L 300M -T vg/pool
for volume in a b; do lvm lvcreate -q -V 64M -T vg/pool -n $volume; done
beneath='path = "/dev/vg/a"' beneath_2='path = "/dev/vg/b"' start_target
connect "${four[@]}"
python3 -IS "$out/clock.py" load "$ns1" "$ns2" /tmp/times.json &
load=$!
wait_for 20 test -e /tmp/times.json.begun
# A machine that is slower than the freeze lasts tries again.
frozen=
for try in 1 2 3 4 5 6 7 8; do
    if "${far[@]}" "$bin/ringfab-target" freeze --socket "$socket" --subsystem "$nqn" 1 2 --for 10s -- \
        bash -c "snapshots $try"; then
        frozen=$try
        break
    fi
done
[[ -n $frozen ]] || fail "no snapshots within a freeze"
pause 1
kill -TERM $load
wait $load
lvm lvchange -q -K -ay "vg/a$frozen" "vg/b$frozen"
python3 -IS "$out/clock.py" check "/dev/vg/a$frozen" "/dev/vg/b$frozen" /tmp/times.json
# One after the other, they are not.
if python3 -IS "$out/clock.py" check "/dev/vg/a$frozen" /dev/vg/b /tmp/times.json; then
    fail "a volume of now is of the same instant as a snapshot"
fi
no_io_errors
nvme disconnect -n "$nqn"
stop_target TERM
lvm vgremove -q -f vg
losetup -d "$loop"

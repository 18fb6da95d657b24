#!/usr/bin/env bash
# A line of fstab and a volume of one target are mounted and have much that is not on the disk yet. Then the target
# goes, and the machine ends without it.
set -euo pipefail
. ./lib.sh
. ./volumes.sh
export DEBIAN_FRONTEND=noninteractive

step "packages, a target with two disks"
mkdir -p /var/log/journal /srv/data /srv/more
systemctl restart systemd-journald
apt-get install -y --no-install-recommends /packages/ringfab-target_*.deb /packages/ringfab_*.deb
ip address add 192.0.2.5/32 dev lo
cat >$config <<END
[[listener]]
address = "192.0.2.5"
transport = "tcp"
[[subsystem]]
nqn = "${target##*/}"
allow_any_host = true
[[subsystem.namespace]]
path = "/srv/ringfab/data.img"
[[subsystem.namespace]]
path = "/srv/ringfab/more.img"
END
for name in data more; do
    install -o ringfab -g ringfab -m 0600 /dev/null /srv/ringfab/$name.img
    truncate -s 512M /srv/ringfab/$name.img
done
cat >/etc/ringfab/volumes.toml <<END
[[volume]]
name = "data"
url = "$target"
where = "/srv/data"
nsid = 1
options = "noatime, ctrl_loss_timeout=never"
END
options=_netdev,noauto,x-systemd.after=$unit.service,ctrl_loss_timeout=never
echo "$target?ns=2 /srv/more ringfab $options 0 0" >>/etc/fstab
systemctl daemon-reload
ringfab volume check
systemctl start $unit
for number in 1 2; do
    ringfab mount "$target?ns=$number" /srv/data --mkfs ext4
    ringfab umount /srv/data
done

step "umount(8) has a helper"
systemctl start srv-more.mount $volume
# libmount's table says so, and the kernel's has no such type.
has "$(cat /run/mount/utab)" helper=ringfab
umount -a -t ringfab
is mounted "$(mounted_from /srv/more | cut -c 1-9)" /dev/loop
umount -a -O helper=ringfab
is mounted "$(mounted_from /srv/more)$(mounted_from /srv/data)" ""
is entries "$(find /run/ringfab-initiator -name '*.json' | wc -l)" 0
has "$(ringfab list)" 'nothing is attached'

step "what is not on the disk when the target goes"
systemctl restart $volume
# systemd may learn of an unmount a moment later.
until_it systemctl start srv-more.mount
for folder in "${folders[@]}"; do
    until_it mountpoint -q "$folder"
    echo synced >"$folder/synced"
    sync -f "$folder"
    head -c 64M /dev/urandom >"$folder/lost"
done
# Nothing that was ordered behind it is stopped for that.
systemctl kill -s KILL $unit
systemctl stop $unit --no-block
for folder in "${folders[@]}"; do
    until_it eval "ringfab list | grep $folder | grep -q reconnecting"
    has "$(mounted_from "$folder")" '^/dev/loop'
done
# What it takes, and that the disks are left as they are, are the subject.
echo 20 >/boot-test/end-within
touch /boot-test/not-unmounted
ends

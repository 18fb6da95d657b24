#!/usr/bin/env bash
# A target with two disks, a volume of volumes.toml on one of them, enabled; a line of fstab for the other.
set -euo pipefail
. ./lib.sh
. ./volumes.sh
export DEBIAN_FRONTEND=noninteractive

step "a network that takes a while, both packages, a target with two disks"
# The address is there as long as the network is.
cat >/etc/systemd/system/address.service <<END
[Unit]
DefaultDependencies=no
After=systemd-journald.service
Wants=network.target
Before=network.target network-online.target shutdown.target
Conflicts=shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sleep 1
ExecStart=ip address add 192.0.2.5/32 dev lo
ExecStop=ip address delete 192.0.2.5/32 dev lo
[Install]
WantedBy=network-online.target
END
systemctl enable --now address
# The journal outlives the machine.
mkdir -p /var/log/journal
systemctl restart systemd-journald
apt-get install -y --no-install-recommends /packages/ringfab-target_*.deb /packages/ringfab_*.deb
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
    truncate -s 256M /srv/ringfab/$name.img
done
systemctl enable --now $unit
mkdir "${folders[@]}" /srv/absent

step "keys of this host: one command, one file"
host=nqn.2024-01.org.example:volumes-host
has "$(ringfab-target host add $host --with-keys --tls)" "keys/$host.keys has the keys"
has "$(cat $config)" '^tls = "allowed"'
# The service reads its file after a restart, too, and nobody else does.
systemctl restart $unit
is owners "$(stat -c '%U %a' /etc/ringfab/keys /etc/ringfab/keys/$host.keys | paste -sd ' ')" 'ringfab 700 ringfab 600'
# Of another user, who could exchange it.
not ringfab list "$target" --keys /etc/ringfab/keys/$host.keys
keys=/etc/ringfab/$host.keys
install -m 0600 /etc/ringfab/keys/$host.keys $keys
has "$(ringfab doctor "$target" --keys $keys)" 'over TLS'

step "file systems"
ringfab mount "$target?ns=1" /srv/data --mkfs ext4
ringfab umount /srv/data
ringfab mount "$target?ns=2" /srv/more --mkfs ext4
ringfab umount /srv/more

step "a volume is enabled"
# README and docs/mounting.md say to copy the example and to change it.
[ -e /usr/share/doc/ringfab/configs/volumes.toml ]
cat >/etc/ringfab/volumes.toml <<END
[[volume]]
name = "data"
url = "$target"
where = "/srv/data"
nsid = 1
options = ["noatime"]
keys = "$keys"
END
ringfab volume check
systemctl enable --now $volume
has "$(mounted_from /srv/data)" '^/dev/loop'
has "$(findmnt -n -o OPTIONS /srv/data)" noatime
is state "$(systemctl is-active $volume)" active
has "$(ringfab list)" /srv/data

step "lines of fstab"
# One that answers, one that does not: something listens there and says nothing.
cat >/etc/systemd/system/silent.socket <<END
[Unit]
DefaultDependencies=no
Before=network-online.target
[Socket]
ListenStream=127.0.0.1:4500
[Install]
WantedBy=network-online.target
END
printf '[Service]\nExecStart=sleep infinity\n' >/etc/systemd/system/silent.service
systemctl enable silent.socket
cat >>/etc/fstab <<END
$target?ns=2 /srv/more ringfab noatime,keys=$keys,_netdev,x-systemd.after=$unit.service 0 0
nvme+tcp://127.0.0.1:4500/nqn.2024-01.org.example:absent /srv/absent ringfab _netdev,nofail 0 0
END
ends

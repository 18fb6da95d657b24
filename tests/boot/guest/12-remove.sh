#!/usr/bin/env bash
# The packages go; what hosts know this machine by, and what is on its disks, stays.
set -euo pipefail
. ./lib.sh
export DEBIAN_FRONTEND=noninteractive

ringfab id-ns "$url?ns=1" >/known
identity=$(sha256sum /var/lib/ringfab/identity)
data=$(head -c 256M $disk | sum)
echo "# The administrator's." >>$config
cp $config /config
mkdir -p /etc/ringfab/keys
echo secret >/etc/ringfab/keys/host

step "remove"
apt-get remove -y ringfab-target ringfab ringfab-target-dbgsym
is state "$(state ActiveState)" inactive
[ ! -e /usr/sbin/ringfab-target ] && [ ! -e /usr/bin/ringfab ]
[ ! -e /usr/lib/systemd/system/$unit.service ]
cmp $config /config
is identity "$(sha256sum /var/lib/ringfab/identity)" "$identity"
is data "$(head -c 256M $disk | sum)" "$data"

step "installed again, it is the same target"
apt-get install -y --no-install-recommends /packages/ringfab-target_*.deb /packages/ringfab_*.deb
cmp $config /config
systemctl start $unit
is enabled "$(systemctl is-enabled $unit)" enabled
is namespace "$(ringfab id-ns "$url?ns=1")" "$(cat /known)"

step "purge"
said=$(apt-get purge -y ringfab-target ringfab 2>&1)
echo "$said"
has "$said" '/var/lib/ringfab/identity stays'
has "$said" '/etc/ringfab stays'
[ ! -e $config ]
[ ! -L /etc/systemd/system/multi-user.target.wants/$unit.service ]
is identity "$(sha256sum /var/lib/ringfab/identity)" "$identity"
is data "$(head -c 256M $disk | sum)" "$data"
is key "$(cat /etc/ringfab/keys/host)" secret
is left "$(ls /etc/ringfab)" keys
getent passwd ringfab
ends

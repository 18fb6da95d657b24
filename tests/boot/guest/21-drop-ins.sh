#!/usr/bin/env bash
# Each drop-in that is an example: without it something does not work, with it, it does.
set -euo pipefail
. ./lib.sh

examples=/usr/share/doc/ringfab-target/drop-ins
folder=/etc/systemd/system/$unit.service.d
# As the comment of each says.
apply() {
    (cd $examples && bash -euc "$(sed -n 's/^# \(install .*\)/\1/p' "$1")")
    systemctl daemon-reload
    has "$(systemctl cat $unit)" "$folder/$1"
}

step "more memory"
applied=("more-memory.conf")
is limit "$(systemctl show -P LimitMEMLOCK $unit)" $((1 << 30))
apply more-memory.conf
systemctl restart $unit
is limit "$(systemctl show -P LimitMEMLOCK $unit)" infinity
limit=$(awk '/^Max locked memory/ { print $5 }' "/proc/$(state MainPID)/limits")
if [ "$limit" = unlimited ]; then
    lacks "$(journal_of "$(state InvocationID)")" 'not registered with the kernel'
else
    note "the limit cannot be raised on this machine: $((limit >> 10)) KiB stay"
fi

step "other folders"
applied+=("other-folders.conf")
install -d -o ringfab -g ringfab /mnt/disks
install -o ringfab -g ringfab -m 0600 /dev/null /mnt/disks/disk.img
truncate -s 16M /mnt/disks/disk.img
printf '[[subsystem.namespace]]\npath = "/mnt/disks/disk.img"\n' >>$config
writes() { head -c 4096 /dev/urandom >/data && timeout 30 ringfab write "$url?ns=2" -i /data --destroy-data 2; }
systemctl restart $unit || true
not writes
apply other-folders.conf
systemctl restart $unit
writes
head -c 4096 /mnt/disks/disk.img | cmp - /data

step "credentials"
applied+=("credentials.conf")
mkdir -p /etc/ringfab/keys
host=nqn.2024-01.org.example:host-1
ringfab keys pair --directory /keys --host $host --subsystem "${url##*/}"
install -m 0600 /keys/$host.keys /etc/ringfab/keys/host-1
is owner "$(stat -c '%U %a' /etc/ringfab/keys/host-1)" "root 600"
sed -i "s/^allowed_hosts = .*/allowed_hosts = [\"$host\"]/" $config
printf '[[host]]\nnqn = "%s"\n%s = "credential:host-1"\n%s = "credential:host-1"\n' $host dhchap_key \
    dhchap_controller_key >>$config
not systemctl restart $unit
is status "$(state ExecMainStatus)" 2
apply credentials.conf
systemctl restart $unit
ringfab list "$url" --keys /etc/ringfab/keys/host-1
not timeout 30 ringfab list "$url" --hostnqn $host

step "each of them is tested"
is examples "$(cd $examples && echo *)" "$(printf '%s\n' "${applied[@]}" | sort | paste -sd ' ')"
ends

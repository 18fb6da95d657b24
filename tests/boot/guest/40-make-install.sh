#!/usr/bin/env bash
# `make install` on the machine itself: the user, the folders and the units are there, and nothing more is to be run.
set -euo pipefail
. ./lib.sh

step "make install"
install_it() {
    make --no-print-directory -C /source install RINGFAB_BIN_DIR=/source PREFIX=/usr/local SYSCONFDIR=/opt/etc
}
config=/opt/etc/ringfab/target.toml
said=$(install_it)
echo "$said"
lacks "$said" systemd-sysusers
has "$said" 'systemctl enable --now ringfab-target'
has "$said" 'ringfab-target host allow HOSTNQN'
cmp $config /usr/local/share/ringfab-target/target.toml
is folder "$(stat -c '%U %a' /srv/ringfab)" "ringfab 750"

step "a target, and a second time"
install -o ringfab -g ringfab -m 0600 /dev/null $disk
truncate -s 1G $disk
bash -euc "$(sed -n 's/.*then: \(systemctl .*\)/\1/p' <<<"$said")"
is state "$(state ActiveState)" active
is user "$(ps -o user= -p "$(state MainPID)")" ringfab
allow_this_host
has "$(systemctl cat ringfab-volume@data.service)" ExecStart=/usr/local/bin/ringfab
is helper "$(sed -n 's/.*lines of fstab: //p' <<<"$said")" \
    "for name in mount umount; do ln -sf /usr/local/bin/ringfab /sbin/\$name.ringfab; done"
echo '# This line is the administrator'"'"'s.' >>$config
cp $config /config
install_it
cmp $config /config
is state "$(state ActiveState)" active
systemctl restart $unit
ringfab list "$url"
ends

#!/usr/bin/env bash
# After another boot, the initiator's package is upgraded, removed and purged.
set -euo pipefail
. ./lib.sh
. ./volumes.sh
export DEBIAN_FRONTEND=noninteractive

# The process that has a mount.
keeper() {
    ringfab list --json | awk -v at="$1" \
        '/^      "directory": / { here = index($0, "\"" at "\"") } /^      "pid": / && here { print $2 + 0 }'
}
program_of() { readlink "/proc/$(keeper "$1")/exe"; }
# systemd may learn of an unmount a second later: it looks only so often.
are_inactive() { [ "$(systemctl is-active "$@" | sort -u)" = inactive ]; }

step "an upgrade goes on with what is mounted"
start_writer /srv/data $volume.service
before=$(keeper /srv/data)
said=$(apt-get install -y --no-install-recommends /next/ringfab.deb 2>&1)
has "$said" 'these go on with the program that they were started with'
has "$said" '/srv/data .* connected'
is keeper "$(keeper /srv/data)" "$before"
has "$(program_of /srv/data)" '(deleted)$'
is state "$(systemctl is-active $volume writer-data)" $'active\nactive'
is reload "$(systemctl show -P NeedDaemonReload $volume)" no
# The new program ends what the old one has, and begins anew.
ringfab umount /srv/more
until_it are_inactive srv-more.mount
systemctl start srv-more.mount
is program "$(program_of /srv/more)" /usr/bin/ringfab

step "what is in use cannot be removed"
not apt-get remove -y ringfab >/removal 2>&1
has "$(cat /removal)" "/srv/data is in use: process [0-9]* (bash) uses /srv/data"
has "$(cat /removal)" '/srv/data cannot be unmounted, so the package stays'
is package "$(dpkg-query -W -f '${Status}' ringfab)" 'install ok installed'
is keeper "$(keeper /srv/data)" "$before"
for folder in "${folders[@]}"; do has "$(mounted_from "$folder")" '^/dev/loop'; done
is state "$(systemctl is-active $volume srv-more.mount writer-data)" $'active\nactive\nactive'

step "remove"
systemctl stop writer-data
dpkg -L ringfab >/files
has "$(cat /srv/data/ended)" ended
said=$(apt-get remove -y ringfab 2>&1)
has "$said" 'lines of /etc/fstab have the type ringfab'
for folder in "${folders[@]}"; do is mounted "$(mounted_from "$folder")" ""; done
until_it are_inactive $volume srv-more.mount
is failed "$(systemctl list-units --plain --no-legend --failed 'ringfab-volume@*' srv-data.mount srv-more.mount)" ""
is processes "$(pgrep -x ringfab || true)" ""
no_controllers() { has "$(state StatusText)" ', 0 controllers'; }
until_it no_controllers
[ ! -e /run/ringfab-initiator ]
while read -r file; do
    if [ -f "$file" ] || [ -L "$file" ]; then is left "$file" ""; fi
done </files

step "installed again, and the volume is there"
apt-get install -y --no-install-recommends --allow-downgrades /packages/ringfab_*.deb
is enabled "$(systemctl is-enabled $volume)" enabled
systemctl start $volume
compare /srv/data

step "purge"
said=$(apt-get purge -y ringfab 2>&1)
has "$said" '/etc/ringfab/volumes.toml stays'
is mounted "$(mounted_from /srv/data)" ""
[ -e /etc/ringfab/volumes.toml ]
is links "$(find /etc/systemd -name 'ringfab-volume*')" ""
ends

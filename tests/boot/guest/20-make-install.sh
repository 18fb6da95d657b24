#!/usr/bin/env bash
# `make install` into a folder, as who makes other packages does: what it then says is to be run is enough.
set -euo pipefail
. ./lib.sh

step "what make install has installed, and says is to be run"
cp -a /installed/. /
sed -n 's/^    //p' /installed.said >/said.sh
grep -q systemd-sysusers /said.sh
bash -eux /said.sh
install -o ringfab -g ringfab -m 0600 /dev/null $disk
truncate -s 1G $disk
systemctl enable --now $unit
is state "$(state ActiveState)" active
is user "$(ps -o user= -p "$(state MainPID)")" ringfab
allow_this_host

step "the same files as the packages"
# But for what only Debian has, and pages that it compresses.
installed() { (cd /installed && find . -type f -o -type l) | sed 's,^\.,,; s/\.gz$//' | sort; }
packed() {
    for package in /packages/ringfab-target_*.deb /packages/ringfab_*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar t
    done | grep -v '/$' | sed 's,^\.,,; s/\.gz$//' | grep -v -e /changelog.Debian -e /copyright -e '\.cdx\.json$' | sort
}
diff <(installed) <(packed)
ends

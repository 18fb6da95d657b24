#!/usr/bin/env bash
# README on a machine that has nothing yet, and then each page of docs, from where README has come to.
# seconds=900
set -euo pipefail
. ./lib.sh

step "a machine with nothing but Debian"
# What the packages need comes from the folder that stands for Debian's servers.
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/archive ./' >/etc/apt/sources.list
apt-get -qq update
dpkg --purge --force-depends --force-remove-essential --force-remove-protected \
    fuse3 libfuse3-3 e2fsprogs ibverbs-providers libibverbs1 librdmacm1
not command -v mkfs.ext4
cd /source

step "README.md"
note "$(bash /boot-test/page.sh README.md)"

# kept FILE: what a page may change, as README has left it.
kept=(/etc/ringfab /etc/fstab /srv/ringfab /var/lib/ringfab)
step "the pages of docs"
systemctl stop $unit
tar --create --sparse --file=/kept.tar --absolute-names "${kept[@]}"
read -ra pages <<<"$(cat /boot-test/pages)"
for page in "${pages[@]}"; do
    rm -rf "${kept[@]}"
    tar --extract --sparse --file=/kept.tar --absolute-names
    systemctl daemon-reload
    systemctl reset-failed
    systemctl start $unit
    if said=$(bash /boot-test/page.sh "$page"); then [ -z "$said" ] || note "$said"; else echo "$said" >>/wrong; fi
    systemctl stop $unit
done
if [ -e /wrong ]; then
    journalctl --no-pager -n 200
    cat /wrong
    exit 1
fi
ends

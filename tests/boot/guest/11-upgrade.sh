#!/usr/bin/env bash
# The machine has booted again; then there is a next version of both packages.
set -euo pipefail
. ./lib.sh
export DEBIAN_FRONTEND=noninteractive

version() { dpkg-query -W -f '${Version}' "$1"; }
# Without options for dpkg: there is nothing to ask.
upgrade() { apt-get install -y --no-install-recommends "$@" 2>&1; }

step "it is there after a boot"
is state "$(state ActiveState)" active
ringfab read "$url?ns=1" --length 1MiB >/before
identity=$(sha256sum /var/lib/ringfab/identity)
pid=$(state MainPID)

step "an upgrade under load, over an edited configuration, with another default"
echo '# This line is the administrator'"'"'s.' >>$config
cp $config /config
start_load 6
load_goes_on
said=$(upgrade /next/ringfab-target.deb /next/ringfab.deb)
load_goes_on
end_load
has "$(version ringfab-target)" '+next$'
not test "$(state MainPID)" = "$pid"
is state "$(state ActiveState)" active
# It was stopped in order, and not started again by chance.
is restarts "$(state NRestarts)" 0
has "$(journal)" 'draining'
lacks "$(journal)" 'drain timeout'
cmp $config /config
has "$(cat /usr/share/ringfab-target/target.toml)" '^# Another default'
lacks "$said" 'refuses'
lacks "$said" 'onfiguration file'
is identity "$(sha256sum /var/lib/ringfab/identity)" "$identity"

step "an upgrade to a version that refuses the configuration"
echo 'colour = 1' >>$config
pid=$(state MainPID)
said=$(apt-get install -y --allow-downgrades /packages/ringfab-target_*.deb 2>&1)
has "$said" "refuses $config"
has "$said" 'colour: is not a known key'
has "$said" "systemctl restart $unit"
# It goes on serving until somebody has mended that.
is pid "$(state MainPID)" "$pid"
ringfab list "$url"
cp /config $config
systemctl restart $unit
ringfab list "$url"

step "debug symbols"
apt-get install -y /packages/ringfab-target-dbgsym_*.deb
is symbols "$(find /usr/lib/debug/.build-id -name '*.debug' | wc -l)" 1
ends

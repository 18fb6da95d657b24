#!/usr/bin/env bash
# Versions before had the configuration as a conffile: an upgrade from one leaves it as it is, edited or not, and asks
# nothing. So does one over another default.
set -euo pipefail
. ./lib.sh
export DEBIAN_FRONTEND=noninteractive

install_it() { apt-get install -y --no-install-recommends --allow-downgrades "$@" 2>&1; }
# upgraded SAID: it is whole, and nobody was asked.
upgraded() {
    is package "$(dpkg-query -W -f '${Status}' ringfab-target)" 'install ok installed'
    lacks "$1" 'onfiguration file'
    cmp $config /config
    is others "$(find /etc/ringfab -name 'target.toml?*')" ""
}

for edited in no yes; do
    step "from a version with a conffile, edited: $edited"
    install_it /earlier/ringfab-target.deb
    has "$(dpkg-query -W -f '${Conffiles}' ringfab-target)" "$config"
    [ $edited = no ] || echo "# The administrator's." >>$config
    cp $config /config
    systemctl start $unit
    said=$(install_it /packages/ringfab-target_*.deb)
    upgraded "$said"
    is state "$(state ActiveState)" active
    systemctl stop $unit
    # And on, to one with another default.
    upgraded "$(install_it /next/ringfab-target.deb)"
    apt-get purge -y ringfab-target
    [ ! -e $config ]
done

step "an upgrade with another default, over a configuration that nobody has edited"
install_it /packages/ringfab-target_*.deb
cp $config /config
upgraded "$(install_it /next/ringfab-target.deb)"
not cmp $config /usr/share/ringfab-target/target.toml

step "one that is missing is made, and a link is left alone"
rm $config
install_it /packages/ringfab-target_*.deb
cmp $config /usr/share/ringfab-target/target.toml
ln -sf /nowhere $config
install_it /next/ringfab-target.deb
is link "$(readlink $config)" /nowhere
apt-get purge -y ringfab-target
[ ! -L $config ]
ends

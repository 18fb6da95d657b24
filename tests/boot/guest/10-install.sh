#!/usr/bin/env bash
# A fresh machine, and what the unit does with its target.
set -euo pipefail
. ./lib.sh

step "the packages, and the disk of the configuration that they come with"
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends /packages/ringfab-target_*.deb /packages/ringfab_*.deb
install -o ringfab -g ringfab -m 0600 /dev/null $disk
truncate -s 1G $disk
systemctl enable --now $unit

step "what is installed"
is state "$(state ActiveState)" active
is enabled "$(systemctl is-enabled $unit)" enabled
is changed "$(dpkg -V ringfab-target ringfab)" ""
# The configuration is the administrator's, so that no upgrade asks about it.
is conffiles "$(dpkg-query -W -f '${Conffiles}' ringfab-target)" ""
is owner "$(stat -c '%U %a' $config)" "root 644"
has "$(getent passwd ringfab)" nologin
is folder "$(stat -c '%U %a' /srv/ringfab)" "ringfab 750"
[ ! -e /usr/lib/debug ]
# A page for each command, and completions where shells look for them.
for page in ringfab-target.8 ringfab-target-serve.8 ringfab-target-namespace-add.8; do
    has "$(zcat /usr/share/man/man8/$page.gz)" "EXIT STATUS"
done
has "$(zcat /usr/share/man/man1/ringfab-keys-pair.1.gz)" "EXIT STATUS"
has "$(zcat /usr/share/man/man8/mount.ringfab.8.gz)" remount
has "$(zcat /usr/share/man/man8/umount.ringfab.8.gz)" "EXIT STATUS"
has "$(zcat /usr/share/man/man5/volumes.toml.5.gz)" ctrl_loss_timeout
has "$(zcat /usr/share/man/man5/target.toml.5.gz)" allow_any_host
for program in ringfab-target ringfab; do
    bash -euc ". /usr/share/bash-completion/completions/$program && complete -p $program" | grep -q "$program"
    [ -s /usr/share/zsh/vendor-completions/_$program ]
    [ -s /usr/share/fish/vendor_completions.d/$program.fish ]
    grep -q '^Upstream-Name: Ringfab' /usr/share/doc/$program/copyright
    grep -q bomFormat /usr/share/doc/$program/$program.cdx.json
    for document in README.md SECURITY.md CHANGELOG.md configs/full.toml docs/README.md docs/operations.md \
        docs/pictures/whole.svg; do
        [ -s "/usr/share/doc/$program/$document" ]
    done
    zcat /usr/share/doc/$program/changelog.Debian.gz | grep -q "^ringfab ("
done

step "other machines reach it, and one command lets a host in"
has "$(ss -ltn)" '0\.0\.0\.0:4420'
has "$(journalctl -q --no-pager -o cat -u $unit -t $unit | sed -n 1p)" 'no host may use it yet'
allow_this_host
# The commands have changed nothing else of it.
cmp <(sed 's/^allowed_hosts = \[.*\]$/allowed_hosts = []/' $config) /usr/share/ringfab-target/target.toml

step "its user and its restrictions"
pid=$(state MainPID)
is user "$(ps -o user= -p "$pid")" ringfab
status=$(cat "/proc/$pid/status")
has "$status" 'NoNewPrivs:	1'
has "$status" 'Seccomp:	2'
has "$status" 'CapEff:	0000000000000000'
has "$(journal)" 'confined'
has "$(journal)" 'serving'
# The journal says what happened, and is not a copy of the configuration.
lacks "$(journal)" '\[\[listener\]\]'

step "its pools are registered with the kernel"
limit=$(awk '/^Max locked memory/ { print $5 }' "/proc/$pid/limits")
if [ "$limit" -lt $((1 << 30)) ]; then
    # Who lacks CAP_SYS_RESOURCE, as this machine's systemd does, cannot raise a limit: LimitMEMLOCK= does nothing then.
    # The target says so; with pools that fit, it has all registered, as a user without CAP_IPC_LOCK.
    note "LimitMEMLOCK= has no effect on this machine: $((limit >> 10)) KiB stay"
    has "$(journal)" 'not registered with the kernel'
    cp $config /config
    printf '[target]\ncores = 1\n[memory]\nsmall_buffers = 256\nlarge_buffers = 32\n' | cat - /config >$config
    systemctl restart $unit
    lacks "$(journal_of "$(state InvocationID)")" 'not registered with the kernel'
    cp /config $config
    systemctl restart $unit
else
    lacks "$(journal)" 'not registered with the kernel'
fi

step "a disk"
ringfab list "$url"
head -c 1M /dev/urandom >/data
ringfab write "$url?ns=1" -i /data --destroy-data 1
ringfab read "$url?ns=1" --length 1MiB | cmp - /data

step "reload"
pid=$(state MainPID)
cp $config /config
printf '\n[[subsystem.namespace]]\nmemory = "16MiB"\n' >>$config
systemctl reload $unit
has "$(ringfab-target namespace list)" "16 MiB"
echo 'colour = 1' >>$config
not systemctl reload $unit
has "$(journal)" 'colour: is not a known key'
has "$(ringfab-target namespace list)" "16 MiB"
cp /config $config
systemctl reload $unit
lacks "$(ringfab-target namespace list)" "16 MiB"
is pid "$(state MainPID)" "$pid"
# A signal that nobody meant for it changes nothing.
systemctl kill -s HUP $unit
# It must be seen to do nothing.
sleep 0.5
is pid "$(state MainPID)" "$pid"

step "restarts under load"
start_load 8
for _ in 1 2; do
    load_goes_on
    systemctl restart $unit
done
load_goes_on
systemctl kill -s KILL $unit
end_load
until_it systemctl is-active -q $unit
is restarts "$(state NRestarts)" 1

step "a wrong configuration does not loop"
echo 'colour = 1' >>$config
not systemctl restart $unit
# It must be seen not to be started again.
sleep 3
is state "$(state ActiveState)" failed
is status "$(state ExecMainStatus)" 2
is restarts "$(state NRestarts)" 0
cp /config $config
systemctl start $unit
ringfab list "$url"

step "stop"
systemctl stop $unit
is result "$(state Result)" success
is state "$(state ActiveState)" inactive
ends

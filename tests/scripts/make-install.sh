#!/usr/bin/env bash
# What `make install` does with programs that are built: programs, unit, users and folders, man pages, completions,
# examples, and a first configuration where there is none.
#
#   make-install.sh FOLDER    FOLDER has ringfab-target and ringfab
#
# Environment: DESTDIR, PREFIX (/usr), SYSCONFDIR (/etc), SYSTEMDDIR, SYSUSERSDIR, TMPFILESDIR, MANDIR.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

PREFIX=${PREFIX:-/usr}
DESTDIR=${DESTDIR:-}
ETC=${SYSCONFDIR:-/etc}
UNITS=${SYSTEMDDIR:-$PREFIX/lib/systemd/system}
SYSUSERS=${SYSUSERSDIR:-$PREFIX/lib/sysusers.d}
TMPFILES=${TMPFILESDIR:-$PREFIX/lib/tmpfiles.d}
MAN=${MANDIR:-$PREFIX/share/man}
SHARE=$PREFIX/share

# put MODE FOLDER FILE...
put() { install -D -m "$1" -t "$DESTDIR$2" "${@:3}"; }
# put_as MODE PATH FILE
put_as() { install -D -m "$1" "$3" "$DESTDIR$2"; }

main() {
    [ $# -eq 1 ] || fail "which folder?"
    begin
    put 0755 "$PREFIX/sbin" "$1/ringfab-target"
    put 0755 "$PREFIX/bin" "$1/ringfab"
    # mount(8) and umount(8) look for their helpers there.
    ln -sf ../bin/ringfab "$DESTDIR$PREFIX/sbin/mount.ringfab"
    ln -sf ../bin/ringfab "$DESTDIR$PREFIX/sbin/umount.ringfab"
    units
    put_as 0644 "$SYSUSERS/ringfab.conf" systemd/ringfab.sysusers.conf
    put_as 0644 "$TMPFILES/ringfab.conf" systemd/ringfab.tmpfiles.conf
    manual "$1/ringfab-target" 8
    manual "$1/ringfab" 1
    put 0644 "$MAN/man5" configs/man/*.5
    put 0644 "$MAN/man8" configs/man/*.8
    tests/scripts/documents.sh "$DESTDIR$SHARE/doc/ringfab-target"
    tests/scripts/documents.sh "$DESTDIR$SHARE/doc/ringfab"
    put 0644 "$SHARE/doc/ringfab-target/drop-ins" systemd/drop-ins/*.conf
    put 0644 "$SHARE/ringfab-target" configs/target.toml
    finish
    undo_all
}

# The units name the programs, and the target's its configuration.
units() {
    mkdir "$TMP/units"
    cp systemd/*.service "$TMP/units/"
    sed -i -e "s,^\(Exec[A-Za-z]*=\)/usr/\(s\?bin\)/,\1$PREFIX/\2/," "$TMP"/units/*.service
    sed -i -e "/^ExecStart=/s,/etc/ringfab/target.toml,$ETC/ringfab/target.toml," "$TMP/units/ringfab-target.service"
    put 0644 "$UNITS" "$TMP"/units/*.service
}

# manual PROGRAM SECTION: its pages and completions, which it writes itself.
manual() {
    local name
    name=$(basename "$1")
    "$1" manual --man "$TMP/$name/man" --completions "$TMP/$name"
    sed -i "s,/usr/share/doc/,$SHARE/doc/," "$TMP/$name/man"/*
    put 0644 "$MAN/man$2" "$TMP/$name/man"/*."$2"
    # Pages of files.
    [ ! -e "$TMP/$name/man/target.toml.5" ] || put 0644 "$MAN/man5" "$TMP/$name/man/target.toml.5"
    put_as 0644 "$SHARE/bash-completion/completions/$name" "$TMP/$name/$name.bash"
    put 0644 "$SHARE/zsh/vendor-completions" "$TMP/$name/_$name"
    put 0644 "$SHARE/fish/vendor_completions.d" "$TMP/$name/$name.fish"
}

# The user, the folders, and the units that the service manager knows: done here, or said where that cannot be.
finish() {
    # A packager's folder gets none: the configuration is the administrator's, and no file of a package.
    [ -n "$DESTDIR" ] || bash -c "$(first_configuration)"
    if [ -n "$DESTDIR" ] || [ "$(id -u)" -ne 0 ]; then
        say "Where it is installed, run as root:"
        steps
        [ "$PREFIX" = /usr ] || note "$(helper)"
        return
    fi
    [ "$PREFIX" = /usr ] || say "For lines of fstab: $(helper)"
    if ! have systemd-sysusers || ! have systemd-tmpfiles; then
        say "There is no systemd-sysusers and systemd-tmpfiles here. What they would do:"
        note "a user ringfab ($SYSUSERS/ringfab.conf), its folder /srv/ringfab ($TMPFILES/ringfab.conf)"
        return
    fi
    systemd-sysusers "$SYSUSERS/ringfab.conf"
    systemd-tmpfiles --create "$TMPFILES/ringfab.conf"
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
    say "Say in $ETC/ringfab/target.toml what to serve, then: systemctl enable --now ringfab-target"
    note "no host may use it until you allow one: ringfab-target host allow HOSTNQN"
}

# The command that makes the configuration where none is.
first_configuration() {
    local config="$ETC/ringfab/target.toml"
    echo "[ -e $config ] || install -D -m 0644 $SHARE/ringfab-target/target.toml $config"
}

# mount(8) and umount(8) look for helpers in /sbin only.
helper() { echo "for name in mount umount; do ln -sf $PREFIX/bin/ringfab /sbin/\$name.ringfab; done"; }

steps() {
    note "systemd-sysusers $SYSUSERS/ringfab.conf"
    note "systemd-tmpfiles --create $TMPFILES/ringfab.conf"
    note "systemctl daemon-reload"
    [ -z "$DESTDIR" ] || note "$(first_configuration)"
}

main "$@"

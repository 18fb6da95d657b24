#!/usr/bin/env bash
# The Debian packages, installed as everything else in a fresh Debian tree, under a systemd of its own: installation,
# restrictions, reload, restarts under load, upgrades, removal, purge; volumes from one boot to the next; drop-ins;
# `make install`; and every command of README and docs, as it stands there.
#
#   run.sh [SCENARIO...]    files of guest/ without their ending; without a name, all of them
#
# Needs root, and network packages of this machine's own apt configuration. Each scenario boots, most of them a copy of
# the tree that the one before has left. Nothing is left but the cached tree in the build folder's boot.
#
#   RINGFAB_BOOT_KEEP    a folder for the logs of each boot
#   RINGFAB_PAGES        the pages of docs whose commands 60-documents runs, instead of all
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/scripts/lib.sh
. "$here/../scripts/lib.sh"

BUILD="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}"
# systemd, what the packages depend on and recommend, and what the scenarios start.
PACKAGES=systemd,systemd-sysv,dbus,procps,diffutils,iproute2,libibverbs1,librdmacm1,fuse3,e2fsprogs,mount,make
# What the documents have apt-get install, and what it installs with the packages. The tree's network is its own, so it
# gets these from a folder.
ARCHIVE="libibverbs1 librdmacm1 ibverbs-providers fuse3 libfuse3-3 e2fsprogs libext2fs2 libss2 logsave libnbd-bin curl"
# What a boot and its scenario may take, and what of it the end of the machine. systemd waits 90 s for an unmount. A
# scenario may say how long it takes itself (`# seconds=`), and of its own end what that may take, in a file end-within.
SECONDS_MAX=${RINGFAB_BOOT_SECONDS:-180}
END_SECONDS_MAX=60

main() {
    local missing scenario started before=''
    if missing=$(what_is_missing); then
        not_run "the packages under systemd: $missing"
        return
    fi
    local chosen=("$@")
    [ $# -gt 0 ] || mapfile -t chosen < <(scenarios)
    compgen -G "$BUILD/packages/ringfab-target_*.deb" >/dev/null || fail "there are no packages: make packages"
    begin
    timed "a Debian tree" base_tree
    timed "packages of other versions" other_versions
    timed "make install" staged
    TREE="$TMP/tree"
    for scenario in "${chosen[@]}"; do
        [ -e "$here/guest/$scenario.sh" ] || fail "there is no scenario $scenario"
        # Scenarios whose numbers begin alike go on where the one before has stopped.
        [ "${scenario:0:1}" = "$before" ] || fresh_tree
        before=${scenario:0:1}
        started=$(now_ms)
        boot "$scenario"
        say "$scenario: $(seconds_since "$started") s (the end $ENDED s)"
        sed -n 's/^step: /    /p' "$TMP/$scenario.log"
    done
    undo_all
    say "The packages under systemd: passed in $SECONDS s"
}

scenarios() { find "$here/guest" -name '[0-9]*.sh' -printf '%f\n' | sed 's/\.sh$//' | sort; }

seconds_since() {
    local took=$(($(now_ms) - $1))
    printf '%d.%d' $((took / 1000)) $((took % 1000 / 100))
}

# timed WHAT COMMAND...: says how long it took.
timed() {
    local started
    started=$(now_ms)
    "${@:2}"
    say "$1: $(seconds_since "$started") s"
}

# Succeeds when something is, and says what.
what_is_missing() {
    local program
    [ "$(id -u)" -eq 0 ] || { echo "it needs root"; return; }
    for program in mmdebstrap systemd-nspawn unshare script; do
        have "$program" || { echo "$program is not installed"; return; }
    done
    return 1
}

# A Debian of this machine's release. It is kept; what it is made of is its name.
base_tree() {
    local suite sources=/etc/apt/sources.list.d/debian.sources
    [ -e "$sources" ] || sources=/etc/apt/sources.list
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    BASE="$BUILD/boot/tree"
    [ "$(cat "$BUILD/boot/made" 2>/dev/null)" != "$suite $PACKAGES $ARCHIVE" ] || return 0
    rm -rf "${BUILD:?}/boot"
    mkdir -p "$BUILD/boot"
    # shellcheck disable=SC2016  # for the shell of mmdebstrap
    mmdebstrap --quiet --variant=minbase --include="$PACKAGES" \
        --customize-hook='mkdir "$1/archive" && chroot "$1" sh -c "cd /archive && '"$(fetch_archive)"'"' \
        "$suite" "$BASE" "$sources" >"$TMP/tree.log" 2>&1 || fail "no tree could be made: $(tail -n 3 "$TMP/tree.log")"
    index_archive "$BASE/archive"
    echo "$suite $PACKAGES $ARCHIVE" >"$BUILD/boot/made"
}

# The packages that the tree has, and those that it lacks with all that they depend on.
fetch_archive() {
    echo "apt-get -qq download $ARCHIVE &&" \
        "apt-get -qq -y --no-install-recommends --download-only -o Dir::Cache::archives=/archive/ install $ARCHIVE &&" \
        "rm -rf partial lock"
}

# index_archive FOLDER: what apt has to know of the packages in it.
index_archive() {
    local package
    for package in "$1"/*.deb; do
        dpkg-deb --field "$package"
        printf 'Filename: ./%s\nSize: %d\nSHA256: %s\n\n' "$(basename "$package")" "$(stat -c %s "$package")" \
            "$(sha256sum <"$package" | cut -d ' ' -f 1)"
    done >"$1/Packages"
}

fresh_tree() {
    rm -rf --one-file-system "$TREE"
    cp -a --reflink=auto "$BASE" "$TREE"
    mkdir "$TREE/packages" "$TREE/next" "$TREE/earlier" "$TREE/boot-test"
    # Nothing of it has to outlive this machine.
    echo force-unsafe-io >"$TREE/etc/dpkg/dpkg.cfg.d/unsafe-io"
    cp "$BUILD"/packages/*.deb "$TREE/packages/"
    cp "$TMP"/next/*.deb "$TREE/next/"
    cp "$TMP"/earlier/*.deb "$TREE/earlier/"
    cp -a "$TMP/installed" "$TREE/installed"
    cp "$TMP/install.said" "$TREE/installed.said"
    cp "$here"/guest/*.sh "$TREE/boot-test/"
    # shellcheck disable=SC2086  # a list
    echo ${RINGFAB_PAGES:-docs/*.md} >"$TREE/boot-test/pages"
    source_tree "$TREE/source"
}

# What `make install` needs where everything is built.
source_tree() {
    mkdir "$1"
    cp --parents -r Makefile LICENSE ./*.md docs tests/CONFORMANCE.md tests/kernel/COMMANDS.md \
        configs systemd tests/scripts "$1/"
    cp "$BUILD/release/ringfab-target" "$BUILD/release/ringfab" "$1/"
}

# The same packages under a higher version, with another default configuration; and the target's under a lower one, with
# its configuration as a conffile, as it once was.
other_versions() {
    local package name default before="$TMP/earlier/ringfab-target"
    mkdir "$TMP/next" "$TMP/earlier"
    for package in "$BUILD"/packages/*.deb; do
        name=$(dpkg-deb -f "$package" Package)
        case "$name" in *-dbgsym) continue ;; esac
        dpkg-deb -R "$package" "$TMP/next/$name"
        sed -i 's/^Version: .*/&+next/' "$TMP/next/$name/DEBIAN/control"
        default="$TMP/next/$name/usr/share/ringfab-target/target.toml"
        [ ! -e "$default" ] || echo '# Another default.' >>"$default"
        build "$TMP/next/$name"
    done
    dpkg-deb -R "$BUILD"/packages/ringfab-target_*.deb "$before"
    sed -i 's/^Version: .*/Version: 0.0.1-1/' "$before/DEBIAN/control"
    install -D -m 0644 "$before/usr/share/ringfab-target/target.toml" "$before/etc/ringfab/target.toml"
    sed -i 's/^# What ringfab-target serves.*/# As it was before./' "$before/etc/ringfab/target.toml"
    echo /etc/ringfab/target.toml >"$before/DEBIAN/conffiles"
    sed -i '/target\.toml\.old/d' "$before/DEBIAN/postrm"
    build "$before"
}

# build FOLDER: makes a package of it, beside it.
build() {
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$1" "$1.deb" >"$TMP/build.log"
    rm -rf "${1:?}"
}

# Beside the tree: the system that boots must not see users and folders before what `make install` says is done.
staged() {
    make --no-print-directory install DESTDIR="$TMP/installed" RINGFAB_BIN_DIR="$BUILD/release" >"$TMP/install.said"
}

boot() {
    local scenario=$1 most=$END_SECONDS_MAX wants="$TREE/etc/systemd/system/multi-user.target.wants" own
    own=$(sed -n 's/^# seconds=//p' "$here/guest/$scenario.sh")
    mkdir -p "$wants"
    rm -f "$TREE/boot-test/said" "$TREE/boot-test/status" "$TREE/boot-test/not-unmounted" \
        "$TREE/boot-test/end-within"
    cat >"$TREE/etc/systemd/system/boot-test.service" <<UNIT
[Unit]
# When all else has started.
After=multi-user.target
DefaultDependencies=no
[Service]
Type=oneshot
WorkingDirectory=/boot-test
ExecStart=/bin/sh -c 'bash $scenario.sh >said 2>&1; echo \$? >status; systemctl poweroff --no-block'
UNIT
    ln -sf ../boot-test.service "$wants/boot-test.service"
    # systemd-nspawn wants /run to be a file system of its own, and systemd a terminal.
    # shellcheck disable=SC2016  # for the inner shell
    timeout --kill-after=10 "${own:-$SECONDS_MAX}" unshare --mount --kill-child \
        sh -c 'mount -t tmpfs tmpfs /run && exec script -qec "$0" /dev/null </dev/null' \
        "SYSTEMD_SECCOMP=0 systemd-nspawn --directory=$TREE --register=no --keep-unit $(options) --boot" \
        >"$TMP/$scenario-boot.log" 2>&1 || true
    cp "$TREE/boot-test/said" "$TMP/$scenario.log" 2>/dev/null || fail "$scenario: it did not boot"
    if [ -n "${RINGFAB_BOOT_KEEP:-}" ]; then
        mkdir -p "$RINGFAB_BOOT_KEEP"
        cp "$TMP/$scenario.log" "$TMP/$scenario-boot.log" "$RINGFAB_BOOT_KEEP/"
    fi
    [ "$(cat "$TREE/boot-test/status" 2>/dev/null)" = 0 ] || fail "$scenario: a step failed"
    ENDED=$(($(date +%s) - $(stat -c %Y "$TREE/boot-test/status")))
    [ ! -e "$TREE/boot-test/end-within" ] || most=$(cat "$TREE/boot-test/end-within")
    [ "$ENDED" -le "$most" ] || fail "$scenario: its end took $ENDED s"
    [ -e "$TREE/boot-test/not-unmounted" ] || were_unmounted "$scenario"
}

# File systems on disks of the target: the machine that has ended has unmounted them, and they are whole.
were_unmounted() {
    local image
    for image in "$TREE"/srv/ringfab/*.img; do
        dumpe2fs -h "$image" >"$TMP/superblock" 2>/dev/null || continue
        ! grep -q needs_recovery "$TMP/superblock" || fail "$1: $(basename "$image") was not unmounted"
        e2fsck -fn "$image" >"$TMP/e2fsck.log" 2>&1 || fail "$1: $(basename "$image") is damaged"
    done
}

# A network of its own, and the devices that mounts need. The kernel chooses which loop device is free.
options() {
    local number
    printf -- '--private-network '
    [ ! -e /dev/fuse ] || printf -- '--bind=/dev/fuse '
    [ -e /dev/loop-control ] || return 0
    printf -- '--bind=/dev/loop-control '
    for ((number = 0; number < 32; number++)); do
        [ -e "$TMP/loop$number" ] || mknod -m 0660 "$TMP/loop$number" b 7 "$number"
        printf -- '--bind=%s:/dev/loop%d ' "$TMP/loop$number" "$number"
    done
}

main "$@"

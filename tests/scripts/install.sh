#!/usr/bin/env bash
# Installs what is missing on a Debian machine, and nothing else.
#
#   install.sh GROUP...
#   install.sh --missing GROUP...   says what is missing, and installs nothing
#
#   build   a C linker, the Rust toolchain's parts
#   test    what the tests start: fio, libnbd, QEMU's tools, Wireshark's dissectors, systemd's checkers, Prometheus, a
#           browser (112 MB: half a minute), another implementation of mDNS, two of TLS, mandoc, two shells, Go with
#           a parser of logfmt (81 MB), cargo-deny, cargo-cyclonedx
#   sbom    cargo-cyclonedx and jq
#   packages what makes Debian packages: cargo-deb, cargo-cyclonedx, dpkg's and the linker's tools
#   boot    what makes a Debian tree and boots it under a systemd of its own
#   container what builds and runs the container image
#   demo    what the demonstration starts; `end_to_end`: with what else end-to-end tests start
#   bench   what the benchmark holds Ringfab against
#   ceph    Ceph's daemons and tools, for a cluster in memory, and the library of its clients
#   fuzz    a C++ compiler for libFuzzer
#   count   what counts instructions
#   pictures what draws the pictures of docs/pictures: a browser, Prometheus, a terminal, two libraries of Python
#   arm64   what compiles for arm64, and runs it in an emulated machine
#   kernel  what the tests against a Linux kernel in a virtual machine start, and build that kernel's module with
#
# Without root it prints the line to run and exits with 1. Rust is installed for this user where there is no cargo, by
# rustup, after saying so. RINGFAB_INSTALL_RUST=no refuses that. A Rust that is there and too old is left alone.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

TOOLS="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}/tools"
WANTED=()

# Notes a package to install when a command that it brings is missing.
want() { have "$1" || WANTED+=("$2"); }

want_build() {
    want cc gcc
    # To fetch Rust where there is none.
    have cargo || [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ] || want curl curl
    have cargo || [ -e /etc/ssl/certs/ca-certificates.crt ] || WANTED+=(ca-certificates)
    [ -e /usr/include/stdlib.h ] || WANTED+=(libc6-dev)
    # RDMA devices: the two libraries, and what reads their headers. Without the feature `verbs` none of it is needed.
    want pkg-config pkg-config
    [ -e /usr/include/infiniband/verbs.h ] || WANTED+=(libibverbs-dev)
    [ -e /usr/include/rdma/rdma_cma.h ] || WANTED+=(librdmacm-dev)
    # With the compiler's own headers; other libraries that begin with the same name are of no use.
    compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null &&
        compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null || WANTED+=(libclang-dev)
}

want_fuzz() { want c++ g++; }

want_demo() {
    want mkfs.ext4 e2fsprogs
    want debugfs e2fsprogs
    want fusermount3 fuse3
    want mount mount
    want fio fio
    want nbdcopy libnbd-bin
    want cmp diffutils
    want find findutils
    # A file system on a file is mounted by the loop driver, or by this program where that may not be used.
    "$RINGFAB_ROOT/tests/scripts/can-loop.sh" || want fuse2fs fuse2fs
}

want_end_to_end() {
    want_demo
    want qemu-img qemu-utils
    want nbdsh python3-libnbd
}

want_test() {
    want_end_to_end
    want python3 python3-minimal
    want nvme nvme-cli
    want nbdkit nbdkit
    want qemu-nbd qemu-utils
    want tshark tshark
    want systemd-analyze systemd
    want shellcheck shellcheck
    want jq jq
    want ip iproute2
    want setpriv util-linux
    want python3 python3-minimal
    want journalctl systemd
    want prometheus prometheus
    want promtool prometheus
    want chromium chromium
    want unshare util-linux
    /usr/bin/python3 -c 'import zeroconf' 2>/dev/null || WANTED+=(python3-zeroconf)
    want curl curl
    want openssl openssl
    want gnutls-cli gnutls-bin
    want mandoc mandoc
    # Shells whose completions are tried.
    want zsh zsh
    want fish fish
    # A parser of the log's lines.
    want go golang-go
    [ -e /usr/share/gocode/src/github.com/go-logfmt/logfmt ] || WANTED+=(golang-github-go-logfmt-logfmt-dev)
}

# What tests/scripts/ceph.sh starts.
want_ceph() {
    want ceph-mon ceph-mon
    want ceph-osd ceph-osd
    want rbd ceph-common
    ldconfig -p | grep -q 'librbd\.so\.1' || WANTED+=(librbd1)
}

want_sbom() { want jq jq; }

want_packages() {
    want_sbom
    want dpkg-shlibdeps dpkg-dev
    want objcopy binutils
    want python3 python3-minimal
}

want_boot() {
    want mmdebstrap mmdebstrap
    want systemd-nspawn systemd-container
    want unshare util-linux
    want script bsdutils
    want mkfs.ext4 e2fsprogs
}

want_container() {
    want mmdebstrap mmdebstrap
    want podman podman
    # It also runs where control groups are of both versions.
    want runc runc
    want jq jq
    want nsenter util-linux
}

want_bench() {
    want fio fio
    want nbdkit nbdkit
    want qemu-nbd qemu-utils
    want bindfs bindfs
    want fusermount3 fuse3
    want losetup mount
    want_ceph
}

want_count() {
    want valgrind valgrind
    want python3 python3-minimal
}

want_pictures() {
    want tmux tmux
    want prometheus prometheus
    want chromium chromium
    want python3 python3-minimal
    # Debian's Python, which need not be the first one here.
    /usr/bin/python3 -c 'import rich' 2>/dev/null || WANTED+=(python3-rich)
    /usr/bin/python3 -c 'import matplotlib, PIL' 2>/dev/null || WANTED+=(python3-matplotlib python3-pil)
}

# The virtual machine is for x86-64; elsewhere nothing is missing.
want_kernel() {
    [ "$(uname -m)" = x86_64 ] || return 0
    want qemu-system-x86_64 qemu-system-x86
    want qemu-img qemu-utils
    want busybox busybox-static
    want depmod kmod
    want xz xz-utils
    want make make
    want cc gcc
    ldconfig -p | grep -q 'libelf\.so\.1' || WANTED+=(libelf1)
    want rdma iproute2
    want nvme nvme-cli
    want nbd-client nbd-client
    want nbdkit nbdkit
    want lvcreate lvm2
    want dmsetup dmsetup
    want rping rdmacm-utils
    want udevadm udev
    want fio fio
    want jq jq
    want mkfs.ext4 e2fsprogs
    want python3 python3-minimal
    /usr/bin/python3 -c 'import ctypes' 2>/dev/null || WANTED+=(libpython3-stdlib)
    [ -e /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so ] || WANTED+=(ibverbs-providers)
}

# A compiler's linker, packages for arm64, and an emulator.
want_arm64() {
    want aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    want qemu-system-aarch64 qemu-system-arm
    want mmdebstrap mmdebstrap
    want busybox busybox-static
    want depmod kmod
    want mkfs.ext4 e2fsprogs
    want jq jq
}

# QEMU's tools and its emulator must be of one version, and a machine may have the tools from elsewhere than what apt
# would take the emulator from. apt would remove them then; they are wanted, so they get the emulator's version instead.
keep_qemu_utils() {
    local version emulator
    for emulator in qemu-system-x86 qemu-system-arm ''; do
        case " ${WANTED[*]} " in *" ${emulator:-none} "*) break ;; esac
    done
    [ -n "$emulator" ] || return 0
    apt-get -s install --no-install-recommends "$emulator" 2>/dev/null | grep -q '^Remv qemu-utils ' || return 0
    version=$(apt-cache policy "$emulator" | sed -n 's/^  Candidate: //p')
    WANTED+=("qemu-utils=$version")
}

install_packages() {
    [ "${#WANTED[@]}" -gt 0 ] || return 0
    ! have apt-get || keep_qemu_utils
    local packages
    mapfile -t packages < <(printf '%s\n' "${WANTED[@]}" | sort -u)
    # Nothing that is there may go away for what is missing.
    local line="apt-get install -y --no-install-recommends --no-remove --allow-downgrades ${packages[*]}"
    have apt-get || fail "this is not a Debian machine; install what has these packages: ${packages[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        printf 'Missing: %s. Run as root:\n\n    %s\n\n' "${packages[*]}" "$line" >&2
        exit 1
    fi
    say "Installing ${packages[*]}"
    mkdir -p "$TOOLS"
    local log="$TOOLS/apt.log"
    export DEBIAN_FRONTEND=noninteractive
    # The lists may be there and old, or not there at all; both show as a failed first try.
    $line >"$log" 2>&1 || { apt-get update >"$log" 2>&1 && $line >>"$log" 2>&1; } || {
        tail -n 20 "$log" >&2
        fail "could not install ${packages[*]}"
    }
}

# The least Rust that builds the workspace, from its manifest.
rust_needed() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }

# With rustup, as its authors distribute it, compared with the checksum beside it. RUSTUP_UPDATE_ROOT and
# RUSTUP_DIST_SERVER name another place, as rustup's documentation has them.
install_rust() {
    local root=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup} folder triple
    triple=$(uname -m)-unknown-linux-gnu
    [ "${RINGFAB_INSTALL_RUST:-yes}" != no ] ||
        fail "cargo is missing, and RINGFAB_INSTALL_RUST=no: install Rust $1 or newer (https://rustup.rs)"
    say "Rust is missing. Installing Rust $1 by rustup for $(id -un), in ${CARGO_HOME:-$HOME/.cargo} and" \
        "${RUSTUP_HOME:-$HOME/.rustup} (RINGFAB_INSTALL_RUST=no refuses that)"
    have curl || fail "to fetch rustup, curl is needed: apt-get install curl ca-certificates"
    folder=$(mktemp -d)
    # Gone on every way out.
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$folder'" EXIT
    fetch_rustup "$root/dist/$triple" "$folder" || fail "rustup cannot be fetched from $root/dist/$triple"
    "$folder/rustup-init" -y --quiet --no-modify-path --profile minimal --component clippy,rustfmt \
        --default-toolchain "$1" || fail "rustup could not install Rust $1"
    note "In a shell of yours: . ${CARGO_HOME:-$HOME/.cargo}/env"
}

# fetch_rustup URL FOLDER
fetch_rustup() {
    local wanted
    curl --proto '=https' --tlsv1.2 -fsSL --retry 3 -o "$2/rustup-init" "$1/rustup-init" || return
    wanted=$(curl --proto '=https' --tlsv1.2 -fsSL --retry 3 "$1/rustup-init.sha256" | cut -d ' ' -f 1) || return
    [ "$(sha256sum "$2/rustup-init" | cut -d ' ' -f 1)" = "$wanted" ] || return
    chmod +x "$2/rustup-init"
}

check_rust() {
    local needed
    needed=$(rust_needed)
    # A toolchain that was installed a moment ago may not be in this shell's PATH.
    have cargo || export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    have cargo || install_rust "$needed"
    local has
    has=$(rustc --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$needed" "$has" | sort -V | head -n 1)" = "$needed" ] ||
        fail "rustc $has is too old, $needed is needed. With rustup: rustup update stable"
}

# Clippy and rustfmt come with rustup's default profile, but not with its minimal one.
check_rust_parts() {
    local part
    for part in clippy rustfmt; do
        cargo "${part/rustfmt/fmt}" --version >/dev/null 2>&1 && continue
        have rustup || fail "cargo has no $part; add it to your Rust installation"
        rustup component add "$part"
    done
}

# From where the toolchain came.
install_arm64_library() {
    local triple=aarch64-unknown-linux-gnu
    [ -e "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] && return
    have rustup || fail "Rust has no library for $triple; add it to your Rust installation"
    rustup target add "$triple"
}

# These are in no Debian release, and what prebuilt copies there are do not understand this Cargo. They are built into
# the build folder, quickly rather than fast, and only once. Without them their checks say that they did not run.
install_tool() {
    local name=$1 version=$2
    have "$name" && return
    [ -x "$TOOLS/bin/$name" ] && return
    say "Building $name (about a minute, once)"
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR="$TOOLS/build" \
        cargo install --quiet --debug --locked --version "$version" --root "$TOOLS" "$name" ||
        note "$name cannot be had here; the checks that need it will not run"
    rm -rf "$TOOLS/build"
}

install_deny() { install_tool cargo-deny '^0.20'; }
install_cyclonedx() { install_tool cargo-cyclonedx '^0.5'; }
install_deb() { install_tool cargo-deb '^3.8'; }

if [ "${1:-}" = --missing ]; then
    shift
    for group in "$@"; do "want_$group"; done
    [ "${#WANTED[@]}" -eq 0 ] || printf '%s\n' "${WANTED[@]}" | sort -u | paste -sd ' '
    exit
fi
[ $# -gt 0 ] ||
    fail "which group? build, test, sbom, packages, boot, container, demo, bench, ceph, fuzz, count, pictures," \
        "arm64, kernel"
for group in "$@"; do
    case "$group" in
    build | test | sbom | packages | boot | container | demo | bench | ceph | fuzz | count | pictures | arm64 | kernel)
        "want_$group"
        ;;
    *) fail "unknown group: $group" ;;
    esac
done
install_packages
for group in "$@"; do
    case "$group" in
    build | fuzz) check_rust ;;
    arm64)
        check_rust
        install_arm64_library
        ;;
    test)
        check_rust
        check_rust_parts
        install_deny
        install_cyclonedx
        ;;
    sbom)
        check_rust
        install_cyclonedx
        ;;
    packages)
        check_rust
        install_cyclonedx
        install_deb
        ;;
    esac
done

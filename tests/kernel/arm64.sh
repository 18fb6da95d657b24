#!/usr/bin/env bash
# Compiles everything for arm64 and runs it there: in an emulated machine with Debian's kernel for arm64.
#
#   arm64.sh [PROGRAM...]    all of it, or some programs of tests, as their names appear
#
# What runs there: the unit tests of every crate, the tests of the reactor, the disks and the protocol engines, the
# simulated worlds, tests of both ends in one process, and the service with its client, over the software RNIC and over
# NVMe/TCP. RDMA devices are only compiled and linked. Exits with 77 where this machine cannot do it; with
# RINGFAB_REQUIRE_TOOLS, what could be installed and is not is a failure instead.
#
# Environment: RINGFAB_ARM64_CACHE (the build folder's arm64), RINGFAB_ARM64_SECONDS (900, then the machine is ended).
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

TRIPLE=aarch64-unknown-linux-gnu
BUILD="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}"
CACHE="${RINGFAB_ARM64_CACHE:-$BUILD/arm64}"
TREE="$CACHE/tree"
PACKAGES=libc6-dev,libgcc-s1,libibverbs-dev,librdmacm-dev,busybox-static,linux-image-arm64
# Tests beside the unit tests, as package:name. Others need programs that the guest does not have, or measure time,
# which passes differently on an emulated processor.
TESTS=(ringfab-proto:iwarp ringfab-proto:tcp ringfab-reactor:files ringfab-reactor:borrowed ringfab-reactor:exhaustion
    ringfab-reactor:simulation ringfab-block:disks ringfab-tests:simulation
    ringfab-tests:attach)

main() {
    WANTED=("$@")
    prepare
    build
    begin
    lay_out
    boot
    report
}

# This machine cannot do it, or, where tools are required, something is missing.
lacking() {
    not_run "the tests on arm64: $*"
    exit 77
}

prepare() {
    local tool missing=()
    for tool in aarch64-linux-gnu-gcc qemu-system-aarch64 mmdebstrap jq busybox depmod mkfs.ext4; do
        have "$tool" || missing+=("$tool")
    done
    [ "${#missing[@]}" -eq 0 ] || [ -z "${RINGFAB_REQUIRE_TOOLS:-}" ] || fail "not installed: ${missing[*]}"
    [ "${#missing[@]}" -eq 0 ] || lacking "not installed: ${missing[*]}"
    [ -e "$(rustc --print sysroot)/lib/rustlib/$TRIPLE/lib" ] ||
        lacking "Rust has no $TRIPLE (rustup target add $TRIPLE)"
    # What the tree is made of is its name.
    [ "$(cat "$CACHE/made" 2>/dev/null)" = "$PACKAGES" ] || make_tree
}

# Libraries, headers and a kernel of this release for arm64, unpacked and nothing else: nothing of it runs here.
make_tree() {
    local suite sources=/etc/apt/sources.list.d/debian.sources
    [ -e "$sources" ] || sources=/etc/apt/sources.list
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    say "Fetching libraries and a kernel for arm64"
    rm -rf "$CACHE"
    mkdir -p "$CACHE"
    mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$PACKAGES" \
        "$suite" "$TREE" "$sources" >"$CACHE/tree.log" 2>&1 ||
        { tail -n 5 "$CACHE/tree.log" >&2; lacking "Debian's packages for arm64 cannot be had"; }
    depmod -b "$TREE" "$(release)"
    echo "$PACKAGES" >"$CACHE/made"
}

release() { basename "$TREE"/boot/vmlinuz-* | cut -d - -f 2-; }

# Everything is compiled and linked for arm64; what runs there is listed in PROGRAMS.
build() {
    say "Compiling for arm64"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-Clink-arg=--sysroot=$TREE"
    export PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR="$TREE"
    export PKG_CONFIG_LIBDIR="$TREE/usr/lib/aarch64-linux-gnu/pkgconfig:$TREE/usr/share/pkgconfig"
    export BINDGEN_EXTRA_CLANG_ARGS="--sysroot=$TREE" CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
    PROGRAMS="$CACHE/programs"
    local name choice=()
    for name in "${TESTS[@]}"; do choice+=(--test "${name#*:}"); done
    # With tests both times: without, Cargo would choose other features for what they share and build all of it twice.
    # The rules of the house read the sources, which the guest does not have.
    choice+=(--workspace --exclude ringfab-house --bins)
    cargo build --locked --target "$TRIPLE" "${choice[@]}"
    cargo test --locked --target "$TRIPLE" --lib "${choice[@]}" --no-run \
        --message-format=json >"$CACHE/built"
    jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable) |
        (.package_id | split("#") | last | split("@")[0]) as $package |
        ({lib: "", bin: ":program"}[.target.kind[0]] // ":\(.target.name)") as $which |
        "\($package)\($which) \(.executable) \(.manifest_path | rtrimstr("/Cargo.toml"))"' \
        "$CACHE/built" >"$PROGRAMS"
    # Two packages may have tests of one name.
    grep -E "^[^:]+(:program)? |^($(IFS='|' && echo "${TESTS[*]}")) " "$PROGRAMS" >"$PROGRAMS.wanted"
    mv "$PROGRAMS.wanted" "$PROGRAMS"
    for name in "${TESTS[@]}"; do
        grep -q "^$name " "$PROGRAMS" || fail "there is no program of tests called $name"
    done
    [ "${#WANTED[@]}" -eq 0 ] || for name in "${WANTED[@]}"; do grep "^$name " "$PROGRAMS"; done >"$PROGRAMS.wanted"
    [ "${#WANTED[@]}" -eq 0 ] || mv "$PROGRAMS.wanted" "$PROGRAMS"
}

# The guest's only file system, in its memory: busybox, libraries, the programs, and what tests read of this folder.
lay_out() {
    local image="$TMP/image" name program folder file
    mkdir -p "$image"/{bin,proc,sys,dev,tmp,run,etc,lib,tests} "$image$RINGFAB_ROOT"
    cp "$TREE/bin/busybox" "$image/bin/"
    cp -L "$TREE/lib/ld-linux-aarch64.so.1" "$image/lib/"
    for name in libc.so.6 libm.so.6 libgcc_s.so.1 libibverbs.so.1 librdmacm.so.1 libnl-3.so.200 libnl-route-3.so.200; do
        file=$(find "$TREE"/{lib,usr/lib}/aarch64-linux-gnu -name "$name" | head -n 1)
        cp -L "$file" "$image/lib/$name"
    done
    for name in ringfab ringfab-target; do
        aarch64-linux-gnu-strip -o "$image/bin/$name" "$BUILD/$TRIPLE/debug/$name"
    done
    while read -r name program folder; do
        aarch64-linux-gnu-strip -o "$image/tests/$name" "$program"
        mkdir -p "$image$folder"
        echo "$name $folder"
    done <"$PROGRAMS" >"$image/tests/list"
    cp -r configs SECURITY.md "$image$RINGFAB_ROOT/"
    modules_in_order | while read -r file; do
        cp "$file" "$image/lib/"
        basename "$file"
    done >"$image/lib/order"
    echo 'root:x:0:0:root:/:/bin/sh' >"$image/etc/passwd"
    echo 'root:x:0:' >"$image/etc/group"
    echo '127.0.0.1 localhost' >"$image/etc/hosts"
    cp "$RINGFAB_ROOT/tests/kernel/arm64-init.sh" "$image/init"
    chmod +x "$image/init"
    (cd "$image" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$TMP/initrd"
    rm -rf "$image"
    # A file system that takes direct I/O, which the guest's memory does not.
    truncate -s 1G "$TMP/disk"
    mkfs.ext4 -q -F "$TMP/disk"
}

# The guest's disk and its file system, each after what it needs.
modules_in_order() {
    local module
    for module in virtio_pci virtio_blk crc32c_generic ext4; do
        modprobe -d "$TREE" -S "$(release)" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++'
}

# Emulated by translation, so that it runs on any machine. What the guest says is shown as it comes.
boot() {
    say "Booting $(basename "$TREE"/boot/vmlinuz-*)"
    : >"$TMP/console"
    timeout --foreground "${RINGFAB_ARM64_SECONDS:-900}" qemu-system-aarch64 -nodefaults -no-user-config -no-reboot \
        -display none -machine virt -cpu neoverse-n1 -accel tcg,thread=multi -smp 2 -m 3072 \
        -serial "file:$TMP/console" \
        -drive "file=$TMP/disk,format=raw,if=none,id=disk,cache=unsafe" -device virtio-blk-pci,drive=disk \
        -kernel "$TREE"/boot/vmlinuz-* -initrd "$TMP/initrd" \
        -append "console=ttyAMA0 quiet loglevel=4 panic=-1 nowatchdog rcupdate.rcu_cpu_stall_timeout=120 rdinit=/init" \
        </dev/null >"$TMP/machine.log" 2>&1 &
    local machine=$!
    PIDS+=("$machine")
    tail -n +1 -q -s 0.5 -f --pid="$machine" "$TMP/console" | sed -un 's/\r$//; /^\(==>\|error:\)/p'
    wait "$machine" || true
}

# The guest's last line says that everything passed.
report() {
    if ! tr -d '\r' <"$TMP/console" | grep -qx 'arm64: all passed'; then
        cp "$TMP/console" "$CACHE/console"
        tail -n 40 "$TMP/console" >&2
        fail "the tests on arm64; all that the machine said is in $CACHE/console"
    fi
    say "On arm64: all passed"
}

main "$@"

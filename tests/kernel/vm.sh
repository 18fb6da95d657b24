#!/usr/bin/env bash
# A virtual machine with a stock Debian kernel that has software RDMA and NVMe over Fabrics, over this machine's files.
#
#   vm.sh prepare              fetch the kernel, build the software iWARP driver, make the boot image; once, a minute or
#                              two
#   vm.sh prepare-nvme         fetch the nvme-cli of the Debian release that RINGFAB_VM_NVME names
#   vm.sh run FOLDER COMMAND   boot, run COMMAND as root in FOLDER, show its output, exit with its status
#
# FOLDER is the only place of this machine that the guest can write; what it writes elsewhere is gone afterwards. The
# guest's kernel log is left in FOLDER/dmesg. `prepare` exits with 77 where this machine cannot do it;
# with RINGFAB_REQUIRE_TOOLS, what could be installed and is not is a failure instead.
#
# Environment: RINGFAB_VM_KERNEL (backports; stable, the older kernel of this release; or forky, that of another, which
# comes without the software iWARP driver but with the programs for TLS), RINGFAB_VM_NVME (a Debian release whose
# nvme-cli the guest has instead of this machine's), RINGFAB_VM_CACHE (~/.cache/ringfab-vm), RINGFAB_VM_CPUS (2),
# RINGFAB_VM_MIB (3072), RINGFAB_VM_SECONDS (1500, then the machine is ended), RINGFAB_VM_ACCEL (tcg,thread=multi; kvm
# where it works).
set -euo pipefail

kernel=${RINGFAB_VM_KERNEL:-backports}
nvme_suite=${RINGFAB_VM_NVME:-}
caches=${RINGFAB_VM_CACHE:-${HOME:-/root}/.cache/ringfab-vm}
cache=$caches/$kernel
nvme_cache=$caches/nvme-cli-$nvme_suite
# What the boot image loads before it can see this machine's files; everything else comes from modprobe afterwards.
early_modules=(virtio_pci 9pnet_virtio 9p overlay)
# For TLS, the kernel asks a program of user space for the handshake, and older releases have none that does all that it
# asks for. What scenarios start of the kernel's own release, instead of what this machine has: packages and programs.
release_programs=(ktls-utils tlshd keyutils keyctl)
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/kernel/suite.sh
. "$here/suite.sh"

# This machine cannot do it, whoever asks.
unable() {
    echo "vm.sh: $*" >&2
    exit 77
}

# It could, but something is missing; where tools are required, that is a failure.
lacking() {
    echo "vm.sh: $*" >&2
    [[ -z ${RINGFAB_REQUIRE_TOOLS:-} ]] || exit 1
    exit 77
}

# --- prepare -------------------------------------------------------------------------------------------------------

prepare() {
    [[ $(uname -m) == x86_64 ]] || unable "the recipe is for x86-64, this is $(uname -m)"
    command -v apt-get >/dev/null || unable "the recipe needs Debian's apt-get"
    "$here/../scripts/install.sh" kernel || lacking "what it needs is not installed"
    local recipe
    recipe=$(sed '/^# --- run/,$d' "$0" | cat - "$here/suite.sh" | sha256sum)
    [[ ! -s $cache/release || $(cat "$cache/recipe") != "$recipe" ]] || return 0
    rm -f "$cache/release"
    mkdir -p "$cache"
    local release suite
    suite=$(suite_of_kernel)
    use_suites "$cache/apt" "$suite"
    release=$(newest_kernel) || lacking "no kernel in $suite"
    fetch "$release"
    if [[ $kernel == forky ]]; then
        unpack_programs "$cache" "$suite" "${release_programs[@]}"
    else
        build_siw "$release"
    fi
    depmod -b "$cache/root/usr" "$release"
    boot_image "$release"
    echo "$recipe" >"$cache/recipe"
    echo "$release" >"$cache/release"
}

# The release that the machine's kernel is of.
suite_of_kernel() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    case $kernel in
    backports) echo "$codename-backports" ;;
    stable) echo "$codename" ;;
    forky) echo forky ;;
    *) echo "vm.sh: no kernel '$kernel'" >&2 && exit 2 ;;
    esac
}

# nvme-cli of another release. What is in experimental needs the libraries of sid.
prepare_nvme() {
    local recipe suites=("$nvme_suite")
    recipe=$(sed '/^# --- run/,$d' "$0" | cat - "$here/suite.sh" | sha256sum)
    [[ ! -s $nvme_cache/recipe || $(cat "$nvme_cache/recipe") != "$recipe" ]] || return 0
    rm -f "$nvme_cache/recipe"
    [[ $nvme_suite != experimental ]] || suites+=(sid)
    use_suites "$nvme_cache/apt" "${suites[@]}"
    unpack_programs "$nvme_cache" "$nvme_suite" nvme-cli nvme
    [[ $nvme_suite != experimental ]] || without_io_uring "$nvme_cache/programs/nvme"
    echo "$recipe" >"$nvme_cache/recipe"
}

# nvme-cli 3.1 sends commands over io_uring where it can. There it loses the result of every command, and block devices
# refuse them (seen with Linux 6.12): without it, ioctl is used, as by all other versions.
without_io_uring() {
    local library=${1%/*}/without_io_uring.so
    printf '%s\n' 'void *io_uring_get_probe(void) { return 0; }' \
        'int io_uring_queue_init(unsigned entries, void *ring, unsigned flags) { return -38; }' |
        cc -shared -fPIC -nostdlib -w -o "$library" -x c -
    sed -i "s#--library-path#--preload $library --library-path#" "$1"
}

# The kernel that the metapackage stands for, for instance 6.12.43+deb12-amd64.
newest_kernel() {
    apt-cache "${apt_options[@]}" show linux-image-amd64 |
        sed -n 's/^Depends:.* linux-image-\([0-9][^ ,]*\).*/\1/p' | sort -V | tail -n 1 | grep .
}

# The kernel's packages: in newer releases it is in three of them.
fetch() {
    local release=$1 series packages=("linux-image-$1")
    series=$(cut -d. -f1,2 <<<"$release")
    local version=${release%-amd64} kbuild
    if [[ $kernel == forky ]]; then
        packages=(linux-{base,binary,modules}-"$release")
    else
        # Named after the series in one release, after the version in another.
        kbuild=$(apt-cache "${apt_options[@]}" show "linux-headers-$release" | grep -o 'linux-kbuild-[^ ,]*' |
            sort -u | tail -n 1)
        packages+=("linux-headers-$release" "linux-headers-$version-common" "$kbuild" "linux-source-$series")
    fi
    rm -rf "$cache/root"
    unpack "$cache/root" "${packages[@]}"
    # Where /lib is its own folder in a package, one place for all makes depmod and modprobe see the same modules.
    if [[ -d $cache/root/lib/modules ]]; then
        mkdir -p "$cache/root/usr/lib"
        mv "$cache/root/lib/modules" "$cache/root/usr/lib/"
    fi
}

# Debian's kernel comes without siw, the software iWARP driver; its source is there, and one module is quickly built.
# What the driver does about CRCs, MPA revisions and peer-to-peer mode is fixed when it is compiled; here it becomes
# parameters of the module with the same values, so that a test can have each of them. One fault is mended, since it
# ends the machine; all others are as they are.
build_siw() {
    local release=$1 series source headers
    series=$(cut -d. -f1,2 <<<"$release")
    source=linux-source-$series/drivers/infiniband/sw/siw
    headers=$cache/root/usr/src/linux-headers-$release
    tar -xJf "$cache/root/usr/src/linux-source-$series.tar.xz" -C "$cache" "$source"
    local name type
    while read -r name type; do
        sed -i "s/\(extern \|^\)\(const \)\?\(bool\|u_char\) $name\b/\1\3 $name/" "$cache/$source"/siw{.h,_main.c}
        echo "module_param($name, $type, 0644);" >>"$cache/$source/siw_main.c"
    done <<<$'mpa_crc_required bool\nmpa_crc_strict bool\npeer_to_peer bool\nmpa_version byte'
    # A header that comes in three pieces is received past its end, over the kernel's memory, since what is left of it
    # is taken to be as much as ever. Any host or target that sends many READs at once brings that about, sooner or
    # later.
    sed -i 's/min_t(int, hdrlen - MIN_DDP_HDR, srx->skb_new)/min_t(int, hdrlen - srx->fpdu_part_rcvd, srx->skb_new)/' \
        "$cache/$source/siw_qp_rx.c"
    # The headers name each other by the absolute paths of an installed package.
    grep -rlI '/usr/src/' "$headers/Makefile" "$headers/.kernelvariables" 2>/dev/null |
        xargs -r sed -i "s#\([ =]\)/usr/src/#\1$cache/root/usr/src/#g"
    make -s -C "$headers" M="$cache/$source" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules
    install -D "$cache/$source/siw.ko" "$cache/root/usr/lib/modules/$release/extra/siw.ko"
    rm -rf "$cache/linux-source-$series" "$cache/root/usr/src/linux-source-$series.tar.xz"
}

# The first file system of the guest: busybox, the early modules in the order of their needs, and an init.
boot_image() {
    local release=$1 image=$cache/image module path
    rm -rf "$image"
    mkdir -p "$image"/{bin,modules,proc,sys,dev,mnt}
    cp "$(command -v busybox)" "$image/bin/busybox"
    cp "$cache/root/boot/vmlinuz-$release" "$cache/vmlinuz" 2>/dev/null ||
        cp "$cache/root/usr/lib/modules/$release/vmlinuz" "$cache/vmlinuz"
    for module in "${early_modules[@]}"; do
        modprobe -d "$cache/root/usr" -S "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' | while read -r path; do
        name=$(basename "${path%.xz}")
        if [[ $path == *.xz ]]; then xz -dc "$path"; else cat "$path"; fi >"$image/modules/$name"
        echo "$name" >>"$image/modules/order"
    done
    write_init >"$image/init"
    chmod +x "$image/init"
    (cd "$image" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$cache/initrd"
    rm -rf "$image"
}

write_init() {
    cat <<'INIT'
#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
while read -r module; do busybox insmod "/modules/$module"; done </modules/order
cd /mnt
busybox mkdir host layer root out
share=trans=virtio,version=9p2000.L,msize=524288
busybox mount -t 9p -o "$share,ro,cache=loose" host host
busybox mount -t 9p -o "$share,cache=none" out out
busybox mount -t tmpfs layer layer
busybox mkdir layer/upper layer/work
(cd host && busybox cpio -o -H newc </mnt/out/often) 2>/dev/null | (cd layer/upper && busybox cpio -id) 2>/dev/null
busybox mount -t overlay -o lowerdir=host,upperdir=layer/upper,workdir=layer/work overlay root
for folder in proc sys dev; do busybox mount --move "/$folder" "root/$folder"; done
for folder in run tmp; do busybox mount -t tmpfs "$folder" "root/$folder"; done
busybox mkdir -p root/dev/shm root/dev/pts root/run/out root/run/modules
busybox ln -s /proc/self/fd root/dev/fd
busybox mount -t tmpfs shm root/dev/shm
busybox mount -t devpts pts root/dev/pts
busybox mount -t 9p -o "$share,ro,cache=loose" modules root/run/modules
busybox mkdir -p root/usr/lib/modules
busybox mount --bind root/run/modules root/usr/lib/modules
busybox mount --move out root/run/out
exec busybox chroot root /bin/sh /run/out/start
INIT
}

# --- run -----------------------------------------------------------------------------------------------------------

run() {
    local folder=$1 command=$2
    [[ -s $cache/release ]] || { echo "vm.sh: prepare first" >&2; exit 2; }
    mkdir -p "$folder"
    folder=$(realpath "$folder")
    rm -f "$folder"/{log,status,dmesg,console,start,often}
    write_start "$command" >"$folder/start"
    list_often >"$folder/often"
    : >"$folder/log"
    boot "$folder" &
    local machine=$!
    trap 'kill "$machine" 2>/dev/null || true' EXIT
    tail -n +1 -q -s 0.5 -f --pid="$machine" "$folder/log"
    wait "$machine" || true
    trap - EXIT
    if [[ ! -s $folder/status ]]; then
        tail -n 60 "$folder/console" >&2
        echo "vm.sh: the guest did not finish" >&2
        return 1
    fi
    return "$(cat "$folder/status")"
}

# What is started so often that the guest has it in its memory.
often=(bash sh env cat cp mv rm ln ls mkdir rmdir head tail dd cmp diff truncate stat touch timeout sleep tee sort uniq
    wc cut tr od sync dirname basename mktemp mkfifo sed grep awk tac xargs seq sha256sum nvme jq fio python3 ip tc rdma
    ss dmesg mount umount mountpoint blkdiscard blockdev fstrim mkfs.ext4 fsck.ext4 modprobe busybox
    nbd-client rping sysctl tcpdump)

# Files that the guest copies into its memory before anything else: programs that scenarios start again and again, with
# their libraries, but for the largest. Every file that is opened elsewhere takes several messages to this machine, and
# on a busy one each of them takes milliseconds.
list_often() {
    local name file programs=() libraries
    local files=(/{bin,sbin,lib,lib64} /etc/{ld.so.cache,passwd,group,nsswitch.conf,hosts}
        /etc/{libibverbs.d,nvme,iproute2}/* /usr/lib/x86_64-linux-gnu/libibverbs/*)
    for name in "${often[@]}"; do
        ! file=$(type -P "$name") || programs+=("$file")
    done
    mapfile -t libraries < <(ldd "${programs[@]}" 2>/dev/null | grep -oE '/[^ :]+ \(' | cut -d' ' -f1)
    if [[ -n $nvme_suite ]]; then
        programs+=("$nvme_cache/programs/nvme" "$(program_of "$nvme_cache/tree" nvme)")
        # shellcheck disable=SC2046  # several words
        mapfile -t -O "${#libraries[@]}" libraries < <($(loader_of "$nvme_cache/tree") --list \
            "$(program_of "$nvme_cache/tree" nvme)" | grep -oE '/[^ :]+ \(' | cut -d' ' -f1)
    fi
    # By the names of the folders that they are in; links with what they lead to.
    for file in "${files[@]}" "${programs[@]}" "${libraries[@]}"; do
        [[ -e $file && $(stat -Lc %s "$file") -lt $((4 << 20)) ]] || continue
        echo "$(realpath "${file%/*}/")/${file##*/}"
        [[ ! -L $file || -d $file ]] || realpath "$file"
    done | sed 's#^/*##' | sort -u
}

# What the guest runs after its init: the command, whose status and kernel log it leaves for us.
write_start() {
    cat <<START
export PATH=${nvme_suite:+$nvme_cache/programs:}$cache/programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
export PATH=\$PATH:/sbin:/bin HOME=/root LC_ALL=C
export RINGFAB_LOAD_SECONDS=${RINGFAB_LOAD_SECONDS:-}
hostname ringfab-guest
ip link set lo up
modprobe configfs && mount -t configfs configfs /sys/kernel/config
# Until somebody waits for it, the newer kernel has no random number for those who do not.
dd if=/dev/random of=/dev/null bs=1 count=1 status=none
cd /run/out
( $1 ) >/run/out/log 2>&1 </dev/null
echo \$? >/run/out/status
dmesg >/run/out/dmesg
sync
busybox poweroff -f
START
}

# The emulator's own translation by default: a machine that is itself virtual often has a KVM that fails half-way. Its
# processor is a plain one, since what newer ones do in one instruction the emulator does byte by byte or bit by bit:
# copies by `rep movs` take four times as long as a loop, a CRC by its instruction takes longer than with a table. The
# guest ends with its first panic.
boot() {
    local folder=$1 share=security_model=none,multidevs=remap
    local options="console=ttyS0 quiet loglevel=4 panic=-1 clearcpuid=rep_good mitigations=off nowatchdog norandmaps"
    options+=" tsc=reliable rcupdate.rcu_cpu_stall_timeout=120"
    # A host that shares the machine with its target sends it pages by reference, neighbours as one. When those are of
    # two huge pages, a check of the older kernel ends the process that receives them.
    [[ $kernel != stable ]] || options+=" hardened_usercopy=off"
    exec timeout --foreground "${RINGFAB_VM_SECONDS:-1500}" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot \
        -display none -machine q35 -accel "${RINGFAB_VM_ACCEL:-tcg,thread=multi}" -cpu qemu64 \
        -smp "${RINGFAB_VM_CPUS:-2}" -m "${RINGFAB_VM_MIB:-3072}" -serial "file:$folder/console" \
        -kernel "$cache/vmlinuz" -initrd "$cache/initrd" -append "$options" \
        -virtfs "local,path=/,mount_tag=host,readonly=on,$share" \
        -virtfs "local,path=$cache/root/usr/lib/modules,mount_tag=modules,readonly=on,$share" \
        -virtfs "local,path=$folder,mount_tag=out,$share" </dev/null >"$folder/machine" 2>&1
}

case ${1:-} in
    prepare) prepare ;;
    prepare-nvme) prepare_nvme ;;
    run) shift && run "${1:?a folder}" "${2:?a command}" ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac

#!/usr/bin/env bash
# The main job, end to end, on this machine alone: a disk image behind a target, attached over the software RNIC, over
# NVMe/TCP, and over NVMe/TCP with TLS by a host that authenticates.
#
# It makes an ext4 image, serves it, mounts it by `ringfab mount` over two paths, copies a real file tree in while one
# of them is lost, unmounts, checks the file system, attaches it again over NBD, compares every byte, and measures. All
# that it makes lies in one temporary folder and is gone afterwards, also when interrupted.
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target and ringfab, instead of building them
#   RINGFAB_PROFILE   release (the default) or debug
#   DEMO_MIB          how much of the file tree to copy, in MiB: 300, or 8 with fuse2fs
#   DEMO_SECONDS      how long each of the fifteen measurements lasts: 5
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

SCRATCH_MIB=256
SUMMARY=()

main() {
    if [ -z "${RINGFAB_BIN_DIR:-}" ]; then tests/scripts/install.sh build; fi
    tests/scripts/install.sh demo
    find_programs "${RINGFAB_PROFILE:-release}"
    begin
    check_machine
    choose_tree
    make_images
    say "Starting a target on the images, with keys for one host"
    TLS_HOST=nqn.2024-01.org.example:demo
    start_target "$TMP/disk.img" "$TMP/scratch.img"
    note "$URL"
    note "$URL_TCP"
    note "$URL_TLS (TLS, authentication)"
    copy_in
    check_file_system
    compare_over_nbd
    measure
    stop_cleanly "the target" "$TARGET"
    undo_all
    remember "left behind" "nothing"
    show_summary
}

# --- Before anything is made ---------------------------------------------------------------------------------

check_machine() {
    [ -c /dev/fuse ] ||
        fail "there is no /dev/fuse here; a container needs it passed in (docker run --device /dev/fuse)"
    if tests/scripts/can-loop.sh; then
        MOUNT_BY=loop
        COPY_MIB=${DEMO_MIB:-300}
    else
        # It writes each change of a directory at once, so a copy takes much longer.
        MOUNT_BY=fuse2fs
        COPY_MIB=${DEMO_MIB:-8}
        note "No loop devices for this user: the file system is mounted by fuse2fs instead, without any privilege."
    fi
    IMAGE_MIB=$((COPY_MIB * 2 + 512))
    local free_mib
    free_mib=$(df --output=avail -m "$TMP" | tail -n 1)
    # The tree is there four times at most: in the image, in its copy, and as files taken out of that copy.
    [ "$free_mib" -gt $((COPY_MIB * 4 + 512)) ] || fail "$TMP has only $free_mib MiB free"
}

# Picks a real file tree: the toolchain's documentation, else what every machine has.
choose_tree() {
    TREE="$(rustc --print sysroot 2>/dev/null || true)/share/doc/rust/html"
    [ -d "$TREE" ] || TREE=/usr/share
    choose_entries
    [ "${#ENTRIES[@]}" -gt 0 ] || fail "nothing in $TREE is smaller than $COPY_MIB MiB"
}

# Fills ENTRIES with whole entries of TREE, large ones first, as long as they fit.
choose_entries() {
    local size entry left=$((COPY_MIB * 1024))
    ENTRIES=()
    while IFS=$'\t' read -r size entry; do
        [ "$size" -lt "$left" ] || continue
        left=$((left - size))
        ENTRIES+=("$(basename "$entry")")
    done < <(du -sk "$TREE"/* 2>/dev/null | sort -rn)
}

make_images() {
    say "Making an ext4 image of $IMAGE_MIB MiB and an empty one of $SCRATCH_MIB MiB"
    truncate -s "${IMAGE_MIB}M" "$TMP/disk.img"
    truncate -s "${SCRATCH_MIB}M" "$TMP/scratch.img"
    # One inode for every 4 KiB: documentation is many small files.
    mkfs.ext4 -q -F -i 4096 -L ringfab -E "root_owner=$(id -u):$(id -g)" "$TMP/disk.img"
}

# --- The steps -----------------------------------------------------------------------------------------------

copy_in() {
    mount_it
    say "Copying $TREE into it (${#ENTRIES[@]} entries of at most $COPY_MIB MiB)"
    local begun mib files spent
    begun=$(now_ms)
    # Owners stay behind: a user without privilege cannot give files away.
    start cp cp -R -P --preserve=mode,timestamps,links -- "${ENTRIES[@]/#/$TREE/}" "$TMP/mnt/"
    local copy=$STARTED
    [ "$MOUNT_BY" != loop ] || lose_a_path "$copy"
    wait "$copy" || fail "the copy failed"
    sync -f "$TMP/mnt"
    spent=$(($(now_ms) - begun))
    mib=$(du -sm "$TMP/mnt" | cut -f 1)
    files=$(find "$TMP/mnt" -type f | wc -l)
    say "Unmounting and detaching"
    begun=$(now_ms)
    unmount_it
    remember "copied in by FUSE" "$files files, $mib MiB in $(seconds "$spent") ($(rate "$mib" "$spent"))"
    remember "unmounted, detached" "$(seconds $(($(now_ms) - begun)))"
}

# One of the two paths is taken away while the copy runs, and another one is given.
lose_a_path() {
    local copy=$1 listener=${URL#nvme+rdma://} added
    listener=${listener%%/*}
    wait_for "the copy" "$copy" 60 has_copied $(($(used_mib) + COPY_MIB / 4))
    say "Taking one of the two paths away"
    ringfab-target listener remove "$listener" --socket "$TMP/control.sock"
    wait_for "the loss of a path" "$TARGET" 60 path_is lost
    ringfab path list
    # A service is confined to the ports that it began with, and to those that the kernel chooses.
    added=$(ringfab-target listener add 127.0.0.1 --port 0 --socket "$TMP/control.sock")
    listener=$(grep -o '127.0.0.1:[0-9]*' <<<"$added")
    URL="nvme+rdma://$listener/$NQN"
    ringfab path add "$TMP/mnt" "$URL?provider=iwarp"
    ringfab path remove "$TMP/mnt" 1
    ringfab path list
    remember "a path was lost" "while it copied, which went on by the other one"
}

used_mib() { df --output=used -m "$TMP/mnt" | tail -n 1; }
has_copied() { [ "$(used_mib)" -ge "$1" ]; }
# Whether the path over RDMA is in a state.
path_is() { ringfab path list | grep -q " $1 .*nvme+rdma"; }

# By one command; without loop devices by the parts that need no privilege.
mount_it() {
    will_mount "$TMP/mnt"
    case "$MOUNT_BY" in
    loop)
        say "Mounting its file system by ringfab mount, over RDMA and over TCP"
        mkdir -m 0700 "$TMP/run"
        export RINGFAB_RUNTIME_DIRECTORY="$TMP/run"
        ringfab mount "$(namespace_url 1)" "$TMP/mnt" --path "$URL_TCP" -o nosuid,nodev >"$TMP/mount.log" 2>&1 ||
            fail "it is not mounted"
        ringfab list
        ;;
    fuse2fs)
        say "Attaching it by FUSE and mounting its file system by fuse2fs"
        start_fuse "$TMP/fuse"
        will_mount "$TMP/mnt"
        fuse2fs "$(fuse_file "$TMP/fuse" 1)" "$TMP/mnt" -o rw,fakeroot >"$TMP/fuse2fs.log" 2>&1
        ;;
    esac
}

unmount_it() {
    case "$MOUNT_BY" in
    loop)
        ringfab umount "$TMP/mnt" >"$TMP/umount.log" 2>&1 || fail "the file system is still in use"
        ;;
    fuse2fs)
        unmount_now "$TMP/mnt"
        stop_cleanly "ringfab fuse" "$FUSE"
        ! is_mounted "$TMP/fuse" || fail "ringfab fuse left its mount behind"
        ;;
    esac
    ! is_mounted "$TMP/mnt" || fail "the file system is still mounted"
}

check_file_system() {
    say "Checking the file system where it lies"
    e2fsck -f -n "$TMP/disk.img" >"$TMP/e2fsck.log" 2>&1 || fail "e2fsck found damage"
    remember "e2fsck" "clean"
}

compare_over_nbd() {
    say "Attaching it again, over NVMe/TCP and NBD, and comparing every byte"
    TRANSPORT=tcp
    start_nbd 1
    local begun spent
    begun=$(now_ms)
    nbdcopy "$NBD_URI" "$TMP/copy.img"
    spent=$(($(now_ms) - begun))
    stop_cleanly "ringfab nbd" "$NBD"
    cmp "$TMP/disk.img" "$TMP/copy.img" || fail "what NBD delivers is not what is on the disk"
    remember "read over NVMe/TCP, NBD" \
        "$IMAGE_MIB MiB in $(seconds "$spent") ($(rate "$IMAGE_MIB" "$spent")), identical"
    compare_tree
    rm -f "$TMP/copy.img"
}

# Takes the files out of the copy, which needs no mount, and compares each with its original.
compare_tree() {
    mkdir "$TMP/out"
    debugfs -R "rdump / $TMP/out" "$TMP/copy.img" >"$TMP/debugfs.log" 2>&1
    local entry
    for entry in "${ENTRIES[@]}"; do
        diff -r --no-dereference "$TREE/$entry" "$TMP/out/$entry" >"$TMP/diff.log" || fail "$entry differs"
    done
    remember "every file" "identical to its original"
    rm -rf "$TMP/out"
}

measure() {
    if ! fio --enghelp 2>/dev/null | grep -qw nbd; then
        not_run "this fio has no NBD engine, nothing was measured"
        return
    fi
    say "Measuring with fio over NBD, by each transport (about $((${DEMO_SECONDS:-5} * 15)) seconds)"
    local job rdma tcp tls
    for TRANSPORT in rdma tcp tls; do
        start_nbd 2
        # In the background, because ctrl-C would reach it too, and what fio does in its signal handler can lock it up
        # for ever.
        start fio env URI="$NBD_URI" RUNTIME="${DEMO_SECONDS:-5}" fio --minimal configs/fio/nbd-speed.fio
        wait "$STARTED" || fail "fio failed"
        stop_cleanly "ringfab nbd" "$NBD"
        read_fio "$TMP/fio.log" >"$TMP/fio.$TRANSPORT"
    done
    # A line for each transport, those of a job beside each other.
    while IFS='|' read -r job rdma tcp tls; do
        remember "$job" "rdma $rdma"
        remember "" "tcp  $tcp"
        remember "" "tls  $tls"
    done < <(paste -d "|" "$TMP/fio.rdma" <(cut -d "|" -f 2 "$TMP/fio.tcp") <(cut -d "|" -f 2 "$TMP/fio.tls"))
}

# fio's terse lines as `job|figures`. A job reads or writes: the one that moved bytes is shown.
# Fields of version 3: 6 KiB, 7 KiB/s, 8 IOPS, 18 to 37 percentiles, 40 mean latency; those of writes are 41 further.
read_fio() {
    awk -F ';' '
        function percentile(name, from,   i, parts) {
            for (i = from; i < from + 20; i++) {
                split($i, parts, "%=")
                if (parts[1] + 0 == name) return parts[2]
            }
            return 0
        }
        $1 == 3 {
            o = $6 > 0 ? 0 : 41
            printf "fio %s|%7.0f IOPS, %6.0f MiB/s, latency mean %.0f, median %d, 99%% %d µs\n",
                $3, $(8 + o), $(7 + o) / 1024, $(40 + o), percentile(50, 18 + o), percentile(99, 18 + o)
        }' "$1"
}

# --- The summary ---------------------------------------------------------------------------------------------

remember() { SUMMARY+=("$(printf '%-24s %s' "$1" "$2")"); }
seconds() { awk -v ms="$1" 'BEGIN { printf "%.1f s", ms / 1000 }'; }
rate() { awk -v mib="$1" -v ms="$2" 'BEGIN { printf "%.0f MiB/s", mib * 1000 / (ms > 0 ? ms : 1) }'; }

show_summary() {
    printf '\n'
    say "Done. A remote disk over the software RNIC, NVMe/TCP and TLS, both ends on this machine ($(nproc) cores):"
    printf '    %s\n' "${SUMMARY[@]}"
}

main

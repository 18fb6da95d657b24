#!/usr/bin/env bash
# The programs end to end, as their users meet them: fio with verify over NBD and FUSE, libnbd and QEMU as clients, a
# Linux file system whose paths change, and the demonstration, run through and interrupted.
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target and ringfab, instead of building them
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

main() {
    find_programs debug
    begin
    truncate -s 256M "$TMP/one.img"
    truncate -s 64M "$TMP/two.img"
    start_target "$TMP/one.img" "$TMP/two.img"
    nbd_serves_what_fio_verifies
    nbd_serves_libnbd_and_qemu
    fuse_serves_what_fio_verifies never
    if fuse_uring_on; then
        fuse_serves_what_fio_verifies always
        fuse_uring_as_before
    else
        not_run "FUSE over io_uring: this kernel does not have it, or does not let us switch it on"
    fi
    stop_cleanly "the target" "$TARGET"
    say "Sockets that take little at once"
    tests/scripts/narrow.sh || fail "both ends over narrow sockets"
    say "A file system whose paths change"
    tests/scripts/path-changes.sh || fail "a file system whose paths change"
    demo_leaves_nothing
    for step in "Copying" "comparing" "Measuring"; do interrupted_demo_leaves_nothing "$step"; done
    undo_all
    say "End to end: all passed"
}

nbd_serves_what_fio_verifies() {
    say "fio with verify over NBD"
    start_nbd 1
    URI="$NBD_URI" fio --minimal configs/fio/nbd-verify.fio >"$TMP/fio.log" 2>&1 || fail "fio over NBD"
    jobs_ran "$TMP/fio.log" 3
    stop_cleanly "ringfab nbd" "$NBD"
}

# fuse_serves_what_fio_verifies WHEN: with or without io_uring.
fuse_serves_what_fio_verifies() {
    say "fio with verify over FUSE, io_uring $1"
    start_fuse "$TMP/fuse" '' --io-uring "$1"
    FILE="$(fuse_file "$TMP/fuse" 1)" fio --minimal configs/fio/fuse-verify.fio >"$TMP/fio.log" 2>&1 ||
        fail "fio over FUSE"
    jobs_ran "$TMP/fio.log" 3
    [ "$(stat -c %s "$(fuse_file "$TMP/fuse" 2)")" -eq $((64 << 20)) ] || fail "the second namespace has the wrong size"
    stop_cleanly "ringfab fuse" "$FUSE"
    ! is_mounted "$TMP/fuse" || fail "ringfab fuse left its mount behind"
}

# fio reports success for a job file that it read as empty: every job must have read bytes back and have no error.
jobs_ran() {
    local ran
    ran=$(awk -F ';' '$1 == 3 && $5 == 0 && $6 > 0' "$1" | wc -l)
    [ "$ran" -eq "$2" ] || fail "fio ran $ran jobs, not $2"
}

nbd_serves_libnbd_and_qemu() {
    say "libnbd and QEMU over NBD"
    start_nbd 2
    nbd_has_the_promised_features
    head -c $((64 << 20)) /dev/urandom >"$TMP/random"
    nbdcopy --flush "$TMP/random" "$NBD_URI"
    cmp "$TMP/random" "$TMP/two.img" || fail "what nbdcopy wrote is not what is on the disk"
    qemu-img compare -f raw -F raw "$TMP/random" "$NBD_URI" >"$TMP/qemu.log" || fail "QEMU reads something else"
    head -c $((64 << 20)) /dev/urandom >"$TMP/random"
    qemu-img convert -n -f raw -O raw "$TMP/random" "$NBD_URI"
    cmp "$TMP/random" "$TMP/two.img" || fail "what QEMU wrote is not what is on the disk"
    stop_cleanly "ringfab nbd" "$NBD"
}

nbd_has_the_promised_features() {
    local can
    [ "$(nbdinfo --size "$NBD_URI")" -eq $((64 << 20)) ] || fail "NBD gives the wrong size"
    for can in fua flush trim zero multi-conn write "structured reply"; do
        nbdinfo --can "$can" "$NBD_URI" || fail "NBD: cannot $can"
    done
}

# --- The demonstration ---------------------------------------------------------------------------------------

# Starts a short demonstration that keeps everything below TMP/demo; its pid is in STARTED.
start_demo() {
    mkdir -p "$TMP/demo"
    start demo env TMPDIR="$TMP/demo" DEMO_MIB=48 DEMO_SECONDS=1 tests/scripts/demo.sh
}

demo_leaves_nothing() {
    say "The demonstration"
    start_demo
    local status=0
    wait "$STARTED" || status=$?
    [ "$status" -eq 0 ] || fail "the demonstration failed"
    grep -q 'left behind  *nothing' "$TMP/demo.log" || fail "the demonstration has no summary"
    sed -n '/Done/,$p' "$TMP/demo.log"
    nothing_is_left
}

# As ctrl-C in a terminal does: the signal goes to the whole process group.
interrupted_demo_leaves_nothing() {
    say "The demonstration, interrupted at: $1"
    start_demo
    wait_for "the demonstration" "$STARTED" 120 grep -q "$1" "$TMP/demo.log"
    # In the middle of the step, wherever that is.
    sleep 0.2
    kill -INT -- "-$STARTED"
    local status=0
    wait "$STARTED" || status=$?
    [ "$status" -ne 0 ] || fail "an interrupted demonstration reports success"
    nothing_is_left
}

nothing_is_left() {
    ! grep -F " $TMP/demo/" /proc/self/mounts || fail "the demonstration left mounts"
    [ -z "$(ls -A "$TMP/demo")" ] || fail "the demonstration left files: $(ls -A "$TMP/demo")"
    ! losetup --list 2>/dev/null | grep -F "$TMP/demo/" || fail "the demonstration left loop devices"
    ! grep -lzF "$TMP/demo/" /proc/[0-9]*/cmdline 2>/dev/null || fail "the demonstration left processes"
}

main

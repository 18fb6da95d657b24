#!/usr/bin/env bash
# A file system on a disk with two paths, mounted by `ringfab mount` and in use, while its paths change: their access
# states, the target's listeners, the host's paths. Every file is compared, and the file system checked.
#
#   path-changes.sh [CHANGES]   twenty by default, which is each of them on each path
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target and ringfab, instead of building them
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

FILES="$RINGFAB_ROOT/tests/kernel/guest/files.py"
# What is done to a path, and what undoes it.
KINDS=(access preference listener drained path)
# What a wait may take: a path that is back connects by its own delays.
SECONDS_MAX=60

main() {
    local wanted=${1:-20} changes=0 kind path
    if [ ! -c /dev/fuse ] || ! tests/scripts/can-loop.sh; then
        not_run "a file system whose paths change: this user has no FUSE or no loop devices"
        return
    fi
    find_programs debug
    begin
    truncate -s 512M "$TMP/disk.img"
    mkfs.ext4 -q -F "$TMP/disk.img"
    # Its listeners come back with the ports that the system chose at first, which are not among those to be kept.
    CONFIG_MORE=$'[confinement]\nnetwork = false'
    start_target "$TMP/disk.img"
    mkdir -m 0700 "$TMP/run"
    export RINGFAB_RUNTIME_DIRECTORY="$TMP/run"
    will_mount "$TMP/mnt"
    ringfab mount "$(url_of 1)" "$TMP/mnt" --path "$(url_of 2)" --reconnect-delay 50ms >"$TMP/mount.log" 2>&1 ||
        fail "it is not mounted"
    all_is_well
    use_files &
    LOAD=$!
    PIDS+=("$LOAD")
    while [ "$changes" -lt "$wanted" ]; do
        for kind in "${KINDS[@]}"; do
            for path in 1 2; do
                "lose_$kind" "$path"
                has_moved_on
                "heal_$kind" "$path"
                all_is_well
                changes=$((changes + 2))
            done
        done
    done
    touch "$TMP/enough"
    wait "$LOAD" || fail "the files are not as they should be"
    ringfab path list
    ringfab umount "$TMP/mnt" >"$TMP/umount.log" 2>&1 || fail "the file system is still in use"
    find_the_files_again
    stop_cleanly "the target" "$TARGET"
    e2fsck -f -n "$TMP/disk.img" >"$TMP/e2fsck.log" 2>&1 || fail "e2fsck found damage"
    undo_all
    say "$changes changes of paths under $ROUNDS rounds of a file system's load: nothing lost, clean"
}

# Path 1 is over RDMA, path 2 over TCP.
url_of() {
    case $1 in 1) echo "$URL?ns=1&provider=iwarp" ;; 2) echo "$URL_TCP?ns=1" ;; esac
}
listener_of() { url_of "$1" | sed -E 's#^.*//([^/]*)/.*#\1#'; }

control() { ringfab-target "$@" --socket "$TMP/control.sock" >>"$TMP/control.log" 2>&1 || fail "$*"; }
set_access() { control ana set 1 "$2" --listener "$(listener_of "$1")"; }
add_listener() {
    local listener transport=rdma
    listener=$(listener_of "$1")
    [ "$1" = 1 ] || transport=tcp
    control listener add 127.0.0.1 --port "${listener##*:}" --transport "$transport"
}

lose_access() {
    set_access "$1" inaccessible
    wait_for "the host to know of it" "$TARGET" "$SECONDS_MAX" path_is "$1" '[a-z]+ +inaccessible'
}
heal_access() { set_access "$1" optimized; }
lose_preference() {
    set_access "$1" non-optimized
    wait_for "the host to know of it" "$TARGET" "$SECONDS_MAX" path_is "$1" '[a-z]+ +non-optimized'
}
heal_preference() { heal_access "$1"; }
lose_listener() {
    control listener remove "$(listener_of "$1")"
    wait_for "the loss of a path" "$TARGET" "$SECONDS_MAX" path_is "$1" lost
}
heal_listener() { add_listener "$1"; }
lose_drained() {
    control listener drain "$(listener_of "$1")"
    wait_for "the loss of a path" "$TARGET" "$SECONDS_MAX" path_is "$1" lost
}
heal_drained() { add_listener "$1"; }
lose_path() { ringfab path remove "$TMP/mnt" "$(number_of "$1")" >>"$TMP/control.log" 2>&1 || fail "no path removed"; }
heal_path() { ringfab path add "$TMP/mnt" "$(url_of "$1")" >>"$TMP/control.log" 2>&1 || fail "no path added"; }

# path_is PATH WORDS: whether its state and its access are these, as a pattern.
path_is() {
    ringfab path list "$TMP/mnt" >"$TMP/paths.log"
    grep -qE "^[^ ]+ +[0-9.]+ +$2 .*//$(listener_of "$1")/" "$TMP/paths.log"
}
number_of() { ringfab path list "$TMP/mnt" | awk -v at="//$(listener_of "$1")/" 'index($0, at) { print $2 }'; }

all_is_well() {
    local path
    for path in 1 2; do
        wait_for "path $path" "$TARGET" "$SECONDS_MAX" path_is "$path" '(ready|recovering) +optimized'
    done
}

# What is written now has to go by the other path.
has_moved_on() {
    kill -0 "$LOAD" 2>/dev/null || fail "the load has ended"
    head -c 65536 /dev/urandom >"$TMP/mnt/moved"
    timeout "$SECONDS_MAX" sync "$TMP/mnt/moved" || fail "nothing is written any more"
}

# Round after round, each in a folder of its own, until there was enough. What there should be is in books.N.
use_files() {
    local round=0
    while [ ! -e "$TMP/enough" ]; do
        round=$((round + 1))
        mkdir "$TMP/mnt/$round"
        python3 -IS "$FILES" use "$TMP/mnt/$round" "$TMP/books.$round" 2 60 >>"$TMP/files.log" 2>&1
        # The latest ones stay, as many as the disk holds with ease.
        [ "$round" -le 10 ] || rm -r "${TMP:?}/mnt/$((round - 10))" "$TMP/books.$((round - 10))"
    done
}

# From the disk, past what the host remembers.
find_the_files_again() {
    local books
    ROUNDS=0
    ringfab mount "$(url_of 2)" "$TMP/mnt" -o ro >"$TMP/mount.log" 2>&1 || fail "it is not mounted again"
    for books in "$TMP"/books.*[0-9]; do
        [[ ${books##*/} =~ ^books\.[0-9]+$ ]] || continue
        ROUNDS=$((ROUNDS > ${books##*.} ? ROUNDS : ${books##*.}))
        python3 -IS "$FILES" check "$TMP/mnt/${books##*.}" "$books" >>"$TMP/files.log" 2>&1 ||
            fail "the files are not on the disk as they should be"
    done
    [ "$ROUNDS" -gt 0 ] || fail "no file was written"
    ringfab umount "$TMP/mnt" >"$TMP/umount.log" 2>&1 || fail "the file system is still in use"
}

main "$@"

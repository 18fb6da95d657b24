#!/usr/bin/env bash
# The image of configs/Containerfile: built from the packages on a base of this machine's own apt configuration, run
# without privilege, and used. Needs root; each container has a network of its own, with a loopback interface only.
#
# Nothing is left but the cached base in the build folder's container.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

BUILD="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}"
# A slim Debian, and what the package depends on: so the image is built without a network.
PACKAGES=libibverbs1,librdmacm1,systemd-standalone-sysusers,systemd-standalone-tmpfiles,passwd
NQN=nqn.2024-01.org.example:container
USER_ID=10001
IMAGE=localhost/ringfab-target
CONTAINER=ringfab-container-test

main() {
    local missing
    if missing=$(what_is_missing); then
        not_run "the container image: $missing"
        return
    fi
    compgen -G "$BUILD/packages/ringfab-target_*.deb" >/dev/null || fail "there are no packages: make packages"
    begin
    trap ended EXIT
    storage
    export PATH="$BUILD/release:$PATH"
    timed "a base" base
    timed "the image" image
    timed "without io_uring" refused
    timed "in use" used
    timed "ended and started again" again
    remove_all
    undo_all
    say "The container image: passed in $SECONDS s"
}

# timed WHAT COMMAND...: says how long it took.
timed() {
    local started
    started=$(now_ms)
    "${@:2}"
    say "$1: $(($(now_ms) - started)) ms"
}

# Succeeds when something is, and says what.
what_is_missing() {
    local program
    [ "$(id -u)" -eq 0 ] || { echo "it needs root"; return; }
    for program in mmdebstrap podman jq nsenter unshare; do
        have "$program" || { echo "$program is not installed"; return; }
    done
    return 1
}

# Images and containers of its own; runc also works where control groups are of both versions.
storage() {
    local runtime=()
    ! have runc || runtime=(--runtime runc)
    mkdir "$TMP/storage" "$TMP/run" "$TMP/home"
    PODMAN=(env "HOME=$TMP/home" podman --root "$TMP/storage" --runroot "$TMP/run" --tmpdir "$TMP/run/libpod"
        --cgroup-manager cgroupfs --events-backend none "${runtime[@]}")
}

run() { "${PODMAN[@]}" "$@"; }

# On every way out.
ended() {
    local status=$?
    set +e
    trap '' INT TERM HUP
    trap - EXIT
    [ "$status" -eq 0 ] || show_logs
    remove_all
    undo
    exit "$status"
}

remove_all() {
    [ -d "$TMP/storage" ] || return 0
    run rm --force --all --time 5 >/dev/null 2>&1 || true
    run rmi --force --all >/dev/null 2>&1 || true
    # What a driver has mounted.
    findmnt -rn -o TARGET | sort -r | while read -r mount; do
        case "$mount" in "$TMP"/*) umount "$mount" ;; esac
    done
}

base() {
    local suite sources=/etc/apt/sources.list.d/debian.sources
    [ -e "$sources" ] || sources=/etc/apt/sources.list
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    if [ "$(cat "$BUILD/container/made" 2>/dev/null)" != "$suite $PACKAGES" ]; then
        rm -rf "${BUILD:?}/container"
        mkdir -p "$BUILD/container"
        mmdebstrap --quiet --variant=minbase --include="$PACKAGES" "$suite" "$BUILD/container/base.tar" "$sources" \
            >"$TMP/tree.log" 2>&1 || fail "no base could be made"
        echo "$suite $PACKAGES" >"$BUILD/container/made"
    fi
    run import "$BUILD/container/base.tar" localhost/base >"$TMP/import.log" 2>&1 || fail "the base is not imported"
}

image() {
    # With the rights of this process only, which may be in a container itself, and without a network.
    unshare --net "${PODMAN[@]}" build --format docker --isolation chroot --network host \
        --build-arg BASE=localhost/base --build-arg "USER_ID=$USER_ID" -t "$IMAGE" -f configs/Containerfile \
        "$BUILD/packages" >"$TMP/build.log" 2>&1 || fail "the image is not built"
    note "$(run image inspect --format '{{.Size}}' "$IMAGE") bytes"
}

# The command line of docs/container.md, but for the network and for limits that this machine's podman may not raise.
options() {
    OPTIONS=(--name "$CONTAINER" --read-only --cap-drop=all --security-opt no-new-privileges
        --mount "type=tmpfs,destination=/run/ringfab,U=true"
        --volume "$TMP/config:/etc/ringfab:ro" --volume "$TMP/disks:/srv/ringfab" --volume "$TMP/state:/var/lib/ringfab"
        --stop-timeout 60
        --network none --health-interval disable --ulimit nofile=4096:4096 --ulimit nproc=4096:4096)
}

# The usual profile does not let io_uring through: the target says what to do, and ends.
refused() {
    local status=0
    mkdir -p "$TMP/config" "$TMP/disks" "$TMP/state"
    cat >"$TMP/config/target.toml" <<CONFIG
[target]
cores = 1
[[listener]]
address = "127.0.0.1"
transport = "tcp"
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
[[subsystem.namespace]]
path = "/srv/ringfab/disk.img"
CONFIG
    truncate -s 64M "$TMP/disks/disk.img"
    chown -R "$USER_ID:$USER_ID" "$TMP/disks" "$TMP/state"
    chmod 0755 "$TMP" "$TMP/config"
    options
    timeout 60 "${PODMAN[@]}" run --rm "${OPTIONS[@]}" "$IMAGE" >"$TMP/refused.log" 2>&1 || status=$?
    [ "$status" -ne 0 ] || fail "it serves without io_uring"
    grep -q 'io_uring' "$TMP/refused.log" || fail "it does not name io_uring"
    tail -n 1 "$TMP/refused.log"
}

used() {
    local pid
    local calls='"io_uring_setup", "io_uring_enter", "io_uring_register"'
    jq ".syscalls += [{\"names\": [$calls], \"action\": \"SCMP_ACT_ALLOW\"}]" \
        /usr/share/containers/seccomp.json >"$TMP/seccomp.json"
    run run --detach "${OPTIONS[@]}" --security-opt "seccomp=$TMP/seccomp.json" "$IMAGE" >"$TMP/started.log" 2>&1 ||
        fail "it does not start"
    is_healthy
    pid=$(run inspect --format '{{.State.Pid}}' "$CONTAINER")
    grep -q "^Uid:	$USER_ID	$USER_ID	$USER_ID	$USER_ID$" "/proc/$pid/status" || fail "it is another user"
    for name in CapPrm CapEff CapBnd; do
        grep -q "^$name:	0*$" "/proc/$pid/status" || fail "it has capabilities"
    done
    grep -q '^Seccomp:	2$' "/proc/$pid/status" || fail "system calls are not filtered"
    ! run exec "$CONTAINER" sh -c ': >/etc/file || : >/file' 2>"$TMP/exec.log" || fail "its root can be written"
    URL="nvme+tcp://127.0.0.1/$NQN?ns=1"
    inside "$pid" ringfab bench "$URL" --rw randrw --bs 4k --depth 16 --time 3s --warmup 0s --offset 32MiB \
        --size 16MiB --verify --destroy-data 1 >"$TMP/bench.log" 2>&1 || fail "a verified load failed"
    head -c 1M /dev/urandom >"$TMP/data"
    inside "$pid" ringfab write "$URL" -i "$TMP/data" --destroy-data 1 >"$TMP/write.log"
    cmp -n 1048576 "$TMP/data" "$TMP/disks/disk.img"
}

# The container's network is its own: its loopback is used from within.
inside() { nsenter --net --target "$1" "${@:2}"; }

is_healthy() {
    local deadline=$(($(now_ms) + 60000))
    until run healthcheck run "$CONTAINER" >"$TMP/health.log" 2>&1; do
        if [ "$(now_ms)" -ge "$deadline" ]; then
            run logs "$CONTAINER" >"$TMP/container.log" 2>&1
            fail "it is not healthy after a minute"
        fi
        sleep 0.1
    done
}

again() {
    local identity pid
    identity=$(cat "$TMP/state/identity")
    run stop --time 30 "$CONTAINER" >"$TMP/stop.log" 2>&1
    [ "$(run inspect --format '{{.State.ExitCode}}' "$CONTAINER")" = 0 ] || fail "it did not end in order"
    run logs "$CONTAINER" >"$TMP/container.log" 2>&1
    grep -q stopped "$TMP/container.log" || fail "it did not stop by itself"
    run start "$CONTAINER" >"$TMP/start.log" 2>&1
    is_healthy
    pid=$(run inspect --format '{{.State.Pid}}' "$CONTAINER")
    inside "$pid" ringfab read "$URL" --length 1MiB 2>"$TMP/read.log" | cmp - "$TMP/data"
    [ "$(cat "$TMP/state/identity")" = "$identity" ] || fail "hosts would see another disk"
}

main "$@"

#!/usr/bin/env bash
# Makes the pictures of docs/pictures: a target under load, as `ringfab-target status`, `ringfab-target top`, the page
# of [metrics] and the dashboard show it. Three hosts work for a minute and a half, two transports, four namespaces: one
# is read-only, one is not ready.
#
#   pictures.sh [FOLDER]       the default is docs/pictures
#   RINGFAB_BIN_DIR            a folder with ringfab-target and ringfab, instead of building them
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Those of Debian's packages.
PYTHON=/usr/bin/python3
DISKS=nqn.2026-11.com.example:disks
# How long the load lasts. The backup comes after a while, and has left before the end.
LOAD_S=90
BACKUP_AFTER_S=25
BACKUP_S=40
SCRAPE_S=2
# Columns and rows of the terminal.
COLUMNS_SHOWN=160
ROWS_SHOWN=10

main() {
    local folder=${1:-docs/pictures}
    find_programs release
    begin
    mkdir -p "$folder"
    start_target_with_metrics
    start_prometheus
    local begun
    begun=$(date +%s)
    say "Three hosts work for $LOAD_S seconds"
    bench db-1 "$TCP/$DISKS?ns=1" --rw randrw --bs 8k --queues 2 --depth 4 --time "${LOAD_S}s" --destroy-data 1
    bench web-1 "$TCP/$DISKS?ns=2" --rw randread --bs 4k --queues 1 --depth 1 --time "${LOAD_S}s"
    # The pictures show a host that came later than the others.
    sleep "$BACKUP_AFTER_S"
    bench backup "$RDMA/$DISKS?ns=3&provider=iwarp" --rw read --bs 128k --queues 1 --depth 2 --time "${BACKUP_S}s"
    wait_for "the backup in status" "$STARTED" 10 is_shown "$HOST_PREFIX:backup"
    # Rates are of the last seconds, so it has to have worked for some.
    sleep 10
    draw_terminal status "$folder/status.svg" 32
    draw_terminal top "$folder/top.svg" "$ROWS_SHOWN"
    draw_page "$folder/page.png"
    local pid
    for pid in "${BENCHES[@]}"; do wait "$pid" || fail "a host failed: $(cat "$TMP"/bench-*.log)"; done
    say "Drawing the dashboard from Prometheus' answers"
    "$PYTHON" tests/scripts/pictures.py dashboard configs/grafana-dashboard.json "http://127.0.0.1:$PROMETHEUS_PORT" \
        "$begun" "$(date +%s)" "$SCRAPE_S" "$folder/dashboard.png"
    stop_cleanly "the target" "$TARGET"
    ls -l "$folder"
}

HOST_PREFIX=nqn.2026-11.com.example
BENCHES=()

# bench NAME URL OPTION...: a host that works.
bench() {
    start "bench-$1" ringfab bench "$2" --hostnqn "$HOST_PREFIX:$1" --warmup 0s "${@:3}"
    BENCHES+=("$STARTED")
}

# A port that nobody uses now.
free_port() {
    "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_target_with_metrics() {
    local ready="$TMP/target.ready"
    METRICS_PORT=$(free_port)
    truncate -s 256M "$TMP/orders.img"
    # Data, where a hole would be nothing to read.
    head -c 64M /dev/zero | tr '\0' 'r' >"$TMP/archive.img"
    cat >"$TMP/target.toml" <<CONFIG
[target]
state_dir = "$TMP/state"
cores = 1

[control]
socket = "$TMP/control.sock"

[metrics]
address = "127.0.0.1:$METRICS_PORT"

[[listener]]
address = "127.0.0.1"
port = 0

[[listener]]
address = "127.0.0.1"
port = 0
transport = "tcp"

[[subsystem]]
nqn = "$DISKS"
allowed_hosts = ["$HOST_PREFIX:db-1", "$HOST_PREFIX:web-1", "$HOST_PREFIX:backup"]

[[subsystem.namespace]]
path = "$TMP/orders.img"
direct = false
allow_page_cache = true

[[subsystem.namespace]]
memory = "64MiB"

[[subsystem.namespace]]
path = "$TMP/archive.img"
read_only = true
direct = false
allow_page_cache = true

[[subsystem.namespace]]
path = "$TMP/missing.img"
CONFIG
    start target ringfab-target serve --config "$TMP/target.toml" --ready-file "$ready"
    TARGET=$STARTED
    wait_for "the target" "$TARGET" 15 test -s "$ready"
    RDMA="nvme+rdma://$(sed -n 1p "$ready")"
    TCP="nvme+tcp://$(sed -n 2p "$ready")"
}

start_prometheus() {
    PROMETHEUS_PORT=$(free_port)
    cat >"$TMP/prometheus.yml" <<CONFIG
global: {scrape_interval: ${SCRAPE_S}s, scrape_timeout: ${SCRAPE_S}s}
scrape_configs:
  - {job_name: ringfab, static_configs: [{targets: ["127.0.0.1:$METRICS_PORT"]}]}
CONFIG
    start prometheus prometheus --config.file="$TMP/prometheus.yml" --storage.tsdb.path="$TMP/prometheus" \
        --web.listen-address="127.0.0.1:$PROMETHEUS_PORT" --log.level=error
}

is_shown() { ringfab-target status --socket "$TMP/control.sock" | grep -q "$1"; }

# draw_terminal COMMAND FILE ROWS: a command of ringfab-target in a terminal of a fixed size.
draw_terminal() {
    say "Drawing $1"
    local terminal=(tmux -u -L "$(basename "$TMP")" -f /dev/null) deadline
    # The terminal stays for as long as it may take to draw it.
    local shown="printf '$ ringfab-target %s\n' $1; ringfab-target $1 --socket '$TMP/control.sock'; sleep 60"
    "${terminal[@]}" new-session -d -x "$COLUMNS_SHOWN" -y "$3" "$shown"
    deadline=$(($(now_ms) + 10000))
    until "${terminal[@]}" capture-pane -p | grep -q ":backup"; do
        [ "$(now_ms)" -lt "$deadline" ] || fail "$1 does not show the hosts"
        sleep 0.1
    done
    # `top` has no rates before its second look.
    sleep 3
    "${terminal[@]}" capture-pane -e -p >"$TMP/$1.ansi"
    "${terminal[@]}" kill-server
    "$PYTHON" tests/scripts/pictures.py terminal "ringfab-target $1" "$COLUMNS_SHOWN" "$2" <"$TMP/$1.ansi"
}

draw_page() {
    say "Drawing the page"
    local url="http://127.0.0.1:$METRICS_PORT/"
    chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking \
        --no-first-run --hide-scrollbars --user-data-dir="$TMP/browser" --window-size=1500,1160 \
        --screenshot="$TMP/page.png" "$url" >"$TMP/chromium.log" 2>&1 || fail "the browser did not draw"
    "$PYTHON" tests/scripts/pictures.py page "$TMP/page.png"
    cp "$TMP/page.png" "$1"
}

main "$@"

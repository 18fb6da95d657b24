# shellcheck shell=bash
# What the scenarios share. They run as root in the tree that has booted. Sourced, never run.
set -Eeuo pipefail

# shellcheck disable=SC2034  # the scenarios use them
unit=ringfab-target
# shellcheck disable=SC2034
config=/etc/ringfab/target.toml
# shellcheck disable=SC2034
disk=/srv/ringfab/disk.img
# Of the configuration that the package comes with.
url=nvme+tcp://127.0.0.1/nqn.2024-01.org.example:disk

trap 'failed $LINENO' ERR
failed() {
    [ "$BASH_SUBSHELL" -eq 0 ] || return 0
    trap - ERR
    echo "line $1 of $0"
    systemctl status --no-pager $unit
    journalctl --no-pager -n 100
}

STEP=''
now_ms() { echo $((${EPOCHREALTIME//[!0-9]/} / 1000)); }
# Says what comes, and how long what was before took.
step() {
    local now
    now=$(now_ms)
    [ -z "$STEP" ] || echo "step: $((now - STARTED)) ms: $STEP"
    STEP=$1 STARTED=$now
    echo "--- $1"
}
ends() { step end; }
note() { echo "step:     $1"; }

not() { if "$@"; then echo "it should fail: $*" && return 1; fi; }
is() { [ "$2" = "$3" ] || { echo "$1 is $2, not $3" && return 1; }; }
has() { grep -q -- "$2" <<<"$1" || { echo "there is no '$2' in: $1" && return 1; }; }
lacks() { ! grep -q -- "$2" <<<"$1" || { echo "there is '$2' in: $1" && return 1; }; }
state() { systemctl show -P "$1" $unit; }
journal() { journalctl -q --no-pager -o cat -u $unit; }
journal_of() { journalctl -q --no-pager -o cat "_SYSTEMD_INVOCATION_ID=$1"; }
# The name of this host, as a host that is refused is told.
refused_as() { sed -n 's/.*the target refuses HOSTNQN, which is \([^; ]*\);.*/\1/p' <<<"$1"; }
# The command that the log has for a host that is refused.
lets_in() { journal | sed -n 's/.*not among the allowed_hosts; .\(ringfab-target host allow .*\). lets it in.*/\1/p'; }
is_told() { [ -n "$(lets_in)" ]; }
# As installed, the target lets nobody in; what it then says itself lets this host in.
allow_this_host() {
    local said
    has "$(journal)" 'no host may use it yet; .ringfab-target host allow HOSTNQN.'
    said=$(ringfab list "$url" 2>&1) && echo "everybody may use it" && return 1
    until_it is_told
    has "$(lets_in)" "$(refused_as "$said")"
    said=$(bash -euc "$(lets_in | tail -n 1)" 2>&1)
    has "$said" "is not in $config, so the next reload or restart takes it back"
    ringfab-target config --save
    ringfab list "$url"
}
# Waits for a command to succeed. A busy machine may need many seconds, so the bound is for what never comes.
until_it() {
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "never: $*" && return 1; }
        sleep 0.1
    done
}

# --- Load, with a record of what was acknowledged ------------------------------------------------------------------

sum() { sha256sum | cut -d ' ' -f 1; }

# Writes block after block of a megabyte, each with random data and a flush; a line in /acknowledged for each that was
# acknowledged. Until /stop is there.
write_and_note() {
    local number=0 place
    rm -f /stop
    while [ ! -e /stop ]; do
        place=$((number % 100))
        head -c 1M /dev/urandom >/block
        # A target that is starting takes no connections. Nothing is noted until a try succeeds.
        until ringfab write "$url?ns=1" --offset ${place}MiB -i /block --destroy-data 1 >/dev/null; do sleep 0.05; done
        echo "$place $(sum </block)" >>/acknowledged
        number=$((number + 1))
    done
}

# In-flight commands of all kinds, verified by the client itself, over any number of restarts; beside the blocks above.
start_load() {
    : >/acknowledged
    ringfab bench "$url?ns=1" --rw randrw --bs 4k --depth 16 --time "${1}s" --warmup 0s --offset 128MiB --size 64MiB \
        --verify --destroy-data 1 >/bench.log 2>&1 &
    LOAD=$!
    # Before it is attached it does not wait for a target that is away.
    until_it has_load
    write_and_note &
    WRITER=$!
}

# Whether a host that is connected has written: what comes before the cores in the status, whose keys are in order.
has_load() { ringfab-target status --json | sed 's/"cores":.*//' | grep -q '"write":[1-9]'; }

# Waits until some more blocks were acknowledged.
load_goes_on() {
    local lines
    lines=$(wc -l </acknowledged)
    until_it has_lines /acknowledged $((lines + 2))
}

# has_lines FILE NUMBER
has_lines() { [ "$(wc -l <"$1")" -ge "$2" ]; }

# Ends the load and compares each block with the last write of it that was acknowledged.
end_load() {
    local place wanted
    wait "$LOAD" || { cat /bench.log && return 1; }
    touch /stop
    until_it not kill -0 "$WRITER"
    wait "$WRITER"
    [ "$(wc -l </acknowledged)" -ge 3 ] || { echo "only $(wc -l </acknowledged) writes" && return 1; }
    # The load may have ended while a restart was under way.
    until_it ringfab read "$url?ns=1" --length 100MiB -o /all >/dev/null
    tac /acknowledged | sort -s -n -u -k 1,1 >/last
    while read -r place wanted; do
        is "block $place" "$(dd if=/all bs=1M skip="$place" count=1 status=none | sum)" "$wanted"
    done </last
    echo "$(wc -l </acknowledged) acknowledged writes are there"
    rm -f /all
}

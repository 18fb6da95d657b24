#!/usr/bin/env bash
# What `ringfab` and nvme-cli say of the same target. Each host has a controller of its own, so what belongs to one
# controller alone, as its identifier and its counters, is not compared.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "how data move makes no difference to this"
start_target
connect -i 2
own=$(own_url "$nqn")

# same WHAT LEAST WITHOUT NAMES: /tmp/ours and /tmp/theirs, see same.py.
same() {
    echo "--- $1"
    python3 -IS "$out/same.py" /tmp/ours /tmp/theirs "${@:2}"
}

ringfab --json id-ctrl "$own" >/tmp/ours
nvme id-ctrl "$device" -o json >/tmp/theirs
same "Identify Controller" 35 cntlid

for nsid in 1 2; do
    ringfab --json id-ns "$(own_url "$nqn" "ns=$nsid")" >/tmp/ours
    nvme id-ns "$device" -n $nsid -o json >/tmp/theirs
    same "Identify Namespace of $nsid" 25
done

ringfab --json smart "$own" >/tmp/ours
nvme smart-log "$device" -o json >/tmp/theirs
names=composite_temperature_k=temperature,available_spare_percent=avail_spare
names+=,available_spare_threshold_percent=spare_thresh,percentage_used=percent_used
same "SMART / Health" 8 \
    data_units_read,data_units_written,host_reads,host_writes,controller_busy_time_min,error_log_entries "$names"

echo "--- Commands Supported and Effects"
ringfab --json effects-log "$own" >/tmp/ours
nvme get-log "$device" --log-id=5 --log-len=4096 --raw-binary >/tmp/theirs
for queue in admin io; do
    jq -r ".${queue}[] | \"\(.opcode) \(.effects.value)\"" /tmp/ours >/tmp/ours.list
    skip=$([[ $queue == admin ]] && echo 0 || echo 1024)
    od -An -v -tu4 -w4 -j "$skip" -N 1024 /tmp/theirs | awk '$1 % 2 { print NR - 1, $1 }' >/tmp/theirs.list
    diff -u /tmp/theirs.list /tmp/ours.list
    (($(wc -l </tmp/ours.list) >= 5)) || fail "few commands"
done

echo "--- Changed Namespace List"
expect "namespaces that have changed" "$(ringfab --json changed-ns-list-log "$own" | jq -c .namespaces)" "[]"
nvme get-log "$device" --log-id=4 --log-len=4096 --raw-binary >/tmp/theirs
expect "the same" "$(od -An -v -tu4 -w4 -N 4 /tmp/theirs | tr -d ' ')" 0

echo "--- Error Information"
expect "errors" "$(ringfab --json error-log "$own" | jq -c .errors)" "[]"

# feature ID SELECT: both values.
feature() {
    local ours theirs
    ours=$(ringfab --json get-feature "$own" -f "$1" -s "$2" | jq .features[0].value)
    theirs=$(nvme get-feature "$device" -f "$1" -s "$2")
    [[ $theirs =~ :0x([0-9a-fA-F]+)$ || $theirs =~ value:\ *(0x)?([0-9a-fA-F]+) ]] || fail "no value in: $theirs"
    theirs=${BASH_REMATCH[2]:-${BASH_REMATCH[1]}}
    expect "feature $1, select $2" "$ours" "$((16#$theirs))"
}

echo "--- features: defaults"
for id in 0x01 0x02 0x04 0x06 0x0a 0x0b; do feature $id 1; done
echo "--- what is now, where no host has set it"
for id in 0x01 0x02 0x04 0x06 0x0a; do feature $id 0; done

echo "--- names and sizes, as the kernel has them"
ringfab --json list "$own" >/tmp/ours
expect "subsystem" "$(jq -r .controller.subsystem /tmp/ours)" "$nqn"
for nsid in 1 2; do
    find_namespace "$nqn" $nsid
    sys=/sys/class/block/${found##*/}
    one=$(jq ".namespaces[] | select(.nsid == $nsid)" /tmp/ours)
    first_line "$sys/nguid"
    has nguid "${REPLY//-/}" "$one"
    first_line "$sys/size"
    has bytes "$((REPLY * 512))" "$one"
    first_line "$sys/queue/logical_block_size"
    has block_bytes "$REPLY" "$one"
done

echo "--- discovery"
ringfab --json discover "$(own_url '')" | jq -Sc '[.entries[] | [.subsystem, .service, .port_id]] | sort' >/tmp/ours
nvme discover -t "$fabric" -a "$ours" -s 4420 -o json |
    jq -Sc '[.records[] | [.subnqn, .trsvcid, .portid]] | sort' >/tmp/theirs
diff -u /tmp/theirs /tmp/ours
is_live

#!/usr/bin/env bash
# Every admin command that nvme-cli has for us, against what the configuration says.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/table.sh
. "${0%/*}/table.sh"

only tcp "how data move makes no difference to this"
start_target
may_warn "resetting controller"
connect -i 2

identify() {
    works "serial, model and NQN are those of the configuration; 1 MiB at a time" nvme id-ctrl "$device" -o json
    says sn KERNEL-0001
    says mn "Ringfab under test"
    says subnqn "$nqn"
    says mdts 8
    works "size in blocks; 512-byte blocks in the block layer" nvme id-ns "$ns1" -o json
    says nsze $((256 * 2048))
    expect "bytes of a block" "$(blockdev --getss "$ns1")" 512
    has nsze $((64 * 256)) "$(nvme id-ns "$ns2" -o json)"
    expect "bytes of a block" "$(blockdev --getss "$ns2")" 4096
    works "an NGUID that is not zero, the same as in sysfs" nvme ns-descs "$ns1" -o json
    said nguid
    local nguid=$REPLY
    [[ $nguid =~ ^[0-9a-f]{32}$ && $nguid != 00000000000000000000000000000000 ]] || fail "NGUID $nguid"
    first_line "/sys/class/block/${ns1##*/}/nguid"
    expect "NGUID in sysfs" "${REPLY//-/}" "$nguid"
    works "namespaces 1 and 2" nvme list-ns "$device" -o json
    expect "active namespaces" "$(grep -oE '"nsid" *: *[0-9]+' /tmp/said | tr -cd '0-9\n' | xargs)" "1 2"
    refused "Invalid Namespace or Format" "broadcast: a host cannot create namespaces" \
        nvme id-ns "$device" -n 0xffffffff
    works "readable" nvme id-iocs "$device"
    works "readable" nvme cmdset-ind-id-ns "$ns1" --namespace-id=1
    works "readable" nvme nvm-id-ctrl "$device"
    works "readable" nvme nvm-id-ns "$ns1"
    works "readable" nvme list-ctrl "$device"
    works "the path is live" nvme list-subsys
    grep -q "$controller $fabric .*live" /tmp/said
    local absent
    for absent in id-nvmset id-uuid id-domain list-endgrp primary-ctrl-caps list-secondary id-ns-granularity; do
        refused "Invalid Field in Command" "there is none" nvme $absent "$device"
    done
}

logs() {
    works "pages 0 to 5, 12, 18, 19, 30 and 31" nvme get-log "$device" --log-id=0 --log-len=1024 --raw-binary
    local listed
    listed=$(od -An -v -tu4 -w4 /tmp/said | awk '$1 % 2 { printf "%s%d", sep, NR - 1; sep = " " }')
    expect "the supported log pages" "$listed" "0 1 2 3 4 5 12 18 19 30 31"
    for page in $listed; do
        works "read" nvme get-log "$device" --log-id="$page" --log-len=512
    done
    for page in 6 7 8 9 10 11 13 14 15 16 17 112 128 129 192 255; do
        refused "Invalid Log Page" "not listed" nvme get-log "$device" --log-id=$page --log-len=512
    done
    works "readable" nvme supported-log-pages "$device"
    works "one group, which is optimized" nvme ana-log "$device" -o json
    said state
    expect "its access state" "$REPLY" optimized
    works "no critical warning; reads are counted" nvme smart-log "$device" -o json
    says critical_warning 0
    said host_read_commands
    local before=$REPLY
    dd if="$ns1" of=/dev/null bs=4k count=8 iflag=direct status=none
    value_of host_read_commands "$(nvme smart-log "$device" -o json)"
    ((REPLY >= before + 8)) || fail "reads are not counted"
    refused "Invalid Field in Command" "health is not kept by namespace" nvme smart-log "$device" -n 1
    works "readable" nvme fw-log "$device"
    works "readable" nvme changed-ns-list-log "$device"
    works "readable" nvme effects-log "$device" -H
    works "readable" nvme fid-support-effects-log "$device"
    works "readable" nvme mi-cmd-support-effects-log "$device"
}

errors() {
    works "an entry more for each command that failed" nvme error-log "$device" -e 1 -o json
    said error_count
    local before=$REPLY
    refused "Invalid Command Opcode" "reserved" nvme admin-passthru "$device" --opcode=0x7c
    value_of error_count "$(nvme error-log "$device" -e 1 -o json)"
    ((REPLY > before)) || fail "no new entry"
    nvme error-log "$device" -e 4
}

features() {
    local feature
    for feature in 0x01 0x02 0x04 0x06 0x07 0x0a 0x0b 0x0e 0x0f 0x19; do
        works "current, default and capabilities" nvme get-feature "$device" -f $feature
        for select in 1 3; do nvme get-feature "$device" -f $feature -s $select; done
    done
    works "of one namespace" nvme get-feature "$ns1" -f 0x05
    works "the identifier of our Connect, 128 bits" \
        nvme admin-passthru "$device" --opcode=0x0a --cdw10=0x81 --cdw11=1 --data-len=16 --read --raw-binary
    expect "the host's identifier" "$(od -An -v -tx1 /tmp/said | tr -d ' \n')" \
        "$(tr -d - <"/sys/class/nvme/$controller/hostid")"
    for feature in 0x03 0x08 0x09 0x0c 0x0d 0x10 0x11 0x12 0x13 0x15 0x16 0x17 0x18 0x80 0x82 0x84; do
        refused "Invalid Field in Command" "there is none" nvme get-feature "$device" -f $feature
    done
    works "readable" nvme get-feature "$device" -f 7 -H
    works "namespace notices; read back" nvme set-feature "$device" -f 0x0b --value=0x100
    nvme get-feature "$device" -f 0x0b | grep -qi 'value:0x0*100$'
    works "write cache off, and on again" nvme set-feature "$device" -f 0x06 --value=0
    nvme get-feature "$device" -f 0x06 | grep -qi 'value:0x*0*$'
    nvme set-feature "$device" -f 0x06 --value=1
    refused "Command Sequence Error" "queues are connected already" nvme set-feature "$device" -f 0x07 --value=0x10001
}

registers() {
    works "CAP" nvme get-property "$device" --offset=0x00
    works "VS: 2.0" nvme get-property "$device" --offset=0x08
    grep -iE 'value: *(0x)?0*20000$' /tmp/said
    works "CC: enabled, entries of 64 and 16 bytes" nvme get-property "$device" --offset=0x14
    grep -iE 'value: *(0x)?[0-9a-f]*4600[0-9a-f]1$' /tmp/said
    works "CSTS: ready" nvme get-property "$device" --offset=0x1c
    grep -iE 'value: *(0x)?0*1$' /tmp/said
    refused "Invalid Field in Command" "INTMS, which a fabric does not have" nvme get-property "$device" --offset=0x0c
    works "live again" nvme reset "$device"
    wait_for 20 is_live
    works "both namespaces stay" nvme ns-rescan "$device"
    wait_for 20 is_block "$nqn" 1
}

# What a target of this kind does not have, and a host may ask for all the same.
absent() {
    refused "Invalid Command Opcode" "Namespace Management" nvme admin-passthru "$device" --opcode=0x0d
    refused "Invalid Command Opcode" "there is none" nvme format "$ns1" --force --lbaf=0
    # `nvme sanitize` of newer versions looks first whether it can be, and sends nothing.
    refused "Invalid Command Opcode" "Sanitize" nvme admin-passthru "$device" --opcode=0x84 --cdw10=2
    refused "Invalid Command Opcode" "there is none" nvme device-self-test "$device" --namespace-id=1 --self-test-code=1
    refused "Invalid Command Opcode" "there is none" nvme security-recv "$device" --size=512 --al=512
    refused "Invalid Command Opcode" "there is none" \
        nvme dir-receive "$device" --dir-type=0 --dir-oper=1 --req-resource=0 --namespace-id=1
    # Get LBA Status itself: there are versions of libnvme that describe no memory for its answer.
    works "Get LBA Status: memory for 64 bytes, where MNDW allows 68" nvme admin-passthru "$device" --opcode=0x86 \
        --namespace-id=2 --cdw12=16 --cdw13=0x2000000 --data-len=64 --read --raw-binary
    expect "one descriptor, and all is told" "$(od -An -v -tu1 -N 5 /tmp/said | xargs)" "1 0 0 0 2"
    expect "bytes of the answer" "$(wc -c </tmp/said)" 64
    refused "Invalid Field in Command" "only allocated blocks are told" \
        nvme get-lba-status "$device" --namespace-id=1 --action=16 --max-dw=16
}

identify
logs
errors
features
absent
registers
is_live
none_wrong

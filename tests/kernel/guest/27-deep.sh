#!/usr/bin/env bash
# A queue of 1024 entries that is full, and transfers of 1 MiB, of which there are far more than our target has buffers
# for.
#
# One short round of them, and with RINGFAB_LOAD_SECONDS rounds that fill the queue for that long.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "the kernel's queues are this deep over TCP only"
start_target
# An emulated machine is slow enough for the last of so many to take longer than the 30 s that the kernel gives it.
timeout_s=/sys/module/nvme_core/parameters/io_timeout
echo 240 >$timeout_s
may_warn 'long keepalive RTT'
connect -i 1 -Q 1024 -k 30
echo 30 >$timeout_s
expect "entries of a queue, zero's based" "$(<"/sys/class/nvme/$controller/sqsize")" 1023
echo 1024 >"/sys/block/${ns1##*/}/queue/max_sectors_kb"
verified "$ns1" --rw=randwrite --bs=4k --iodepth=1024 --size=8m

# What is written at once may not overlap; it is read by four jobs at once, each of which compares all of it.
large_transfers() {
    verified "$ns1" --rw=randwrite --bs=1m --iodepth="$1" --size="$1m" --randrepeat=0
    echo "--- read at a depth of $((4 * $1))"
    fio --name=load --filename="$ns1" --rw=randread --bs=1m --numjobs=4 --iodepth="$1" --size="$1m" --direct=1 \
        --ioengine=libaio --verify=crc32c --verify_fatal=1 --group_reporting --output-format=json >/tmp/fio.json ||
        { cat /tmp/fio.json; fail "what was written was not read back"; }
    value_of total_ios "$(sed '1,/"read" :/d' /tmp/fio.json)"
    expect "transfers" "$REPLY" $((4 * $1))
}

mebibytes=64
[[ -z ${RINGFAB_LOAD_SECONDS:-} ]] || mebibytes=256
end=$((SECONDS + ${RINGFAB_LOAD_SECONDS:-0}))
large_transfers $mebibytes
while ((SECONDS < end)); do large_transfers $mebibytes; done
"$bin/ringfab-target" status --socket "$socket"
is_live
no_io_errors

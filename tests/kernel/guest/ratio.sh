#!/usr/bin/env bash
# Runs in the guest: one lane of the comparison with the kernel's own target.
#
#   ratio.sh DRIVER/PROVIDER ROUNDS SECONDS
set -euo pipefail
lane=$1 rounds=$2 seconds=$3
export RINGFAB_DRIVER=${lane%/*} RINGFAB_PROVIDER=${lane#*/} together=true
mkdir -p "/tmp/logs/$RINGFAB_DRIVER-$RINGFAB_PROVIDER"
cp -r bin /tmp/
# shellcheck source=tests/kernel/guest/lib.sh
. ./lib.sh

main() {
    modprobe -a nvme-rdma nvmet-rdma
    modprobe null_blk nr_devices=0
    set_up_links >/tmp/links.log 2>&1
    : >/tmp/figures
    local round who
    for ((round = 0; round < rounds; round++)); do
        # Who begins changes, so that what a turn leaves behind favours nobody.
        for who in $([[ $((round % 2)) == 0 ]] && echo kernel ours || echo ours kernel); do
            "serve_$who"
            nvme connect -t rdma -a "$ours" -s 4420 -n "$nqn" -i 2
            wait_for 20 is_block "$nqn" 1
            measure "$who"
            nvme disconnect -n "$nqn" >/dev/null
            "stop_$who"
        done
    done
    python3 "$out/ratio.py" "$lane" /tmp/figures
}

# Both disks answer at once and hold nothing. Everything takes some forty times as long as on a machine, and so a core
# spins for forty times as long; for the same reason there is one, since the machine has not more processors than the
# two ends use.
serve_ours() {
    cat >/tmp/target.toml <<TOML
[target]
state_dir = "/tmp/state"
cores = 1
spin_us = 2000
[[listener]]
address = "$ours"
provider = "$provider"
crc = false
[[subsystem]]
nqn = "$nqn"
allow_any_host = true
[[subsystem.namespace]]
null = "1GiB"
TOML
    mkdir -p /tmp/state
    serve
}

stop_ours() {
    stop_target TERM
}

serve_kernel() {
    local disk=/sys/kernel/config/nullb/nullb0
    if [[ ! -d $disk ]]; then
        mkdir "$disk"
        echo 0 >"$disk/irqmode"
        echo 1024 >"$disk/size"
        echo 1 >"$disk/power"
    fi
    theirs=$ours start_kernel_target "$nqn" 8192
}

stop_kernel() {
    remove_kernel_target
}

measure() {
    local who=$1 disk depth kind
    find_namespace "$nqn" 1
    disk=$found
    for depth in 1 32 128; do
        for kind in randread randwrite; do
            fio --name=load --filename="$disk" --direct=1 --ioengine=io_uring --rw=$kind --bs=4k \
                --iodepth=$depth --time_based --runtime="$seconds" --ramp_time=1 --norandommap \
                --output-format=json >/tmp/fio.json
            sed -n '/^{/,$p' /tmp/fio.json | jq -r --arg who "$who" --arg depth $depth --arg kind $kind \
                '.jobs[0] | (if $kind == "randread" then .read else .write end) |
                    [$who, $depth, $kind, .iops, .clat_ns.mean / 1000] | @tsv' >>/tmp/figures
        done
    done
}

main

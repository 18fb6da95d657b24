# shellcheck shell=bash disable=SC2154,SC2034 # lib.sh has the variables, and scenarios use those of here
# The kernel's host and the kernel's target, on the near end of the link.

# --- Its host --------------------------------------------------------------------------------------------------------

# For four I/O queues: a processor has one to read and one to write with, and there are two of them.
four=(-i 2 -W 2)

# connect [OPTIONS OF nvme connect]: to our target; sets `controller` (nvme0), `device` (/dev/nvme0), and by namespace
# `ns1` and `ns2` (/dev/nvme0n1).
connect() {
    nvme connect -t "$fabric" -a "$ours" -s 4420 -n "$nqn" "$@"
    find_controller "$nqn"
    wait_for 20 is_block "$nqn" 1
    wait_for 20 is_block "$nqn" 2
    find_namespace "$nqn" 1
    ns1=$found
    find_namespace "$nqn" 2
    ns2=$found
}

# find_controller NQN
find_controller() {
    local folder
    controller=
    for folder in /sys/class/nvme/nvme*; do
        first_line "$folder/subsysnqn"
        [[ $REPLY != "$1" ]] || controller=${folder##*/}
    done
    [[ -n $controller ]] || fail "no controller of $1"
    device=/dev/$controller
}

# find_namespace NQN NSID: sets `found` to its block device, whatever order the kernel scanned in.
find_namespace() {
    local folder
    found=/dev/none
    for folder in /sys/class/nvme-subsystem/*/nvme*n*; do
        first_line "$folder/../subsysnqn"
        [[ $REPLY == "$1" ]] || continue
        first_line "$folder/nsid"
        [[ $REPLY != "$2" ]] || found=/dev/${folder##*/}
    done
}

is_block() {
    find_namespace "$@"
    [[ -b $found ]]
}

is_live() {
    first_line "/sys/class/nvme/$controller/state"
    [[ $REPLY == live ]]
}

not_live() {
    ! is_live
}

# Resets the controller. It is used again, by a load that runs.
come_back() {
    nvme reset "$device"
    wait_for 20 is_live
    host_is_loaded
}

no_io_errors() {
    if kernel_said | grep 'I/O error'; then fail "the kernel says so"; fi
}

# verified DEVICE OPTIONS OF fio...: a load that is written, read back and compared. One that runs beside another needs
# a `report` of its own.
verified() {
    local disk=$1 report=${report:-/tmp/fio.json}
    shift
    echo "--- fio on $disk: $*"
    fio --filename="$disk" --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --group_reporting --output-format=json --name=load "$@" >"$report" || { cat "$report"; fail "fio $*"; }
    local said read written
    said=$(<"$report")
    value_of total_ios "${said#*'"read" :'}"
    read=$REPLY
    value_of total_ios "${said#*'"write" :'}"
    written=$REPLY
    value_of error "${said#*'"jobs" :'}"
    echo "read $read, written $written, error $REPLY"
    ((REPLY == 0 && read > 0 && written > 0)) || fail "fio did not read back what it wrote"
}

# --- Its target ------------------------------------------------------------------------------------------------------

nvmet=/sys/kernel/config/nvmet

# start_kernel_target NQN [IN-CAPSULE BYTES]: any host, namespace 1 a RAM disk of 256 MiB. TLS may be
# `required` or `not required`, as `with_tls` says.
start_kernel_target() {
    make_disk
    add_port 1 "$theirs"
    local port=$nvmet/ports/1
    [[ -z ${2:-} ]] || echo "$2" >"$port/param_inline_data_size"
    if [[ -n ${with_tls:-} ]]; then
        echo tls1.3 >"$port/addr_tsas"
        echo "$with_tls" >"$port/addr_treq"
    fi
    start_subsystem "$1"
}

# add_port NUMBER ADDRESS: one that serves nothing yet.
add_port() {
    local port=$nvmet/ports/$1
    mkdir "$port"
    echo "$fabric" >"$port/addr_trtype"
    if [[ $2 == *:* ]]; then echo ipv6; else echo ipv4; fi >"$port/addr_adrfam"
    echo "$2" >"$port/addr_traddr"
    echo 4420 >"$port/addr_trsvcid"
}

# start_subsystem NQN: on the port that is there; every one has the same disk.
start_subsystem() {
    local subsystem=$nvmet/subsystems/$1
    mkdir "$subsystem" "$subsystem/namespaces/1"
    echo 1 >"$subsystem/attr_allow_any_host"
    echo /dev/nullb0 >"$subsystem/namespaces/1/device_path"
    echo 1 >"$subsystem/namespaces/1/enable"
    ln -s "$subsystem" $nvmet/ports/1/subsystems/
}

# allow_only NQN: the one host of the subsystem; sets `guarded` to its folder, which has its keys.
allow_only() {
    guarded=$nvmet/hosts/$1
    mkdir "$guarded"
    echo 0 >"$nvmet/subsystems/$nqn/attr_allow_any_host"
    ln -s "$guarded" "$nvmet/subsystems/$nqn/allowed_hosts/"
}

make_disk() {
    local disk=/sys/kernel/config/nullb/nullb0
    [[ ! -d $disk ]] || return 0
    mkdir "$disk"
    echo 1 >"$disk/memory_backed"
    echo 256 >"$disk/size"
    echo 1 >"$disk/discard"
    echo 1 >"$disk/power"
}

remove_kernel_target() (
    cd $nvmet || return
    local path
    for path in ports/*/subsystems/* subsystems/*/allowed_hosts/*; do [[ ! -L $path ]] || rm "$path"; done
    for path in ports/* subsystems/*/namespaces/* subsystems/* hosts/*; do [[ ! -d $path ]] || rmdir "$path"; done
)

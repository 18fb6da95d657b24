# What the scenarios share. The kernel under test has ve1 with siw; our programs live in a network namespace of their
# own, `far`, behind ve0, so that every packet crosses a link that a scenario can cut.

nqn=nqn.2026-11.org.ringfab:kernel
ours=10.9.0.1
theirs=10.9.0.2
out=/run/out
logs=$out/logs
target_log=$logs/target.log
ready=/tmp/ready
pid_file=/tmp/target.pid

# What the kernel must never say, whatever a peer does.
trouble='WARNING:|BUG:|Oops|general protection|Call Trace|refcount_t|use-after-free|blocked for more than|soft lockup|rcu.*stall|slab-out-of-bounds|double free'

set_up() {
  modprobe siw && modprobe nvme-rdma && modprobe nvmet-rdma && modprobe null_blk nr_devices=0 || return 1
  ip netns add far
  ip link add ve0 netns far type veth peer name ve1
  ip -n far link set lo up
  ip -n far link set ve0 up
  ip link set ve1 up
  ip -n far addr add $ours/24 dev ve0
  ip addr add $theirs/24 dev ve1
  rdma link add siw1 type siw netdev ve1
}

# One scenario in a shell of its own, with its time, and a look at what the kernel said meanwhile.
run_scenario() {
  local name=$1 log=$logs/$1.log status started=$SECONDS said
  : >"$target_log"
  seen=$(dmesg | wc -l)
  export seen
  timeout 150 bash -c ". ./lib.sh; set -eEuo pipefail; trap 'echo \"line \$LINENO of $name: \$BASH_COMMAND\"' ERR; . ./$name.sh" >"$log" 2>&1
  status=$?
  clean_up >>"$log" 2>&1 || { status=1; echo "could not clean up" >>"$log"; }
  cp "$target_log" "$logs/$name.target.log"
  dmesg | tail -n +$((seen + 1)) >"$logs/$name.dmesg"
  said=$(grep -E "$trouble" "$logs/$name.dmesg")
  [[ -z $said ]] || { status=1; echo "the kernel says: $said" >>"$log"; }
  said=$(grep -E 'panicked|ERROR' "$target_log")
  [[ -z $said ]] || { status=1; echo "the target says: $said" >>"$log"; }
  if ((status == 0)); then
    printf 'PASS  %s (%d s)\n' "$name" $((SECONDS - started))
    return 0
  fi
  printf 'FAIL  %s (status %d)\n' "$name" $status
  tail -n 15 "$log" | sed 's/^/      /'
  tail -n 6 "$logs/$name.dmesg" | sed 's/^/      kernel: /'
  tail -n 6 "$target_log" | sed 's/^/      target: /'
  return 1
}

# Whatever the scenario left.
clean_up() {
  ip link set ve1 up
  timeout 60 nvme disconnect-all || return 1
  stop_target KILL
  remove_kernel_target
  ip -n far link set ve0 up
  set_siw mpa_crc_required 0
  set_siw mpa_crc_strict 0
  set_siw mpa_version 2
  set_siw peer_to_peer 0
}

fail() {
  echo "failed: $*"
  exit 1
}

# expect WHAT FOUND WANTED
expect() {
  [[ $2 == "$3" ]] || fail "$1 is '$2', not '$3'"
}

# Of the kernel about a disk, in this scenario.
no_io_errors() {
  ! dmesg | tail -n +$((seen + 1)) | grep 'I/O error' || fail "the kernel says so"
}

# wait_for SECONDS COMMAND...
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || fail "in vain waited for: $*"
    sleep 0.2
  done
}

# --- siw -----------------------------------------------------------------------------------------------------------

# The driver's constants are parameters in the build of this recipe.
set_siw() {
  echo "$2" >"/sys/module/siw/parameters/$1"
}

# --- our target ----------------------------------------------------------------------------------------------------

# start_target [LINES OF THE LISTENER TABLE]: one subsystem, namespace 1 a file with 512-byte blocks, namespace 2
# memory with 4096-byte blocks. The file outlives a restart.
start_target() {
  mkdir -p /tmp/state
  [[ -e /tmp/disk.img ]] || truncate -s 256M /tmp/disk.img
  cat >/tmp/target.toml <<TOML
[target]
state_dir = "/tmp/state"
cores = 2
log = "info,ringfab_target=debug,ringfab_fabric=debug"
[[listener]]
address = "$ours"
${1:-}
[[subsystem]]
nqn = "$nqn"
serial = "KERNEL-0001"
model = "Ringfab under test"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "/tmp/disk.img"
direct = false
allow_page_cache = true
[[subsystem.namespace]]
nsid = 2
memory = "64MiB"
block_bytes = 4096
[[subsystem]]
nqn = "nqn.2026-11.org.ringfab:private"
allowed_hosts = ["nqn.2026-11.org.ringfab:friend"]
[[subsystem.namespace]]
null = "1GiB"
TOML
  serve
}

# Starts the target with the configuration that is there.
serve() {
  rm -f $ready
  ip netns exec far $out/bin/ringfab-target serve --config /tmp/target.toml --ready-file $ready >>"$target_log" 2>&1 &
  echo $! >$pid_file
  wait_for 20 test -s $ready
}

# stop_target SIGNAL
stop_target() {
  [[ -s $pid_file ]] || return 0
  local pid
  pid=$(cat $pid_file)
  kill "-$1" "$pid" 2>/dev/null
  for _ in {1..200}; do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  ! kill -0 "$pid" 2>/dev/null || return 1
  rm -f $pid_file
}

target_said() {
  grep -qE "$1" "$target_log"
}

# --- the kernel's host ---------------------------------------------------------------------------------------------

# connect [OPTIONS OF nvme connect]: sets `controller` (nvme0) and, by namespace, `ns1` and `ns2` (/dev/nvme0n1).
connect() {
  nvme connect -t rdma -a $ours -s 4420 -n $nqn "$@"
  find_controller $nqn
  wait_for 20 namespaces_there
  ns1=$(namespace 1)
  ns2=$(namespace 2)
}

# find_controller NQN
find_controller() {
  local folder
  controller=
  for folder in /sys/class/nvme/nvme*; do
    [[ $(cat "$folder/subsysnqn" 2>/dev/null) != "$1" ]] || controller=$(basename "$folder")
  done
  [[ -n $controller ]] || fail "no controller of $1"
}

namespaces_there() {
  [[ -b $(namespace 1) && -b $(namespace 2) ]]
}

# namespace NSID: its block device, whatever order the kernel scanned in.
namespace() {
  local folder
  for folder in /sys/class/nvme-subsystem/*/nvme*n*; do
    [[ $(cat "$folder/nsid" 2>/dev/null) != "$1" ]] || { echo "/dev/$(basename "$folder")"; return; }
  done
  echo "/dev/none"
}

state() {
  cat "/sys/class/nvme/$controller/state"
}

is_live() {
  [[ $(state) == live ]]
}

# --- the kernel's target -------------------------------------------------------------------------------------------

nvmet=/sys/kernel/config/nvmet

# start_kernel_target NQN [IN-CAPSULE BYTES]: any host, namespace 1 a RAM disk.
start_kernel_target() {
  make_disk
  local subsystem=$nvmet/subsystems/$1 port=$nvmet/ports/1
  mkdir "$subsystem" "$subsystem/namespaces/1" "$port"
  echo 1 >"$subsystem/attr_allow_any_host"
  echo /dev/nullb0 >"$subsystem/namespaces/1/device_path"
  echo 1 >"$subsystem/namespaces/1/enable"
  echo rdma >"$port/addr_trtype"
  echo ipv4 >"$port/addr_adrfam"
  echo $theirs >"$port/addr_traddr"
  echo 4420 >"$port/addr_trsvcid"
  [[ -z ${2:-} ]] || echo "$2" >"$port/param_inline_data_size"
  ln -s "$subsystem" "$port/subsystems/"
}

# start_another_subsystem NQN: the same disk under another name.
start_another_subsystem() {
  local subsystem=$nvmet/subsystems/$1
  mkdir "$subsystem" "$subsystem/namespaces/1"
  echo 1 >"$subsystem/attr_allow_any_host"
  echo /dev/nullb0 >"$subsystem/namespaces/1/device_path"
  echo 1 >"$subsystem/namespaces/1/enable"
  ln -s "$subsystem" $nvmet/ports/1/subsystems/
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

remove_kernel_target() {
  local path
  for path in $nvmet/ports/*/subsystems/* $nvmet/subsystems/*/allowed_hosts/*; do [[ ! -L $path ]] || rm "$path"; done
  for path in $nvmet/ports/* $nvmet/subsystems/*/namespaces/* $nvmet/subsystems/* $nvmet/hosts/*; do
    [[ ! -d $path ]] || rmdir "$path"
  done
}

ringfab() {
  timeout 60 ip netns exec far $out/bin/ringfab "$@"
}

# url NQN [OPTIONS]
url() {
  echo "nvme+rdma://$theirs:4420/$1${2:+?$2}"
}

not_live() {
  ! is_live
}

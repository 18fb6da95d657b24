#!/usr/bin/env bash
# One lane: its link, the scenarios that are named, and the table of commands.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. ./lib.sh
trap - ERR

# What the kernel must never say, whatever a peer does.
trouble='WARNING:|BUG:|Oops|general protection|Call Trace|refcount_t|use-after-free|blocked for more than'
trouble+='|soft lockup|rcu.*stall|slab-out-of-bounds|double free'
# Its ordinary words about connections that end and come back, and about a kernel with a module that was built for it.
harmless='nvme.*: (rdma connection establishment failed|Connect rejected|rdma_resolve_addr failed)'
harmless+='|nvme.*: rdma_connect_locked failed'
harmless+='|nvme.*: (failed to send request|failed nvme_keep_alive_end_io|nvme_rdma_post_recv failed|I/O .* timeout)'
harmless+='|nvme.*: (starting error recovery|Failed reconnect attempt|Reconnecting in)'
harmless+='|nvmet_rdma: (post_recv cmd failed|sending cmd response failed)|nvmet: connect request for invalid subsystem'
harmless+='|nvme.*: (failed to connect socket|failed to connect queue: [0-9]+ ret=|queue [0-9]+ connect request failed)'
harmless+='|nvme.*: (receive failed|.*starting error recovery)'
harmless+='|nvme.*: long keepalive RTT \([0-9]+ ms\)'
harmless+='|no usable path - requeuing I/O|module verification failed|loading out-of-tree module'
# And about an emulated machine on a busy one.
harmless+='|callbacks suppressed|clocksource: |hrtimer: interrupt took|workqueue: .* hogged CPU|perf: interrupt took'

# Whether the last scenario was undone.
clean=true

main() {
    mkdir -p "$logs" "logs/$driver-$provider"
    : >"$commands"
    : >"$unasked"
    if ! set_up_links >"$logs/links.log" 2>&1; then
        result "FAIL  $driver/$provider: no link"
        sed 's/^/      /' "$logs/links.log"
        return
    fi
    local scenario
    # Where both ends are the kernel's own, there is nothing of ours to try.
    if [[ $provider == kernel ]]; then set -- 00-alone; fi
    for scenario in "$@"; do
        if $clean; then run_scenario "$scenario"; else result "FAIL  $driver/$provider $scenario: not run"; fi
    done
    compare_commands
    $clean || return 0
    take_down_links >>"$logs/links.log" 2>&1
}

# Says how a scenario ended.
result() {
    echo "$*" | tee -a results
}

# The rows that the scenarios wrote, with the table of the project; only where all that write some have run.
compare_commands() {
    local title="$driver/$provider commands"
    [[ -e $logs/12-admin.dmesg && -e $logs/13-data.dmesg && -s $commands ]] || return 0
    sed '/^| --- /q' COMMANDS.md >"$logs/COMMANDS.md"
    cat "$commands" >>"$logs/COMMANDS.md"
    # What replaces the table has to have all of it.
    [[ -s $unasked ]] || cp "$logs/COMMANDS.md" logs/
    if diff -u <(grep -vFf "$unasked" COMMANDS.md) "$logs/COMMANDS.md" >"$logs/commands.diff"; then
        result "PASS  $title"
    else
        result "FAIL  $title: what was seen is not what COMMANDS.md says"
        sed 's/^/      /' "$logs/commands.diff"
    fi
}

run_scenario() {
    # The log goes to the host line by line: it is what is left of a guest that hangs.
    local name=$1 log=logs/$driver-$provider/$1.log status=0 started=$SECONDS
    local title="$driver/$provider $name"
    : >"$target_log"
    : >"$expected"
    : >"$tlshd_log"
    echo "ringfab-scenario $title" >/dev/kmsg
    timeout -k 5 $((300 * ${ROUNDS:-1})) bash "./$name.sh" >"$log" 2>&1 </dev/null || status=$?
    if [[ -e $logs/last ]]; then
        clean=false
    elif ! timeout -k 5 90 bash ./clean-up.sh >"$logs/clean-up.log" 2>&1; then
        clean=false status=1
        cat "$logs/clean-up.log" >>"$log"
        echo "could not clean up, the kernel is in no state for other scenarios" >>"$log"
    fi
    cp "$target_log" "logs/$driver-$provider/$name.target.log"
    [[ ! -s $tlshd_log ]] || cp "$tlshd_log" "logs/$driver-$provider/$name.tlshd.log"
    kernel_said >"$logs/$name.dmesg"
    what_was_said "$name" >>"$log" || status=1
    cp "$logs/$name.dmesg" "logs/$driver-$provider/"
    case $status in
    0) result "PASS  $title ($((SECONDS - started)) s)" ;;
    77) result "SKIP  $title: $(tail -n 1 "$log")" ;;
    *)
        result "FAIL  $title (status $status)"
        tail -n 20 "$log" | sed 's/^/      /'
        tail -n 8 "$logs/$name.dmesg" | sed 's/^/      kernel: /'
        tail -n 8 "$target_log" | sed 's/^/      target: /'
        ;;
    esac
}

# Fails when the kernel or our target said what they should not: of the kernel, anything above a notice that is not
# known.
what_was_said() {
    local name=$1 good=true warning='kern +:(warn|err|crit|alert|emerg)' said
    said=$(<"$logs/$name.dmesg")
    if [[ $said =~ $warning ]] &&
        grep -E "^$warning" <<<"$said" | grep -Ev "$harmless" | grep -vEf "$expected"; then
        echo "the kernel warns of something unknown"
        good=false
    fi
    if [[ $said =~ $trouble ]]; then
        # With what it says of the page, lock or task that is wrong, which the end of its words has not.
        grep -E -m 1 -A 12 "$trouble" <<<"$said"
        echo "the kernel is in trouble"
        good=false
    fi
    if grep -E 'panicked| ERROR ' "$target_log"; then
        echo "the target is in trouble"
        good=false
    fi
    $good
}

main "$@"

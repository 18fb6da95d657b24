#!/usr/bin/env bash
# Our initiator has two paths to the kernel's target. One after the other is lost in every way that there is, and comes
# back, under a load that is verified. ROUNDS=n for more than one round.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=tests/kernel/guest/paths.sh
. "${0%/*}/paths.sh"

# How long what changes something waits where the target has no Cross-Controller Reset. The rule's time would be ten
# seconds for each loss; the kernel's target has nothing left of a connection after this.
replay_delay=3s
rm -f /tmp/enough /tmp/ringfab.ready

# make_second_port: the kernel's target on the second link.
make_second_port() {
    local port=$nvmet/ports/2
    mkdir "$port"
    echo "$fabric" >"$port/addr_trtype"
    echo ipv4 >"$port/addr_adrfam"
    echo "$theirs_2" >"$port/addr_traddr"
    echo 4420 >"$port/addr_trsvcid"
    ln -s "$nvmet/subsystems/$nqn" "$port/subsystems/"
}

# state_of PATH: as our initiator tells it, in REPLY.
state_of() {
    local said
    said=$("${far[@]}" "$bin/ringfab" list --json) || said=
    REPLY=$(python3 "$out/path_state.py" "$their_address" <<<"$said")
}
has_state() {
    state_of
    [[ $REPLY == "$1" ]]
}

lose_port() { rm "$nvmet/ports/$1/subsystems/$nqn"; }
heal_port() { ln -s "$nvmet/subsystems/$nqn" "$nvmet/ports/$1/subsystems/"; }
lose_access() { echo inaccessible >"$nvmet/ports/$1/ana_groups/1/ana_state"; }
heal_access() { echo optimized >"$nvmet/ports/$1/ana_groups/1/ana_state"; }

#!/usr/bin/env bash
# A subsystem that our target begins to serve appears at the kernel's host by itself: by the event of the discovery
# controller, the udev rule of nvme-cli, and the unit that it starts.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "how data move makes no difference to this"

new=nqn.2026-11.org.ringfab:new

# There is no service manager in this machine. This does for the unit what it would do: run its command.
take_systemctls_place() {
    cat >/tmp/systemctl <<'STUB'
#!/bin/bash
instance=${!#}
instance=${instance#nvmf-connect@}
CONNECT_ARGS=${instance%.service}
export CONNECT_ARGS
echo "$CONNECT_ARGS" >>/tmp/started
command=$(sed -n 's/^ExecStart=\/bin\/sh -c "\(.*\)"$/\1/p' /usr/lib/systemd/system/nvmf-connect@.service)
exec /bin/sh -c "$(sed "s|'\${CONNECT_ARGS}'|\"\$CONNECT_ARGS\"|" <<<"$command")" >>/tmp/connected 2>&1
STUB
    chmod +x /tmp/systemctl
    mount --bind /tmp/systemctl /usr/bin/systemctl
}

nothing_is_left() {
    kill "$(</tmp/udevd.pid)" || true
    umount /usr/bin/systemctl || true
    nvme disconnect-all || true
}
trap nothing_is_left EXIT

start_target
take_systemctls_place
/lib/systemd/systemd-udevd --resolve-names=never >/tmp/udevd.log 2>&1 &
echo $! >/tmp/udevd.pid
wait_for 20 udevadm control --ping

nvme connect-all --persistent -t "$fabric" -a "$ours" -s 4420
find_controller "$nqn"
find_controller nqn.2014-08.org.nvmexpress.discovery
control subsystem add "$new" --allow-any-host
is_there() { (find_controller "$new") >/dev/null; }
wait_for 60 is_there
cat /tmp/started /tmp/connected
grep -q -- "--device=nvme" /tmp/started

# The rule disconnects nothing, but the page does not show any more what has gone. The kernel tells a controller that it
# cannot reach to shut down.
may_warn 'nvme nvme[0-9]+: Property Set error'
control subsystem remove "$new"
nvme discover -t "$fabric" -a "$ours" -s 4420 -o json >/tmp/discovery.json
expect "entries of what has gone" "$(grep -c "$new" /tmp/discovery.json || true)" 0

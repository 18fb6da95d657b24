#!/usr/bin/env bash
# Our host stays connected to the kernel's discovery controller, which tells when a subsystem comes or goes, and
# attaches what comes.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

only tcp "how data move makes no difference to this"

new=nqn.2026-11.org.ringfab:new
host=(timeout --foreground -k 5 200 "${far[@]}" "$bin/ringfab")
has_line() { grep -q -- "$1" "$2"; }

start_kernel_target "$nqn"
"${host[@]}" -vv discover --follow "$(address "$theirs")" >/tmp/followed 2>/tmp/follow.log &
followed=$!
"${host[@]}" connect-all --follow --nbd /tmp/all "$(address "$theirs")" >/tmp/all.said 2>/tmp/all.log &
all=$!
wait_for 30 has_line "nvme subsystem.*$nqn" /tmp/followed
wait_for 30 has_line "+ $nqn at" /tmp/all.said

echo "--- a subsystem comes"
start_subsystem "$new"
wait_for 30 has_line "^+ nvme subsystem.*$new" /tmp/followed
wait_for 30 has_line "+ $new at" /tmp/all.said
[[ -S /tmp/all/$nqn.sock && -S /tmp/all/$new.sock ]]
# The event, not a question, has told it: this is what the log says of it.
grep -q 'asynchronous event.*dw0=7401474' /tmp/follow.log

echo "--- and goes"
rm "$nvmet/ports/1/subsystems/$new"
wait_for 30 has_line "^- nvme subsystem.*$new" /tmp/followed
wait_for 30 has_line "^- $new" /tmp/all.said
[[ -S /tmp/all/$nqn.sock && ! -e /tmp/all/$new.sock ]]

kill -TERM $followed $all
wait $all
wait $followed || expect "the status of a command that was ended" $? 130
cat /tmp/followed /tmp/all.said
expect "lines of the end" "$(tail -n 1 /tmp/all.said)" "- $nqn"
[[ ! -e /tmp/all ]]

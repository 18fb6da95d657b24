#!/usr/bin/env bash
# What the target's core executes for a command of 4 KiB over verbs: our target under callgrind in the virtual machine,
# the kernel's host, and the software device rxe.
#
#   instructions.sh [COUNT]     commands of the shortest load (100)
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target, instead of building it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/scripts/lib.sh
. "$here/../scripts/lib.sh"

status=0
"$here/vm.sh" prepare || status=$?
[ "$status" -eq 0 ] || exit "$status"
find_programs release
begin
mkdir -p "$TMP/guest/bin"
cp "$here"/guest/* "$TMP/guest/"
# With its lines: what is counted is told apart by the file that it is in.
cp "$RINGFAB_BIN_DIR/ringfab-target" "$TMP/guest/bin/"
strip -o "$TMP/guest/bin/ringfab" "$RINGFAB_BIN_DIR/ringfab"
RINGFAB_VM_SECONDS=1800 "$here/vm.sh" run "$TMP/guest" "bash instructions.sh rxe/verbs ${1:-100}" ||
    fail "the measurement"
python3 "$here/../scripts/instructions.py" verbs "$TMP/guest/dumps"

#!/usr/bin/env bash
# The kernel's NVMe/RDMA host on the kernel's own target and on ours, over the same link to the same kind of disk, in
# turns: how much faster ours is. Everything is emulated, so that only the ratios mean something.
#
#   ratio.sh [LANE...]
#
# A lane is DRIVER/PROVIDER as in run.sh; the default is siw/iwarp, siw/verbs and rxe/verbs.
#
#   RINGFAB_BIN_DIR   a folder with ringfab-target and ringfab, instead of building them
#   ROUNDS, SECONDS_EACH   turns of each (3), and how long each measurement takes (4)
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
for program in ringfab ringfab-target; do strip -o "$TMP/guest/bin/$program" "$RINGFAB_BIN_DIR/$program"; done
[ $# -gt 0 ] || set -- siw/iwarp siw/verbs rxe/verbs
for lane in "$@"; do
    RINGFAB_VM_SECONDS=1200 "$here/vm.sh" run "$TMP/guest" "bash ratio.sh $lane ${ROUNDS:-3} ${SECONDS_EACH:-4}" ||
        fail "the measurement over $lane"
done

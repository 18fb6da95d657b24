#!/usr/bin/env bash
# Checks the systemd files without systemd running: the unit's syntax and programs, its exposure, the user, the folders.
#
#   systemd.sh PROGRAM    PROGRAM is a built ringfab-target
set -euo pipefail

here=$(cd "$(dirname "$0")/../.." && pwd)
program=$(realpath "$1")
exposure_max=25 # in tenths: 2.5 of 10

if ! command -v systemd-analyze >/dev/null; then
    echo "NOT RUN: systemd-analyze is not installed (Debian: apt install systemd)"
    exit 77
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# `verify` wants the programs that the unit names to exist, so it sees a copy that names the built one.
sed "s,/usr/sbin/ringfab-target,$program," "$here/systemd/ringfab-target.service" >"$folder/ringfab-target.service"
complaints=$(systemd-analyze verify --man=no "$folder/ringfab-target.service" 2>&1 || true)
ours=$(grep -F ringfab-target.service <<<"$complaints" || true)
if [[ -n $ours ]]; then
    echo "systemd-analyze verify complains:"
    echo "$ours"
    exit 1
fi
echo "verify: no complaint"

report=$(systemd-analyze security --offline=true --threshold=$exposure_max --no-pager \
    "$folder/ringfab-target.service") || {
    echo "$report"
    echo "the unit is more exposed than allowed"
    exit 1
}
tail -n 1 <<<"$report"

mkdir -p "$folder/root/etc" "$folder/root/usr/lib/sysusers.d" "$folder/root/usr/lib/tmpfiles.d"
cp "$here/systemd/ringfab.sysusers.conf" "$folder/root/usr/lib/sysusers.d/ringfab.conf"
cp "$here/systemd/ringfab.tmpfiles.conf" "$folder/root/usr/lib/tmpfiles.d/ringfab.conf"
systemd-sysusers --root="$folder/root"
grep -q '^ringfab:' "$folder/root/etc/passwd"
echo "sysusers: the user is made"
systemd-tmpfiles --root="$folder/root" --create
[[ -d $folder/root/srv/ringfab ]]
echo "tmpfiles: the folder is made"

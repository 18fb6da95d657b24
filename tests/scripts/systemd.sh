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

# The initiator's unit mounts where others see it, so it may have no file systems of its own.
volume=ringfab-volume@data.service
volume_exposure_max=50
sed "s,/usr/bin/ringfab,$(command -v true)," "$here/systemd/ringfab-volume@.service" >"$folder/$volume"
complaints=$(systemd-analyze verify --man=no "$folder/$volume" 2>&1 | grep -F ringfab-volume || true)
if [[ -n $complaints ]]; then
    echo "systemd-analyze verify complains:"
    echo "$complaints"
    exit 1
fi
systemd-analyze security --offline=true --threshold=$volume_exposure_max --no-pager "$folder/$volume" \
    >"$folder/report" || {
    cat "$folder/report"
    echo "the unit is more exposed than allowed"
    exit 1
}
# With any of these it would mount where only it sees it.
if grep -E '^(Protect(System|Home|KernelTunables|KernelModules|KernelLogs|ControlGroups|Proc)|Private|ReadWritePaths)' \
    "$folder/$volume"; then
    echo "the volume's unit has mounts of its own"
    exit 1
fi

mkdir -p "$folder/root/etc" "$folder/root/usr/lib/sysusers.d" "$folder/root/usr/lib/tmpfiles.d"
cp "$here/systemd/ringfab.sysusers.conf" "$folder/root/usr/lib/sysusers.d/ringfab.conf"
cp "$here/systemd/ringfab.tmpfiles.conf" "$folder/root/usr/lib/tmpfiles.d/ringfab.conf"
systemd-sysusers --root="$folder/root"
grep -q '^ringfab:' "$folder/root/etc/passwd"
echo "sysusers: the user is made"
systemd-tmpfiles --root="$folder/root" --create
[[ -d $folder/root/srv/ringfab ]]
echo "tmpfiles: the folder is made"

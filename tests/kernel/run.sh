#!/usr/bin/env bash
# Runs both our ends against a stock Linux kernel in a virtual machine: its NVMe/RDMA host and target over siw, its
# software iWARP driver. One boot for all scenarios.
#
#   run.sh [SCENARIO...]      all of guest/[0-9]*.sh, or those that are named (for instance 14-fio)
#
# Exits with 0 when all passed, 1 when one failed, 77 when nothing ran, because this machine cannot boot the kernel.
# The programs come from $CARGO_TARGET_DIR/release; the logs of each scenario stay in $RINGFAB_KERNEL_LOGS if it is set.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
programs=${CARGO_TARGET_DIR:-$here/../../.build}/release

status=0
"$here/vm.sh" prepare || status=$?
if ((status == 77)); then
  echo "NOT RUN: no virtual machine here, nothing was tried against the Linux kernel"
  exit 77
elif ((status)); then
  echo "FAIL  the virtual machine could not be prepared"
  exit 1
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
cp "$programs/ringfab" "$programs/ringfab-target" "$folder/bin/"
cp "$here"/guest/*.sh "$folder/"
"$here/vm.sh" run "$folder" "bash main.sh $*" || status=1
if [[ -n ${RINGFAB_KERNEL_LOGS:-} ]]; then
  mkdir -p "$RINGFAB_KERNEL_LOGS"
  cp -r "$folder"/logs/. "$folder/dmesg" "$folder/log" "$RINGFAB_KERNEL_LOGS/" || true
fi
exit $status

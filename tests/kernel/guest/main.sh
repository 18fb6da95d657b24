#!/usr/bin/env bash
# Runs in the guest: brings up the software iWARP driver and runs the scenarios in the order of their names, or those
# that are named. One line each, PASS or FAIL, and what a failed one said; the exit status tells whether all passed.
set -uo pipefail
cd "$(dirname "$0")"
. ./lib.sh
mkdir -p "$logs"
set_up || { echo "FAIL  set-up"; exit 1; }

failed=0 count=0
if (($#)); then scenarios=("$@"); else scenarios=([0-9]*.sh); fi
for scenario in "${scenarios[@]}"; do
  scenario=$(basename "$scenario" .sh)
  count=$((count + 1))
  run_scenario "$scenario" || failed=$((failed + 1))
done
echo "$((count - failed)) of $count scenarios passed"
((failed == 0))

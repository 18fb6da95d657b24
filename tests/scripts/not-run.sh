#!/usr/bin/env bash
# Says that a check could not run, and notes it for the last words of `make test`.
#
#   not-run.sh WHICH AND WHY
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
not_run "$*"

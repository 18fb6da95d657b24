#!/usr/bin/env bash
# Whether this user on this machine may mount a file by the loop driver. Says nothing; the exit status is the answer.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
CAP_SYS_ADMIN=21
effective=$(sed -n 's/^CapEff:\t//p' /proc/self/status)
[ $((0x$effective >> CAP_SYS_ADMIN & 1)) -eq 1 ] || exit 1
[ -w /dev/loop-control ] || exit 1
losetup --find >/dev/null 2>&1

#!/usr/bin/env bash
# Our ends over TLS that this kernel protects, against ends that the process protects, both ways; and what an end of the
# kernel makes of peers that cut, change or end what they send.
set -euo pipefail
# shellcheck source=tests/kernel/guest/lib.sh
. "${0%/*}/lib.sh"

[[ $fabric == tcp ]] || not_here "TLS is for NVMe/TCP only"
modprobe tls || not_here "this kernel has no TLS"
ip link set lo up
timeout 200 "$bin/tls_exchange" kernel

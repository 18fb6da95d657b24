#!/usr/bin/env bash
# How much of the code all transports share, and what each adds: lines of Rust, without tests, comments and empty lines.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# count PATH...: what follows the tests of a file is not counted, since they come last.
count() {
    find "$@" -name '*.rs' ! -path '*/tests/*' ! -name 'tests.rs' -print0 |
        xargs -0 awk 'FNR == 1 { tests = 0 }
            /^#\[cfg\(test\)\]/ { tests = 1 }
            !tests && !/^[[:space:]]*(\/\/|$)/ { lines++ }
            END { print lines + 0 }'
}

row() {
    printf '| %s | %s | %s | %s |\n' "$@"
}

row 'what' 'shared' 'NVMe/RDMA adds' 'NVMe/TCP adds'
row '---' '---' '---' '---'
target=target/src/transport
row 'target: the life of a request, controllers, cores' \
    "$(count target/src/{nvm,resources,queue,controller,admin,core} $target/mod.rs)" \
    "$(count $target/rdma.rs)" "$(count $target/tcp.rs)"
initiator=initiator/library/src
row 'initiator: the life of a command, controllers' \
    "$(count $initiator/{path,volume,transport/mod.rs} \
        $initiator/{attachment,delayed,queue,command,request,core,host,slots}.rs)" \
    "$(count $initiator/transport/rdma.rs)" "$(count $initiator/transport/tcp.rs)"
fabric=common/fabric/src
row 'connections: sockets, and RDMA devices' "$(count $fabric/{stream,table.rs,transports.rs})" \
    "$(count $fabric/rdma/*.rs $fabric/rdma/iwarp), devices $(count $fabric/rdma/verbs)" "$(count $fabric/tcp)"
row 'protocol engines' 0 "$(count common/proto/src/iwarp)" "$(count common/proto/src/tcp)"

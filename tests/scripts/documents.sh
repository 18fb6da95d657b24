#!/usr/bin/env bash
# Copies the documents and the examples to a folder, in the folders that they lie in here, so that their links lead
# somewhere there, too. Fails when one does not.
#
#   documents.sh FOLDER
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

DOCUMENTS=(README.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md CHANGELOG.md LICENSE docs/*.md docs/pictures/*
    tests/CONFORMANCE.md tests/kernel/COMMANDS.md configs/*.{toml,yml,json} configs/fio/*)

main() {
    [ $# -eq 1 ] || fail "which folder?"
    local file document
    for file in "${DOCUMENTS[@]}"; do install -D -m 0644 "$file" "$1/$file"; done
    for document in "${DOCUMENTS[@]}"; do
        [[ $document != *.md ]] || links_lead_somewhere "$1/$document"
    done
}

# links_lead_somewhere DOCUMENT: those to other files.
links_lead_somewhere() {
    local link
    while read -r link; do
        [ -e "$(dirname "$1")/${link%%#*}" ] || fail "$1 leads to $link, which is not there"
    done < <(grep -oE '\]\([^)]+\)' "$1" | sed 's/^](//; s/)$//' | grep -vE '://|^#|^<|^/' || true)
}

main "$@"

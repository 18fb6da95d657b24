#!/usr/bin/env bash
# The parts of each program as CycloneDX, made of Cargo.lock by cargo-cyclonedx; and whether they are all there,
# compared with what Cargo itself says that it builds.
#
#   sbom.sh FOLDER    writes FOLDER/ringfab-target.cdx.json and FOLDER/ringfab.cdx.json
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

main() {
    [ $# -eq 1 ] || fail "which folder?"
    mkdir -p "$1"
    local out program
    out=$(realpath "$1")
    begin
    make_files "$out"
    for program in ringfab-target ringfab; do compare "$program" "$out/$program.cdx.json"; done
}

# The tool writes a file for each program of the workspace, beside its manifest.
make_files() {
    local path name
    # Whoever builds the same sources gets the same file.
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
    export SOURCE_DATE_EPOCH
    cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries >"$TMP/cyclonedx.log" 2>&1 ||
        fail "cargo-cyclonedx: $(tail -n 3 "$TMP/cyclonedx.log")"
    while read -r path; do
        name=$(basename "$path" _bin.cdx.json)
        case "$name" in
        # Where the sources are is nobody's business.
        ringfab | ringfab-target) sed "s,file://$RINGFAB_ROOT,file://,g" "$path" >"$1/$name.cdx.json" ;;
        esac
        rm "$path"
    done < <(find common initiator target tests -name '*_bin.cdx.json')
}

# What is built into a program or runs while it is built, and what the file has.
compare() {
    local program=$1 file=$2 triple
    [ -s "$file" ] || fail "there is no list of parts of $program"
    triple=$(rustc -vV | sed -n 's/^host: //p')
    cargo tree --locked --package "$program" --edges normal,build --target "$triple" --prefix none --format '{p}' |
        sed -E 's/^([^ ]+) v([^ ]+).*/\1@\2/' | grep -v "^$program@" | sort -u >"$TMP/built"
    jq -r '.components[] | "\(.name)@\(.version)"' "$file" | sort -u >"$TMP/listed"
    awk -F '"' '/^name = / { name = $2 } /^version = / { print name "@" $2 }' Cargo.lock | sort -u >"$TMP/locked"
    [ -s "$TMP/built" ] || fail "Cargo says of no part that it is in $program"
    [ -z "$(comm -23 "$TMP/built" "$TMP/listed")" ] ||
        fail "$file lacks $(comm -23 "$TMP/built" "$TMP/listed" | paste -sd ' ')"
    [ -z "$(comm -13 "$TMP/locked" "$TMP/listed")" ] ||
        fail "$file has what Cargo.lock has not: $(comm -13 "$TMP/locked" "$TMP/listed" | paste -sd ' ')"
    # A part of the registry without a checksum is a name only.
    jq -e '[.components[] | select(.purl | contains("download_url=file:") | not) | select(.hashes | not)] == []' \
        "$file" >/dev/null || fail "$file has parts without a checksum"
    say "$file: $(wc -l <"$TMP/listed") parts, $(wc -l <"$TMP/built") of them in $program alone"
}

main "$@"

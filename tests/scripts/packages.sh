#!/usr/bin/env bash
# Makes the Debian packages of both programs, and of their debug symbols, from a release build that is there.
#
#   packages.sh FOLDER [VERSION]    VERSION in place of what systemd/debian/changelog says
#
# Whoever has the same programs gets the same packages, byte by byte.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

BUILD="${CARGO_TARGET_DIR:-$RINGFAB_ROOT/.build}"
export PATH="$BUILD/tools/bin:$PATH"
# cargo-deb finds what is below the folder of the programs, wherever the build folder is.
MADE="$BUILD/release/packaging"

main() {
    [ $# -ge 1 ] || fail "which folder?"
    local out=$1 version=${2:-} program
    version=${version:-$(sed -n '1s/.*(\(.*\)).*/\1/p' systemd/debian/changelog)}
    agree "$version"
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date_of_changelog)}
    export SOURCE_DATE_EPOCH
    begin
    rm -rf "$MADE" "$out"
    mkdir -p "$out"
    for program in ringfab-target ringfab; do
        [ -x "$BUILD/release/$program" ] || fail "$BUILD/release/$program is missing: make release"
        make_files "$program"
        make_package "$program" "$version" "$out"
    done
    undo_all
    report "$out"
}

# The programs' version is the changelog's, but for the revision of the package.
agree() {
    local cargo
    cargo=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    [ "${1%%-*}" = "$cargo" ] || [ -n "${RINGFAB_ANY_VERSION:-}" ] ||
        fail "the programs are $cargo, the packages would be $1: systemd/debian/changelog"
}

date_of_changelog() { date --date="$(sed -n 's/^ -- .*>  //p' systemd/debian/changelog | head -n 1)" +%s; }

# What the package has beside the program and files of the sources.
make_files() {
    local program=$1 folder="$MADE/$1"
    "$BUILD/release/$program" manual --man "$folder/man" --completions "$folder"
    [ "$program" = ringfab-target ] || cp configs/man/* "$folder/man/"
    gzip -9n "$folder"/man/*
    [ -s "$BUILD/sbom/$program.cdx.json" ] || fail "there is no list of parts of $program: make sbom"
    cp "$BUILD/sbom/$program.cdx.json" "$folder/"
    python3 tests/scripts/copyright.py "$program" >"$folder/copyright"
    tests/scripts/documents.sh "$folder/doc"
}

make_package() {
    local program=$1 version=$2 out=$3 architecture
    cargo deb --quiet --locked --no-build --dbgsym --compress-debug-symbols -p "$program" --deb-version "$version" \
        --output "$TMP/$program/" >"$TMP/$program.log" 2>&1 || fail "cargo-deb: $(cat "$TMP/$program.log")"
    architecture=$(dpkg --print-architecture)
    mv "$TMP/$program/${program}_${version}_$architecture.deb" "$out/"
    # An ordinary package, and dpkg and apt know it by this ending.
    mv "$TMP/$program/${program}-dbgsym_${version}_$architecture.ddeb" \
        "$out/${program}-dbgsym_${version}_$architecture.deb"
    has_symbols_of "$program" "$out/${program}-dbgsym_${version}_$architecture.deb"
}

# A debugger finds symbols by the build's number. The program in the package has nothing but that.
has_symbols_of() {
    local build
    build=$(readelf -n "$BUILD/release/$1" | sed -n 's/.*Build ID: //p')
    dpkg-deb --fsys-tarfile "$2" | tar t >"$TMP/symbols"
    grep -q "/usr/lib/debug/.build-id/${build:0:2}/${build:2}.debug$" "$TMP/symbols" ||
        fail "$2 has no symbols of the program's build $build"
}

report() {
    local package installed
    for package in "$1"/*.deb; do
        installed=$(dpkg-deb -f "$package" Installed-Size)
        note "$package: $(du -k --apparent-size "$package" | cut -f 1) KiB, installed $installed KiB"
    done
}

main "$@"

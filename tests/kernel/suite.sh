# shellcheck shell=bash
# Packages of other Debian releases, fetched by an apt of our own from the mirror that this machine's apt uses, and
# their programs, which run here beside older libraries. Sourced by vm.sh, which has `unable` and `lacking`.

# use_suites FOLDER SUITE...: what `apt_options` make apt see from now on. FOLDER keeps the lists.
use_suites() {
    local folder=$1 codename mirror suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed=
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    mirror=$(mirror_of "$codename")
    # The machine's own lists may never have been fetched; without them apt does not tell.
    [[ -n $mirror ]] || { apt-get update -qq && mirror=$(mirror_of "$codename"); } ||
        unable "no package lists can be had"
    [[ -n $mirror ]] || unable "apt names no Debian mirror"
    [[ ! -e $keyring ]] || signed="[signed-by=$keyring]"
    mkdir -p "$folder/lists/partial" "$folder/archives/partial"
    for suite in "${@:2}"; do echo "deb $signed $mirror $suite main"; done >"$folder/sources.list"
    apt_options=(-qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder" -o APT::Sandbox::User=root)
    apt-get "${apt_options[@]}" update || unable "the Debian mirror has no ${*:2}"
}

mirror_of() {
    # shellcheck disable=SC2016  # apt expands it
    apt-get indextargets --format '$(SITE)' "Created-By: Packages" "Origin: Debian" "Component: main" "Codename: $1" |
        sed -n 1p
}

# unpack FOLDER PACKAGE...
unpack() {
    local folder=$1 debs deb
    debs=$(mktemp -d)
    mkdir -p "$folder"
    (cd "$debs" && apt-get "${apt_options[@]}" download "${@:2}") || lacking "could not fetch ${*:2}"
    for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$folder"; done
    rm -rf "$debs"
}

# unpack_programs FOLDER SUITE PACKAGE PROGRAM [PACKAGE PROGRAM...]: the programs with all that they need, since this
# machine's libraries are older. In FOLDER/programs are scripts with their names, which start them with the loader of
# their own release.
unpack_programs() {
    local folder=$1 suite=$2 name packages wanted=() programs=()
    shift 2
    while (($#)); do
        wanted+=("$1")
        programs+=("$2")
        shift 2
    done
    mkdir -p "$folder"
    : >"$folder/none"
    # Nothing is installed, as apt is to see it. The names of the files become NAME=VERSION.
    mapfile -t packages < <(apt-get "${apt_options[@]}" -o "Dir::State::Status=$folder/none" --print-uris \
        --no-install-recommends -t "$suite" install "${wanted[@]}" | cut -d' ' -f2 |
        sed 's/_/=/; s/_.*//; s/%3a/:/')
    ((${#packages[@]})) || lacking "$suite has no ${wanted[*]}"
    rm -rf "$folder/tree" "$folder/programs"
    unpack "$folder/tree" "${packages[@]}"
    mkdir "$folder/programs"
    for name in "${programs[@]}"; do
        printf '#!/bin/sh\nexec %s "$@"\n' "$(loader_of "$folder/tree") $(program_of "$folder/tree" "$name")" \
            >"$folder/programs/$name"
        chmod +x "$folder/programs/$name"
    done
}

# loader_of TREE: the words that start a program of the tree with the tree's libraries.
loader_of() {
    echo "$1/usr/lib64/ld-linux-x86-64.so.2 --library-path $1/usr/lib/x86_64-linux-gnu"
}

# program_of TREE NAME
program_of() {
    local folder
    for folder in "$1"/usr/{s,}bin; do
        [[ ! -x $folder/$2 ]] || echo "$folder/$2"
    done
}

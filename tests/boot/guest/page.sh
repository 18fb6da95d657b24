#!/usr/bin/env bash
# The commands of a page, run as its reader runs them: as root, in one shell, in their order, as they stand there.
# CONTRIBUTING.md says which blocks are commands. Fails where one fails, prints something else than the page says, or
# leaves something attached. Otherwise it says how many blocks were run, and how many need what is not here.
#
#   page.sh PAGE
set -euo pipefail

main() {
    local page=$1 folder unit file
    unit=page-$(basename "$page" .md | tr '[:upper:]' '[:lower:]')-$(dirname "$page" | tr ./ --)
    folder=/pages/$unit
    blocks "$page" "$folder"
    if compgen -G "$folder/*.sh" >"$folder/list"; then
        page_script "$folder" >"$folder/script"
        systemd-run --quiet --wait --collect --unit="$unit" --working-directory=/packages --setenv=HOME=/root \
            --setenv=DEBIAN_FRONTEND=noninteractive --property=TimeoutStopSec=20 bash "$folder/script" ||
            failed "$page" "$folder"
        for file in "$folder"/*.text; do
            [ ! -e "${file%.text}.said" ] || printed "$page" "${file%.text}"
        done
    fi
    told "$page" "$folder"
}

# blocks PAGE FOLDER: a file N.sh for each block of commands, N.text with the lines that it is to print, and not-run
# with what each block needs that is not run here.
blocks() {
    mkdir -p "$2"
    : >"$2/not-run"
    awk -v folder="$2" '
        /^ *```/ && inside { inside = 0; next }
        /^ *```/ {
            inside = 1
            match($0, /```/)
            indent = RSTART
            words = split(substr($0, RSTART + 3), word, " ")
            kind = word[1]
            needs = word[2]
            sub(/^needs=/, "", needs)
            if (kind == "console") print needs >>(folder "/not-run")
            if (kind == "sh") {
                file = sprintf("%s/%03d", folder, NR)
                printf "" >(file ".sh")
                if (needs != "") print needs >(file ".needs")
            }
            if (kind != "sh" && kind != "text") file = ""
            next
        }
        inside && file != "" { print substr($0, indent) >(file "." kind) }
    ' "$1"
}

# page_script FOLDER: all blocks of a page as one script. What each prints goes to a file of its own.
page_script() {
    local block name program
    echo "set -e"
    for block in "$1"/*.sh; do
        name=${block%.sh}
        if [ -e "$name.needs" ]; then
            program=$(cat "$name.needs")
            if ! command -v "$program" >/dev/null; then
                echo "$program" >>"$1/not-run"
                continue
            fi
        fi
        printf 'exec >%s.said 2>&1\n' "$name"
        cat "$block"
    done
    # Only README begins before there are programs.
    printf 'exec >%s/left 2>&1\nif ringfab list --json | grep pid; then exit 1; fi\n' "$1"
}

# failed PAGE FOLDER: the command of the last block that was begun.
failed() {
    local last
    last=$(find "$2" -name '*.said' | sort | tail -n 1)
    last=${last%.said}
    [ ! -s "$2/left" ] || fail "$1 leaves something attached" "$2/left"
    fail "$1, line $((10#$(basename "$last"))): a command failed" "$last.sh" "$last.said"
}

# fail WHAT FILE...
fail() {
    echo "FAILED: $1:"
    cat "${@:2}"
    exit 1
}

# printed PAGE BLOCK: the lines that the page shows are there, in this order. Spaces are one, and … is anything.
printed() {
    local wanted pattern line found
    exec 3< <(squeezed "$2.said")
    while IFS= read -r wanted; do
        # shellcheck disable=SC2001  # several patterns
        pattern=$(sed 's/[][\\*?(|)]/\\&/g; s/ *… */*/g' <<<"$wanted")
        found=''
        # shellcheck disable=SC2053  # it is a pattern
        while IFS= read -r -u 3 line; do [[ $line != $pattern ]] || { found=yes && break; }; done
        [ -n "$found" ] || fail "$1, line $((10#$(basename "$2"))): no line as '$wanted' in" "$2.said"
    done < <(squeezed "$2.text")
    exec 3<&-
}

squeezed() { sed 's/[[:space:]]\+/ /g; s/^ //; s/ $//' "$1"; }

# told PAGE FOLDER: how many blocks were run, and how many need what is not here.
told() {
    local run=0 others
    run=$(find "$2" -name '*.said' | wc -l)
    others=$(sort "$2/not-run" | uniq -c | sed 's/^ *//' | paste -s -d ',' | sed 's/,/, /g')
    [ "$run$others" != 0 ] || return 0
    echo "$1: $run blocks were run${others:+; not run, by what they need: $others}"
}

main "$@"

#!/usr/bin/env bash
# What lib.sh promises: at the end of a script the processes that it has started end, whatever numbers they have, and
# its folder goes; and what passed at its second try only is named at the end of all steps.
set -euo pipefail
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"

begin
script="
    . tests/scripts/lib.sh
    begin
    start first sleep 60
    # As if the system had given the number of a process that has ended to another one.
    PIDS+=(\"\$STARTED\")
    start second sleep 60
    printf '%s\n' \"\$TMP\" \"\${PIDS[@]}\" >'$TMP/made'
"
bash -euo pipefail -c "$script" || fail "processes with one number break the end of a script"
{
    read -r folder
    [ ! -e "$folder" ] || fail "the folder of a script stays"
    while read -r pid; do
        [ ! -e "/proc/$pid" ] || fail "a process of a script stays"
    done
} <"$TMP/made"

mkdir "$TMP/bin"
cat >"$TMP/bin/make" <<'END'
#!/usr/bin/env bash
. tests/scripts/lib.sh
tried_again "second try: $2"
END
chmod +x "$TMP/bin/make"
PATH="$TMP/bin:$PATH" tests/scripts/steps.sh one two >"$TMP/said"
grep -q 'there should be none): 2$' "$TMP/said" || fail "second tries are not counted: $(cat "$TMP/said")"
grep -q '^    second try: two$' "$TMP/said" || fail "second tries are not named: $(cat "$TMP/said")"

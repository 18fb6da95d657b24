# shellcheck shell=bash disable=SC2154 # lib.sh has the variables
# The table of commands: what nvme-cli asked of our target, what it was answered, and what was checked of the answer.
# The rows are written by the checks themselves and compared with COMMANDS.md, so that it says what is.

# Answers that were not the expected ones. The scenario goes on, to show all of them, and fails at its end.
wrong=0

# works CHECKED COMMAND...: must succeed; what it says is in /tmp/said.
works() {
    local checked=$1
    shift
    if "$@" >/tmp/said 2>/tmp/complaints; then
        row "success" "$checked" "$@"
    else
        wrong "$*" "success" "$(</tmp/complaints)"
    fi
}

# refused STATUS CHECKED COMMAND...: must fail with this status.
refused() {
    local wanted=$1 checked=$2 answer
    shift 2
    if "$@" >/tmp/said 2>&1; then
        wrong "$*" "$wanted" "success"
        return
    fi
    # In pure bash: a process more for each row is felt under emulation.
    answer=$(</tmp/said)
    if [[ $answer == *'Permission denied'* ]]; then
        not_asked "$@"
        return
    fi
    if [[ $answer =~ .*\((0x[0-9a-f]+)\) ]] && ((BASH_REMATCH[1] % 0x800 == STATUS_CODES[$wanted])); then
        row "$wanted" "$checked" "$@"
    else
        wrong "$*" "$wanted" "$answer"
    fi
}

# Status codes with their types; above are More and Do Not Retry.
declare -A STATUS_CODES=(
    ["Invalid Command Opcode"]=0x001
    ["Invalid Field in Command"]=0x002
    ["Invalid Namespace or Format"]=0x00b
    ["Command Sequence Error"]=0x00c
    ["LBA Out of Range"]=0x080
    ["Invalid Log Page"]=0x109
    ["Compare Failure"]=0x285
)

wrong() {
    echo "WRONG: $1: wanted $2, got: $3"
    wrong=$((wrong + 1))
}

none_wrong() {
    ((wrong == 0)) || fail "$wrong answers are wrong"
}

# row ANSWER CHECKED COMMAND...
row() {
    first_cell "${@:3}"
    printf '%s %s | %s |\n' "$REPLY" "$1" "$2" >>"$commands"
}

# Newer kernels let nobody send some commands. Their rows of the table are proved by other lanes.
not_asked() {
    first_cell "$@"
    echo "the kernel does not let it through: $*"
    echo "$REPLY" >>"$unasked"
}

# first_cell COMMAND...: of its row, in REPLY.
first_cell() {
    local command=$*
    command=${command//$ns1/NAMESPACE}
    command=${command//$ns2/NAMESPACE}
    command=${command//$device/CONTROLLER}
    REPLY="| \`$command\` |"
}

# says NAME VALUE: the JSON that the last command said has this first value of that name.
says() {
    has "$1" "$2" "$(</tmp/said)"
}

# said NAME: that value, in REPLY.
said() {
    value_of "$1" "$(</tmp/said)"
}

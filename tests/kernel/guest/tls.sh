# shellcheck shell=bash disable=SC2154,SC2034 # lib.sh has the variables, and scenarios use those of here
# TLS at the kernel's end, and keys for both.
#
# The kernel leaves the handshake to tlshd, which finds the keys where the kernel has them: in the keyring .nvme. Its
# host and its target share that, ours have files.

host=nqn.2014-08.org.nvmexpress:uuid:5a5a5a5a-0000-4000-8000-000000000040
discovery=nqn.2014-08.org.nvmexpress.discovery
keys=/tmp/keys

# It runs until the machine ends. Only some machines have it.
start_tlshd() {
    [[ -n $(type -P tlshd) ]] || not_here "this machine has no tlshd"
    modprobe -a nvme-keyring tls
    [[ ! -e /tmp/tlshd.conf ]] || return 0
    printf '[debug]\nloglevel=1\n[authenticate]\n' >/tmp/tlshd.conf
    tlshd -s -c /tmp/tlshd.conf >>"$tlshd_log" 2>&1 &
    wait_for 20 grep -q 'Kernel capabilities' "$tlshd_log"
}

# new_key NAME [HASH]: in a file and in REPLY, in the form in which it is configured. SHA-256 is 1, SHA-384 is 2.
new_key() {
    mkdir -p $keys
    REPLY=$(umask 077 && nvme gen-tls-key --hmac="${2:-1}")
    (umask 077 && echo "$REPLY" >"$keys/$1")
}

# The kernel's key of `host` for a subsystem.
# insert_key KEY VERSION OF THE IDENTITY [NQN]
insert_key() {
    nvme check-tls-key --hostnqn="$host" --subsysnqn="${3:-$nqn}" --keydata="$1" --identity="$2" --insert
}

forget_keys() {
    keyctl clear %:.nvme
}

# generated_keys: the names of those that secure channel concatenation made and that are still valid, in REPLY.
generated_keys() {
    REPLY=$(keyctl show %:.nvme | grep -o 'psk: NVMe1G.*' || true)
}

# kernel_has NAME VALUE: of the controller that is connected.
kernel_has() {
    first_line "/sys/class/nvme/$controller/$1"
    expect "$1 of $controller" "$REPLY" "$2"
}


# guard LISTENER SUBSYSTEM LINE...: what is required of whom at our target, and what the host's table has.
guard() {
    grep -q '^tls = ' /tmp/target.toml || cp /tmp/target.toml /tmp/open.toml
    sed -e "/^\[\[listener\]\]/a tls = \"$1\"" -e "/^nqn = \"$nqn\"/a tls = \"$2\"" /tmp/open.toml >/tmp/target.toml
    printf '%s\n' '[[host]]' "nqn = \"$host\"" "${@:3}" >>/tmp/target.toml
    control reload
}

# Starts a program of ours, for which the kernel has no TLS; the same with our command.
without_ktls=(python3 "$out/without_ktls.py")
ringfab_without_ktls=(timeout --foreground -k 5 60 "${far[@]}" "${without_ktls[@]}" "$bin/ringfab")

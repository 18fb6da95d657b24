#!/usr/bin/env bash
# Writes file after file in a directory, each synced, and notes in NOTES.noted what is there then.
#
#   writer.sh DIRECTORY NOTES
set -euo pipefail

stop=''
trap 'stop=yes' TERM
cd "$1"
number=0
while [ -z "$stop" ]; do
    file=$1/$((number % 40))
    head -c 256K /dev/urandom >"$2.new"
    sum=$(sha256sum <"$2.new" | cut -d ' ' -f 1)
    # From here to the next line of it, it may be the old one, the new one, or parts of both.
    echo "$file -" >>"$2.noted"
    cp "$2.new" "$file"
    sync "$file"
    echo "$file $sum" >>"$2.noted"
    number=$((number + 1))
done
# Whoever ends in order has something to write then.
sleep 1
echo ended >"$1/ended"

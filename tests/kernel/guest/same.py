#!/usr/bin/env python3
"""Compares what nvme-cli and `ringfab` say of the same thing, as JSON.

    same.py OURS THEIRS LEAST [WITHOUT,...] [OURS=THEIRS,...]

All keys that both have, under the same name or one of those that are given, have the same values. At least LEAST are
compared. Numbers may be text, and text may have dashes, blanks and capital letters.
"""

import json
import sys


def plain(value):
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        text = value.strip().lower().replace("-", "")
        try:
            return int(text, 0)
        except ValueError:
            return text
    return value


def flat(document):
    """LBA formats as numbers by their names, as `ringfab` has them."""
    found = dict(document)
    for index, one in enumerate(document.get("lbafs", [])):
        found[f"lbaf{index}"] = one["ms"] | one["ds"] << 16 | one["rp"] << 24
    return found


def main():
    with open(sys.argv[1], encoding="utf-8") as ours, open(sys.argv[2], encoding="utf-8") as theirs:
        ours, theirs = flat(json.load(ours)), flat(json.load(theirs))
    least = int(sys.argv[3])
    without = set(sys.argv[4].split(",")) if len(sys.argv) > 4 else set()
    names = dict(pair.split("=") for pair in sys.argv[5].split(",")) if len(sys.argv) > 5 else {}
    compared, wrong = 0, []
    for key, value in ours.items():
        other = names.get(key, key)
        if key in without or other not in theirs:
            continue
        compared += 1
        if plain(value) != plain(theirs[other]):
            wrong.append(f"{key}: ours {value!r}, nvme-cli {theirs[other]!r}")
    print(f"{compared} values are the same" if not wrong else "\n".join(wrong))
    if compared < least:
        sys.exit(f"only {compared} could be compared: ours {sorted(ours)}, nvme-cli {sorted(theirs)}")
    sys.exit(bool(wrong))


main()

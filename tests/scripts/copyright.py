#!/usr/bin/env python3
"""Whose work a program is, and under which licences: the copyright file of its package, of the crates that Cargo links
into it. The form is free, as Debian allows; the fields have the names of its machine-readable one.

copyright.py PROGRAM    prints it
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Of a choice of licences, the first one here is what it is used under.
PREFERRED = ["MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "Zlib"]

# Debian has these texts on every machine.
COMMON = {"Apache-2.0": "/usr/share/common-licenses/Apache-2.0"}

# Lines that are about an owner, and not of a licence's text.
OWNER = re.compile(r"^\W*(Copyright\s+(?:\(c\)|©|\d|by)?.*)$", re.IGNORECASE)
TEMPLATE = re.compile(
    r"yyyy|copyright (notice|holder|owner|licen[sc]e|and|law|statement|or)\b|name of copyright", re.IGNORECASE
)


def linked(program: str) -> list[dict]:
    """The crates of others that are in the program, on this architecture."""
    triple = re.search(r"host: (\S+)", run("rustc", "-vV"))[1]
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={triple}"))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [ident for ident, package in packages.items() if package["name"] == program]
    seen = set()
    while todo:
        ident = todo.pop()
        if ident in seen or any("proc-macro" in target["kind"] for target in packages[ident]["targets"]):
            continue
        seen.add(ident)
        todo += [
            dependency["pkg"]
            for dependency in nodes[ident]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
    others = [packages[ident] for ident in seen if packages[ident]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def notices(package: dict) -> list[pathlib.Path]:
    """The files of a crate that say who owns it and what others may do."""
    folder = pathlib.Path(package["manifest_path"]).parent
    about = re.compile("(?i)(licen[sc]e|copying|copyright|notice)")
    return sorted(path for path in folder.iterdir() if path.is_file() and about.match(path.name))


def owners(package: dict) -> list[str]:
    found = []
    for path in notices(package):
        for line in path.read_text(errors="replace").splitlines():
            match = OWNER.match(line)
            if match and re.search(r"\d{4}|\(c\)|©", line, re.IGNORECASE) and not TEMPLATE.search(line):
                found.append(re.sub(r"^Copyright\s*", "", match[1].strip(), flags=re.IGNORECASE))
    return list(dict.fromkeys(found)) or package["authors"] or [f"the authors of {package['name']}"]


def terms(package: dict) -> list[str]:
    """The licences that all hold, after the choice that their owners leave."""
    if package["license"] is None:
        return [package["name"]]
    chosen = []
    for part in re.split(r"\s+AND\s+", package["license"].replace("/", " OR ")):
        choices = [one.split(" WITH ")[0] for one in re.split(r"\s+OR\s+", part.strip("() "))]
        chosen.append(min(choices, key=lambda one: PREFERRED.index(one) if one in PREFERRED else len(PREFERRED)))
    return sorted(set(chosen))


def text_of(licence: str, packages: list[dict]) -> str:
    """The text, as a crate that has only this licence comes with it; the crates' owners are named elsewhere."""
    if licence in COMMON:
        return f"On Debian systems, the text is in {COMMON[licence]}."
    if licence == "MIT":
        text = (ROOT / "LICENSE").read_text()
        return text[text.index("Permission is") :]
    for package in packages:
        if licence == package["name"] and package["license"] is None:
            return (pathlib.Path(package["manifest_path"]).parent / package["license_file"]).read_text()
        if licence in terms(package):
            named = [path for path in notices(package) if licence.split("-")[0].lower() in path.name.lower()]
            for path in named + notices(package):
                return path.read_text(errors="replace")
    raise SystemExit(f"no text of {licence}")


def indented(text: str) -> str:
    return "\n".join(f" {line.rstrip()}" if line.strip() else " ." for line in text.strip().splitlines())


def stanza(files: str, whose: list[str], licences: list[str]) -> str:
    return f"Files: {files}\nCopyright: " + "\n           ".join(whose) + f"\nLicense: {' and '.join(licences)}\n"


def main() -> None:
    packages = linked(sys.argv[1])
    print("Upstream-Name: Ringfab")
    print("Comment: The program has crates of others in it, from Cargo's registry, and Rust's own library.\n")
    print(stanza("*", ["2026 The Ringfab authors"], ["MIT"]))
    print(stanza("rust/library/*", ["The Rust Project Developers"], ["MIT"]))
    for package in packages:
        print(stanza(f"crates/{package['name']}-{package['version']}/*", owners(package), terms(package)))
    licences = {"MIT"}.union(*(terms(package) for package in packages))
    for licence in sorted(licences):
        print(f"License: {licence}\n{indented(text_of(licence, packages))}\n")


main()

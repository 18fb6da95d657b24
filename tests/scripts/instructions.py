"""What a command costs, from dumps of callgrind.

instructions.py engine (NAME COUNT DUMP COUNT DUMP)...
    Two runs each, of COUNT commands: what a command costs is the difference, by the commands that one has more.

instructions.py verbs FOLDER
    The dumps of tests/kernel/guest/instructions.sh. A look that finds nothing is the difference of two loads of as many
    commands, one with pauses; a command is the difference of two loads without their looks. Waiting in the ring is no
    part of either.
"""

import collections
import re
import sys

# Where a line of ours is counted, by its file; the first that fits.
PARTS = [
    ("target/src/queue/", "queue: the life of a request"),
    ("target/src/nvm/", "queue: the life of a request"),
    ("target/src/resources/", "queue: the life of a request"),
    ("target/src/transport/", "transport: the requests of a command"),
    ("target/src/", "core: the loop"),
    ("common/fabric/src/rdma/verbs/", "provider over verbs"),
    ("common/fabric/src/rdma/iwarp/", "software RNIC"),
    ("common/proto/", "software RNIC"),
    ("common/fabric/src/", "fabric: what providers share"),
    ("common/memory/", "memory: buffers and leases"),
    ("common/reactor/src/sim", "simulated ring"),
    ("common/reactor/", "reactor"),
    ("common/block/", "block: the disk"),
    ("common/spec/", "spec"),
]
# The same for lines of the standard library, by the function that they are in.
MODULES = [
    ("ringfab_target::queue", PARTS[0][1]),
    ("ringfab_target::nvm", PARTS[1][1]),
    ("ringfab_target::resources", PARTS[2][1]),
    ("ringfab_target::transport", PARTS[3][1]),
    ("ringfab_target", PARTS[4][1]),
    ("ringfab_fabric::rdma::verbs", PARTS[5][1]),
    ("ringfab_fabric::rdma::iwarp", PARTS[6][1]),
    ("ringfab_proto", PARTS[6][1]),
    ("crc_fast", PARTS[6][1]),
    ("ringfab_fabric", PARTS[8][1]),
    ("ringfab_memory", PARTS[9][1]),
    ("ringfab_reactor::sim", PARTS[10][1]),
    ("ringfab_reactor", PARTS[11][1]),
    ("ringfab_block", PARTS[12][1]),
    ("ringfab_spec", PARTS[13][1]),
]
LIBRARIES = [("librxe", "the device's library"), ("libibverbs", "the device's library"), ("libc.so", "copies by libc")]

NAME = re.compile(r"(\w+)=(?:\((\d+)\))?\s*(.*)")


class Dump:
    """Own cost by place (object, file, function), and how often which function was called from where."""

    def __init__(self, path):
        self.cost = collections.Counter()
        self.calls = collections.Counter()
        self.events = []
        names = {"ob": {}, "fl": {}, "fn": {}}
        kinds = {"fi": "fl", "fe": "fl", "cfi": "fl", "cfl": "fl", "cfn": "fn", "cob": "ob"}
        here = {"ob": "", "fl": "", "fn": ""}
        called = {}
        skip = False
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                first = line[:1]
                if first.isdigit() or first in "+-*":
                    if skip:
                        skip = False
                        continue
                    for event, count in zip(self.events, line.split()[1:]):
                        self.cost[here["ob"], here["fl"], here["fn"], event] += int(count)
                    continue
                if line.startswith("events:"):
                    self.events = line.split()[1:]
                    continue
                match = NAME.match(line)
                if not match:
                    continue
                key, number, name = match.groups()
                if key == "calls":
                    callee = (called.get("ob", here["ob"]), called.get("fn", ""))
                    self.calls[(here["fn"], *callee)] += int(line[6:].split()[0])
                    called, skip = {}, True
                    continue
                kind = kinds.get(key, key)
                if kind not in names:
                    continue
                if name:
                    names[kind][number] = name
                name = names[kind].get(number, name)
                if key in ("cfn", "cob", "cfi", "cfl"):
                    called[kind] = name
                else:
                    here[kind] = name
                    if key == "fl":
                        here["fl"] = name

    def total(self, event="Ir"):
        return sum(count for (*_, one), count in self.cost.items() if one == event)

    def by_part(self, event="Ir"):
        parts = collections.Counter()
        for (library, file, function, one), count in self.cost.items():
            if one == event:
                parts[part_of(library, file, function)] += count
        return parts

    def by_function(self, event="Ir"):
        functions = collections.Counter()
        for (library, _, function, one), count in self.cost.items():
            if one == event:
                functions[library.rsplit("/", 1)[-1][:12] + " " + function] += count
        return functions


def part_of(library, file, function):
    for name, part in LIBRARIES:
        if name in library:
            return part
    for place, part in PARTS:
        if place in file:
            return part
    for module, part in MODULES:
        if module in function:
            return part
    return "all else"




def difference(one, two, commands):
    """What a command costs: by event, and its instructions by part."""
    events = {event: (two.total(event) - one.total(event)) / commands for event in one.events}
    parts = two.by_part()
    parts.subtract(one.by_part())
    return events, {part: count / commands for part, count in parts.items()}


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def show_parts(columns):
    """A line for each part, a column for each load."""
    row("part", *columns)
    row("---", *("---" for _ in columns))
    parts = sorted({part for column in columns.values() for part in column}, key=lambda part: ORDER.get(part, 99))
    for part in parts:
        counts = [column.get(part, 0) for column in columns.values()]
        if max(counts) >= 0.5:
            row(part, *(f"{count:.0f}" for count in counts))
    row("all", *(f"{sum(column.values()):.0f}" for column in columns.values()))


def show_events(columns):
    row("load", "instructions", "loads and stores", "D1 misses", "L2 misses")
    row("---", "---", "---", "---", "---")
    for name, events in columns.items():
        accesses = events["Dr"] + events["Dw"]
        missed = [events[f"{level}mr"] + events[f"{level}mw"] for level in ("D1", "DL")]
        row(name, f"{events['Ir']:.0f}", f"{accesses:.0f}", *(f"{count:.1f}" for count in missed))


def engine(arguments):
    events, parts = {}, {}
    for name, few, one, many, two in zip(*(arguments[index::5] for index in range(5))):
        found = difference(Dump(one), Dump(two), int(many) - int(few))
        events[name], parts[name] = found
    show_events(events)
    print()
    show_parts(parts)


class Load:
    """One load of the virtual machine."""

    def __init__(self, folder, name, commands):
        self.dump = Dump(f"{folder}/{name}")
        self.commands = commands
        # An idle core waits in its ring, for as long as nobody knows.
        self.parts = self.dump.by_part()
        self.parts.pop(REACTOR)
        self.missed = {level: self.dump.total(f"{level}mr") + self.dump.total(f"{level}mw") for level in ("D1", "DL")}
        called = collections.Counter()
        for (caller, library, _), count in self.dump.calls.items():
            if "librxe" in library and "librxe" not in caller:
                called[next((what for what, where in CALLS if where in caller), "else")] += count
        self.polls, self.sends, self.receives = called["poll"], called["send"], called["receive"]


REACTOR = "reactor"
# What a function of ours calls of the device's library.
CALLS = [
    ("poll", "poll_queue"),
    ("poll", "take_completions"),
    ("send", "::flush"),
    ("send", "::ring"),
    ("receive", "::fill"),
]
ORDER = {part: place for place, (_, part) in enumerate(PARTS)}


def verbs(folder):
    with open(f"{folder}/loads", encoding="ascii") as lines:
        commands = {name: int(count) for name, count in (line.split() for line in lines)}
    columns = {}
    for kind in ("read", "write", "fetched"):
        few, many, paused, short, long = (
            Load(folder, f"{kind}-{load}", commands[f"{kind}-{load}"])
            for load in ("1-a", "1-b", "1-paused", "32-a", "32-b")
        )
        looks = paused.polls - few.polls
        look = {part: (paused.parts[part] - few.parts[part]) / looks for part in few.parts | paused.parts}
        print(f"{kind}: a look at a completion queue that finds nothing: {sum(look.values()):.0f}")
        for depth, one, two in ((1, few, many), (32, short, long)):
            count, looks = two.commands - one.commands, two.polls - one.polls
            name = f"{kind}, depth {depth}"
            columns[name] = {
                part: (two.parts[part] - one.parts[part] - look.get(part, 0) * looks) / count
                for part in one.parts | two.parts
            }
            print(f"{name}: {(two.sends - one.sends) / count:.3f} doorbells for sends, ", end="")
            print(f"{(two.receives - one.receives) / count:.3f} for receives, {looks / count:.2f} looks, ", end="")
            missed = [(two.missed[level] - one.missed[level]) / count for level in ("D1", "DL")]
            print(f"{missed[0]:.1f} D1 misses, {missed[1]:.1f} L2 misses for each command")
    print()
    show_parts(columns)


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        engine(sys.argv[2:])
    else:
        verbs(sys.argv[2])

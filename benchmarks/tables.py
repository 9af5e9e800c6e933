"""The same logical table as a log of arrowlog's protocol and as a Delta log, written by hand.

Both say the same of the same files: partition value, size, rows, bounds and null counts of the
columns. Each is written the way its own writers do: Delta keeps statistics in one JSON text, here
bounds are maps of text. The table for PyIceberg is made of the same adds in `peers/iceberg.py`.

`python -m benchmarks.tables FOLDER WHO SHAPE` builds one, in a process of its own.
"""

import contextlib
import importlib
import json
import os
import random
import re
import shutil
import sys
import uuid
from dataclasses import dataclass, replace

from benchmarks.measure import ENGINES

TRAILING_ADDS = 10
COLUMNS = 4
FIELDS = [
    ("date", "date"),
    ("id", "long"),
    ("ts", "timestamp"),
    ("value", "double"),
    ("name", "string"),
]
COMPACT = {"separators": (",", ":")}
_BEGIN_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Shape:
    """How many commits, how many adds in each, and what comes on top."""

    commits: int
    adds: int
    trailing: int | None = None  # a checkpoint, and so many commits after it
    columns: int = COLUMNS  # with statistics
    varied: bool = False  # no two lines alike: fields in any order, some of them left out

    @property
    def files(self):
        return self.commits * self.adds

    @property
    def versions(self):
        return self.commits + (self.trailing or 0)

    @property
    def plain(self):
        """The same without a checkpoint and what comes after it."""
        return replace(self, trailing=None)

    def __str__(self):
        """For people."""
        if self.columns != COLUMNS:
            return f"{self.files:,} files, {self.columns} columns"
        if self.trailing is None:
            order = ", fields in any order" * self.varied
            return f"{self.commits:,} commits x {self.adds:,} file{'s' * (self.adds > 1)}{order}"
        return f"checkpoint of {self.files:,}, {self.trailing} commits"

    @property
    def name(self):
        """For a folder; `LineTemplate.named` reads it."""
        tail = "" if self.trailing is None else f"+{self.trailing}"
        return f"{self.commits}x{self.adds}x{self.columns}{tail}{'v' * self.varied}"

    @classmethod
    def named(cls, name):
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:\+(\d+))?(v?)", name)
        commits, adds, columns, trailing, varied = found.groups()
        trailing = None if trailing is None else int(trailing)
        return cls(int(commits), int(adds), trailing, int(columns), bool(varied))


def middle(shape):
    """The version that is travelled to."""
    return max(shape.versions // 2, 1)


def place(folder, who, shape):
    return os.path.join(folder, f"{who}-{shape.name}")


def is_built(folder, who, shape):
    return os.path.exists(os.path.join(place(folder, who, shape), "ready"))


def build(folder, who, shape):
    """Write the table of an engine."""
    root = place(folder, who, shape)
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    importlib.import_module(f"benchmarks.peers.{ENGINES[who]}").build(root, shape)
    with open(os.path.join(root, "ready"), "w") as out:
        out.write("whole")


def write_log(root, shape, checkpoint, *, delta, features=()):
    """All commits, with the checkpoint (a function) between them where the shape has one."""
    log = os.path.join(root, "_delta_log" if delta else "_transaction_log")
    os.makedirs(log)
    write(log, 0, opening(shape.columns, delta=delta, features=features))
    known = _plain_log(root, shape, log)
    for version, numbers in commits(shape):
        name = f"{version:020d}.json"
        if known and version <= shape.commits:
            os.link(os.path.join(known, name), os.path.join(log, name))
        else:
            lines = commit(version, numbers, shape.columns, delta=delta)
            write(log, version, varied(version, lines) if shape.varied else lines)
        if version == shape.commits and shape.trailing is not None:
            checkpoint(root)


def _plain_log(root, shape, log):
    """The log of the same commits without a checkpoint, if it is there: it need not be written."""
    folder, name = os.path.split(root)
    who = name.removesuffix(f"-{shape.name}")
    if shape.trailing is None or not is_built(folder, who, shape.plain):
        return None
    return os.path.join(place(folder, who, shape.plain), os.path.basename(log))


def commits(shape):
    """The version of each commit, and the numbers of the files it adds."""
    for version in range(1, shape.commits + 1):
        yield version, range((version - 1) * shape.adds, version * shape.adds)
    for number in range(shape.trailing or 0):
        first = shape.files + number * TRAILING_ADDS
        yield shape.commits + 1 + number, range(first, first + TRAILING_ADDS)


def write(log, version, lines):
    text = "\n".join(json.dumps(line, **COMPACT) for line in lines) + "\n"
    with open(os.path.join(log, f"{version:020d}.json"), "w") as out:
        out.write(text)


@contextlib.contextmanager
def news(log, count):
    """One more commit for a while, the last one with other paths; or none."""
    names = sorted(name for name in os.listdir(log) if re.fullmatch(r"\d+\.json", name))
    path = os.path.join(log, f"{int(names[-1][:20]) + 1:020d}.json")
    if count:
        with open(os.path.join(log, names[-1])) as source:
            text = source.read().replace("/part-", "/more-")
        with open(path, "w") as out:
            out.write(text)
    try:
        yield
    finally:
        if count:
            os.remove(path)


@contextlib.contextmanager
def copied(root):
    """The table again, for a while, to write to: the files are linked."""
    copy = f"{root}-scratch"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def fields(columns):
    return FIELDS + [(f"c{number:03d}", "long") for number in range(columns - COLUMNS)]


def opening(columns=COLUMNS, *, delta, features=()):
    told = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields(columns)]
    metadata = {
        "id": str(uuid.UUID(int=5)),
        "format": {"provider": "parquet" if delta else "indextables", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": told}),
        "partitionColumns": ["date"],
        # Statistics of all columns, not of the first 32 as is Delta's default.
        "configuration": {"delta.dataSkippingNumIndexedCols": "-1"} if delta else {},
        "createdTime": _BEGIN_MS,
    }
    protocol = {"minReaderVersion": 1 if delta else 2, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 3}
        protocol |= {"readerFeatures": [*features], "writerFeatures": [*features]}
    return [{"protocol": protocol}, {"metaData": metadata}]


def moment_ms(version):
    """When a commit was made."""
    return _BEGIN_MS + version * 1000


def commit(version, seq_numbers, columns=COLUMNS, *, delta):
    rng = random.Random(version)
    lines = [{"add": add(rng, number, columns, delta=delta)} for number in seq_numbers]
    info = {
        "timestamp": moment_ms(version),
        "operation": "WRITE",
        "operationParameters": {},
        "engineInfo": "benchmark",
        "txnId": str(uuid.UUID(int=rng.getrandbits(128))),
    }
    return [{"commitInfo": info}, *lines]


def varied(version, lines):
    """The same commit as other writers might write it: fields in any order, one more in some."""
    rng = random.Random(version)

    def shuffled(value):
        if not isinstance(value, dict):
            return value
        return {name: shuffled(value[name]) for name in rng.sample(list(value), len(value))}

    info, *adds = lines
    tagged = [{"add": {**line["add"], "tags": {"rows": str(rng.random())}}} for line in adds]
    return [info, *(shuffled(rng.choice(pair)) for pair in zip(adds, tagged, strict=True))]


def add(rng, number, columns=COLUMNS, *, delta):
    day = f"2024-{1 + number // 30 % 12:02d}-{1 + number % 28:02d}"
    seconds = f"{number % 60:02d}"
    low = {
        "id": number * 1000,
        "ts": f"{day}T00:00:{seconds}.000Z",
        "value": round(rng.random(), 6),
        "name": f"aa{number:07d}",
    }
    high = {
        "id": number * 1000 + 999,
        "ts": f"{day}T23:00:{seconds}.000Z",
        "value": round(1 + rng.random(), 6),
        "name": f"zz{number:07d}",
    }
    nulls = {"id": 0, "ts": 0, "value": number % 3, "name": 0}
    for extra in range(columns - COLUMNS):
        low[f"c{extra:03d}"] = number + extra
        high[f"c{extra:03d}"] = number + extra + 1000
        nulls[f"c{extra:03d}"] = 0
    rows = 900 + number % 200
    found = {
        "path": f"date={day}/part-{number:05d}-{uuid.UUID(int=rng.getrandbits(128))}.parquet",
        "partitionValues": {"date": day},
        "size": 1_000_000 + number,
        "modificationTime": _BEGIN_MS + number,
        "dataChange": True,
    }
    if delta:
        stats = {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls}
        return {**found, "stats": json.dumps(stats, **COMPACT)}
    return {
        **found,
        "stats": json.dumps({"nullCount": nulls}, **COMPACT),
        "minValues": {k: str(v) for k, v in low.items()},
        "maxValues": {k: str(v) for k, v in high.items()},
        "numRecords": rows,
    }


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2], Shape.named(sys.argv[3]))

"""Build the same logical table as an arrowlog log and as a Delta log, without either library.

Both logs have the same files, with partition value, size, number of rows, bounds and null counts.
Each is written as its own writers do: Delta has all statistics in one JSON text, arrowlog has maps
of strings for bounds. `peers/iceberg.py` builds the table for PyIceberg from the same adds.

`python -m benchmarks.tables FOLDER ENGINE SHAPE` builds one, in a process of its own.
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
    """The number of commits, the adds in each of them, and variations."""

    commits: int
    adds: int
    trailing: int | None = None  # a checkpoint, and this many commits after it
    columns: int = COLUMNS  # with statistics
    varied: bool = False  # every line differs: fields in any order, an optional field in some
    removed: int = 0  # percentage of each commit's files that the next commit removes

    @property
    def files(self):
        """The number of files added before the checkpoint, if there is one."""
        return self.commits * self.adds

    @property
    def versions(self):
        """The last version."""
        return self.commits + (self.trailing or 0)

    @property
    def plain(self):
        """The same shape without a checkpoint and the commits after it."""
        return replace(self, trailing=None)

    def __str__(self):
        """The label in tables and goals."""
        if self.removed:
            size = f"{self.commits:,} commits x {self.adds:,} files"
            return f"{size}, {self.columns} columns, {self.removed} % removed"
        if self.columns != COLUMNS:
            return f"{self.files:,} files, {self.columns} columns"
        if self.trailing is None:
            order = ", fields in any order" * self.varied
            return f"{self.commits:,} commits x {self.adds:,} file{'s' * (self.adds > 1)}{order}"
        return f"checkpoint of {self.files:,}, {self.trailing} commits"

    @property
    def name(self):
        """The name of the table's folder; `Shape.named` parses it."""
        tail = "" if self.trailing is None else f"+{self.trailing}"
        removed = f"r{self.removed}" if self.removed else ""
        return f"{self.commits}x{self.adds}x{self.columns}{tail}{'v' * self.varied}{removed}"

    @classmethod
    def named(cls, name):
        """The shape with that `name`."""
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:\+(\d+))?(v?)(?:r(\d+))?", name)
        commits, adds, columns, trailing, varied, removed = match.groups()
        trailing = None if trailing is None else int(trailing)
        percent = int(removed or 0)
        return cls(int(commits), int(adds), trailing, int(columns), bool(varied), percent)


def middle(shape):
    """The version in the middle of the history."""
    return max(shape.versions // 2, 1)


def place(folder, engine, shape):
    """The folder of a table."""
    return os.path.join(folder, f"{engine}-{shape.name}")


def is_built(folder, engine, shape):
    """Whether a table exists completely."""
    return os.path.exists(os.path.join(place(folder, engine, shape), "ready"))


def build(folder, engine, shape):
    """Write the table of an engine."""
    root = place(folder, engine, shape)
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    importlib.import_module(f"benchmarks.peers.{ENGINES[engine]}").build(root, shape)
    with open(os.path.join(root, "ready"), "w") as out:
        out.write("whole")


def write_log(root, shape, checkpoint, *, delta, features=()):
    """Write all commits; `checkpoint(root)` is called where the shape has a checkpoint."""
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
            lines += removes(version, shape, delta=delta)
            write(log, version, varied(version, lines) if shape.varied else lines)
        if version == shape.commits and shape.trailing is not None:
            checkpoint(root)


def _plain_log(root, shape, log):
    """The log of the same commits without a checkpoint, if it exists: its files can be linked."""
    folder, name = os.path.split(root)
    engine = name.removesuffix(f"-{shape.name}")
    if shape.trailing is None or not is_built(folder, engine, shape.plain):
        return None
    return os.path.join(place(folder, engine, shape.plain), os.path.basename(log))


def commits(shape):
    """Yields the version of each commit, and the numbers of the files it adds."""
    for version in range(1, shape.commits + 1):
        yield version, range((version - 1) * shape.adds, version * shape.adds)
    for number in range(shape.trailing or 0):
        first = shape.files + number * TRAILING_ADDS
        yield shape.commits + 1 + number, range(first, first + TRAILING_ADDS)


def write(log, version, lines):
    """Write a commit."""
    text = "\n".join(json.dumps(line, **COMPACT) for line in lines) + "\n"
    with open(os.path.join(log, f"{version:020d}.json"), "w") as out:
        out.write(text)


@contextlib.contextmanager
def news(log, count):
    """While the context is open, the log has `count` (0 or 1) more commits, with new files."""
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
    """A temporary copy of a table that can be written to; its files are linked."""
    copy = f"{root}-scratch"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def fields(columns):
    """(name, type) of all columns, of which the first is the partition column."""
    return FIELDS + [(f"c{number:03d}", "long") for number in range(columns - COLUMNS)]


def opening(columns=COLUMNS, *, delta, features=()):
    """The actions of version 0."""
    schema_fields = [
        {"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields(columns)
    ]
    metadata = {
        "id": str(uuid.UUID(int=5)),
        "format": {"provider": "parquet" if delta else "indextables", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": schema_fields}),
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
    """The timestamp of a commit."""
    return _BEGIN_MS + version * 1000


def commit(version, seq_numbers, columns=COLUMNS, *, delta):
    """The actions of a commit that adds the files with these numbers."""
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


def removes(version, shape, *, delta):
    """The removes of a commit: the first files of the commit before it."""
    count = shape.adds * shape.removed // 100
    if not count or version == 1:
        return []
    first = (version - 2) * shape.adds
    _, *lines = commit(version - 1, range(first, first + count), shape.columns, delta=delta)
    paths = [line["add"]["path"] for line in lines]
    moment = moment_ms(version)
    return [
        {"remove": {"path": path, "deletionTimestamp": moment, "dataChange": True}}
        for path in paths
    ]


def varied(version, lines):
    """The same actions as other writers may write them: fields in any order, tags in some adds."""
    rng = random.Random(version)

    def shuffled(value):
        if not isinstance(value, dict):
            return value
        return {name: shuffled(value[name]) for name in rng.sample(list(value), len(value))}

    info, *adds = lines
    tagged = [{"add": {**line["add"], "tags": {"rows": str(rng.random())}}} for line in adds]
    return [info, *(shuffled(rng.choice(pair)) for pair in zip(adds, tagged, strict=True))]


def add(rng, number, columns=COLUMNS, *, delta):
    """The add of a file, in the form of either format."""
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
    common = {
        "path": f"date={day}/part-{number:05d}-{uuid.UUID(int=rng.getrandbits(128))}.parquet",
        "partitionValues": {"date": day},
        "size": 1_000_000 + number,
        "modificationTime": _BEGIN_MS + number,
        "dataChange": True,
    }
    if delta:
        stats = {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls}
        return {**common, "stats": json.dumps(stats, **COMPACT)}
    return {
        **common,
        "stats": json.dumps({"nullCount": nulls}, **COMPACT),
        "minValues": {k: str(v) for k, v in low.items()},
        "maxValues": {k: str(v) for k, v in high.items()},
        "numRecords": rows,
    }


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2], Shape.named(sys.argv[3]))

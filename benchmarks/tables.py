"""The same logical table as a log of arrowlog's protocol and as a Delta log, written by hand.

Both say the same of the same files: partition value, size, rows, bounds and null counts of four
columns. Each is written the way its own writers do: Delta keeps statistics in one JSON text, here
bounds are maps of text.
"""

import json
import os
import random
import shutil
import uuid

FIELDS = [
    ("date", "date"),
    ("id", "long"),
    ("ts", "timestamp"),
    ("value", "double"),
    ("name", "string"),
]
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in FIELDS],
    }
)


def build(folder, commits, adds, *, delta):
    """Write the table unless it is there; returns its path."""
    root = os.path.join(folder, f"{'delta' if delta else 'arrowlog'}-{commits}x{adds}")
    if os.path.exists(os.path.join(root, "ready")):
        return root
    shutil.rmtree(root, ignore_errors=True)
    log = os.path.join(root, "_delta_log" if delta else "_transaction_log")
    os.makedirs(log)
    rng = random.Random(7)
    for version in range(commits + 1):
        lines = opening(delta=delta) if version == 0 else commit(rng, version, adds, delta=delta)
        write(log, version, lines)
    with open(os.path.join(root, "ready"), "w") as out:
        out.write("whole")
    return root


def write(log, version, lines):
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n"
    with open(os.path.join(log, f"{version:020d}.json"), "w") as out:
        out.write(text)


def opening(*, delta):
    provider = "parquet" if delta else "indextables"
    metadata = {
        "id": str(uuid.UUID(int=5)),
        "format": {"provider": provider, "options": {}},
        "schemaString": SCHEMA,
        "partitionColumns": ["date"],
        "configuration": {},
        "createdTime": 1_700_000_000_000,
    }
    reader = 1 if delta else 2
    return [
        {"protocol": {"minReaderVersion": reader, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]


def commit(rng, version, adds, *, delta):
    first = (version - 1) * adds
    lines = [{"add": add(rng, first + i, delta=delta)} for i in range(adds)]
    info = {
        "timestamp": 1_700_000_000_000 + version * 1000,
        "operation": "WRITE",
        "operationParameters": {},
        "engineInfo": "benchmark",
        "txnId": str(uuid.UUID(int=rng.getrandbits(128))),
    }
    return [{"commitInfo": info}, *lines]


def add(rng, number, *, delta):
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
    rows = 900 + number % 200
    found = {
        "path": f"date={day}/part-{number:05d}-{uuid.UUID(int=rng.getrandbits(128))}.parquet",
        "partitionValues": {"date": day},
        "size": 1_000_000 + number,
        "modificationTime": 1_700_000_000_000 + number,
        "dataChange": True,
    }
    compact = {"separators": (",", ":")}
    if delta:
        stats = {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls}
        return {**found, "stats": json.dumps(stats, **compact)}
    return {
        **found,
        "stats": json.dumps({"nullCount": nulls}, **compact),
        "minValues": {k: str(v) for k, v in low.items()},
        "maxValues": {k: str(v) for k, v in high.items()},
        "numRecords": rows,
    }

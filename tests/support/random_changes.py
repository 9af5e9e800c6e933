"""Random changes of a table: commits, checkpoints, truncation, and replacement by a new one."""

import shutil

import polars as pl
import pyarrow as pa

import arrowlog

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
NEVER = {"checkpoint.enabled": False}


def add(rng, number):
    low = rng.randrange(1000)
    day = f"d{rng.randrange(3)}"
    return arrowlog.add_file(
        f"day={day}/{number}.parquet",
        partition_values={"day": day},
        size=rng.randrange(1, 10**6),
        modification_time=rng.randrange(10**12),
        num_records=rng.randrange(100),
        min_values={"id": low},
        max_values={"id": low + 5},
    )


def said(table):
    """Return everything that a user can see of the newest version."""
    snap = table.snapshot()
    files = pl.DataFrame(snap.files).sort("path")
    return (
        snap.version,
        snap.metadata,
        snap.protocol,
        snap.schema,
        snap.state.timestamp,
        dict(snap.state.txns),
        {name: files[name].to_list() for name in sorted(files.columns)},
        sorted(table.scan("day = 'd1' AND id > 500").paths),
    )


def step(rng, root, number):
    """Change the table at random."""
    table = arrowlog.Table(root, options=NEVER)
    kind = rng.choice(["append", "append", "txn", "remove", "checkpoint", "anew", "properties"])
    if kind == "append":
        table.append([add(rng, f"{number}-{i}") for i in range(rng.randrange(1, 12))])
    elif kind == "txn":
        table.commit(adds=[add(rng, number)], operation="WRITE", txn=("app", number))
    elif kind == "remove":
        paths = table.snapshot().files["path"].to_pylist()
        table.remove(rng.sample(paths, min(len(paths), 2))) if paths else None
    elif kind == "checkpoint":
        table.checkpoint()
        if rng.random() < 0.15:
            table.truncate_history()
    elif kind == "properties":
        table.set_properties({"note": str(number)})
    elif rng.random() < 0.3:
        shutil.rmtree(root)
        arrowlog.Table.create(root, SCHEMA, ["day"])

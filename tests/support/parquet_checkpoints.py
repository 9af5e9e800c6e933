"""Parquet checkpoints with small row groups and parts, and everything that a snapshot says."""

from __future__ import annotations

import json

import arrowlog
from arrowlog.config import resolve
from arrowlog.formats.indextables.commit_encoder import encode_adds
from arrowlog.formats.indextables.format import CHECKPOINT_FOLDER_NAME, LOG_FOLDER
from arrowlog.snapshot.checkpoint import parquet
from arrowlog.snapshot.checkpoint import rows as checkpoint_rows


def small_groups(monkeypatch, rows: int) -> None:
    """Limit row groups to a number of files."""
    monkeypatch.setattr(checkpoint_rows, "ROW_GROUP_FILES", rows)
    monkeypatch.setattr(parquet, "ROW_GROUP_FILES", rows)


def keys(names) -> list[str]:
    """Return the keys of files in the folder of checkpoints."""
    return [f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/{name}" for name in names]


def write(root, version, *, own="0123456789ab", **options):
    """Write the Parquet checkpoint of a version."""
    table = arrowlog.Table(root)
    given = {key.replace("_", "."): value for key, value in options.items()}
    state = table.snapshot(version=version).state
    return parquet.write_parquet_form(
        table._store, state, resolve(given), now_ms=1_700_000_000_000, new_id=own
    )


def folder(root):
    return f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}"


def said(snapshot):
    """Return everything that a snapshot says, independent of the order of files."""
    state = snapshot.state
    adds = [without_nulls(json.loads(line)["add"]) for line in encode_adds(state.adds)]
    keys = dict(zip(state.column("path").to_pylist(), state.column("key").to_pylist(), strict=True))
    files = [{**row, "path": keys[row["path"]]} for row in snapshot.files.to_pylist()]
    return {
        "adds": sorted(adds, key=lambda add: add["path"]),
        "files": sorted(files, key=lambda row: row["path"]),
        "num_files": snapshot.num_files,
        "size_bytes": snapshot.size_bytes,
        "num_records": snapshot.num_records,
        "metadata": snapshot.metadata,
        "protocol": snapshot.protocol,
        "timestamp": state.timestamp,
        "txns": dict(state.txns),
    }


def without_nulls(add):
    """Return an add without nulls: a null equals an absent value, in maps too."""
    kept = {name: value for name, value in add.items() if value is not None}
    for name in ("partitionValues", "minValues", "maxValues"):
        if name in kept:
            kept[name] = {key: value for key, value in kept[name].items() if value is not None}
        if not kept.get(name):
            kept.pop(name, None)
    return kept

"""Parquet checkpoints with small row groups and parts, and everything that a snapshot says."""

from __future__ import annotations

import json

import arrowlog
from arrowlog.config import resolve
from arrowlog.formats.indextables.commit_encoder import encode_adds
from arrowlog.formats.indextables.format import CHECKPOINT_FOLDER_NAME, LOG_FOLDER
from arrowlog.maintenance import checkpointing
from arrowlog.snapshot.checkpoint import incremental, parquet
from arrowlog.snapshot.checkpoint import rows as checkpoint_rows
from arrowlog.snapshot.checkpoint.parts import decode_manifest


def small_groups(monkeypatch, rows: int) -> None:
    """Limit row groups to a number of files."""
    monkeypatch.setattr(checkpoint_rows, "ROW_GROUP_FILES", rows)
    monkeypatch.setattr(parquet, "ROW_GROUP_FILES", rows)


def share_small_parts(monkeypatch, *, folded: int = 0, dead: float = 0.9) -> None:
    """Let tables of a few files have incremental checkpoints, and none in JSON.

    Parts of fewer than `folded` files are folded, and up to a share of `dead` rows is kept.
    """
    monkeypatch.setattr(parquet, "SHARED_FILES_MIN", 1)
    monkeypatch.setattr(incremental, "FOLDED_FILES_MAX", folded)
    monkeypatch.setattr(incremental, "_FOLDED_RATIO_MAX", 0)
    monkeypatch.setattr(incremental, "DEAD_SHARE_MAX", dead)
    monkeypatch.setattr(checkpointing, "JSON_FILES_MAX", 0)


def manifest(root, version):
    """Return the manifest of a version's Parquet checkpoint."""
    name = f"{version:020d}.checkpoint.json"
    with open(f"{folder(root)}/{name}", "rb") as file:
        return decode_manifest(file.read(), version, name)


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

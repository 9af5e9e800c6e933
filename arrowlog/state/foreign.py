"""Parquet checkpoints of other programs: one flat row an action, maps for what has keys. Pure.

A row has `actionType`, and the fields of that action: for `add` path, partitionValues, size,
numRecords, minValues, maxValues and whatever else an add may have; for `metadata` metadataId,
schemaString, partitionColumns, format. What such a checkpoint does not say stays unknown.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt
from arrowlog.log.actions import ADD, FLAT_FIELDS, Kind, Metadata, Protocol
from arrowlog.log.arrays import scalar
from arrowlog.state.apply import live_keys, schema_of
from arrowlog.state.snapshot import State

_NEEDED = ("path", "size")


def read_foreign(rows: pa.Table, version: int, root: str, *, outside: bool) -> State:
    """The state that the rows of a checkpoint say."""
    if "actionType" not in rows.column_names:
        what = "the Parquet checkpoint has no column actionType: its layout is not known."
        raise LogCorrupt(what, next="Delete it if its commits are there.", version=version)
    kinds = pc.ascii_lower(pc.cast(rows["actionType"], pa.string()))
    metadata = _metadata(rows.filter(pc.equal(kinds, scalar("metadata", pa.string()))), version)
    adds = _adds(rows.filter(pc.equal(kinds, scalar("add", pa.string()))), version)
    keyed = live_keys(adds, root, version, outside=outside)
    return State(version, Protocol(), metadata, schema_of(metadata, version), keyed)


def _metadata(rows: pa.Table, version: int) -> Metadata:
    found: list[dict[str, Any]] = rows.slice(0, 2).to_pylist()
    if len(found) != 1 or not isinstance(found[0].get("schemaString"), str):
        what = f"the Parquet checkpoint has {len(found) or 'no'} metadata, or one without a schema."
        raise LogCorrupt(what, next="Delete it if its commits are there.", version=version)
    row = found[0]
    form = dict(row.get("format") or ())
    return Metadata(
        id=row.get("metadataId") or "",
        schema_string=row["schemaString"],
        partition_columns=tuple(row.get("partitionColumns") or ()),
        configuration={k: v for k, v in dict(row.get("configuration") or ()).items() if v},
        format_provider=form.pop("provider", None) or "indextables",
        format_options={k: v for k, v in form.items() if v is not None},
    )


def _adds(rows: pa.Table, version: int) -> pa.Table:
    for name in _NEEDED:
        if name not in rows.column_names or rows[name].null_count:
            what = f"the Parquet checkpoint has an add without {name}."
            raise LogCorrupt(what, next="Delete it if its commits are there.", version=version)
    found: dict[str, pa.ChunkedArray] = {}
    for name, kind in ADD.items():
        if name not in rows.column_names:
            continue
        column = rows[name]
        if name in FLAT_FIELDS:
            if pa.types.is_map(column.type):
                found |= _members(name, column)
        elif kind is Kind.WORD:
            found[name] = pc.cast(column, pa.string()).dictionary_encode()
        elif not pa.types.is_nested(column.type):
            found[name] = pc.cast(column, kind.type)
    return pa.table(found)


def _members(name: str, maps: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """A map of text as a column for each key there is."""
    whole = maps.combine_chunks()
    keys = pc.unique(pc.cast(whole.keys, pa.string())).to_pylist() if len(whole) else []
    found = {}
    for key in keys:
        values = pc.map_lookup(whole, key, "last")
        found[f"{name}.{key}"] = pa.chunked_array([pc.cast(values, pa.string())])
    return found

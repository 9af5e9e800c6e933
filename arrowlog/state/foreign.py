"""Reads Parquet checkpoints of other programs. Pure.

They have one flat row per action: `actionType` and the fields of that action, with maps for keyed
fields. For `add` these are path, partitionValues, size, numRecords, minValues, maxValues and any
other field of an add; for `metadata` metadataId, schemaString, partitionColumns, format. What such
checkpoints do not record (protocol, commit times, application transactions) is unknown in the
state.
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

_REQUIRED_FIELDS = ("path", "size")
_NEXT = "Delete it if the commits up to its version exist."


def read_foreign(rows: pa.Table, version: int, root: str, *, outside: bool) -> State:
    """Build the state from the rows of a checkpoint.

    Raises `LogCorrupt` if the layout is unknown, there is not exactly one metadata row, an add
    lacks a required field, a file occurs twice, or a path leads out of the table.
    """
    if "actionType" not in rows.column_names:
        what = "the Parquet checkpoint has no column actionType: its layout is unknown."
        raise LogCorrupt(what, next=_NEXT, version=version)
    kinds = pc.ascii_lower(pc.cast(rows["actionType"], pa.string()))
    metadata = _metadata(rows.filter(pc.equal(kinds, scalar("metadata", pa.string()))), version)
    adds = _adds(rows.filter(pc.equal(kinds, scalar("add", pa.string()))), version)
    keyed = live_keys(adds, root, version, outside=outside)
    return State(version, Protocol(), metadata, schema_of(metadata, version), keyed)


def _metadata(rows: pa.Table, version: int) -> Metadata:
    actions: list[dict[str, Any]] = rows.slice(0, 2).to_pylist()  # two show that it is not one
    if len(actions) != 1 or not isinstance(actions[0].get("schemaString"), str):
        what = "the Parquet checkpoint must have one metadata row, with a schemaString."
        raise LogCorrupt(what, next=_NEXT, version=version)
    row = actions[0]
    table_format = dict(row.get("format") or ())
    return Metadata(
        id=row.get("metadataId") or "",
        schema_string=row["schemaString"],
        partition_columns=tuple(row.get("partitionColumns") or ()),
        configuration={k: v for k, v in dict(row.get("configuration") or ()).items() if v},
        format_provider=table_format.pop("provider", None) or "indextables",
        format_options={k: v for k, v in table_format.items() if v is not None},
    )


def _adds(rows: pa.Table, version: int) -> pa.Table:
    for name in _REQUIRED_FIELDS:
        if name not in rows.column_names or rows[name].null_count:
            what = f"the Parquet checkpoint has an add without {name}."
            raise LogCorrupt(what, next=_NEXT, version=version)
    columns: dict[str, pa.ChunkedArray] = {}
    for name, kind in ADD.items():
        if name not in rows.column_names:
            continue
        column = rows[name]
        if name in FLAT_FIELDS:
            if pa.types.is_map(column.type):
                columns |= _flatten_map(name, column)
        elif kind is Kind.WORD:
            columns[name] = pc.cast(column, pa.string()).dictionary_encode()
        elif not pa.types.is_nested(column.type):
            columns[name] = pc.cast(column, kind.type)
    return pa.table(columns)


def _flatten_map(name: str, maps: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    """Return a map column as one text column per key, named `<name>.<key>`."""
    array = maps.combine_chunks()
    keys = pc.unique(pc.cast(array.keys, pa.string())).to_pylist() if len(array) else []
    columns = {}
    for key in keys:
        values = pc.map_lookup(array, key, "last")
        columns[f"{name}.{key}"] = pa.chunked_array([pc.cast(values, pa.string())])
    return columns

"""Typed statistics and partition values of the adds in a checkpoint of a Delta table.

Statistics are stored typed, or as JSON text of which only the members in question are looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.decode import StatsLookup, StatsMember, stats_counts
from arrowlog.formats import physical_name, stats_keys, stats_type
from arrowlog.snapshot.delta_checkpoint import map_values
from arrowlog.snapshot.typed_values import cast_text, dates_to_midnights, partition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.snapshot.delta_checkpoint import AddPath, DeltaCheckpoint

    Columns = dict[AddPath, pa.Array | None]
    Converter = Callable[[Columns], dict[tuple[str, str], pa.Array]]

BOUNDS = ("minValues", "maxValues")
COUNTS = ("nullCount", "nanCount", "stored")
PARTITION_PATH: AddPath = ("partitionValues",)
STATS_PATH: AddPath = ("stats",)


class StatsReader:
    """Types the statistics of a checkpoint's adds: stored typed, or members of the JSON text."""

    def __init__(self, rows: DeltaCheckpoint, schema: pa.Schema) -> None:
        """Read nothing."""
        self._rows = rows
        self._schema = schema

    def converter(
        self, names: Sequence[tuple[str, str]], count: int
    ) -> tuple[Converter, list[AddPath]]:
        """Return a function that types columns of adds, `count` in all, and the fields it needs."""
        members = {name: self._member(*name) for name in names}
        typed_paths = {name: ("stats_parsed", *member.keys) for name, member in members.items()}
        stored = {name: path for name, path in typed_paths.items() if self._rows.has(path)}
        # A checkpoint may have both forms; then adds without the typed one have the text.
        has_text = self._rows.has(STATS_PATH)
        looked_up = list(dict.fromkeys(members.values())) if has_text else []
        paths = [*stored.values(), *([STATS_PATH] if has_text else [])]
        lookup = StatsLookup(count)

        def convert(columns: Columns) -> dict[tuple[str, str], pa.Array]:
            typed: dict[tuple[str, str], pa.Array] = {}
            for name, path in stored.items():
                typed[name] = one_array(to_type(columns[path], self._kind(*name)))
            wanted = looked_up
            if stored and len(stored) == len(members):
                # Texts are needed only where `stats_parsed` says nothing about any member.
                wanted = [members[name] for name in names if typed[name].null_count]
            texts = columns.get(STATS_PATH)
            if texts is not None and wanted:
                found = lookup.lookup(pa.chunked_array([texts]), list(dict.fromkeys(wanted)))
                for name in names:
                    if members[name] in found:
                        parsed = self._parse(found[members[name]], *name)
                        kept = typed.get(name)
                        typed[name] = parsed if kept is None else pc.coalesce(kept, parsed)
            return typed

        return convert, paths

    def _member(self, what: str, name: str) -> StatsMember:
        if what == "stored":
            return StatsMember(("numRecords",))
        exact = pa.types.is_decimal(type_of(self._schema, name)) and what != "nullCount"
        return StatsMember((what, *stats_keys(self._schema, name)), exact)

    def _kind(self, what: str, name: str) -> pa.DataType:
        return pa.int64() if what in ("nullCount", "stored") else type_of(self._schema, name)

    def _parse(self, texts: pa.ChunkedArray, what: str, name: str) -> pa.Array:
        if what in ("nullCount", "stored"):
            return one_array(stats_counts(texts))
        kind = self._kind(what, name)
        dated = dates_to_midnights(texts, kind)
        return one_array(cast_text(dated, kind, upper=what == "maxValues"))


def partition_converter(schema: pa.Schema, name: str) -> Converter:
    """Return a function that types the partition values of some adds."""
    kind, key = type_of(schema, name), physical_name(schema, name)

    def convert(columns: Columns) -> dict[tuple[str, str], pa.Array]:
        maps = columns[PARTITION_PATH]
        if maps is None:
            return {}
        texts = dates_to_midnights(map_values(pa.chunked_array([maps]), key), kind)
        values, unreadable = partition_values(texts, kind, empty_is_null=True, hive_is_null=False)
        return {
            ("partition", name): one_array(values),
            ("unreadable", name): one_array(unreadable),
        }

    return convert


def type_of(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column or struct field; text if the schema lacks it."""
    return stats_type(schema, name)


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def to_type(column: pa.Array | None, kind: pa.DataType) -> pa.Array:
    """Cast a stored column to the type of the table; null if that is impossible."""
    assert column is not None
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind, safe=not pa.types.is_timestamp(kind))
    except pa.ArrowException:
        return pa.nulls(len(column), kind)

"""The live files as one Arrow table, typed by the table's schema: what a user looks at."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.actions import ADD, Kind
from arrowlog.log.lines import flatten
from arrowlog.state.typed import cast_text, has_bounds, partition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Column = Callable[[], pa.ChunkedArray]

_RENAMED = {"size": "size_bytes"}
_FIRST = ("path", "partitionValues", "size", "modificationTime", "dataChange", "numRecords")
_BOUNDS = ("minValues", "maxValues")
_MILLIS = pa.timestamp("ms", "UTC")
_TAGS = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_THREADED_ROWS = 20_000


def snake(name: str) -> str:
    """The name of an add field in the table of files.

    >>> snake("footerStartOffset"), snake("size")
    ('footer_start_offset', 'size_bytes')
    """
    if name in _RENAMED:
        return _RENAMED[name]
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def files_table(adds: pa.Table, schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Table:
    """One row a file: path, typed partition values and statistics, and every other add field."""
    flat = flatten(adds, [*schema.names, *partition_columns])
    view = _View(flat)
    columns: dict[str, Column] = {"path": lambda: view.text("path")}
    for name in partition_columns:
        columns[f"partition.{name}"] = view.partition(name, _type(schema, name))
    columns["size_bytes"] = lambda: view.number("size")
    columns["modification_time"] = lambda: pc.cast(view.number("modificationTime"), _MILLIS)
    columns["data_change"] = lambda: view.flag("dataChange", absent=True)
    columns["num_records"] = view.records
    bounded = [f for f in schema if has_bounds(f.type) and f.name not in partition_columns]
    for prefix, source in (("min", "minValues"), ("max", "maxValues")):
        for item in bounded:
            columns[f"{prefix}.{item.name}"] = view.bound(source, item.name, item.type)
    for item in bounded:
        columns[f"null_count.{item.name}"] = view.null_count(item.name)
    for name, kind in ADD.items():
        if name not in _FIRST and name not in _BOUNDS:
            columns[snake(name)] = view.other(name, kind)
    return pa.table(_compute(columns, flat.num_rows))


def _compute(columns: dict[str, Column], rows: int) -> dict[str, pa.ChunkedArray]:
    if rows < _THREADED_ROWS:
        return {name: column() for name, column in columns.items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {name: pool.submit(column) for name, column in columns.items()}
        return {name: future.result() for name, future in futures.items()}


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    index = schema.get_field_index(name)
    return pa.string() if index < 0 else schema.field(index).type


class _View:
    """Columns of the decoded adds, made into what they mean when somebody takes them."""

    def __init__(self, adds: pa.Table) -> None:
        self._adds = adds
        self._names = set(adds.column_names)
        self._nulls: dict[pa.DataType, pa.ChunkedArray] = {}

    def _absent(self, kind: pa.DataType) -> pa.ChunkedArray:
        """A column of nulls; all of one type share their memory."""
        if kind not in self._nulls:
            self._nulls[kind] = pa.chunked_array([pa.nulls(self._adds.num_rows, kind)], kind)
        return self._nulls[kind]

    def text(self, name: str) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._absent(pa.string())

    def number(self, name: str) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._absent(pa.int64())

    def flag(self, name: str, *, absent: bool) -> pa.ChunkedArray:
        if name not in self._names:
            return pa.chunked_array([pa.repeat(absent, self._adds.num_rows)])
        return pc.fill_null(self._adds[name], absent)

    def _either(self, first: str, second: str) -> pa.ChunkedArray | None:
        """Two columns of text, the first where it has a value."""
        if first in self._names and second in self._names:
            return pc.coalesce(self._adds[first], self._adds[second])
        name = first if first in self._names else second
        return self._adds[name] if name in self._names else None

    def records(self) -> pa.ChunkedArray:
        if "stats.numRecords" not in self._names:
            return self.number("numRecords")
        inner = self._adds["stats.numRecords"]
        return (
            pc.coalesce(self._adds["numRecords"], inner) if "numRecords" in self._names else inner
        )

    def partition(self, name: str, kind: pa.DataType) -> Column:
        column = f"partitionValues.{name}"
        if column not in self._names:
            return lambda: self._absent(kind)
        return lambda: partition_values(self._adds[column], kind)[0]

    def bound(self, source: str, name: str, kind: pa.DataType) -> Column:
        text = self._either(f"{source}.{name}", f"stats.{source}.{name}")
        if text is None:
            return lambda: self._absent(kind)
        return lambda: cast_text(text, kind, upper=source == "maxValues")

    def null_count(self, name: str) -> Column:
        return lambda: self.number(f"stats.nullCount.{name}")

    def other(self, name: str, kind: Kind) -> Column:
        if name == "hasFooterOffsets":
            return lambda: self.flag(name, absent=False)
        if kind is Kind.JSON:
            shape = _TAGS if name == "tags" else _LIST
            return lambda: self._json(name, shape)
        if name in self._names:
            return lambda: self._adds[name]
        return lambda: self._absent(kind.type)

    def _json(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Tags and lists: read each distinct text once."""
        if name not in self._names or self._adds[name].null_count == self._adds.num_rows:
            return self._absent(kind)
        codes = self._adds[name].combine_chunks().dictionary_encode()
        values = pa.array([_plain(text.as_py()) for text in codes.dictionary], kind)
        return pa.chunked_array([values.take(codes.indices)], kind)


def _plain(text: str) -> Any:
    found = msgspec.json.decode(text)
    if isinstance(found, dict):
        return [(key, _word(value)) for key, value in found.items()]
    return [_word(value) for value in found] if isinstance(found, list) else None


def _word(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()

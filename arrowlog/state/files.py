"""The live files as one Arrow table, typed by the table's schema: what a user looks at."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.actions import ADD, Kind
from arrowlog.log.arrays import FALSE, TRUE, flags
from arrowlog.log.lines import flatten
from arrowlog.state.typed import cast_text, has_bounds, partition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    return _files(_View(flat), schema, partition_columns)


def stored_files(stored: pa.Table, schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Table:
    """The same from the rows of a checkpoint, in which partition values and bounds are typed."""
    return _files(_Stored(stored), schema, partition_columns)


def _files(view: _View, schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Table:
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
    return pa.table(_compute(columns, view.num_rows))


class Columns:
    """The typed columns of the live files one by one, each made when first asked for.

    For questions that need a few of them. Rows are in the order of the adds. `derived` is for
    rooms above, to keep what they make of a column as long as the column itself is kept.
    """

    def __init__(self, adds: pa.Table, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Nothing is typed yet. A partition column that the schema does not have is text."""
        unsaid = [name for name in partition_columns if schema.get_field_index(name) < 0]
        for name in unsaid:
            schema = schema.append(pa.field(name, pa.string()))
        self._adds = adds
        self.schema = schema
        self.partition_columns = tuple(partition_columns)
        self.derived: dict[Any, Any] = {}
        self._typed: dict[tuple[str, str], pa.Array] = {}
        self._views: dict[str, _View] = {}

    @property
    def num_rows(self) -> int:
        """How many files there are."""
        return int(self._adds.num_rows)

    def prepare(self, names: Iterable[str]) -> None:
        """Look up several columns in one pass over the adds; each by itself costs a pass."""
        missing = [name for name in names if name not in self._views]
        if missing:
            view = _View(flatten(self._adds, missing))
            self._views.update(dict.fromkeys(missing, view))

    def low(self, name: str) -> pa.Array:
        """The minimum of a column in each file; null is unknown."""
        return self.typed("minValues", name)

    def high(self, name: str) -> pa.Array:
        """The maximum of a column in each file; null is unknown."""
        return self.typed("maxValues", name)

    def null_count(self, name: str) -> pa.Array:
        """How many rows of each file have no value in a column; null is unknown."""
        return self.typed("nullCount", name)

    def partition(self, name: str) -> pa.Array:
        """The partition value of each file."""
        return self.typed("partition", name)

    def unreadable(self, name: str) -> pa.Array:
        """For which files nobody can tell what the partition value is."""
        return self.typed("unreadable", name)

    def num_records(self) -> pa.Array:
        """How many rows each file has; null is unknown."""
        return self.typed("records", "")

    def followed(self, kept: pa.Array | pa.ChunkedArray | None, fresh: pa.Table) -> dict[Any, Any]:
        """What is typed already, for the rows that stayed and some new ones behind them."""
        new = Columns(fresh, self.schema, self.partition_columns)
        new.prepare({name for _, name in self._typed})
        mask = kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept
        typed = dict(self._typed)
        stay = {key: a if mask is None else a.filter(mask) for key, a in typed.items()}
        return {key: pa.concat_arrays([a, new.typed(*key)]) for key, a in stay.items()}

    def adopt(self, typed: dict[Any, Any]) -> None:
        """Take over typed columns from the snapshot before this one."""
        self._typed.update(typed)

    def typed(self, what: str, name: str) -> pa.Array:
        """A column by the words it is kept under."""
        found = self._typed.get((what, name))
        if found is None:
            made = self._make(what, name)
            found = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
            self._typed[what, name] = found
        return found

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        self.prepare([name])
        view = self._views[name]
        if what == "unreadable":  # both come from one look at the texts
            values, odd = view.partition_pair(name, _type(self.schema, name))
            self._typed["partition", name] = values.combine_chunks()
            return odd
        return view.values(what, name, _type(self.schema, name))


def stored_values(stored: pa.Table, what: str, name: str, schema: pa.Schema) -> pa.ChunkedArray:
    """A typed column from the rows of a checkpoint."""
    return _Stored(stored).values(what, name, _type(schema, name))


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
        self.num_rows = adds.num_rows
        self._adds = adds
        self._names = set(adds.column_names)
        self._nulls: dict[pa.DataType, pa.ChunkedArray] = {}

    def _absent(self, kind: pa.DataType) -> pa.ChunkedArray:
        """A column of nulls; all of one type share their memory."""
        if kind not in self._nulls:
            self._nulls[kind] = pa.chunked_array([pa.nulls(self._adds.num_rows, kind)], kind)
        return self._nulls[kind]

    def values(self, what: str, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """A typed column by the words `Columns` keeps it under."""
        if what in ("partition", "unreadable"):
            return self.partition_pair(name, kind)[what == "unreadable"]
        if what == "nullCount":
            return self.null_count(name)()
        return self.records() if what == "records" else self.bound(what, name, kind)()

    def text(self, name: str) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._absent(pa.string())

    def number(self, name: str) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._absent(pa.int64())

    def flag(self, name: str, *, absent: bool) -> pa.ChunkedArray:
        if name not in self._names:
            return pa.chunked_array([flags(absent, self._adds.num_rows)])
        return pc.fill_null(self._adds[name], TRUE if absent else FALSE)

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
        return lambda: self.partition_pair(name, kind)[0]

    def partition_pair(
        self, name: str, kind: pa.DataType
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        column = f"partitionValues.{name}"
        if column not in self._names:
            odd = pa.chunked_array([flags(False, self._adds.num_rows)])
            return self._absent(kind), odd
        return partition_values(self._adds[column], kind)

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
        values = pa.array([_plain(text.as_py(), kind) for text in codes.dictionary], kind)
        return pa.chunked_array([values.take(codes.indices)], kind)


class _Stored(_View):
    """Columns of a checkpoint: what it has typed is taken as it is."""

    def _typed(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._absent(kind)

    def records(self) -> pa.ChunkedArray:
        return self._typed("num_records", pa.int64())

    def partition_pair(
        self, name: str, kind: pa.DataType
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        odd = self.flag(f"unreadable.{name}", absent=False)
        return self._typed(f"partition.{name}", kind), odd

    def bound(self, source: str, name: str, kind: pa.DataType) -> Column:
        side = "max" if source == "maxValues" else "min"
        return lambda: self._typed(f"{side}.{name}", kind)

    def null_count(self, name: str) -> Column:
        return lambda: self._typed(f"null_count.{name}", pa.int64())


def _plain(text: str | None, kind: pa.DataType) -> Any:
    """A map or a list of text; what is neither is unknown, and stays in the log as it is."""
    try:
        found = msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError):
        return None
    if pa.types.is_map(kind):
        return [(k, _word(v)) for k, v in found.items()] if isinstance(found, dict) else None
    return [_word(value) for value in found] if isinstance(found, list) else None


def _word(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()

"""The live files as typed Arrow columns: `Snapshot.files`, and the statistics for data skipping."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    FALSE,
    TRUE,
    concat_bytes,
    from_numpy,
    make_array,
    null_scalar,
    number_combinations,
    repeat_bool,
    to_numpy,
)
from arrowlog.decode import (
    StatsMember,
    contains_octets,
    flatten_map_columns,
    lookup_stats,
    stats_counts,
)
from arrowlog.fork_safety import OnFirstUse
from arrowlog.formats import (
    STATS_COUNTS,
    STATS_MAPS,
    FieldKind,
    physical_name,
    stats_type,
    struct_leaves,
)
from arrowlog.formats.delta import deletion_vector_ids
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.snapshot.typed_values import (
    cast_integers,
    cast_text,
    dates_to_midnights,
    has_bounds,
    partition_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from arrowlog.formats import Format, StructLeaf

    # A column that is computed when called.
    LazyColumn = Callable[[], pa.ChunkedArray]

_RENAMED = {"size": "size_bytes"}
# Add fields that `_build` places by hand; the others follow in the order of the format.
_LEADING_FIELDS = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "numRecords",
)
_BOUND_FIELDS = ("minValues", "maxValues")
_STATS_PREFIXES = ("partition", "min", "max", "null_count")
_MILLIS = pa.timestamp("ms", "UTC")
_TAGS = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_QUOTE, _BACKSLASH, _COMMA, _COLON, _OPENING_BRACE, _CLOSING_BRACE = b'"\\,:{}'
_FIRST_PRINTABLE = 32
_TEXT_MAP = msgspec.json.Decoder(dict[str, str | None])
# Integers of columns with fewer rows are cast together, about so many values at a time.
_TOGETHER_ROWS_MAX, _TOGETHER_VALUES = 1 << 12, 1 << 18
# Below this many rows, starting threads costs more than computing the columns one by one.
_THREADED_ROWS_MIN = 20_000


@cache
def files_column_name(name: str) -> str:
    """Return the column name of an add field in the table of files.

    >>> files_column_name("footerStartOffset"), files_column_name("size")
    ('footer_start_offset', 'size_bytes')
    """
    if name in _RENAMED:
        return _RENAMED[name]
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def files_table(
    adds: pa.Table,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    names: Collection[str] | None = None,
    table_format: Format = INDEXTABLES,
) -> pa.Table:
    """Return the typed table of files, one row per add, in their order.

    Columns: path, typed partition values and statistics, and every other add field. Text that is
    not a value of its column's type becomes null. With `names`, only those columns are computed.
    """
    keys = [*schema.names, *partition_columns]
    if names is not None:
        wanted = names
        keys = [k for k in keys if any(f"{prefix}.{k}" in wanted for prefix in _STATS_PREFIXES)]
    if names is None or keys or "num_records" in names:
        adds = flatten_map_columns(adds, [physical_name(schema, key) for key in keys])
    return _build(_AddView(adds, schema, table_format), partition_columns, names)


def files_table_from_checkpoint(
    stored: pa.Table,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    table_format: Format = INDEXTABLES,
) -> pa.Table:
    """Return the typed table of files from the rows of a checkpoint, which are mostly typed."""
    return _build(_StoredView(stored, schema, table_format), partition_columns)


def _build(
    view: _AddView, partition_columns: Sequence[str], names: Collection[str] | None = None
) -> pa.Table:
    schema = view.schema
    columns: dict[str, LazyColumn] = {"path": lambda: view.text("path")}
    for name in partition_columns:
        columns[f"partition.{name}"] = view.partition(name, _type(schema, name))
    columns["size_bytes"] = lambda: view.number("size")
    columns["modification_time"] = lambda: pc.cast(view.number("modificationTime"), _MILLIS)
    columns["data_change"] = lambda: view.flag("dataChange", absent=True)
    columns["num_records"] = view.live_records
    bounded = [f for f in schema if has_bounds(f.type) and f.name not in partition_columns]
    bounds = {
        f"{prefix}.{item.name}": (source, item)
        for prefix, source in (("min", "minValues"), ("max", "maxValues"))
        for item in bounded
    }
    if names is not None:
        bounds = {name: bound for name, bound in bounds.items() if name in names}
    columns |= view.bounds(bounds)
    for item in bounded:
        columns[f"null_count.{item.name}"] = view.count("nullCount", item.name)
    for leaf in view.leaves:
        columns[f"min.{leaf.name}"] = view.leaf("minValues", leaf)
        columns[f"max.{leaf.name}"] = view.leaf("maxValues", leaf)
        columns[f"null_count.{leaf.name}"] = view.leaf("nullCount", leaf)
    for name, kind in view.format.actions.fields["add"].items():
        if kind is FieldKind.STATS and not view.format.stats_text_listed:
            continue
        if name not in _LEADING_FIELDS and name not in _BOUND_FIELDS:
            columns[files_column_name(name)] = view.other(name, kind)
    if names is not None:
        columns = {name: column for name, column in columns.items() if name in names}
    return pa.table(_compute(columns, view.num_rows))


class FileStats:
    """Typed statistics of the live files by column, each computed on first use.

    Rows are in the order of the adds. A null means unknown. `derived` caches what other packages
    compute from a column, for as long as the column itself is cached.
    """

    def __init__(
        self,
        adds: pa.Table,
        schema: pa.Schema,
        partition_columns: Sequence[str],
        table_format: Format = INDEXTABLES,
    ) -> None:
        """Type nothing yet. A partition column that the schema lacks is text."""
        undeclared = [name for name in partition_columns if schema.get_field_index(name) < 0]
        for name in undeclared:
            schema = schema.append(pa.field(name, pa.string()))
        self._adds = adds
        self._format = table_format
        self.schema = schema
        self.partition_columns = tuple(partition_columns)
        self.derived: dict[Any, Any] = {}
        self._typed: dict[tuple[str, str], pa.Array] = {}
        self._views: dict[str, _AddView] = {}

    @OnFirstUse
    def leaves(self) -> Mapping[str, StructLeaf]:
        """The fields inside struct columns, by the name of their statistics."""
        return struct_leaves(self.schema)

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column, or of a struct field by the name of its statistics."""
        index = self.schema.get_field_index(name)
        return self.schema.field(index).type if index >= 0 else self.leaves[name].type

    @property
    def rounded_decimals(self) -> bool:
        """Whether a writer may have rounded the bounds of decimals to doubles."""
        return self._format.rounded_decimals

    @property
    def num_rows(self) -> int:
        """The number of files."""
        return int(self._adds.num_rows)

    def prepare(self, names: Iterable[str]) -> None:
        """Look up several columns in one pass over the adds; otherwise each costs its own pass."""
        wanted = list(names)
        self._prepare_leaves(wanted)
        missing = [n for n in wanted if n not in self._views and not self._is_leaf(n)]
        if missing:
            keys = [physical_name(self.schema, name) for name in missing]
            adds = flatten_map_columns(self._adds_with(missing), keys)
            view = _AddView(adds, self.schema, self._format)
            self._views.update(dict.fromkeys(missing, view))

    def _is_leaf(self, name: str) -> bool:
        """Whether a name is that of a struct field's statistics."""
        return self.schema.get_field_index(name) < 0 and name in self.leaves

    def _prepare_leaves(self, names: Iterable[str]) -> None:
        """Type the statistics of struct fields, all of them in one pass over the texts."""
        missing = [
            self.leaves[name]
            for name in names
            if self._is_leaf(name) and ("nanCount", name) not in self._typed
        ]
        if missing:
            typed = read_leaf_stats(self._stats_texts(), missing, self.num_rows)
            self._typed |= {key: column.combine_chunks() for key, column in typed.items()}

    def _stats_texts(self) -> pa.ChunkedArray | None:
        """Return the JSON text of the statistics of each file; None if no file has any."""
        adds = self._adds_with(self.leaves)
        return adds["stats"] if "stats" in adds.column_names else None

    def _adds_with(self, names: Iterable[str]) -> pa.Table:
        """Return the adds with the fields that hold the statistics of some columns."""
        del names
        return self._adds

    def knows(self, name: str) -> bool:  # noqa: ARG002 -- for subclasses
        """Whether anything is known of a column; else nothing can be skipped by it."""
        return True

    def low(self, name: str) -> pa.Array:
        """Return the minimum of a column per file, as logged; null is unknown."""
        return self.typed("minValues", name)

    def high(self, name: str) -> pa.Array:
        """Return the maximum of a column per file, as logged; null is unknown."""
        return self.typed("maxValues", name)

    def null_count(self, name: str) -> pa.Array:
        """Return the number of NULLs in a column per file; null is unknown."""
        return self.typed("nullCount", name)

    def usable_null_count(self, name: str) -> pa.Array:
        """Return the number of NULLs in a column per file; null is unknown or contradicted.

        A bound contradicts a count that says that every row is NULL.
        """
        if ("null count", name) not in self.derived:
            nulls = self.null_count(name)
            if nulls.null_count < len(nulls):
                bounded = pc.or_(pc.is_valid(self.low(name)), pc.is_valid(self.high(name)))
                contradicted = pc.and_(pc.equal(nulls, self.stored_records()), bounded)
                if contradicted.true_count:
                    trusted = pc.fill_null(pc.invert(contradicted), TRUE)
                    nulls = pc.if_else(trusted, nulls, null_scalar(nulls.type))
            self.derived["null count", name] = nulls
        counts: pa.Array = self.derived["null count", name]
        return counts

    def nan_count(self, name: str) -> pa.Array:
        """Return the number of NaNs in a floating-point column per file; null is unknown."""
        return self.typed("nanCount", name)

    def partition(self, name: str) -> pa.Array:
        """Return the partition value per file; null is NULL, or unknown where `unreadable`."""
        return self.typed("partition", name)

    def unreadable(self, name: str) -> pa.Array:
        """Return which files have a partition value that is not of the column's type."""
        return self.typed("unreadable", name)

    def num_records(self) -> pa.Array:
        """Return the number of rows per file that are not deleted; null is unknown."""
        return self.typed("records", "")

    def stored_records(self) -> pa.Array:
        """Return the number of rows per file, deleted ones included; null is unknown."""
        return self.typed("stored", "")

    def inexact(self) -> pa.Array:
        """Return which files have bounds that may be wider than the rows that are left."""
        return self.typed("inexact", "")

    def followed(self, kept: pa.Array | pa.ChunkedArray | None, fresh: pa.Table) -> dict[Any, Any]:
        """Return the columns typed so far, for the rows in `kept` followed by new adds.

        `kept` masks the rows that are still live; None for all.
        """
        new = FileStats(fresh, self.schema, self.partition_columns, self._format)
        new.prepare({name for _, name in self._typed})
        mask = kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept
        typed = dict(self._typed)  # a copy: other threads may type further columns meanwhile
        still_live = {key: a if mask is None else a.filter(mask) for key, a in typed.items()}
        return {key: pa.concat_arrays([a, new.typed(*key)]) for key, a in still_live.items()}

    def take_typed_columns(self, typed: dict[Any, Any]) -> None:
        """Take over typed columns that the previous snapshot computed with `followed`."""
        self._typed.update(typed)

    def typed(self, what: str, name: str) -> pa.Array:
        """Return a typed column by its cache key.

        `what` is `minValues`, `maxValues`, `nullCount`, `nanCount`, `partition`, `unreadable`,
        `records`, `stored` or `inexact`.
        """
        values = self._typed.get((what, name))
        if values is None:
            computed = self._make(what, name)
            values = (
                computed.combine_chunks() if isinstance(computed, pa.ChunkedArray) else computed
            )
            self._typed[what, name] = values
        return values

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        self.prepare([name])
        if self._is_leaf(name):
            return pa.chunked_array([self._typed[what, name]])
        view = self._views[name]
        if what == "unreadable":  # one pass over the texts yields both
            values, unreadable = view.partition_pair(name, _type(self.schema, name))
            self._typed["partition", name] = values.combine_chunks()
            return unreadable
        return view.values(what, name, _type(self.schema, name))


class GroupStats(FileStats):
    """Statistics of groups of files, for skipping whole groups by the code that skips files.

    Each group looks like a file of an unpartitioned table, with wide bounds.
    """

    def usable_null_count(self, name: str) -> pa.Array:
        """Return the number of NULLs in a column per group; null is unknown."""
        return self.null_count(name)

    def choose_groups(self, keep_mask: pa.Array) -> list[int] | None:
        """Return the groups that a mask of the rows keeps; None if all files should be read.

        Reading most of the groups saves little and loses the columns of the others.
        """
        if keep_mask.true_count * 2 > self.num_rows:
            return None
        chosen: list[int] = pc.indices_nonzero(keep_mask).to_pylist()
        return chosen


def typed_checkpoint_column(
    stored: pa.Table, what: str, name: str, schema: pa.Schema
) -> pa.ChunkedArray:
    """Return a typed column of checkpoint rows; `what` as for `Columns.typed`."""
    return _StoredView(stored, schema, INDEXTABLES).values(what, name, _type(schema, name))


def _compute(columns: dict[str, LazyColumn], rows: int) -> dict[str, pa.ChunkedArray]:
    if rows < _THREADED_ROWS_MIN:
        return {name: column() for name, column in columns.items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {name: pool.submit(column) for name, column in columns.items()}
        return {name: future.result() for name, future in futures.items()}


def _item(columns: Callable[[], Sequence[pa.ChunkedArray]], index: int) -> pa.ChunkedArray:
    return columns()[index]


def _type(schema: pa.Schema, name: str) -> pa.DataType:
    """Return the type of a column or struct field; text if the schema lacks it."""
    return stats_type(schema, name)


def read_leaf_stats(
    texts: pa.ChunkedArray | None, leaves: Iterable[StructLeaf], num_rows: int
) -> dict[tuple[str, str], pa.ChunkedArray]:
    """Return the statistics of struct fields, typed, by kind and name; null is unknown.

    `texts` are the `stats` of the files.
    """
    members: dict[tuple[str, str], StatsMember] = {}
    kinds: dict[tuple[str, str], pa.DataType] = {}
    for leaf in leaves:
        exact = pa.types.is_decimal(leaf.type)
        for what in STATS_MAPS:
            is_count = what in STATS_COUNTS
            members[what, leaf.name] = StatsMember((what, *leaf.keys), exact and not is_count)
            kinds[what, leaf.name] = pa.int64() if is_count else leaf.type
    found = {} if texts is None else lookup_stats(texts, list(members.values()))
    typed: dict[tuple[str, str], pa.ChunkedArray] = {}
    for key, member in members.items():
        column = found.get(member)
        if column is None:
            typed[key] = pa.chunked_array([pa.nulls(num_rows, kinds[key])], kinds[key])
        elif key[0] in STATS_COUNTS:
            typed[key] = stats_counts(column)
        else:
            typed[key] = cast_text(column, kinds[key], upper=key[0] == "maxValues")
    return typed


class _AddView:
    """Decoded adds as typed columns.

    Methods that return a `LazyColumn` defer the work, so that `_compute` can spread it over
    threads.
    """

    def __init__(self, adds: pa.Table, schema: pa.Schema, table_format: Format) -> None:
        self.schema = schema
        self.format = table_format
        self.num_rows = adds.num_rows
        self._adds = adds
        self._names = set(adds.column_names)
        self._nulls: dict[pa.DataType, pa.ChunkedArray] = {}

    @OnFirstUse
    def leaves(self) -> list[StructLeaf]:
        """The fields inside struct columns that can have bounds."""
        return [leaf for leaf in struct_leaves(self.schema).values() if has_bounds(leaf.type)]

    @OnFirstUse
    def _leaf_stats(self) -> dict[tuple[str, str], pa.ChunkedArray]:
        texts = self._adds["stats"] if "stats" in self._names else None
        return read_leaf_stats(texts, self.leaves, self.num_rows)

    def leaf(self, what: str, leaf: StructLeaf) -> LazyColumn:
        """Return a bound or count of a struct field."""
        return lambda: self._leaf_stats[what, leaf.name]

    def _all_null(self, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a column of nulls; all columns of one type share its memory."""
        if kind not in self._nulls:
            self._nulls[kind] = pa.chunked_array([pa.nulls(self._adds.num_rows, kind)], kind)
        return self._nulls[kind]

    def values(self, what: str, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a typed column; `what` as for `Columns.typed`."""
        if what in ("partition", "unreadable"):
            return self.partition_pair(name, kind)[what == "unreadable"]
        if what in STATS_COUNTS:
            return self.count(what, name)()
        if what == "inexact":
            return self.inexact()
        if what in ("records", "stored"):
            return self.live_records() if what == "records" else self.records()
        return self.bound(what, name, kind)()

    def text(self, name: str) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._all_null(pa.string())

    def number(self, name: str) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._all_null(pa.int64())

    def flag(self, name: str, *, absent: bool) -> pa.ChunkedArray:
        if name not in self._names:
            return pa.chunked_array([repeat_bool(absent, self._adds.num_rows)])
        return pc.fill_null(self._adds[name], TRUE if absent else FALSE)

    def _coalesce(self, first: str, second: str) -> pa.ChunkedArray | None:
        """Return the first column, its nulls filled from the second; None if neither exists."""
        if first in self._names and second in self._names:
            return pc.coalesce(self._adds[first], self._adds[second])
        name = first if first in self._names else second
        return self._adds[name] if name in self._names else None

    def records(self) -> pa.ChunkedArray:
        if "stats.numRecords" not in self._names:
            return self.number("numRecords")
        from_stats = self._adds["stats.numRecords"]
        if "numRecords" not in self._names:
            return from_stats
        return pc.coalesce(self._adds["numRecords"], from_stats)

    def live_records(self) -> pa.ChunkedArray:
        return self.format.live_records(self.records(), self._adds)

    def inexact(self) -> pa.ChunkedArray:
        inexact = self.format.inexact_bounds(self._adds)
        if inexact is None:
            return pa.chunked_array([repeat_bool(False, self._adds.num_rows)])
        return inexact

    def partition(self, name: str, kind: pa.DataType) -> LazyColumn:
        return lambda: self.partition_pair(name, kind)[0]

    def partition_pair(
        self, name: str, kind: pa.DataType
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Return the partition values, and which of them are unreadable."""
        column = f"partitionValues.{physical_name(self.schema, name)}"
        if column not in self._names:
            none_unreadable = pa.chunked_array([repeat_bool(False, self._adds.num_rows)])
            return self._all_null(kind), none_unreadable
        return partition_values(
            self._dated(self._adds[column], kind),
            kind,
            empty_is_null=self.format.empty_partition_is_null,
            hive_is_null=self.format.hive_partition_is_null,
        )

    def bounds(self, wanted: Mapping[str, tuple[str, pa.Field]]) -> dict[str, LazyColumn]:
        """Return bounds by the name of their column, as `bound` does for one.

        If there are few files, many integers are cast together.
        """
        found: dict[str, LazyColumn] = {}
        integers: dict[pa.DataType, dict[str, pa.ChunkedArray]] = {}
        few = 0 < self.num_rows <= _TOGETHER_ROWS_MAX
        for name, (source, item) in wanted.items():
            text = None
            if few and pa.types.is_integer(item.type):
                text = self._bound_text(source, item.name)
            if text is None or text.type != pa.string():
                found[name] = self.bound(source, item.name, item.type)
            else:
                integers.setdefault(item.type, {})[name] = text
        for kind, texts in integers.items():
            names, step = list(texts), _TOGETHER_VALUES // self.num_rows
            for start in range(0, len(names), step):
                group = names[start : start + step]
                numbers = cache(partial(cast_integers, [texts[name] for name in group], kind))
                found |= {name: partial(_item, numbers, i) for i, name in enumerate(group)}
        return {name: found[name] for name in wanted}

    def _bound_text(self, source: str, name: str) -> pa.ChunkedArray | None:
        """Return a bound as text; the maps `minValues` and `maxValues` win over `stats`."""
        key = physical_name(self.schema, name)
        return self._coalesce(f"{source}.{key}", f"stats.{source}.{key}")

    def bound(self, source: str, name: str, kind: pa.DataType) -> LazyColumn:
        """Return a bound."""
        text = self._bound_text(source, name)
        if text is None:
            return lambda: self._all_null(kind)
        return lambda: cast_text(self._dated(text, kind), kind, upper=source == "maxValues")

    def _dated(self, text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        return dates_to_midnights(text, kind) if self.format.dates_become_timestamps else text

    def count(self, what: str, name: str) -> LazyColumn:
        """Return the number of NULLs (`nullCount`) or NaNs (`nanCount`)."""
        return lambda: self.number(f"stats.{what}.{physical_name(self.schema, name)}")

    def other(self, name: str, kind: FieldKind) -> LazyColumn:
        if name == "deletionVector":
            return self._vector_ids
        if name == "hasFooterOffsets":
            return lambda: self.flag(name, absent=False)
        if kind is FieldKind.JSON:
            target = _TAGS if name == "tags" else _LIST
            return lambda: self._json(name, target)
        if name in self._names:
            return lambda: self._adds[name]
        return lambda: self._all_null(kind.type)

    def _vector_ids(self) -> pa.ChunkedArray:
        """Return the id of each file's deletion vector; null where there is none."""
        if "deletionVector.storageType" not in self._names:
            return self._all_null(pa.string())
        parts = ("storageType", "pathOrInlineDv", "offset")
        return deletion_vector_ids(*(self._adds[f"deletionVector.{part}"] for part in parts))

    def _json(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Parse a column of JSON maps or lists; each distinct text is parsed once."""
        if name not in self._names or self._adds[name].null_count == self._adds.num_rows:
            return self._all_null(kind)
        codes = self._adds[name].combine_chunks().dictionary_encode()
        texts = codes.dictionary
        values = _split_plain_maps(texts) if pa.types.is_map(kind) else None
        if values is None and pa.types.is_map(kind):
            values = _parse_text_maps(texts)
        if values is None:
            values = pa.array([_parse_json(text, kind) for text in texts.to_pylist()], kind)
        return pa.chunked_array([values.take(codes.indices)], kind)


class _StoredView(_AddView):
    """Rows of a Parquet checkpoint as typed columns: most are stored typed already."""

    def _stored(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        return self._adds[name] if name in self._names else self._all_null(kind)

    def records(self) -> pa.ChunkedArray:
        return self._stored("num_records", pa.int64())

    def leaf(self, what: str, leaf: StructLeaf) -> LazyColumn:
        """Return a bound or count of a struct field: stored typed, or as the text of `stats`."""
        prefix = {"minValues": "min", "maxValues": "max"}.get(what, files_column_name(what))
        name = f"{prefix}.{leaf.name}"
        return (lambda: self._adds[name]) if name in self._names else super().leaf(what, leaf)

    def partition_pair(
        self, name: str, kind: pa.DataType
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        unreadable = self.flag(f"unreadable.{name}", absent=False)
        return self._stored(f"partition.{name}", kind), unreadable

    def _bound_text(self, source: str, name: str) -> None:
        """Bounds are stored typed."""

    def bound(self, source: str, name: str, kind: pa.DataType) -> LazyColumn:
        side = "max" if source == "maxValues" else "min"
        return lambda: self._stored(f"{side}.{name}", kind)

    def count(self, what: str, name: str) -> LazyColumn:
        return lambda: self._stored(f"{files_column_name(what)}.{name}", pa.int64())


def _split_plain_maps(texts: pa.Array) -> pa.Array | None:
    """Split JSON maps of text that have no escapes and no spaces; None if others are among them.

    In such texts, every quotation mark is where a key or a value begins or ends. Four of them make
    a member. What is between two members, and around them, has to be `,` or the braces of a text.
    """
    octets = np.frombuffer(concat_bytes(texts), np.uint8)
    found = np.flatnonzero(octets == _QUOTE)
    if texts.null_count or not len(found) or len(found) % 4:
        return None
    if octets.min() < _FIRST_PRINTABLE or contains_octets(octets, _BACKSLASH):
        return None
    marks = found.reshape(-1, 4)
    stops = np.cumsum(to_numpy(pc.binary_length(texts)), dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    # By text, its first member; then one more than its last.
    firsts, ends = (np.searchsorted(marks[:, 0], borders) for borders in (starts, stops))
    follows = np.ones(len(marks), np.bool_)
    if firsts[0] or (firsts >= ends).any():  # text before all members, or without one
        return None
    follows[firsts] = False
    before = octets[marks[:, 0] - 1]
    if not (
        (marks[firsts, 0] == starts + 1).all()
        and (marks[ends - 1, 3] == stops - 2).all()
        and (marks[:, 2] == marks[:, 1] + 2).all()
        and (marks[1:, 0] == marks[:-1, 3] + 2)[follows[1:]].all()
        and (before == np.where(follows, _COMMA, _OPENING_BRACE)).all()
        and (octets[marks[:, 1] + 1] == _COLON).all()
        and (octets[stops - 1] == _CLOSING_BRACE).all()
    ):
        return None
    keys, values = _cut(octets, marks[:, :2]), _cut(octets, marks[:, 2:])
    if len(keys) > len(texts):
        rows = from_numpy(np.repeat(np.arange(len(texts)), ends - firsts))
        codes, _ = number_combinations([rows, keys], len(keys))
        if pc.count_distinct(codes).as_py() < len(keys):
            return None  # a key that is there twice: the last one counts
    offsets = np.append(firsts, len(marks)).astype(np.int32)
    return pa.MapArray.from_arrays(from_numpy(offsets), keys, values)


def _cut(octets: NDArray[np.uint8], marks: NDArray[np.int64]) -> pa.Array:
    """Return the texts between pairs of quotation marks."""
    borders = (marks + np.array([1, 0])).astype(np.int32)
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(octets)]
    pieces = pa.Array.from_buffers(pa.string(), 2 * len(marks) - 1, buffers)
    return pieces.take(from_numpy(np.arange(0, 2 * len(marks), 2)))


def _parse_text_maps(texts: pa.Array) -> pa.Array | None:
    """Parse JSON maps of text with one call; None if there is anything else among them.

    All texts begin and end with a brace, so that each line feed between them is between two
    objects; if there are as many objects as texts, each text is one.
    """
    braces = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if braces.true_count < len(texts):
        return None
    try:
        maps = _TEXT_MAP.decode_lines("\n".join(texts.to_pylist()))
    except (msgspec.DecodeError, RecursionError):
        return None
    if len(maps) != len(texts):
        return None
    offsets = make_array(list(accumulate(map(len, maps), initial=0)), pa.int32())
    keys = make_array(list(chain.from_iterable(maps)), pa.string())
    values = make_array([value for each in maps for value in each.values()], pa.string())
    return pa.MapArray.from_arrays(offsets, keys, values)


def _parse_json(text: str | None, kind: pa.DataType) -> Any:
    """Parse a JSON map or list of text; None if it is anything else.

    The log keeps the original text, so nothing is lost.
    """
    try:
        value = msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError):
        return None
    if pa.types.is_map(kind):
        return [(k, _as_text(v)) for k, v in value.items()] if isinstance(value, dict) else None
    return [_as_text(item) for item in value] if isinstance(value, list) else None


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()

"""The rows of a Parquet checkpoint: converted from live adds and back, ordered, indexed. Pure.

A checkpoint stores partition values, bounds and counts in typed columns: `partition.<col>`,
`min.<col>`, `max.<col>`, `null_count.<col>`, `nan_count.<col>`, `num_records`. A text column of the
adds that can be rebuilt from such a column, byte for byte, is not stored; the recipe says how to
rebuild it. That it can is proven by rebuilding it when the checkpoint is written. Every other
column of the adds is stored unchanged.

The index has one row per row group. For each column, partition columns included, `low.<col>` and
`high.<col>` are bounds that hold for every row of every file in the group, null if one of them is
unknown; `nulls.<col>` is the number of NULLs, null if unknown (for a partition column: the number
of files whose value is NULL); `none.<col>` is true where every value is NULL. `nans.<col>` is the
number of NaNs in a floating-point column, null if unknown. `first_path` and `last_path` are the
lowest and the highest path, by which a file is found without reading every path.

A text bound may be truncated, so a high bound covers everything that starts with it. The maximum of
several high bounds is therefore not enough: of `ab` and `abc`, `ab` covers more. The shortest bound
that is a prefix of the maximum covers as much as all of them together.
"""

from __future__ import annotations

import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    FALSE,
    TRUE,
    from_numpy,
    int64_or_none,
    make_array,
    make_int64,
    make_scalar,
    null_scalar,
    sum_exactly,
    to_numpy,
)
from arrowlog.decode import flatten_map_columns
from arrowlog.fork_safety import pl
from arrowlog.formats import STATS_MAPS
from arrowlog.formats.indextables import ADD_MAP_FIELDS
from arrowlog.snapshot.file_table import FileStats, GroupStats, typed_checkpoint_column
from arrowlog.snapshot.typed_values import (
    all_null_files,
    comparison_type,
    has_bounds,
    high_bounds,
    low_bounds,
    widen_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_Result = TypeVar("_Result")
# Adds from which on their columns are converted in threads.
_THREADED_ROWS_MIN = 1 << 15
# Files per row group: the unit in which planning skips, reads and verifies a checkpoint.
ROW_GROUP_FILES = 1 << 14
PATH_RANGE = ("first_path", "last_path")  # columns of the index
_SORT_COLUMNS_MAX = 2
# A column is worth sorting by if the range of an average file is less than this share of the whole
# range, and at most this share of its bounds is unknown.
_SORT_SHARE_MAX = 0.5
# Numbers by which files are sorted stay below this.
_RANK_MAX = 1 << 62
# With a larger share of files that tie than this, ranking them is of no use.
_TIED_SHARE_MAX = 0.5
# Texts are ranked if at most this share of them is distinct.
_DISTINCT_RANKS_MAX = 0.5
# Rows of a column that are rendered as text at a time: more would not stay in the cache.
_RENDERED_ROWS = 1 << 14


class RowGroupStats(GroupStats):
    """The index as statistics for data skipping.

    Each row group looks like a file of an unpartitioned table, with wide bounds, so that the same
    code prunes both.
    """

    def __init__(self, index: pa.Table, schema: pa.Schema) -> None:
        """Take an index that `build_row_group_index` made."""
        super().__init__(index, schema, ())
        self._indexed = frozenset(index.column_names)

    def prepare(self, names: Iterable[str]) -> None:
        """Load the bounds of these columns. A column that is not prepared has no bounds.

        Explicit, because a table may have thousands of columns.
        """
        for name in names:
            if ("bounds", name) in self.derived:
                continue
            self.derived["bounds", name] = (
                self._statistic("low", name),
                self._statistic("high", name),
            )
            none = self._statistic("none", name, pa.bool_())
            self.derived["all null", name] = none if none.true_count else None

    def _statistic(self, statistic: str, name: str, kind: pa.DataType | None = None) -> pa.Array:
        """Return a column of the index; nulls if it is not there."""
        column = f"{statistic}.{name}"
        if column in self._indexed:
            return self._adds[column].combine_chunks()
        return self._unknown(name) if kind is None else pa.nulls(self.num_rows, kind)

    def _unknown(self, name: str) -> pa.Array:
        kind = comparison_type(self.type_of(name))
        return pa.nulls(self.num_rows, pa.null() if kind is None else kind)

    def null_count(self, name: str) -> pa.Array:
        """Return the number of NULLs in a column per row group; null is unknown."""
        return self._statistic("nulls", name, pa.int64())

    def nan_count(self, name: str) -> pa.Array:
        """Return the number of NaNs in a column per row group; null is unknown."""
        return self._statistic("nans", name, pa.int64())


def storage_order(
    columns: FileStats, keys: pa.ChunkedArray, best: Sequence[str] | None = None
) -> pa.Array:
    """Return the order in which files are stored: by partition, then by the best sort columns.

    `best` are the columns to sort by; by default `choose_sort_columns` chooses them.
    """
    best = choose_sort_columns(columns) if best is None else best
    return order_by(sort_columns(columns, best), keys, hashed=bool(best))


def order_by(
    frame: Mapping[str, pa.Array], keys: pa.Array | pa.ChunkedArray, *, hashed: bool
) -> pa.Array:
    """Return the order of rows by the columns of `frame`, then by `keys`, or with `hashed` theirs.

    `keys` are paths, or with `hashed` what `tie_hashes` returns for them.
    """
    ranks = _leading_ranks(list(frame.values()))
    if ranks is None:
        return _sort_indices(_with_ties(frame, keys, hashed=hashed))
    import numpy as np

    order = np.argsort(ranks)
    ordered = ranks[order]
    tied = np.empty(len(ranks), np.bool_)
    tied[:1] = False
    np.equal(ordered[1:], ordered[:-1], out=tied[1:])
    tied[:-1] |= tied[1:]
    if np.count_nonzero(tied) > len(tied) * _TIED_SHARE_MAX:
        return _sort_indices(_with_ties(frame, keys, hashed=hashed))
    if tied.any():
        # Only files with equal ranks have to be compared by the other keys.
        among = np.sort(order[tied])
        rows = from_numpy(among)
        some = {name: array.take(rows) for name, array in frame.items()}
        within = _sort_indices(_with_ties(some, keys.take(rows), hashed=hashed))
        order[tied] = among[to_numpy(within)]
    return from_numpy(order.astype(np.uint32))


def storage_sort_keys(
    columns: FileStats, keys: pa.ChunkedArray, best: Sequence[str]
) -> pl.DataFrame:
    """Return the sort keys of the files, the most significant column first."""
    return _with_ties(sort_columns(columns, best), keys, hashed=bool(best))


def sort_columns(columns: FileStats, best: Sequence[str]) -> dict[str, pa.Array]:
    """Return the columns by which files are stored, the most significant one first."""
    frame = {f"p{i}": columns.partition(name) for i, name in enumerate(columns.partition_columns)}
    return frame | {f"b{i}": low_bounds(columns, name) for i, name in enumerate(best)}


def tie_hashes(keys: pa.ChunkedArray) -> pa.Array:
    """Return the hashes by which files that tie are ordered.

    With sort columns few files tie, and any deterministic order of those will do. Hashes sort
    faster than paths.
    """
    return pl.Series("ties", pl.from_arrow(keys), dtype=pl.String).hash(0).to_arrow()


def _with_ties(
    frame: Mapping[str, pa.Array], keys: pa.Array | pa.ChunkedArray, *, hashed: bool
) -> pl.DataFrame:
    series = [pl.Series(name, pl.from_arrow(array)) for name, array in frame.items()]
    ties = tie_hashes(keys) if hashed and keys.type != pa.uint64() else keys
    kind = pl.UInt64 if hashed else pl.String
    return pl.DataFrame([*series, pl.Series("ties", pl.from_arrow(ties), dtype=kind)])


def _sort_indices(keys: pl.DataFrame) -> pa.Array:
    order = keys.select(pl.arg_sort_by(keys.columns, nulls_last=True)).to_series()
    return order.to_arrow()


def _leading_ranks(arrays: Sequence[pa.Array]) -> Any:
    """Return one number per row that orders rows as the leading arrays do, nulls last.

    As many arrays are taken as fit into 63 bits together; None if not even the first one does.
    Sorting one number is several times faster than sorting by many columns.
    """
    import numpy as np

    ranks, space = None, 1
    for values in arrays:
        found = _ranks(values)
        if found is None:
            break
        own, size = found
        if space * size > _RANK_MAX:
            break
        space *= size
        if ranks is None:
            ranks = own
        else:
            ranks = ranks * np.int64(size)  # the first one may share the memory of its array
            ranks += own
    return ranks


def _ranks(values: pa.Array) -> tuple[Any, int] | None:
    """Return the rank of each value, nulls last, and the number of ranks; None if it has none."""
    import numpy as np

    kind = values.type
    if pa.types.is_string(kind):
        encoded = values.dictionary_encode()
        if len(encoded.dictionary) > len(values) * _DISTINCT_RANKS_MAX:
            return None
        by_value = _sort_indices(pl.DataFrame([pl.Series(pl.from_arrow(encoded.dictionary))]))
        ranks = np.empty(len(by_value), np.int32)
        ranks[to_numpy(by_value)] = np.arange(len(by_value), dtype=np.int32)
        values = from_numpy(ranks).take(encoded.indices)
    elif pa.types.is_boolean(kind):
        values = pc.cast(values, pa.int8())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif not pa.types.is_signed_integer(kind):
        return None
    bounds = pc.min_max(values)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None:
        return np.zeros(len(values), np.int64), 1
    size = high - low + 2  # the last rank is that of null
    if size > _RANK_MAX:
        return None
    above = pc.subtract(pc.cast(values, pa.int64()), make_int64(low))
    return to_numpy(pc.fill_null(above, make_int64(size - 1)) if values.null_count else above), size


def choose_sort_columns(columns: FileStats) -> list[str]:
    """Return the columns worth sorting by, those with the narrowest files first."""
    candidates: list[tuple[float, str]] = []
    for name in bounded_columns(columns):
        if pa.types.is_string(columns.schema.field(name).type):
            continue
        low, high = low_bounds(columns, name), high_bounds(columns, name)
        if len(low) == 0 or low.null_count + high.null_count > len(low) * _SORT_SHARE_MAX:
            continue
        lows, highs = (pc.cast(side, pa.float64(), safe=False) for side in (low, high))
        full_range = (pc.max(highs).as_py() or 0) - (pc.min(lows).as_py() or 0)
        mean_range = pc.mean(pc.subtract(highs, lows)).as_py()
        share = 1.0 if not full_range or mean_range is None else mean_range / full_range
        if share < _SORT_SHARE_MAX:
            candidates.append((share, name))
    return [name for _, name in sorted(candidates)[:_SORT_COLUMNS_MAX]]


class StoredFileStats(FileStats):
    """The typed columns of stored rows, as statistics of their files."""

    def _make(self, what: str, name: str) -> pa.ChunkedArray:
        return typed_checkpoint_column(self._adds, what, name, self.schema)


def build_row_group_index(
    rows: pa.Table,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    group_files: int = ROW_GROUP_FILES,
) -> pa.Table:
    """Return the index of stored rows: statistics for each `group_files` of them."""
    columns = StoredFileStats(rows, schema, partition_columns)
    starts = range(0, rows.num_rows, group_files)
    sizes = array("q", [min(group_files, rows.num_rows - start) for start in starts])
    index = {"rows": pa.Array.from_buffers(pa.int64(), len(sizes), [None, pa.py_buffer(sizes)])}
    for name in (*columns.partition_columns, *bounded_columns(columns)):
        if columns.schema.get_field_index(name) < 0:
            continue
        if comparison_type(columns.schema.field(name).type) is None:
            continue
        per_file = _partition_stats if name in columns.partition_columns else _bounded_stats
        stats = per_file(columns, name)
        index |= _aggregate(name, stats, group_files)
        if per_file is _bounded_stats and pa.types.is_floating(columns.schema.field(name).type):
            known = pc.if_else(stats[3], make_int64(0), columns.nan_count(name))
            index[f"nans.{name}"] = _per_group(group_files, _known_sum, known)
    for name in unbounded_columns(columns):
        aggregated = _aggregate(name, _unbounded_stats(columns, name), group_files)
        index |= {key: aggregated[key] for key in (f"nulls.{name}", f"none.{name}")}
    paths = rows["path"].combine_chunks()
    ranges = [pc.min_max(paths.slice(start, group_files)) for start in starts]
    for name, side in zip(PATH_RANGE, ("min", "max"), strict=True):
        ends = [pa.repeat(both[side], 1) for both in ranges]
        index[name] = pa.concat_arrays(ends) if ends else paths.slice(0, 0)
    return pa.table(index)


def _bounded_stats(columns: FileStats, name: str) -> Sequence[pa.Array]:
    """Return per file: low bound, high bound, number of NULLs, whether every value is NULL."""
    known = all_null_files(columns, name)
    none = pa.repeat(FALSE, columns.num_rows) if known is None else known
    return low_bounds(columns, name), high_bounds(columns, name), columns.null_count(name), none


def _unbounded_stats(columns: FileStats, name: str) -> Sequence[pa.Array]:
    """Return what `_bounded_stats` returns, for a column without an order."""
    nulls, no_bounds = trusted_null_counts(columns, name), pa.nulls(columns.num_rows, pa.int64())
    none = pc.fill_null(pc.equal(nulls, columns.num_records()), FALSE)
    return no_bounds, no_bounds, nulls, none


def _partition_stats(columns: FileStats, name: str) -> Sequence[pa.Array]:
    """Return what `_bounded_stats` returns, for a partition column: NULLs are files, not rows."""
    kind = columns.schema.field(name).type
    values, unreadable = columns.partition(name), columns.unreadable(name)
    none = pc.and_not(pc.is_null(values), unreadable)
    nulls = pc.if_else(unreadable, pa.nulls(1, pa.int64())[0], pc.cast(none, pa.int64()))
    return (
        widen_bounds(values, kind, upper=False),
        widen_bounds(values, kind, upper=True),
        nulls,
        none,
    )


def _aggregate(name: str, stats: Sequence[pa.Array], group_files: int) -> dict[str, pa.Array]:
    """Aggregate per-file statistics, as `_bounded_stats` returns them, to row groups."""
    low, high, nulls, none = stats
    return {
        f"low.{name}": _per_group(group_files, _lowest, low, none),
        f"high.{name}": _per_group(group_files, _highest, high, none),
        f"nulls.{name}": _per_group(group_files, _known_sum, nulls),
        f"none.{name}": _per_group(group_files, pc.all, none),
    }


def _per_group(
    group_files: int, aggregate: Callable[..., pa.Scalar], *arrays: pa.Array
) -> pa.Array:
    """Apply a function to each row group of some arrays; its type is that of the first one."""
    groups = [
        pa.repeat(aggregate(*(each.slice(start, group_files) for each in arrays)), 1)
        for start in range(0, len(arrays[0]), group_files)
    ]
    return pa.concat_arrays(groups) if groups else arrays[0].slice(0, 0)


def _lowest(low: pa.Array, none: pa.Array) -> pa.Scalar:
    return null_scalar(low.type) if _is_unknown(low, none) else pc.min_max(low)["min"]


def _highest(high: pa.Array, none: pa.Array) -> pa.Scalar:
    if _is_unknown(high, none):
        return null_scalar(high.type)
    highest = pc.min_max(high)["max"]
    if not pa.types.is_string(high.type) or not highest.is_valid:
        return highest
    text = highest.as_py()
    shorter = pc.less(pc.binary_length(high), make_scalar(len(text.encode()), pa.int32()))
    if not shorter.true_count:  # as a rule: then no other bound is a prefix of it
        return highest
    prefixes = make_array([text[:length] for length in range(len(text) + 1)], pa.string())
    shortest = pc.index(pc.is_in(prefixes, value_set=high), TRUE).as_py()
    return prefixes[shortest]


def _is_unknown(bounds: pa.Array, none: pa.Array) -> bool:
    """Whether a file that has values has no bound; one without any value needs none."""
    if not bounds.null_count:
        return False
    return bool(pc.and_not(pc.is_null(bounds), none).true_count)


def _known_sum(counts: pa.Array) -> pa.Scalar:
    """Return the sum of the counts of a group; null if it is unknown.

    It must not be 0 by accident: then no row of the group would be NULL. So it is unknown if it
    exceeds 64 bits or if a count is negative, which a damaged log may have.
    """
    if counts.null_count or pc.any(pc.less(counts, make_int64(0))).as_py():
        return null_scalar(pa.int64())
    total = int64_or_none(sum_exactly(counts))
    return null_scalar(pa.int64()) if total is None else make_int64(total)


# With more distinct map keys than this, the maps stay JSON text: each key would be a column.
_MAP_KEYS_MAX = 2000
_SIDES = {"minValues": "min", "maxValues": "max"}
# Rows on which a text format is tried before it is tried on the whole column.
_PROBE_ROWS = 256
# Values that occur at least so often in a sample, on average, are rendered once and then repeated.
_REPEATS_MIN, _REPEATS_SAMPLE = 4, 1 << 13
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_TEXT_MAP = msgspec.json.Decoder(dict[str, str | None])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RebuildRecipe:
    """How to rebuild the columns of the adds from stored columns.

    `typed` are stored columns that no add has; planning uses them. `rebuilt` maps a column of the
    adds that is not stored to the typed column it is made from, and to the format of its text (see
    `render_as_text`).
    """

    typed: tuple[str, ...]
    rebuilt: Mapping[str, tuple[str, str]]

    def stored_column_of(self, name: str) -> str:
        """Return the stored column that a column of the adds is made from."""
        return "path" if name == "key" else self.rebuilt.get(name, (name, ""))[0]


def to_checkpoint_rows(columns: FileStats, adds: pa.Table) -> tuple[pa.Table, RebuildRecipe]:
    """Convert adds to stored rows, in the same order, and return the recipe to convert them back.

    `adds` must come from `flatten_all_maps`; `columns` are their typed columns.
    """
    columns.prepare([*columns.schema.names, *columns.partition_columns])
    names = (*columns.partition_columns, *bounded_columns(columns), *unbounded_columns(columns))
    found = _in_threads(lambda name: list(_typed_columns(columns, name)), ["", *names], adds)
    typed = {name: array for some in found for name, array in some if array.null_count < len(array)}
    kept: dict[str, pa.ChunkedArray] = {"path": adds["key"]}
    rebuilt: dict[str, tuple[str, str]] = {}
    stored = [
        name
        for name in adds.column_names
        if name not in ("key", "path", "seq") and adds[name].null_count < adds.num_rows
    ]

    def format_of(name: str) -> str | None:
        source = _typed_source(name)
        return _find_format(adds[name], typed[source]) if source in typed else None

    for name, form in zip(stored, _in_threads(format_of, stored, adds), strict=True):
        source = _typed_source(name)
        if form is None or source is None:
            kept[name] = adds[name]
        else:
            rebuilt[name] = (source, form)
    return pa.table({**kept, **typed}), RebuildRecipe(tuple(typed), rebuilt)


def from_checkpoint_rows(stored: pa.Table, recipe: RebuildRecipe) -> pa.Table:
    """Convert stored rows back to adds."""
    columns = {"key": stored["path"]}
    columns |= {name: stored[name] for name in stored.column_names if name not in recipe.typed}
    for name, (source, form) in recipe.rebuilt.items():
        columns[name] = render_as_text(stored[source], form)
    return pa.table(columns)


def _in_threads(
    work: Callable[[str], _Result], names: Sequence[str], adds: pa.Table
) -> list[_Result]:
    """Call a function for each name, in threads if there are many adds."""
    if adds.num_rows < _THREADED_ROWS_MIN:
        return [work(name) for name in names]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, names))


def _typed_columns(columns: FileStats, name: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the typed columns to store for a column of the table, by name; "" for all rows."""
    if not name:
        yield "num_records", columns.num_records()
    elif name in columns.partition_columns:
        unreadable = columns.unreadable(name)
        yield f"partition.{name}", columns.partition(name)
        if unreadable.true_count:
            yield f"unreadable.{name}", unreadable
    elif has_bounds(columns.schema.field(name).type):
        yield f"min.{name}", columns.low(name)
        yield f"max.{name}", columns.high(name)
        yield f"null_count.{name}", columns.null_count(name)
        if pa.types.is_floating(columns.schema.field(name).type):
            yield f"nan_count.{name}", columns.nan_count(name)
    else:
        yield f"null_count.{name}", trusted_null_counts(columns, name)


def bounded_columns(columns: FileStats) -> list[str]:
    """Return the data columns whose type can have bounds."""
    schema, partition = columns.schema, columns.partition_columns
    return [f.name for f in schema if has_bounds(f.type) and f.name not in partition]


def unbounded_columns(columns: FileStats) -> list[str]:
    """Return the data columns that have no order, so that only their NULLs are counted."""
    schema, partition = columns.schema, columns.partition_columns
    return [f.name for f in schema if not has_bounds(f.type) and f.name not in partition]


def trusted_null_counts(columns: FileStats, name: str) -> pa.Array:
    """Return the null counts of an unbounded column, unknown where a bound was logged.

    The bounds of such columns are not stored, so a contradiction could not be noticed later.
    """
    bound = pc.or_(pc.is_valid(columns.low(name)), pc.is_valid(columns.high(name)))
    return pc.if_else(bound, null_scalar(pa.int64()), columns.null_count(name))


def _typed_source(name: str) -> str | None:
    """Return the typed column from which a column of the adds may be rebuilt."""
    if name in ("numRecords", "stats.numRecords"):
        return "num_records"
    first, _, rest = name.removeprefix("stats.").partition(".")
    if name.startswith(("stats.nullCount.", "stats.nanCount.")):
        return f"{'null' if first == 'nullCount' else 'nan'}_count.{rest}"
    if name.startswith("partitionValues."):
        return f"partition.{rest}"
    return f"{_SIDES[first]}.{rest}" if first in _SIDES and "." in name else None


def _find_format(texts: pa.ChunkedArray, typed: pa.Array) -> str | None:
    """Return the format in which a typed column renders to exactly these texts; None if none."""
    if texts.type == typed.type:
        return "as it is" if texts.equals(pa.chunked_array([typed])) else None
    if not pa.types.is_string(texts.type):
        return None
    for form in _candidate_formats(texts, typed.type):
        head = render_as_text(pa.chunked_array([typed.slice(0, _PROBE_ROWS)]), form)
        if head.equals(texts.slice(0, _PROBE_ROWS)) and _renders_to(typed, form, texts):
            return form
    return None


def _renders_to(typed: pa.Array, form: str, texts: pa.ChunkedArray) -> bool:
    """Whether a typed column renders to exactly these texts, compared a few rows at a time."""
    middle = typed.slice(len(typed) // 2, _REPEATS_SAMPLE)
    full = len(middle) == _REPEATS_SAMPLE
    repeats = full and len(middle.unique()) * _REPEATS_MIN <= len(middle)
    return all(
        _render_column(typed.slice(start, _RENDERED_ROWS), form, repeats=repeats).equals(
            texts.slice(start, _RENDERED_ROWS)
        )
        for start in range(0, len(typed), _RENDERED_ROWS)
    )


def _render_column(typed: pa.Array, form: str, *, repeats: bool) -> pa.ChunkedArray:
    """Render a typed column as text; each value once if values repeat."""
    if not repeats:
        return render_as_text(pa.chunked_array([typed]), form)
    encoded = typed.dictionary_encode()
    texts = render_as_text(pa.chunked_array([encoded.dictionary]), form).combine_chunks()
    return pa.chunked_array([texts.take(encoded.indices)])


def _candidate_formats(texts: pa.ChunkedArray, kind: pa.DataType) -> list[str]:
    """Return the formats worth trying; for timestamps, that of the first value."""
    if pa.types.is_floating(kind):
        return ["point", "cast"]
    if not pa.types.is_timestamp(kind):
        return ["cast"]
    first = texts.filter(pc.is_valid(texts)).slice(0, 1)
    text = first[0].as_py() if len(first) else ""
    zone = "Z" if text.endswith("Z") else ""
    digits = len(text.removesuffix("Z").partition(".")[2])
    unit = {0: "s", 3: "ms", 6: "us"}.get(digits)
    return (
        []
        if unit is None or len(text) < len("2024-01-01T00:00:00")
        else [f"{text[10]}{unit}{zone}"]
    )


def render_as_text(values: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """Render a typed column as text.

    `form` is stored in manifests: `as it is` (no change), `cast` (Arrow's cast), `point` (polars'
    floats, which always have a decimal point), or for timestamps the separator of date and time,
    the unit, and `Z` if the text ends with it: `Tus`, ` msZ`.
    """
    if form == "as it is":
        return values
    if form == "cast":
        return pc.cast(values, pa.string())
    if form == "point":
        floats = pl.Series(pl.from_arrow(values)).cast(pl.String)
        return pa.chunked_array([pc.cast(floats.to_arrow(), pa.string())])
    separator, unit = form[0], form[1:].removesuffix("Z")
    in_unit = pc.cast(values, pa.timestamp(unit), safe=False)
    # Times have no characters but ASCII, and functions for bytes are several times as fast.
    texts = pc.binary_replace_slice(pc.cast(in_unit, pa.string()), 10, 11, separator)
    if form.endswith("Z"):
        texts = pc.binary_replace_slice(texts, _TEXT_END, _TEXT_END, "Z")
    return pc.cast(texts, pa.string())


_TEXT_END = 1 << 20  # beyond the end of a text: what is put there follows it


def flatten_all_maps(adds: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the adds with their maps flattened to columns, for `names` and every other key.

    The row decoder leaves maps as JSON text. A row whose maps hold only text becomes like the rows
    of the columnar decoder; otherwise its JSON text is kept beside the columns.
    """
    if "raw" not in adds.column_names or not pc.any(adds["raw"]).as_py():
        return adds
    raw = pc.fill_null(adds["raw"], FALSE).combine_chunks()
    texts = {name: adds[name].filter(raw) for name in ADD_MAP_FIELDS if name in adds.column_names}
    only_text = [True] * raw.true_count
    keys: set[str] = set(names)
    for column in texts.values():
        for row, text in enumerate(column.to_pylist()):
            members = _decode_text_map(text)
            if members is None:
                only_text[row] = False
            else:
                keys.update(members)
    if "stats" in adds.column_names:
        for text in adds["stats"].filter(raw).to_pylist():
            keys.update(_stats_keys(text))
    if len(keys) > _MAP_KEYS_MAX:
        return flatten_map_columns(adds, names)
    flat = flatten_map_columns(adds, sorted(keys))
    still_raw = pc.replace_with_mask(raw, raw, pc.invert(make_array(only_text, pa.bool_())))
    for name in texts:
        at = flat.column_names.index(name)
        text_left = pc.if_else(still_raw, flat[name], null_scalar(pa.string()))
        flat = flat.set_column(at, name, text_left)
    return flat.set_column(flat.column_names.index("raw"), "raw", still_raw)


def _decode_text_map(text: str | None) -> dict[str, str | None] | None:
    """Decode a JSON map of text; None if it is anything else."""
    if text is None:
        return {}
    try:
        return _TEXT_MAP.decode(text)
    except _BROKEN:
        return None


def _stats_keys(text: str | None) -> set[str]:
    """Return the column names that a `stats` text mentions."""
    keys: set[str] = set()
    stats = _decode_object(text)
    for name in STATS_MAPS:
        keys.update(_decode_object(stats.get(name)))
    return keys


def _decode_object(text: Any) -> dict[str, msgspec.Raw]:
    try:
        return {} if text is None else _OBJECT.decode(text)
    except _BROKEN:
        return {}

"""Converts live adds to the rows of a Parquet checkpoint and back, without loss. Pure.

A checkpoint stores partition values, bounds and counts in typed columns: `partition.<col>`,
`min.<col>`, `max.<col>`, `null_count.<col>`, `nan_count.<col>`, `num_records`. A text column of the
adds that can be rebuilt from such a column, byte for byte, is not stored; the recipe says how to
rebuild it. That it can is proven by rebuilding it when the checkpoint is written. Every other
column of the adds is stored unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, null_scalar
from arrowlog.decode import flatten_map_columns
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import ADD_MAP_FIELDS, STATS_MAPS
from arrowlog.snapshot.typed_values import has_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrowlog.snapshot.file_table import FileStats

# With more distinct map keys than this, the maps stay JSON text: each key would be a column.
_MAP_KEYS_MAX = 2000
_SIDES = {"minValues": "min", "maxValues": "max"}
# Rows on which a text format is tried before it is tried on the whole column.
_PROBE_ROWS = 256
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_TEXT_MAP = msgspec.json.Decoder(dict[str, str | None])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class RebuildRecipe:
    """How to rebuild the columns of the adds from stored columns.

    `typed` are stored columns that no add has; planning uses them. `rebuilt` maps a column of the
    adds that is not stored to the typed column it is made from, and to the format of its text (see
    `render`).
    """

    typed: tuple[str, ...]
    rebuilt: Mapping[str, tuple[str, str]]

    def stored_column_of(self, name: str) -> str:
        """Return the stored column that a column of the adds is made from."""
        return "path" if name == "key" else self.rebuilt.get(name, (name, ""))[0]


def to_checkpoint_rows(columns: FileStats, adds: pa.Table) -> tuple[pa.Table, RebuildRecipe]:
    """Convert adds to stored rows, in the same order, and return the recipe to convert them back.

    `adds` must come from `settle`; `columns` are their typed columns.
    """
    typed = {
        name: array for name, array in _typed_columns(columns) if array.null_count < len(array)
    }
    kept: dict[str, pa.ChunkedArray] = {"path": adds["key"]}
    rebuilt: dict[str, tuple[str, str]] = {}
    for name in adds.column_names:
        if name in ("key", "path", "seq") or adds[name].null_count == adds.num_rows:
            continue
        source = _typed_source(name)
        form = _find_format(adds[name], typed[source]) if source in typed else None
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


def _typed_columns(columns: FileStats) -> Iterator[tuple[str, pa.Array]]:
    """Yield the typed columns to store, by name."""
    for name in columns.partition_columns:
        yield f"partition.{name}", columns.partition(name)
        unreadable = columns.unreadable(name)
        if unreadable.true_count:
            yield f"unreadable.{name}", unreadable
    yield "num_records", columns.num_records()
    for name in bounded_columns(columns):
        yield f"min.{name}", columns.low(name)
        yield f"max.{name}", columns.high(name)
        yield f"null_count.{name}", columns.null_count(name)
        if pa.types.is_floating(columns.schema.field(name).type):
            yield f"nan_count.{name}", columns.nan_count(name)
    for name in unbounded_columns(columns):
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
        if not head.equals(texts.slice(0, _PROBE_ROWS)):
            continue
        if render_as_text(pa.chunked_array([typed]), form).equals(texts):
            return form
    return None


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
    texts = pc.utf8_replace_slice(pc.cast(in_unit, pa.string()), 10, 11, separator)
    if form.endswith("Z"):
        texts = pc.binary_join_element_wise(texts, _Z, _EMPTY)
    return texts


_Z, _EMPTY = make_array(["Z", ""], pa.string())


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

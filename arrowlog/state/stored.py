"""Live adds as the rows of a Parquet checkpoint, and back: typed, and nothing lost. Pure.

A checkpoint has partition values, bounds and counts as columns of their types: `partition.<col>`,
`min.<col>`, `max.<col>`, `null_count.<col>`, `num_records`. A column of the adds that such a column
gives back to the letter is left out, and the recipe says how to make it again; whether it does is
found out by doing it. Every other column of the adds is kept as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl
from arrowlog.log.actions import FLAT_FIELDS, STATS_MAPS
from arrowlog.log.arrays import FALSE, array_of, null
from arrowlog.log.lines import flatten
from arrowlog.state.typed import has_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrowlog.state.files import Columns

_KEYS_MAX = 2000
_SIDES = {"minValues": "min", "maxValues": "max"}
_PROBE_ROWS = 256
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_TEXTS = msgspec.json.Decoder(dict[str, str | None])
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the columns of the adds are made of stored ones.

    `typed` columns are for planning alone. `rebuilt` names for a column of the adds the stored
    column it is made of, and the form of its text.
    """

    typed: tuple[str, ...]
    rebuilt: Mapping[str, tuple[str, str]]

    def needs(self, name: str) -> str:
        """The stored column that a column of the adds is made of."""
        return "path" if name == "key" else self.rebuilt.get(name, (name, ""))[0]


def pack(columns: Columns, adds: pa.Table) -> tuple[pa.Table, Recipe]:
    """Settled adds as stored rows, in their order; `columns` are theirs."""
    typed = {name: array for name, array in _typed(columns) if array.null_count < len(array)}
    kept: dict[str, pa.ChunkedArray] = {"path": adds["key"]}
    rebuilt: dict[str, tuple[str, str]] = {}
    for name in adds.column_names:
        if name in ("key", "path", "seq") or adds[name].null_count == adds.num_rows:
            continue
        source = _source(name)
        form = _form(adds[name], typed[source]) if source in typed else None
        if form is None or source is None:
            kept[name] = adds[name]
        else:
            rebuilt[name] = (source, form)
    return pa.table({**kept, **typed}), Recipe(tuple(typed), rebuilt)


def unpack(stored: pa.Table, recipe: Recipe) -> pa.Table:
    """Stored rows as adds."""
    found = {"key": stored["path"]}
    found |= {name: stored[name] for name in stored.column_names if name not in recipe.typed}
    for name, (source, form) in recipe.rebuilt.items():
        found[name] = render(stored[source], form)
    return pa.table(found)


def _typed(columns: Columns) -> Iterator[tuple[str, pa.Array]]:
    for name in columns.partition_columns:
        yield f"partition.{name}", columns.partition(name)
        odd = columns.unreadable(name)
        if odd.true_count:
            yield f"unreadable.{name}", odd
    yield "num_records", columns.num_records()
    for name in bounded(columns):
        yield f"min.{name}", columns.low(name)
        yield f"max.{name}", columns.high(name)
        yield f"null_count.{name}", columns.null_count(name)
    for name in unbounded(columns):
        yield f"null_count.{name}", believed(columns, name)


def bounded(columns: Columns) -> list[str]:
    """Columns of the table that may have bounds in its files."""
    schema, partition = columns.schema, columns.partition_columns
    return [f.name for f in schema if has_bounds(f.type) and f.name not in partition]


def unbounded(columns: Columns) -> list[str]:
    """Columns whose values do not compare, but may be counted."""
    schema, partition = columns.schema, columns.partition_columns
    return [f.name for f in schema if not has_bounds(f.type) and f.name not in partition]


def believed(columns: Columns, name: str) -> pa.Array:
    """How many rows have no value, where no bound, which is not stored, may say otherwise."""
    bound = pc.or_(pc.is_valid(columns.low(name)), pc.is_valid(columns.high(name)))
    return pc.if_else(bound, null(pa.int64()), columns.null_count(name))


def _source(name: str) -> str | None:
    """The typed column from which a column of the adds may be made."""
    if name in ("numRecords", "stats.numRecords"):
        return "num_records"
    first, _, rest = name.removeprefix("stats.").partition(".")
    if name.startswith("stats.nullCount."):
        return f"null_count.{rest}"
    if name.startswith("partitionValues."):
        return f"partition.{rest}"
    return f"{_SIDES[first]}.{rest}" if first in _SIDES and "." in name else None


def _form(texts: pa.ChunkedArray, typed: pa.Array) -> str | None:
    """The form in which a typed column gives just these texts; None if there is none."""
    if texts.type == typed.type:
        return "as it is" if texts.equals(pa.chunked_array([typed])) else None
    if not pa.types.is_string(texts.type):
        return None
    for form in _forms(texts, typed.type):
        head = render(pa.chunked_array([typed.slice(0, _PROBE_ROWS)]), form)
        if not head.equals(texts.slice(0, _PROBE_ROWS)):
            continue
        if render(pa.chunked_array([typed]), form).equals(texts):
            return form
    return None


def _forms(texts: pa.ChunkedArray, kind: pa.DataType) -> list[str]:
    if pa.types.is_floating(kind):
        return ["point", "cast"]
    if not pa.types.is_timestamp(kind):
        return ["cast"]
    found = texts.filter(pc.is_valid(texts)).slice(0, 1)
    text = found[0].as_py() if len(found) else ""
    zone = "Z" if text.endswith("Z") else ""
    digits = len(text.removesuffix("Z").partition(".")[2])
    unit = {0: "s", 3: "ms", 6: "us"}.get(digits)
    return [] if unit is None or len(text) < 19 else [f"{text[10]}{unit}{zone}"]


def render(values: pa.ChunkedArray, form: str) -> pa.ChunkedArray:
    """A typed column as text of a form."""
    if form == "as it is":
        return values
    if form == "cast":
        return pc.cast(values, pa.string())
    if form == "point":
        floats = pl.Series(pl.from_arrow(values)).cast(pl.String)
        return pa.chunked_array([pc.cast(floats.to_arrow(), pa.string())])
    gap, unit = form[0], form[1:].removesuffix("Z")
    whole = pc.cast(values, pa.timestamp(unit), safe=False)
    texts = pc.utf8_replace_slice(pc.cast(whole, pa.string()), 10, 11, gap)
    if form.endswith("Z"):
        texts = pc.binary_join_element_wise(texts, _Z, _NOTHING)
    return texts


_Z, _NOTHING = array_of(["Z", ""], pa.string())


def settle(adds: pa.Table, names: Sequence[str]) -> pa.Table:
    """The adds with their maps taken apart, for these names and for every key that is there.

    A row that the line decoder left as JSON text becomes like the others if its maps have nothing
    but text in them; if not, the text stays beside the columns.
    """
    if "raw" not in adds.column_names or not pc.any(adds["raw"]).as_py():
        return adds
    raw = pc.fill_null(adds["raw"], FALSE).combine_chunks()
    texts = {name: adds[name].filter(raw) for name in FLAT_FIELDS if name in adds.column_names}
    plain = [True] * raw.true_count
    keys: set[str] = set(names)
    for column in texts.values():
        for row, text in enumerate(column.to_pylist()):
            members = _texts(text)
            if members is None:
                plain[row] = False
            else:
                keys.update(members)
    if "stats" in adds.column_names:
        for text in adds["stats"].filter(raw).to_pylist():
            keys.update(_stats_keys(text))
    if len(keys) > _KEYS_MAX:
        return flatten(adds, names)
    flat = flatten(adds, sorted(keys))
    still = pc.replace_with_mask(raw, raw, pc.invert(array_of(plain, pa.bool_())))
    for name in texts:
        at = flat.column_names.index(name)
        left = pc.if_else(still, flat[name], null(pa.string()))
        flat = flat.set_column(at, name, left)
    return flat.set_column(flat.column_names.index("raw"), "raw", still)


def _texts(text: str | None) -> dict[str, str | None] | None:
    """A map of text; None if it is anything else."""
    if text is None:
        return {}
    try:
        return _TEXTS.decode(text)
    except _BROKEN:
        return None


def _stats_keys(text: str | None) -> set[str]:
    found: set[str] = set()
    for name in STATS_MAPS:
        found.update(_members(_members(text).get(name)))
    return found


def _members(text: Any) -> dict[str, msgspec.Raw]:
    try:
        return {} if text is None else _MEMBERS.decode(text)
    except _BROKEN:
        return {}

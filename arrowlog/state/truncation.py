"""Long texts in statistics: left out, or cut so that they still hold. Pure.

One rule serves everything that writes adds: commits, checkpoints, repair. A bound of a text column
that is longer than allowed is dropped, together with its other side, or cut: a minimum to its first
characters, a maximum to its first characters with the last one raised, so that nothing in the file
is above it. Partition columns are exempt, and so are numbers and times, which have no prefix that
compares. Of columns that nobody knows the type of, long bounds are dropped.

`Truncation.shorten` is the rule for one column of one file. `truncate_adds` does the same to the
columns of decoded adds; only bounds that stand inside JSON text are mended text by text, and only
where one of them is too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import FALSE, array_of, null, number, scalar
from arrowlog.state.typed import TRUNCATED, has_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.config import Config

_LAST = 0xD7FF  # above it, UTF-16 and code points sort differently
_SIDES = ("minValues", "maxValues")
_TEXT = pa.string()
_MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class Rule(Enum):
    """What becomes of the long bounds of a column."""

    KEEP = "they are no texts that could be cut, or readers rely on them"
    DROP = "they are left out"
    CUT = "they are cut, and still hold"


@dataclass(frozen=True, slots=True)
class Truncation:
    """What becomes of long texts: `drop` both bounds, or `truncate` them soundly."""

    enabled: bool = True
    max_length: int = 1024
    strategy: str = "drop"

    @classmethod
    def of(cls, config: Config) -> Truncation:
        """As the settings say."""
        return cls(
            config.stats_truncation_enabled,
            config.stats_truncation_max_length,
            config.stats_truncation_strategy,
        )

    def shorten(self, low: str | None, high: str | None) -> tuple[str | None, str | None]:
        """Bounds of a text column that are short enough and still hold.

        >>> Truncation(max_length=3, strategy="truncate").shorten("abcdef", "abcdef")
        ('abc', 'abd')
        """
        rule = Rule.CUT if self.strategy == "truncate" else Rule.DROP
        return self.shorten_both(low, high, None, None, rule)[:2]

    def shorten_both(
        self,
        low: str | None,
        high: str | None,
        inner_low: str | None,
        inner_high: str | None,
        rule: Rule,
    ) -> tuple[str | None, str | None, str | None, str | None]:
        """The bounds of one column of one file: those of the maps, and those inside `stats`.

        The maps win over `stats`, so what is dropped from one is dropped from the other: nothing
        that did not count before may count afterwards.
        """
        given = (low, high, inner_low, inner_high)
        long = any(self.is_long(text) for text in given)
        if not self.enabled or not long or rule is Rule.KEEP:
            return given
        if rule is Rule.DROP:
            return None, None, None, None
        highs = [self._above(text) for text in (high, inner_high)]
        lost = any(h is None and was is not None for h, was in zip(highs, given[1::2], strict=True))
        last, inner_last = (None, None) if lost else highs
        return self._below(low), last, self._below(inner_low), inner_last

    def is_long(self, text: object) -> bool:
        """Whether a bound is a text, and longer than allowed."""
        return isinstance(text, str) and len(text) > self.max_length

    def _below(self, low: str | None) -> str | None:
        if low is None or not self.is_long(low):
            return low
        return low.removesuffix(TRUNCATED)[: self.max_length]

    def _above(self, high: str | None) -> str | None:
        """A text not longer than allowed, and not below the one given."""
        if high is None or not self.is_long(high):
            return high
        text = high.removesuffix(TRUNCATED)[: self.max_length]  # what is left is a prefix
        for at in range(len(text) - 1, -1, -1):
            if ord(text[at]) < _LAST:
                return text[:at] + chr(ord(text[at]) + 1)
        return None

    def rules(
        self, partition_columns: Iterable[str], schema: pa.Schema | None
    ) -> Callable[[str], Rule]:
        """What becomes of the long bounds of each column."""
        exempt = set(partition_columns)
        kinds = {} if schema is None else {item.name: item.type for item in schema}
        text = Rule.CUT if self.strategy == "truncate" else Rule.DROP

        def rule(name: str) -> Rule:
            kind = kinds.get(name)
            if name in exempt:
                return Rule.KEEP
            if kind is None or not has_bounds(kind):
                return Rule.DROP
            return text if pa.types.is_string(kind) else Rule.KEEP

        return rule


def truncate_fields(
    fields: Mapping[str, Any],
    partition_columns: Sequence[str],
    cut: Truncation,
    schema: pa.Schema | None,
) -> dict[str, Any]:
    """The fields of one add, as they will stand in the log, with bounds that are not too long."""
    done = dict(fields)
    low, high = (dict(fields.get(side) or {}) for side in _SIDES)
    text = fields.get("stats")
    texts = (*low.values(), *high.values(), text)
    if not cut.enabled or not any(cut.is_long(found) for found in texts):
        return done
    stats = _object(text) if isinstance(text, str) else {}
    if _shorten_maps(low, high, stats, cut.rules(partition_columns, schema), cut):
        for side, found in zip(_SIDES, (low, high), strict=True):
            done[side] = found or None
        if stats:
            done["stats"] = msgspec.json.encode(stats).decode()
    return done


def truncate_adds(
    adds: pa.Table,
    partition_columns: Sequence[str],
    config: Config,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Decoded adds with bounds that are not too long, in their columns and in their JSON texts.

    Rows and their order stay. Without a `schema` nobody knows which columns are text, so long
    bounds are dropped whatever the strategy says.
    """
    cut = Truncation.of(config)
    if not cut.enabled or not adds.num_rows:
        return adds
    rule = cut.rules(partition_columns, schema)
    adds = _mend_texts(adds, cut, rule)
    names = adds.column_names
    changed: dict[str, pa.Array] = {}
    touched: dict[str, pa.Array] = {}  # by column: rows in which `stats` says something else now
    for name in _bounded(names):
        how = rule(name)
        four = [f"{before}{side}.{name}" for before in ("", "stats.") for side in _SIDES]
        found = [_texts(adds[column]) if column in names else None for column in four]
        long = None if how is Rule.KEEP else _long(found, cut.max_length)
        if long is None:
            continue
        new = _shortened(found, long, how, cut)
        changed |= {col: array for col, array in zip(four, new, strict=True) if array is not None}
        if found[2] is not None or found[3] is not None:
            touched[name] = long
    for column, array in changed.items():
        adds = adds.set_column(adds.column_names.index(column), column, array)
    return _mend_stats(adds, touched) if touched and "stats" in names else adds


def _bounded(names: Iterable[str]) -> list[str]:
    """Columns of the table that have bounds."""
    prefixes = tuple(f"{before}{side}." for before in ("", "stats.") for side in _SIDES)
    found = (name[len(p) :] for name in names for p in prefixes if name.startswith(p))
    return sorted(set(found))


def _texts(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if array.type == _TEXT else pc.cast(array, _TEXT)


def _long(found: Sequence[pa.Array | None], max_length: int) -> pa.Array | None:
    """In which rows a bound is longer than allowed; None if in none."""
    masks = []
    limit = number(max_length)
    for texts in found:
        if texts is None or (pc.max(pc.binary_length(texts)).as_py() or 0) <= max_length:
            continue  # bytes are at least as many as characters
        masks.append(pc.fill_null(pc.greater(pc.utf8_length(texts), limit), FALSE))
    if not masks:
        return None
    long = masks[0]
    for mask in masks[1:]:
        long = pc.or_(long, mask)
    return long if long.true_count else None


def _shortened(
    found: Sequence[pa.Array | None], long: pa.Array, how: Rule, cut: Truncation
) -> list[pa.Array | None]:
    """`Truncation.shorten_both`, by columns."""
    nothing = null(_TEXT)
    if how is Rule.DROP:
        return [None if t is None else pc.if_else(long, nothing, t) for t in found]
    highs = [None if t is None else _raised(t, cut) for t in found[1::2]]
    for was, now in zip(found[1::2], highs, strict=True):
        if was is not None and now is not None and now.null_count > was.null_count:
            lost = pc.and_(pc.is_null(now), pc.is_valid(was))
            highs = [None if t is None else pc.if_else(lost, nothing, t) for t in highs]
    lows = [None if t is None else _lowered(t, cut) for t in found[::2]]
    return [lows[0], highs[0], lows[1], highs[1]]


def _cut(texts: pa.Array, cut: Truncation) -> tuple[pa.Array, pa.Array]:
    """Which texts are too long, and their first characters."""
    long = pc.fill_null(pc.greater(pc.utf8_length(texts), number(cut.max_length)), FALSE)
    bare = texts
    marked = pc.ends_with(texts, TRUNCATED)
    if pc.any(marked).as_py():
        whole = pc.utf8_slice_codeunits(texts, 0, -len(TRUNCATED))
        bare = pc.if_else(marked, whole, texts)
    return long, pc.utf8_slice_codeunits(bare, 0, cut.max_length)


def _lowered(texts: pa.Array, cut: Truncation) -> pa.Array:
    long, first = _cut(texts, cut)
    return pc.if_else(long, first, texts)


def _raised(texts: pa.Array, cut: Truncation) -> pa.Array:
    """Maxima not longer than allowed and not below what they were; null where there is none."""
    long, first = _cut(texts, cut)
    if not long.true_count:
        return texts
    first = pc.if_else(long, first, null(_TEXT))
    last = pc.utf8_slice_codeunits(first, -1).dictionary_encode()
    raised = [_next(text) for text in last.dictionary.to_pylist()]  # few: single characters
    after = array_of(raised, _TEXT).take(last.indices)
    head = pc.utf8_slice_codeunits(first, 0, -1)
    done = pc.binary_join_element_wise(head, after, scalar("", _TEXT))
    odd = pc.and_(long, pc.is_null(after))
    if odd.true_count:  # the last character cannot be raised, so one before it is
        rare = [cut._above(text) for text in texts.filter(odd).to_pylist()]  # noqa: SLF001 -- ours
        done = pc.replace_with_mask(done, odd, array_of(rare, _TEXT))
    return pc.if_else(long, done, texts)


def _next(text: str) -> str | None:
    return chr(ord(text) + 1) if text and ord(text) < _LAST else None


def _mend_stats(adds: pa.Table, touched: Mapping[str, pa.Array]) -> pa.Table:
    """Write into `stats` what its columns say now, in the rows where that is something else."""
    raw = _raw(adds)
    rows: pa.Array = pc.invert(raw)
    some = None
    for mask in touched.values():
        some = mask if some is None else pc.or_(some, mask)
    rows = pc.and_(pc.and_(rows, some), pc.is_valid(_texts(adds["stats"])))
    if not rows.true_count:
        return adds
    columns = [f"stats.{side}.{name}" for side in _SIDES for name in touched]
    columns = [column for column in columns if column in adds.column_names]
    new = adds.select(columns).filter(rows)
    masks = {name: mask.filter(rows).to_pylist() for name, mask in touched.items()}
    values = {column: new[column].to_pylist() for column in columns}
    texts = [
        _with_bounds(text, row, values, masks)
        for row, text in enumerate(adds["stats"].filter(rows).to_pylist())
    ]
    whole = pc.replace_with_mask(_texts(adds["stats"]), rows, array_of(texts, _TEXT))
    return adds.set_column(adds.column_names.index("stats"), "stats", whole)


def _with_bounds(
    text: str,
    row: int,
    values: Mapping[str, list[str | None]],
    masks: Mapping[str, list[bool]],
) -> str:
    stats: dict[str, Any] = _object(text)
    changed = False
    for side in _SIDES:
        inner: dict[str, Any] = _object(stats.get(side))
        for name, mask in masks.items():
            if not mask[row] or name not in inner:
                continue
            now = values[f"stats.{side}.{name}"][row]
            changed = True
            if now is None:
                del inner[name]
            elif now != _text(inner[name]):
                inner[name] = now
        if side in stats and changed:
            stats[side] = inner
    return msgspec.json.encode(stats).decode() if changed else text


def _mend_texts(adds: pa.Table, cut: Truncation, rule: Callable[[str], Rule]) -> pa.Table:
    """Rows whose maps are JSON text, or whose `stats` were never taken apart: text by text."""
    names = [name for name in (*_SIDES, "stats") if name in adds.column_names]
    apart = any(c.startswith(tuple(f"stats.{side}." for side in _SIDES)) for c in adds.column_names)
    long = None
    for name in names:
        size = pc.greater(pc.binary_length(_texts(adds[name])), number(cut.max_length))
        mask = pc.fill_null(size, FALSE)
        long = mask if long is None else pc.or_(long, mask)
    if long is None:
        return adds
    rows = pc.and_(long, _raw(adds)) if apart or "stats" not in names else long
    if not rows.true_count:
        return adds
    texts = {name: adds[name].filter(rows).to_pylist() for name in names}
    for row in range(rows.true_count):
        low, high = (_object(texts[side][row]) if side in texts else {} for side in _SIDES)
        stats = _object(texts["stats"][row]) if "stats" in texts else {}
        if _shorten_maps(low, high, stats, rule, cut):
            for name, found in zip((*_SIDES, "stats"), (low, high, stats), strict=True):
                if name in texts and texts[name][row] is not None and _is_map(texts[name][row]):
                    texts[name][row] = msgspec.json.encode(found).decode()
    for name in names:
        whole = pc.replace_with_mask(_texts(adds[name]), rows, array_of(texts[name], _TEXT))
        adds = adds.set_column(adds.column_names.index(name), name, whole)
    return adds


def _raw(adds: pa.Table) -> pa.Array:
    if "raw" not in adds.column_names:
        return pa.repeat(FALSE, adds.num_rows)
    return pc.fill_null(adds["raw"].combine_chunks(), FALSE)


def _shorten_maps(
    low: dict[str, Any],
    high: dict[str, Any],
    stats: dict[str, Any],
    rule: Callable[[str], Rule],
    cut: Truncation,
) -> bool:
    """Shorten the bounds of one add in place; whether anything changed."""
    inner: list[dict[str, Any]] = [_object(stats.get(side)) for side in _SIDES]
    maps = (low, high, *inner)
    changed = False
    for name in sorted(set().union(*maps)):
        low_text, high_text, inner_low, inner_high = (_text(items.get(name)) for items in maps)
        found = (low_text, high_text, inner_low, inner_high)
        if not any(cut.is_long(text) for text in found):
            continue
        for items, old, new in zip(maps, found, cut.shorten_both(*found, rule(name)), strict=True):
            if new == old:
                continue
            changed = True
            if new is None:
                del items[name]
            else:
                items[name] = new
    if changed:
        for side, items in zip(_SIDES, inner, strict=True):
            if side in stats:
                stats[side] = items
    return changed


def _text(value: Any) -> str | None:
    """A bound as text, numbers to the last digit; None for what readers do not take for one."""
    if isinstance(value, str) or value is None:
        return value
    if not isinstance(value, msgspec.Raw):
        return None
    plain = bytes(value)
    if plain[:1] in (b"{", b"[", b"n"):
        return None
    if plain[:1] != b'"':
        return plain.decode()
    try:
        return str(msgspec.json.decode(plain))
    except _BROKEN:
        return None


def _object(text: Any) -> dict[str, Any]:
    """The members of a JSON object; none if it is something else."""
    if isinstance(text, dict):
        return text
    try:
        return {} if text is None else _MAP.decode(text)
    except _BROKEN:
        return {}


def _is_map(text: str) -> bool:
    try:
        _MAP.decode(text)
    except _BROKEN:
        return False
    return True

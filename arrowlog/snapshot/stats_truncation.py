"""Truncates long text bounds in statistics: drops them, or shortens them soundly. Pure.

One rule serves everything that writes adds: commits, checkpoints, repair. A bound of a text column
that is longer than allowed is dropped together with the opposite bound, or shortened: a minimum to
a prefix, a maximum to a prefix with its last character incremented, so that no value in the file is
above it. Partition columns are exempt, and so are numbers and times, which have no prefix that
compares. Long bounds of columns of unknown type are dropped.

`StatsTruncation.shorten` is the rule for one column of one file. `truncate_adds` applies it to the
columns of decoded adds. Bounds inside JSON text are rewritten text by text, and only where one of
them is too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, make_int64, make_scalar, null_scalar
from arrowlog.snapshot.typed_values import TRUNCATION_MARK, has_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.config import Config

# The last character below the surrogates. Bounds with characters above it are unknown to readers,
# because UTF-16 and code points order them differently.
_LAST_COMPARABLE = 0xD7FF
_SIDES = ("minValues", "maxValues")
_TEXT = pa.string()
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class TruncationRule(Enum):
    """What happens to the long bounds of a column."""

    KEEP = "unchanged: a partition column, or a type that has no comparable prefix"
    DROP = "left out"
    CUT = "shortened soundly"


@dataclass(frozen=True, slots=True)
class StatsTruncation:
    """The truncation settings. `strategy` is `drop` (both bounds) or `truncate` (soundly).

    `max_length` is in characters.
    """

    enabled: bool = True
    max_length: int = 1024
    strategy: str = "drop"

    @property
    def label(self) -> str:
        """The settings as text, for the manifest of a checkpoint."""
        return f"{self.strategy} {self.max_length}" if self.enabled else "none"

    @classmethod
    def of(cls, config: Config) -> StatsTruncation:
        """Take the settings from a configuration."""
        return cls(
            config.stats_truncation_enabled,
            config.stats_truncation_max_length,
            config.stats_truncation_strategy,
        )

    def shorten(self, low: str | None, high: str | None) -> tuple[str | None, str | None]:
        """Return sound bounds of a text column that are short enough; None for a dropped bound.

        >>> StatsTruncation(max_length=3, strategy="truncate").shorten("abcdef", "abcdef")
        ('abc', 'abd')
        """
        rule = TruncationRule.CUT if self.strategy == "truncate" else TruncationRule.DROP
        return self.shorten_bounds(low, high, None, None, rule)[:2]

    def shorten_bounds(
        self,
        low: str | None,
        high: str | None,
        inner_low: str | None,
        inner_high: str | None,
        rule: TruncationRule,
    ) -> tuple[str | None, str | None, str | None, str | None]:
        """Shorten the bounds of one column of one file: from the maps, and from `stats` (inner).

        The maps win over `stats`, so a bound that is dropped from one is dropped from the other:
        otherwise a bound that was overridden before would become effective.
        """
        bounds = (low, high, inner_low, inner_high)
        any_long = any(self.is_long(text) for text in bounds)
        if not self.enabled or not any_long or rule is TruncationRule.KEEP:
            return bounds
        if rule is TruncationRule.DROP:
            return None, None, None, None
        old_highs = (high, inner_high)
        highs = [self._shorten_high(text) for text in old_highs]
        lost = any(
            new is None and old is not None for new, old in zip(highs, old_highs, strict=True)
        )
        new_high, new_inner_high = (None, None) if lost else highs
        return self._shorten_low(low), new_high, self._shorten_low(inner_low), new_inner_high

    def is_long(self, text: object) -> bool:
        """Whether a bound is text and longer than allowed."""
        return isinstance(text, str) and len(text) > self.max_length

    def _shorten_low(self, low: str | None) -> str | None:
        if low is None or not self.is_long(low):
            return low
        return low.removesuffix(TRUNCATION_MARK)[: self.max_length]

    def _shorten_high(self, high: str | None) -> str | None:
        """Return a text that is short enough and not below `high`; None if there is none."""
        if high is None or not self.is_long(high):
            return high
        text = high.removesuffix(TRUNCATION_MARK)[: self.max_length]
        for at in range(len(text) - 1, -1, -1):
            if ord(text[at]) < _LAST_COMPARABLE:
                return text[:at] + chr(ord(text[at]) + 1)
        return None

    def rules(
        self, partition_columns: Iterable[str], schema: pa.Schema | None
    ) -> Callable[[str], TruncationRule]:
        """Return a function from a column's name to what happens to its long bounds."""
        exempt = set(partition_columns)
        kinds = {} if schema is None else {item.name: item.type for item in schema}
        text_rule = TruncationRule.CUT if self.strategy == "truncate" else TruncationRule.DROP

        def rule(name: str) -> TruncationRule:
            kind = kinds.get(name)
            if name in exempt:
                return TruncationRule.KEEP
            if kind is None or not has_bounds(kind):
                return TruncationRule.DROP
            return text_rule if pa.types.is_string(kind) else TruncationRule.KEEP

        return rule


def truncate_add_fields(
    fields: Mapping[str, Any],
    partition_columns: Sequence[str],
    cut: StatsTruncation,
    schema: pa.Schema | None,
) -> dict[str, Any]:
    """Return the fields of one add, as they will be written, without bounds that are too long."""
    result = dict(fields)
    low, high = (dict(fields.get(side) or {}) for side in _SIDES)
    text = fields.get("stats")
    # `stats` holds every bound it has as text, so if it is short, they are.
    candidates = (*low.values(), *high.values(), text)
    if not cut.enabled or not any(cut.is_long(candidate) for candidate in candidates):
        return result
    stats = _decode_object(text) if isinstance(text, str) else {}
    if _shorten_maps(low, high, stats, cut.rules(partition_columns, schema), cut):
        for side, bounds in zip(_SIDES, (low, high), strict=True):
            result[side] = bounds or None
        if stats:
            result["stats"] = msgspec.json.encode(stats).decode()
    return result


def truncate_adds(
    adds: pa.Table,
    partition_columns: Sequence[str],
    config: Config,
    schema: pa.Schema | None = None,
) -> pa.Table:
    """Return decoded adds without bounds that are too long, in columns and in JSON text.

    Rows and their order do not change. Without a `schema` it is unknown which columns are text, so
    long bounds are dropped whatever the strategy is.
    """
    cut = StatsTruncation.of(config)
    if not cut.enabled or not adds.num_rows:
        return adds
    rule = cut.rules(partition_columns, schema)
    adds = _truncate_json(adds, cut, rule)
    names = adds.column_names
    changed: dict[str, pa.Array] = {}
    stale_stats: dict[str, pa.Array] = {}  # by column: rows whose `stats` text has an old bound
    for name in _bounded(names):
        column_rule = rule(name)
        bound_columns = [f"{parent}{side}.{name}" for parent in ("", "stats.") for side in _SIDES]
        logged = [adds[column] for column in bound_columns if column in names]
        if column_rule is TruncationRule.KEEP or all(_is_short(c, cut.max_length) for c in logged):
            continue
        bounds = [_to_text(adds[column]) if column in names else None for column in bound_columns]
        long_rows = _long_rows(bounds, cut.max_length)
        if long_rows is None:
            continue
        shortened = _shorten_columns(bounds, long_rows, column_rule, cut)
        pairs = zip(bound_columns, shortened, strict=True)
        changed |= {column: array for column, array in pairs if array is not None}
        if bounds[2] is not None or bounds[3] is not None:
            stale_stats[name] = long_rows
    for column, array in changed.items():
        adds = adds.set_column(adds.column_names.index(column), column, array)
    return _update_stats(adds, stale_stats) if stale_stats and "stats" in names else adds


def _bounded(names: Iterable[str]) -> list[str]:
    """Return the table's columns that have a bound among these columns of the adds."""
    prefixes = tuple(f"{parent}{side}." for parent in ("", "stats.") for side in _SIDES)
    return sorted({name[len(p) :] for name in names for p in prefixes if name.startswith(p)})


def _is_short(column: pa.ChunkedArray, max_length: int) -> bool:
    """Whether no text of a column has more bytes than this, so that none has more characters."""
    if column.type != _TEXT:
        return False
    return bool((pc.max(pc.binary_length(column)).as_py() or 0) <= max_length)


def _to_text(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if array.type == _TEXT else pc.cast(array, _TEXT)


def _long_rows(bounds: Sequence[pa.Array | None], max_length: int) -> pa.Array | None:
    """Return in which rows a bound is longer than allowed; None if in none."""
    masks = []
    limit = make_int64(max_length)
    for texts in bounds:
        if texts is None or (pc.max(pc.binary_length(texts)).as_py() or 0) <= max_length:
            continue  # a text has at least as many bytes as characters
        masks.append(pc.fill_null(pc.greater(pc.utf8_length(texts), limit), FALSE))
    if not masks:
        return None
    long_rows = masks[0]
    for mask in masks[1:]:
        long_rows = pc.or_(long_rows, mask)
    return long_rows if long_rows.true_count else None


def _shorten_columns(
    bounds: Sequence[pa.Array | None],
    long_rows: pa.Array,
    rule: TruncationRule,
    cut: StatsTruncation,
) -> list[pa.Array | None]:
    """Do what `StatsTruncation.shorten_bounds` does, for whole columns in the same order."""
    nothing = null_scalar(_TEXT)
    if rule is TruncationRule.DROP:
        return [None if t is None else pc.if_else(long_rows, nothing, t) for t in bounds]
    highs = [None if t is None else _shorten_highs(t, cut) for t in bounds[1::2]]
    for old, new in zip(bounds[1::2], highs, strict=True):
        if old is not None and new is not None and new.null_count > old.null_count:
            lost = pc.and_(pc.is_null(new), pc.is_valid(old))
            highs = [None if t is None else pc.if_else(lost, nothing, t) for t in highs]
    lows = [None if t is None else _shorten_lows(t, cut) for t in bounds[::2]]
    return [lows[0], highs[0], lows[1], highs[1]]


def _prefixes(texts: pa.Array, cut: StatsTruncation) -> tuple[pa.Array, pa.Array]:
    """Return which texts are too long, and the prefixes of all texts."""
    long_rows = pc.fill_null(pc.greater(pc.utf8_length(texts), make_int64(cut.max_length)), FALSE)
    unmarked = texts
    marked = pc.ends_with(texts, TRUNCATION_MARK)
    if pc.any(marked).as_py():
        stripped = pc.utf8_slice_codeunits(texts, 0, -len(TRUNCATION_MARK))
        unmarked = pc.if_else(marked, stripped, texts)
    return long_rows, pc.utf8_slice_codeunits(unmarked, 0, cut.max_length)


def _shorten_lows(texts: pa.Array, cut: StatsTruncation) -> pa.Array:
    long_rows, prefixes = _prefixes(texts, cut)
    return pc.if_else(long_rows, prefixes, texts)


def _shorten_highs(texts: pa.Array, cut: StatsTruncation) -> pa.Array:
    """Return maxima that are short enough and not below the given ones; null if there is none."""
    long_rows, prefixes = _prefixes(texts, cut)
    if not long_rows.true_count:
        return texts
    prefixes = pc.if_else(long_rows, prefixes, null_scalar(_TEXT))
    # Distinct single characters are few, so incrementing them in Python is cheap.
    last = pc.utf8_slice_codeunits(prefixes, -1).dictionary_encode()
    incremented = [_increment(char) for char in last.dictionary.to_pylist()]
    new_last = make_array(incremented, _TEXT).take(last.indices)
    heads = pc.utf8_slice_codeunits(prefixes, 0, -1)
    shortened = pc.binary_join_element_wise(heads, new_last, make_scalar("", _TEXT))
    stuck = pc.and_(long_rows, pc.is_null(new_last))
    if stuck.true_count:  # the last character cannot be incremented, so one before it is
        rare = [cut._shorten_high(text) for text in texts.filter(stuck).to_pylist()]  # noqa: SLF001 -- ours
        shortened = pc.replace_with_mask(shortened, stuck, make_array(rare, _TEXT))
    return pc.if_else(long_rows, shortened, texts)


def _increment(char: str) -> str | None:
    return chr(ord(char) + 1) if char and ord(char) < _LAST_COMPARABLE else None


def _update_stats(adds: pa.Table, stale: Mapping[str, pa.Array]) -> pa.Table:
    """Write the shortened bounds into the `stats` text of the rows in `stale`, by column.

    Rows of the row decoder (`raw`) are exempt: `_truncate_json` has rewritten theirs.
    """
    any_stale = None
    for mask in stale.values():
        any_stale = mask if any_stale is None else pc.or_(any_stale, mask)
    rows = pc.and_(pc.invert(_raw_rows(adds)), any_stale)
    rows = pc.and_(rows, pc.is_valid(_to_text(adds["stats"])))
    if not rows.true_count:
        return adds
    columns = [f"stats.{side}.{name}" for side in _SIDES for name in stale]
    columns = [column for column in columns if column in adds.column_names]
    bounds = adds.select(columns).filter(rows)
    masks = {name: mask.filter(rows).to_pylist() for name, mask in stale.items()}
    values = {column: bounds[column].to_pylist() for column in columns}
    texts = [
        _with_bounds(text, row, values, masks)
        for row, text in enumerate(adds["stats"].filter(rows).to_pylist())
    ]
    updated = pc.replace_with_mask(_to_text(adds["stats"]), rows, make_array(texts, _TEXT))
    return adds.set_column(adds.column_names.index("stats"), "stats", updated)


def _with_bounds(
    text: str,
    row: int,
    values: Mapping[str, list[str | None]],
    masks: Mapping[str, list[bool]],
) -> str:
    """Return a `stats` text with the bounds of one row, where the masks say that they changed."""
    stats: dict[str, Any] = _decode_object(text)
    changed = False
    for side in _SIDES:
        inner: dict[str, Any] = _decode_object(stats.get(side))
        for name, mask in masks.items():
            if not mask[row] or name not in inner:
                continue
            bound = values[f"stats.{side}.{name}"][row]
            changed = True
            if bound is None:
                del inner[name]
            elif bound != _bound_text(inner[name]):
                inner[name] = bound
        if side in stats and changed:
            stats[side] = inner
    return msgspec.json.encode(stats).decode() if changed else text


def _truncate_json(
    adds: pa.Table, cut: StatsTruncation, rule: Callable[[str], TruncationRule]
) -> pa.Table:
    """Truncate bounds that exist only as JSON text: rows of the row decoder, unflattened stats."""
    names = [name for name in (*_SIDES, "stats") if name in adds.column_names]
    stats_columns = tuple(f"stats.{side}." for side in _SIDES)
    stats_flattened = any(name.startswith(stats_columns) for name in adds.column_names)
    long_rows = None
    for name in names:
        is_long = pc.greater(pc.binary_length(_to_text(adds[name])), make_int64(cut.max_length))
        mask = pc.fill_null(is_long, FALSE)
        long_rows = mask if long_rows is None else pc.or_(long_rows, mask)
    if long_rows is None:
        return adds
    only_raw = stats_flattened or "stats" not in names
    rows = pc.and_(long_rows, _raw_rows(adds)) if only_raw else long_rows
    if not rows.true_count:
        return adds
    texts = {name: adds[name].filter(rows).to_pylist() for name in names}
    for row in range(rows.true_count):
        low, high = (_decode_object(texts[side][row]) if side in texts else {} for side in _SIDES)
        stats = _decode_object(texts["stats"][row]) if "stats" in texts else {}
        if _shorten_maps(low, high, stats, rule, cut):
            for name, value in zip((*_SIDES, "stats"), (low, high, stats), strict=True):
                if name in texts and texts[name][row] is not None and _is_object(texts[name][row]):
                    texts[name][row] = msgspec.json.encode(value).decode()
    for name in names:
        updated = pc.replace_with_mask(_to_text(adds[name]), rows, make_array(texts[name], _TEXT))
        adds = adds.set_column(adds.column_names.index(name), name, updated)
    return adds


def _raw_rows(adds: pa.Table) -> pa.Array:
    """Return which rows come from the row decoder, which leaves maps as JSON text."""
    if "raw" not in adds.column_names:
        return pa.repeat(FALSE, adds.num_rows)
    return pc.fill_null(adds["raw"].combine_chunks(), FALSE)


def _shorten_maps(
    low: dict[str, Any],
    high: dict[str, Any],
    stats: dict[str, Any],
    rule: Callable[[str], TruncationRule],
    cut: StatsTruncation,
) -> bool:
    """Shorten the bounds of one add in place; returns whether anything changed."""
    inner: list[dict[str, Any]] = [_decode_object(stats.get(side)) for side in _SIDES]
    maps = (low, high, *inner)
    changed = False
    for name in sorted(set().union(*maps)):
        low_text, high_text, inner_low, inner_high = (_bound_text(m.get(name)) for m in maps)
        old_texts = (low_text, high_text, inner_low, inner_high)
        if not any(cut.is_long(text) for text in old_texts):
            continue
        new_texts = cut.shorten_bounds(*old_texts, rule(name))
        for items, old, new in zip(maps, old_texts, new_texts, strict=True):
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


def _bound_text(value: Any) -> str | None:
    """Return a JSON bound as text, numbers digit by digit; None if readers ignore it."""
    if isinstance(value, str) or value is None:
        return value
    if not isinstance(value, msgspec.Raw):
        return None
    data = bytes(value)
    if data[:1] in (b"{", b"[", b"n"):  # an object, a list or null
        return None
    if data[:1] != b'"':
        return data.decode()
    try:
        return str(msgspec.json.decode(data))
    except _BROKEN:
        return None


def _decode_object(text: Any) -> dict[str, Any]:
    """Return the members of a JSON object; empty if it is anything else."""
    if isinstance(text, dict):
        return text
    try:
        return {} if text is None else _OBJECT.decode(text)
    except _BROKEN:
        return {}


def _is_object(text: str) -> bool:
    try:
        _OBJECT.decode(text)
    except _BROKEN:
        return False
    return True

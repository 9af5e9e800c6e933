"""Partition bounds of manifests: which of them can be trusted, and how they are computed. Pure.

Writers order the partition values of a manifest pairwise: as integers if both are, else as floating
point numbers if both are, else as text. Over a mix of numbers and other text that is no order
(9 < 10 < 1a < 9), and the bounds may exclude values that they should contain.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.arrays import make_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PartitionBounds = tuple[str | None, str | None]  # the least and the greatest value

_INT64 = range(-(1 << 63), 1 << 63)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Text that some language reads as a number although it does not look like one: infinities and NaN,
# hexadecimal, with a suffix, in spaces.
_ODD_NUMBER = re.compile(
    r"\s.*|.*\s|[+-]?(inf|infinity|nan|0x.*|[0-9.][0-9.e+-]*[df])", re.IGNORECASE
)
_EXACT_DIGITS = 15  # every decimal number of so many digits survives as a double
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})([T ][0-9:.]+(Z|[+-][0-9:]+)?)?")
# Ranges of texts that bounds of text say nothing about. '' is left out of them (as an upper bound
# it could begin any text). The others are numbers to some writers, for which NaN equals
# every number: where a manifest has several of them, the bounds may be those of the other texts.
_BEYOND_BOUNDS = (
    ("", "\0"),
    *((word, word) for word in ("NAN", "NaN", "Nan", "nan")),
    *(("INF", "INFINITY"), ("Inf", "Infinity"), ("inf", "infinity"), ("+", "+nan"), ("-", "-nan")),
)
_SURROGATES = "\ud800"  # characters from here on are sorted differently by UTF-16


def trusted_bounds(bounds: PartitionBounds | None, kind: pa.DataType) -> tuple[str, str] | None:
    """Return sound bounds of a column's partition values as text; None if nothing is known.

    They say nothing about NULL, and for text nothing about ''. Bounds of timestamps are widened to
    whole days, because text with different zones does not sort by time.
    """
    if bounds is None or bounds[0] is None or bounds[1] is None:
        return None
    low, high = bounds[0], bounds[1]
    if pa.types.is_integer(kind):
        trusted = _is_int64(low) and _is_int64(high) and int(low) <= int(high)
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        trusted = _is_exact(low) and _is_exact(high) and float(low) <= float(high)
    elif pa.types.is_date(kind):
        trusted = _is_day(low) and _is_day(high) and low <= high
    elif pa.types.is_timestamp(kind):
        return _widened_days(low, high)
    elif pa.types.is_string(kind):
        odd = _ODD_NUMBER.fullmatch(low) or _ODD_NUMBER.fullmatch(high)
        trusted = not odd and low[:1] > "9" and max(low + high) < _SURROGATES and low <= high
    else:
        trusted = False
    return (low, high) if trusted else None


def _is_int64(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT64


def _is_exact(text: str) -> bool:
    """Return whether a text is a number that a double represents without loss of digits."""
    if not _NUMBER.fullmatch(text):
        return False
    digits = re.sub(r"[eE].*|[^0-9]", "", text).lstrip("0")
    return len(digits) <= _EXACT_DIGITS and math.isfinite(float(text))


def _is_day(text: str) -> bool:
    return _ISO_DATE.fullmatch(text) is not None and _day(text) is not None


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _widened_days(low: str, high: str) -> tuple[str, str] | None:
    """Return the days of two times, a day earlier and two days later: zones are below a day."""
    first, last = _ISO_TIME.fullmatch(low), _ISO_TIME.fullmatch(high)
    low_day = _day(first[1]) if first else None
    high_day = _day(last[1]) if last else None
    if low_day is None or high_day is None or low_day > high_day:
        return None
    try:
        begin, end = low_day - dt.timedelta(days=1), high_day + dt.timedelta(days=2)
    except OverflowError:
        return None
    return f"{begin.isoformat()}T00:00:00Z", f"{end.isoformat()}T00:00:00Z"


def compute_bounds(values: Iterable[str | None]) -> PartitionBounds | None:
    """Return the bounds of a column's distinct partition values, for a new manifest.

    None if there are none, if one is missing or empty, or if numbers and other text are mixed:
    then other readers would be misled.

    >>> compute_bounds(["9", "10"]), compute_bounds(["9", "1a"]), compute_bounds(["b", "a"])
    (('9', '10'), None, ('a', 'b'))
    """
    texts = list(values)
    if not texts or any(not text for text in texts):
        return None
    known = [text for text in texts if text]
    if all(_is_int64(text) for text in known):
        return min(known, key=int), max(known, key=int)
    if all(_is_exact(text) for text in known):
        return min(known, key=float), max(known, key=float)
    if any(_NUMBER.fullmatch(text) or _ODD_NUMBER.fullmatch(text) for text in known):
        return None
    if any(max(text) >= _SURROGATES for text in known):
        return None
    return min(known), max(known)


def bound_table(
    manifests: Iterable[Mapping[str, PartitionBounds] | None], columns: Mapping[str, pa.DataType]
) -> pa.Table:
    """Return the trusted bounds of manifests as rows for data skipping.

    A row with the number of its `manifest` and the text columns `low.<column>`, `high.<column>`
    describes some of its files; null is unknown. A manifest may be skipped if all its rows can be:
    it has one for the values within its bounds, and for each text column with bounds some for
    values that they may leave out.
    """
    rows: dict[str, list[int | str | None]] = {"manifest": []}
    for name in columns:
        rows |= {f"low.{name}": [], f"high.{name}": []}
    for number, bounds in enumerate(manifests):
        found = {
            name: trusted_bounds((bounds or {}).get(name), kind) for name, kind in columns.items()
        }
        texts = [n for n, kind in columns.items() if pa.types.is_string(kind) and found[n]]
        alternatives = [found]
        for name in texts:
            unknown = found | dict.fromkeys(texts)
            alternatives += [unknown | {name: pair} for pair in _BEYOND_BOUNDS]
        for alternative in alternatives:
            rows["manifest"].append(number)
            for name, pair in alternative.items():
                rows[f"low.{name}"].append(pair and pair[0])
                rows[f"high.{name}"].append(pair and pair[1])
    return _to_table(rows)


def _to_table(rows: dict[str, list[int | str | None]]) -> pa.Table:
    return pa.table(
        {
            name: make_array(values, pa.int64() if name == "manifest" else pa.string())
            for name, values in rows.items()
        }
    )

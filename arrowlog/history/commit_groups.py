"""Groups of commits: their counts and sums by time, operation or writer, without an engine. Pure.

DuckDB answers the same questions about the view `commits`, but has to be started for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import from_numpy, make_int64, null_scalar, sum_slices, to_numpy
from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

Grouping = Literal["hour", "day", "month", "operation", "engine_info", "app_id"]

_INT = pa.int64()
_MILLIS = {"hour": 3_600_000, "day": 86_400_000}
_KEY_TYPES: dict[str, pa.DataType] = {
    "hour": pa.timestamp("ms", "UTC"),
    "day": pa.date32(),
    "month": pa.date32(),
    "operation": pa.string(),
    "engine_info": pa.string(),
    "app_id": pa.string(),
}
_TIMES = ("hour", "day", "month")
_SUMS = ("adds", "removes", "bytes", "bytes_removed", "rows")


def parse_grouping(by: object) -> tuple[str, ...]:
    """Return the names to group by, each once. Raises `InvalidRequest` if one is unknown."""
    names = (by,) if isinstance(by, str) else by
    if not isinstance(names, (list, tuple)) or not names:
        raise InvalidRequest(f"Commits cannot be grouped by {by!r}.", next=_hint())
    for name in names:
        if not isinstance(name, str) or name not in _KEY_TYPES:
            raise InvalidRequest(f"Commits cannot be grouped by {name!r}.", next=_hint())
    return tuple(dict.fromkeys(names))


def _hint() -> str:
    return f"Use one or several of {', '.join(_KEY_TYPES)}; for anything else, use table.sql()."


def columns_to_group(by: Sequence[str]) -> list[str]:
    """Return the columns of the view `commits` that `group_commits` needs."""
    keys = ["timestamp" if name in _TIMES else name for name in by]
    return list(dict.fromkeys(["version", *keys, *_SUMS]))


def group_commits(commits: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return one row per group of commits, the group with the newest commit first.

    A sum is null if it is unknown for one of the commits, or exceeds 64 bits. Commits whose time,
    operation or writer is unknown are a group of their own.
    """
    keys = {name: _key(commits, name) for name in by}
    versions = to_numpy(commits["version"].combine_chunks())
    order, starts = _groups(list(keys.values()), versions)
    if not len(starts):
        kinds = {name: _KEY_TYPES[name] for name in by}
        kinds |= dict.fromkeys(("commits", *_SUMS, "first_version", "last_version"), _INT)
        return pa.table({name: pa.nulls(0, kind) for name, kind in kinds.items()})
    last = np.maximum.reduceat(versions[order], starts)
    newest_first = np.argsort(-last)
    heads = from_numpy(order[starts][newest_first])
    columns = {name: key.take(heads) for name, key in keys.items()}
    counts = np.diff(np.append(starts, len(order)))
    columns["commits"] = from_numpy(counts[newest_first])
    for name in _SUMS:
        columns[name] = _sum(commits[name].combine_chunks(), order, starts, newest_first)
    first = np.minimum.reduceat(versions[order], starts)
    columns["first_version"] = from_numpy(first[newest_first])
    columns["last_version"] = from_numpy(last[newest_first])
    return pa.table(columns)


def _key(commits: pa.Table, name: str) -> pa.Array:
    """Return the group of each commit: the begin of the hour, the day, the first of the month."""
    if name not in _TIMES:
        return commits[name].combine_chunks()
    times = pc.cast(commits["timestamp"].combine_chunks(), _INT)
    millis = to_numpy(pc.fill_null(times, make_int64(0)))
    if name == "month":
        days = millis.astype("datetime64[ms]").astype("datetime64[M]").astype("datetime64[D]")
        numbers = days.astype(np.int64)
    else:
        numbers = millis // _MILLIS[name]
    begin = from_numpy(numbers * _MILLIS[name] if name == "hour" else numbers.astype(np.int32))
    kind = _KEY_TYPES[name]
    return pc.if_else(pc.is_valid(times), begin.view(kind), null_scalar(kind))


def _groups(keys: Sequence[pa.Array], versions: Any) -> tuple[Any, Any]:
    """Return the rows ordered by group, and where each group begins in that order."""
    codes = np.zeros(len(versions), np.int64)
    for key in keys:
        encoded = key.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + to_numpy(encoded.indices)
        # Dense again after every key, so that the product of several cannot overflow.
        codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    order = np.argsort(codes, kind="stable")
    changes = np.diff(codes[order], prepend=-1)
    return order, np.flatnonzero(changes)


def _sum(values: pa.Array, order: Any, starts: Any, newest_first: Any) -> pa.Array:
    """Add up the values of each group; null if one is unknown or the sum exceeds 64 bits."""
    numbers = to_numpy(pc.fill_null(values, make_int64(0)))[order]
    sums, fits = sum_slices(from_numpy(numbers), starts)
    sums, unknown = sums[newest_first], ~fits
    if values.null_count:
        missing = to_numpy(pc.cast(pc.is_null(values), _INT))[order]
        unknown |= np.add.reduceat(missing, starts) > 0
    if not unknown.any():
        return from_numpy(sums)
    validity = pa.py_buffer(np.packbits(~unknown[newest_first], bitorder="little"))
    return pa.Array.from_buffers(_INT, len(sums), [validity, pa.py_buffer(sums)])

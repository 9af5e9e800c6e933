"""Action reconciliation: which files are live. For each file, the newest action wins.

Pure functions over narrow frames of keys. They return masks, so that the wide columns of the adds
are filtered once and never joined. A frame of live files has `key` (the file's path relative to the
table) and any columns to carry along; a frame of actions also has `seq` (its place in log order)
and `add` (true for an add, false for a remove).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, concat_bytes, from_numpy, make_array, to_numpy
from arrowlog.decode import contains_octets
from arrowlog.fork_safety import pl, polars_is_stranded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

# Below this many keys, starting polars' thread pool costs more than the join (decision 14).
POLARS_MIN_KEYS = 20_000
# The bytes of a key that are hashed, from its end: file names mostly have a random UUID there,
# before an extension that they share. They are four words, with an odd factor for each.
_HASHED_START, _HASHED_STOP = -40, -8
_HASHED_BYTES = _HASHED_STOP - _HASHED_START
_HASH_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64
)
# Flags per removed key in the table that tells which adds may be removed, and at most: one in so
# many adds is looked up in vain.
_FLAGS_PER_KEY, _FLAG_BITS_MAX = 16, 24
# Absolute, with a `..` segment, with a URL scheme, or empty.
_LEADS_OUT = r"^/|(^|/)\.\.(/|$)|^[A-Za-z][A-Za-z0-9+.-]*:/|^$"


def file_keys(path: pl.Expr, roots: Sequence[str]) -> pl.Expr:
    """Return the key of a file: its path relative to the table's root.

    `roots` are the spellings of the root that an absolute path may begin with.
    """
    key = path
    for root in roots:
        relative = path.str.slice(len(root) + 1).str.strip_chars_start("/")
        key = pl.when(path.str.starts_with(f"{root}/")).then(relative).otherwise(key)
    return key


def paths_leading_out(keys: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return a mask of keys that are empty or lead out of the table; None if none does."""
    if not _suspect(keys):
        return None
    bad = pc.match_substring_regex(keys, _LEADS_OUT)
    return bad if pc.any(bad).as_py() else None


def _suspect(keys: pa.ChunkedArray) -> bool:
    """Whether a key may match `_LEADS_OUT`. Cheaper than the pattern, without false negatives."""
    if pc.any(pc.starts_with(keys, "/")).as_py() or pc.min(pc.binary_length(keys)).as_py() == 0:
        return True
    return contains_any(keys, ":/", "..")


def contains_any(texts: pa.ChunkedArray, *needles: str) -> bool:
    """Whether any text contains one of the needles, which are two ASCII characters each.

    A search through the bytes of all texts together rules most logs out before any text is searched
    by itself.
    """
    return any(
        any(_may_contain(chunk, *needle.encode()) for chunk in texts.chunks)
        and pc.any(pc.match_substring(texts, needle)).as_py()
        for needle in needles
    )


def _may_contain(texts: pa.Array, first: int, second: int) -> bool:
    """Whether one byte directly follows another; also true across the border of two texts."""
    if texts.type != pa.string():
        return True
    return contains_octets(np.frombuffer(concat_bytes(texts), np.uint8), first, second)


def to_series(texts: pa.ChunkedArray) -> pl.Series:
    """Return texts as a polars series, without a copy."""
    return pl.Series(pl.from_arrow(texts), dtype=pl.String)


def reconcile_keys(
    old_keys: pa.ChunkedArray, adds: pa.Table, removes: pa.Table
) -> tuple[pa.Array | pa.ChunkedArray | None, pa.Array | None]:
    """Return masks of the old files and of the adds that are live afterwards; None for all.

    `adds` and `removes` have `key` and `seq`. The common case, a few distinct new files and no
    removes, takes one Arrow kernel.
    """
    keys = adds["key"]
    if not len(keys) and not len(old_keys):
        return None, None  # there may be many removes: they need not be looked at
    if not removes.num_rows and _are_distinct(keys):
        if not len(keys) or not len(old_keys):
            return None, None
        touched = pc.is_in(old_keys, value_set=keys.combine_chunks())
        return (pc.invert(touched) if pc.any(touched).as_py() else None), None
    nulls = keys.null_count or removes["key"].null_count
    hash_functions = [_tail_hashes] if polars_is_stranded() else [_tail_hashes, _polars_hashes]
    for hashes in hash_functions if removes.num_rows and not nulls else ():
        found = _reconcile_distinct(old_keys, adds, removes, hashes)
        if found is not None:
            return found
    if polars_is_stranded():
        return reconcile_without_polars(old_keys, adds, removes)
    kept, live = reconcile(to_series(old_keys), _keys_and_seqs(adds), _keys_and_seqs(removes))
    return (
        None if kept is None else kept.to_arrow(),
        None if live is None else live.to_arrow(),
    )


def _are_distinct(keys: pa.ChunkedArray) -> bool:
    """Return whether all keys are known to differ; many are not compared beyond their hashes."""
    hashes = _tail_hashes(keys)
    if hashes is not None and not _repeats(hashes):
        return True
    few = len(keys) <= POLARS_MIN_KEYS
    return few and pc.count_distinct(keys, mode="all").as_py() == len(keys)


def _tail_hashes(keys: pa.ChunkedArray) -> NDArray[np.uint64] | None:
    """Return a hash of the end of each key; None if a key is too short or null.

    It needs neither polars, whose import takes longer than replaying most logs, nor a copy of the
    keys. Keys of different hashes differ.
    """
    hashes = [np.zeros(0, np.uint64)]
    for chunk in keys.chunks:
        if chunk.type != pa.string():
            return None
        tails = pc.binary_slice(chunk.view(pa.binary()), _HASHED_START, _HASHED_STOP)
        text = concat_bytes(tails)
        if len(text) < len(chunk) * _HASHED_BYTES:  # none is longer: some are shorter
            return None
        hashes.append(np.frombuffer(text, np.uint64).reshape(-1, 4) @ _HASH_FACTORS)
    return np.concatenate(hashes)


def _polars_hashes(keys: pa.ChunkedArray) -> NDArray[np.uint64] | None:
    """Return a hash of each whole key."""
    hashes: NDArray[np.uint64] = to_series(keys).hash().to_numpy()
    return hashes


def _repeats(hashes: NDArray[np.uint64]) -> bool:
    """Return whether a hash is there twice."""
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


def _may_be_among(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes may be among others; those of which it returns false are not."""
    bits = min((_FLAGS_PER_KEY * len(others)).bit_length(), _FLAG_BITS_MAX)
    shift = np.uint64(64 - bits)
    flags = np.zeros(1 << bits, np.bool_)
    flags[others >> shift] = True
    found: NDArray[np.bool_] = flags[hashes >> shift]
    return found


def _reconcile_distinct(
    old_keys: pa.ChunkedArray,
    adds: pa.Table,
    removes: pa.Table,
    hash_keys: Callable[[pa.ChunkedArray], NDArray[np.uint64] | None],
) -> tuple[pa.ChunkedArray | None, pa.Array | None] | None:
    """Do what `reconcile` does if every file is added and removed at most once; else None.

    An add is live unless the remove of its file, if there is one, comes later. Hashes tell which
    adds may have a remove; a collision of hashes only costs time.
    """
    added, removed = hash_keys(adds["key"]), hash_keys(removes["key"])
    if added is None or removed is None or _repeats(added) or _repeats(removed):
        return None
    may_be_removed = _may_be_among(added, removed)
    dead = np.zeros(0, np.intp)
    if may_be_removed.any():
        dead = _removed_again(adds, removes, may_be_removed)
    kept = None
    if len(old_keys):
        was_added = pc.is_in(old_keys, value_set=adds["key"].combine_chunks())
        was_removed = pc.is_in(old_keys, value_set=removes["key"].combine_chunks())
        kept = pc.invert(pc.or_(was_added, was_removed))
    return (
        None if kept is None or pc.all(kept).as_py() else kept,
        _mask_without(dead, adds.num_rows) if len(dead) else None,
    )


def _removed_again(
    adds: pa.Table, removes: pa.Table, candidates: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Return the rows of adds, among some candidates, whose file a later remove is about."""
    again = adds.select(["key", "seq"]).filter(from_numpy(candidates))
    removed = removes["key"].combine_chunks()
    removed_at = removes["seq"].take(pc.index_in(again["key"], value_set=removed))
    is_dead = pc.fill_null(pc.greater_equal(removed_at, again["seq"]), FALSE)
    dead: NDArray[np.intp] = np.flatnonzero(candidates)[to_numpy(is_dead)]
    return dead


def _mask_without(rows: NDArray[np.intp], count: int) -> pa.Array:
    """Return a mask of `count` rows in which all but some are true."""
    flags = np.ones(count, np.bool_)
    flags[rows] = False
    return from_numpy(flags)


def _keys_and_seqs(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.select(["key", "seq"])))


def last_actions(actions: pl.LazyFrame) -> pl.LazyFrame:
    """Return the last action on each file."""
    return actions.sort("seq").unique("key", keep="last", maintain_order=True)


def reconcile_frames(live: pl.LazyFrame, tail: pl.LazyFrame) -> pl.LazyFrame:
    """Apply later actions to the live files.

    Composes: applying `a` and then `b` equals applying `a` followed by `b` at once.
    """
    last = last_actions(tail)
    kept = live.join(last.select("key"), on="key", how="anti", nulls_equal=True)
    return pl.concat([kept, last.filter("add").drop("add", "seq")], how="diagonal")


def reconcile(
    live: pl.Series, adds: pl.DataFrame, removes: pl.DataFrame
) -> tuple[pl.Series | None, pl.Series | None]:
    """Return masks of `live` and of `adds` that are live after the actions; None for all rows.

    `live` holds keys; `adds` and `removes` have `key` and `seq`. Equivalent to `reconcile_frames`,
    with a fast path without a join for the common case: every file is added once and none is
    removed.
    """
    # A hash collision only costs the fast path.
    if removes.is_empty() and adds["key"].hash().n_unique() == adds.height:
        if live.is_empty():
            return None, None
        touched = live.is_in(adds["key"].implode())
        return (~touched if touched.any() else None), None
    tail = pl.concat(
        [
            adds.lazy().select("key", "seq", add=True, row=pl.int_range(pl.len()), new=True),
            removes.lazy().select("key", "seq", add=False, row=-1, new=True),
        ],
        how="vertical_relaxed",
    )
    rows = pl.int_range(live.len(), eager=True)
    before = pl.DataFrame({"key": live, "row": rows}).lazy().with_columns(new=False)
    after = reconcile_frames(before, tail).select("row", "new").collect()
    old = after.filter(~pl.col("new"))["row"]
    kept = None if old.len() == live.len() else rows.is_in(old.implode())
    return kept, pl.int_range(adds.height, eager=True).is_in(after.filter("new")["row"].implode())


def file_keys_without_polars(paths: pa.ChunkedArray, roots: Sequence[str]) -> pa.ChunkedArray:
    """Do what `file_keys` does, path by path, for a forked process in which polars would hang."""
    relative = []
    for path in paths.to_pylist():
        key = path
        for root in roots:
            if path is not None and path.startswith(f"{root}/"):
                key = path[len(root) + 1 :].lstrip("/")
        relative.append(key)
    return pa.chunked_array([make_array(relative, pa.string())])


def reconcile_without_polars(
    live: pa.ChunkedArray, adds: pa.Table, removes: pa.Table
) -> tuple[pa.ChunkedArray | None, pa.Array | None]:
    """Do what `reconcile` does with a dictionary of keys: slower, but without polars' threads."""
    # By key: the seq of the last action, and its row in `adds`, -1 for a remove.
    newest: dict[str | None, tuple[int, int]] = {}
    for table, is_add in ((adds, True), (removes, False)):
        keys, seqs = table["key"].to_pylist(), table["seq"].to_pylist()
        for row, (key, seq) in enumerate(zip(keys, seqs, strict=True)):
            if key not in newest or newest[key][0] < seq:
                newest[key] = seq, row if is_add else -1
    touched = pc.is_in(live, value_set=make_array(list(newest), pa.string()))
    kept = pc.invert(touched) if pc.any(touched).as_py() else None
    rows = {row for _, row in newest.values()}
    if len(rows - {-1}) == adds.num_rows:
        return kept, None
    return kept, make_array([row in rows for row in range(adds.num_rows)], pa.bool_())

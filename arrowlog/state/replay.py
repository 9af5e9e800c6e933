"""From actions to the files that are live: the newest action on a file wins.

Pure functions over slim frames; the wide columns stay where they are, and what comes out says
which rows of them to keep. A frame of live files has `key` (the file) and whatever else is to be
carried along; a frame of actions also has `seq` (the order of the lines) and `add` (else a remove).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.fork_safety import pl, polars_is_stranded
from arrowlog.log.arrays import array_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_OUTSIDE = r"^/|(^|/)\.\.(/|$)|^[A-Za-z][A-Za-z0-9+.-]*:/|^$"


def keys(path: pl.Expr, roots: Sequence[str]) -> pl.Expr:
    """The key of a file: its path relative to the table, also if the log has it absolute."""
    key = path
    for root in roots:
        relative = path.str.slice(len(root) + 1).str.strip_chars_start("/")
        key = pl.when(path.str.starts_with(f"{root}/")).then(relative).otherwise(key)
    return key


def outside_of(keys: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Which keys are empty or lead out of the table; None if there is none."""
    if not _suspect(keys):
        return None
    bad = pc.match_substring_regex(keys, _OUTSIDE)
    return bad if pc.any(bad).as_py() else None


def _suspect(keys: pa.ChunkedArray) -> bool:
    """A quick look, which lets nothing bad through."""
    if pc.any(pc.starts_with(keys, "/")).as_py() or pc.min(pc.binary_length(keys)).as_py() == 0:
        return True
    if polars_is_stranded():
        return True  # the pattern decides
    texts = pl.Series(pl.from_arrow(keys), dtype=pl.String)
    return bool(texts.str.contains_any([":/", ".."]).any())


def newest(actions: pl.LazyFrame) -> pl.LazyFrame:
    """The last action on each file."""
    return actions.sort("seq").unique("key", keep="last", maintain_order=True)


def advance(live: pl.LazyFrame, tail: pl.LazyFrame) -> pl.LazyFrame:
    """Apply later actions to what is live.

    `advance(advance(live, a), b)` is `advance(live, a followed by b)`.
    """
    last = newest(tail)
    kept = live.join(last.select("key"), on="key", how="anti", nulls_equal=True)
    return pl.concat([kept, last.filter("add").drop("add", "seq")], how="diagonal")


def survivors(
    live: pl.Series, adds: pl.DataFrame, removes: pl.DataFrame
) -> tuple[pl.Series | None, pl.Series | None]:
    """Which rows of `live` and which of `adds` are live after the actions; None for all of them.

    `live` holds keys; `adds` and `removes` have `key` and `seq`. The same as `advance`, with a
    short cut for what mostly happens: files are added, each once. That needs hashes, no join.
    """
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
    after = advance(before, tail).select("row", "new").collect()
    old = after.filter(~pl.col("new"))["row"]
    kept = None if old.len() == live.len() else rows.is_in(old.implode())
    return kept, pl.int_range(adds.height, eager=True).is_in(after.filter("new")["row"].implode())


def keys_without_polars(paths: pa.ChunkedArray, roots: Sequence[str]) -> pa.ChunkedArray:
    """The same as `keys`, path by path, for a process in which polars cannot work."""
    found = []
    for path in paths.to_pylist():
        key = path
        for root in roots:
            if path is not None and path.startswith(f"{root}/"):
                key = path[len(root) + 1 :].lstrip("/")
        found.append(key)
    return pa.chunked_array([array_of(found, pa.string())])


def survivors_without_polars(
    live: pa.ChunkedArray, adds: pa.Table, removes: pa.Table
) -> tuple[pa.ChunkedArray | None, pa.Array | None]:
    """The same as `survivors`, on Arrow and a dictionary of keys: slower, and without a thread."""
    newest: dict[str | None, tuple[int, int]] = {}  # the last action's seq, and its row if an add
    for table, is_add in ((adds, True), (removes, False)):
        keys, seqs = table["key"].to_pylist(), table["seq"].to_pylist()
        for row, (key, seq) in enumerate(zip(keys, seqs, strict=True)):
            if key not in newest or newest[key][0] < seq:
                newest[key] = seq, row if is_add else -1
    touched = pc.is_in(live, value_set=array_of(list(newest), pa.string()))
    kept = pc.invert(touched) if pc.any(touched).as_py() else None
    rows = {row for _, row in newest.values()}
    if len(rows - {-1}) == adds.num_rows:
        return kept, None
    return kept, array_of([row in rows for row in range(adds.num_rows)], pa.bool_())

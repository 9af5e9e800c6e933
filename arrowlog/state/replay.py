"""From actions to the files that are live: the newest action on a file wins.

Pure functions over slim frames. A frame of actions has `key` (the file), `seq` (the order of the
lines) and `add` (whether it is an add); the wide columns stay where they are, and what comes out
says which rows of them to keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pl.Schema({"key": pl.String, "seq": pl.Int64, "add": pl.Boolean})


def keys(path: pl.Expr, roots: Sequence[str]) -> pl.Expr:
    """The key of a file: its path relative to the table, also if the log has it absolute."""
    key = path
    for root in roots:
        inside = path.str.starts_with(f"{root}/")
        key = (
            pl.when(inside)
            .then(path.str.slice(len(root) + 1).str.strip_chars_start("/"))
            .otherwise(key)
        )
    return key


def newest(actions: pl.LazyFrame) -> pl.LazyFrame:
    """The last action on each file."""
    return actions.sort("seq").unique("key", keep="last", maintain_order=True)


def advance(live: pl.LazyFrame, tail: pl.LazyFrame) -> pl.LazyFrame:
    """Apply later actions to `live`; the newest action on a file wins.

    Both have `key` and `seq`; `tail` also has `add`. Columns beyond these are kept.
    """
    last = newest(tail)
    kept = live.join(last.select("key"), on="key", how="anti", nulls_equal=True)
    return pl.concat([kept, last.filter("add").drop("add")], how="diagonal")


def live_adds(adds: pl.DataFrame, removes: pl.DataFrame) -> pl.Series | None:
    """Which adds are live after all actions, as a mask; None if all are.

    The same as `advance` from nothing, for the case that matters for speed: a whole log at once.
    """
    if removes.is_empty() and adds["key"].hash().n_unique() == adds.height:
        return None  # as many hashes as files: no file is there twice
    both = pl.concat([adds.select("key", "seq"), removes.select("key", "seq")])
    last = both.lazy().group_by("key").agg(pl.col("seq").max()).collect()["seq"]
    mask = adds["seq"].is_in(last.implode())
    return None if mask.all() else mask

"""Skips as they stand in a log: found in every commit that is still there, behind checkpoints too.

A checkpoint has no skips, so commits are looked through, whether a checkpoint covers them or not.
Most have none in them, which one look at their bytes tells; only the others are decoded. How long
a cooldown lasts is said by each skip, and how often a file was skipped by the oldest ones too, so
no age makes a commit uninteresting. Commits never change: each is looked at once for a handle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt
from arrowlog.log.actions import SKIP
from arrowlog.log.arrays import number
from arrowlog.log.decode import Actions, decode
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import LOG
from arrowlog.log.window import LINE_BITS, Window
from arrowlog.state.apply import keyed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store

_AT_ONCE = 512
_MARK = b'skip"'  # "mergeskip" and "skip" both end so
_COLUMNS = pa.schema([("version", pa.int64()), ("key", pa.string())]).with_metadata(None)
SCHEMA = pa.schema(
    [*_COLUMNS, *((name, kind.type) for name, kind in SKIP.items() if name != "path")]
)


def read_skips(store: Store, config: Config, commits: Sequence[tuple[int, str]]) -> pa.Table:
    """The skips in some commits, in their order: `version`, `key`, then the fields of a skip."""
    found = [SCHEMA.empty_table()]
    for start in range(0, len(commits), _AT_ONCE):
        some = commits[start : start + _AT_ONCE]
        keys = [f"{LOG}/{name}" for _, name in some]
        window = Window(config.max_decompressed_bytes)
        for (version, _), key, data in zip(some, keys, store.find_many(keys), strict=True):
            if data is None:
                continue  # cleaned up meanwhile
            plain = unwrap(data, key, config.max_decompressed_bytes)
            if _MARK in plain:
                window.append(key, version, plain)
        if window.names:
            found.append(_table(decode(window), store.root))
    return pa.concat_tables(found)


def _table(actions: Actions, root: str) -> pa.Table:
    skips, _ = keyed(actions, "mergeskip", root)
    skips = skips.sort_by("seq")
    versions = pa.array(actions.versions, pa.int64())
    numbers = pc.shift_right(skips["seq"], number(LINE_BITS))
    columns = {"version": versions.take(numbers.combine_chunks()), "key": skips["key"]}
    for name in SCHEMA.names[2:]:
        absent = pa.nulls(skips.num_rows, SCHEMA.field(name).type)
        columns[name] = skips[name] if name in skips.column_names else absent
    return pa.table(columns).cast(SCHEMA)


def cooling(skips: pa.Table, now_ms: int) -> pa.Table:
    """The skips whose cooldown is not over."""
    return skips.filter(pc.fill_null(pc.greater(skips["retryAfter"], number(now_ms)), False))


def held_commits(
    store: Store, config: Config, commits: Sequence[tuple[int, str]], now_ms: int
) -> frozenset[int]:
    """Commits that hold a skip in its cooldown: clean-up leaves them until it is over.

    A commit that cannot be read holds nothing that anybody could find.
    """
    names = [(version, key.removeprefix(f"{LOG}/")) for version, key in commits]
    try:
        found = read_skips(store, config, names)
    except LogCorrupt:
        found = pa.concat_tables([SCHEMA.empty_table(), *_each(store, config, names)])
    return frozenset(cooling(found, now_ms)["version"].to_pylist())


def _each(store: Store, config: Config, commits: Sequence[tuple[int, str]]) -> list[pa.Table]:
    found = []
    for commit in commits:
        try:
            found.append(read_skips(store, config, [commit]))
        except LogCorrupt:
            continue
    return found


@dataclass(slots=True)
class Seen:
    """What one handle knows of the skips in a log."""

    table_id: str | None = None
    versions: set[int] = field(default_factory=set)
    skips: pa.Table = field(default_factory=SCHEMA.empty_table)

    def catch_up(
        self, store: Store, config: Config, table_id: str, listing: Listing, newest: int
    ) -> pa.Table:
        """All skips up to a version; only commits that were not seen yet are read."""
        if table_id != self.table_id:  # another table is in the place of the one that was seen
            self.table_id, self.versions, self.skips = table_id, set(), SCHEMA.empty_table()
        commits = sorted(
            (v, n) for v, n in listing.commits.items() if v <= newest and v not in self.versions
        )
        if commits:
            found = read_skips(store, config, commits)
            self.skips = pa.concat_tables([self.skips, found]).sort_by("version")
            self.versions.update(version for version, _ in commits)
        return self.skips.filter(pc.less_equal(self.skips["version"], number(newest)))

"""Read merge skips from the commits of a log, including those below a checkpoint.

Checkpoints do not contain skips, so every commit is searched, whether a checkpoint covers it or
not. Most commits have none, which a search of their bytes proves; only the others are decoded. No
commit is too old to matter: each skip has its own cooldown, and the oldest ones contribute to the
skip count. Commits are immutable, so each handle searches every commit only once.
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

_COMMITS_PER_BATCH = 512  # commits that are read and decoded together
_SKIP_MARKER = b'skip"'  # matches both spellings of the action, "mergeskip" and "skip"
_COLUMNS = pa.schema([("version", pa.int64()), ("key", pa.string())]).with_metadata(None)
SCHEMA = pa.schema(
    [*_COLUMNS, *((name, kind.type) for name, kind in SKIP.items() if name != "path")]
)


def read_skips(store: Store, config: Config, commits: Sequence[tuple[int, str]]) -> pa.Table:
    """Return the skips of some commits in log order, in the columns of `SCHEMA`.

    Commits that were deleted meanwhile are left out. Raises LogCorrupt naming a damaged commit.
    """
    tables = [SCHEMA.empty_table()]
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        batch = commits[start : start + _COMMITS_PER_BATCH]
        keys = [f"{LOG}/{name}" for _, name in batch]
        window = Window(config.max_decompressed_bytes)
        for (version, _), key, data in zip(batch, keys, store.find_many(keys), strict=True):
            if data is None:
                continue  # deleted by a concurrent cleanup
            plain = unwrap(data, key, config.max_decompressed_bytes)
            if _SKIP_MARKER in plain:
                window.append(key, version, plain)
        if window.names:
            tables.append(_decode_skips(decode(window), store.root))
    return pa.concat_tables(tables)


def _decode_skips(actions: Actions, root: str) -> pa.Table:
    skips, _ = keyed(actions, "mergeskip", root)
    skips = skips.sort_by("seq")
    versions = pa.array(actions.versions, pa.int64())
    # `seq` is the number of the commit in its batch, then LINE_BITS for the line.
    commit_numbers = pc.shift_right(skips["seq"], number(LINE_BITS))
    columns = {"version": versions.take(commit_numbers.combine_chunks()), "key": skips["key"]}
    for name in SCHEMA.names[2:]:
        absent = pa.nulls(skips.num_rows, SCHEMA.field(name).type)
        columns[name] = skips[name] if name in skips.column_names else absent
    return pa.table(columns).cast(SCHEMA)


def cooling(skips: pa.Table, now_ms: int) -> pa.Table:
    """Return the skips whose cooldown is not over. A skip without a retry time has none."""
    return skips.filter(pc.fill_null(pc.greater(skips["retryAfter"], number(now_ms)), False))


def held_commits(
    store: Store, config: Config, commits: Sequence[tuple[int, str]], now_ms: int
) -> frozenset[int]:
    """Return the versions of commits that hold a skip in its cooldown, which cleanup must keep.

    `commits` are pairs of version and key. A commit that cannot be read holds nothing: its skips
    are lost already.
    """
    names = [(version, key.removeprefix(f"{LOG}/")) for version, key in commits]
    try:
        skips = read_skips(store, config, names)
    except LogCorrupt:
        undamaged = _read_skips_one_by_one(store, config, names)
        skips = pa.concat_tables([SCHEMA.empty_table(), *undamaged])
    return frozenset(cooling(skips, now_ms)["version"].to_pylist())


def _read_skips_one_by_one(
    store: Store, config: Config, commits: Sequence[tuple[int, str]]
) -> list[pa.Table]:
    """Read the skips of each commit, leaving out commits that are damaged."""
    tables = []
    for commit in commits:
        try:
            tables.append(read_skips(store, config, [commit]))
        except LogCorrupt:
            continue
    return tables


@dataclass(slots=True)
class Seen:
    """Cache of the skips in a log: the commits that were searched, and the skips they hold."""

    table_id: str | None = None
    versions: set[int] = field(default_factory=set)
    skips: pa.Table = field(default_factory=SCHEMA.empty_table)

    def catch_up(
        self, store: Store, config: Config, table_id: str, listing: Listing, newest: int
    ) -> pa.Table:
        """Return all skips up to version `newest`, reading only commits not searched before."""
        if table_id != self.table_id:  # the table was replaced by another
            self.table_id, self.versions, self.skips = table_id, set(), SCHEMA.empty_table()
        commits = sorted(
            (v, n) for v, n in listing.commits.items() if v <= newest and v not in self.versions
        )
        if commits:
            new_skips = read_skips(store, config, commits)
            self.skips = pa.concat_tables([self.skips, new_skips]).sort_by("version")
            self.versions.update(version for version, _ in commits)
        return self.skips.filter(pc.less_equal(self.skips["version"], number(newest)))

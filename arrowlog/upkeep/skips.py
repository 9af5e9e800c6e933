"""Merge skips (`table.skips`): files that merges leave out until a cooldown is over.

A skip is an action in the log: a file could not be merged, for which reason, and when to try again.
Readers are not affected. After the cooldown the file is merged like any other; if that fails again,
the next skip has a higher count. Cleanup keeps a commit as long as it holds a skip in its cooldown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.adds import relative
from arrowlog.commit.conflict import Intent
from arrowlog.commit.transaction import Draft
from arrowlog.config import parse_duration_ms
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.log.arrays import array_of
from arrowlog.log.encode import line
from arrowlog.log.lines import flatten
from arrowlog.state.apply import spellings
from arrowlog.state.listing import list_log
from arrowlog.upkeep.skipped import Seen, cooling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.commit.committer import Committer
    from arrowlog.commit.conflict import Head
    from arrowlog.commit.transaction import CommitResult
    from arrowlog.state.snapshot import State

_MAX_REASON_CHARACTERS = 2000  # longer reasons are cut
# One cache per handle, since `Table.skips` makes a new `Skips` on each access.
_CACHES: WeakKeyDictionary[Committer, Seen] = WeakKeyDictionary()
_TIME = pa.timestamp("ms", "UTC")


class Skips:
    """The merge skips of one table."""

    def __init__(self, committer: Committer) -> None:
        """Does no I/O."""
        self._committer = committer

    def record(
        self,
        path: str,
        reason: str,
        operation: str = "merge",
        cooldown: str | int = "24h",
        *,
        partition_values: Mapping[str, str | None] | None = None,
        size: int | None = None,
    ) -> CommitResult:
        """Commit a skip: merges leave the file out until `cooldown` is over.

        The skip count is one more than the file's highest so far. `partition_values` and `size`
        default to those of the live file. Raises InvalidRequest for a path outside the table, an
        empty `reason` or `operation`, or an invalid `cooldown`.
        """
        store, clock = self._committer.store, self._committer.clock
        key = relative(path, store.root, spellings(store.root), "skips.record")
        cooldown_ms = _parse_cooldown(cooldown)
        for name, text in (("reason", reason), ("operation", operation)):
            if not isinstance(text, str) or not text.strip():
                raise InvalidRequest(f"{name} is {text!r}.", next="Give a non-empty text.")
        fields: dict[str, Any] = {"path": key, "skipTimestamp": clock.now_ms()}
        fields |= {"reason": reason[:_MAX_REASON_CHARACTERS], "operation": operation}
        live = _live_fields(self._committer.seen().state, key)
        fields["partitionValues"] = (
            live.get("partitionValues") if partition_values is None else dict(partition_values)
        )
        fields["size"] = live.get("size") if size is None else size
        fields["retryAfter"] = fields["skipTimestamp"] + cooldown_ms

        def prepare(head: Head) -> Draft:
            skips = self._read(head)
            earlier = skips.filter(pc.equal(skips["key"], key))
            # Other writers may omit the count; such a skip counts as the first.
            counts = pc.fill_null(earlier["skipCount"], 1)
            fields["skipCount"] = (pc.max(counts).as_py() or 0) + 1
            return Draft(
                operation="SKIP",
                lines=[line("mergeskip", fields)],
                intent=Intent(),
                parameters={"operation": operation, "cooldown": cooldown_ms},
                metrics={"numSkippedFiles": 1},
                rebuild=True,  # a concurrent commit may have skipped the same file: count again
            )

        return self._committer.append(prepare)

    def history(self) -> pa.Table:
        """Return every skip in the log, oldest first, one row each."""
        return _public_columns(self._read(None))

    def active(self, operation: str | None = None) -> pa.Table:
        """Return the files in their cooldown, one row each: the skip with the latest retry time.

        `operation` restricts the result to skips of one operation, such as `merge`.
        """
        skips = cooling(self._read(None), self._committer.clock.now_ms())
        if operation is not None:
            skips = skips.filter(pc.equal(skips["operation"], operation))
        frame = pl.DataFrame(pl.from_arrow(skips)).with_row_index("row")
        longest = frame.sort("retryAfter", "row").unique("key", keep="last").sort("row")["row"]
        return _public_columns(skips.take(longest.to_arrow()))

    def filter(self, files: Any) -> Any:
        """Return the given files without those in their cooldown.

        `files` is an Arrow table with a column `path`, a plan or snapshot (a table is returned for
        all of these), or an iterable of paths (a list is returned). Raises InvalidRequest for
        anything else.
        """
        cooling_down = self.active()["path"].combine_chunks()
        if hasattr(files, "files") and not isinstance(files, pa.Table):
            files = files.files
        if isinstance(files, pa.Table):
            skipped = pc.is_in(self._keys(files["path"]), value_set=cooling_down)
            return files.filter(pc.invert(skipped))
        if isinstance(files, (str, bytes)) or not hasattr(files, "__iter__"):
            raise InvalidRequest(
                f"skips.filter got a {type(files).__name__}.",
                next="Give snapshot().files, a plan, or a list of paths.",
            )
        paths = list(files)
        skipped = pc.is_in(self._keys(array_of(paths, pa.string())), value_set=cooling_down)
        return [path for path, skip in zip(paths, skipped.to_pylist(), strict=True) if not skip]

    def _keys(self, paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return paths relative to the table, for every spelling of the table's address."""
        for root in spellings(self._committer.store.root):
            own = pc.starts_with(paths, f"{root}/")
            if pc.any(own).as_py():
                cut = pc.utf8_slice_codeunits(paths, len(root) + 1)
                paths = pc.if_else(own, cut, paths)
        return paths

    def _read(self, head: Head | None) -> pa.Table:
        """Return the skips up to a version of the log (None: the latest)."""
        committer = self._committer
        if head is None:
            head = committer.head_of(committer.look())
        cache = _CACHES.setdefault(committer, Seen())
        config = committer.config(head)
        listing = list_log(committer.store)
        return cache.catch_up(committer.store, config, head.metadata.id, listing, head.version)


def _parse_cooldown(cooldown: str | int) -> int:
    try:
        return parse_duration_ms(cooldown)
    except ValueError as error:
        raise InvalidRequest(f"cooldown is {cooldown!r}.", next=f"Allowed: {error}.") from None


def _live_fields(state: State, key: str) -> dict[str, Any]:
    """Return partition values and size of a live file; empty if it is not live."""
    adds: pa.Table = state.adds
    row = adds.filter(pc.equal(adds["key"], key)).slice(0, 1)
    if not row.num_rows:
        return {}
    columns = state.metadata.partition_columns
    flat = flatten(row, columns)
    values = {
        name: flat[f"partitionValues.{name}"][0].as_py()
        for name in columns
        if f"partitionValues.{name}" in flat.column_names
    }
    return {"partitionValues": values, "size": row["size"][0].as_py()}


def _public_columns(skips: pa.Table) -> pa.Table:
    """Return skips with the column names and types of the public API."""
    return pa.table(
        {
            "path": skips["key"],
            "reason": skips["reason"],
            "operation": skips["operation"],
            "skip_count": pc.fill_null(skips["skipCount"], 1),
            "skip_timestamp": pc.cast(skips["skipTimestamp"], _TIME),
            "retry_after": pc.cast(skips["retryAfter"], _TIME),
            "size_bytes": skips["size"],
            "partition_values": skips["partitionValues"],
            "version": skips["version"],
        }
    )

"""Files that merges leave alone for a while: `table.skips`.

A skip is a note in the log: this file could not be merged, for this reason, try again then. Readers
see the file as before. After the cooldown it is a file like any other; if it fails again, its count
goes up. Clean-up keeps a commit as long as a skip in it is in its cooldown.
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

_REASON_MAX = 2000
_SEEN: WeakKeyDictionary[Committer, Seen] = WeakKeyDictionary()
_TIME = pa.timestamp("ms", "UTC")


class Skips:
    """The skips of one table."""

    def __init__(self, committer: Committer) -> None:
        """Nothing is read yet."""
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
        """Note that a file could not be merged; until `cooldown` is over, merges leave it out.

        Its count is one more than the highest so far. What is not given of partition and size is
        taken from the live file.
        """
        store, clock = self._committer.store, self._committer.clock
        key = relative(path, store.root, spellings(store.root), "skips.record")
        pause = _duration(cooldown)
        for name, text in (("reason", reason), ("operation", operation)):
            if not isinstance(text, str) or not text.strip():
                raise InvalidRequest(f"{name} is {text!r}.", next="Say it in words.")
        fields: dict[str, Any] = {"path": key, "skipTimestamp": clock.now_ms()}
        fields |= {"reason": reason[:_REASON_MAX], "operation": operation}
        known = _facts(self._committer.seen().state, key)
        fields["partitionValues"] = (
            known.get("partitionValues") if partition_values is None else dict(partition_values)
        )
        fields["size"] = known.get("size") if size is None else size
        fields["retryAfter"] = fields["skipTimestamp"] + pause

        def prepare(head: Head) -> Draft:
            so_far = self._all(head)
            mine = so_far.filter(pc.equal(so_far["key"], key))
            # A skip without a count, from another writer, is one all the same.
            counts = pc.fill_null(mine["skipCount"], 1)
            fields["skipCount"] = (pc.max(counts).as_py() or 0) + 1
            return Draft(
                operation="SKIP",
                lines=[line("mergeskip", fields)],
                intent=Intent(),
                parameters={"operation": operation, "cooldown": pause},
                metrics={"numSkippedFiles": 1},
                rebuild=True,  # somebody else may have counted the same file meanwhile
            )

        return self._committer.append(prepare)

    def history(self) -> pa.Table:
        """Every skip that is in the log, the oldest first."""
        return _shown(self._all(None))

    def active(self, operation: str | None = None) -> pa.Table:
        """The files in their cooldown, one row each: the skip that lasts longest."""
        found = cooling(self._all(None), self._committer.clock.now_ms())
        if operation is not None:
            found = found.filter(pc.equal(found["operation"], operation))
        frame = pl.DataFrame(pl.from_arrow(found)).with_row_index("at")
        last = frame.sort("retryAfter", "at").unique("key", keep="last").sort("at")["at"]
        return _shown(found.take(last.to_arrow()))

    def filter(self, files: Any) -> Any:
        """The files without those in their cooldown: a table with a `path`, a plan, or paths."""
        cold = self.active()["path"].combine_chunks()
        if hasattr(files, "files") and not isinstance(files, pa.Table):
            files = files.files
        if isinstance(files, pa.Table):
            return files.filter(pc.invert(pc.is_in(self._keys(files["path"]), value_set=cold)))
        if isinstance(files, (str, bytes)) or not hasattr(files, "__iter__"):
            raise InvalidRequest(
                f"skips.filter got a {type(files).__name__}.",
                next="Give snapshot().files, a plan, or a list of paths.",
            )
        paths = list(files)
        kept = pc.invert(pc.is_in(self._keys(array_of(paths, pa.string())), value_set=cold))
        return [path for path, keep in zip(paths, kept.to_pylist(), strict=True) if keep]

    def _keys(self, paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Paths relative to the table, however its address is spelled in them."""
        for root in spellings(self._committer.store.root):
            own = pc.starts_with(paths, f"{root}/")
            if pc.any(own).as_py():
                cut = pc.utf8_slice_codeunits(paths, len(root) + 1)
                paths = pc.if_else(own, cut, paths)
        return paths

    def _all(self, head: Head | None) -> pa.Table:
        """The skips up to a head, or all there are."""
        committer = self._committer
        if head is None:
            head = committer.head_of(committer.look())
        seen = _SEEN.setdefault(committer, Seen())
        config = committer.config(head)
        listing = list_log(committer.store)
        return seen.catch_up(committer.store, config, head.metadata.id, listing, head.version)


def _duration(cooldown: str | int) -> int:
    try:
        return parse_duration_ms(cooldown)
    except ValueError as error:
        raise InvalidRequest(f"cooldown is {cooldown!r}.", next=f"Allowed: {error}.") from None


def _facts(state: State, key: str) -> dict[str, Any]:
    """Partition and size of a live file; nothing if it is not live."""
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


def _shown(skips: pa.Table) -> pa.Table:
    """Skips as users see them."""
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

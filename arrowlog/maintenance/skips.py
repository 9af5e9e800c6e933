"""Merge skips (`table.skips`): files that merges leave out until a cooldown is over.

A skip is an action in the log: a file could not be merged, for which reason, and when to try again.
Readers are not affected. After the cooldown the file is merged like any other; if that fails again,
the next skip has a higher count. Cleanup keeps a commit as long as it holds a skip in its cooldown.

Checkpoints do not contain skips, so every commit is searched, whether a checkpoint covers it or
not. Most commits have none, which a search of their bytes proves; only the others are decoded. No
commit is too old to matter: each skip has its own cooldown, and the oldest ones contribute to the
skip count. Commits are immutable, so each handle searches every commit only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import INT_MAX, empty_table, make_array, make_int64
from arrowlog.config import (
    is_text,
    parse_argument,
    parse_at_least,
    parse_duration_ms,
    parse_names,
    parse_text,
    shorten,
)
from arrowlog.decode import (
    SEQ_LINE_BITS,
    ActionBatch,
    LineBuffer,
    decode_buffer,
    flatten_map_columns,
)
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import SKIP_FIELDS, decompress, encode_action
from arrowlog.log_lines import COOLDOWN_FILTERED, FILE_IN_COOLDOWN, SKIP_RECORDED
from arrowlog.metering import metrics_of
from arrowlog.snapshot import list_log, with_file_keys
from arrowlog.storage import root_spellings
from arrowlog.transaction import PreparedCommit, ReadSet, relative_data_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from arrowlog.config import Config
    from arrowlog.formats import CommitFile, LogListing
    from arrowlog.snapshot import State
    from arrowlog.storage import Store
    from arrowlog.transaction import CommitResult, TableHead, WriteSession


_COMMITS_PER_BATCH = 512  # commits that are read and decoded together
_SKIP_MARKER = b'skip"'  # matches both spellings of the action, "mergeskip" and "skip"
_COLUMNS = pa.schema([("version", pa.int64()), ("key", pa.string())]).with_metadata(None)
SKIPS_SCHEMA = pa.schema(
    [*_COLUMNS, *((name, kind.type) for name, kind in SKIP_FIELDS.items() if name != "path")]
)


def read_skips(store: Store, config: Config, commits: Sequence[CommitFile]) -> pa.Table:
    """Return the skips of some commits in log order, in the columns of `SCHEMA`.

    Commits that were deleted meanwhile are left out. Raises LogCorrupt naming a damaged commit.
    """
    tables = [empty_table(SKIPS_SCHEMA)]
    for start in range(0, len(commits), _COMMITS_PER_BATCH):
        batch = commits[start : start + _COMMITS_PER_BATCH]
        contents = store.find_many([commit.key for commit in batch])
        window = LineBuffer(config.max_decompressed_bytes)
        for commit, data in zip(batch, contents, strict=True):
            if data is None:
                continue  # deleted by a concurrent cleanup
            plain = decompress(data, commit.key, config.max_decompressed_bytes)
            if _SKIP_MARKER in plain:
                window.append(commit.key, commit.version, plain)
        if window.names:
            tables.append(_decode_skips(decode_buffer(window), store.root))
    return pa.concat_tables(tables)


def _decode_skips(actions: ActionBatch, root: str) -> pa.Table:
    skips, _ = with_file_keys(actions, "mergeskip", root)
    skips = skips.sort_by("seq")
    versions = pa.array(actions.versions, pa.int64())
    # `seq` is the number of the commit in its batch, then LINE_BITS for the line.
    commit_numbers = pc.shift_right(skips["seq"], make_int64(SEQ_LINE_BITS))
    columns = {"version": versions.take(commit_numbers.combine_chunks()), "key": skips["key"]}
    for name in SKIPS_SCHEMA.names[2:]:
        absent = pa.nulls(skips.num_rows, SKIPS_SCHEMA.field(name).type)
        columns[name] = skips[name] if name in skips.column_names else absent
    return pa.table(columns).cast(SKIPS_SCHEMA)


def filter_cooling_down(skips: pa.Table, now_ms: int) -> pa.Table:
    """Return the skips whose cooldown is not over. A skip without a retry time has none."""
    return skips.filter(pc.fill_null(pc.greater(skips["retryAfter"], make_int64(now_ms)), False))


def find_commits_with_active_skips(
    store: Store, config: Config, commits: Sequence[CommitFile], now_ms: int
) -> frozenset[int]:
    """Return the versions of commits that hold a skip in its cooldown, which cleanup must keep.

    A commit that cannot be read holds nothing: its skips are lost already.
    """
    try:
        skips = read_skips(store, config, commits)
    except LogCorrupt:
        undamaged = _read_skips_one_by_one(store, config, commits)
        skips = pa.concat_tables([empty_table(SKIPS_SCHEMA), *undamaged])
    return frozenset(filter_cooling_down(skips, now_ms)["version"].to_pylist())


def _read_skips_one_by_one(
    store: Store, config: Config, commits: Sequence[CommitFile]
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
class SkipCache:
    """Cache of the skips in a log: the commits that were searched, and the skips they hold."""

    table_id: str | None = None
    versions: set[int] = field(default_factory=set)
    skips: pa.Table = field(default_factory=partial(empty_table, SKIPS_SCHEMA))

    def catch_up(
        self, store: Store, config: Config, table_id: str, listing: LogListing, newest: int
    ) -> pa.Table:
        """Return all skips up to version `newest`, reading only commits not searched before."""
        if table_id != self.table_id:  # the table was replaced by another
            self.table_id, self.versions, self.skips = table_id, set(), empty_table(SKIPS_SCHEMA)
        commits = listing.commit_files(
            v for v in sorted(listing.commits) if v <= newest and v not in self.versions
        )
        if commits:
            new_skips = read_skips(store, config, commits)
            self.skips = pa.concat_tables([self.skips, new_skips]).sort_by("version")
            self.versions.update(commit.version for commit in commits)
        return self.skips.filter(pc.less_equal(self.skips["version"], make_int64(newest)))


_MAX_REASON_CHARACTERS = 2000  # longer reasons are cut
# One cache per handle, since `Table.skips` makes a new `Skips` on each access.
_CACHES: WeakKeyDictionary[WriteSession, SkipCache] = WeakKeyDictionary()
_TIME = pa.timestamp("ms", "UTC")


class Skips:
    """The merge skips of one table."""

    def __init__(self, session: WriteSession) -> None:
        """Does no I/O."""
        self._session = session

    def record(
        self,
        path: str,
        reason: str,
        operation: str = "merge",
        cooldown: str | int | timedelta = "24h",
        *,
        partition_values: Mapping[str, str | None] | None = None,
        size: int | None = None,
    ) -> CommitResult:
        """Commit a skip: merges leave the file out until `cooldown` is over.

        The skip count is one more than the file's highest so far. `partition_values` and `size`
        default to those of the live file. Raises InvalidRequest for a path outside the table, an
        empty `reason` or `operation`, or an invalid `cooldown`.
        """
        store, clock = self._session.store, self._session.clock
        key = relative_data_path(path, store.root, root_spellings(store.root), "skips.record")
        cooldown_ms = parse_argument(parse_duration_ms, cooldown, "cooldown")
        for name, text in (("reason", reason), ("operation", operation)):
            if not is_text(text) or not text.strip():
                shown = shorten(text)
                raise InvalidRequest(f"{name} cannot be {shown}.", next="Give a non-empty text.")
        if size is not None:
            size = parse_argument(parse_at_least(0), size, "size")
        if partition_values is not None:
            partition_values = parse_argument(_parse_texts, partition_values, "partition_values")
        fields: dict[str, Any] = {"path": key, "skipTimestamp": clock.now_ms()}
        fields |= {"reason": reason[:_MAX_REASON_CHARACTERS], "operation": operation}
        live = _live_fields(self._session.base_snapshot().state, key)
        fields["partitionValues"] = (
            live.get("partitionValues") if partition_values is None else partition_values
        )
        fields["size"] = live.get("size") if size is None else size
        # A number beyond 64 bits would make the log unreadable.
        fields["retryAfter"] = min(fields["skipTimestamp"] + cooldown_ms, INT_MAX)

        def prepare(head: TableHead) -> PreparedCommit:
            skips = self._read(head)
            earlier = skips.filter(pc.equal(skips["key"], key))
            # Other writers may omit the count; such a skip counts as the first.
            counts = pc.fill_null(earlier["skipCount"], 1)
            fields["skipCount"] = min((pc.max(counts).as_py() or 0) + 1, INT_MAX)
            return PreparedCommit(
                operation="SKIP",
                lines=[encode_action("mergeskip", fields)],
                read_set=ReadSet(),
                parameters={"operation": operation, "cooldown": cooldown_ms},
                metrics={"numSkippedFiles": 1},
                rebuild=True,  # a concurrent commit may have skipped the same file: count again
            )

        result = self._session.append(prepare)
        metrics_of(store).add("skips_recorded")
        if SKIP_RECORDED.enabled:
            SKIP_RECORDED.log(
                table=store.root,
                path=key,
                reason=fields["reason"],
                operation=operation,
                skip_count=fields["skipCount"],
                retry_after=_iso_time(fields["retryAfter"]),
                version=result.version,
            )
        return result

    def history(self) -> pa.Table:
        """Return every skip in the log, oldest first, one row each."""
        return _public_columns(self._read(None))

    def active(self, operation: str | None = None) -> pa.Table:
        """Return the files in their cooldown, one row each: the skip with the latest retry time.

        `operation` restricts the result to skips of one operation, such as `merge`.
        """
        skips = filter_cooling_down(self._read(None), self._session.clock.now_ms())
        if operation is not None:
            operation = parse_argument(parse_text, operation, "operation")
            wanted = make_array([operation], pa.string())
            skips = skips.filter(pc.is_in(skips["operation"], value_set=wanted))
        frame = pl.DataFrame(pl.from_arrow(skips)).with_row_index("row")
        longest = frame.sort("retryAfter", "row").unique("key", keep="last").sort("row")["row"]
        return _public_columns(skips.take(longest.to_arrow()))

    def is_active(self, path: str, operation: str | None = None) -> bool:
        """Whether a file is in its cooldown. `path` may be relative to the table or absolute."""
        keys = self._keys(make_array([parse_argument(parse_text, path, "path")], pa.string()))
        return bool(pc.any(pc.is_in(keys, value_set=self._active_keys(operation))).as_py())

    def _active_keys(self, operation: str | None = None) -> pa.Array:
        return self.active(operation)["path"].combine_chunks()

    def report_filtered(self, keys: pa.Array | pa.ChunkedArray, active: pa.Table) -> None:
        """Log how many files are left out because of their cooldown, and at DEBUG which."""
        left_out = active.filter(pc.is_in(active["path"], value_set=_combined(keys)))
        root = self._session.store.root
        if not left_out.num_rows:
            return
        COOLDOWN_FILTERED.log(table=root, files=left_out.num_rows)
        if FILE_IN_COOLDOWN.enabled:
            for row in left_out.select(["path", "retry_after"]).to_pylist():
                retry_after = row["retry_after"].isoformat()
                FILE_IN_COOLDOWN.log(table=root, path=row["path"], retry_after=retry_after)

    def filter(self, files: Any) -> Any:
        """Return the given files without those in their cooldown.

        `files` is an Arrow table with a column `path`, a plan or snapshot (a table is returned for
        all of these), or an iterable of paths (a list is returned). Raises InvalidRequest for
        anything else.
        """
        active = self.active()
        cooling_down = active["path"].combine_chunks()
        if hasattr(files, "files") and not isinstance(files, pa.Table):
            files = files.files
        if isinstance(files, pa.Table):
            keys = self._keys(files["path"])
            self.report_filtered(keys, active)
            skipped = pc.is_in(keys, value_set=cooling_down)
            return files.filter(pc.invert(skipped))
        if isinstance(files, (str, bytes)) or not hasattr(files, "__iter__"):
            raise InvalidRequest(
                f"skips.filter got a {type(files).__name__}.",
                next="Give snapshot().files, a plan, or a list of paths.",
            )
        paths = parse_argument(parse_names, files, "files")
        keys = self._keys(make_array(paths, pa.string()))
        self.report_filtered(keys, active)
        skipped = pc.is_in(keys, value_set=cooling_down)
        return [path for path, skip in zip(paths, skipped.to_pylist(), strict=True) if not skip]

    def _keys(self, paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return paths relative to the table, for every spelling of the table's address."""
        for root in root_spellings(self._session.store.root):
            own = pc.starts_with(paths, f"{root}/")
            if pc.any(own).as_py():
                cut = pc.utf8_slice_codeunits(paths, len(root) + 1)
                paths = pc.if_else(own, cut, paths)
        return paths

    def _read(self, head: TableHead | None) -> pa.Table:
        """Return the skips up to a version of the log (None: the latest)."""
        session = self._session
        if head is None:
            head = session.head_of(session.read_latest())
        cache = _CACHES.setdefault(session, SkipCache())
        config = session.config(head)
        listing = list_log(session.store)
        return cache.catch_up(session.store, config, head.metadata.id, listing, head.version)


def _combined(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    return keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys


def _iso_time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat()


def _live_fields(state: State, key: str) -> dict[str, Any]:
    """Return partition values and size of a live file; empty if it is not live."""
    adds: pa.Table = state.adds
    row = adds.filter(pc.equal(adds["key"], key)).slice(0, 1)
    if not row.num_rows:
        return {}
    columns = state.metadata.partition_columns
    flat = flatten_map_columns(row, columns)
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


def _parse_texts(value: object) -> dict[str, str | None]:
    """Return a map of names to texts. Raises `ValueError` for anything else."""
    if not isinstance(value, Mapping) or not all(map(is_text, value)):
        raise ValueError("a map of names to text or None")
    if not all(text is None or is_text(text) for text in value.values()):
        raise ValueError("a map of names to text or None")
    return dict(value)

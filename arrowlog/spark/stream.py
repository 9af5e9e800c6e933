"""A table as a streaming source (appended rows) and as an exactly-once streaming sink.

An offset is a position in the log: a version, and the number of its files that have been read. By
default a stream first reads all files of one snapshot, sorted by file key, and then follows the
commits.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import resolve
from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.errors import InvalidRequest
from arrowlog.formats.indextables import INDEXTABLES, decompress
from arrowlog.scan import plan_scan
from arrowlog.snapshot import (
    InMemoryFiles,
    Snapshot,
    list_log,
    list_retired,
    validate_commit_integrity,
    with_file_keys,
)
from arrowlog.spark.frame import read_split
from arrowlog.spark.source_api import (
    LIMITS_STREAMS,
    WRITES_STREAMS,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    WriterCommitMessage,
)
from arrowlog.spark.types import cast_batch, to_spark_arrow_schema
from arrowlog.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from arrowlog.spark.options import SourceOptions
    from arrowlog.spark.target import WriteDestination
    from arrowlog.storage import Store
    from arrowlog.transaction import Add

_LATEST = "latest"
_SPLIT_SIZE = "128MB"  # as spark.sql.files.maxPartitionBytes by default
# Bounds the planning time of one batch; a stream that is further behind needs several batches.
_VERSIONS_PER_BATCH = 1000


@dataclass(frozen=True, order=True)
class StreamOffset:
    """A stream offset: `index` files of `version` have been read, and all lower versions.

    With `snapshot`, the files are all live files of `version`, else those that its commit adds.
    """

    version: int
    index: int
    snapshot: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the form that Spark stores in its checkpoint location."""
        return {"version": self.version, "index": self.index, "snapshot": self.snapshot}

    @classmethod
    def of(cls, offset: dict[str, Any]) -> StreamOffset:
        """Parse what `to_json` returned."""
        return cls(int(offset["version"]), int(offset["index"]), bool(offset["snapshot"]))


@dataclass(frozen=True)
class StreamPartition(InputPartition):  # type: ignore[misc] # pyspark is not typed
    """A pickled split of the scan plan; empty if there is nothing to read."""

    split: bytes


class StreamLog:
    """The files that a stream reads, version by version."""

    def __init__(self, options: SourceOptions) -> None:
        """Open the table without reading its log.

        Raises `InvalidRequest` if its format cannot be followed commit by commit.
        """
        self._options = options
        self._table = options.table()
        if self._table.format != INDEXTABLES.name:
            raise InvalidRequest(
                f"arrowlog does not stream tables in the {self._table.format} format.",
                next="Read one version at a time: arrowlog.spark.read(spark, uri).",
            )
        self._store: Store = open_store(options.path, options.storage)
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def root(self) -> str:
        """The root of the table."""
        return self._store.root

    @property
    def latest(self) -> int:
        """The latest version."""
        return int(self._table.refresh().version)

    @property
    def base(self) -> Snapshot:
        """A current snapshot, for schema and metadata."""
        return self._table.snapshot(max_staleness=60.0)  # seconds

    def files(self, place: StreamOffset) -> pa.Table:
        """Return all files of the offset's version, in reading order.

        Raises `InvalidRequest` if retention has deleted the version, or if it removes rows and the
        options do not allow that.
        """
        if place.snapshot:
            return self._live_files(place.version).sort_by("key")
        return self._appended_files(place.version)

    def _live_files(self, version: int) -> pa.Table:
        snapshot = self._snapshots.get(version)
        if snapshot is None:
            try:
                snapshot = self._table.snapshot(version)
            except InvalidRequest as error:
                raise self._version_gone(version) from error
            self._snapshots = {version: snapshot}  # batches move forward: one is enough
        return snapshot.state.adds

    def _appended_files(self, version: int) -> pa.Table:
        """Return the adds of a commit that change data."""
        name, data = self._read_commit(version)
        limit = resolve(self._options.settings).max_decompressed_bytes
        window = LineBuffer(limit)
        window.append(name, version, decompress(data, name, limit))
        actions = decode_buffer(window)
        validate_commit_integrity(actions)
        adds = _data_changes(with_file_keys(actions, "add", self._store.root)[0])
        removes = _data_changes(with_file_keys(actions, "remove", self._store.root)[0])
        only_deletes = not adds.num_rows
        ignored = self._options.ignore_changes or (only_deletes and self._options.ignore_deletes)
        if removes.num_rows and not ignored:
            self._reject_removes(version, adds.num_rows)
        return adds

    def _read_commit(self, version: int) -> tuple[str, bytes]:
        """Read a commit by the name that arrowlog writes, else by any other name for the version.

        Returns the key of the file and its bytes.
        """
        commit = INDEXTABLES.commit_file(version)
        for last in (False, True):
            try:
                data = self._store.get(commit.key)
                # After the read: the file of a retired version may have been put back by a
                # stalled writer, and is no part of the log.
                if version in list_retired(self._store):
                    break
                return commit.key, data  # noqa: TRY300 -- both ends of the loop are here
            except FileNotFoundError:
                listed = list_log(self._store).commit_file(version)
                if last or listed is None:
                    break
                commit = listed
        raise self._version_gone(version)

    def _reject_removes(self, version: int, num_adds: int) -> None:
        effect = "changes rows that" if num_adds else "removes rows that"
        option = "ignoreChanges (rewritten rows are emitted again)" if num_adds else "ignoreDeletes"
        raise InvalidRequest(
            f"Version {version} {effect} the stream may have emitted already.",
            next=f"Set the option {option}, or restart the stream from a later startingVersion.",
            version=version,
        )

    def _version_gone(self, version: int) -> InvalidRequest:
        earliest = self._table.earliest_version
        return InvalidRequest(
            f"Version {version} is no longer in the log of {self._table.uri}: retention deleted it"
            " before the stream had read it.",
            next="Restart the stream with a new checkpoint location, and with"
            f" startingVersion={earliest} or without the option. Raise logRetention.duration to"
            " keep commits longer.",
            version=version,
        )


def _data_changes(actions: pa.Table) -> pa.Table:
    """Drop actions with `dataChange: false`, such as those of a compaction."""
    if "dataChange" not in actions.column_names:
        return actions
    return actions.filter(pc.fill_null(actions["dataChange"], True))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Streams the rows that are appended to a table, in commit order."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Spark keeps this object on the driver and pickles it for workers.

        Nothing is refused here: Spark hides an error that is raised before it has the object.
        """
        self._options = options
        self._schema = schema
        self._last_version: int | None = None  # set by trigger(availableNow=True)
        self._commits: StreamLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the log: workers read only data files."""
        return {**self.__dict__, "_commits": None}

    @property
    def _log(self) -> StreamLog:
        """The log. Raises `InvalidRequest` for limits that this version of Spark does not pass."""
        if self._options.max_files is not None and not LIMITS_STREAMS:
            raise InvalidRequest(
                "maxFilesPerTrigger needs Spark 4.2 or newer.",
                next="Omit it: a batch then reads everything that was appended.",
            )
        if self._commits is None:
            self._commits = StreamLog(self._options)
        return self._commits

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's
        """Return the offset of a new stream: a snapshot of the table, or `startingVersion`."""
        start, latest = self._options.starting_version, self._log.latest
        if start is None:
            return StreamOffset(latest, 0, snapshot=True).to_json()
        if start.strip().lower() == _LATEST:
            return StreamOffset(latest + 1, 0).to_json()
        if not start.strip().isdigit() or int(start) > latest + 1:
            raise InvalidRequest(
                f"startingVersion is {start!r}, but the latest version is {latest}.",
                next=f'Use a version from 0 to {latest + 1}, or "latest".',
            )
        return StreamOffset(int(start), 0).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's
        """Return the limit set by `maxFilesPerTrigger`, if any."""
        max_files = self._options.max_files
        return ReadAllAvailable() if max_files is None else ReadMaxFiles(max_files)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's
        """Fix the last version of this run; later commits are left to the next run."""
        self._last_version = self._log.latest

    def latestOffset(  # noqa: N802 -- Spark's
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the offset at which the next batch ends.

        Spark before 4.2 gives neither start nor limit: the batch ends with the latest version.
        """
        if start is None:
            return StreamOffset(self._log.latest + 1, 0).to_json()
        last_version = self._last_version if self._last_version is not None else self._log.latest
        max_files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        if self._last_version is not None and max_files is None:
            max_files = self._options.max_files  # availableNow: Spark may pass no limit
        return self._advance(StreamOffset.of(start), last_version, max_files).to_json()

    def _advance(
        self, place: StreamOffset, last_version: int, max_files: int | None
    ) -> StreamOffset:
        """Move an offset forward, up to the end of `last_version` or by `max_files` files."""
        remaining = max_files
        for _ in range(_VERSIONS_PER_BATCH):
            if place.version > last_version or remaining == 0:
                break
            unread = max(0, self._log.files(place).num_rows - place.index)
            taken = unread if remaining is None else min(unread, remaining)
            remaining = None if remaining is None else remaining - taken
            if taken == unread:
                place = StreamOffset(place.version + 1, 0)
            else:
                place = replace(place, index=place.index + taken)
        return place

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the files between two offsets, one partition per split, at least one."""
        place, last = StreamOffset.of(start), StreamOffset.of(end)
        slices: list[pa.Table] = []
        while place != last:
            files = self._log.files(place)
            if place.version == last.version and place.snapshot == last.snapshot:
                slices.append(files.slice(place.index, last.index - place.index))
                break
            slices.append(files.slice(place.index))
            place = StreamOffset(place.version + 1, 0)
            if place.version > last.version:
                break
        slices = [table for table in slices if table.num_rows]
        if not slices:
            return [StreamPartition(b"")]
        adds = pa.concat_tables(slices, promote_options="default")
        base = self._log.base
        batch = Snapshot(replace(base.state, source=InMemoryFiles(adds)), base.report)
        plan = plan_scan(batch, self._options.where, self._log.root, self._options.storage)
        return [StreamPartition(pickle.dumps(split)) for split in plan.splits(_SPLIT_SIZE)] or [
            StreamPartition(b"")
        ]

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs on a worker."""
        if not partition.split:
            return
        target = to_spark_arrow_schema(self._schema)
        split = pickle.loads(partition.split)  # noqa: S301 -- ours
        for rows in read_split(split, self._options.storage):
            yield from cast_batch(rows.select(target.names), target)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: retention of the log does not depend on its readers."""


@dataclass
class StreamTaskAdds(WriterCommitMessage):  # type: ignore[misc] # as above
    """The adds of the files that a task has written."""

    adds: list[Add]


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc] # as above
    """Commits each micro-batch once, as the application transaction (`app_id`, batch id)."""

    def __init__(self, target: WriteDestination, app_id: str | None) -> None:
        """Raises `InvalidRequest` without `app_id`: a repeated batch would look like a new one."""
        if not WRITES_STREAMS:
            raise InvalidRequest(
                "This version of Spark cannot write streams from Python workers.",
                next="Use Spark 4.1 or newer, or foreachBatch with"
                ' arrowlog.spark.write(frame, uri, txn=("name", batch_id)).',
            )
        if app_id is None:
            raise InvalidRequest(
                "The stream has neither a checkpointLocation nor an appId: after a restart its"
                " batches would be written twice.",
                next='Set the option "checkpointLocation", or "appId" to a unique name.',
            )
        self._target = target
        self._app_id = app_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task into data files that are not visible before the commit."""
        return StreamTaskAdds(self._target.write_batches(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 -- Spark's
        """Commit all files of the batch at once, unless the log has the batch already."""
        self._target.commit(collect_adds(messages), "append", txn=(self._app_id, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803 -- Spark's
        """Delete the files of a failed batch, unless a commit was attempted."""
        if any(message is None for message in messages):
            self._target.forget(collect_adds(messages))


def collect_adds(messages: list[Any]) -> list[Add]:
    """Return the adds in the commit messages of tasks; a failed task has None as its message."""
    return [add for message in messages if message is not None for add in message.adds]

"""A table as a stream: what is appended goes out, what comes in is appended once.

An offset is a place in the log: a version, and how many of its files are behind us. A stream that
begins with the table itself first reads the files of one snapshot, in the order of their names.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from arrowlog.config import resolve
from arrowlog.errors import InvalidRequest
from arrowlog.log.decode import decode
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import LOG, commit_name
from arrowlog.log.store import open_store
from arrowlog.log.window import Window
from arrowlog.scan.plan import scan
from arrowlog.spark.frame import read_split
from arrowlog.spark.types import arrow_schema, fitted
from arrowlog.state.apply import check_whole, keyed
from arrowlog.state.listing import list_log, list_retired
from arrowlog.state.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from arrowlog.commit.adds import Add
    from arrowlog.log.store import Store
    from arrowlog.spark.options import Options
    from arrowlog.spark.target import Destination

_LATEST = "latest"
_SPLIT = "128MB"
_VERSIONS_AT_ONCE = 1000


@dataclass(frozen=True, order=True)
class Place:
    """Everything before this has been read: `index` files of `version`, and all versions below.

    In the first part of a stream the files are those of a `snapshot`.
    """

    version: int
    index: int
    snapshot: bool = False

    def to_json(self) -> dict[str, Any]:
        """As Spark writes it down."""
        return {"version": self.version, "index": self.index, "snapshot": self.snapshot}

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Place:
        """As Spark gives it back."""
        return cls(int(offset["version"]), int(offset["index"]), bool(offset["snapshot"]))


@dataclass(frozen=True)
class StreamPart(InputPartition):  # type: ignore[misc] # pyspark has types of its own kind
    """The files of one task."""

    split: bytes


class Commits:
    """The log, commit by commit, as a stream sees it."""

    def __init__(self, options: Options) -> None:
        """Nothing is read yet."""
        self._options = options
        self._table = options.table()
        self._store: Store = open_store(options.path, options.storage)
        self._snapshots: dict[int, Snapshot] = {}

    @property
    def root(self) -> str:
        """Where the table is."""
        return self._store.root

    @property
    def latest(self) -> int:
        """The newest version."""
        return int(self._table.refresh().version)

    @property
    def base(self) -> Snapshot:
        """The table as it is now: what its columns are."""
        return self._table.snapshot(max_staleness=60.0)

    def files(self, place: Place) -> pa.Table:
        """The files of a version that a stream has to read, in order."""
        if place.snapshot:
            return self._snapshot(place.version).sort_by("key")
        return self._appended(place.version)

    def _snapshot(self, version: int) -> pa.Table:
        found = self._snapshots.get(version)
        if found is None:
            try:
                found = self._table.snapshot(version)
            except InvalidRequest as error:
                raise self._gone(version) from error
            self._snapshots = {version: found}
        return found.state.adds

    def _appended(self, version: int) -> pa.Table:
        """What a commit adds; removing rows is an error unless the stream is to ignore it."""
        name, data = self._commit(version)
        limit = resolve(self._options.settings).max_decompressed_bytes
        window = Window(limit)
        window.append(name, version, unwrap(data, name, limit))
        actions = decode(window)
        check_whole(actions)
        adds = _changing(keyed(actions, "add", self._store.root)[0])
        removes = _changing(keyed(actions, "remove", self._store.root)[0])
        only_deletes = not adds.num_rows
        passed = self._options.ignore_changes or (only_deletes and self._options.ignore_deletes)
        if removes.num_rows and not passed:
            self._refuse(version, adds.num_rows)
        return adds

    def _commit(self, version: int) -> tuple[str, bytes]:
        """A commit by the name that we write, or another that others do."""
        name = commit_name(version)
        for last in (False, True):
            try:
                data = self._store.get(f"{LOG}/{name}")
                if version in list_retired(self._store):  # the file may be one that does not count
                    break
                return f"{LOG}/{name}", data  # noqa: TRY300 -- both ends of the loop are here
            except FileNotFoundError:
                name = list_log(self._store).commits.get(version, "")
                if last or not name:
                    break
        raise self._gone(version)

    def _refuse(self, version: int, adds: int) -> None:
        what = "changes rows that" if adds else "removes rows that"
        option = "ignoreChanges (what is rewritten comes again)" if adds else "ignoreDeletes"
        raise InvalidRequest(
            f"Version {version} {what} the stream may have given out already.",
            next=f"Set the option {option}, or begin anew from a later startingVersion.",
            version=version,
        )

    def _gone(self, version: int) -> InvalidRequest:
        first = self._table.earliest_version
        return InvalidRequest(
            f"Version {version} is no longer in the log of {self._table.uri}: it was cleaned away"
            " before the stream had read it.",
            next=f"Begin anew, with a new checkpoint location and startingVersion={first} or none;"
            " and keep commits longer: logRetention.duration.",
            version=version,
        )


def _changing(actions: pa.Table) -> pa.Table:
    """Without those that say that no row is changed, as a compaction does."""
    if "dataChange" not in actions.column_names:
        return actions
    return actions.filter(pc.fill_null(actions["dataChange"], True))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """What is appended to a table, in the order of its commits."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Spark keeps this object on the driver, and sends it to workers."""
        self._options = options
        self._schema = schema
        self._until: int | None = None
        self._commits: Commits | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers read files, not the log."""
        return {**self.__dict__, "_commits": None}

    @property
    def _log(self) -> Commits:
        if self._commits is None:
            self._commits = Commits(self._options)
        return self._commits

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's
        """The table as it is now, or a version to start at."""
        start, latest = self._options.starting_version, self._log.latest
        if start is None:
            return Place(latest, 0, snapshot=True).to_json()
        if start.strip().lower() == _LATEST:
            return Place(latest + 1, 0).to_json()
        if not start.strip().isdigit() or int(start) > latest + 1:
            raise InvalidRequest(
                f"startingVersion is {start!r}, and the newest version is {latest}.",
                next=f'Give a version from 0 to {latest + 1}, or "latest".',
            )
        return Place(int(start), 0).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's
        """`maxFilesPerTrigger`, if it is set."""
        most = self._options.max_files
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's
        """What comes from now on is for the next run."""
        self._until = self._log.latest

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes."""
        begin = Place.of(start)
        until = self._until if self._until is not None else self._log.latest
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        if self._until is not None and most is None:
            most = self._options.max_files
        *_, (last, _) = self._walk(begin, until, most)
        return last.to_json()

    def _walk(
        self, place: Place, until: int, most: int | None
    ) -> Iterator[tuple[Place, pa.Table | None]]:
        """Places behind one another, with the files between them, up to a version or a count."""
        yield place, None
        left = most
        for _ in range(_VERSIONS_AT_ONCE):
            if place.version > until or left == 0:
                return
            files = self._log.files(place).slice(place.index)
            taken = files if left is None else files.slice(0, left)
            left = None if left is None else left - taken.num_rows
            if taken.num_rows == files.num_rows:
                place = Place(place.version + 1, 0)
            else:
                place = replace(place, index=place.index + taken.num_rows)
            yield place, taken

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files between two offsets, in parts."""
        place, goal = Place.of(start), Place.of(end)
        found: list[pa.Table] = []
        while place != goal:
            files = self._log.files(place)
            if place.version == goal.version and place.snapshot == goal.snapshot:
                found.append(files.slice(place.index, goal.index - place.index))
                break
            found.append(files.slice(place.index))
            place = Place(place.version + 1, 0)
            if place.version > goal.version:
                break
        files = [table for table in found if table.num_rows]
        if not files:
            return [StreamPart(b"")]
        adds = pa.concat_tables(files, promote_options="default")
        base = self._log.base
        some = Snapshot(replace(base.state, source=adds), base.report)
        plan = scan(some, self._options.where, self._log.root, self._options.storage)
        return [StreamPart(pickle.dumps(split)) for split in plan.splits(_SPLIT)] or [
            StreamPart(b"")
        ]

    def read(self, partition: StreamPart) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        if not partition.split:
            return
        wanted = arrow_schema(self._schema)
        split = pickle.loads(partition.split)  # noqa: S301 -- ours
        for rows in read_split(split, self._options.storage):
            yield from fitted(rows.select(wanted.names), wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to let go of: the log is kept by its own settings."""


@dataclass
class StreamWritten(WriterCommitMessage):  # type: ignore[misc] # as above
    """What a task has written."""

    adds: list[Add]


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc] # as above
    """Each batch as one commit, which says of which stream it is and which batch."""

    def __init__(self, goal: Destination, app_id: str | None) -> None:
        """Without a name a batch that comes again could not be told from a new one."""
        if app_id is None:
            raise InvalidRequest(
                "The stream has neither a checkpointLocation nor an appId: after a restart its"
                " batches would be written twice.",
                next='Set the option "checkpointLocation", or "appId" to a name of its own.',
            )
        self._goal = goal
        self._app_id = app_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """The rows of one task, as files that nobody knows of yet."""
        return StreamWritten(self._goal.write_batches(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 -- Spark's
        """All files of the batch at once, unless the batch is in the log already."""
        adds = [add for message in messages if message is not None for add in message.adds]
        self._goal.commit(adds, "append", txn=(self._app_id, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803 -- Spark's
        """Take back what a failed batch has written, unless a commit was tried."""
        if any(message is None for message in messages):
            adds = [add for message in messages if message is not None for add in message.adds]
            self._goal.forget(adds)

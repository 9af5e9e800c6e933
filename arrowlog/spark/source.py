"""`format("arrowlog")`: a Python data source that works wherever Spark runs.

Spark's filters are deliberately not pushed down. Spark keeps the filters it pushed last for every
scan of the same DataFrame, so a self-join or a reused view would lose rows. The option `where`
prunes files; use `arrowlog.spark.read` to have Spark's own filters prune files too.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.spark.frame import read_split
from arrowlog.spark.local import sentence_first
from arrowlog.spark.options import SourceOptions, parse_source_options
from arrowlog.spark.settings import FORMAT_NAMES
from arrowlog.spark.source_api import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from arrowlog.spark.stream import StreamReader, StreamWriter, collect_adds
from arrowlog.spark.target import WriteDestination, resolve_destination
from arrowlog.spark.types import cast_batch, to_spark_arrow_schema, to_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from arrowlog.scan import ScanPlan
    from arrowlog.transaction import Add, WriteMode

_SPLIT_SIZE = "128MB"  # as spark.sql.files.maxPartitionBytes by default


class ArrowlogSource(DataSource):  # type: ignore[misc] # pyspark is not typed
    """The data source. Spark creates an instance for each load and each save."""

    format_name = FORMAT_NAMES[0]
    session: Mapping[str, object] = {}  # settings of the session when it was registered

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are checked on first use, not here."""
        super().__init__(options)
        self._raw_options = dict(options)
        self._version: int | None = None

    @classmethod
    def name(cls) -> str:
        """The name that is passed to `format()`."""
        return cls.format_name

    @property
    def _options(self) -> SourceOptions:
        return parse_source_options(self._raw_options, self.session)

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The options of the store."""
        return self._options.storage

    def reads_all_rows(self) -> bool:
        """Return whether the options select every row of the version."""
        return self._options.where is None

    def plan(self, session: Mapping[str, object]) -> ScanPlan:
        """Plan a scan of the pinned version, or of the one that the options name.

        `session` has the current settings of the session.
        """
        options = parse_source_options(self._raw_options, session)
        version, timestamp = options.version, options.timestamp
        if self._version is not None:
            version, timestamp = self._version, None
        return options.table().scan(options.where, version, timestamp)

    @sentence_first()
    def schema(self) -> StructType:
        """Return the schema, and pin the version that `reader` will read."""
        options = self._options
        snapshot = options.table().snapshot(options.version, options.timestamp)
        self._version = snapshot.version
        return to_spark_schema(snapshot.metadata.schema_string)

    @sentence_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the pinned version.

        If the schema is that of the user or of the catalog, Spark did not call `schema` before;
        then its columns are checked here. A column that was added after the pinned version is null.
        Raises `InvalidRequest` for a column that the table lacks.
        """
        if self._version is None:
            known = self.schema().names
            if any(name not in known for name in schema.names):
                latest = self._options.table().snapshot().metadata.schema_string
                known = [*known, *to_spark_schema(latest).names]
            unknown = [name for name in schema.names if name not in known]
            if unknown:
                raise InvalidRequest(f"The table has no column {unknown[0]!r}.")
        assert self._version is not None
        return SourceReader(self._options, self._version, schema)

    @sentence_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Return a writer. Raises `InvalidRequest` if the schema does not fit the table."""
        options = self._options
        mode: WriteMode = "overwrite" if overwrite else "append"
        target = resolve_destination(
            options.path,
            schema,
            mode=mode,
            where=options.replace_where,
            partition_columns=options.partition_columns,
            storage_options=options.storage,
            options=options.settings,
            save_mode=options.save_mode,
        )
        return SourceWriter(target, mode, options.replace_where, options.read_version)

    @sentence_first()
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 -- Spark's
        """Return a stream of the rows that are appended to the table."""
        return StreamReader(self._options, schema)

    @sentence_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001
        """Return a writer that commits each micro-batch exactly once."""
        options = self._options
        if overwrite:
            raise InvalidRequest(
                "A stream can only append to a table.", next='Use outputMode("append").'
            )
        target = resolve_destination(
            options.path,
            schema,
            mode="append",
            partition_columns=options.partition_columns,
            storage_options=options.storage,
            options=options.settings,
        )
        return StreamWriter(target, options.app_id)


@dataclass(frozen=True)
class SourcePartition(InputPartition):  # type: ignore[misc] # as above
    """A pickled split of the scan plan; empty if there is nothing to read."""

    split: bytes


class SourceReader(DataSourceReader):  # type: ignore[misc] # as above
    """Reads one version. It has no `pushFilters`; the module's docstring says why."""

    def __init__(self, options: SourceOptions, version: int, schema: StructType) -> None:
        """`schema` is what Spark asks for: the table's columns, or some of them."""
        self._options = options
        self._version = version
        self._schema = schema

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the scan and return one partition per split, at least one."""
        plan = self._options.table().scan(self._options.where, self._version)
        return [SourcePartition(pickle.dumps(split)) for split in plan.splits(_SPLIT_SIZE)] or [
            SourcePartition(b"")
        ]

    def read(self, partition: SourcePartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs on a worker."""
        with sentence_first():
            yield from read_partition(partition.split, self._options, self._schema)


def read_partition(
    split: bytes, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a pickled split, in exactly the columns and types of `schema`.

    Columns that the version of the split lacks are null.
    """
    if not split:
        return
    target = to_spark_arrow_schema(schema)
    for rows in read_split(pickle.loads(split), options.storage):  # noqa: S301 -- ours
        known = rows.schema.names
        columns = [
            rows.column(item.name) if item.name in known else pa.nulls(rows.num_rows, item.type)
            for item in target
        ]
        selected = pa.RecordBatch.from_arrays(columns, names=target.names)
        yield from cast_batch(selected, target)


@dataclass
class TaskAdds(WriterCommitMessage):  # type: ignore[misc] # as above
    """The adds of the files that a task has written."""

    adds: list[Add]


class SourceWriter(DataSourceArrowWriter):  # type: ignore[misc] # as above
    """Tasks write data files; the driver makes one commit of them."""

    def __init__(
        self,
        target: WriteDestination,
        mode: WriteMode,
        where: str | None,
        read_version: int | None = None,
    ) -> None:
        """`target` has been checked against the schema of the rows."""
        self._read_version = read_version
        self._target = target
        self._mode = mode
        self._where = where

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task into data files that are not visible before the commit."""
        if self._target.is_ignored:
            return TaskAdds([])
        return TaskAdds(self._target.write_batches(iterator))

    @sentence_first()
    def commit(self, messages: list[Any]) -> None:
        """Commit the files of all tasks at once."""
        adds, version = collect_adds(messages), self._read_version
        self._target.commit(adds, self._mode, self._where, read_version=version)

    def abort(self, messages: list[Any]) -> None:
        """Delete the files of a failed job.

        If every task has written its rows, a commit was attempted. A rejected commit has deleted
        its files already; after any other failure the log may refer to them.
        """
        if any(message is None for message in messages):
            self._target.forget(collect_adds(messages))

"""`format("arrowlog")`: a table as a data source of Spark, in Python, wherever Spark runs.

Spark's filters are not pushed here: Spark keeps the last ones it pushed for every scan of one
DataFrame, and rows would be missing. `where` is pruned by; whoever wants Spark's own filters pruned
takes `arrowlog.spark.read`.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from arrowlog.errors import InvalidRequest
from arrowlog.spark.frame import read_split
from arrowlog.spark.options import Options, read_options
from arrowlog.spark.stream import StreamReader, StreamWriter
from arrowlog.spark.target import Destination, destination
from arrowlog.spark.types import arrow_schema, fitted, spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from arrowlog.commit.adds import Add

_SPLIT = "128MB"


class ArrowlogSource(DataSource):  # type: ignore[misc] # pyspark has types of its own kind
    """The data source. Spark makes one for each load and each save."""

    session: Mapping[str, object] = {}  # settings of the session that registered it

    def __init__(self, options: Mapping[str, str]) -> None:
        """Nothing is looked at yet."""
        super().__init__(options)
        self._given = dict(options)
        self._version: int | None = None

    @classmethod
    def name(cls) -> str:
        """As `format` has it."""
        return "arrowlog"

    @property
    def _options(self) -> Options:
        return read_options(self._given, self.session)

    def schema(self) -> StructType:
        """The schema at the version that is read; from now on that version is settled."""
        options = self._options
        snapshot = options.table().snapshot(options.version, options.timestamp)
        self._version = snapshot.version
        return spark_schema(snapshot.metadata.schema_string)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of the version that was settled."""
        if self._version is None:
            whole = self.schema()
            unknown = [name for name in schema.names if name not in whole.names]
            if unknown:
                raise InvalidRequest(f"The table has no column {unknown[0]!r}.")
        assert self._version is not None
        return Reader(self._options, self._version, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """What does not fit is refused here, before any row is written."""
        options = self._options
        mode = "overwrite" if overwrite else "append"
        goal = destination(
            options.path,
            schema,
            mode=mode,
            where=options.replace_where,
            partition_columns=options.partition_columns,
            storage_options=options.storage,
            options=options.settings,
        )
        return Writer(goal, mode, options.replace_where)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 -- Spark's
        """What is appended from now on, or from a version on."""
        return StreamReader(self._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, FBT001
        """Each batch once, whatever happens in between."""
        options = self._options
        if overwrite:
            raise InvalidRequest(
                "A stream can only append to a table.", next='Use outputMode("append").'
            )
        goal = destination(
            options.path,
            schema,
            mode="append",
            partition_columns=options.partition_columns,
            storage_options=options.storage,
            options=options.settings,
        )
        return StreamWriter(goal, options.app_id)


@dataclass(frozen=True)
class Part(InputPartition):  # type: ignore[misc] # as above
    """The files of one task."""

    split: bytes


class Reader(DataSourceReader):  # type: ignore[misc] # as above
    """Reads a version. It has no `pushFilters`, see above."""

    def __init__(self, options: Options, version: int, schema: StructType) -> None:
        """The version stays."""
        self._options = options
        self._version = version
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The plan's parts."""
        plan = self._options.table().scan(self._options.where, self._version)
        return [Part(pickle.dumps(split)) for split in plan.splits(_SPLIT)] or [Part(b"")]

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        yield from read_part(partition.split, self._options, self._schema)


def read_part(split: bytes, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a pickled part of a plan, in exactly the columns and types Spark asked for."""
    if not split:
        return
    wanted = arrow_schema(schema)
    for rows in read_split(pickle.loads(split), options.storage):  # noqa: S301 -- ours
        yield from fitted(rows.select(wanted.names), wanted)


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc] # as above
    """What a task has written."""

    adds: list[Add]


class Writer(DataSourceArrowWriter):  # type: ignore[misc] # as above
    """Files by the tasks, one commit by the driver."""

    def __init__(self, goal: Destination, mode: str, where: str | None) -> None:
        """What fits has been checked."""
        self._goal = goal
        self._mode = mode
        self._where = where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """The rows of one task, as files that nobody knows of yet."""
        return Written(self._goal.write_batches(iterator))

    def commit(self, messages: list[Any]) -> None:
        """All files at once."""
        self._goal.commit(_adds(messages), self._mode, self._where)

    def abort(self, messages: list[Any]) -> None:
        """Take back what a failed job has written.

        If every task has written its rows, a commit was tried: it has taken its files back if it
        was refused, and otherwise they may be in the log.
        """
        if any(message is None for message in messages):
            self._goal.forget(_adds(messages))


def _adds(messages: list[Any]) -> list[Add]:
    return [add for message in messages if message is not None for add in message.adds]

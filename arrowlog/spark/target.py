"""The destination of a write from Spark, existing or still to be created, and its commit.

Data files are written to the store before the commit makes them visible. If the commit is rejected,
its files are deleted. If its outcome is unknown (`CommitStateUnknown`), they are kept, because the
log may refer to them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.errors import (
    ArrowlogError,
    CommitStateUnknown,
    InvalidRequest,
    TableExists,
    TableNotFound,
)
from arrowlog.formats import parse_spark_schema
from arrowlog.snapshot import StatsTruncation
from arrowlog.spark.fit import check_fit
from arrowlog.spark.types import to_spark_schema
from arrowlog.storage import open_store
from arrowlog.table import Table
from arrowlog.transaction import WriteTarget, check_write_mode, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from arrowlog.transaction import Add, CommitResult, WriteMode

# Names of Spark's save modes that write only if there is no table yet.
CREATE_MODES = {
    "default": "errorifexists",
    "error": "errorifexists",
    "errorifexists": "errorifexists",
    "ignore": "ignore",
}


@dataclass(frozen=True)
class WriteDestination:
    """A table to write to. It is pickled for workers, so it holds only what they need."""

    uri: str
    schema_string: str
    partition_columns: tuple[str, ...]
    storage_options: Mapping[str, Any] = field(repr=False)
    options: Mapping[str, object]
    properties: Mapping[str, object]
    version: int | None  # at the start of the write; None if there is no table yet
    target_size: int = 128 << 20  # bytes per data file
    save_mode: str | None = None  # "errorifexists" or "ignore": the table must not exist yet

    @property
    def is_ignored(self) -> bool:
        """Whether there is nothing to write, because the table exists and the mode is `ignore`."""
        return self.exists and self.save_mode == "ignore"

    @property
    def exists(self) -> bool:
        """Whether the table existed at the start of the write."""
        return self.version is not None

    @property
    def schema(self) -> StructType:
        """The table's schema as a Spark `StructType`."""
        return to_spark_schema(self.schema_string)

    @property
    def required(self) -> list[str]:
        """The columns that are not nullable."""
        fields = json.loads(self.schema_string)["fields"]
        return [item["name"] for item in fields if item.get("nullable") is False]

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[Add]:
        """Write rows into data files in the table's folder and return their adds.

        Runs on workers. Nothing is committed.
        """
        config = resolve(self.options, table=self.properties)
        target = WriteTarget(
            open_store(self.uri, self.storage_options, accelerate=config.store_accelerate),
            parse_spark_schema(self.schema_string),
            self.partition_columns,
            StatsTruncation.of(config),
            SystemClock(),
            file_bytes=self.target_size,
            held_bytes=4 * self.target_size,
        )
        return write_rows(pa.RecordBatchReader.from_batches(schema, batches), target)

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> list[Add]:
        """Like `write`, with the schema of the first batch. Without batches, no file is written."""
        first = next(batches, None)
        if first is None:
            return []
        rest = (batch.cast(first.schema) for batch in batches)
        return self.write(chain([first], rest), first.schema)

    def open(self) -> Table:
        """Open the table, creating it if it did not exist at the start of the write.

        Raises `InvalidRequest` if a table that was created concurrently does not fit the rows, and
        `TableExists` if there must be none.
        """
        if self.exists:
            return Table(self.uri, self.storage_options, options=self.options)
        table = Table.create(
            self.uri,
            self.schema_string,
            partition_columns=self.partition_columns,
            exist_ok=self.save_mode is None,
            storage_options=self.storage_options,
            options=self.options,
        )
        created = table.snapshot()
        if created.partition_columns != self.partition_columns:
            raise InvalidRequest(
                f"{table.uri} was created concurrently, partitioned by"
                f" {list(created.partition_columns)}.",
                next="Write again.",
            )
        check_fit(self.schema, to_spark_schema(created.metadata.schema_string))
        return table

    def commit(
        self,
        adds: Sequence[Add],
        mode: WriteMode,
        where: object = None,
        txn: tuple[str, int] | None = None,
        read_version: int | None = None,
    ) -> CommitResult | None:
        """Commit all files at once; None if there is nothing to commit.

        With `read_version`, an overwrite conflicts with every later commit.

        Deletes the files if the commit is rejected, or if `txn` was committed before. Waits for a
        checkpoint that the commit triggers.
        """
        if self.is_ignored or (not adds and mode == "append" and self.exists):
            return None
        try:
            table = self.open()
            if not adds and (mode == "append" or not table.snapshot().num_files):
                return None
            if mode == "append":
                result = table.append(adds, txn=txn)
            elif where is None:
                result = table.overwrite(adds, txn=txn, read_version=read_version)
            else:  # conflicts are checked against the version at the start of the write
                start_version = read_version if read_version is not None else self.version or 0
                result = table.overwrite(adds, where=where, txn=txn, read_version=start_version)
        except CommitStateUnknown:
            raise
        except ArrowlogError as error:
            self.forget(adds)
            if self.save_mode == "ignore" and isinstance(error, TableExists):
                return None
            raise
        if result.duplicate:
            self.forget(adds)
        table.wait_for_checkpoint()
        return result

    def forget(self, adds: Sequence[Add]) -> None:
        """Delete data files that are in no commit."""
        store = open_store(self.uri, self.storage_options)
        store.delete([add.path for add in adds])


def resolve_destination(
    uri: str,
    given: StructType,
    *,
    mode: WriteMode,
    where: object = None,
    partition_columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    target_size: int = 128 << 20,
    save_mode: str | None = None,
) -> WriteDestination:
    """Resolve the destination of a write and check that rows of the schema `given` fit it.

    `save_mode` is `errorifexists` or `ignore` if the write must create the table. Raises
    `InvalidRequest` before any file is written: for an unknown mode, for partition columns that
    differ from the table's, and for columns or types that do not fit. Raises `TableExists` if the
    table exists and must not.
    """
    check_write_mode(mode)
    if where is not None and mode != "overwrite":
        raise InvalidRequest("replaceWhere requires mode overwrite.", next="Omit it to append.")
    storage, settings = dict(storage_options or {}), dict(options or {})
    uri = open_store(uri, storage).root  # absolute: workers have another working directory
    try:
        snapshot = Table(uri, storage, options=settings).snapshot()
    except TableNotFound:
        new_table = _new_table(uri, given, partition_columns or (), storage, settings)
        return replace(new_table, target_size=target_size, save_mode=save_mode)
    if save_mode == "errorifexists":
        raise TableExists(
            f"There is a table at {uri} already.",
            next='Use the mode "append", "overwrite" or "ignore", or another path.',
        )
    metadata = snapshot.metadata
    existing = WriteDestination(
        uri,
        metadata.schema_string,
        snapshot.partition_columns,
        storage,
        settings,
        dict(metadata.configuration),
        snapshot.version,
        target_size,
        save_mode,
    )
    if existing.is_ignored:
        return existing
    if partition_columns is not None and tuple(partition_columns) != snapshot.partition_columns:
        raise InvalidRequest(
            f"The table is partitioned by {list(snapshot.partition_columns)}, not by"
            f" {list(partition_columns)}.",
            next="Omit partitionColumns: they apply only to a new table.",
        )
    check_fit(given, existing.schema, existing.required)
    return existing


def _new_table(
    uri: str,
    given: StructType,
    partition_columns: Sequence[str],
    storage: dict[str, Any],
    settings: dict[str, object],
) -> WriteDestination:
    from arrowlog.transaction import check_partitions, check_schema

    text = json.dumps(to_spark_schema(given.json()).jsonValue())
    columns = check_partitions(partition_columns, check_schema(text))
    return WriteDestination(uri, text, tuple(columns), storage, settings, {}, None)

"""Convert the rows of any table that can be read, splits included, to a table of Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import ArrowlogError, InvalidRequest, TableExists
from arrowlog.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from arrowlog.scan import ScanPlan


def convert(
    uri: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    where: Any = None,
    version: int | None = None,
    spark: SparkSession | None = None,
    target_size: str | int = "128MB",
    storage_options: Mapping[str, Any] | None = None,
    target_storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
) -> Table:
    """Write the rows of a table to a new table of Parquet files with statistics.

    Rows are streamed, so memory is bounded by a few batches and the files being written. The new
    table has the schema and the partition columns of the old one, and all rows in one commit. If
    the conversion fails, the new table is empty, and converting again continues with it.

    Args:
        uri: path or URL of the table to read.
        target: path or URL of the table to create.
        where: convert only rows that match this predicate, as in `Table.scan`.
        version: the version to read; the newest by default.
        spark: a Spark session, whose workers read and write the rows.
        target_size: approximate size of a file, measured in memory before compression.
        storage_options: options for the store of `uri`.
        target_storage_options: options for the store of `target`; those of `uri` by default.
        options: settings, as in `Table`.

    Returns:
        The new table.

    Raises:
        TableExists: there is a table at `target`, and it is not the empty remains of a conversion.
        DataFileError: a data file of the table cannot be read.
    """
    given = storage_options if target_storage_options is None else target_storage_options
    table = Table(uri, storage_options, options=options)
    plan = table.scan(where, version)
    made = _create(plan, target, given, options)
    if made.uri == table.uri:
        raise InvalidRequest("A table cannot be converted into itself.", next="Choose a target.")
    if spark is not None:
        import arrowlog.spark

        frame = plan.to_spark(spark)
        arrowlog.spark.write(frame, made.uri, storage_options=dict(given or {}))
        made.refresh()
        return made
    stream = _RowStream(plan)
    try:
        made.write(stream, target_size=target_size)
    except Exception as error:
        # An error that crosses Arrow's stream interface loses its type.
        if stream.error is None or isinstance(error, ArrowlogError):
            raise
        raise stream.error from None
    return made


def _create(
    plan: ScanPlan,
    target: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, object] | None,
) -> Table:
    """Create the new table, or open what a failed conversion has left of it."""
    snapshot = plan.snapshot
    schema = snapshot.metadata.schema_string
    made = Table.create(
        target,
        schema,
        snapshot.partition_columns,
        exist_ok=True,
        storage_options=storage_options,
        options=options,
    )
    current = made.snapshot()
    same = (current.schema, current.partition_columns) == (
        snapshot.schema,
        snapshot.partition_columns,
    )
    if current.num_files or not same:
        raise TableExists(
            f"There is a table at {made.uri}.", next="Choose another target, or delete the table."
        )
    return made


class _RowStream:
    """The rows of a plan as an Arrow stream that remembers the error it ended with."""

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan
        self.error: ArrowlogError | None = None

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._plan.row_reader.batches()
        except ArrowlogError as error:
            self.error = error
            raise

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows, read as they are asked for."""
        reader = pa.RecordBatchReader.from_batches(self._plan.row_reader.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

"""Convert a table: its rows to a new table, or a log of arrowlog's own over the same files."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, make_scalar, null_scalar
from arrowlog.config import resolve
from arrowlog.decode import flatten_map_columns
from arrowlog.errors import (
    ArrowlogError,
    ArrowlogWarning,
    InvalidRequest,
    TableExists,
    TableNotFound,
)
from arrowlog.formats import format_spark_schema, physical_name, stats_type
from arrowlog.formats.delta import mapping_mode
from arrowlog.formats.indextables import INDEXTABLES, encode_add_objects
from arrowlog.recovery import rebuild
from arrowlog.snapshot import HIVE_NULL, dates_to_midnights, may_lose_digits
from arrowlog.storage import open_store
from arrowlog.table import Table
from arrowlog.transaction import build_metadata, create_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from arrowlog.scan import ScanPlan
    from arrowlog.snapshot import Snapshot

# Fields of an add that both formats have with the same meaning.
_ADOPTED_FIELDS = ("size", "modificationTime", "dataChange", "stats", "tags")


def convert(
    uri: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    where: Any = None,
    version: int | None = None,
    spark: SparkSession | None = None,
    target_size: str | int = "128MB",
    storage_options: Mapping[str, Any] | None = None,
    target_storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
) -> Table:
    """Write the rows of a table to a new table, or make a Delta table an arrowlog table in place.

    Rows are streamed, so memory is bounded by a few batches and the files being written. The new
    table has the schema and the partition columns of the old one, and all rows in one commit. If
    the conversion fails, the new table is empty, and converting again continues with it.

    Without `target`, a table of another format gets a log of arrowlog's own format beside its log,
    over the same data files: no row is read or written. From then on arrowlog reads and writes the
    new log, and the other one does not follow. Refused if deletion vectors or column mapping are in
    use, because the files alone do not tell the rows then. A folder of Parquet files without a log
    becomes a table of these files, as `rebuild` makes it; `rebuild` also has a dry run and options.

    Args:
        uri: path or URL of the table to read.
        target: path or URL of the table to create; None converts in place.
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
        TableNotFound: there is neither a table nor, without `target`, a Parquet file at `uri`.
        InvalidRequest: the table cannot be converted in place; the message says why.
        DataFileError: a data file of the table cannot be read.
    """
    given = storage_options if target_storage_options is None else target_storage_options
    try:
        table = Table(uri, storage_options, options=options)
    except TableNotFound:
        if target is not None or where is not None or version is not None:
            raise
        rebuild(uri, storage_options=storage_options, options=options, spark=spark)
        return Table(uri, storage_options, options=options)
    plan = table.scan(where, version)
    if target is None:
        if where is not None or spark is not None:
            raise InvalidRequest(
                "A table is converted in place as a whole.", next="Omit `where` and `spark`."
            )
        return _convert_in_place(table, plan.snapshot, storage_options, options)
    made = _create(plan, target, given, options)
    if made.uri == table.uri:
        raise InvalidRequest("A table cannot be converted into itself.", next="Choose a target.")
    _copy_rows(plan, made, spark, target_size, given)
    return made


def _copy_rows(
    plan: ScanPlan,
    made: Table,
    spark: SparkSession | None,
    target_size: str | int,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Write the rows of a plan to a table, in one commit."""
    if spark is not None:
        import arrowlog.spark

        frame = plan.to_spark(spark)
        arrowlog.spark.write(frame, made.uri, storage_options=dict(storage_options or {}))
        made.refresh()
        return
    stream = _RowStream(plan)
    try:
        made.write(stream, target_size=target_size)
    except Exception as error:
        # An error that crosses Arrow's stream interface loses its type.
        if stream.error is None or isinstance(error, ArrowlogError):
            raise
        raise stream.error from None


def _convert_in_place(
    table: Table,
    snapshot: Snapshot,
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, object] | None,
) -> Table:
    """Write a log over the same data files beside that of another format."""
    if table.format == INDEXTABLES.name:
        raise InvalidRequest(
            "The table has arrowlog's format already.", next="Pass a target to copy its rows."
        )
    adds = _adoptable_adds(snapshot)
    lines = b"".join(
        b'{"add":%b}\n' % text.encode() for text in encode_add_objects(adds).to_pylist()
    )
    metadata = build_metadata(
        format_spark_schema(snapshot.schema),
        snapshot.partition_columns,
        {},
        snapshot.metadata.name,
        snapshot.metadata.description,
    )
    config = resolve(options)
    store = open_store(table.uri, storage_options)
    create_table(store, config, metadata, exist_ok=False, adopted_files=lines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)  # that there are two logs is on purpose
        return Table(table.uri, storage_options, options=options)


def _adoptable_adds(snapshot: Snapshot) -> pa.Table:
    """Return the live adds with the fields of arrowlog's format. Raises InvalidRequest."""
    adds, table_format = snapshot.state.adds, snapshot.state.format
    partition = [physical_name(snapshot.schema, name) for name in snapshot.partition_columns]
    keys, why = adds["key"], None
    if mapping_mode(snapshot.schema) != "none":
        why = "its columns have other names in the data files (column mapping)"
    elif table_format.paths_of(keys) is not keys:
        why = "rows of its files are deleted by deletion vectors"
    flat = flatten_map_columns(adds, partition)
    columns = {name: flat[name] for name in ("key", *_ADOPTED_FIELDS) if name in flat.column_names}
    for logical, physical in zip(snapshot.partition_columns, partition, strict=True):
        name = f"partitionValues.{physical}"
        texts = flat[name] if name in flat.column_names else pa.nulls(flat.num_rows, pa.string())
        if pc.any(pc.equal(texts, make_scalar(HIVE_NULL, pa.string()))).as_py():
            why = f"a partition value is {HIVE_NULL}, which is NULL in arrowlog's format"
        # Empty text is NULL in every column of a Delta table.
        empty = pc.equal(texts, make_scalar("", pa.string()))
        texts = pc.if_else(empty, null_scalar(pa.string()), texts)
        columns[name] = dates_to_midnights(texts, stats_type(snapshot.schema, logical))
    if why is not None:
        raise InvalidRequest(
            f"The table cannot be converted in place: {why}.",
            next="Pass a target to copy its rows.",
        )
    inexact = table_format.inexact_bounds(adds)
    if "stats" in columns and inexact is not None:
        columns["stats"] = pc.if_else(inexact, null_scalar(pa.string()), columns["stats"])
    wide = [item.name for item in snapshot.schema if may_lose_digits(item.type)]
    if "stats" in columns and wide and table_format.rounded_decimals:
        columns["stats"] = _without_bounds(columns["stats"], wide)
    return pa.table(columns)


def _without_bounds(texts: pa.ChunkedArray, names: Sequence[str]) -> pa.Array:
    """Return statistics without the bounds of some columns; null for text that is not JSON.

    Their decimals may be rounded, but those of arrowlog's format are exact.
    """
    kept: list[str | None] = []
    for text in texts.to_pylist():
        try:
            stats = None if text is None else msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            for side in ("minValues", "maxValues") if stats else ():
                if stats and side in stats:
                    bounds = msgspec.json.decode(stats[side], type=dict[str, msgspec.Raw] | None)
                    exact = {k: v for k, v in (bounds or {}).items() if k not in names}
                    stats[side] = msgspec.Raw(msgspec.json.encode(exact))
            kept.append(None if stats is None else msgspec.json.encode(stats).decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kept.append(None)
    return make_array(kept, pa.string())


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

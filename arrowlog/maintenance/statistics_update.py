"""Refresh the statistics of live files from the files themselves."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.errors import DataFileError, InvalidRequest
from arrowlog.formats.indextables import encode_adds
from arrowlog.scan import build_data_file_error
from arrowlog.snapshot import StatsTruncation
from arrowlog.storage import RangeReader, stat_object
from arrowlog.transaction import compute_stats, describe_parquet_file, operations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.storage import Store
    from arrowlog.transaction import Add, CommitResult, WriteSession

_FILE_THREADS = 16
_REFRESHED_FIELDS = {  # all other fields of an add are kept
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "stats",
    "numRecords",
    "minValues",
    "maxValues",
}


def update_statistics(session: WriteSession, paths: Iterable[str]) -> CommitResult:
    """Read size, row count and bounds of live Parquet files again, and commit them.

    The commit replaces the adds with `dataChange` false; all their other fields are kept.

    Raises InvalidRequest if a path is not that of a live file, DataFileError if a file is missing
    or cannot be read, and CommitConflict if another commit changed one of the files.
    """
    snapshot = session.read_latest()
    state = snapshot.state
    wanted = make_array(sorted(set(paths)), pa.string())
    live = state.adds.filter(pc.is_in(state.adds["key"], value_set=wanted))
    if live.num_rows < len(wanted):
        raise InvalidRequest(
            f"{len(wanted) - live.num_rows} of the paths are not live files.",
            next="Use paths of snapshot().files.",
        )
    truncation = StatsTruncation.of(session.config(session.head_of(snapshot)))

    def file_error(path: str, reason: str) -> DataFileError:
        return build_data_file_error(session.store, path, reason, snapshot.version)

    def refresh(line: bytes) -> Add:
        add: dict[str, Any] = json.loads(line)["add"]
        values = add.get("partitionValues") or {}
        kept = {name: value for name, value in add.items() if name not in _REFRESHED_FIELDS}
        columns = snapshot.partition_columns
        try:
            refreshed = describe_parquet_file(
                session.store, add["path"], state.schema, columns, truncation, values, kept
            )
        except InvalidRequest as error:
            reason = error.what.replace(f"{add['path']}: ", "").replace(add["path"], "the file")
            is_missing = stat_object(session.store, add["path"]) is None
            raise file_error(
                add["path"], "the data file is missing" if is_missing else reason
            ) from None
        floats = [
            item.name
            for item in state.schema
            if pa.types.is_floating(item.type) and item.name not in columns
        ]
        try:
            return _with_exact_floats(session.store, refreshed, state.schema, floats, truncation)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).split("\n", 1)[0]
            raise file_error(add["path"], f"its rows cannot be read: {reason}") from None

    with ThreadPoolExecutor(_FILE_THREADS) as pool:
        adds = list(pool.map(refresh, encode_adds(live)))
    return operations.commit(
        session,
        adds,
        live["key"].to_pylist(),
        operation="STATISTICS",
        data_change=False,
        read_version=snapshot.version,
        where=None,
        txn=None,
        user_metadata=None,
        parameters=None,
    )


def _with_exact_floats(
    store: Store, add: Add, schema: pa.Schema, names: list[str], truncation: StatsTruncation
) -> Add:
    """Compute the bounds of floating-point columns from their values.

    Parquet footers do not say whether a column contains NaN, so their bounds are not used. Columns
    that the file lacks, has twice, or has with another type keep what they have.
    """
    import pyarrow.parquet as pq

    if not names or add.size is None:
        return add
    with pq.ParquetFile(pa.PythonFile(RangeReader(store, add.path, add.size), "r")) as file:
        stored = file.schema_arrow
        known = [
            name
            for name in names
            if stored.names.count(name) == 1 and stored.field(name).type == schema.field(name).type
        ]
        exact = compute_stats(file.read(columns=known), known, truncation)
    return replace(
        add,
        min_values={**(add.min_values or {}), **exact.low},
        max_values={**(add.max_values or {}), **exact.high},
    )

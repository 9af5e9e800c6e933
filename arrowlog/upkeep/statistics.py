"""Statistics read again from data files, everything else of their adds kept."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit import operations
from arrowlog.commit.parquet import add_of
from arrowlog.commit.stats import of_table
from arrowlog.errors import DataFileError, InvalidRequest
from arrowlog.log.arrays import array_of
from arrowlog.log.encode import add_lines
from arrowlog.log.store.base import stat_object
from arrowlog.log.store.ranges import RangeFile
from arrowlog.scan.read_errors import data_file_error
from arrowlog.state.truncation import Truncation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.commit.adds import Add
    from arrowlog.commit.committer import Committer
    from arrowlog.commit.transaction import CommitResult
    from arrowlog.log.store import Store

_AT_ONCE = 16
_NEW = {
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


def update_statistics(committer: Committer, paths: Iterable[str]) -> CommitResult:
    """Read size, rows and bounds of live Parquet files again, and commit what they say."""
    snapshot = committer.look()
    state = snapshot.state
    wanted = array_of(sorted(set(paths)), pa.string())
    live = state.adds.filter(pc.is_in(state.adds["key"], value_set=wanted))
    if live.num_rows < len(wanted):
        raise InvalidRequest(
            f"{len(wanted) - live.num_rows} of the paths are no live files.",
            next="snapshot().files has the live files.",
        )
    cut = Truncation.of(committer.config(committer.head_of(snapshot)))

    def damaged(path: str, reason: str) -> DataFileError:
        return data_file_error(committer.store, path, reason, snapshot.version)

    def anew(line: bytes) -> Add:
        add: dict[str, Any] = json.loads(line)["add"]
        values = add.get("partitionValues") or {}
        rest = {name: value for name, value in add.items() if name not in _NEW}
        columns = snapshot.partition_columns
        try:
            found = add_of(committer.store, add["path"], state.schema, columns, cut, values, rest)
        except InvalidRequest as error:
            words = error.what.replace(f"{add['path']}: ", "").replace(add["path"], "the file")
            gone = stat_object(committer.store, add["path"]) is None
            raise damaged(add["path"], "the data file is missing" if gone else words) from None
        floats = [
            item.name
            for item in state.schema
            if pa.types.is_floating(item.type) and item.name not in columns
        ]
        try:
            return _with_floats(committer.store, found, state.schema, floats, cut)
        except (pa.ArrowException, OSError, ValueError) as error:
            words = str(error).split("\n", 1)[0]
            raise damaged(add["path"], f"its rows cannot be read: {words}") from None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        adds = list(pool.map(anew, add_lines(live)))
    return operations.commit(
        committer,
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


def _with_floats(
    store: Store, add: Add, schema: pa.Schema, names: list[str], cut: Truncation
) -> Add:
    """Bounds of floating point columns from their values: no footer tells of NaNs."""
    import pyarrow.parquet as pq

    if not names or add.size is None:
        return add
    with pq.ParquetFile(pa.PythonFile(RangeFile(store, add.path, add.size), "r")) as file:
        stored = file.schema_arrow
        known = [
            name
            for name in names
            if stored.names.count(name) == 1 and stored.field(name).type == schema.field(name).type
        ]
        exact = of_table(file.read(columns=known), known, cut)
    return replace(
        add,
        min_values={**(add.min_values or {}), **exact.low},
        max_values={**(add.max_values or {}), **exact.high},
    )

"""Statistics read again from the footers of data files, everything else of their adds kept."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit import operations
from arrowlog.commit.parquet import add_of
from arrowlog.errors import InvalidRequest
from arrowlog.log.arrays import array_of
from arrowlog.log.encode import add_lines
from arrowlog.state.truncation import Truncation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.commit.adds import Add
    from arrowlog.commit.committer import Committer
    from arrowlog.commit.transaction import CommitResult

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

    def anew(line: bytes) -> Add:
        add: dict[str, Any] = json.loads(line)["add"]
        values = add.get("partitionValues") or {}
        rest = {name: value for name, value in add.items() if name not in _NEW}
        columns = snapshot.partition_columns
        return add_of(committer.store, add["path"], state.schema, columns, cut, values, rest)

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

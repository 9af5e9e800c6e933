"""A Parquet file that is there already, as an add: size, rows and bounds from its footer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from arrowlog.commit.adds import Add
from arrowlog.commit.stats import of_footer
from arrowlog.errors import InvalidRequest
from arrowlog.log.store.ranges import RangeFile
from arrowlog.scan.spelling import finer, spelled
from arrowlog.state.typed import HIVE_NULL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.log.store import Store
    from arrowlog.state.truncation import Truncation


def add_of(
    store: Store,
    path: str,
    schema: pa.Schema,
    partition_columns: Sequence[str],
    cut: Truncation,
    partition_values: Mapping[str, object] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Add:
    """The add for a file in the table's folder.

    Partition values that are not given are taken from folders named `column=value`.
    """
    import pyarrow.parquet as pq

    found = store.stat(path)
    if found is None:
        raise InvalidRequest(
            f"There is no file {path} in {store.root}.", next="Put it there before adding it."
        )
    try:
        footer = pq.read_metadata(pa.PythonFile(RangeFile(store, path, found.size), "r"))
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InvalidRequest(
            f"{path} is no Parquet file that can be read: {reason}.", next="Is it whole?"
        ) from None
    rest = pa.schema([item for item in schema if item.name not in partition_columns])
    _check_columns(footer, rest, path)
    stats = of_footer(footer, rest, cut)
    given = {**_from_path(path, partition_columns), **(partition_values or {})}
    return Add(
        path,
        given,
        found.size,
        max(found.mtime_ms, 0),
        stats.num_records,
        stats.low,
        stats.high,
        stats.nulls,
        dict(fields or {}),
    )


def _check_columns(footer: Any, schema: pa.Schema, path: str) -> None:
    """Refuse columns that other readers would not find, or not be able to read."""
    there = footer.schema.to_arrow_schema()
    for name, other in spelled(there.names, schema.names, path).items():
        raise InvalidRequest(
            f"{path} spells the column {name!r} as {other!r}; most readers would find no values"
            " there.",
            next="Write the file anew with the names of the table's schema.",
        )
    fine = finer(there, schema)
    if fine is not None and _has_nanos(footer, fine):
        raise InvalidRequest(
            f"{path}: {fine} has times between two microseconds, which the table's type does not"
            " have.",
            next="Write the file anew with microseconds.",
        )


def _has_nanos(footer: Any, name: str) -> bool:
    """Whether a bound of a column shows that there are times between two microseconds."""
    for group in range(footer.num_row_groups):
        parts = footer.row_group(group)
        for part in (parts.column(index) for index in range(parts.num_columns)):
            stats = part.statistics if part.path_in_schema == name else None
            if stats is None or not stats.has_min_max or part.physical_type != "INT64":
                continue
            if stats.min_raw % 1000 or stats.max_raw % 1000:
                return True
    return False


def _from_path(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and unquote(name) in columns:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return found

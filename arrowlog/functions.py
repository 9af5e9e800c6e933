"""Public functions beside `Table`: scan a table with polars, describe a Parquet file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.table import Table
from arrowlog.transaction import operations

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import polars as pl

    from arrowlog.transaction import Add


def scan_polars(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    version: int | None = None,
) -> pl.LazyFrame:
    """The rows of a table as a polars LazyFrame: `scan_polars(uri).filter(pl.col("id") == 7)`.

    Filters on the frame skip files. See `Table` for `uri` and `storage_options`, and
    `Table.snapshot` for `version`.
    """
    return Table(uri, storage_options).scan(version=version).to_polars()


def add_parquet(
    table: Table,
    path: str,
    partition_values: Mapping[str, object] | None = None,
    *,
    verify: bool = True,
    **fields: Any,
) -> Add:
    """Describe a Parquet file in the table's folder for `Table.append`.

    Size, row count, bounds and null counts are taken from the file's footer.

    Args:
        table: the table whose folder contains the file.
        path: path of the file, relative to the table or absolute.
        partition_values: partition values by column; those not given are taken from folders named
            `column=value`.
        verify: read the columns whose values decide whether the file fits: text, which must be
            UTF-8, and columns such as unsigned integers whose values may exceed the table's type.
            False reads only the footer.
        **fields: further fields of the `add` action, such as `tags={"by": "me"}`.

    Returns:
        An `Add`.

    Raises:
        InvalidRequest: the file does not exist or cannot be read as rows of the table. The message
            names the column and the reason: an incompatible type (a list for a number, text for a
            timestamp), a column that appears twice, an unsupported codec.
    """
    session = table._session  # noqa: SLF001 -- effectively a method of Table
    return operations.add_parquet(session, path, partition_values, fields, verify=verify)

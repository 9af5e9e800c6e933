"""Readers of rows that tables and scan plans have in common: `to_polars`, `to_duckdb` and others.

The module imports no engine: a table handle derives from `ReadableRows` long before rows are read.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    import polars as pl
    import pyarrow as pa
    import pyarrow.dataset as ds

    from arrowlog.scan.lazy_readers import LazyRows


class _DuckDBSource:
    """Rows that SQL of DuckDB can name by a Python variable, with filters that skip files.

    DuckDB reads a variable that exports an Arrow stream, but passes filters and columns on only to
    a `pyarrow.dataset.Dataset`, which it recognizes by class: one of the classes that an object
    derives from must be defined in `pyarrow._dataset`, and `isinstance` must hold. Deriving from
    the class itself would give tables and plans its whole interface. Instead, this class carries
    the name of the module, and `__class__`, which `isinstance` consults, names the class of the
    rows as a dataset where DuckDB asks, and nowhere else.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of these rows; for DuckDB, that of the dataset that reads them."""
        asking = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 -- see the class
        if asking.startswith("duckdb._sources"):
            from arrowlog.scan.lazy_readers import RowDataset

            return RowDataset
        return type(self)


_DuckDBSource.__module__ = "pyarrow._dataset"


class ReadableRows(_DuckDBSource, ABC):
    """Readers of rows, for every class that implements `_lazy_rows`.

    No file is opened before rows are read. Later filters, projections and limits that an engine
    passes on skip files, row groups and columns as those of a plan do, by the rules of that engine.
    """

    @abstractmethod
    def _lazy_rows(self, predicate: Any = None) -> LazyRows:
        """The rows, or those that also match a predicate, planned and read on demand."""

    def to_polars(self) -> pl.LazyFrame:
        """The rows as a polars LazyFrame."""
        return self._lazy_rows().to_polars()

    def to_arrow_dataset(self) -> ds.Dataset:
        """The rows as a `pyarrow.dataset.Dataset`.

        Later filters follow Arrow's rules: no comparison with NaN is true.
        """
        return self._lazy_rows().to_arrow_dataset()

    def to_arrow(self, predicate: Any = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows into memory: those that match a predicate, with some of their columns.

        The predicate has any form that `Table.scan` accepts. Raises `InvalidRequest` for a column
        that does not exist.
        """
        from arrowlog.scan.lazy_readers import check_columns

        rows = self._lazy_rows(predicate)
        names = check_columns(columns, rows.schema)
        return rows.to_arrow_dataset().to_table(columns=names)

    def to_pandas(self, predicate: Any = None, columns: Sequence[str] | None = None) -> Any:
        """Read the rows into a pandas DataFrame; see `to_arrow`."""
        return self.to_arrow(predicate, columns).to_pandas()

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """The rows as a relation on a DuckDB connection, by default that of the module `duckdb`.

        DuckDB raises a failed read as its own exception, which contains our message.
        """
        return self._lazy_rows().to_duckdb(con)

    def scanner(self, *args: Any, **options: Any) -> Any:
        """A scan of some columns of the rows that satisfy an Arrow expression.

        The arguments are those of `pyarrow.dataset.Dataset.scanner`. DuckDB calls it if SQL names
        the variable of a table or plan: `duckdb.sql("FROM table WHERE id = 7")`.
        """
        return self._lazy_rows().to_duckdb_dataset().scanner(*args, **options)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through the Arrow C stream interface: `polars.DataFrame(table)`."""
        return self.to_arrow_dataset().__arrow_c_stream__(requested_schema)

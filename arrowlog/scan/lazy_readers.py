"""Lazy readers of planned rows: polars frames, Arrow datasets and DuckDB relations.

Nothing is opened when a reader is made. When it is asked for rows, the filter that the engine has
pushed down is planned like any other predicate, and only the files that may match are opened. The
engine's own filter is then applied to the rows exactly, whether or not it could be planned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from arrowlog.arrays import empty_table
from arrowlog.config import is_text, shorten
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import require_polars
from arrowlog.predicate import (
    TRUE,
    parse_pushed_filter,
    parse_pyarrow,
    referenced_columns,
    resolve_column,
)
from arrowlog.scan.read_reports import ReadLog, ReadReport, format_planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb
    import polars as pl
    import pyarrow.compute as pc

    from arrowlog.predicate import Node
    from arrowlog.scan.explain import Explanation
    from arrowlog.scan.row_reader import RowReader

    Columns = Sequence[str] | Mapping[str, pc.Expression] | None

# The C++ part of a `RowDataset` has one file with this name: whatever bypasses the methods of the
# Python class fails with this text instead of returning other rows than the dataset has.
_PLACEHOLDER = "(read this dataset with its own methods: scanner, to_table, to_batches, ...)"


@dataclass(frozen=True, slots=True)
class LazyRows:
    """Rows that are planned and read on demand.

    `narrow` takes a pushed-down condition and returns a reader of the files that may have a row for
    which it is true. `check` raises what can be told without opening a file. `reads` records what
    engines read; `explain` explains which files a condition skips.
    """

    schema: pa.Schema
    narrow: Callable[[Node], RowReader]
    check: Callable[[], None]
    files: tuple[int, int] | None = None  # of the plan, and in the table
    explain: Callable[[Node], Explanation] | None = None
    reads: ReadLog = field(default_factory=ReadLog)

    def begin_read(
        self,
        engine: str,
        pushed: object,
        condition: Node,
        columns: Sequence[str],
        limit: int | None = None,
    ) -> tuple[RowReader, ReadReport]:
        """The reader of the files that a pushed-down condition leaves, and the report of the read.

        `pushed` is the filter as the engine passed it on, None without one.
        """
        reader, explain = self.narrow(condition), self.explain
        selected = reader.files.num_rows
        planned, total = self.files or (selected, selected)
        report = ReadReport(
            engine,
            reader.version,
            "" if pushed is None else " ".join(str(pushed).split()),
            format_planned(condition),
            tuple(columns),
            limit,
            total,
            planned,
            selected,
            _explain=None if explain is None else lambda: explain(condition),
        )
        return reader, self.reads.add(report)

    def to_arrow_dataset(self) -> RowDataset:
        """The rows as an Arrow dataset."""
        self.check()
        return RowDataset.over(self)

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None) -> duckdb.DuckDBPyRelation:
        """The rows as a relation, read when it is executed; without a connection on DuckDB's own.

        DuckDB raises a failed read as its own exception, whose text contains our error message.
        """
        import duckdb

        return (duckdb if con is None else con).from_arrow(self.to_duckdb_dataset())

    def to_duckdb_dataset(self) -> RowDataset:
        """The rows as an Arrow dataset whose reads are reported as DuckDB's."""
        self.check()
        return RowDataset.over(self, engine="duckdb")

    def to_polars(self) -> pl.LazyFrame:
        """The rows as a polars LazyFrame that reads on collect.

        Raises InvalidRequest for a column type that polars does not support.
        """
        require_polars("Reading rows with polars")
        import polars as pl
        from polars.io.plugins import register_io_source

        _check_polars_types(self.schema)
        self.check()
        frame = pl.DataFrame(pl.from_arrow(empty_table(self.schema)))
        return register_io_source(self._polars_batches, schema=frame.schema)

    def _polars_batches(
        self,
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """The callback of the polars IO source. `n_rows` counts rows before `predicate`."""
        import polars as pl

        del batch_size
        names = list(self.schema.names) if with_columns is None else list(with_columns)
        tree: Node = TRUE
        if predicate is not None and n_rows is None:
            tree = parse_pushed_filter(predicate, self.schema)
        reader, report = self.begin_read("polars", predicate, tree, names, n_rows)
        batches = reader.batches(
            names, pushed=tree, gradual=n_rows is not None, on_open=report.note_opened
        )
        for batch in report.count(batches if n_rows is None else _first_rows(batches, n_rows)):
            rows = pl.DataFrame(pl.from_arrow(batch))
            yield rows if predicate is None else rows.filter(predicate)


def _check_polars_types(schema: pa.Schema) -> None:
    """Raise InvalidRequest for a column type on which polars fails the whole query."""
    for item in schema:
        if pa.types.is_interval(item.type):
            raise InvalidRequest(
                f"Column {item.name!r} has type {item.type}, which polars does not support.",
                next="Use `to_arrow_dataset()` or `to_duckdb(con)`.",
            )


def _first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows; batches after them are not read."""
    remaining = limit
    while remaining > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, remaining)
        remaining -= batch.num_rows


@dataclass(frozen=True, slots=True)
class LazyScanner:
    """A scan of some columns and rows of a dataset, with the interface of a pyarrow `Scanner`.

    It is driven by the caller's thread. Arrow's own class would run Python code in Arrow's threads,
    which may crash the process if the interpreter exits during an abandoned scan.
    `gradual_batches` reads few files at first, for scans that need the first rows only.
    """

    projected_schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    gradual_batches: Callable[[], Iterator[pa.RecordBatch]] | None = None

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in record batches."""
        return self.batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a record batch reader."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches())

    def to_table(self) -> pa.Table:
        """Read all rows into memory."""
        return pa.Table.from_batches(self.batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Read the first rows, and no more files than that takes."""
        batches = (self.gradual_batches or self.batches)()
        return pa.Table.from_batches(_first_rows(batches, num_rows), self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Read rows by index."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Count the rows."""
        return sum(batch.num_rows for batch in self.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through the Arrow C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


class RowDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """An Arrow dataset of planned rows.

    Later filters, projections and limits reach the plan, so that files that cannot match are not
    opened. Failed reads raise `DataFileError`, which names the file.
    """

    _rows: LazyRows
    _filter: pc.Expression | None
    _engine: str

    @classmethod
    def over(
        cls, rows: LazyRows, where: pc.Expression | None = None, engine: str = "arrow"
    ) -> RowDataset:
        """The dataset of some rows, or of those for which an expression is true.

        `engine` names the reader in reports.
        """
        format_, filesystem = ds.ParquetFileFormat(), LocalFileSystem()
        placeholder = format_.make_fragment(_PLACEHOLDER, filesystem)
        made = cls([placeholder], rows.schema, format_, filesystem=filesystem)
        made._rows, made._filter, made._engine = rows, where, engine
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the plan; like the plan, without storage options."""
        return RowDataset.over, (self._rows, self._filter, self._engine)

    def filter(self, expression: pc.Expression) -> RowDataset:
        """Restrict the dataset to rows for which an expression is true."""
        return RowDataset.over(self._rows, self._combine(expression), self._engine)

    @property
    def reads(self) -> list[ReadReport]:
        """What engines have read from this dataset and others of the same plan, oldest first."""
        return self._rows.reads.reports()

    def _combine(self, expression: pc.Expression | None) -> pc.Expression | None:
        if self._filter is None or expression is None:
            return self._filter if expression is None else expression
        return self._filter & expression

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 -- pyarrow's name
        **options: Any,
    ) -> LazyScanner:
        """A scan of some columns, or expressions by name, of the rows that satisfy `filter`.

        `options` are those of `pyarrow.dataset.Scanner.from_dataset`.
        """
        where = self._combine(filter)
        sample = ds.InMemoryDataset(empty_table(self.schema))
        schema = sample.scanner(columns=columns, filter=where, **options).projected_schema

        def batches(*, gradual: bool) -> Iterator[pa.RecordBatch]:
            tree = TRUE if where is None else parse_pushed_filter(where, self.schema)
            names = self._needed_columns(columns, where)
            reader, report = self._rows.begin_read(self._engine, where, tree, names)
            on_open = report.note_opened
            batches = reader.batches(
                names, pushed=tree, gradual=gradual, on_open=on_open, **options
            )
            read = report.count(batches)
            if where is None and (columns is None or names == columns):
                return read
            return _project(read, columns, where)

        return LazyScanner(schema, lambda: batches(gradual=False), lambda: batches(gradual=True))

    def _needed_columns(self, columns: Columns, where: pc.Expression | None) -> list[str]:
        """The columns to read, in the order in which a plain projection asks for them."""
        if columns is None:
            return list(self.schema.names)
        expressions = [] if where is None else [where]
        names: list[str] = []
        if hasattr(columns, "values"):
            expressions += columns.values()
        else:
            names += (_column_of_path(name, self.schema) for name in columns)
        for expression in expressions:
            names += sorted(referenced_columns(parse_pyarrow(expression, self.schema)))
        # A batch without columns would have no rows.
        return list(dict.fromkeys(names)) or self.schema.names[:1]

    def to_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in record batches."""
        return self.scanner(*args, **options).to_batches()

    def to_table(self, *args: Any, **options: Any) -> pa.Table:
        """Read all rows into memory."""
        return self.scanner(*args, **options).to_table()

    def head(self, num_rows: int, *args: Any, **options: Any) -> pa.Table:
        """Read the first rows, and no more files than that takes."""
        return self.scanner(*args, **options).head(num_rows)

    def take(self, indices: Any, *args: Any, **options: Any) -> pa.Table:
        """Read rows by index."""
        return self.scanner(*args, **options).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # noqa: A002
        """Count the rows; without a filter, mostly from the footers of the files."""
        if self._combine(filter) is None:
            reader, report = self._rows.begin_read(self._engine, None, TRUE, ())
            report.note_opened(report.files_selected)
            report.rows = reader.count_rows()
            report.finished = True
            return report.rows
        return self.scanner([], filter, **options).count_rows()

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[ds.Fragment]:  # noqa: A002
        """The files that may have rows matching a filter, with their partition values.

        As in pyarrow, only of a dataset without a filter of its own.
        """
        tree = TRUE if filter is None else parse_pushed_filter(filter, self.schema)
        reader = self._rows.narrow(tree)
        if self._filter is not None or reader.predicate.tree != TRUE:
            raise ValueError(
                "A filtered dataset has no fragments: some of their rows do not match."
                " Remove the filtering."
            )
        return iter(reader.fragments())

    @property
    def files(self) -> list[str]:
        """The paths of the files that may have matching rows."""
        tree = TRUE if self._filter is None else parse_pushed_filter(self._filter, self.schema)
        return [fragment.path for fragment in self._rows.narrow(tree).fragments()]

    def replace_schema(self, schema: pa.Schema) -> ds.Dataset:
        """The rows under another schema, in memory."""
        return self._in_memory().replace_schema(schema)

    def join(self, *args: Any, **options: Any) -> ds.InMemoryDataset:
        """Join the rows, in memory, with another dataset."""
        return self._in_memory().join(*args, **options)

    def join_asof(self, *args: Any, **options: Any) -> ds.InMemoryDataset:
        """Join the rows, in memory, with another dataset on the nearest key."""
        return self._in_memory().join_asof(*args, **options)

    def sort_by(self, *args: Any, **options: Any) -> ds.InMemoryDataset:
        """Sort the rows in memory."""
        return self._in_memory().sort_by(*args, **options)

    def _in_memory(self) -> ds.InMemoryDataset:
        return ds.InMemoryDataset(self.to_table())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through the Arrow C stream interface."""
        return self.scanner().__arrow_c_stream__(requested_schema)


def _project(
    batches: Iterator[pa.RecordBatch], columns: Columns, where: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Apply a filter and a projection by Arrow's rules, one batch at a time."""
    for batch in batches:
        yield from ds.InMemoryDataset(batch).scanner(columns=columns, filter=where).to_batches()


def _column_of_path(name: str, schema: pa.Schema) -> str:
    """Return the column that a struct field is in, given as a path as pyarrow writes it: `.a.b`."""
    for column in schema.names if name.startswith(".") else ():
        start = "." + re.sub(r"[\\.\[]", r"\\\g<0>", column)
        if name == start or name.startswith((f"{start}.", f"{start}[")):
            return str(column)
    return name


def check_columns(columns: Columns, schema: pa.Schema) -> Columns:
    """Return columns as pyarrow takes them. Raises `InvalidRequest` for one that does not exist."""
    if columns is None:
        return None
    if isinstance(columns, (str, bytes)) or not isinstance(columns, (Mapping, Sequence)):
        raise InvalidRequest(
            f"columns cannot be {shorten(columns)}.", next='Pass a list of names: ["id"].'
        )
    if not isinstance(columns, Mapping):
        for name in columns:
            # pyarrow also has columns such as __filename, and paths of struct fields.
            if not is_text(name) or not name.startswith(("__", ".")):
                resolve_column(name, schema)
        columns = list(columns)
    try:
        ds.InMemoryDataset(empty_table(schema)).scanner(columns=columns)
    except (pa.ArrowInvalid, pa.ArrowKeyError, TypeError) as error:
        raise InvalidRequest(
            f"columns cannot be {shorten(columns)}: {str(error).partition(' in ')[0]}.",
            next=f"The columns are {', '.join(schema.names)}.",
        ) from None
    return columns

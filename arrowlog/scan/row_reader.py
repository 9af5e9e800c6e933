"""Read the rows of planned files: Parquet through Arrow, partition values from the log.

A column that a file lacks is NULL. Partition columns have the value in the log, whatever the path
or the file contains. Arrow applies the conjuncts of the predicate that it can, so that it skips row
groups; DuckDB evaluates the rest on the batches that Arrow returns.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import number_combinations
from arrowlog.errors import ArrowlogError, InvalidRequest, LogCorrupt
from arrowlog.fork_safety import require_polars
from arrowlog.formats.delta import mapping_mode
from arrowlog.predicate import TRUE, Predicate, evaluate_predicate, split_pushdown
from arrowlog.scan.data_files import ColumnCaseResolver, ReadErrorTranslator
from arrowlog.scan.file_rows import VECTOR_PREFIX, FileRowReader, read_deleted_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb
    import polars as pl
    import pyarrow.dataset as ds

_BATCH_ROWS = 1 << 17  # rows per batch read, and per evaluation of a predicate
_LOCAL_SCHEMES = ("file://", "local://")
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class RowReader:
    """Files to read, and the columns and predicate to apply.

    `files` has the columns `key` (path relative to the table root), `partition.<column>`, and
    `unreadable` (true if a partition value cannot be parsed). It has columns `deletionVector.*` if
    rows of some files are deleted. Storage options are neither shown nor
    pickled.
    """

    root: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    predicate: Predicate
    files: pa.Table = field(repr=False)
    version: int
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the selected files, compressed, and no storage options."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, self.files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as out:
            out.write_table(self.files.combine_chunks())
        fields = (self.root, self.schema, self.partition_columns, self.predicate)
        return _unpickle, (*fields, sink.getvalue().to_pybytes(), self.version)

    def dataset(self) -> ds.Dataset:
        """The rows as an Arrow dataset; in memory if Arrow alone cannot produce them.

        Reads the footers of all files. Raises DataFileError if one cannot be read.
        """
        import pyarrow.dataset as ds

        from arrowlog.scan.arrow_dataset import RowDataset

        source = self._open_source()
        if self._is_arrow_sufficient(source):
            return RowDataset.of(source.dataset, lambda: self._translate_errors(source.fragments))
        return ds.dataset(pa.Table.from_batches(self._batches(source), self.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in record batches, without holding all of them."""
        yield from self._batches(self._open_source())

    def check(self) -> None:
        """Raise now what reading would raise later, for engines that read elsewhere."""
        self.check_files()
        evaluate_predicate(self.predicate, self.schema.empty_table())

    def check_files(self) -> None:
        """Check that the files can be read with the table.

        Raises LogCorrupt for an unreadable partition value, InvalidRequest for a file whose key is
        a URI.
        """
        self._check_readable()
        outside = self.files.filter(pc.match_substring(self.files["key"], "://"))
        if outside.num_rows:
            _is_absolute(outside["key"][0].as_py())

    def to_polars(self) -> pl.LazyFrame:
        """A polars LazyFrame that reads on collect, and only the columns and rows it needs."""
        require_polars("Reading rows with polars")
        import polars as pl
        from polars.io.plugins import register_io_source

        self._check_polars()
        frame = pl.DataFrame(pl.from_arrow(self.schema.empty_table()))

        def source(
            with_columns: list[str] | None,
            predicate: pl.Expr | None,
            n_rows: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            del batch_size
            names = list(self.schema.names) if with_columns is None else list(with_columns)
            remaining = n_rows
            for batch in self._batches(self._open_source(), names):
                rows = pl.DataFrame(pl.from_arrow(batch))
                rows = rows if remaining is None else rows.head(remaining)
                remaining = None if remaining is None else remaining - rows.height
                yield rows if predicate is None else rows.filter(predicate)
                if remaining == 0:
                    return

        return register_io_source(source, schema=frame.schema)

    def _check_polars(self) -> None:
        """Raise InvalidRequest for a column type on which polars fails the whole query."""
        for item in self.schema:
            if pa.types.is_interval(item.type):
                raise InvalidRequest(
                    f"Column {item.name!r} has type {item.type}, which polars does not support.",
                    next="Use `to_arrow_dataset()` or `to_duckdb(con)`.",
                )

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """A relation on the caller's connection, read when the relation is executed.

        Raises DataFileError if the footer of a file cannot be read. A later failure is raised by
        DuckDB as its own exception, whose text contains our error message.
        """
        from arrowlog.scan.arrow_dataset import DuckDBDataset

        source = self._open_source()
        if self._is_arrow_sufficient(source):
            rows = DuckDBDataset.of(
                source.dataset, lambda: self._translate_errors(source.fragments)
            )
            return connection.from_arrow(rows)
        evaluate_predicate(
            self.predicate, self.schema.empty_table()
        )  # raises if it cannot be evaluated
        return connection.from_arrow(_Stream(self))

    def _is_arrow_sufficient(self, source: _Source) -> bool:
        """Whether Arrow can apply the whole predicate and finds every column by its exact name."""
        if source.special:
            return False
        spellings = ColumnCaseResolver(self.schema, self.partition_columns)
        with self._translate_errors(source.fragments):
            misspelled = spellings.any(list(source.fragments.values()))
            self._read_failures().check_types(source.fragments)
        return source.rest is None and not misspelled

    def _read_failures(self) -> ReadErrorTranslator:
        return ReadErrorTranslator(
            self.root, self.options, self.version, self.schema, self.partition_columns
        )

    @contextmanager
    def _translate_errors(self, fragments: Mapping[str, ds.Fragment]) -> Iterator[None]:
        """Raise errors of arrowlog in place of those that reading the given files raises."""
        try:
            yield
        except ArrowlogError:
            raise
        except Exception as error:
            translated = self._read_failures().translate_read_error(error, fragments)
            if translated is error:
                raise
            raise translated from None  # an engine's message may contain credentials

    def _open_source(self) -> _Source:
        """The files as an Arrow dataset with pushed-down filters, and the remaining predicate."""
        import pyarrow.dataset as ds

        # Old files have INT96 timestamps. Arrow reads these as nanoseconds by default, which cover
        # only the years 1677 to 2262.
        format_ = ds.ParquetFileFormat(
            read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        )
        filesystem_, base = open_arrow_filesystem(self.root, self.options)
        fragments = self._fragments(format_, filesystem_, base)
        special = self._special_files()
        plain = [fragment for key, fragment in fragments.items() if key not in special]
        dataset: ds.Dataset = ds.FileSystemDataset(
            plain, self.schema, format_, filesystem=filesystem_
        )
        if self.predicate.tree == TRUE:
            return _Source(dataset, None, fragments, special, (filesystem_, base))
        filters, remaining = split_pushdown(self.predicate.tree, self.schema)
        for filter_ in filters:
            dataset = dataset.filter(filter_)
        rest = Predicate.from_conjuncts(remaining) if remaining else None
        return _Source(dataset, rest, fragments, special, (filesystem_, base))

    def _special_files(self) -> dict[str, dict[str, Any]]:
        """The files that Arrow's dataset cannot read by itself, by key, as rows of `files`."""
        mapped = mapping_mode(self.schema) != "none"
        column = f"{VECTOR_PREFIX}storageType"
        if not mapped and column not in self.files.column_names:
            return {}
        special = self.files if mapped else self.files.filter(pc.is_valid(self.files[column]))
        rows = range(special.num_rows)
        names = [name for name in special.column_names if name.startswith(VECTOR_PREFIX)]
        values = special.select(["key", *names]).to_pylist()
        partition = [special[f"partition.{name}"] for name in self.partition_columns]
        for row in rows:
            scalars = [column[row] for column in partition]
            values[row]["partition"] = dict(zip(self.partition_columns, scalars, strict=True))
        return {row["key"]: row for row in values}

    def _fragments(
        self, format_: ds.FileFormat, filesystem_: Any, base: str
    ) -> dict[str, ds.Fragment]:
        """The files by key, each with its partition values as a guarantee."""
        self._check_readable()
        codes, combinations = self._combinations()
        guarantees = [self._guarantee(values) for values in combinations]
        return {
            key: format_.make_fragment(
                key if _is_absolute(key) else f"{base}/{key}",
                filesystem_,
                partition_expression=guarantees[code],
            )
            for key, code in zip(self.files["key"].to_pylist(), codes, strict=True)
        }

    def _combinations(self) -> tuple[list[int], list[list[pa.Scalar]]]:
        """The number of each file's combination of partition values, and the combinations."""
        columns = [
            self.files[f"partition.{name}"].combine_chunks() for name in self.partition_columns
        ]
        codes, first_rows = number_combinations(columns, self.files.num_rows)
        rows = [[column[row] for column in columns] for row in first_rows.to_pylist()]
        return codes.to_pylist(), rows

    def _guarantee(self, values: Sequence[pa.Scalar]) -> pc.Expression:
        """The partition values of a file as an Arrow partition expression."""
        expression = pc.scalar(True)
        for name, value in zip(self.partition_columns, values, strict=True):
            column = pc.field(name)
            expression &= column == value if value.is_valid else column.is_null()
        return expression

    def _check_readable(self) -> None:
        bad = self.files.filter(self.files["unreadable"])
        if bad.num_rows:
            raise LogCorrupt(
                f"a partition value of {bad['key'][0].as_py()} cannot be parsed as its column's"
                " type, so the rows of the file are undefined.",
                next="Choose a predicate that excludes the file, or repair its add action.",
            )

    def _batches(self, source: _Source, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        wanted = list(self.schema.names) if names is None else names
        # Not around `yield`: an error in the caller's code is not a failed read.
        batches = self._read(source, wanted)
        while True:
            with self._translate_errors(source.fragments):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _read(self, source: _Source, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        rest = source.rest
        needed = wanted if rest is None else [*wanted, *sorted(rest.columns - set(wanted))]
        spellings = ColumnCaseResolver(self.schema, self.partition_columns)
        scanner = source.dataset.scanner(columns=needed, batch_size=_BATCH_ROWS)
        batches = (
            tagged.record_batch
            for tagged in scanner.scan_batches()
            if not spellings.of(tagged.fragment)  # else Arrow reads its columns as NULL
        )
        if rest is None:
            yield from (batch.select(wanted) for batch in batches)
        else:
            for table in _coalesce_batches(batches):
                yield from table.filter(evaluate_predicate(rest, table)).select(wanted).to_batches()
        # Files with differently spelled columns, read again with the names mapped.
        for key, fragment in source.fragments.items():
            if key not in source.special and spellings.of(fragment):
                for table in spellings.tables(fragment):
                    matched = table.filter(evaluate_predicate(self.predicate, table))
                    yield from matched.select(wanted).to_batches()
        yield from self._read_special(source, wanted)

    def _read_special(self, source: _Source, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        """Read the files with deleted rows or mapped columns, one after the other."""
        if not source.special:
            return
        files = FileRowReader.of(self.schema, self.partition_columns)
        every = self.predicate.tree == TRUE
        others = set() if every else self.predicate.columns - set(wanted)
        needed = [*wanted, *sorted(others)] or list(self.schema.names[:1])
        filesystem, base = source.place
        for key, row in source.special.items():
            deleted = read_deleted_rows(row, filesystem, base, self.version)
            fragment, values = source.fragments[key], row["partition"]
            for table in files.tables(fragment, values, deleted, needed, _BATCH_ROWS):
                matched = table
                if not every:
                    matched = table.filter(evaluate_predicate(self.predicate, table))
                yield from matched.select(wanted).to_batches()


def _coalesce_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Concatenate small batches to at least `_BATCH_ROWS` rows.

    Planning a long condition costs DuckDB more than evaluating it on a small batch.
    """
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= _BATCH_ROWS:
            yield pa.Table.from_batches(pending)
            pending, rows = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


class _Source(NamedTuple):
    """An opened dataset with pushed-down filters, the remaining predicate, and the files by key.

    `special` are files that are not in the dataset; `place` is the file system and the table's path
    in it.
    """

    dataset: ds.Dataset
    rest: Predicate | None
    fragments: dict[str, ds.Fragment]
    special: dict[str, dict[str, Any]]
    place: tuple[Any, str]


class _Stream:
    """Rows as a re-readable Arrow stream: every export starts again, one batch at a time."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export a stream of the rows, from the first row on."""
        reader = pa.RecordBatchReader.from_batches(self._rows.schema, self._rows.batches())
        return reader.__arrow_c_stream__(requested_schema)


def _unpickle(
    root: str,
    schema: pa.Schema,
    partition_columns: tuple[str, ...],
    predicate: Predicate,
    data: bytes,
    version: int,
) -> RowReader:
    with pa.ipc.open_stream(data) as reader:
        return RowReader(root, schema, partition_columns, predicate, reader.read_all(), version)


def open_arrow_filesystem(root: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The Arrow file system of a table URI, and the table's path in it."""
    from pyarrow import fs

    for scheme in _LOCAL_SCHEMES:
        root = root.removeprefix(scheme)
    if "://" not in root:
        return fs.LocalFileSystem(), root
    import fsspec

    storage_options = dict(options)
    if root.startswith(_S3_SCHEMES):
        from arrowlog.storage import parse_s3_options, to_s3fs_options

        storage_options = to_s3fs_options(parse_s3_options(options))
    fsspec_filesystem, path = fsspec.core.url_to_fs(root, **storage_options)
    return fs.PyFileSystem(fs.FSSpecHandler(fsspec_filesystem)), str(path).rstrip("/")


def _is_absolute(key: str) -> bool:
    """Whether a key is an absolute path. Raises InvalidRequest if it is a URI."""
    if "://" in key:
        raise InvalidRequest(
            f"{key} lies outside the table and cannot be read with it.",
            next="Read that file separately, using `plan.paths`.",
        )
    return key.startswith("/")

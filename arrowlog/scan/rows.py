"""The rows of planned files: Parquet read by Arrow, partition columns from the log.

Columns a file does not have are NULL, partition columns are what the log says whatever the path or
the file does, and the predicate is applied. What Arrow can say of it goes into the reader; the
rest is evaluated by DuckDB on what the reader gives.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import ArrowlogError, InvalidRequest, LogCorrupt
from arrowlog.fork_safety import require_polars
from arrowlog.log.arrays import number, same
from arrowlog.scan.engine import known
from arrowlog.scan.filters import pushed_down
from arrowlog.scan.predicate import Predicate, matching
from arrowlog.scan.read_errors import ReadFailures
from arrowlog.scan.spelling import Spellings
from arrowlog.scan.tree import TRUE, Call, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow.dataset as ds

    from arrowlog.scan.tree import Node

_BATCH_ROWS = 1 << 17
_LOCAL = ("file://", "local://")
_S3 = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class Rows:
    """Files to read and what to take from them.

    `files` has the columns `key`, the file relative to the table, `partition.<column>` and
    `unreadable`, true where a partition value cannot be told. Options for the store are kept out of
    sight, and are not pickled.
    """

    root: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    predicate: Predicate
    files: pa.Table = field(repr=False)
    version: int
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled small: only its own files, and nothing secret."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, self.files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as out:
            out.write_table(self.files.combine_chunks())
        given = (self.root, self.schema, self.partition_columns, self.predicate)
        return _unpickled, (*given, sink.getvalue().to_pybytes(), self.version)

    def dataset(self) -> ds.Dataset:
        """An Arrow dataset of the rows; in memory, if Arrow cannot find them by itself.

        `DataFileError` if the footer of a file cannot be read: all footers are read here.
        """
        import pyarrow.dataset as ds

        from arrowlog.scan.dataset import RowDataset

        found = self._found()
        if self._arrow_can(found):
            return RowDataset.of(found.dataset, lambda: self._explained(found.fragments))
        return ds.dataset(pa.Table.from_batches(self._batches(found), self.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows a batch at a time, never all of them in memory."""
        yield from self._batches(self._found())

    def check(self) -> None:
        """Refuse now what reading would refuse later, for those who read elsewhere."""
        self.check_files()
        matching(self.predicate, self.schema.empty_table())

    def check_files(self) -> None:
        """Refuse files that nobody could read with the table."""
        self._check_readable()
        outside = self.files.filter(pc.match_substring(self.files["key"], "://"))
        if outside.num_rows:
            _elsewhere(outside["key"][0].as_py())

    def to_polars(self) -> pl.LazyFrame:
        """A lazy frame: nothing is read before it is collected, and then only what it needs."""
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
            left = n_rows
            for batch in self._batches(self._found(), names):
                found = pl.DataFrame(pl.from_arrow(batch))
                found = found if left is None else found.head(left)
                left = None if left is None else left - found.height
                yield found if predicate is None else found.filter(predicate)
                if left == 0:
                    return

        return register_io_source(source, schema=frame.schema)

    def _check_polars(self) -> None:
        """Refuse a type that polars would end the whole process's query for."""
        for item in self.schema:
            if pa.types.is_interval(item.type):
                raise InvalidRequest(
                    f"Column {item.name!r} has type {item.type}, which polars does not have.",
                    next="Use `to_arrow_dataset()` or `to_duckdb(con)`.",
                )

    def to_duckdb(self, connection: Any) -> Any:
        """A relation on the user's own connection, read when it is asked for something.

        `DataFileError` if the footer of a file cannot be read. What fails later is raised by DuckDB
        as its own exception, whose text has the words of ours.
        """
        from arrowlog.scan.dataset import DuckRows

        found = self._found()
        if self._arrow_can(found):
            rows = DuckRows.of(found.dataset, lambda: self._explained(found.fragments))
            return connection.from_arrow(rows)
        matching(self.predicate, self.schema.empty_table())  # refuse now what cannot be evaluated
        return connection.from_arrow(_Stream(self))

    def _arrow_can(self, found: _Found) -> bool:
        """Whether a dataset of Arrow has the rows: all of the predicate, and every column."""
        names = Spellings(self.schema, self.partition_columns)
        with self._explained(found.fragments):
            odd = names.any(list(found.fragments.values()))
            self._failures().check_types(found.fragments)
        return found.rest is None and not odd

    def _failures(self) -> ReadFailures:
        return ReadFailures(
            self.root, self.options, self.version, self.schema, self.partition_columns
        )

    @contextmanager
    def _explained(self, fragments: Mapping[str, ds.Fragment]) -> Iterator[None]:
        """Raise errors of ours for whatever reading some files leads to."""
        try:
            yield
        except ArrowlogError:
            raise
        except Exception as error:
            found = self._failures().explained(error, fragments)
            if found is error:
                raise
            raise found from None  # an engine's words may hold what no message may show

    def _found(self) -> _Found:
        """The files with what Arrow can filter, and what is left of the predicate."""
        import pyarrow.dataset as ds

        # Old files have times of a kind that Arrow would take for nanoseconds, from 1677 to 2262.
        form = ds.ParquetFileFormat(
            read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        )
        system, base = filesystem(self.root, self.options)
        fragments = self._fragments(form, system, base)
        whole: ds.Dataset = ds.FileSystemDataset(
            list(fragments.values()), self.schema, form, filesystem=system
        )
        if self.predicate.tree == TRUE:
            return _Found(whole, None, fragments)
        said, rest = pushed_down(self.predicate.tree, self.schema)
        for filter_ in said:
            whole = whole.filter(filter_)
        return _Found(whole, _predicate(rest) if rest else None, fragments)

    def _fragments(self, form: ds.FileFormat, system: Any, base: str) -> dict[str, ds.Fragment]:
        self._check_readable()
        codes, combinations = self._combinations()
        promises = [self._promise(values) for values in combinations]
        return {
            key: form.make_fragment(
                key if _elsewhere(key) else f"{base}/{key}",
                system,
                partition_expression=promises[code],
            )
            for key, code in zip(self.files["key"].to_pylist(), codes, strict=True)
        }

    def _combinations(self) -> tuple[list[int], list[list[pa.Scalar]]]:
        """Which combination of partition values each file has, and what they are.

        Told apart by their bits: 0.0 and -0.0 are equal, and yet two values.
        """
        count = self.files.num_rows
        columns = [
            self.files[f"partition.{name}"].combine_chunks() for name in self.partition_columns
        ]
        codes = same(0, pa.int64(), count)
        for column in columns:
            each = column.dictionary_encode(null_encoding="encode")
            wide = pc.multiply(codes, number(len(each.dictionary) + 1))
            codes = pc.add(wide, pc.cast(each.indices, pa.int64())).dictionary_encode().indices
            codes = pc.cast(codes, pa.int64())
        numbered = pa.table({"code": codes, "row": pa.array(range(count), pa.int64())})
        first = numbered.group_by("code").aggregate([("row", "min")]).sort_by("code")["row_min"]
        rows = [[column[row] for column in columns] for row in first.to_pylist()]
        return codes.to_pylist(), rows

    def _promise(self, values: Sequence[pa.Scalar]) -> pc.Expression:
        """What the log says of a file, as Arrow takes it."""
        promise = pc.scalar(True)
        for name, value in zip(self.partition_columns, values, strict=True):
            column = pc.field(name)
            promise &= column == value if value.is_valid else column.is_null()
        return promise

    def _check_readable(self) -> None:
        bad = self.files.filter(self.files["unreadable"])
        if bad.num_rows:
            raise LogCorrupt(
                f"a partition value of {bad['key'][0].as_py()} is not of its column's type, so"
                " nobody can say which rows it has.",
                next="Plan without that file, or repair its add in the log.",
            )

    def _batches(self, found: _Found, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        wanted = list(self.schema.names) if names is None else names
        # Not around `yield`: what the caller does with a batch is no failed read.
        batches = self._read(found, wanted)
        while True:
            with self._explained(found.fragments):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _read(self, found: _Found, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        rest = found.rest
        needed = wanted if rest is None else [*wanted, *sorted(rest.columns - set(wanted))]
        spellings = Spellings(self.schema, self.partition_columns)
        scanner = found.dataset.scanner(columns=needed, batch_size=_BATCH_ROWS)
        batches = (
            tagged.record_batch
            for tagged in scanner.scan_batches()
            if not spellings.of(tagged.fragment)  # else Arrow has not found its columns
        )
        if rest is None:
            yield from (batch.select(wanted) for batch in batches)
        else:
            for table in _gathered(batches):
                yield from table.filter(matching(rest, table)).select(wanted).to_batches()
        for fragment in found.fragments.values():
            if spellings.of(fragment):
                for table in spellings.tables(fragment):
                    right = table.filter(matching(self.predicate, table))
                    yield from right.select(wanted).to_batches()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together: to plan a long condition costs more than to read a small batch."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _BATCH_ROWS:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


class _Found(NamedTuple):
    """Files as Arrow reads them, what is left of the predicate, and the files by key."""

    dataset: ds.Dataset
    rest: Predicate | None
    fragments: dict[str, ds.Fragment]


class _Stream:
    """Rows as engines take them that ask anew each time, and never for all of them at once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A stream of the rows from the first one on."""
        reader = pa.RecordBatchReader.from_batches(self._rows.schema, self._rows.batches())
        return reader.__arrow_c_stream__(requested_schema)


def _unpickled(
    root: str,
    schema: pa.Schema,
    partition_columns: tuple[str, ...],
    predicate: Predicate,
    data: bytes,
    version: int,
) -> Rows:
    with pa.ipc.open_stream(data) as reader:
        return Rows(root, schema, partition_columns, predicate, reader.read_all(), version)


def _predicate(parts: Sequence[Node]) -> Predicate:
    tree = parts[0] if len(parts) == 1 else Call("and", tuple(parts))
    return Predicate(tree, columns_of(tree), understood=known(tree))


def filesystem(root: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """An Arrow file system for a table's address, and the path of the table in it."""
    from pyarrow import fs

    for scheme in _LOCAL:
        root = root.removeprefix(scheme)
    if "://" not in root:
        return fs.LocalFileSystem(), root
    import fsspec

    given = dict(options)
    if root.startswith(_S3):
        from arrowlog.log.store.s3 import for_s3fs, read_options

        given = for_s3fs(read_options(options))
    system, path = fsspec.core.url_to_fs(root, **given)
    return fs.PyFileSystem(fs.FSSpecHandler(system)), str(path).rstrip("/")


def _elsewhere(key: str) -> bool:
    if "://" in key:
        raise InvalidRequest(
            f"{key} lies outside the table, and cannot be read with it.",
            next="Take `plan.paths` and read that file by itself.",
        )
    return key.startswith("/")

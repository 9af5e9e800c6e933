"""Read the rows of planned files: Parquet through Arrow, partition values from the log.

A column that a file lacks is NULL. Partition columns have the value in the log, whatever the path
or the file contains. Arrow applies the conjuncts of the predicate that it can, so that it skips row
groups; DuckDB evaluates the rest on the batches that Arrow returns.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import number_combinations
from arrowlog.errors import ArrowlogError, InvalidRequest, LogCorrupt
from arrowlog.predicate import TRUE, Predicate, evaluate_predicate, split_pushdown
from arrowlog.scan.data_files import ColumnCaseResolver, ReadErrorTranslator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow.dataset as ds

    from arrowlog.predicate import Node

_BATCH_ROWS = 1 << 17  # rows per batch read, and per evaluation of a predicate
_LOCAL_SCHEMES = ("file://", "local://")
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class RowReader:
    """Files to read, and the columns and predicate to apply.

    `files` has the columns `key` (path relative to the table root), `partition.<column>`, and
    `unreadable` (true if a partition value cannot be parsed). Storage options are neither shown nor
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

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        pushed: Node = TRUE,
        gradual: bool = False,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in record batches, without holding all of them.

        Rows for which `pushed` is not true may be left out; the caller applies that condition.
        `gradual` reads one file first, then twice as many each time, for callers that stop early.
        `options` are those of a `pyarrow.dataset.Scanner`.
        """
        names = list(self.schema.names) if columns is None else list(columns)
        if not gradual:
            yield from self._batches(self._open_source(pushed), names, options)
            return
        start, count = 0, 1
        while start < self.files.num_rows:
            part = replace(self, files=self.files.slice(start, count))
            yield from part.batches(names, pushed=pushed, **options)
            start, count = start + count, count * 2

    def count_rows(self) -> int:
        """Count the rows, from the footers if Arrow can apply the whole predicate."""
        source = self._open_source()
        spellings = ColumnCaseResolver(self.schema, self.partition_columns)
        with self._translate_errors(source.fragments):
            misspelled = spellings.any(list(source.fragments.values()))
            if source.rest is None and not misspelled:
                return int(source.dataset.count_rows())
        return sum(batch.num_rows for batch in self._batches(source, self.schema.names[:1], {}))

    def fragments(self) -> list[ds.Fragment]:
        """The files as fragments of an Arrow dataset, with their partition values."""
        return list(self._open_source().fragments.values())

    def narrow(self, condition: Node) -> RowReader:
        """The same rows: a reader has no statistics by which a condition could skip files."""
        del condition
        return self

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

    def _open_source(self, pushed: Node = TRUE) -> _Source:
        """The files as an Arrow dataset with pushed-down filters, and the remaining predicate.

        Opens no file.
        """
        import pyarrow.dataset as ds

        # Old files have INT96 timestamps. Arrow reads these as nanoseconds by default, which cover
        # only the years 1677 to 2262.
        format_ = ds.ParquetFileFormat(
            read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        )
        filesystem_, base = open_arrow_filesystem(self.root, self.options)
        fragments = self._fragments(format_, filesystem_, base)
        dataset: ds.Dataset = ds.FileSystemDataset(
            list(fragments.values()), self.schema, format_, filesystem=filesystem_
        )
        filters, remaining = self._split(self.predicate.tree)
        for filter_ in (*filters, *self._split(pushed)[0]):
            dataset = dataset.filter(filter_)
        rest = Predicate.from_conjuncts(remaining) if remaining else None
        return _Source(dataset, rest, fragments)

    def _split(self, tree: Node) -> tuple[list[pc.Expression], list[Node]]:
        return ([], []) if tree == TRUE else split_pushdown(tree, self.schema)

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

    def _batches(
        self, source: _Source, wanted: list[str], options: Mapping[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        # Not around `yield`: an error in the caller's code is not a failed read.
        batches = self._read(source, wanted, options)
        while True:
            with self._translate_errors(source.fragments):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _read(
        self, source: _Source, wanted: list[str], options: Mapping[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        rest = source.rest
        needed = wanted if rest is None else [*wanted, *sorted(rest.columns - set(wanted))]
        spellings = ColumnCaseResolver(self.schema, self.partition_columns)
        size = options.get("batch_size", _BATCH_ROWS)
        scanner = source.dataset.scanner(columns=needed, **{**options, "batch_size": size})
        batches = (
            tagged.record_batch
            for tagged in scanner.scan_batches()
            if not spellings.of(tagged.fragment)  # else Arrow reads its columns as NULL
        )
        if rest is None:
            yield from (batch.select(wanted) for batch in batches)
        else:
            for table in _coalesce_batches(batches):
                matched = table.filter(evaluate_predicate(rest, table)).select(wanted)
                yield from matched.to_batches(max_chunksize=size)
        # Files with differently spelled columns, read again with the names mapped.
        for fragment in source.fragments.values():
            if spellings.of(fragment):
                for table in spellings.tables(fragment):
                    matched = table.filter(evaluate_predicate(self.predicate, table))
                    yield from matched.select(wanted).to_batches(max_chunksize=size)


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
    """An opened dataset with pushed-down filters, the remaining predicate, and the files by key."""

    dataset: ds.Dataset
    rest: Predicate | None
    fragments: dict[str, ds.Fragment]


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

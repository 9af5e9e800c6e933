"""Read the rows of planned files: Parquet through Arrow, splits through their own decoder.

Partition values come from the log.

A column that a file lacks is NULL. Partition columns have the value in the log, whatever the path
or the file contains. Arrow applies the conjuncts of the predicate that it can, so that it skips row
groups; DuckDB evaluates the rest on the batches that Arrow returns.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import number_combinations
from arrowlog.errors import ArrowlogError, DataFileError, InvalidRequest, LogCorrupt
from arrowlog.formats.delta import InvalidDeletionVector, mapping_mode
from arrowlog.predicate import (
    TRUE,
    Predicate,
    evaluate_predicate,
    find_searches,
    may_have_nan,
    referenced_columns,
    split_pushdown,
)
from arrowlog.scan.data_files import ColumnCaseResolver, ReadErrorTranslator, name_added_version
from arrowlog.scan.file_rows import (
    VECTOR_PREFIX,
    FileRowReader,
    read_ahead,
    read_deleted_rows,
    unusable_vector,
)
from arrowlog.scan.split_rows import (
    SplitCacheOptions,
    SplitScan,
    bind_to_empty,
    mask_splits,
    refuse_search,
)
from arrowlog.storage import open_store, root_spellings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow.dataset as ds

    from arrowlog.predicate import Node

_BATCH_ROWS = 1 << 17  # rows per batch read, and per evaluation of a predicate
_LOCAL_SCHEMES = ("file://", "local://")
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class RowReader:
    """Files to read, and the columns and predicate to apply.

    `files` has the columns `key` (path relative to the table root), `partition.<column>`, and
    `unreadable` (true if a partition value cannot be parsed); with splits among them, also what the
    log says of splits (`SPLIT_COLUMNS`), and columns `deletionVector.*` if rows of some files are
    deleted. Storage options are neither shown nor pickled.
    """

    root: str
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    predicate: Predicate
    files: pa.Table = field(repr=False)
    version: int
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)
    split_cache: SplitCacheOptions = field(default=SplitCacheOptions(), kw_only=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the selected files, compressed, and no storage options."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, self.files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as out:
            out.write_table(self.files.combine_chunks())
        fields = (self.root, self.schema, self.partition_columns, self.predicate)
        data = sink.getvalue().to_pybytes()
        return _unpickle, (*fields, data, self.version, self.split_cache)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        pushed: Node = TRUE,
        gradual: bool = False,
        on_open: Callable[[int], None] = lambda _: None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in record batches, without holding all of them.

        Rows for which `pushed` is not true may be left out; the caller applies that condition.
        `gradual` reads one file first, then twice as many each time, for callers that stop early.
        `on_open` is called with the number of files before they are read. `options` are those of a
        `pyarrow.dataset.Scanner`.
        """
        names = list(self.schema.names) if columns is None else list(columns)
        if not gradual:
            on_open(self.files.num_rows)
            parquet = self._parquet_part()
            yield from parquet._batches(parquet._open_source(pushed), names, options)  # noqa: SLF001 -- of this class
            yield from self._split_batches(names, options.get("batch_size", _BATCH_ROWS))
            return
        start, count = 0, 1
        while start < self.files.num_rows:
            part = replace(self, files=self.files.slice(start, count))
            yield from part.batches(names, pushed=pushed, on_open=on_open, **options)
            start, count = start + count, count * 2

    def _parquet_part(self) -> RowReader:
        """A reader of the files that are not splits. Raises InvalidRequest for a search in them."""
        splits = mask_splits(self.files["key"])
        count = pc.sum(splits).as_py() or 0
        if count < self.files.num_rows and find_searches(self.predicate.tree):
            first = self.files["key"].filter(pc.invert(splits))[0].as_py()
            refuse_search(self.predicate.tree, first)
        if not count:
            return self
        predicate = self.predicate if count < self.files.num_rows else Predicate.from_tree(TRUE)
        return replace(self, files=self.files.filter(pc.invert(splits)), predicate=predicate)

    def split_scan(self) -> SplitScan | None:
        """A reader of the files that are splits; None if there are none."""
        splits = mask_splits(self.files["key"])
        if not pc.any(splits).as_py():
            return None
        self._check_readable()
        return SplitScan(
            self.root,
            self.options,
            self.split_cache,
            self.schema,
            self.partition_columns,
            self.predicate,
            self.files.filter(splits),
        )

    def _split_batches(self, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        scan = self.split_scan()
        if scan is None:
            return
        tables = scan.batches(columns)
        while True:
            try:
                table = next(tables, None)
            except DataFileError as error:
                store = open_store(self.root, self.options)
                raise name_added_version(store, error, self.version) from error
            if table is None:
                return
            yield from table.to_batches(max_chunksize=batch_rows)

    def count_rows(self) -> int:
        """Count the rows, from footers and indexes if they can answer the whole predicate."""
        scan = self.split_scan()
        if scan is not None:
            found = scan.count_rows()
            parquet = self._parquet_part()
            return found + (parquet.count_rows() if parquet.files.num_rows else 0)
        source = self._open_source()
        spellings = ColumnCaseResolver(self.schema, self.partition_columns)
        with self._translate_errors(source.fragments):
            misspelled = spellings.any(source.plain_fragments)
            plain = source.rest is None and not misspelled and not source.special
            if plain and not self._filters_floats():
                with suppress(pa.ArrowNotImplementedError):  # as in `_scan`
                    return int(source.dataset.count_rows())
        return sum(batch.num_rows for batch in self._batches(source, self.schema.names[:1], {}))

    def _filters_floats(self) -> bool:
        """Whether the predicate has a floating-point column, or a nested one that may contain one.

        Arrow counts all rows of a row group whose bounds satisfy the predicate, NaN included.
        """
        named = referenced_columns(self.predicate.tree)
        kinds = (item.type for item in self.schema if item.name in named)
        return any(may_have_nan(kind) or pa.types.is_nested(kind) for kind in kinds)

    def fragments(self) -> list[ds.Fragment]:
        """The files as fragments of an Arrow dataset, with their partition values.

        Raises InvalidRequest if some are splits, which Arrow cannot read.
        """
        if self.split_scan() is not None:
            raise InvalidRequest(
                "The table has splits, which are not fragments that Arrow can read.",
                next="Read the rows with `to_table`, `to_batches` or `scanner`.",
            )
        self.check_plain()
        return list(self._open_source().fragments.values())

    def check_plain(self) -> None:
        """Raise InvalidRequest if the rows of a file are not simply those of the table."""
        if self._special_files():
            raise InvalidRequest(
                "Rows of the table's files are deleted, or its columns have other names in them.",
                next="Read the rows with the methods of the plan, not file by file.",
            )

    def narrow(self, condition: Node) -> RowReader:
        """The same rows: a reader has no statistics by which a condition could skip files."""
        del condition
        return self

    def check(self) -> None:
        """Raise now what reading would raise later, for engines that read elsewhere."""
        self.check_files()
        evaluate_predicate(*bind_to_empty(self.predicate.tree, self.schema))
        self._parquet_part()

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
        special = self._special_files()
        plain = [fragment for key, fragment in fragments.items() if key not in special]
        dataset: ds.Dataset = ds.FileSystemDataset(
            plain, self.schema, format_, filesystem=filesystem_
        )
        filters, remaining = self._split(self.predicate.tree)
        filters = [*filters, *self._split(pushed)[0]]
        for filter_ in filters:
            dataset = dataset.filter(filter_)
        rest = Predicate.from_conjuncts(remaining) if remaining else None
        return _Source(dataset, rest, fragments, special, (filesystem_, base), filters)

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
        batches = self._scan(source, needed, {**options, "batch_size": size}, spellings)
        if rest is None:
            yield from (batch.select(wanted) for batch in batches)
        else:
            for table in _coalesce_batches(batches):
                matched = table.filter(evaluate_predicate(rest, table)).select(wanted)
                yield from matched.to_batches(max_chunksize=size)
        # Files with differently spelled columns, read again with the names mapped.
        for key, fragment in source.fragments.items():
            if key not in source.special and spellings.of(fragment):
                for table in spellings.tables(fragment):
                    matched = table.filter(evaluate_predicate(self.predicate, table))
                    yield from matched.select(wanted).to_batches(max_chunksize=size)
        yield from self._read_special(source, wanted, size)

    def _scan(
        self,
        source: _Source,
        names: list[str],
        options: Mapping[str, Any],
        spellings: ColumnCaseResolver,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the plain files that pass the pushed-down filters, in the files' order.

        Arrow has no kernels that compare a column of texts with the bounds of a row group in a file
        that was written with views of texts, as delta-rs does now and then. Such a scan is begun
        again with filters on the rows alone, and goes on where it was interrupted: both ways have
        the same rows in the same order.
        """
        num_rows = 0
        try:
            for tagged in source.dataset.scanner(columns=names, **options).scan_batches():
                if not spellings.of(tagged.fragment):  # else Arrow reads its columns as NULL
                    num_rows += tagged.record_batch.num_rows
                    yield tagged.record_batch
        except pa.ArrowNotImplementedError:
            if not source.filters:
                raise
        else:
            return
        where = reduce(and_, source.filters)
        columns = list(self.schema.names)
        for key, fragment in source.fragments.items():
            if key in source.special or spellings.of(fragment):
                continue
            scanner = fragment.scanner(schema=self.schema, columns=columns, **options)
            for batch in scanner.to_batches():
                table = pa.Table.from_batches([batch]).filter(where).select(names)
                yield from table.slice(num_rows).to_batches()
                num_rows = max(num_rows - table.num_rows, 0)

    def _read_special(
        self, source: _Source, wanted: list[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the files with deleted rows or mapped columns, some at a time, in their order."""
        if not source.special:
            return
        files = FileRowReader.of(self.schema, self.partition_columns)
        every = self.predicate.tree == TRUE
        others = set() if every else self.predicate.columns - set(wanted)
        needed = [*wanted, *sorted(others)] or list(self.schema.names[:1])
        filesystem, base = source.place
        roots = root_spellings(self.root)

        def read(key: str) -> Iterator[pa.Table]:
            row = source.special[key]
            deleted = read_deleted_rows(row, filesystem, base, roots, self.version)
            fragment, values = source.fragments[key], row["partition"]
            try:
                yield from files.tables(fragment, values, deleted, needed, size, source.filters)
            except InvalidDeletionVector as error:
                raise unusable_vector(key, error, self.version) from None

        readers = [partial(read, key) for key in source.special]
        for table in read_ahead(readers, os.cpu_count() or 1):
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
    in it. `filters` are those that are pushed down.
    """

    dataset: ds.Dataset
    rest: Predicate | None
    fragments: dict[str, ds.Fragment]
    special: dict[str, dict[str, Any]]
    place: tuple[Any, str]
    filters: list[pc.Expression]

    @property
    def plain_fragments(self) -> list[ds.Fragment]:
        """The files in the dataset."""
        return [fragment for key, fragment in self.fragments.items() if key not in self.special]


def _unpickle(
    root: str,
    schema: pa.Schema,
    partition_columns: tuple[str, ...],
    predicate: Predicate,
    data: bytes,
    version: int,
    split_cache: SplitCacheOptions,
) -> RowReader:
    with pa.ipc.open_stream(data) as reader:
        files = reader.read_all()
    return RowReader(
        root, schema, partition_columns, predicate, files, version, split_cache=split_cache
    )


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

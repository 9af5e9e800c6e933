"""The rows of planned files: Parquet read by Arrow, partition columns from the log.

Columns a file does not have are NULL, partition columns are what the log says whatever the path or
the file does, and the predicate is applied. What Arrow can say of it goes into the reader; the
rest is evaluated by DuckDB on what the reader gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.scan.filters import to_arrow
from arrowlog.scan.predicate import Predicate, matching
from arrowlog.scan.tree import TRUE, Call, columns_of, conjuncts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled small: only its own files, and nothing secret."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, self.files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as out:
            out.write_table(self.files.combine_chunks())
        given = (self.root, self.schema, self.partition_columns, self.predicate)
        return _unpickled, (*given, sink.getvalue().to_pybytes())

    def dataset(self) -> ds.Dataset:
        """An Arrow dataset of the rows."""
        import pyarrow.dataset as ds

        whole, rest = self._filtered()
        if rest is None:
            return whole
        return ds.dataset(pa.Table.from_batches(self._batches(whole, rest), self.schema))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows a batch at a time, never all of them in memory."""
        yield from self._batches(*self._filtered())

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
        import polars as pl
        from polars.io.plugins import register_io_source

        frame = pl.DataFrame(pl.from_arrow(self.schema.empty_table()))

        def source(
            with_columns: list[str] | None,
            predicate: pl.Expr | None,
            n_rows: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            del batch_size
            whole, rest = self._filtered()
            names = list(self.schema.names) if with_columns is None else list(with_columns)
            left = n_rows
            for batch in self._batches(whole, rest, names):
                found = pl.DataFrame(pl.from_arrow(batch))
                found = found if left is None else found.head(left)
                left = None if left is None else left - found.height
                yield found if predicate is None else found.filter(predicate)
                if left == 0:
                    return

        return register_io_source(source, schema=frame.schema)

    def to_duckdb(self, connection: Any) -> Any:
        """A relation on the user's own connection."""
        return connection.from_arrow(self.dataset())

    def _filtered(self) -> tuple[ds.Dataset, Predicate | None]:
        """The files with what Arrow can filter, and what is left of the predicate."""
        whole = self._whole()
        if self.predicate.source is not None:
            return whole, self.predicate
        if self.predicate.tree == TRUE:
            return whole, None
        parts = conjuncts(self.predicate.tree)
        said = [to_arrow(part, self.schema) for part in parts]
        rest = [part for part, filter_ in zip(parts, said, strict=True) if filter_ is None]
        for filter_ in said:
            whole = whole if filter_ is None else whole.filter(filter_)
        return whole, _predicate(rest) if rest else None

    def _whole(self) -> ds.Dataset:
        import pyarrow.dataset as ds

        self._check_readable()
        system, base = filesystem(self.root, self.options)
        form = ds.ParquetFileFormat()
        values = [self.files[f"partition.{name}"] for name in self.partition_columns]
        fragments = []
        known: dict[tuple[Any, ...], Any] = {}
        for row, key in enumerate(self.files["key"].to_pylist()):
            combination = tuple(column[row] for column in values)
            if combination not in known:
                known[combination] = self._promise(combination)
            path = key if _elsewhere(key) else f"{base}/{key}"
            fragments.append(
                form.make_fragment(path, system, partition_expression=known[combination])
            )
        return ds.FileSystemDataset(fragments, self.schema, form, filesystem=system)

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

    def _batches(
        self, whole: ds.Dataset, rest: Predicate | None, names: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = list(self.schema.names) if names is None else names
        needed = wanted if rest is None else [*wanted, *sorted(rest.columns - set(wanted))]
        scanner = whole.scanner(columns=needed, batch_size=_BATCH_ROWS)
        for batch in scanner.to_batches():
            if rest is None:
                yield batch.select(wanted)
                continue
            table = pa.Table.from_batches([batch])
            yield from table.filter(matching(rest, table)).select(wanted).to_batches()


def _unpickled(
    root: str,
    schema: pa.Schema,
    partition_columns: tuple[str, ...],
    predicate: Predicate,
    data: bytes,
) -> Rows:
    with pa.ipc.open_stream(data) as reader:
        return Rows(root, schema, partition_columns, predicate, reader.read_all())


def _predicate(parts: Sequence[Node]) -> Predicate:
    tree = parts[0] if len(parts) == 1 else Call("and", tuple(parts))
    return Predicate(tree, columns_of(tree), understood=True)


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

"""Scan plans: the files of one table version that may contain rows matching a predicate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_int64, repeat_bool
from arrowlog.config import parse_bytes
from arrowlog.display import format_bytes, format_count, format_html_card, format_html_table
from arrowlog.errors import InvalidRequest
from arrowlog.predicate import Predicate, parse_predicate
from arrowlog.scan.data_skipping import (
    compute_skip_mask,
    count_matching_rows,
    find_extreme,
    invert_skip_mask,
    required_columns,
)
from arrowlog.scan.explain import Explanation, explain_plan
from arrowlog.scan.row_reader import RowReader
from arrowlog.scan.stats_predicate import StatsPredicateBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb
    import polars as pl
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.scan.stats_predicate import StatsPredicate
    from arrowlog.snapshot import Snapshot

_HTML_MAX_PATHS = 10


def plan_scan(
    snapshot: Snapshot,
    where: Any,
    root: str,
    options: Mapping[str, Any] | None = None,
    *,
    now_micros: int | None = None,
) -> ScanPlan:
    """Plan a scan of `snapshot`: parse `where` and skip files by their statistics.

    `where` is any predicate form that `parse` accepts; `now_micros` is the value of
    `current_timestamp`. `root` and `options` (the table's URI and storage options) are used only
    when rows are read. Raises InvalidRequest for an invalid predicate.
    """
    stats = snapshot.columns
    predicate = parse_predicate(where, stats.schema, now_micros=now_micros)
    stats_predicate = StatsPredicateBuilder(stats.schema, snapshot.partition_columns).rows(
        predicate.tree
    )
    candidates = _skip_row_groups(snapshot, predicate)
    candidate_stats = candidates.columns
    # Reads a deferred checkpoint, and falls back to log replay if it is damaged: the set of
    # candidate files is fixed only after this call.
    candidate_stats.prepare(required_columns(stats_predicate))
    mask = invert_skip_mask(
        compute_skip_mask(stats_predicate, candidate_stats), candidates.num_files
    )
    return ScanPlan(
        snapshot, predicate, stats_predicate, mask, root, options or {}, among=candidates
    )


def _skip_row_groups(snapshot: Snapshot, predicate: Predicate) -> Snapshot:
    """Restrict a snapshot to the groups of files that may contain matching files.

    The groups are the row groups of a Parquet checkpoint or the manifests of a table state; the
    ranges of their values are known. At this level a partition column is an ordinary column: a
    group covers a range of its values. Returns the snapshot unchanged if it is in memory already
    or if reading only some groups would save little.
    """
    source = snapshot.state.source
    groups = source.row_group_stats(snapshot.schema, snapshot.partition_columns)
    if groups is None:
        return snapshot
    stats_predicate = StatsPredicateBuilder(groups.schema, ()).rows(predicate.tree)
    groups.prepare(required_columns(stats_predicate))
    keep_mask = invert_skip_mask(compute_skip_mask(stats_predicate, groups), groups.num_rows)
    chosen = groups.choose_groups(keep_mask)
    return snapshot if chosen is None else snapshot.only(chosen)


@dataclass(frozen=True)
class ScanPlan:
    """The files of one version that may contain matching rows; never one too few.

    `mask` selects from the files of `among`, the snapshot restricted to the checkpoint row groups
    that may match: no file outside `among` can match. Sizes, paths and explanations are computed on
    demand.
    """

    snapshot: Snapshot = field(repr=False)
    predicate: Predicate
    test: StatsPredicate = field(repr=False)
    mask: pa.Array = field(repr=False, compare=False)
    root: str = field(repr=False)
    _options: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)
    among: Snapshot = field(repr=False, compare=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the storage options out of the pickle: they may hold credentials."""
        return {**self.__dict__, "_options": {}}

    @property
    def version(self) -> int:
        """The table version this plan reads."""
        return self.snapshot.version

    @property
    def total_files(self) -> int:
        """Number of live files in the table at this version."""
        return self.snapshot.num_files

    @cached_property
    def num_files(self) -> int:
        """Number of files to read."""
        return int(self.mask.true_count)

    @cached_property
    def size_bytes(self) -> int:
        """Total size in bytes of the files to read."""
        return int(pc.sum(self._selected("size")).as_py() or 0) if self.num_files else 0

    @cached_property
    def num_records(self) -> int | None:
        """Rows in the files to read, matching or not; None if a file does not record its count."""
        rows = self.among.columns.num_records().filter(self.mask)
        return None if rows.null_count else int(pc.sum(rows).as_py() or 0)

    @cached_property
    def paths(self) -> list[str]:
        """Paths of the files to read, as recorded in the log."""
        paths: list[str] = self._selected("path").to_pylist() if self.num_files else []
        return paths

    @cached_property
    def files(self) -> pa.Table:
        """The files to read with every column of `Snapshot.files`."""
        schema, partition_columns = self.snapshot.schema, self.snapshot.partition_columns
        return self.among.state.source.files(schema, partition_columns, self.mask)

    def _selected(self, name: str) -> pa.ChunkedArray:
        return self.among.state.column(name).filter(self.mask)

    def count(self) -> int | None:
        """Number of matching rows if statistics determine it exactly, else None."""
        return count_matching_rows(self.among, self.predicate, self.mask)

    def min(self, column: str) -> Any:
        """Minimum of a column over the matching rows if statistics give it exactly, else None."""
        return find_extreme(self.among, self.predicate, self.mask, column, upper=False)

    def max(self, column: str) -> Any:
        """Maximum of a column over the matching rows if statistics give it exactly, else None."""
        return find_extreme(self.among, self.predicate, self.mask, column, upper=True)

    def explain(self) -> Explanation:
        """Report per clause how many files it skipped, and why the other files were kept."""
        if self.among is self.snapshot:
            return explain_plan(self.snapshot, self.predicate, self.mask)
        # The report covers every file, including those in row groups that planning skipped.
        self.snapshot.columns.prepare(required_columns(self.test))
        mask = invert_skip_mask(
            compute_skip_mask(self.test, self.snapshot.columns), self.total_files
        )
        return explain_plan(self.snapshot, self.predicate, mask)

    def splits(self, target_size: int | str = "128MB") -> list[Split]:
        """Divide the files into splits of about `target_size` bytes each.

        A split holds whole, consecutive files, pickles small and is pinned to this version. Raises
        InvalidRequest if `target_size` is not a size.
        """
        target = _parse_target_size(target_size)
        if not self.num_files:
            return []
        sizes = self._selected("size")
        # The same number of splits as with `target`, but of even size.
        split_size = max(1, -(-self.size_bytes // max(1, -(-self.size_bytes // target))))
        # A file belongs to the split that contains its last byte.
        last_bytes = pc.subtract(pc.cumulative_sum(sizes), make_int64(1))
        split_numbers = pc.divide(
            pc.max_element_wise(last_bytes, make_int64(0)), make_int64(split_size)
        )
        split_ends = pc.run_end_encode(split_numbers.combine_chunks()).run_ends.to_pylist()
        files = self._rows.files.append_column("size", sizes)
        return [
            Split(self.version, self._rows_of(files.slice(start, end - start)))
            for start, end in pairwise([0, *split_ends])
        ]

    def _rows_of(self, files: pa.Table) -> RowReader:
        return replace(self._rows, files=files)

    @cached_property
    def _rows(self) -> RowReader:
        snapshot = self.among
        partition_columns = snapshot.partition_columns
        snapshot.columns.prepare(partition_columns)
        columns = {"key": self._selected("key") if self.num_files else pa.nulls(0, pa.string())}
        unreadable = repeat_bool(False, len(self.mask))
        for name in partition_columns:
            columns[f"partition.{name}"] = snapshot.columns.partition(name).filter(self.mask)
            unreadable = pc.or_(unreadable, snapshot.columns.unreadable(name))
        columns["unreadable"] = unreadable.filter(self.mask)
        files = pa.table(columns)
        return RowReader(
            self.root,
            snapshot.columns.schema,
            partition_columns,
            self.predicate,
            files,
            self.version,
            self._options,
        )

    def scanned_files(self) -> pa.Table:
        """The files to read, for external engines: key, partition values, size, modification time.

        Raises LogCorrupt if a partition value is unreadable, InvalidRequest if a file lies outside
        the table.
        """
        self._rows.check_files()
        files = self._rows.files
        empty = pa.nulls(0, pa.int64())
        for name in ("size", "modificationTime"):
            files = files.append_column(name, self._selected(name) if self.num_files else empty)
        return files

    def to_arrow_dataset(self) -> ds.Dataset:
        """The matching rows as a `pyarrow.dataset.Dataset`."""
        return self._rows.dataset()

    def to_polars(self) -> pl.LazyFrame:
        """The matching rows as a polars LazyFrame."""
        return self._rows.to_polars()

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """The matching rows as a relation on the given DuckDB connection."""
        return self._rows.to_duckdb(connection)

    def to_spark(self, spark: SparkSession, *, native: bool | None = None) -> DataFrame:
        """The matching rows as a DataFrame of a Spark session, read when Spark executes it.

        Uses Spark's own Parquet reader where possible and Python workers elsewhere. `native=True`
        or `native=False` forces one of them.
        """
        from arrowlog.spark.frame import plan_to_dataframe

        return plan_to_dataframe(self, self._rows, spark, native=native)

    def __repr__(self) -> str:
        """Predicate, version, files and bytes on one line."""
        return (
            f"ScanPlan({str(self.predicate)!r}, version={self.version},"
            f" files={self.num_files:,} of {self.total_files:,}, bytes={self.size_bytes:,})"
        )

    def _repr_html_(self) -> str:
        """Summary card for notebooks: version, files, bytes, rows and the first paths."""
        facts = [
            ("version", str(self.version)),
            ("files", f"{self.num_files:,} of {self.total_files:,}"),
            (
                "bytes",
                f"{format_bytes(self.size_bytes)} of {format_bytes(self.snapshot.size_bytes)}",
            ),
            ("rows in them", format_count(self.num_records)),
        ]
        shown = [[path] for path in self._selected("path").slice(0, _HTML_MAX_PATHS).to_pylist()]
        hidden = self.num_files - len(shown)
        files = format_html_table([f"path{f' (and {hidden:,} more)' if hidden else ''}"], shown)
        return format_html_card(f"scan {self.predicate}", facts, files if shown else "")


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a plan for one worker.

    Contains everything that reading its rows needs except storage options: pickling drops them, so
    pass them again on the worker.
    """

    version: int
    rows: RowReader = field(repr=False)

    @property
    def paths(self) -> list[str]:
        """Paths of the files in this split, relative to the table root."""
        paths: list[str] = self.rows.files["key"].to_pylist()
        return paths

    @property
    def size_bytes(self) -> int:
        """Total size in bytes of the files in this split."""
        return int(pc.sum(self.rows.files["size"]).as_py())

    def to_arrow_dataset(self, storage_options: Mapping[str, Any] | None = None) -> ds.Dataset:
        """The matching rows as an Arrow dataset; `storage_options` replace the plan's."""
        return self._with_options(storage_options).dataset()

    def batches(self, storage_options: Mapping[str, Any] | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over the matching rows in record batches, without holding all of them."""
        return self._with_options(storage_options).batches()

    def to_polars(self, storage_options: Mapping[str, Any] | None = None) -> pl.LazyFrame:
        """The matching rows as a polars LazyFrame; `storage_options` replace the plan's."""
        return self._with_options(storage_options).to_polars()

    def _with_options(self, options: Mapping[str, Any] | None) -> RowReader:
        return self.rows if options is None else replace(self.rows, options=options)


def _parse_target_size(size: int | str) -> int:
    try:
        return parse_bytes(size)
    except ValueError:
        raise InvalidRequest(
            f"{size!r} is not a size in bytes.", next='Give bytes, or text such as "128MB".'
        ) from None

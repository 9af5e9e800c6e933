"""Scan plans: the files of one table version that may contain rows matching a predicate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import INT_MAX, make_scalar, repeat_bool, sum_exactly
from arrowlog.config import parse_bytes
from arrowlog.display import format_bytes, format_count, format_html_card, format_html_table
from arrowlog.errors import InvalidRequest, LogCorrupt
from arrowlog.fork_safety import OnFirstUse
from arrowlog.predicate import (
    TRUE,
    Predicate,
    find_searches,
    parse_predicate,
    search_operands,
    split_conjuncts,
)
from arrowlog.scan.data_skipping import (
    compute_skip_mask,
    count_matching_rows,
    find_extreme,
    invert_skip_mask,
    required_columns,
)
from arrowlog.scan.read_reports import ReadLog, ReadReport
from arrowlog.scan.readable_rows import ReadableRows
from arrowlog.scan.split_rows import SPLIT_COLUMNS, SplitCacheOptions, mask_splits
from arrowlog.scan.stats_predicate import StatsPredicateBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from arrowlog.predicate import Node
    from arrowlog.scan.explain import Explanation
    from arrowlog.scan.lazy_readers import LazyRows
    from arrowlog.scan.row_reader import RowReader
    from arrowlog.scan.stats_predicate import StatsPredicate
    from arrowlog.snapshot import FileStats, Snapshot

Engine = Literal["arrow", "duckdb"]
ENGINES = ("arrow", "duckdb")
_HTML_MAX_PATHS = 10


def plan_scan(
    snapshot: Snapshot,
    where: Any,
    root: str,
    options: Mapping[str, Any] | None = None,
    *,
    now_micros: int | None = None,
    split_cache: SplitCacheOptions | None = None,
    engine: Engine = "arrow",
    read_log: ReadLog | None = None,
) -> ScanPlan:
    """Plan a scan of `snapshot`: parse `where` and skip files by their statistics.

    `where` is any predicate form that `parse` accepts; `now_micros` is the value of
    `current_timestamp`; `engine` computes which files to skip. `root` and `options` (the table's
    URI and storage options) are used only when rows are read. Raises InvalidRequest for an invalid
    predicate. `read_log` receives the reports of all reads.
    """
    if engine not in ENGINES:
        raise InvalidRequest(f"{engine!r} is not an engine.", next='Use "arrow" or "duckdb".')
    stats = snapshot.columns
    predicate = parse_predicate(where, stats.schema, now_micros=now_micros)
    if not predicate.understood:  # as a predicate with a search never is
        _check_searches(predicate, stats.schema, snapshot.partition_columns)
    stats_predicate = StatsPredicateBuilder(stats.schema, snapshot.partition_columns).rows(
        predicate.tree
    )
    if engine == "duckdb":
        from arrowlog.scan.sql_plan import query_files

        candidates, mask = snapshot, query_files(stats_predicate, snapshot)
    else:
        candidates = _skip_row_groups(snapshot, predicate)
        # Reads a deferred checkpoint, and falls back to log replay if it is damaged: the set of
        # candidate files is fixed only after this call.
        candidates.columns.prepare(required_columns(stats_predicate))
        skipped = compute_skip_mask(stats_predicate, candidates.columns)
        mask = invert_skip_mask(skipped, candidates.num_files)
    return ScanPlan(
        snapshot,
        predicate,
        stats_predicate,
        mask,
        root,
        options or {},
        among=candidates,
        split_cache=split_cache or SplitCacheOptions(),
        engine=engine,
        read_log=ReadLog(read_log),
    )


def _check_searches(
    predicate: Predicate, schema: pa.Schema, partition_columns: Sequence[str]
) -> None:
    """Raise InvalidRequest for a search that is invalid or of a column without an index."""
    from arrowlog.splits import check_query

    for search in find_searches(predicate.tree):
        check_query(*search_operands(search), schema, partition_columns)


def _skip_row_groups(snapshot: Snapshot, predicate: Predicate) -> Snapshot:
    """Restrict a snapshot to the groups of files that may contain matching files.

    The groups are the row groups of a Parquet checkpoint or the manifests of a table state; the
    ranges of their values are known. At this level a partition column is an ordinary column: a
    group covers a range of its values. Returns the snapshot unchanged if it is in memory already
    or if reading only some groups would save little.
    """
    source = snapshot.state.source
    groups = source.row_group_stats(snapshot.schema, snapshot.partition_columns)
    if predicate.tree == TRUE:
        return snapshot

    def keep(groups: FileStats) -> pa.Array:
        stats_predicate = StatsPredicateBuilder(groups.schema, ()).rows(predicate.tree)
        groups.prepare(required_columns(stats_predicate))
        return invert_skip_mask(compute_skip_mask(stats_predicate, groups), groups.num_rows)

    if groups is None:
        narrowed = source.narrowed(snapshot.schema, snapshot.partition_columns, keep)
        return snapshot.restricted_to(narrowed)
    chosen = groups.choose_groups(keep(groups))
    return snapshot if chosen is None else snapshot.only(chosen)


@dataclass(frozen=True)
class ScanPlan(ReadableRows):
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
    split_cache: SplitCacheOptions = field(
        repr=False, compare=False, kw_only=True, default=SplitCacheOptions()
    )
    engine: Engine = field(repr=False, compare=False, kw_only=True, default="arrow")
    read_log: ReadLog = field(repr=False, compare=False, kw_only=True, default_factory=ReadLog)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the storage options out of the pickle: they may hold credentials."""
        return {**self.__dict__, "_options": {}}

    @property
    def version(self) -> int:
        """The table version this plan reads."""
        return self.snapshot.version

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.snapshot.columns.schema

    @property
    def total_files(self) -> int:
        """Number of live files in the table at this version."""
        return self.snapshot.num_files

    @OnFirstUse
    def num_files(self) -> int:
        """Number of files to read."""
        return int(self.mask.true_count)

    @OnFirstUse
    def size_bytes(self) -> int:
        """Total size in bytes of the files to read."""
        return sum_exactly(self._selected("size")) if self.num_files else 0

    @OnFirstUse
    def num_records(self) -> int | None:
        """Rows in the files to read, matching or not; None if a file does not record its count."""
        rows = self.among.columns.num_records().filter(self.mask)
        return None if rows.null_count else sum_exactly(rows)

    @OnFirstUse
    def paths(self) -> list[str]:
        """Paths of the files to read, as recorded in the log."""
        paths: list[str] = self._selected("path").to_pylist() if self.num_files else []
        return paths

    @OnFirstUse
    def files(self) -> pa.Table:
        """The files to read with every column of `Snapshot.files`."""
        schema, partition_columns = self.snapshot.schema, self.snapshot.partition_columns
        return self.among.state.source.files(schema, partition_columns, self.mask)

    @OnFirstUse
    def sql(self) -> str:
        """The DuckDB query that selects the paths of these files, for `Table.connect()`.

        It reads `file_bounds_at(version)`, whose columns `docs/reference/sql-views.md` describes.
        A file is dropped only if a condition is FALSE; an unknown bound makes it NULL.
        """
        from arrowlog.scan.sql_plan import write_file_query

        return write_file_query(
            self.test,
            self.schema,
            self.snapshot.partition_columns,
            version=self.version,
            predicate=str(self.predicate),
        )

    def _selected(self, name: str) -> pa.ChunkedArray:
        return self.among.state.column(name).filter(self.mask)

    def count(self) -> int | None:
        """Number of matching rows if statistics and indexes determine it exactly, else None.

        The index of a split counts the rows of a search, if statistics decide the other conjuncts.
        """
        conjuncts = [] if self.predicate.tree == TRUE else split_conjuncts(self.predicate.tree)
        searches = [part for part in conjuncts if find_searches(part)]
        if not searches:
            return count_matching_rows(self.among, self.predicate, self.mask)
        others = Predicate.from_conjuncts([part for part in conjuncts if part not in searches])
        if count_matching_rows(self.among, others, self.mask) is None:
            return None
        if not self.num_files:
            return 0
        found = replace(self.row_reader, predicate=Predicate.from_conjuncts(searches))
        scan = found.split_scan()
        if scan is None or scan.files.num_rows < self.num_files or not scan.is_indexed():
            return None
        return scan.count_rows()

    def min(self, column: str) -> Any:
        """Minimum of a column over the matching rows if statistics give it exactly, else None."""
        return find_extreme(self.among, self.predicate, self.mask, column, upper=False)

    def max(self, column: str) -> Any:
        """Maximum of a column over the matching rows if statistics give it exactly, else None."""
        return find_extreme(self.among, self.predicate, self.mask, column, upper=True)

    def explain(self) -> Explanation:
        """Report per clause how many files it skipped, and why the other files were kept.

        Searches are run, to report how many documents of how many splits they match. After rows
        were read through a lazy reader, the explanation also has the filters that engines pushed
        down, and how many files they opened.
        """
        scan = self.row_reader.split_scan() if find_searches(self.predicate.tree) else None
        searches = () if scan is None else tuple(map(str, scan.results()))
        return replace(self._explain_files(), searches=searches, reads=tuple(self.reads))

    def _explain_files(self) -> Explanation:
        from arrowlog.scan.explain import explain_plan

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
        # A file belongs to the split that contains its last byte. Totals that exceed 64 bits are
        # added up as doubles, which suffices to divide them.
        kind = pa.int64() if self.size_bytes <= INT_MAX else pa.float64()
        ends = pc.cumulative_sum(pc.cast(sizes, kind, safe=False))
        last_bytes = pc.subtract(ends, make_scalar(1, kind))
        split_numbers = pc.divide(
            pc.max_element_wise(last_bytes, make_scalar(0, kind)), make_scalar(split_size, kind)
        )
        if kind == pa.float64():
            split_numbers = pc.floor(split_numbers)
        split_ends = pc.run_end_encode(split_numbers.combine_chunks()).run_ends.to_pylist()
        files = self.row_reader.files.append_column("size", sizes)
        return [
            Split(self.version, self._reader_of(files.slice(start, end - start)))
            for start, end in pairwise([0, *split_ends])
        ]

    def _reader_of(self, files: pa.Table) -> RowReader:
        return replace(self.row_reader, files=files)

    @OnFirstUse
    def row_reader(self) -> RowReader:
        """The reader of the matching rows."""
        from arrowlog.scan.row_reader import RowReader  # a plan of files needs none

        snapshot = self.among
        partition_columns = snapshot.partition_columns
        snapshot.columns.prepare(partition_columns)
        columns = {"key": self._selected("key") if self.num_files else pa.nulls(0, pa.string())}
        columns = self._locate(columns)
        unreadable = repeat_bool(False, len(self.mask))
        for name in partition_columns:
            columns[f"partition.{name}"] = snapshot.columns.partition(name).filter(self.mask)
            unreadable = pc.or_(unreadable, snapshot.columns.unreadable(name))
        columns["unreadable"] = unreadable.filter(self.mask)
        if pc.any(mask_splits(columns["key"])).as_py():
            columns |= self._split_columns()
        files = pa.table(columns)
        return RowReader(
            self.root,
            snapshot.columns.schema,
            partition_columns,
            self.predicate,
            files,
            self.version,
            self._options,
            split_cache=self.split_cache,
        )

    def _locate(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Replace keys by the paths at which files are read, with their deletion vectors."""
        keys = columns["key"]
        located = self.snapshot.state.format.paths_of(keys)
        if located is keys:
            return columns
        if pc.count_distinct(located).as_py() != len(located):
            raise LogCorrupt(
                "a file is live with two deletion vectors, so its rows are unknown.",
                next="Repair the log with the program that wrote it.",
                version=self.version,
            )
        from arrowlog.formats.delta import VECTOR_COLUMNS

        vectors = {f"deletionVector.{name}": name for name in VECTOR_COLUMNS}
        return {"key": located, **{name: self._selected(name) for name in vectors}}

    def _split_columns(self) -> dict[str, pa.ChunkedArray]:
        """What the log says of the files to read, as far as splits need it."""
        companion = repeat_bool(False, self.num_files)
        for name in ("companionSourceFiles", "companionDeltaVersion", "companionFastFieldMode"):
            found = self._optional(name)
            companion = companion if found is None else pc.or_(companion, pc.is_valid(found))
        footers = self._optional("footerStartOffset")
        none = pa.chunked_array([pa.nulls(self.num_files, pa.int64())])
        records = self.among.columns.num_records().filter(self.mask)
        values = (
            self._selected("size"),
            self._selected("modificationTime"),
            none if footers is None else footers,
            records,
            companion,
        )
        return dict(zip(SPLIT_COLUMNS, values, strict=True))

    def _optional(self, name: str) -> pa.ChunkedArray | None:
        """A field of the files to read; None if no file has it."""
        try:
            return self._selected(name)
        except KeyError:
            return None

    def _lazy_rows(self, predicate: Any = None) -> LazyRows:
        from arrowlog.scan.lazy_readers import LazyRows  # imports pyarrow.dataset, hence pandas

        if predicate is not None:
            plan = self._plan_also(parse_predicate(predicate, self.schema).tree)
            return plan._lazy_rows()  # noqa: SLF001 -- of the same class
        return LazyRows(
            self.schema,
            self._narrow,
            self._check,
            (self.num_files, self.total_files),
            self._explain_also,
            self.read_log,
        )

    @property
    def reads(self) -> list[ReadReport]:
        """What engines have read through the lazy readers of this plan, oldest first."""
        return self.read_log.reports()

    def _explain_also(self, condition: Node) -> Explanation:
        return (self if condition == TRUE else self._plan_also(condition)).explain()

    def _check(self) -> None:
        self.row_reader.check()

    def _narrow(self, condition: Node) -> RowReader:
        """The rows of this plan, in the files that may have a row for which a condition is true.

        The condition itself is not applied to the rows.
        """
        if condition == TRUE:
            return self.row_reader
        return replace(self._plan_also(condition).row_reader, predicate=self.predicate)

    def _plan_also(self, condition: Node) -> ScanPlan:
        """A plan for the rows that match the predicate of this plan and a condition."""
        both = Predicate.from_conjuncts([self.predicate.tree, condition])
        return plan_scan(
            self.snapshot,
            both,
            self.root,
            self._options,
            split_cache=self.split_cache,
            engine=self.engine,
            read_log=self.read_log,
        )

    def scanned_files(self) -> pa.Table:
        """The files to read, for external engines: key, partition values, size, modification time.

        Raises LogCorrupt if a partition value is unreadable, InvalidRequest if a file lies outside
        the table.
        """
        self.row_reader.check_files()
        self.row_reader.check_plain()
        files = self.row_reader.files
        empty = pa.nulls(0, pa.int64())
        for name in ("size", "modificationTime"):
            files = files.append_column(name, self._selected(name) if self.num_files else empty)
        return files

    def to_spark(self, spark: SparkSession, *, native: bool | None = None) -> DataFrame:
        """The matching rows as a DataFrame of a Spark session, read when Spark executes it.

        Uses Spark's own Parquet reader where possible and Python workers elsewhere. `native=True`
        or `native=False` forces one of them.
        """
        from arrowlog.spark.frame import plan_to_dataframe

        return plan_to_dataframe(self, self.row_reader, spark, native=native)

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
        return sum_exactly(self.rows.files["size"])

    def to_arrow_dataset(self, storage_options: Mapping[str, Any] | None = None) -> ds.Dataset:
        """The matching rows as an Arrow dataset; `storage_options` replace the plan's."""
        return self._lazy_rows(storage_options).to_arrow_dataset()

    def batches(self, storage_options: Mapping[str, Any] | None = None) -> Iterator[pa.RecordBatch]:
        """Iterate over the matching rows in record batches, without holding all of them."""
        return self._with_options(storage_options).batches()

    def to_polars(self, storage_options: Mapping[str, Any] | None = None) -> pl.LazyFrame:
        """The matching rows as a polars LazyFrame; `storage_options` replace the plan's."""
        return self._lazy_rows(storage_options).to_polars()

    def _lazy_rows(self, options: Mapping[str, Any] | None) -> LazyRows:
        from arrowlog.scan.lazy_readers import LazyRows

        rows = self._with_options(options)
        return LazyRows(rows.schema, rows.narrow, rows.check)

    def _with_options(self, options: Mapping[str, Any] | None) -> RowReader:
        return self.rows if options is None else replace(self.rows, options=options)


def _parse_target_size(size: int | str) -> int:
    try:
        return parse_bytes(size)
    except ValueError:
        raise InvalidRequest(
            f"{size!r} is not a size in bytes.", next='Give bytes, or text such as "128MB".'
        ) from None

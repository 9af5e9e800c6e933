"""A plan: the files of one version that may hold rows of a predicate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import parse_bytes
from arrowlog.errors import InvalidRequest
from arrowlog.log.arrays import flags, number
from arrowlog.look import count_text, html_card, html_table, size_text
from arrowlog.scan.explain import Explanation, explain
from arrowlog.scan.facts import count, extreme
from arrowlog.scan.normal import Normal
from arrowlog.scan.predicate import Predicate, parse
from arrowlog.scan.prune import columns_needed, dropped, kept
from arrowlog.scan.rows import Rows
from arrowlog.state.files import files_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl
    import pyarrow.dataset as ds

    from arrowlog.scan.normal import Test
    from arrowlog.state.snapshot import Snapshot

_SHOWN = 10


def scan(
    snapshot: Snapshot,
    where: Any,
    root: str,
    options: Mapping[str, Any] | None = None,
    *,
    now_micros: int | None = None,
) -> ScanPlan:
    """Plan a scan. `root` and `options` say where the table is, for whoever reads rows."""
    whole = snapshot.columns
    predicate = parse(where, whole.schema, now_micros=now_micros)
    test = Normal(whole.schema, snapshot.partition_columns).rows(predicate.tree)
    among = _near(snapshot, predicate)
    columns = among.columns
    columns.prepare(columns_needed(test))  # from here on it is settled which rows there are
    mask = kept(dropped(test, columns), among.num_files)
    return ScanPlan(snapshot, predicate, test, mask, root, options or {}, among=among)


def _near(snapshot: Snapshot, predicate: Predicate) -> Snapshot:
    """The snapshot without files that are stored where no row can match, if that saves reading.

    In a checkpoint files stand in groups, and what holds for a group is known. There partition
    columns are like others: a group has a range of their values.
    """
    source = snapshot.state.deferred
    if source is None:
        return snapshot
    groups = source.groups
    test = Normal(groups.schema, ()).rows(predicate.tree)
    groups.prepare(columns_needed(test))
    stay = kept(dropped(test, groups), groups.num_rows)
    if stay.true_count * 2 > groups.num_rows:
        return snapshot
    return snapshot.only(pc.indices_nonzero(stay).to_pylist())


@dataclass(frozen=True)
class ScanPlan:
    """Files that may hold matching rows: never one too few. The rest is worked out on demand.

    `mask` is over the files of `among`, outside of which there are none.
    """

    snapshot: Snapshot = field(repr=False)
    predicate: Predicate
    test: Test = field(repr=False)
    mask: pa.Array = field(repr=False, compare=False)
    root: str = field(repr=False)
    _options: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)
    among: Snapshot = field(repr=False, compare=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled without the options of the store: they may be secret."""
        return {**self.__dict__, "_options": {}}

    @property
    def version(self) -> int:
        """The version of the table this plan is for."""
        return self.snapshot.version

    @property
    def total_files(self) -> int:
        """How many files the table has."""
        return self.snapshot.num_files

    @cached_property
    def num_files(self) -> int:
        """How many files are left to read."""
        return int(self.mask.true_count)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes in the files left to read."""
        return int(pc.sum(self._chosen("size")).as_py() or 0) if self.num_files else 0

    @cached_property
    def num_records(self) -> int | None:
        """Rows in the files left to read, matching or not; None if a file does not say."""
        rows = self.among.columns.num_records().filter(self.mask)
        return None if rows.null_count else int(pc.sum(rows).as_py() or 0)

    @cached_property
    def paths(self) -> list[str]:
        """The files left to read, as they are called in the log."""
        found: list[str] = self._chosen("path").to_pylist() if self.num_files else []
        return found

    @cached_property
    def files(self) -> pa.Table:
        """The files left to read with all that the log says of them, as in `Snapshot.files`."""
        schema, partition_columns = self.snapshot.schema, self.snapshot.partition_columns
        deferred = self.among.state.deferred
        if deferred is not None:
            return deferred.files(schema, partition_columns, self.mask)
        return files_table(self.among.state.adds.filter(self.mask), schema, partition_columns)

    def _chosen(self, name: str) -> pa.ChunkedArray:
        return self.among.state.column(name).filter(self.mask)

    def count(self) -> int | None:
        """How many rows match, if the log alone can say so exactly; else None."""
        return count(self.among, self.predicate, self.mask)

    def min(self, column: str) -> Any:
        """The least value of a column in the matching rows, if the log can say; else None."""
        return extreme(self.among, self.predicate, self.mask, column, upper=False)

    def max(self, column: str) -> Any:
        """The greatest value of a column in the matching rows, if the log can say; else None."""
        return extreme(self.among, self.predicate, self.mask, column, upper=True)

    def explain(self) -> Explanation:
        """Which clause dropped what, and why the rest was kept."""
        if self.among is self.snapshot:
            return explain(self.snapshot, self.predicate, self.mask)
        self.snapshot.columns.prepare(columns_needed(self.test))  # here every file counts
        mask = kept(dropped(self.test, self.snapshot.columns), self.total_files)
        return explain(self.snapshot, self.predicate, mask)

    def splits(self, target_size: int | str = "128MB") -> list[Split]:
        """The work in pieces of about `target_size` bytes; small to pickle, pinned to a version."""
        target = _bytes(target_size)
        if not self.num_files:
            return []
        sizes = self._chosen("size")
        even = max(1, -(-self.size_bytes // max(1, -(-self.size_bytes // target))))
        ends = pc.subtract(pc.cumulative_sum(sizes), number(1))
        places = pc.divide(pc.max_element_wise(ends, number(0)), number(even))
        stops = pc.run_end_encode(places.combine_chunks()).run_ends.to_pylist()
        files = self._rows.files.append_column("size", sizes)
        return [
            Split(self.version, self._part(files.slice(a, b - a))) for a, b in pairwise([0, *stops])
        ]

    def _part(self, files: pa.Table) -> Rows:
        return replace(self._rows, files=files)

    @cached_property
    def _rows(self) -> Rows:
        snapshot = self.among
        names = snapshot.partition_columns
        snapshot.columns.prepare(names)
        columns = {"key": self._chosen("key") if self.num_files else pa.nulls(0, pa.string())}
        odd = flags(False, len(self.mask))
        for name in names:
            columns[f"partition.{name}"] = snapshot.columns.partition(name).filter(self.mask)
            odd = pc.or_(odd, snapshot.columns.unreadable(name))
        columns["unreadable"] = odd.filter(self.mask)
        files = pa.table(columns)
        return Rows(
            self.root,
            snapshot.columns.schema,
            names,
            self.predicate,
            files,
            self.version,
            self._options,
        )

    def scanned(self) -> pa.Table:
        """The files left to read, for engines of their own: key, size, time, partition values."""
        self._rows.check_files()
        files = self._rows.files
        empty = pa.nulls(0, pa.int64())
        for name in ("size", "modificationTime"):
            files = files.append_column(name, self._chosen(name) if self.num_files else empty)
        return files

    def to_arrow_dataset(self) -> ds.Dataset:
        """The matching rows as an Arrow dataset."""
        return self._rows.dataset()

    def to_polars(self) -> pl.LazyFrame:
        """The matching rows as a lazy polars frame."""
        return self._rows.to_polars()

    def to_duckdb(self, connection: Any) -> Any:
        """The matching rows as a relation on a DuckDB connection."""
        return self._rows.to_duckdb(connection)

    def to_spark(self, spark: Any, *, native: bool | None = None) -> Any:
        """The matching rows as a DataFrame of a Spark session, read by Spark when asked.

        Spark's own Parquet reader is taken where it can be, and Python workers elsewhere; `native`
        asks for the one or the other.
        """
        from arrowlog.spark.frame import frame

        return frame(self, self._rows, spark, native=native)

    def __repr__(self) -> str:
        """Short, and useful at a prompt."""
        return (
            f"ScanPlan({str(self.predicate)!r}, version={self.version},"
            f" files={self.num_files:,} of {self.total_files:,}, bytes={self.size_bytes:,})"
        )

    def _repr_html_(self) -> str:
        """What is to be read, and the first of the files."""
        facts = [
            ("version", str(self.version)),
            ("files", f"{self.num_files:,} of {self.total_files:,}"),
            ("bytes", f"{size_text(self.size_bytes)} of {size_text(self.snapshot.size_bytes)}"),
            ("rows in them", count_text(self.num_records)),
        ]
        some = [[path] for path in self._chosen("path").slice(0, _SHOWN).to_pylist()]
        more = self.num_files - len(some)
        files = html_table([f"path{f' (and {more:,} more)' if more else ''}"], some)
        return html_card(f"scan {self.predicate}", facts, files if some else "")


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a plan for one worker. It has all that reading needs, and no credentials."""

    version: int
    rows: Rows = field(repr=False)

    @property
    def paths(self) -> list[str]:
        """The files of this part, relative to the table."""
        found: list[str] = self.rows.files["key"].to_pylist()
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes in the files of this part."""
        return int(pc.sum(self.rows.files["size"]).as_py())

    def to_arrow_dataset(self, storage_options: Mapping[str, Any] | None = None) -> ds.Dataset:
        """The matching rows; options for the store are given anew where they are needed."""
        return self._with(storage_options).dataset()

    def batches(self, storage_options: Mapping[str, Any] | None = None) -> Iterator[pa.RecordBatch]:
        """The matching rows a batch at a time, never all of them in memory."""
        return self._with(storage_options).batches()

    def to_polars(self, storage_options: Mapping[str, Any] | None = None) -> pl.LazyFrame:
        """The matching rows as a lazy polars frame."""
        return self._with(storage_options).to_polars()

    def _with(self, options: Mapping[str, Any] | None) -> Rows:
        return self.rows if options is None else replace(self.rows, options=options)


def _bytes(given: int | str) -> int:
    try:
        return parse_bytes(given)
    except ValueError:
        raise InvalidRequest(
            f"{given!r} is not a size to split by.", next='Give bytes, or text such as "128MB".'
        ) from None

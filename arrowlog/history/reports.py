"""Reports on a table, as text, HTML and Arrow: the overview of its newest version, and diffs."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    FALSE,
    clip_to_datetime_range,
    int64_or_none,
    make_array,
    make_int64,
    make_scalar,
    repeat_bool,
    repeat_value,
    sum_exactly,
    to_numpy,
)
from arrowlog.display import (
    escape_control_characters,
    format_bytes,
    format_count,
    format_html_card,
    format_html_table,
    format_text_table,
    format_time,
)
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import OnFirstUse
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.history import view_columns
from arrowlog.history.view_columns import ViewTypes
from arrowlog.predicate import quote_identifier
from arrowlog.snapshot import check_version, checkpoint_versions, to_period

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.config import Config
    from arrowlog.history.commit_history import CommitHistory
    from arrowlog.history.session import HistorySession
    from arrowlog.snapshot import PeriodLike, Snapshot, SnapshotTracker


_NOT_CHECKED = "data files not checked (arrowlog doctor)"
_SMALL_FILE_BYTES = 1 << 20
_MIN_SMALL_FILES = 100  # fewer small files than this are not worth a warning
_MAX_SCHEMA_LINES = 4
_TEXT_WIDTH = 78
_COMMIT_HEADS = ("version", "time", "operation", "adds", "removes", "bytes", "rows")
_RIGHT_ALIGNED = (0, 3, 4, 5, 6)  # indices into _COMMIT_HEADS
_MAX_FILES_SHOWN = 20  # in text and HTML; `Diff.files` has them all
_SIZES = ("size_bytes", "num_records")  # columns of a diff, before and after
_SUMMARY_HEADS = ("", "files", "bytes", "rows")
# Not compared. A file can be spelled as several paths (`key` is normalized), the same statistics as
# several JSON texts (the typed columns are compared), and `data_change` describes the commit.
_IGNORED_COLUMNS = {"path", "data_change", "stats"}
# What a diff has of both versions. Times are as DuckDB returns them.
_MEASURES = ("size_bytes", "num_records", "modification_time")
_DIFF_TIME: pa.DataType = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Overview:
    """The newest version of a table in numbers, as `arrowlog info` shows it.

    `checkpoint` is the version of the newest checkpoint and `commits_since` counts the commits
    after it. `commits` has the last commits, with the columns of `history`. `warnings` is empty
    if nothing in the log needs attention. Data files are not looked at: the doctor does that.
    """

    uri: str
    format: str
    version: int
    earliest_version: int
    num_files: int
    size_bytes: int
    num_records: int | None
    num_partitions: int | None
    partition_columns: tuple[str, ...]
    schema: pa.Schema
    reader_version: int
    writer_version: int
    checkpoint: int | None
    commits_since: int
    commits: pa.Table
    warnings: tuple[str, ...]
    reader_features: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the log gives no reason for a warning. Data files are not checked."""
        return not self.warnings

    @property
    def health(self) -> str:
        """What was checked, and with which result."""
        count = len(self.warnings)
        warned = f"log with {count:,} warning{'s' if count > 1 else ''}"
        return f"{'log healthy' if self.healthy else warned}; {_NOT_CHECKED}"

    def to_arrow(self) -> pa.Table:
        """Return one row with everything but the last commits.

        Bytes and rows are null if they exceed 64 bits.
        """
        row: dict[str, Any] = {name: [getattr(self, name)] for name in _SCALAR_FIELDS}
        for name in ("size_bytes", "num_records"):
            row[name] = make_array([int64_or_none(getattr(self, name))], pa.int64())
        row["partition_columns"] = pa.array([list(self.partition_columns)], pa.list_(pa.string()))
        names = [f"{item.name}: {item.type}" for item in self.schema]
        row["columns"] = pa.array([names], pa.list_(pa.string()))
        row["healthy"] = [self.healthy]
        row["health"] = [self.health]
        row["warnings"] = pa.array([list(self.warnings)], pa.list_(pa.string()))
        return pa.table(row)

    def _facts(self) -> list[tuple[str, str]]:
        count = format_count(self.num_partitions)
        partitions = f"{count} by {', '.join(self.partition_columns)}"
        checkpoint = "none"
        if self.checkpoint is not None:
            checkpoint = f"version {self.checkpoint}, {self.commits_since:,} commits since"
        name = self.format if self.format == INDEXTABLES.name else f"{self.format} (read-only)"
        features = f" with {', '.join(self.reader_features)}" if self.reader_features else ""
        protocol = f"{name}, reader {self.reader_version}, writer {self.writer_version}{features}"
        return [
            ("version", f"{self.version}, readable from {self.earliest_version} on"),
            ("files", f"{self.num_files:,} with {format_bytes(self.size_bytes)}"),
            ("rows", format_count(self.num_records)),
            ("partitions", partitions if self.partition_columns else "not partitioned"),
            ("protocol", protocol),
            ("checkpoint", checkpoint),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        names = ["version", "timestamp", "operation", "adds", "removes", "bytes", "rows"]
        rows = clip_to_datetime_range(self.commits.select(names)).to_pylist()
        return [
            (
                str(row["version"]),
                "" if row["timestamp"] is None else format_time(row["timestamp"], seconds=True),
                row["operation"] or "-",
                f"{row['adds']:,}",
                f"{row['removes']:,}",
                "" if row["bytes"] is None else format_bytes(row["bytes"]),
                "" if row["rows"] is None else f"{row['rows']:,}",
            )
            for row in rows
        ]

    def _columns(self) -> str:
        return ", ".join(f"{item.name} {item.type}" for item in self.schema)

    def __str__(self) -> str:
        """Return facts, columns, last commits and warnings in about twenty lines."""
        lines = [self.uri]
        lines += [f"{name:<11} {escape_control_characters(value)}" for name, value in self._facts()]
        wrapped = textwrap.wrap(escape_control_characters(self._columns()), _TEXT_WIDTH - 12) or [
            "none"
        ]
        if len(wrapped) > _MAX_SCHEMA_LINES:
            total = f"… {len(self.schema)} columns in all"
            wrapped = [*wrapped[: _MAX_SCHEMA_LINES - 1], total]
        lines += [f"{'' if n else 'columns':<11} {text}" for n, text in enumerate(wrapped)]
        lines += ["", *format_text_table(_COMMIT_HEADS, self._rows(), _RIGHT_ALIGNED), ""]
        lines += [f"warning: {escape_control_characters(text)}" for text in self.warnings]
        return "\n".join([*lines, self.health])

    def _repr_html_(self) -> str:
        warnings = [("warning", text) for text in self.warnings]
        facts = [*self._facts(), ("columns", self._columns()), *warnings, ("health", self.health)]
        return format_html_card(
            self.uri, facts, format_html_table(_COMMIT_HEADS, self._rows(), _RIGHT_ALIGNED)
        )


_SCALAR_FIELDS = (
    "uri",
    "format",
    "version",
    "earliest_version",
    "num_files",
    "size_bytes",
    "num_records",
    "num_partitions",
    "reader_version",
    "writer_version",
    "checkpoint",
    "commits_since",
)


def summarize_table(asking: HistorySession, commits: int) -> Overview:
    """Summarize the newest snapshot, its log and the last `commits` commits."""
    tracker = asking.tracker
    snapshot = tracker.latest()
    past = asking.past(snapshot.version, None)
    checkpoints = [v for v in checkpoint_versions(past.listing) if v <= snapshot.version]
    checkpoint = checkpoints[0] if checkpoints else None  # newest first
    since = snapshot.version - (-1 if checkpoint is None else checkpoint)
    return Overview(
        tracker.store.root,
        tracker.format.name,
        snapshot.version,
        past.first,
        snapshot.num_files,
        snapshot.size_bytes,
        snapshot.num_records,
        _count_partitions(snapshot),
        snapshot.partition_columns,
        snapshot.schema,
        snapshot.protocol.min_reader_version,
        snapshot.protocol.min_writer_version,
        checkpoint,
        since,
        asking.history(commits),
        tuple(_warnings(snapshot, past, since, tracker.config)),
        snapshot.protocol.reader_features,
    )


def _count_partitions(snapshot: Snapshot) -> int | None:
    names = snapshot.partition_columns
    if not names:
        return None
    columns = {f"c{n}": snapshot.columns.partition(name) for n, name in enumerate(names)}
    return int(pa.table(columns).group_by(list(columns)).aggregate([]).num_rows)


def _warnings(snapshot: Snapshot, past: CommitHistory, since: int, config: Config) -> list[str]:
    """Return the warnings; `since` counts the commits after the newest checkpoint.

    A history that begins after version 0 is normal. A commit that is missing in between is not.
    """
    warnings = list(snapshot.report.warnings)
    if any(version != past.first for version in past.missing_versions):
        warnings.append(past.note())
    if config.checkpoint_enabled and since > 2 * config.checkpoint_interval:
        warnings.append(
            f"{since:,} commits since the last checkpoint: write one to open the table faster"
        )
    if not snapshot.num_files:
        return warnings
    sizes = snapshot.state.column("size")
    small = pc.sum(pc.less(sizes, make_int64(_SMALL_FILE_BYTES))).as_py() or 0
    if small > _MIN_SMALL_FILES and small * 2 > len(sizes):
        warnings.append(f"{small:,} of {len(sizes):,} files are smaller than 1 MB")
    without_count = snapshot.columns.num_records().null_count
    if without_count:
        warnings.append(f"{without_count:,} of {len(sizes):,} files have no row count")
    return warnings


@dataclass(frozen=True, slots=True)
class Change:
    """A change other than of files: a column, a property, the partitioning, the protocol.

    `before` or `after` is None if the item does not exist on that side.
    """

    what: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """One line, such as `property owner: alice → bob`."""
        if self.before is None:
            return f"{self.what} {self.name}: {self.after} (new)"
        if self.after is None:
            return f"{self.what} {self.name}: gone (was {self.before})"
        return f"{self.what} {self.name}: {self.before} → {self.after}"


@dataclass(frozen=True)
class Diff:
    """What turns version `a` into version `b`; either may be the newer one.

    `files` has one row per file that differs. Its column `change` is `added`, `removed` or
    `changed` (both versions have the file, with different add actions); sizes, row counts and
    modification times have one column before and one after.
    """

    a: int
    b: int
    files: pa.Table = field(repr=False)
    changes: tuple[Change, ...] = ()

    @property
    def added(self) -> pa.Table:
        """Files in `b` that are not in `a`."""
        return self._only("added")

    @property
    def removed(self) -> pa.Table:
        """Files in `a` that are not in `b`."""
        return self._only("removed")

    @property
    def changed(self) -> pa.Table:
        """Files in both versions whose add actions differ."""
        return self._only("changed")

    @property
    def schema_changes(self) -> tuple[Change, ...]:
        """Columns that were added, dropped or changed their type, and changed partitioning."""
        return tuple(c for c in self.changes if c.what in ("column", "partitioning"))

    @property
    def property_changes(self) -> tuple[Change, ...]:
        """Table properties that were added, dropped or changed."""
        return tuple(c for c in self.changes if c.what == "property")

    @property
    def empty(self) -> bool:
        """Whether the two versions are equal."""
        return not self.files.num_rows and not self.changes

    @OnFirstUse
    def bytes_added(self) -> int:
        """Size of the files that were added, and of changed files after the change."""
        return _sum(self.files, "size_bytes_after") or 0

    @OnFirstUse
    def bytes_removed(self) -> int:
        """Size of the files that were removed, and of changed files before the change."""
        return _sum(self.files, "size_bytes_before") or 0

    @OnFirstUse
    def rows_added(self) -> int | None:
        """Rows in added files and in changed files after the change; None if a count is missing."""
        return _sum_rows(self.files, "removed", "num_records_after")

    @OnFirstUse
    def rows_removed(self) -> int | None:
        """Rows in removed files and in changed files before it; None if a count is missing."""
        return _sum_rows(self.files, "added", "num_records_before")

    def to_arrow(self) -> pa.Table:
        """Return `files`."""
        return self.files

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export `files` to polars, DuckDB or pandas without a copy."""
        return self.files.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """Return the versions and the number of changes."""
        counts = [
            f"{name}={self._only(name).num_rows:,}" for name in ("added", "removed", "changed")
        ]
        return f"Diff({self.a} → {self.b}, {', '.join(counts)}, changes={len(self.changes)})"

    def _only(self, change: str) -> pa.Table:
        return self.files.filter(pc.equal(self.files["change"], make_scalar(change, pa.string())))

    def _summary(self) -> list[tuple[str, str, str, str]]:
        rows = []
        for change, sign, side in (
            ("added", "+", "after"),
            ("removed", "-", "before"),
            ("changed", "~", "after"),
        ):
            part = self._only(change)
            size = format_bytes(_sum(part, f"size_bytes_{side}") or 0)
            records = format_count(_sum(part, f"num_records_{side}"))
            rows.append((f"{sign} {change}", f"{part.num_rows:,}", size, records))
        return rows

    def _first_files(self) -> list[tuple[str, str, str]]:
        signs = {"added": "+", "removed": "-", "changed": "~"}
        names = [f"{name}_{when}" for name in _SIZES for when in ("before", "after")]
        rows = self.files.select(["change", "path", *names]).slice(0, _MAX_FILES_SHOWN).to_pylist()
        return [(signs[row["change"]], row["path"], _sizes_of(row)) for row in rows]

    def __str__(self) -> str:
        """Return the totals, the changes of schema and properties, and the first files."""
        if self.empty:
            return f"version {self.a} → {self.b}: no differences"
        lines = [
            f"version {self.a} → {self.b}",
            *format_text_table(_SUMMARY_HEADS, self._summary(), (1, 2, 3)),
        ]
        lines += [escape_control_characters(str(change)) for change in self.changes]
        lines += [
            f"{sign} {escape_control_characters(path)}  {size}"
            for sign, path, size in self._first_files()
        ]
        if self.files.num_rows > _MAX_FILES_SHOWN:
            lines.append(f"… and {self.files.num_rows - _MAX_FILES_SHOWN:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        changes = format_html_table(["changed"], [[str(change)] for change in self.changes])
        return format_html_card(
            f"version {self.a} → {self.b}",
            (),
            format_html_table(_SUMMARY_HEADS, self._summary(), (1, 2, 3)),
            changes if self.changes else "",
            format_html_table(["", "path", "size"], self._first_files(), (2,))
            if self.files.num_rows
            else "",
        )


def _sizes_of(row: Mapping[str, Any]) -> str:
    """Describe the size of a file before and after; its rows if only they have changed."""
    sizes = [row["size_bytes_before"], row["size_bytes_after"]]
    counts = [row["num_records_before"], row["num_records_after"]]
    if sizes[0] == sizes[1] and None not in counts and counts[0] != counts[1]:
        return f"{counts[0]:,} → {counts[1]:,} rows"
    return " → ".join(format_bytes(size) for size in sizes if size is not None)


def choose_diff_versions(
    tracker: SnapshotTracker,
    start: PeriodLike | None,
    end: PeriodLike | None,
    *,
    since: PeriodLike | None,
    until: PeriodLike | None,
    now_ms: int,
) -> tuple[int, int]:
    """Return the versions to compare, from versions or times; see `Table.diff`.

    Raises `InvalidRequest` if no version is old enough, or if an argument is missing or no time.
    """
    if (start is None) == (since is None) or (end is not None and until is not None):
        raise InvalidRequest(
            "A diff has one start, and at most one end.",
            next="Give two versions, or since= and possibly until=, or one day.",
        )
    one_day = None
    if isinstance(start, SupportsIndex):
        first = check_version(start)
    else:
        given: Any = since if start is None else start
        begins, ends = to_period(given, now_ms)
        first = _version_before(tracker, begins)
        one_day = ends if ends > begins and start is not None else None
    if isinstance(end, SupportsIndex):
        return first, check_version(end)
    last = until if end is None else end
    if last is not None:
        return first, tracker.version_at(to_period(last, now_ms)[1])
    return first, tracker.version if one_day is None else tracker.version_at(one_day)


def _version_before(tracker: SnapshotTracker, millis: int) -> int:
    """Return the last version from before a time; version 0 if the table was created later.

    The commit that creates a table adds no rows. Raises `InvalidRequest` if the versions from
    before that time were cleaned up.
    """
    try:
        return tracker.version_at(millis - 1)
    except InvalidRequest:
        if tracker.earliest_version:
            raise
        return 0


def diff_snapshots(a: Snapshot, b: Snapshot) -> Diff:
    """Compare two snapshots of one table. Statistics are compared typed, by the schema of `b`."""
    types = ViewTypes.of(
        (b.schema, b.partition_columns),
        (a.schema, a.partition_columns),
        table_format=b.state.format,
    )
    return Diff(a.version, b.version, _files(a, b, types), tuple(_changes(a, b)))


def _files(a: Snapshot, b: Snapshot, types: ViewTypes) -> pa.Table:
    """Return the files that differ, without typing statistics of files that only one version has.

    Of files that both have, most are the same in the log; only the others are typed and compared.
    """
    old, new = _adds_by_path(a), _adds_by_path(b)
    keys = old["key"].combine_chunks()
    position = pc.index_in(new["key"], value_set=keys).combine_chunks()
    in_both = pc.indices_nonzero(pc.is_valid(position))
    old_rows = pc.cast(position.take(in_both), in_both.type)
    unequal = _unequal_adds(old, new, old_rows, in_both)
    removed = pc.invert(pc.is_in(_row_numbers(old), value_set=old_rows))
    parts = [  # in the order of `change`
        _files_of_one_side(new, pc.is_null(position), types, "added"),
        _changed_files(old, new, old_rows.filter(unequal), in_both.filter(unequal), types),
        _files_of_one_side(old, removed, types, "removed"),
    ]
    return pa.concat_tables(parts)


def _diff_schema(types: ViewTypes) -> pa.Schema:
    measures: list[Any] = [
        (f"{name}_{side}", _DIFF_TIME if name == "modification_time" else pa.int64())
        for name in _MEASURES
        for side in ("before", "after")
    ]
    text = pa.string()
    return pa.schema(
        [("change", text), ("path", text), *types.partitions, *measures, ("key", text)]
    )


def _files_of_one_side(adds: pa.Table, mask: pa.Array, types: ViewTypes, change: str) -> pa.Table:
    """Return the rows of files that one version has and the other has not, by key."""
    schema, side = _diff_schema(types), "after" if change == "added" else "before"
    names = ["path", *(item.name for item in types.partitions), *_MEASURES, "key"]
    columns = view_columns.add_columns(adds, types, names) if adds.num_rows else {}
    typed = view_columns.conform_to_view(columns, types.adds, names, adds.num_rows).filter(mask)
    found: dict[str, Any] = {
        f"{name}_{side}" if name in _MEASURES else name: typed[name] for name in names
    }
    del typed
    order = pc.sort_indices(found["key"])
    for name, column in found.items():  # one after the other: not all are in memory twice
        found[name] = column.take(order)
    found["change"] = repeat_value(change, pa.string(), len(order))
    return view_columns.conform_to_view(found, schema, schema.names, len(order))


def _changed_files(
    old: pa.Table, new: pa.Table, old_rows: pa.Array, new_rows: pa.Array, types: ViewTypes
) -> pa.Table:
    """Return the files in two rows of two versions whose typed adds differ, by key."""
    schema = _diff_schema(types)
    if not len(new_rows):
        return view_columns.conform_to_view({}, schema, schema.names, 0)
    import duckdb

    differs = " OR ".join(
        f"a.{quote_identifier(name)} IS DISTINCT FROM b.{quote_identifier(name)}"
        for name in types.files.names
        if name not in _IGNORED_COLUMNS
    )
    columns = [f"b.{quote_identifier(item.name)}" for item in types.partitions]
    for name in _MEASURES:
        columns += [f"a.{name} AS {name}_before", f"b.{name} AS {name}_after"]
    query = f"""
        SELECT 'changed' AS change, b.path, {", ".join(columns)}, key
        FROM a JOIN b USING (key) WHERE {differs} ORDER BY key
    """  # noqa: S608 -- names are quoted
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("a", _typed_files(old.take(old_rows), types))
        connection.register("b", _typed_files(new.take(new_rows), types))
        return connection.sql(query).to_arrow_table().cast(schema)


def _adds_by_path(snapshot: Snapshot) -> pa.Table:
    adds = snapshot.state.adds
    # A file whose rows are deleted by another deletion vector is the same file.
    keys = snapshot.state.format.paths_of(adds["key"])
    return adds.set_column(adds.column_names.index("key"), "key", keys)


def _unequal_adds(old: pa.Table, new: pa.Table, old_rows: pa.Array, new_rows: pa.Array) -> pa.Array:
    """Return which of the files in two rows of two versions differ in a value, as logged.

    Adds that differ as text may still be equal once they are typed.
    """
    equal: Any = repeat_bool(True, len(new_rows))
    for name in {*old.column_names, *new.column_names} - {"key", "seq"}:
        before, after = _column_at(old, name, old_rows), _column_at(new, name, new_rows)
        equal = pc.and_(equal, _are_equal(before, after))
    return pc.invert(equal)


def _row_numbers(table: pa.Table) -> pa.Array:
    return pc.indices_nonzero(repeat_bool(True, table.num_rows))


def _column_at(table: pa.Table, name: str, rows: pa.Array) -> pa.ChunkedArray:
    """Return some rows of a column; nulls if the table does not have it."""
    if name not in table.column_names:
        return pa.chunked_array([pa.nulls(len(rows))])
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    first = rows[0].as_py() if len(rows) else 0
    numbers = to_numpy(rows)
    if (numbers[1:] - numbers[:-1] == 1).all():  # as a rule files are only added: no copy
        return column.slice(first, len(rows))
    return pa.chunked_array([column.combine_chunks().take(rows)])


def _are_equal(before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which rows are equal, nulls included; False where the types cannot be compared."""
    both_null = pc.and_(pc.is_null(before), pc.is_null(after))
    if before.type != after.type or pa.types.is_nested(before.type):
        return both_null
    return pc.or_(both_null, pc.fill_null(pc.equal(before, after), FALSE))


def _typed_files(adds: pa.Table, types: ViewTypes) -> pa.Table:
    names = [*types.files.names, "key"]
    columns = view_columns.add_columns(adds, types, names) if adds.num_rows else {}
    return view_columns.conform_to_view(columns, types.adds, names, adds.num_rows)


def _changes(a: Snapshot, b: Snapshot) -> list[Change]:
    columns_a = {item.name: str(item.type) for item in a.schema}
    columns_b = {item.name: str(item.type) for item in b.schema}
    changes = _compare("column", columns_a, columns_b)
    if a.partition_columns != b.partition_columns:
        partitioning = [", ".join(s.partition_columns) or None for s in (a, b)]
        changes.append(Change("partitioning", "by", *partitioning))
    changes += _compare("property", a.metadata.configuration, b.metadata.configuration)
    protocols = [
        {
            "reader version": str(s.protocol.min_reader_version),
            "writer version": str(s.protocol.min_writer_version),
            **{f"reader feature {name}": "on" for name in s.protocol.reader_features},
            **{f"writer feature {name}": "on" for name in s.protocol.writer_features},
        }
        for s in (a, b)
    ]
    changes += _compare("protocol", *protocols)
    descriptions: list[Mapping[str, str]] = [
        {
            name: value
            for name, value in (("name", s.metadata.name), ("description", s.metadata.description))
            if value is not None
        }
        for s in (a, b)
    ]
    return changes + _compare("table", *descriptions)


def _compare(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    names = [*after, *(name for name in before if name not in after)]
    return [
        Change(what, name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _sum(table: pa.Table, column: str) -> int | None:
    """Return the sum of a column; for row counts None if one is missing."""
    values = table[column]
    return None if values.null_count and "records" in column else sum_exactly(values)


def _sum_rows(files: pa.Table, excluded: str, column: str) -> int | None:
    """Sum row counts over the files whose `change` is not `excluded`."""
    kept = files.filter(pc.not_equal(files["change"], make_scalar(excluded, pa.string())))
    return _sum(kept, column)

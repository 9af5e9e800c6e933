"""Collect the facts of a report from a table: what cannot be read is said, not guessed.

Every section is computed by itself. If the log does not allow one, the others are still there, and
the reason is part of the report. Files are aggregated by columns; nothing here loops over files.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from arrowlog.clock import SystemClock
from arrowlog.errors import ArrowlogError, ArrowlogWarning
from arrowlog.fork_safety import pl, require_polars
from arrowlog.maintenance import procedures
from arrowlog.recovery import DoctorLimits, examine_table
from arrowlog.report.facts import (
    CheckpointFacts,
    CheckpointsFacts,
    ColumnFacts,
    ColumnsFacts,
    CommitFacts,
    FileSizeFacts,
    FindingFacts,
    HealthFacts,
    LargeFile,
    PartitionsFacts,
    Redaction,
    ReportFacts,
    RetentionFacts,
    RetentionStep,
    SummaryFacts,
    TimelineFacts,
)
from arrowlog.report.measures import (
    describe_timeline,
    measure_column,
    measure_file_sizes,
    measure_partition_column,
    measure_partitions,
    to_datetime,
)
from arrowlog.snapshot import CLOCK_TOLERANCE_MS
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.history import HistorySession
    from arrowlog.recovery import Findings
    from arrowlog.snapshot import FileStats, Snapshot, SnapshotTracker
    from arrowlog.transaction import WriteSession

    Progress = Callable[[int, int], None]

_T = TypeVar("_T")
_FINDINGS_MAX = 40
_COLUMNS_MAX = 500
_CHECKPOINTS_MAX = 20
_COMMITS_MAX = 40
_LARGEST_FILES = 25
_RETENTION_DAYS = (0, 7, 30, 90)
_DAY_MS = 86_400_000
# Bounds of this many files and columns are in memory together, about 24 bytes each and more for
# text: all columns of a small table, a few columns at a time of a large one.
_CELLS_PER_BATCH = 6_000_000
_STEPS = 10  # for the progress; each batch of columns is a further step

# Files that were removed and added again in one version are marked: they are no churn.
_MOVES = """
    WITH spans AS (
        SELECT begin_version, end_version, begin_known, size_bytes,
            lag(end_version) OVER w IS NOT DISTINCT FROM begin_version AS begins_again,
            lead(begin_version) OVER w IS NOT DISTINCT FROM end_version AS ends_again
        FROM file_lifetimes WINDOW w AS (PARTITION BY key ORDER BY begin_version)
    )
    SELECT begin_version AS version, 1::BIGINT AS way, begins_again AS again, begin_known AS known,
        count(*)::BIGINT AS files, coalesce(sum(size_bytes), 0)::DOUBLE AS bytes
    FROM spans GROUP BY ALL
    UNION ALL
    SELECT end_version, -1::BIGINT, ends_again, TRUE, count(*)::BIGINT,
        coalesce(sum(size_bytes), 0)::DOUBLE
    FROM spans WHERE end_version IS NOT NULL GROUP BY ALL
"""
_CHECKPOINTS = (
    "SELECT version, format, parts, size_bytes, epoch_ms(written) AS written, last FROM checkpoints"
)
_COMMITS = "SELECT version, epoch_ms(timestamp) AS time_ms, operation FROM commits"


@dataclass(frozen=True, slots=True)
class ReportSources:
    """What a report reads. `session` returns the session of changes; a Delta table has none."""

    tracker: SnapshotTracker
    history: HistorySession
    session: Callable[[], WriteSession]


@dataclass(slots=True)
class _Collection:
    """A report in progress."""

    sources: ReportSources
    redaction: Redaction
    now_ms: int
    progress: Progress | None
    unavailable: dict[str, str] = field(default_factory=dict)
    done: int = 0
    total: int = _STEPS

    def step(self, count: int = 1) -> None:
        """Report progress."""
        self.done += count
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)

    def try_section(self, name: str, compute: Callable[[], _T]) -> _T | None:
        """Compute a section; if the log does not allow it, keep the reason."""
        try:
            return compute()
        except (ArrowlogError, FileNotFoundError) as error:
            self.unavailable[name] = self.redaction.clean(str(error))
            return None
        finally:
            self.step()


def collect_facts(
    sources: ReportSources,
    *,
    paths: bool = False,
    data_files: bool = True,
    progress: Progress | None = None,
    now_ms: int | None = None,
) -> ReportFacts:
    """Return the facts of a report on the newest version of a table.

    Args:
        sources: the table.
        paths: include the address of the table and the paths of files.
        data_files: let the doctor check whether data files exist, which lists them.
        progress: called with the number of steps done and their total.
        now_ms: the time of the report, in milliseconds; the present by default.

    Raises:
        StoreUnavailable: the store fails as a whole.
    """
    require_polars("A report")
    tracker = sources.tracker
    redaction = Redaction(tracker.store.root, tracker.format.log_folder, paths)
    now = SystemClock().now_ms() if now_ms is None else now_ms
    collection = _Collection(sources, redaction, now, progress)
    collection.step(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)  # part of the report instead
        return _collect(collection, data_files=data_files)


def _collect(run: _Collection, *, data_files: bool) -> ReportFacts:
    tracker, redaction = run.sources.tracker, run.redaction
    limits = DoctorLimits(data_files=data_files)
    health = _health(
        examine_table(tracker.store, tracker.read_options, run.now_ms, limits), redaction
    )
    run.step()
    snapshot = run.try_section("summary", lambda: _load(tracker))
    generated = to_datetime(run.now_ms)
    assert generated is not None
    facts = ReportFacts(
        redaction.name_of_table(),
        redaction.clean(tracker.store.root) if redaction.paths else None,
        tracker.format.name,
        generated,
        __version__,
        redaction.paths,
        health,
    )
    if snapshot is not None:
        facts = _with_files(run, facts, snapshot)
    else:
        reason = "The newest version cannot be read."
        run.unavailable |= dict.fromkeys(("file_sizes", "partitions", "columns"), reason)
        run.step(4)
    facts = replace(
        facts,
        timeline=run.try_section("timeline", lambda: _timeline(run)),
        checkpoints=run.try_section("checkpoints", lambda: _checkpoints(run, snapshot)),
        retention=run.try_section("retention", lambda: _retention(run)),
        commits=run.try_section("commits", lambda: _commits(run)),
    )
    return replace(facts, unavailable=run.unavailable)


def _health(findings: Findings, redaction: Redaction) -> HealthFacts:
    counts = {name: sum(f.severity == name for f in findings) for name in ("error", "warning")}
    return HealthFacts(
        findings.version,
        redaction.clean(findings.scope),
        counts["error"],
        counts["warning"],
        len(findings) - sum(counts.values()),
        len(findings),
        tuple(
            FindingFacts(
                finding.code,
                finding.severity,
                redaction.clean(finding.what, finding.files),
                redaction.clean(finding.where, finding.files),
                redaction.clean(finding.fix, finding.files),
                finding.count,
            )
            for finding in list(findings)[:_FINDINGS_MAX]
        ),
    )


def _load(tracker: SnapshotTracker) -> Snapshot:
    """Return the newest version; deferred reads happen here, so that they can fail here."""
    snapshot = tracker.latest()
    snapshot.state.column("key")
    return snapshot


def _with_files(run: _Collection, facts: ReportFacts, snapshot: Snapshot) -> ReportFacts:
    """Return the facts with everything that the newest version tells."""
    redaction = run.redaction
    name = snapshot.metadata.name
    if name:
        facts = replace(facts, name=redaction.label(name))
    summary = run.try_section("summary", lambda: _summary(run, snapshot))
    sizes = run.try_section("file_sizes", lambda: _file_sizes(snapshot, redaction))
    partitions = run.try_section("partitions", lambda: _partitions(snapshot, redaction))
    columns = run.try_section("columns", lambda: _columns(run, snapshot))
    return replace(facts, summary=summary, file_sizes=sizes, partitions=partitions, columns=columns)


def _summary(run: _Collection, snapshot: Snapshot) -> SummaryFacts:
    label, protocol = run.redaction.label, snapshot.protocol
    try:
        earliest: int | None = run.sources.tracker.earliest_version
    except ArrowlogError:  # the newest version can be read, and counts
        earliest = None
    features = sorted({*protocol.reader_features, *protocol.writer_features})
    return SummaryFacts(
        snapshot.version,
        earliest,
        snapshot.num_files,
        snapshot.size_bytes,
        snapshot.num_records,
        len(snapshot.schema),
        tuple(label(name) for name in snapshot.partition_columns),
        protocol.min_reader_version,
        protocol.min_writer_version,
        tuple(label(name) for name in features),
        tuple(run.redaction.clean(text) for text in snapshot.report.warnings),
    )


def _file_sizes(snapshot: Snapshot, redaction: Redaction) -> FileSizeFacts | None:
    sizes = _series(snapshot.state.column("size"))
    facts = measure_file_sizes(sizes)
    if facts is None or not redaction.paths:
        return facts
    top = sizes.cast(pl.Int64).fill_null(0).arg_sort(descending=True).head(_LARGEST_FILES)
    rows = _series(snapshot.columns.num_records()).gather(top).to_list()
    paths = _series(snapshot.state.column("path")).gather(top).to_list()
    return replace(
        facts,
        largest=tuple(
            LargeFile(redaction.clean(path), size or 0, count)
            for path, size, count in zip(paths, sizes.gather(top).to_list(), rows, strict=True)
        ),
    )


def _partitions(snapshot: Snapshot, redaction: Redaction) -> PartitionsFacts | None:
    names = snapshot.partition_columns
    if not names or not snapshot.num_files:
        return None
    stats = snapshot.columns
    stats.prepare(names)
    facts = measure_partitions(
        [redaction.label(name) for name in names],
        [_as_text(stats.partition(name)) for name in names],
        _series(snapshot.state.column("size")),
        _series(stats.num_records()),
    )
    assert facts is not None
    return replace(
        facts,
        largest=tuple(
            replace(
                part,
                values=tuple(None if v is None else redaction.label(v) for v in part.values),
            )
            for part in facts.largest
        ),
    )


def _as_text(values: pa.Array) -> pl.Series:
    series = _series(values)
    return series.bin.encode("hex") if series.dtype == pl.Binary else series.cast(pl.String)


def _columns(run: _Collection, snapshot: Snapshot) -> ColumnsFacts | None:
    if not snapshot.num_files:
        return None
    stats = snapshot.columns
    names = _column_names(stats)
    shown = names[:_COLUMNS_MAX]
    size = max(1, _CELLS_PER_BATCH // snapshot.num_files)
    batches = [shown[start : start + size] for start in range(0, len(shown), size)]
    run.total += len(batches)
    items: list[ColumnFacts] = []
    for batch in batches:
        # Statistics keep every column that was used; those of a batch can be dropped together.
        if len(batches) > 1:
            stats = snapshot.state.source.stats(snapshot.schema, snapshot.partition_columns)
        stats.prepare(batch)
        items += [_column(stats, name, run.redaction) for name in batch]
        run.step()
    rows = snapshot.columns.stored_records()
    return ColumnsFacts(
        snapshot.num_files,
        len(rows) - rows.null_count,
        None if rows.null_count else int(_series(rows).cast(pl.Float64).sum()),
        len(names),
        tuple(items),
    )


def _column_names(stats: FileStats) -> list[str]:
    """Return the columns in the order of the schema; of a struct, its fields."""
    fields: dict[str, list[str]] = {}
    for leaf in stats.leaves.values():
        fields.setdefault(leaf.path[0], []).append(leaf.name)
    return [
        name
        for item in stats.schema
        for name in (
            fields.get(item.name, [item.name]) if pa.types.is_struct(item.type) else [item.name]
        )
    ]


def _column(stats: FileStats, name: str, redaction: Redaction) -> ColumnFacts:
    measure = measure_partition_column if name in stats.partition_columns else measure_column
    facts = measure(stats, name)
    return replace(facts, name=redaction.label(name), type=redaction.label(facts.type))


def _timeline(run: _Collection) -> TimelineFacts | None:
    history = run.sources.history
    moves = _frame(history.query(_MOVES))
    commits = _frame(history.query(_COMMITS))
    note = history.query("SELECT coalesce(note, '') AS note FROM coverage")["note"][0].as_py()
    if not commits.height and not moves.height:
        return None
    latest_ms = run.now_ms + CLOCK_TOLERANCE_MS
    facts = describe_timeline(commits, moves, latest_ms, run.redaction.clean(note))
    if facts is None:
        return None
    return replace(
        facts,
        operations=tuple(
            replace(each, operation=each.operation and run.redaction.label(each.operation))
            for each in facts.operations
        ),
    )


def _checkpoints(run: _Collection, snapshot: Snapshot | None) -> CheckpointsFacts:
    history, tracker = run.sources.history, run.sources.tracker
    last = history.query("SELECT last_version FROM coverage")["last_version"][0].as_py()
    newest = last if snapshot is None else snapshot.version
    query = f"{_CHECKPOINTS} WHERE version <= {newest} ORDER BY version DESC, format"
    rows = history.query(query).to_pylist()
    version = rows[0]["version"] if rows else None
    interval = None
    if snapshot is not None and tracker.format.writable:
        session = run.sources.session()
        interval = session.config(session.head_of(snapshot)).checkpoint_interval
    return CheckpointsFacts(
        version,
        newest - (-1 if version is None else version),
        interval,
        len(rows),
        tuple(
            CheckpointFacts(
                row["version"],
                row["format"],
                row["parts"],
                row["size_bytes"],
                to_datetime(row["written"]),
                bool(row["last"]),
            )
            for row in rows[:_CHECKPOINTS_MAX]
        ),
    )


def _retention(run: _Collection) -> RetentionFacts | None:
    """Return the outlook; None for a format that arrowlog only reads, and never cleans up."""
    if not run.sources.tracker.format.writable:
        return None
    session = run.sources.session()
    config = session.config(session.head_of(session.base_snapshot()))
    moments_ms = [run.now_ms + days * _DAY_MS for days in _RETENTION_DAYS]
    plans = procedures.preview_cleanups(session, moments_ms)
    return RetentionFacts(
        config.log_retention_ms / _DAY_MS,
        config.checkpoint_retention_ms / _DAY_MS,
        tuple(
            RetentionStep(
                days,
                plan.num_commits,
                plan.num_files,
                plan.bytes_freed,
                plan.earliest_version,
                len(plan.versions),
            )
            for days, plan in zip(_RETENTION_DAYS, plans, strict=True)
        ),
    )


def _commits(run: _Collection) -> tuple[CommitFacts, ...]:
    label = run.redaction.label
    rows = _frame(run.sources.history.history(_COMMITS_MAX))
    rows = rows.with_columns(pl.col("timestamp").dt.epoch("ms"))
    return tuple(
        CommitFacts(
            row["version"],
            to_datetime(row["timestamp"]),
            row["operation"] and label(row["operation"]),
            row["adds"],
            row["removes"],
            row["bytes"],
            row["rows"],
            row["engine_info"] and label(row["engine_info"]),
        )
        for row in rows.iter_rows(named=True)
    )


def _frame(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


def _series(values: Any) -> pl.Series:
    return pl.Series(pl.from_arrow(values))

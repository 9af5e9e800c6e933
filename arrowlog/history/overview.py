"""The summary of a table on one screen: size, schema, last commits, warnings."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import clip_to_datetime_range, make_int64
from arrowlog.display import (
    escape_control_characters,
    format_bytes,
    format_count,
    format_html_card,
    format_html_table,
    format_text_table,
)
from arrowlog.snapshot import checkpoint_versions

if TYPE_CHECKING:
    from arrowlog.config import Config
    from arrowlog.history.commit_history import CommitHistory
    from arrowlog.history.session import HistorySession
    from arrowlog.snapshot import Snapshot

_SMALL_FILE_BYTES = 1 << 20
_MIN_SMALL_FILES = 100  # fewer small files than this are not worth a warning
_MAX_SCHEMA_LINES = 4
_TEXT_WIDTH = 78
_COMMIT_HEADS = ("version", "time (UTC)", "operation", "adds", "removes", "bytes", "rows")
_RIGHT_ALIGNED = (0, 3, 4, 5, 6)  # indices into _COMMIT_HEADS


@dataclass(frozen=True)
class Overview:
    """The newest version of a table in numbers, as `arrowlog info` shows it.

    `checkpoint` is the version of the newest checkpoint and `commits_since` counts the commits
    after it. `commits` has the last commits, with the columns of `history`. `warnings` is empty
    if nothing needs attention.
    """

    uri: str
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

    @property
    def healthy(self) -> bool:
        """Whether there are no warnings."""
        return not self.warnings

    def to_arrow(self) -> pa.Table:
        """Return one row with everything but the last commits."""
        row: dict[str, Any] = {name: [getattr(self, name)] for name in _SCALAR_FIELDS}
        row["partition_columns"] = pa.array([list(self.partition_columns)], pa.list_(pa.string()))
        names = [f"{item.name}: {item.type}" for item in self.schema]
        row["columns"] = pa.array([names], pa.list_(pa.string()))
        row["healthy"] = [self.healthy]
        row["warnings"] = pa.array([list(self.warnings)], pa.list_(pa.string()))
        return pa.table(row)

    def _facts(self) -> list[tuple[str, str]]:
        count = format_count(self.num_partitions)
        partitions = f"{count} by {', '.join(self.partition_columns)}"
        checkpoint = "none"
        if self.checkpoint is not None:
            checkpoint = f"version {self.checkpoint}, {self.commits_since:,} commits since"
        return [
            ("version", f"{self.version}, readable from {self.earliest_version} on"),
            ("files", f"{self.num_files:,} with {format_bytes(self.size_bytes)}"),
            ("rows", format_count(self.num_records)),
            ("partitions", partitions if self.partition_columns else "not partitioned"),
            ("protocol", f"reader {self.reader_version}, writer {self.writer_version}"),
            ("checkpoint", checkpoint),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        names = ["version", "timestamp", "operation", "adds", "removes", "bytes", "rows"]
        rows = clip_to_datetime_range(self.commits.select(names)).to_pylist()
        return [
            (
                str(row["version"]),
                "" if row["timestamp"] is None else f"{row['timestamp']:%Y-%m-%d %H:%M:%S}",
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
        lines += [f"warning: {escape_control_characters(text)}" for text in self.warnings] or [
            "healthy: no warnings"
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        health = [("warning", text) for text in self.warnings] or [("healthy", "yes")]
        facts = [*self._facts(), ("columns", self._columns()), *health]
        return format_html_card(
            self.uri, facts, format_html_table(_COMMIT_HEADS, self._rows(), _RIGHT_ALIGNED)
        )


_SCALAR_FIELDS = (
    "uri",
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

"""Is a table healthy, and what is in it: one screen."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import number, python_times
from arrowlog.log.segment import checkpoint_versions
from arrowlog.look import count_text, html_card, html_table, plain, size_text, text_table

if TYPE_CHECKING:
    from arrowlog.config import Config
    from arrowlog.sql.ask import Asking
    from arrowlog.state.snapshot import Snapshot

_SMALL = 1 << 20
_MANY_SMALL = 100
_SCHEMA_LINES = 4
_WIDTH = 78
_HEADS = ("version", "time (UTC)", "operation", "adds", "removes", "bytes", "rows")
_NUMBERS = (0, 3, 4, 5, 6)


@dataclass(frozen=True)
class Overview:
    """What `arrowlog info` shows. `warnings` is empty if nothing needs eyes."""

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
        """Whether there is nothing to warn of."""
        return not self.warnings

    def to_arrow(self) -> pa.Table:
        """One row with everything but the last commits."""
        row: dict[str, Any] = {name: [getattr(self, name)] for name in _PLAIN}
        row["partition_columns"] = pa.array([list(self.partition_columns)], pa.list_(pa.string()))
        names = [f"{item.name}: {item.type}" for item in self.schema]
        row["columns"] = pa.array([names], pa.list_(pa.string()))
        row["healthy"] = [self.healthy]
        row["warnings"] = pa.array([list(self.warnings)], pa.list_(pa.string()))
        return pa.table(row)

    def _facts(self) -> list[tuple[str, str]]:
        parts = count_text(self.num_partitions)
        split = f"{parts} by {', '.join(self.partition_columns)}"
        checkpoint = "none"
        if self.checkpoint is not None:
            checkpoint = f"version {self.checkpoint}, {self.commits_since:,} commits since"
        return [
            ("version", f"{self.version}, readable from {self.earliest_version} on"),
            ("files", f"{self.num_files:,} with {size_text(self.size_bytes)}"),
            ("rows", count_text(self.num_records)),
            ("partitions", split if self.partition_columns else "not partitioned"),
            ("protocol", f"reader {self.reader_version}, writer {self.writer_version}"),
            ("checkpoint", checkpoint),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        names = ["version", "timestamp", "operation", "adds", "removes", "bytes", "rows"]
        rows = python_times(self.commits.select(names)).to_pylist()
        return [
            (
                str(row["version"]),
                "" if row["timestamp"] is None else f"{row['timestamp']:%Y-%m-%d %H:%M:%S}",
                row["operation"] or "-",
                f"{row['adds']:,}",
                f"{row['removes']:,}",
                "" if row["bytes"] is None else size_text(row["bytes"]),
                "" if row["rows"] is None else f"{row['rows']:,}",
            )
            for row in rows
        ]

    def _columns(self) -> str:
        return ", ".join(f"{item.name} {item.type}" for item in self.schema)

    def __str__(self) -> str:
        """Facts, columns, the last commits, and what needs eyes: about twenty lines."""
        lines = [self.uri]
        lines += [f"{name:<11} {plain(value)}" for name, value in self._facts()]
        wrapped = textwrap.wrap(plain(self._columns()), _WIDTH - 12) or ["none"]
        if len(wrapped) > _SCHEMA_LINES:
            more = len(self.schema)
            wrapped = [*wrapped[: _SCHEMA_LINES - 1], f"… {more} columns in all"]
        lines += [f"{'' if n else 'columns':<11} {text}" for n, text in enumerate(wrapped)]
        lines += ["", *text_table(_HEADS, self._rows(), _NUMBERS), ""]
        lines += [f"warning: {plain(text)}" for text in self.warnings] or [
            "healthy: nothing to warn of"
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        told = [("warning", text) for text in self.warnings] or [("healthy", "yes")]
        facts = [*self._facts(), ("columns", self._columns()), *told]
        return html_card(self.uri, facts, html_table(_HEADS, self._rows(), _NUMBERS))


_PLAIN = (
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


def overview(asking: Asking, commits: int) -> Overview:
    """Look at the newest snapshot, its log and the last commits."""
    follower = asking.follower
    snapshot = follower.newest()
    past = asking.past(snapshot.version, None)
    bases = [v for v in checkpoint_versions(past.listing) if v <= snapshot.version]
    checkpoint = bases[0] if bases else None
    since = snapshot.version - (-1 if checkpoint is None else checkpoint)
    return Overview(
        follower.store.root,
        snapshot.version,
        past.first,
        snapshot.num_files,
        snapshot.size_bytes,
        snapshot.num_records,
        _partitions(snapshot),
        snapshot.partition_columns,
        snapshot.schema,
        snapshot.protocol.min_reader_version,
        snapshot.protocol.min_writer_version,
        checkpoint,
        since,
        asking.history(commits),
        tuple(_warnings(snapshot, past.note(), since, follower.config)),
    )


def _partitions(snapshot: Snapshot) -> int | None:
    names = snapshot.partition_columns
    if not names:
        return None
    columns = {f"c{n}": snapshot.columns.partition(name) for n, name in enumerate(names)}
    return int(pa.table(columns).group_by(list(columns)).aggregate([]).num_rows)


def _warnings(snapshot: Snapshot, note: str, since: int, config: Config) -> list[str]:
    found = list(snapshot.report.warnings)
    if "are gone" in note:
        found.append(note)
    if config.checkpoint_enabled and since > 2 * config.checkpoint_interval:
        found.append(f"{since:,} commits after the last checkpoint: make one to open it faster")
    if not snapshot.num_files:
        return found
    sizes = snapshot.state.column("size")
    small = pc.sum(pc.less(sizes, number(_SMALL))).as_py() or 0
    if small > _MANY_SMALL and small * 2 > len(sizes):
        found.append(f"{small:,} of {len(sizes):,} files are smaller than 1 MB")
    silent = snapshot.columns.num_records().null_count
    if silent:
        found.append(f"{silent:,} of {len(sizes):,} files do not say how many rows they have")
    return found

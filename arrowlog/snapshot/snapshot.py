"""Snapshot: an immutable version of a table. State: what log replay produced for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.display import format_bytes, format_count, format_html_card, format_html_table
from arrowlog.formats.indextables import INDEXTABLES, RecentCommits
from arrowlog.snapshot.file_source import CACHED_SELECTION_FILES_MAX, insert_evicting_oldest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.formats import Format, Metadata, Protocol
    from arrowlog.snapshot.file_source import FileSource
    from arrowlog.snapshot.file_table import FileStats
    from arrowlog.snapshot.log_segment import VersionGap


@dataclass(frozen=True, slots=True)
class Report:
    """How a snapshot was loaded: its source, its cost, and any warnings.

    `source` is `commits`, `checkpoint`, `refresh` if only new commits were read, or `copy` if the
    disk cache held the newest version.
    """

    version: int
    source: str
    checkpoint: int | None = None
    commits_read: int = 0
    files_read: int = 0
    bytes_read: int = 0
    milliseconds: float = 0.0
    warnings: tuple[str, ...] = ()
    gap: VersionGap | None = None

    def __str__(self) -> str:
        """One line of facts, then one line per warning."""
        base = "no checkpoint" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        if self.source == "copy":
            base = "a local copy"
        if self.source == "refresh":
            base = f"version {self.version - self.commits_read} in memory"
        facts = (
            f"version {self.version} from {base} + {_plural(self.commits_read, 'commit')}"
            f" ({_plural(self.files_read, 'file')}, {self.bytes_read:,} bytes,"
            f" {self.milliseconds:.1f} ms)"
        )
        return "\n".join([facts, *(f"warning: {text}" for text in self.warnings)])


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class State:
    """The result of log replay: protocol, metadata, and the live adds as Arrow columns.

    `source` holds the live files, or reads them from a checkpoint on demand. `adds` has a column
    `key`, the file's path relative to the table. `timestamp` is the latest commit timestamp, in
    milliseconds. `txns` maps an application id to its last application transaction and the table
    version that holds it. `recent` holds the transaction ids of the last commits. `format` is that
    of the log.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    source: FileSource
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits = field(default_factory=RecentCommits)
    format: Format = INDEXTABLES

    @property
    def adds(self) -> pa.Table:
        """All live adds. Reads them if they are still in a checkpoint."""
        return self.source.adds()

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return self.source.num_files

    def column(self, name: str) -> pa.ChunkedArray:
        """Return one column of the adds that every add has, such as `key`, `path` or `size`."""
        return self.source.column(name)


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. Properties are computed on first use and kept."""

    state: State = field(repr=False)
    _report: Report = field(repr=False)
    _given: pa.Table | None = field(default=None, repr=False, compare=False)

    @property
    def report(self) -> Report:
        """How this snapshot was loaded, with warnings that came up later.

        Damage in a checkpoint shows only when its rows are read.
        """
        late = self.state.source.warnings
        if not late:
            return self._report
        return replace(self._report, warnings=(*self._report.warnings, *late))

    def only(self, groups: Sequence[int]) -> Snapshot:
        """Return this snapshot restricted to some row groups of its checkpoint.

        Files added after the checkpoint stay. The last few results are kept.
        """
        key = tuple(groups)
        restricted = self._restrictions.get(key)
        if restricted is None:
            files = self.state.source.select_row_groups(key)
            restricted = Snapshot(replace(self.state, source=files), self._report)
            if files.max_files <= CACHED_SELECTION_FILES_MAX:
                insert_evicting_oldest(self._restrictions, key, restricted)
        return restricted

    def restricted_to(self, source: FileSource) -> Snapshot:
        """Return this snapshot restricted to the files of a source that was made from its own."""
        if source is self.state.source:
            return self
        return Snapshot(replace(self.state, source=source), self._report)

    @cached_property
    def _restrictions(self) -> dict[tuple[int, ...], Snapshot]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cached restrictions."""
        return {name: value for name, value in self.__dict__.items() if name != "_restrictions"}

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.state.version

    @property
    def protocol(self) -> Protocol:
        """The reader and writer versions and features that the table requires."""
        return self.state.protocol

    @property
    def metadata(self) -> Metadata:
        """Identity, schema text, partitioning and properties of the table."""
        return self.state.metadata

    @property
    def schema(self) -> pa.Schema:
        """The table's schema, partition columns included."""
        return self.state.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition columns, in order."""
        return self.state.metadata.partition_columns

    @property
    def num_files(self) -> int:
        """The number of live files."""
        return self.state.num_files

    @cached_property
    def size_bytes(self) -> int:
        """The size of all live files in bytes."""
        return int(pc.sum(self.state.column("size")).as_py() or 0) if self.num_files else 0

    @cached_property
    def num_records(self) -> int | None:
        """The number of rows in all live files; None if it is unknown for one of them."""
        rows = self.columns.num_records()
        return None if rows.null_count else int(pc.sum(rows).as_py() or 0)

    @cached_property
    def files(self) -> pa.Table:
        """The live files as a typed table, one row per file. The README lists the columns."""
        if self._given is not None:
            return self._given
        return self.state.source.files(self.schema, self.partition_columns)

    @cached_property
    def columns(self) -> FileStats:
        """The columns of `files` one at a time, for data skipping, which needs few of them."""
        return self.state.source.stats(self.schema, self.partition_columns)

    def __repr__(self) -> str:
        """One line for a prompt."""
        return (
            f"Snapshot(version={self.version}, files={self.num_files:,}, bytes={self.size_bytes:,})"
        )

    def _repr_html_(self) -> str:
        """A card with the size, the columns and the source of this snapshot, for notebooks."""
        partitions = ", ".join(self.partition_columns) or "none"
        facts = [
            ("files", f"{self.num_files:,}"),
            ("bytes", format_bytes(self.size_bytes)),
            ("rows", format_count(self.num_records)),
            ("partitioned by", partitions),
            ("read from", str(self.report).partition("\n")[0]),
            *(("warning", text) for text in self.report.warnings),
        ]
        name = self.metadata.name
        columns = format_html_table(
            ["column", "type"], [[item.name, str(item.type)] for item in self.schema]
        )
        title = f"{name or 'table'} at version {self.version}"
        return format_html_card(title, facts, columns)

"""A table at one version, as it will be forever."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.recent import RecentCommits
from arrowlog.look import count_text, html_card, html_table, size_text
from arrowlog.state.deferred import PICK_ROWS, Deferred, DeferredColumns, keep_last
from arrowlog.state.files import Columns, files_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.log.actions import Metadata, Protocol
    from arrowlog.log.segment import Gap


@dataclass(frozen=True, slots=True)
class Report:
    """Where a state came from, what it cost, and what to look at.

    `source` is `commits`, `checkpoint`, `refresh` if only what was new was read, or `copy` if a
    local copy was found to be the newest version.
    """

    version: int
    source: str
    checkpoint: int | None = None
    commits_read: int = 0
    files_read: int = 0
    bytes_read: int = 0
    milliseconds: float = 0.0
    warnings: tuple[str, ...] = ()
    gap: Gap | None = None

    def __str__(self) -> str:
        """A line for the facts, and one for each warning."""
        base = "no checkpoint" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        if self.source == "copy":
            base = "a local copy"
        if self.source == "refresh":
            base = f"version {self.version - self.commits_read} in memory"
        facts = (
            f"version {self.version} from {base} + {_counted(self.commits_read, 'commit')}"
            f" ({_counted(self.files_read, 'file')}, {self.bytes_read:,} bytes,"
            f" {self.milliseconds:.1f} ms)"
        )
        return "\n".join([facts, *(f"warning: {text}" for text in self.warnings)])


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class State:
    """The truth in columns: protocol, metadata, and the decoded adds that are live.

    `source` holds the adds, or knows how to read them. `adds` has a column `key`, the file's path
    relative to the table. `timestamp` is the latest time that a commit gives for itself, in
    milliseconds; `txns` has the last step of each application that counts its commits, and the
    version that holds it. `recent` has the ids of the last commits.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    source: pa.Table | Deferred
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits = field(default_factory=RecentCommits)

    @property
    def adds(self) -> pa.Table:
        """The live adds, all of them; where they are not read yet, they are read now."""
        return self.source.adds() if isinstance(self.source, Deferred) else self.source

    @property
    def num_files(self) -> int:
        """How many files are live."""
        source = self.source
        return source.num_files if isinstance(source, Deferred) else int(source.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of the adds: `key`, `path`, `size` or another that every add has."""
        source = self.source
        return source.column(name) if isinstance(source, Deferred) else source[name]

    @property
    def deferred(self) -> Deferred | None:
        """The adds where they are not all read, and typed by this state's schema."""
        source = self.source
        if not isinstance(source, Deferred) or source.loaded:
            return None
        return source if source.fits(self.schema, self.metadata.partition_columns) else None


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. Everything is computed when asked for, and once."""

    state: State = field(repr=False)
    _report: Report = field(repr=False)
    _given: pa.Table | None = field(default=None, repr=False, compare=False)

    @property
    def report(self) -> Report:
        """Where this came from, what it cost to open, and what to look at."""
        source = self.state.source
        if not isinstance(source, Deferred) or not source.notes:
            return self._report
        return replace(self._report, warnings=(*self._report.warnings, *source.notes))

    def only(self, groups: Sequence[int]) -> Snapshot:
        """The same without the files in other groups of the checkpoint it is read from."""
        source, key = self.state.source, tuple(groups)
        assert isinstance(source, Deferred)
        found = self._picks.get(key)
        if found is None:
            pick = source.only(key)
            found = Snapshot(replace(self.state, source=pick), self._report)
            if pick.rows.count <= PICK_ROWS:
                keep_last(self._picks, key, found)
        return found

    @cached_property
    def _picks(self) -> dict[tuple[int, ...], Snapshot]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickled without what is only kept for the next question."""
        return {name: value for name, value in self.__dict__.items() if name != "_picks"}

    @property
    def version(self) -> int:
        """The version of the table this is."""
        return self.state.version

    @property
    def protocol(self) -> Protocol:
        """Which readers and writers the table admits."""
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
        """The columns the table is partitioned by, in order."""
        return self.state.metadata.partition_columns

    @property
    def num_files(self) -> int:
        """How many files are live."""
        return self.state.num_files

    @cached_property
    def size_bytes(self) -> int:
        """Bytes in all live files."""
        return int(pc.sum(self.state.column("size")).as_py() or 0) if self.num_files else 0

    @cached_property
    def num_records(self) -> int | None:
        """Rows in all live files; None if a file does not say."""
        rows = self.columns.num_records()
        return None if rows.null_count else int(pc.sum(rows).as_py() or 0)

    @cached_property
    def files(self) -> pa.Table:
        """The live files, one row each, typed. See the README for the columns."""
        if self._given is not None:
            return self._given
        deferred = self.state.deferred
        if deferred is not None:
            return deferred.files(self.schema, self.partition_columns)
        return files_table(self.state.adds, self.schema, self.partition_columns)

    @cached_property
    def columns(self) -> Columns:
        """The columns of `files` one by one, for questions that need a few of them."""
        deferred = self.state.deferred
        if deferred is not None:
            return DeferredColumns(deferred, self.schema, self.partition_columns)
        return Columns(self.state.adds, self.schema, self.partition_columns)

    def __repr__(self) -> str:
        """Short, and useful at a prompt."""
        return (
            f"Snapshot(version={self.version}, files={self.num_files:,}, bytes={self.size_bytes:,})"
        )

    def _repr_html_(self) -> str:
        """What is in it, its columns, and where it came from."""
        partitions = ", ".join(self.partition_columns) or "none"
        facts = [
            ("files", f"{self.num_files:,}"),
            ("bytes", size_text(self.size_bytes)),
            ("rows", count_text(self.num_records)),
            ("partitioned by", partitions),
            ("read from", str(self.report).partition("\n")[0]),
            *(("warning", text) for text in self.report.warnings),
        ]
        name = self.metadata.name
        columns = html_table(
            ["column", "type"], [[item.name, str(item.type)] for item in self.schema]
        )
        title = f"{name or 'table'} at version {self.version}"
        return html_card(title, facts, columns)

"""A table at one version, as it will be forever."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.state.files import files_table

if TYPE_CHECKING:
    from arrowlog.log.actions import Metadata, Protocol


@dataclass(frozen=True, slots=True)
class Report:
    """Where a state came from, what it cost, and what to look at."""

    version: int
    source: str
    checkpoint: int | None = None
    commits_read: int = 0
    files_read: int = 0
    bytes_read: int = 0
    milliseconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A line for the facts, and one for each warning."""
        base = "no checkpoint" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        facts = (
            f"version {self.version} from {base} + {self.commits_read} commits"
            f" ({self.files_read} files, {self.bytes_read:,} bytes, {self.milliseconds:.1f} ms)"
        )
        return "\n".join([facts, *(f"warning: {text}" for text in self.warnings)])


@dataclass(frozen=True, slots=True)
class State:
    """The truth in columns: protocol, metadata, and the decoded adds that are live.

    `adds` has a column `key`, the file's path relative to the table.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    adds: pa.Table


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. Everything is computed when asked for, and once."""

    state: State = field(repr=False)
    report: Report = field(repr=False)
    _given: pa.Table | None = field(default=None, repr=False, compare=False)

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
        return int(self.state.adds.num_rows)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes in all live files."""
        return int(pc.sum(self.state.adds["size"]).as_py() or 0) if self.num_files else 0

    @cached_property
    def num_records(self) -> int | None:
        """Rows in all live files; None if a file does not say."""
        rows = self.files["num_records"]
        return None if rows.null_count else int(pc.sum(rows).as_py() or 0)

    @cached_property
    def files(self) -> pa.Table:
        """The live files, one row each, typed. See the README for the columns."""
        if self._given is not None:
            return self._given
        return files_table(self.state.adds, self.schema, self.partition_columns)

    def __repr__(self) -> str:
        """Short, and useful at a prompt."""
        return (
            f"Snapshot(version={self.version}, files={self.num_files:,}, bytes={self.size_bytes:,})"
        )

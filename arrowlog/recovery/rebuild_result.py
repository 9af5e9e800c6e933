"""What a rebuild has done, would do or is refused for, as a value that prints well. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.display import escape_control_characters, format_bytes, format_html_card
from arrowlog.formats import format_spark_schema

_MAX_NAMED_FILES = 5  # files of each kind that the text names
_COMES_BACK = (
    "Rows that were deleted, overwritten or compacted come back if their files are still there."
)


@dataclass(frozen=True, slots=True)
class RebuildProblem:
    """Why a rebuild is refused.

    Attributes:
        code: the kind of problem, for programs: `other-logs`, `links`, `damaged`, `unsupported`,
            `schema-conflict`, `schema-nulls`, `schema-invalid`, `partition-layout`,
            `partition-unknown` or `partition-type`.
        what: what is wrong.
        next: what to do about it.
        files: the paths of the files concerned.
    """

    code: str
    what: str
    next: str
    files: pa.Array = field(repr=False)

    def __str__(self) -> str:
        """The problem and the next step in one line."""
        return f"{self.code}: {self.what} {self.next}"


@dataclass(frozen=True, slots=True, repr=False)
class RebuildResult:
    """The table that a rebuild has made or, with `dry_run`, would make.

    Attributes:
        uri: path or URL of the table.
        schema: the schema of the table; None if no file could be read.
        partition_columns: names of the partition columns.
        files: the data files: path, size_bytes, modification_time, num_records.
        left_out: all other files: path, size_bytes, reason.
        problems: why a rebuild is refused; empty if it is not.
        notes: what is worth knowing about the files.
        ignored_logs: other logs in the folder.
        dry_run: whether nothing was written on purpose.
        version: the version that was written; None if nothing was written.
        milliseconds: the duration.

    Examples:
        >>> import tempfile
        >>> import arrowlog, pyarrow as pa, pyarrow.parquet as pq
        >>> folder = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"id": [1, 2]}), f"{folder}/a.parquet")
        >>> arrowlog.rebuild(folder, dry_run=True).num_records
        2
        >>> arrowlog.rebuild(folder).version, arrowlog.Table(folder).snapshot().num_files
        (0, 1)
    """

    uri: str
    schema: pa.Schema | None
    partition_columns: tuple[str, ...]
    files: pa.Table
    left_out: pa.Table
    problems: tuple[RebuildProblem, ...] = ()
    notes: tuple[str, ...] = ()
    ignored_logs: tuple[str, ...] = ()
    dry_run: bool = False
    version: int | None = None
    milliseconds: float = 0.0

    @property
    def num_files(self) -> int:
        """Number of data files."""
        return int(self.files.num_rows)

    @property
    def num_records(self) -> int:
        """Number of rows in the data files."""
        return int(pc.sum(self.files["num_records"]).as_py() or 0)

    @property
    def size_bytes(self) -> int:
        """Total size of the data files."""
        return int(pc.sum(self.files["size_bytes"]).as_py() or 0)

    def to_arrow(self) -> pa.Table:
        """One row: what was done, files, rows, bytes, schema, problems and files left out."""
        problems = [
            {"code": p.code, "what": p.what, "next": p.next, "files": p.files.to_pylist()}
            for p in self.problems
        ]
        kinds = {
            "problems": pa.list_(
                pa.struct(
                    [
                        ("code", pa.string()),
                        ("what", pa.string()),
                        ("next", pa.string()),
                        ("files", pa.list_(pa.string())),
                    ]
                )
            ),
            "left_out": pa.list_(pa.struct(list(self.left_out.schema))),
            "notes": pa.list_(pa.string()),
            "partition_columns": pa.list_(pa.string()),
        }
        return pa.table(
            {
                "path": make_array([self.uri], pa.string()),
                "status": make_array([self.status], pa.string()),
                "version": make_array([self.version], pa.int64()),
                "num_files": make_array([self.num_files], pa.int64()),
                "num_records": make_array([self.num_records], pa.int64()),
                "size_bytes": make_array([self.size_bytes], pa.int64()),
                "schema": make_array(
                    [None if self.schema is None else format_spark_schema(self.schema)], pa.string()
                ),
                "partition_columns": pa.array(
                    [list(self.partition_columns)], kinds["partition_columns"]
                ),
                "problems": pa.array([problems], kinds["problems"]),
                "left_out": pa.array([self.left_out.to_pylist()], kinds["left_out"]),
                "notes": pa.array([list(self.notes)], kinds["notes"]),
            }
        )

    @property
    def status(self) -> str:
        """`rebuilt`, `would be rebuilt`, or `refused` if there are problems."""
        if self.version is not None:
            return "rebuilt"
        return "refused" if self.problems else "would be rebuilt"

    def __str__(self) -> str:
        """What was done, the schema, what was left out, problems and notes."""
        counts = f"{self.num_files:,} files, {self.num_records:,} rows"
        lines = [f"{self.uri}: {self.status}; {counts}, {format_bytes(self.size_bytes)}"]
        for item in self.schema or ():
            marks = " (partition)" * (item.name in self.partition_columns)
            marks += " not null" * (not item.nullable)
            lines.append(f"  {escape_control_characters(item.name)}: {item.type}{marks}")
        lines += self._left_out_lines()
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append(f"note: {_COMES_BACK}")
        return "\n".join(lines)

    __repr__ = __str__

    def _left_out_lines(self) -> list[str]:
        counts = Counter(self.left_out["reason"].to_pylist())
        lines = []
        for reason, count in sorted(counts.items()):
            mask = pc.equal(self.left_out["reason"], reason)
            paths = self.left_out.filter(mask)["path"].slice(0, _MAX_NAMED_FILES).to_pylist()
            names = ", ".join(map(escape_control_characters, paths))
            more = f" and {count - len(paths):,} more" if count > len(paths) else ""
            lines.append(f"left out, {reason}: {names}{more}")
        if counts["damaged"]:
            lines.append("note: vacuum deletes damaged files later; move them away to keep them")
        return lines

    def _repr_html_(self) -> str:
        facts = [tuple(line.strip().split(": ", 1)) for line in str(self).splitlines()[1:]]
        return format_html_card(
            str(self).splitlines()[0], [(f[0], f[-1]) for f in facts if len(f) == 2]
        )

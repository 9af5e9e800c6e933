"""What a report says, as plain values, and what it must not say. Pure.

Facts can be compared, tested and encoded as JSON. Times are in UTC. A section is None if there is
nothing to say, such as the partitions of a table that has none, or if it could not be computed;
then `ReportFacts.unavailable` says why.

`Redaction` makes texts safe to mail: without secrets and, unless asked for, without paths. URLs
lose their user info and query strings, as in errors. Without paths, the table is `TABLE`, files of
its log keep their names, and every other path becomes a short hash, by which its owner can
recognize it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 -- msgspec decodes JSON by the annotations
from typing import TYPE_CHECKING

from arrowlog.errors import redact
from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FindingFacts:
    """One finding of the doctor."""

    code: str
    severity: str
    what: str
    where: str
    fix: str
    count: int


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """The result of the doctor: `items` are the most severe findings, `total` counts all of them.

    `version` is the latest version that can be read. `scope` says what was checked, if that is not
    everything.
    """

    version: int | None
    scope: str
    errors: int
    warnings: int
    infos: int
    total: int
    items: tuple[FindingFacts, ...]

    @property
    def counts(self) -> str:
        """The number of findings by severity in words, such as `1 error, 2 notes`."""
        severities = (("error", self.errors), ("warning", self.warnings), ("note", self.infos))
        told = [f"{n:,} {word}{'' if n == 1 else 's'}" for word, n in severities if n]
        return ", ".join(told) or "no findings"

    @property
    def worst(self) -> str:
        """The highest severity, or `healthy`."""
        severities = (("error", self.errors), ("warning", self.warnings), ("info", self.infos))
        return next((name for name, count in severities if count), "healthy")


@dataclass(frozen=True, slots=True)
class SummaryFacts:
    """The newest version in numbers."""

    version: int
    earliest_version: int | None
    num_files: int
    size_bytes: int
    num_records: int | None
    num_columns: int
    partition_columns: tuple[str, ...]
    reader_version: int
    writer_version: int
    features: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """The live files after the last commit up to a time."""

    time: datetime
    version: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ChurnBucket:
    """What the commits of one period added and removed. A file that was added again is neither."""

    start: datetime
    end: datetime
    commits: int
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """All commits of one operation. `operation` is None where commits name none."""

    operation: str | None
    commits: int
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int
    last: datetime | None


@dataclass(frozen=True, slots=True)
class TimelineFacts:
    """The history over time.

    `unit` is the length of a churn bucket, such as `day`. `num_moved` counts commits whose time
    contradicts the order of the versions or lies in the future: they stand beside their neighbours.
    `note` says which part of the history is gone.
    """

    first_version: int
    last_version: int
    num_commits: int
    unit: str
    growth: tuple[GrowthPoint, ...]
    churn: tuple[ChurnBucket, ...]
    operations: tuple[OperationFacts, ...]
    num_operations: int
    num_moved: int
    note: str


@dataclass(frozen=True, slots=True)
class SizeBucket:
    """Files of at least `low` and less than `high` bytes."""

    low: int
    high: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LargeFile:
    """One of the largest files."""

    path: str
    bytes: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class FileSizeFacts:
    """Sizes of the live files. `small_*` count files below `small_limit` bytes."""

    buckets: tuple[SizeBucket, ...]
    minimum: int
    median: int
    p90: int
    maximum: int
    mean: int
    small_limit: int
    small_files: int
    small_bytes: int
    largest: tuple[LargeFile, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition: its values in the order of the partition columns; None is NULL."""

    values: tuple[str | None, ...]
    files: int
    bytes: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class PartitionsFacts:
    """All partitions in numbers, and the largest: by bytes, and by files.

    `tenth_share` is the share of all bytes in the largest tenth of the partitions.
    """

    columns: tuple[str, ...]
    total: int
    median_bytes: int
    max_bytes: int
    median_files: int
    max_files: int
    single_file: int
    tenth_share: float
    largest: tuple[PartitionFacts, ...]


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """Statistics of one column, and how well they prune.

    `null_rows` of `counted_rows` are NULL, in the files that tell both numbers.

    `lookup_files` is the number of files that a lookup `column = value` reads on average, if the
    value is one of the bounds in the log, and `max_overlap` the highest number. `verdict` is:

    - `prunes`: a lookup reads at most a tenth of the other files,
    - `partly`: at most half of them,
    - `poor`: more than half of them,
    - `single`: there are too few files to tell,
    - `none`: no file has bounds,
    - `unsupported`: the type has no bounds.
    """

    name: str
    type: str
    is_partition: bool
    files_with_min: int
    files_with_max: int
    files_with_bounds: int
    files_with_null_count: int
    null_rows: int
    counted_rows: int
    lookup_files: float | None
    max_overlap: int | None
    verdict: str


@dataclass(frozen=True, slots=True)
class ColumnsFacts:
    """The columns, in the order of the schema; `total` counts those that are left out as well."""

    num_files: int
    files_with_rows: int
    num_rows: int | None
    total: int
    items: tuple[ColumnFacts, ...]


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """One checkpoint or table state."""

    version: int
    format: str
    parts: int
    size_bytes: int
    written: datetime | None
    is_last: bool


@dataclass(frozen=True, slots=True)
class CheckpointsFacts:
    """How far readers are from the newest checkpoint, and the newest checkpoints."""

    version: int | None
    commits_since: int
    interval: int | None
    total: int
    items: tuple[CheckpointFacts, ...]


@dataclass(frozen=True, slots=True)
class RetentionStep:
    """What a cleanup would delete at a time, and what would stay readable."""

    days_ahead: int
    commits: int
    files: int
    bytes: int
    earliest_version: int
    num_versions: int


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """The retention settings, and cleanups at several times if nothing is committed until then."""

    log_days: float
    checkpoint_days: float
    steps: tuple[RetentionStep, ...]


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """One commit."""

    version: int
    time: datetime | None
    operation: str | None
    adds: int | None
    removes: int | None
    bytes: int | None
    rows: int | None
    engine: str | None


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything that a report shows.

    `unavailable` has the sections that could not be computed, and the reason of each.
    """

    name: str
    location: str | None
    format: str
    generated: datetime
    arrowlog_version: str
    with_paths: bool
    health: HealthFacts
    summary: SummaryFacts | None = None
    timeline: TimelineFacts | None = None
    file_sizes: FileSizeFacts | None = None
    partitions: PartitionsFacts | None = None
    columns: ColumnsFacts | None = None
    checkpoints: CheckpointsFacts | None = None
    retention: RetentionFacts | None = None
    commits: tuple[CommitFacts, ...] | None = None
    unavailable: dict[str, str] = field(default_factory=dict)


_TABLE = "TABLE"
_TEXT_MAX, _LABEL_MAX = 1200, 120  # characters; the rest is cut
# A quoted text, or a run without spaces and the punctuation around a path.
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"(),;]+""")
_DATA_FILE = re.compile(r"\.(?:parquet|split|orc|avro|bin|csv|json|tmp|crc)\b", re.IGNORECASE)


def hash_path(path: str) -> str:
    """Return a short name for a path, the same in every report.

    >>> hash_path("day=1/part-0.parquet")
    'file-87e41d72'
    """
    digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    return f"file-{digest[:8]}"


@dataclass(frozen=True, slots=True)
class Redaction:
    """How texts of one report are redacted.

    `root` is the address of the table and `log_folder` the name of its log; `paths` keeps paths.
    """

    root: str
    log_folder: str
    paths: bool

    def clean(self, text: str, files: pa.Array | None = None) -> str:
        """Return a text as a report shows it; `files` are data files that it may name.

        >>> redaction = Redaction("/data/events", "_transaction_log", paths=False)
        >>> redaction.clean("arrowlog.repair('/data/events/_transaction_log')")
        "arrowlog.repair('TABLE/_transaction_log')"
        >>> redaction.clean("'day=1/a b.parquet' is missing.")
        "'file-5a8d553e' is missing."
        """
        shown = redact(text)
        if not self.paths:
            shown = self._without_paths(shown, files)
        return shown if len(shown) <= _TEXT_MAX else f"{shown[:_TEXT_MAX]}…"

    def label(self, text: str) -> str:
        """Return a name, a value or an operation: it is no path, even if it has a slash."""
        shown = redact(text[: 4 * _LABEL_MAX])
        return shown if len(shown) <= _LABEL_MAX else f"{shown[:_LABEL_MAX]}…"

    def name_of_table(self) -> str:
        """Return the last folder of the table's address."""
        last = redact(self.root).rstrip("/").rpartition("/")[2]
        return self.label(last) or _TABLE

    def _without_paths(self, text: str, files: pa.Array | None) -> str:
        # Texts can be as long as the list of the files they concern; only the start is shown.
        shown = text[: 2 * _TEXT_MAX].replace(self.root, _TABLE) if self.root else text
        for path in _named_files(shown, files):
            shown = shown.replace(path, hash_path(path))
        return _TOKEN.sub(lambda match: self._token(match[0]), shown)

    def _token(self, token: str) -> str:
        quote = token[0] if token[0] in "'\"" else ""
        path = token.strip(quote) if quote else token.rstrip(".:")
        tail = token[len(quote) + len(path) :]
        own = path.removeprefix(f"{_TABLE}/")
        in_log = own.startswith(self.log_folder) and ".." not in own and " " not in own
        if path == _TABLE or in_log or not ("/" in path or _DATA_FILE.search(path)):
            return token
        return f"{quote}{hash_path(own)}{tail}"


def _named_files(text: str, files: pa.Array | None) -> list[str]:
    """Return the files that a text names, the longest first."""
    if files is None or not len(files):
        return []
    paths = pl.DataFrame({"path": pl.Series(pl.from_arrow(files), dtype=pl.String)})
    shortened = paths.filter(pl.col("path").str.len_chars() > 0)
    named = shortened.filter(pl.lit(text).str.contains(pl.col("path"), literal=True))
    return sorted(named["path"].unique().to_list(), key=len, reverse=True)

"""What a report says, as plain values: they can be compared, tested and encoded as JSON. Pure.

Times are in UTC. A section is None if it could not be computed; `ReportFacts.unavailable` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 -- msgspec reads the annotations

# How well a column prunes, best first; see `ColumnFacts.verdict`.
VERDICTS = ("prunes", "partly", "poor", "single", "none", "unsupported")


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

"""The format seam: what every table format has to answer about its files. Pure.

A `Format` is a frozen description plus pure functions. It is chosen once, when a table is opened,
by which log folder is there (`arrowlog.snapshot.listing.open_log`). Listing, decoding, replay, data
skipping and history ask it; none of them knows which format it serves. A new format is a subclass
of `Format`, an entry in `FORMATS` there, and a reader for each new kind of checkpoint form. The
values that describe a log are here too: protocol, metadata, its files, recent and retired versions.

The kind of a field says how an action's field is stored in columns:

- TEXT, INT, BOOL: a column of that type.
- WORD: text that repeats from file to file; a dictionary-encoded column.
- FLAT: a map with text values; one column `field.key` per key.
- JSON: anything else; a column of JSON text.
- STATS: JSON text that contains `numRecords` and the maps in `STATS_MAPS`; columns
  `stats.numRecords`, `stats.minValues.key` and so on beside the text.

In a table from the columnar decoder, FLAT and STATS fields are already split into columns. A table
from the row decoder holds them as JSON text in a column with the name of the field, and has a
column `raw` that is true; `flatten_map_columns` in `arrowlog.decode` looks up the keys that are
needed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from arrowlog.errors import InvalidRequest, UnsupportedProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrowlog.storage import ObjectStat

MAX_VERSION = (1 << 63) - 1
# The next step for a table that this release cannot read.
UPGRADE = "Upgrade arrowlog, or read the table with the program that wrote it."
# A stalled writer that is further behind gets CommitStateUnknown. 1,000 random ids take 36 KB in a
# checkpoint and cover 10 seconds at 100 commits per second.
MAX_RECENT_COMMITS = 1000
RETIRED_FOLDER = "_retired"
_RETIRED_RECORD = re.compile(r"([0-9]{20})-([0-9]{20})\.json")
# Maps of `stats` whose values are numbers of rows: NULLs, and NaNs of floating-point columns.
STATS_COUNTS = ("nullCount", "nanCount")
STATS_MAPS = ("minValues", "maxValues", *STATS_COUNTS)


class FieldKind(Enum):
    """How a field is stored in columns; see the module docstring."""

    TEXT = "text"
    INT = "int"
    BOOL = "bool"
    WORD = "word"
    FLAT = "flat"
    JSON = "json"
    STATS = "stats"

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the column with the name of the field."""
        import pyarrow as pa  # file names are classified without it

        if self is FieldKind.INT:
            return pa.int64()
        if self is FieldKind.BOOL:
            return pa.bool_()
        if self is FieldKind.WORD:
            return pa.dictionary(pa.int32(), pa.string())
        return pa.string()


@dataclass(frozen=True, eq=False)
class ActionFields:
    """The actions of a log and their fields: the one definition that every decoder reads.

    `fields` has a table of fields for each action that is decoded into columns; it must contain
    `add`, `remove` and `commitInfo`. `protocol` and `metaData` are decoded separately, and other
    actions are ignored. `required` names the fields that a line must have. `aliases` maps further
    names of actions to those in `fields`. `partial_metadata` admits a `metaData` without a schema,
    which is an error only if no later one has it. Instances are compared by identity, so that
    decoders can cache what they derive from one.
    """

    fields: Mapping[str, Mapping[str, FieldKind]]
    required: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    partial_metadata: bool = False

    def __post_init__(self) -> None:
        """Register the instance, so that pickling finds it again."""
        _ACTION_FIELDS.setdefault(repr(self), self)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by content; a process that has an equal instance gets that one back."""
        parts = (self.fields, self.required, self.aliases, self.partial_metadata)
        return _restore_action_fields, parts

    @property
    def add_map_fields(self) -> tuple[str, ...]:
        """The fields of an add that are maps with text values."""
        return tuple(name for name, kind in self.fields["add"].items() if kind is FieldKind.FLAT)


_ACTION_FIELDS: dict[str, ActionFields] = {}


def _restore_action_fields(
    fields: Mapping[str, Mapping[str, FieldKind]],
    required: Mapping[str, tuple[str, ...]],
    aliases: Mapping[str, str],
    partial_metadata: bool,  # noqa: FBT001 -- only pickle calls this
) -> ActionFields:
    restored = ActionFields(fields, required, aliases, partial_metadata=partial_metadata)
    return _ACTION_FIELDS[repr(restored)]


@dataclass(frozen=True, slots=True)
class Protocol:
    """The minimum versions and the features that a client must support to use a table."""

    min_reader_version: int = 1
    min_writer_version: int = 1
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a table: identity, schema, partitioning, properties."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    format_provider: str = "indextables"
    format_options: Mapping[str, str] = field(default_factory=dict)
    created_time: int | None = None


@dataclass(frozen=True, slots=True)
class RecentCommits:
    """The `txnId` of each version from `first` on; None for a commit without one.

    Versions below `first` are unknown, which is different from None. A writer that cannot tell
    whether its commit is part of the log looks it up: the newest snapshot holds the ids of the last
    thousand versions, and checkpoints contain them, so that the answer survives the deletion of the
    commit files.
    """

    first: int = 0
    txn_ids: tuple[str | None, ...] = ()

    @property
    def last(self) -> int:
        """The newest version that is known; `first - 1` if none is."""
        return self.first + len(self.txn_ids) - 1

    def knows(self, version: int) -> bool:
        """Return whether the id of a version is known, including a known absence."""
        return self.first <= version <= self.last

    def txn_id(self, version: int) -> str | None:
        """Return the id of the commit at a known version; None if the commit has no id."""
        return self.txn_ids[version - self.first]

    def version_of(self, txn_id: str) -> int | None:
        """Return the version of the commit with this id; None if it is not among them."""
        if txn_id not in self.txn_ids:
            return None
        return self.first + self.txn_ids.index(txn_id)

    def extended(self, txn_ids: Sequence[str | None]) -> RecentCommits:
        """Return these ids followed by more, limited to the last `MAX_RECENT_COMMITS`."""
        ids = (*self.txn_ids, *txn_ids)
        num_dropped = max(len(ids) - MAX_RECENT_COMMITS, 0)
        return RecentCommits(self.first + num_dropped, ids[num_dropped:])

    def followed_by(self, later: RecentCommits) -> RecentCommits:
        """Return these ids and later ones; only the later ones if versions between are unknown."""
        if not later.txn_ids or later.first > self.last + 1:
            return later if later.txn_ids else self
        return self.extended(later.txn_ids)


def no_recent_commits(version: int) -> RecentCommits:
    """Return an empty `RecentCommits` for a checkpoint at `version` that holds no ids."""
    return RecentCommits(version + 1)


def retired_record_name(first: int, last: int) -> str:
    """Return the file name of the record of versions `first` to `last`.

    >>> retired_record_name(1, 480)
    '00000000000000000480-00000000000000000001.json'
    """
    return f"{last:020d}-{first:020d}.json"


@dataclass(frozen=True, slots=True)
class RetiredVersions:
    """A set of versions as disjoint ascending ranges, both ends inclusive.

    Retired versions are those of commits that cleanup or truncation may have deleted. Before a
    commit file is deleted, its version is recorded in `_retired/<last>-<first>.json`. The record
    makes deletion safe in the presence of stalled writers. A writer that was suspended between
    reading the end of the log and its put may find its version free *because the commit there was
    deleted*. Its put then succeeds, but the file is not part of the log: readers ignore commit
    files at retired versions, and a writer whose version is retired must look up in the log whose
    commit that version was.

    All information is in the file names, so one listing is enough. A record is deleted only after a
    record exists that covers it and sorts after it: a listing in ascending order cannot miss both.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, version: object) -> bool:
        if not self.ranges or not isinstance(version, int):
            return False
        index = bisect_right(self.ranges, (version, version)) - 1
        # A range that starts at `version` and ends later sorts after (version, version).
        return self._covers(index, version) or self._covers(index + 1, version)

    def _covers(self, index: int, version: int) -> bool:
        if not 0 <= index < len(self.ranges):
            return False
        first, last = self.ranges[index]
        return first <= version <= last

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether any version from `first` to `last` is retired."""
        return any(low <= last and first <= high for low, high in self.ranges)

    def union(self, versions: Iterable[int]) -> RetiredVersions:
        """Return this set with further versions."""
        return _merge_ranges([*self.ranges, *((version, version) for version in versions)])


def parse_retired_records(names: Iterable[str]) -> RetiredVersions:
    """Return the versions that the records in a `_retired` folder cover; ignore other names."""
    return _merge_ranges([(first, last) for first, last, _ in _parse_records(names)])


def _parse_records(names: Iterable[str]) -> list[tuple[int, int, str]]:
    """Return first version, last version and name of each record."""
    matches = [match for name in names if (match := _RETIRED_RECORD.fullmatch(name)) is not None]
    return [(int(match[2]), int(match[1]), match[0]) for match in matches]


def _merge_ranges(ranges: Iterable[tuple[int, int]]) -> RetiredVersions:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return RetiredVersions(tuple(merged))


def superseded_records(names: Iterable[str], ranges: Iterable[tuple[int, int]]) -> list[str]:
    """Return the records that may be deleted, given `ranges` that are recorded already.

    A record may be deleted if one of the ranges covers it and the range's record sorts after it.
    """
    recorded = list(ranges)
    return [
        name
        for first, last, name in _parse_records(names)
        if any(low <= first and last < high for low, high in recorded)
    ]


class CommitFile(NamedTuple):
    """A commit in the log: its version, and the key of its file in the store."""

    version: int
    key: str

    @property
    def name(self) -> str:
        """The file name, which writers spell differently."""
        return self.key.rpartition("/")[2]


class CheckpointForm(NamedTuple):
    """One form of a checkpoint: its kind, which chooses the reader, and the keys of its files.

    Parts that a manifest lists may be missing from `keys`.
    """

    kind: str
    keys: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The file names, without their folder."""
        return tuple(key.rpartition("/")[2] for key in self.keys)


Checkpoints = dict[int, tuple[CheckpointForm, ...]]


@dataclass(frozen=True, slots=True)
class LogListing:
    """The files of a log, by version, as their names tell.

    `commits` holds the key of each commit. `checkpoints` holds the forms of each checkpoint, the
    one that is read first before the others. Versions below `start` were not listed. `dead` are
    commit files at `retired` versions, which are not part of the log. `observed` is when the
    listing began, by `clock.boottime`. `compactions` holds the keys of compacted commits, by their
    first and last version: each has the reconciled actions of these commits. `stats` holds those of
    the objects in the log folder and its checkpoint folder, by name relative to the log folder, if
    a network store's listing was kept with them.
    """

    format: Format
    commits: dict[int, str] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=dict)
    start: int = 0
    dead: dict[int, str] = field(default_factory=dict)
    retired: RetiredVersions = field(default_factory=RetiredVersions)
    observed: float = field(default=float("-inf"), compare=False)
    compactions: dict[tuple[int, int], str] = field(default_factory=dict)
    stats: Mapping[str, ObjectStat] = field(default_factory=dict, compare=False)

    def commit_file(self, version: int) -> CommitFile | None:
        """Return the commit of a version; None if there is none."""
        key = self.commits.get(version)
        return None if key is None else CommitFile(version, key)

    def commit_files(self, versions: Iterable[int] | None = None) -> list[CommitFile]:
        """Return the commits of some versions, which must exist; by default all, in log order."""
        chosen = sorted(self.commits) if versions is None else list(versions)
        pairs = zip(chosen, map(self.commits.__getitem__, chosen), strict=True)
        # As `CommitFile._make` does, without a call of Python for each of many thousand commits.
        return list(map(tuple.__new__, repeat(CommitFile), pairs))

    def commits_after(self, base: int) -> list[CommitFile]:
        """Return the commits after a version, up to the first missing one."""
        last = base
        while last + 1 in self.commits:
            last += 1
        return self.commit_files(range(base + 1, last + 1))

    def checkpoint_form(self, version: int, kind: str) -> CheckpointForm | None:
        """Return one form of a version's checkpoint; None if it is not there."""
        forms = self.checkpoints.get(version, ())
        return next((form for form in forms if form.kind == kind), None)

    def state_file(self, version: int) -> CommitFile | None:
        """Return the file of a version's table state; None if there is none."""
        for form in self.checkpoints.get(version, ()):
            if form.kind in self.format.state_kinds:
                return CommitFile(version, form.keys[0])
        return None

    def tip_file(self, version: int) -> CommitFile | None:
        """Return the file that makes a version part of the log: its commit, else its state."""
        return self.commit_file(version) or self.state_file(version)

    @property
    def state_only_version(self) -> int:
        """The highest version above 0 that has a table state and no commit; -1 if there is none.

        A writer for which states are the commits made it. Such writers ignore JSON commits, and
        others may have put commits below it that are not part of the table.
        """
        if not self.format.state_kinds:
            return -1
        # Not a difference of key sets: that would visit every commit of a long log.
        without = (v for v in self.checkpoints if v > 0 and v not in self.commits)
        return max((v for v in without if self.state_file(v)), default=-1)

    def applied_commits(self) -> dict[int, str]:
        """Return the commits that are part of the table for certain.

        Below a state without a commit, only that of version 0 is: see `state_only_version`.
        """
        shadow = self.state_only_version
        if shadow < 0:
            return self.commits
        return {v: key for v, key in self.commits.items() if v == 0 or v > shadow}

    def only(
        self, commits: Mapping[int, str] | None = None, checkpoints: Checkpoints | None = None
    ) -> LogListing:
        """Return a listing of nothing but some of the commits and checkpoints."""
        return LogListing(self.format, dict(commits or {}), dict(checkpoints or {}))

    def without(self, retired: RetiredVersions) -> LogListing:
        """Return the listing with the commits at retired versions moved to `dead`."""
        if not retired:
            return self
        dead = {v: key for v, key in self.commits.items() if v in retired}
        commits = {v: key for v, key in self.commits.items() if v not in dead}
        return replace(self, commits=commits, dead=dead, retired=retired)

    @property
    def overtaken(self) -> bool:
        """Whether the file names were listed before the records of retired versions were written.

        Commits are retired only below a checkpoint. If no listed checkpoint is above all retired
        versions, that checkpoint was written after the names were listed.
        """
        ranges = self.retired.ranges
        return bool(ranges) and ranges[-1][1] >= max(self.checkpoints, default=-1)

    @property
    def empty(self) -> bool:
        """Whether there is no log."""
        return not (self.commits or self.checkpoints)

    @property
    def newest(self) -> int:
        """The highest version of any commit or checkpoint; -1 if there is none."""
        return max(max(self.commits, default=-1), max(self.checkpoints, default=-1))


@dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """A table format, as data and pure functions.

    Attributes:
        name: how users see it, as `Table.format`.
        log_folder: the folder of the log, relative to the table's root.
        checkpoint_folder: a folder inside the log whose names `classify` needs too; empty if none.
        retired_folder: a folder inside the log with records of deleted commits; empty if none.
        state_kinds: kinds of checkpoint forms that may be the only file of a version, as they are
            the commits of some writers.
        pointer_name: the file inside the log that names a recent checkpoint, only a hint.
        actions: the fields of each action.
        reader_versions: the reader versions that can be read.
        writer_versions: the writer versions that can be written; empty for a read-only format.
        features: the names of supported features, for readers and writers.
        lost_checkpoint_is_error: whether a log with nothing but version 0 is damaged if its pointer
            names a checkpoint.
        protocol_required: whether a log without a protocol action is damaged.
        gap_is_error: whether a missing commit makes the table unreadable, or only later versions.
        compressed_commits: whether commits may be compressed, as their first bytes tell.
        verified_commits: whether `numActions` and `checksum` of a commitInfo declare its content.
        txn_action: the action with application transactions; None if they are in the commitInfo.
        highest_txn_counts: whether the highest version of an application transaction counts, or
            the last one in the log.
        commit_time_field: the field of a `CommitInfo` with the time of the commit; without it, the
            modification time of the file counts.
        creation_time_counts: whether `metaData.createdTime` is the time of a commit without a
            commitInfo.
        monotonic_file_times: whether the time of a commit that carries none is the modification
            time of its file, made strictly increasing.
        default_provider: `metaData.format.provider` if the log does not tell.
        empty_partition_is_null: whether empty text is NULL in a partition column of type text too.
        hive_partition_is_null: whether Hive's marker for NULL counts as a partition value.
        dates_become_timestamps: whether a column of timestamps without a zone may have been one of
            dates, so that bare dates are values of it.
        rounded_decimals: whether a writer may have rounded the bounds of decimals to doubles.
        stats_text_listed: whether `Snapshot.files` has the statistics as text besides the typed
            columns.
    """

    name: str
    log_folder: str
    actions: ActionFields
    checkpoint_folder: str = ""
    retired_folder: str = ""
    pointer_name: str = "_last_checkpoint"
    state_kinds: frozenset[str] = frozenset()
    reader_versions: range = range(1, 2)
    writer_versions: range = range(0)
    features: frozenset[str] = frozenset()
    lost_checkpoint_is_error: bool = False
    protocol_required: bool = False
    gap_is_error: bool = False
    compressed_commits: bool = False
    verified_commits: bool = False
    txn_action: str | None = None
    highest_txn_counts: bool = True
    commit_time_field: str = "timestamp"
    creation_time_counts: bool = True
    monotonic_file_times: bool = False
    default_provider: str = "parquet"
    empty_partition_is_null: bool = False
    hive_partition_is_null: bool = True
    dates_become_timestamps: bool = False
    rounded_decimals: bool = False
    stats_text_listed: bool = True

    @abstractmethod
    def commit_name(self, version: int) -> str:
        """Return the file name of a commit, as it is written."""

    @abstractmethod
    def classify(
        self, names: Iterable[str], checkpoint_names: Iterable[str] = (), start: int = 0
    ) -> LogListing:
        """Classify the file names in the log folder and in `checkpoint_folder`.

        Names that do not belong to the log are ignored. `start` is recorded in the listing. Raises
        `LogCorrupt` if two names stand for the commit of the same version.
        """

    @property
    def writable(self) -> bool:
        """Whether arrowlog can write tables of this format."""
        return bool(self.writer_versions)

    def relocated(self, log_folder: str) -> Format:
        """Return the same format with its log in another folder."""
        return replace(self, log_folder=log_folder)

    def key(self, *names: str) -> str:
        """Return the key of a file or folder inside the log."""
        return "/".join((self.log_folder, *names))

    def commit_file(self, version: int) -> CommitFile:
        """Return the commit of a version under the name that is written."""
        return CommitFile(version, self.key(self.commit_name(version)))

    def commit_name_candidates(self, version: int, like: str) -> tuple[str, ...]:
        """Return the names that the commit after one named `like` may have, likely ones first."""
        del like
        return (self.commit_name(version),)

    def state_name(self, version: int) -> str:
        """Return the name of a version's table state inside the log; empty if there are none."""
        del version
        return ""

    def first_name(self, version: int) -> str:
        """Return a text that sorts before the names of all files of a version or a later one."""
        return f"{version:020d}"

    def required_features(self, protocol: Protocol, *, write: bool) -> tuple[str, ...]:
        """Return the features that a protocol requires of a reader, or of a writer."""
        return protocol.writer_features if write else protocol.reader_features

    def check_readable(self, protocol: Protocol, where: str) -> None:
        """Raise `UnsupportedProtocol` unless this version of arrowlog can read the table.

        The message names every unknown feature. `where` names the file or table.
        """
        self._check_protocol("reader", protocol.min_reader_version, protocol, where)

    def check_writable(self, protocol: Protocol, where: str) -> None:
        """Raise unless this version of arrowlog can read and write the table.

        `InvalidRequest` if the format is read-only, `UnsupportedProtocol` if the protocol is not
        supported.
        """
        self.require_writable()
        self.check_readable(protocol, where)
        self._check_protocol("writer", protocol.min_writer_version, protocol, where)

    def require_writable(self) -> None:
        """Raise `InvalidRequest` if the format is read-only."""
        if not self.writable:
            raise InvalidRequest(
                f"arrowlog only reads tables in the {self.name} format; nothing was written.",
                next="Change the table with the program that wrote it, or change a copy that"
                " arrowlog.convert(uri, target) makes.",
            )

    def _check_protocol(self, role: str, version: int, protocol: Protocol, where: str) -> None:
        supported = self.reader_versions if role == "reader" else self.writer_versions
        features = self.required_features(protocol, write=role == "writer")
        unknown = sorted(set(features) - self.features)
        highest = supported[-1]
        if version <= highest and not unknown:
            return
        needs = f"{role} version {version}"
        if unknown:
            needs += f" and the features {', '.join(unknown)}"
        verb = "read" if role == "reader" else "write"
        raise UnsupportedProtocol(
            f"{where}: the table needs {needs}; this arrowlog supports {role} version {highest} and"
            f" the features {', '.join(sorted(self.features)) or 'none'}.",
            next=UPGRADE.replace("read", verb),
            code="feature-unknown" if unknown else "protocol-unknown",
        )

    def table_schema(self, metadata: Metadata, protocol: Protocol) -> pa.Schema:
        """Return the schema of a table, with logical column names.

        A field whose name in the data files, statistics and partition values is different has it
        under `PHYSICAL_NAME_KEY` in its metadata (column mapping). Raises `ValueError` if the
        metadata holds no valid schema.
        """
        from arrowlog.formats.table_schema import parse_spark_schema

        del protocol
        return parse_spark_schema(metadata.schema_string)

    def normalized_files(self, actions: pa.Table) -> pa.Table:
        """Return `add` or `remove` actions with `path` as a user sees it, by default unchanged."""
        return actions

    def file_keys(self, actions: pa.Table, paths: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return what identifies the file of each `add` or `remove`, by default its path.

        `paths` are the normalized paths, relative to the table where they lie below it.
        """
        del actions
        return paths

    def commit_times_declared_since(self, metadata: Metadata) -> int | None:
        """Return the first version whose commit declares its time; None if no commit does.

        `metadata` is that of the newest version. Earlier commits have the times of their files.
        """
        del metadata
        return 0

    def live_records(self, records: pa.ChunkedArray, adds: pa.Table) -> pa.ChunkedArray:
        """Return how many rows of each file are not deleted; `records` are those it has."""
        del adds
        return records

    def auxiliary_paths(self, adds: pa.Table) -> Sequence[str]:
        """Return the paths of files, besides the data files, that reading the rows needs."""
        del adds
        return ()

    def inexact_bounds(self, adds: pa.Table) -> pa.ChunkedArray | None:
        """Return which files may have bounds wider than the rows that are left; None for none."""
        del adds
        return None

    def paths_of(self, keys: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the paths of files, relative to the table, from what `file_keys` returned."""
        return keys

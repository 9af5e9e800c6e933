"""Bin packing for compaction: adjacent small files of a partition, up to a target size. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_int64
from arrowlog.decode import flatten_map_columns
from arrowlog.fork_safety import pl
from arrowlog.transaction import UNREADABLE_PARTITION, typed_partition_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from arrowlog.snapshot import State

# A file of at least this fraction of the target size is left alone: rewriting it gains little.
MIN_TARGET_FRACTION = 0.75
_PARQUET_NAME = r"(?i)\.(?:parquet|parq|pq)$"
_SOURCE_FIELDS = ("size", "modificationTime", "numRecords", "numMergeOps", "tags")
_TAGS = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be merged, with the fields of its add."""

    key: str
    size: int
    modification_time: int
    num_records: int | None = None
    merges: int = 0
    tags: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Files of one partition that are merged into one, in the order of the table's live files."""

    number: int
    partition: Mapping[str, str | None]
    sources: tuple[SourceFile, ...] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(source.size for source in self.sources)

    @property
    def keys(self) -> list[str]:
        """The paths of the files, relative to the table."""
        return [source.key for source in self.sources]

    def without(self, key: str) -> CompactionGroup:
        """Return the group without one of its files."""
        return replace(self, sources=tuple(s for s in self.sources if s.key != key))

    def tags(self) -> dict[str, str]:
        """Return the tags that all files share; they hold for the merged file too."""
        common: dict[str, str] | None = None
        for text in {source.tags for source in self.sources}:
            tags = _decode_tags(text)
            kept = tags if common is None else common
            common = {name: value for name, value in kept.items() if tags.get(name) == value}
        return common or {}


def _decode_tags(text: str | None) -> dict[str, str]:
    """Decode the JSON of tags; empty if absent or not a map of strings."""
    try:
        return {} if text is None else _TAGS.decode(text)
    except msgspec.DecodeError:
        return {}


def plan_groups(
    state: State,
    *,
    chosen: pa.Array | None,
    excluded: pa.Array,
    target: int,
    max_files: int,
) -> list[CompactionGroup]:
    """Plan groups of at least two files each.

    `chosen` restricts the plan to these paths (None: all files), `excluded` are keys to leave out.
    `target` is the size in bytes of a merged file. Files are not merged if they are large enough
    already, not Parquet by their name, or if their partition values cannot be parsed.
    """
    if not state.num_files:
        return []
    adds = _candidates(state, chosen, excluded, target)
    columns = state.metadata.partition_columns
    names = [f"partitionValues.{name}" for name in columns]
    frame = pl.DataFrame(pl.from_arrow(adds))
    partitions = [frame] if not names else frame.partition_by(names, maintain_order=True)
    groups: list[CompactionGroup] = []
    for files in partitions:
        sizes = files["size"].to_list()
        for rows in pack_adjacent(sizes, target, max_files):
            packed = files[rows]
            values = packed.select(names).row(0) if names else ()
            partition = dict(zip(columns, values, strict=True))
            groups.append(CompactionGroup(len(groups), partition, tuple(_sources(packed))))
    return groups


def _sources(files: pl.DataFrame) -> Iterator[SourceFile]:
    for key, size, time, records, merges, tags in files.select("key", *_SOURCE_FIELDS).iter_rows():
        yield SourceFile(key, size, time, records, merges or 0, tags)


def _candidates(state: State, chosen: pa.Array | None, excluded: pa.Array, target: int) -> pa.Table:
    """Return the small Parquet files: key, fields of `SourceFile`, and raw partition values."""
    adds: pa.Table = state.adds
    keep = pc.and_(
        pc.match_substring_regex(adds["key"], _PARQUET_NAME),
        pc.less(adds["size"], make_int64(max(int(target * MIN_TARGET_FRACTION), 1))),
    )
    keep = pc.and_not(keep, pc.is_in(adds["key"], value_set=excluded))
    if chosen is not None:
        keep = pc.and_(keep, pc.is_in(adds["path"], value_set=chosen))
    columns = state.metadata.partition_columns
    small = flatten_map_columns(adds.filter(keep), columns)
    if small.num_rows and columns:
        parsed = pc.invert(
            typed_partition_values(small, state.schema, columns)[UNREADABLE_PARTITION]
        )
        small = small.filter(parsed)
    selected = {"key": small["key"]} if small.num_rows else {"key": pa.nulls(0, pa.string())}
    types: dict[str, Any] = {"tags": pa.string()}
    for name in (*_SOURCE_FIELDS, *(f"partitionValues.{name}" for name in columns)):
        type_ = types.get(name, pa.string() if "." in name else pa.int64())
        present = name in small.column_names
        selected[name] = pc.cast(small[name], type_) if present else pa.nulls(small.num_rows, type_)
    return pa.table(selected)


def pack_adjacent(sizes: Sequence[int], target: int, max_files: int) -> Iterable[list[int]]:
    """Yield runs of at least two adjacent positions whose sizes fit into the target together.

    Next-fit on adjacent files rather than a best fit, so that rows keep the order of the table.

    >>> list(pack_adjacent([4, 5, 3, 3, 9, 1], 10, 100))
    [[0, 1], [2, 3], [4, 5]]
    """
    run: list[int] = []
    total = 0
    for row, size in enumerate(sizes):
        if run and (total + size > target or len(run) >= max_files):
            if len(run) > 1:
                yield run
            run, total = [], 0
        run.append(row)
        total += size
    if len(run) > 1:
        yield run

"""Which small files become one: files of a partition, side by side, up to a size. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.rivals import UNKNOWN, partitions_of
from arrowlog.fork_safety import pl
from arrowlog.log.arrays import number
from arrowlog.log.lines import flatten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from arrowlog.state.snapshot import State

ENOUGH = 0.75  # of the target: a file as large as that is left alone
_PARQUET = r"(?i)\.(?:parquet|parq|pq)$"
_FACTS = ("size", "modificationTime", "numRecords", "numMergeOps", "tags")
_TAGS = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is to be part of a larger one, as the log has it."""

    key: str
    size: int
    modification_time: int
    num_records: int | None = None
    merges: int = 0
    tags: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Files that become one: all of one partition, in the order of the table."""

    number: int
    partition: Mapping[str, str | None]
    sources: tuple[Source, ...] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """How many bytes the files have."""
        return sum(source.size for source in self.sources)

    @property
    def keys(self) -> list[str]:
        """Their paths."""
        return [source.key for source in self.sources]

    def without(self, key: str) -> Group:
        """The group less a file."""
        return replace(self, sources=tuple(s for s in self.sources if s.key != key))

    def tags(self) -> dict[str, str]:
        """What all files are tagged with alike: that holds for the new one too."""
        common: dict[str, str] | None = None
        for text in {source.tags for source in self.sources}:
            found = _tags(text)
            kept = found if common is None else common
            common = {name: value for name, value in kept.items() if found.get(name) == value}
        return common or {}


def _tags(text: str | None) -> dict[str, str]:
    try:
        return {} if text is None else _TAGS.decode(text)
    except msgspec.DecodeError:
        return {}


def plan_groups(
    state: State,
    *,
    chosen: pa.Array | None,
    leave: pa.Array,
    target: int,
    max_files: int,
) -> list[Group]:
    """Groups of at least two files; `chosen` are paths to look at, `leave` keys to leave out.

    Files that are large enough stay, as do those that are not Parquet by their name, and those
    whose partition cannot be read.
    """
    if not state.num_files:
        return []
    adds = _candidates(state, chosen, leave, target)
    columns = state.metadata.partition_columns
    names = [f"partitionValues.{name}" for name in columns]
    facts = pl.DataFrame(pl.from_arrow(adds))
    parts = [facts] if not names else facts.partition_by(names, maintain_order=True)
    groups: list[Group] = []
    for part in parts:
        sizes = part["size"].to_list()
        for bin_ in pack(sizes, target, max_files):
            rows = part[bin_]
            values = rows.select(names).row(0) if names else ()
            partition = dict(zip(columns, values, strict=True))
            groups.append(Group(len(groups), partition, tuple(_sources(rows))))
    return groups


def _sources(rows: pl.DataFrame) -> Iterator[Source]:
    for key, size, time, records, merges, tags in rows.select("key", *_FACTS).iter_rows():
        yield Source(key, size, time, records, merges or 0, tags)


def _candidates(state: State, chosen: pa.Array | None, leave: pa.Array, target: int) -> pa.Table:
    """The small Parquet files: key, facts, and the texts of their partitions."""
    adds: pa.Table = state.adds
    keep = pc.and_(
        pc.match_substring_regex(adds["key"], _PARQUET),
        pc.less(adds["size"], number(max(int(target * ENOUGH), 1))),
    )
    keep = pc.and_not(keep, pc.is_in(adds["key"], value_set=leave))
    if chosen is not None:
        keep = pc.and_(keep, pc.is_in(adds["path"], value_set=chosen))
    columns = state.metadata.partition_columns
    small = flatten(adds.filter(keep), columns)
    if small.num_rows and columns:
        known = pc.invert(partitions_of(small, state.schema, columns)[UNKNOWN])
        small = small.filter(known)
    found = {"key": small["key"]} if small.num_rows else {"key": pa.nulls(0, pa.string())}
    kinds: dict[str, Any] = {"tags": pa.string()}
    for name in (*_FACTS, *(f"partitionValues.{name}" for name in columns)):
        kind = kinds.get(name, pa.string() if "." in name else pa.int64())
        present = name in small.column_names
        found[name] = pc.cast(small[name], kind) if present else pa.nulls(small.num_rows, kind)
    return pa.table(found)


def pack(sizes: Sequence[int], target: int, max_files: int) -> Iterable[list[int]]:
    """Runs of neighbours that fit into the target; a file by itself is none.

    Neighbours, and not whatever fits best: rows stay in the order of the table.

    >>> list(pack([4, 5, 3, 3, 9, 1], 10, 100))
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

"""What each operation writes into the log. Functions here make the `prepare` of a transaction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.adds import check_adds
from arrowlog.commit.conflict import Intent, outgrown
from arrowlog.commit.rivals import UNKNOWN, partitions_of
from arrowlog.commit.transaction import Draft
from arrowlog.errors import ConcurrentRemove, InvalidRequest
from arrowlog.log.arrays import array_of, flags
from arrowlog.log.encode import (
    add_lines,
    line,
    metadata_fields,
    protocol_fields,
    remove_lines,
)
from arrowlog.log.schema import from_spark
from arrowlog.scan.predicate import matching, parse
from arrowlog.state.truncation import Truncation, truncate_adds, truncate_fields
from arrowlog.state.typed import partition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.commit.adds import Add
    from arrowlog.commit.conflict import Head
    from arrowlog.config import Config
    from arrowlog.log.actions import Metadata, Protocol
    from arrowlog.scan.predicate import Predicate
    from arrowlog.state.snapshot import State

    Prepare = Callable[[Head], Draft]


@dataclass(frozen=True, slots=True)
class Manner:
    """What every operation may say beside what it does."""

    operation: str
    data_change: bool = True
    txn: tuple[str, int] | None = None
    user_metadata: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False  # made for one version; see `Intent`


def change_files(
    adds: Sequence[Add], removes: Callable[[State], pa.Table] | None, how: Manner, world: World
) -> Prepare:
    """Add files, and remove those that `removes` picks from the live ones."""

    def prepare(head: Head) -> Draft:
        new = _add_lines(adds, head, how, world)
        gone = None if removes is None else removes(world.state(head))
        return _draft(new, adds, gone, how, world)

    return prepare


@dataclass(frozen=True, slots=True)
class World:
    """What an operation may ask: the state at a head, the time, the settings at a head."""

    state: Callable[[Head], State]
    now_ms: int
    config: Callable[[Head], Config]


def replace_all(adds: Sequence[Add], how: Manner, world: World) -> Prepare:
    """Remove every live file, whichever they are when the commit lands."""

    def prepare(head: Head) -> Draft:
        kept = array_of([add.path for add in adds], pa.string())
        live = world.state(head).adds
        gone = live.filter(pc.invert(pc.is_in(live["key"], value_set=kept)))
        draft = _draft(_add_lines(adds, head, how, world), adds, gone, how, world)
        return replace(draft, intent=Intent(exact=how.exact), rebuild=True)

    return prepare


def replace_where(adds: Sequence[Add], where: object, how: Manner, world: World) -> Prepare:
    """Remove the files of the partitions that a predicate picks; new files belong there too."""

    def prepare(head: Head) -> Draft:
        predicate = on_partitions(where, head)
        new = _add_lines(adds, head, how, world)
        _check_inside(adds, predicate, head)
        kept = array_of([add.path for add in adds], pa.string())
        gone = files_where(world.state(head), predicate)
        gone = gone.filter(pc.invert(pc.is_in(gone["key"], value_set=kept)))
        draft = _draft(new, adds, gone, how, world)
        return replace(draft, intent=replace(draft.intent, reads=sees(predicate)))

    return prepare


def _add_lines(adds: Sequence[Add], head: Head, how: Manner, world: World) -> list[bytes]:
    columns, cut = head.metadata.partition_columns, Truncation.of(world.config(head))
    fields = [
        truncate_fields(item, columns, cut, head.schema)
        for item in check_adds(adds, head.metadata, head.schema)
    ]
    if not how.data_change:
        fields = [{**item, "dataChange": False} for item in fields]
    try:
        return [line("add", item) for item in fields]
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"An add cannot be written as JSON: {error}.", next="Use text, numbers, maps and lists."
        ) from None


def _draft(
    new: Sequence[bytes], adds: Sequence[Add], gone: pa.Table | None, how: Manner, world: World
) -> Draft:
    removed = [] if gone is None else _remove_lines(gone, world, data_change=how.data_change)
    if not new and not removed:
        raise InvalidRequest(
            "The commit is empty: nothing to add, nothing to remove.", next="Give it something."
        )
    metrics = {"numAddedFiles": len(new), "numRemovedFiles": len(removed)}
    metrics["numAddedBytes"] = sum(add.size or 0 for add in adds)
    if gone is not None:
        metrics["numRemovedBytes"] = int(pc.sum(gone["size"]).as_py() or 0) if removed else 0
    rows = [add.num_records for add in adds]
    if rows and None not in rows:
        metrics["numOutputRows"] = sum(count for count in rows if count is not None)
    keys = pa.nulls(0, pa.string()) if gone is None else gone["key"].combine_chunks()
    return Draft(
        operation=how.operation,
        lines=[*removed, *new],
        intent=Intent(removes=keys, exact=how.exact),
        parameters=how.parameters,
        metrics=metrics,
        txn=how.txn,
        user_metadata=how.user_metadata,
    )


def _remove_lines(gone: pa.Table, world: World, *, data_change: bool) -> list[bytes]:
    """Removes for files; a table that never had one knows nothing of sizes either."""
    return remove_lines(gone, world.now_ms, data_change=data_change) if gone.num_rows else []


def files_named(paths: Sequence[str], before: State | None) -> Callable[[State], pa.Table]:
    """Picks files by path; one that is not live is an error, by whose fault the past tells."""

    def pick(state: State) -> pa.Table:
        if len(set(paths)) != len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise InvalidRequest(f"{twice!r} is to be removed twice.", next="Name it once.")
        wanted = array_of(paths, pa.string())
        found = state.adds.filter(pc.is_in(state.adds["key"], value_set=wanted))
        if found.num_rows < len(paths):
            _missing(wanted, found, state, before)
        return found

    return pick


def _missing(wanted: pa.Array, found: pa.Table, state: State, before: State | None) -> None:
    live = pc.is_in(wanted, value_set=found["key"].combine_chunks())
    path = wanted.filter(pc.invert(live))[0].as_py()
    if before is not None and pc.any(pc.equal(before.adds["key"], path)).as_py():
        raise ConcurrentRemove(
            f"{path!r} was removed meanwhile: it was there in version {before.version}, and is not"
            f" in version {state.version}.",
            next="Look at the table again and decide anew.",
            version=state.version,
        )
    raise InvalidRequest(
        f"{path!r} is no live file of the table at version {state.version}.",
        next="snapshot().files has the live files.",
    )


def files_where(state: State, predicate: Predicate) -> pa.Table:
    """The live files of the partitions that a predicate picks."""
    columns = state.metadata.partition_columns
    table = partitions_of(state.adds, state.schema, columns)
    odd = table.filter(table[UNKNOWN])
    if odd.num_rows:
        raise InvalidRequest(
            f"{odd['path'][0].as_py()!r} has a partition value that is not of its column's type, so"
            " nobody can tell whether it is meant.",
            next="Name the files to be removed by their paths.",
        )
    return state.adds.filter(matching(predicate, _bare(table, columns)))


def sees(predicate: Predicate) -> Callable[[pa.Table], pa.ChunkedArray]:
    """Which files of a rival a commit with this predicate should have seen."""

    def test(files: pa.Table) -> pa.ChunkedArray:
        columns = sorted(predicate.columns)
        hit = matching(predicate, _bare(files, columns))
        return pc.or_(hit, files[UNKNOWN])

    return test


def sees_all(files: pa.Table) -> pa.Array:
    """For a commit that has read everything."""
    return flags(True, files.num_rows)


def reading(prepare: Prepare, reads: Callable[[pa.Table], Any]) -> Prepare:
    """The same, and what `reads` picks of a rival's files should have been seen."""

    def prepared(head: Head) -> Draft:
        draft = prepare(head)
        return replace(draft, intent=replace(draft.intent, reads=reads))

    return prepared


def reading_where(prepare: Prepare, where: object) -> Prepare:
    """The same, for a predicate on partitions."""

    def prepared(head: Head) -> Draft:
        return reading(prepare, sees(on_partitions(where, head)))(head)

    return prepared


def made_for(then: Head, prepare: Prepare) -> Prepare:
    """The same, for files that were made for a head: another table has no use for them."""

    def prepared(head: Head) -> Draft:
        changed = outgrown(then, head)
        if changed is not None:
            raise changed
        return prepare(head)

    return prepared


def _bare(files: pa.Table, columns: Sequence[str]) -> pa.Table:
    return pa.table({name: files[f"partition.{name}"] for name in columns})


def on_partitions(where: object, head: Head) -> Predicate:
    """A predicate that only speaks of partition columns: it picks whole files."""
    predicate = parse(where, head.schema)
    others = sorted(predicate.columns - set(head.metadata.partition_columns))
    if others or not predicate.columns:
        has = ", ".join(head.metadata.partition_columns) or "none"
        what = f"{others[0]!r} is no partition column" if others else "it names no partition column"
        raise InvalidRequest(
            f"The predicate cannot pick whole files: {what}.",
            next=f"Partition columns of the table: {has}.",
        )
    if not predicate.computable:
        raise InvalidRequest(
            f"The predicate {where!r} cannot be evaluated exactly.", next="Use plain comparisons."
        )
    return predicate


def _check_inside(adds: Sequence[Add], predicate: Predicate, head: Head) -> None:
    """What replaces the partitions of a predicate must belong to them."""
    if not adds:
        return
    fields = check_adds(adds, head.metadata, head.schema)
    columns = {}
    for name in sorted(predicate.columns):
        texts = array_of([item["partitionValues"][name] for item in fields], pa.string())
        kind = head.schema.field(name).type
        columns[name] = partition_values(pa.chunked_array([texts]), kind)[0]
    inside = matching(predicate, pa.table(columns))
    if not pc.all(inside).as_py():
        number = pc.index(inside, False).as_py()
        raise InvalidRequest(
            f"adds[{number}] ({adds[number].path}) does not belong to what it replaces:"
            f" {predicate} is not true for its partition.",
            next="Change the predicate, or append the file.",
        )


def change_metadata(change: Callable[[Metadata], Metadata], how: Manner) -> Prepare:
    """New metadata made from the old one."""

    def prepare(head: Head) -> Draft:
        new = change(head.metadata)
        return Draft(
            operation=how.operation,
            lines=[line("metaData", metadata_fields(new))],
            intent=Intent(metadata=True),
            parameters=how.parameters,
            user_metadata=how.user_metadata,
            metadata=(new, from_spark(new.schema_string)),
        )

    return prepare


def telling(prepare: Prepare, protocol: Callable[[Protocol, Metadata], Protocol]) -> Prepare:
    """The same change of metadata, with the protocol that readers of the new one must know."""

    def prepared(head: Head) -> Draft:
        draft = prepare(head)
        assert draft.metadata is not None
        new = protocol(head.protocol, draft.metadata[0])
        if new == head.protocol:
            return draft
        lines = [line("protocol", protocol_fields(new)), *draft.lines]
        intent = replace(draft.intent, protocol=True)
        return replace(draft, lines=lines, intent=intent, protocol=new)

    return prepared


def change_protocol(change: Callable[[Protocol], Protocol], how: Manner) -> Prepare:
    """A higher protocol made from the old one."""

    def prepare(head: Head) -> Draft:
        new = change(head.protocol)
        return Draft(
            operation=how.operation,
            lines=[line("protocol", protocol_fields(new))],
            intent=Intent(protocol=True),
            parameters=how.parameters,
            user_metadata=how.user_metadata,
            protocol=new,
        )

    return prepare


def restore(target: State, how: Manner, world: World) -> Prepare:
    """Make the table what it was: the same files and metadata, the protocol never lower."""

    def prepare(head: Head) -> Draft:
        now = world.state(head)
        gone, back = _difference(now.adds, target.adds)
        lines = _remove_lines(gone, world, data_change=True)
        columns, config = head.metadata.partition_columns, world.config(head)
        short = truncate_adds(back, columns, config, target.schema)
        lines += add_lines(short, dataChange=True) if back.num_rows else []
        changed = target.metadata != head.metadata
        if changed:
            lines.insert(0, line("metaData", metadata_fields(target.metadata)))
        if not lines:
            raise InvalidRequest(
                f"Version {head.version} is the same as version {target.version}.",
                next="Nothing to restore; if others have changed it since, call refresh() first.",
            )
        metrics = {
            "numAddedFiles": back.num_rows,
            "numRemovedFiles": gone.num_rows,
            "numAddedBytes": int(pc.sum(back["size"]).as_py() or 0) if back.num_rows else 0,
            "numRemovedBytes": int(pc.sum(gone["size"]).as_py() or 0) if gone.num_rows else 0,
        }
        intent = Intent(
            removes=gone["key"].combine_chunks(), reads=sees_all, metadata=changed, exact=True
        )
        return Draft(
            operation=how.operation,
            lines=lines,
            intent=intent,
            parameters=how.parameters,
            metrics=metrics,
            user_metadata=how.user_metadata,
            metadata=(target.metadata, target.schema) if changed else None,
            rebuild=True,  # others may have put files in the place of those that stay
        )

    return prepare


def _difference(now: pa.Table, then: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Files that must go, and files that must come back: another add of the same file counts."""
    if not now.num_rows or not then.num_rows:
        return now, then
    place = pc.index_in(then["key"], value_set=now["key"].combine_chunks())
    both = pc.is_valid(place)
    old, new = then.filter(both), now.take(place.filter(both))
    changed = _differ(old, new)
    back = pa.concat_tables([then.filter(pc.invert(both)), old.filter(changed)])
    gone = now.filter(pc.invert(pc.is_in(now["key"], value_set=then["key"].combine_chunks())))
    return gone, back


def _differ(old: pa.Table, new: pa.Table) -> pa.Array:
    """Which of the adds that stand side by side say something else of their file."""
    changed = flags(False, old.num_rows)
    for name in sorted({*old.column_names, *new.column_names} - {"seq"}):
        if name not in old.column_names or name not in new.column_names:
            only = old if name in old.column_names else new
            changed = pc.or_(changed, pc.is_valid(only[name]))
            continue
        one, other = (_plain(table[name]) for table in (old, new))
        same = pc.fill_null(pc.equal(one, other), False)
        neither = pc.and_(pc.is_null(one), pc.is_null(other))
        changed = pc.or_(changed, pc.invert(pc.or_(same, neither)))
    return changed


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column

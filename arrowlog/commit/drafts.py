"""The content of each operation's commit.

Functions that return a `Prepare` build the callback that `transaction.run` calls with a head, and
calls again when a rebase requires it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.adds import check_adds
from arrowlog.commit.conflict import READ_AGAIN, Intent, outgrown
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
    """What the caller specified about a commit, besides its files. See `Draft` and `Intent`."""

    operation: str
    data_change: bool = True
    txn: tuple[str, int] | None = None
    user_metadata: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False


def change_files(
    adds: Sequence[Add],
    removes: Callable[[State], pa.Table] | None,
    options: Manner,
    context: World,
) -> Prepare:
    """Add files, and remove those that `removes` selects from a state."""

    def prepare(head: Head) -> Draft:
        added_lines = _add_lines(adds, head, options, context)
        removed = None if removes is None else removes(context.state(head))
        return _file_changes(added_lines, adds, removed, options, context)

    return prepare


@dataclass(frozen=True, slots=True)
class World:
    """What preparing a commit may depend on besides the head.

    Attributes:
        state: returns the state at a head.
        now_ms: the time of the operation, the `deletionTimestamp` of its removes.
        config: returns the settings in force at a head.
    """

    state: Callable[[Head], State]
    now_ms: int
    config: Callable[[Head], Config]


def replace_all(adds: Sequence[Add], options: Manner, context: World) -> Prepare:
    """Replace every file that is live when the commit lands.

    The read set is empty: the removes are computed anew after every lost race.
    """

    def prepare(head: Head) -> Draft:
        removed = without_paths(context.state(head).adds, adds)
        draft = _file_changes(
            _add_lines(adds, head, options, context), adds, removed, options, context
        )
        return replace(draft, intent=Intent(exact=options.exact), rebuild=True)

    return prepare


def replace_where(adds: Sequence[Add], where: object, options: Manner, context: World) -> Prepare:
    """Replace the files of the partitions that a predicate selects.

    Raises `InvalidRequest` if one of the new files does not belong to these partitions.
    """

    def prepare(head: Head) -> Draft:
        predicate = on_partitions(where, head)
        added_lines = _add_lines(adds, head, options, context)
        _check_inside(adds, predicate, head)
        removed = without_paths(files_where(context.state(head), predicate), adds)
        draft = _file_changes(added_lines, adds, removed, options, context)
        return replace(draft, intent=replace(draft.intent, reads=sees(predicate)))

    return prepare


def without_paths(files: pa.Table, adds: Sequence[Add]) -> pa.Table:
    """Return the files without those that are added again: an add replaces an earlier one."""
    paths = array_of([add.path for add in adds], pa.string())
    return files.filter(pc.invert(pc.is_in(files["key"], value_set=paths)))


def _add_lines(adds: Sequence[Add], head: Head, options: Manner, context: World) -> list[bytes]:
    columns, truncation = head.metadata.partition_columns, Truncation.of(context.config(head))
    fields = [
        truncate_fields(item, columns, truncation, head.schema)
        for item in check_adds(adds, head.metadata, head.schema)
    ]
    if not options.data_change:
        fields = [{**item, "dataChange": False} for item in fields]
    try:
        return [line("add", item) for item in fields]
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"An add cannot be written as JSON: {error}.", next="Use text, numbers, maps and lists."
        ) from None


def _file_changes(
    added_lines: Sequence[bytes],
    adds: Sequence[Add],
    removed: pa.Table | None,
    options: Manner,
    context: World,
) -> Draft:
    """Return the commit of file changes, with its metrics and its removes as the read set."""
    removed_lines = (
        [] if removed is None else _remove_lines(removed, context, data_change=options.data_change)
    )
    if not added_lines and not removed_lines:
        raise InvalidRequest(
            "The commit is empty: it neither adds nor removes files.",
            next="Check the paths or the predicate.",
        )
    metrics = {"numAddedFiles": len(added_lines), "numRemovedFiles": len(removed_lines)}
    metrics["numAddedBytes"] = sum(add.size or 0 for add in adds)
    if removed is not None:
        metrics["numRemovedBytes"] = (
            int(pc.sum(removed["size"]).as_py() or 0) if removed_lines else 0
        )
    rows = [add.num_records for add in adds]
    if rows and None not in rows:
        metrics["numOutputRows"] = sum(count for count in rows if count is not None)
    keys = pa.nulls(0, pa.string()) if removed is None else removed["key"].combine_chunks()
    return Draft(
        operation=options.operation,
        lines=[*removed_lines, *added_lines],
        intent=Intent(removes=keys, exact=options.exact),
        parameters=options.parameters,
        metrics=metrics,
        txn=options.txn,
        user_metadata=options.user_metadata,
    )


def _remove_lines(removed: pa.Table, context: World, *, data_change: bool) -> list[bytes]:
    """Encode removes. The table of an empty state lacks the columns that this needs, hence []."""
    return (
        remove_lines(removed, context.now_ms, data_change=data_change) if removed.num_rows else []
    )


def files_named(paths: Sequence[str], before: State | None) -> Callable[[State], pa.Table]:
    """Return a function that selects live files by path.

    A path that is not live raises `ConcurrentRemove` if it was live in `before`, the state last
    shown, and `InvalidRequest` otherwise.
    """

    def select(state: State) -> pa.Table:
        if len(set(paths)) != len(paths):
            repeated = next(path for path in paths if paths.count(path) > 1)
            raise InvalidRequest(f"{repeated!r} is to be removed twice.", next="Name it once.")
        wanted = array_of(paths, pa.string())
        selected = state.adds.filter(pc.is_in(state.adds["key"], value_set=wanted))
        if selected.num_rows < len(paths):
            _raise_missing(wanted, selected, state, before)
        return selected

    return select


def _raise_missing(
    wanted: pa.Array, selected: pa.Table, state: State, before: State | None
) -> None:
    live = pc.is_in(wanted, value_set=selected["key"].combine_chunks())
    path = wanted.filter(pc.invert(live))[0].as_py()
    if before is not None and pc.any(pc.equal(before.adds["key"], path)).as_py():
        raise ConcurrentRemove(
            f"{path!r} was removed concurrently: it is in version {before.version} but not in"
            f" version {state.version}.",
            next=READ_AGAIN,
            version=state.version,
        )
    raise InvalidRequest(
        f"{path!r} is not a live file of the table at version {state.version}.",
        next="snapshot().files lists the live files.",
    )


def files_where(state: State, predicate: Predicate) -> pa.Table:
    """Return the live files of the partitions that a predicate selects.

    Raises `InvalidRequest` if a live file has an unreadable partition value: whether it belongs to
    these partitions is unknown.
    """
    columns = state.metadata.partition_columns
    files = partitions_of(state.adds, state.schema, columns)
    unreadable = files.filter(files[UNKNOWN])
    if unreadable.num_rows:
        raise InvalidRequest(
            f"{unreadable['path'][0].as_py()!r} has a partition value that is not of its column's"
            " type, so it is unknown whether the predicate selects it.",
            next="Name the files to be removed by their paths.",
        )
    return state.adds.filter(matching(predicate, _partition_columns(files, columns)))


def sees(predicate: Predicate) -> Callable[[pa.Table], pa.ChunkedArray]:
    """Return the `Intent.reads` of a commit that read the partitions of a predicate.

    Files with an unreadable partition value count as read.
    """

    def reads(files: pa.Table) -> pa.ChunkedArray:
        columns = sorted(predicate.columns)
        matches = matching(predicate, _partition_columns(files, columns))
        return pc.or_(matches, files[UNKNOWN])

    return reads


def sees_all(files: pa.Table) -> pa.Array:
    """The `Intent.reads` of a commit that read the whole table."""
    return flags(True, files.num_rows)


def reading(prepare: Prepare, reads: Callable[[pa.Table], Any]) -> Prepare:
    """Add files to the read set of a prepared commit. See `Intent.reads`."""

    def prepared(head: Head) -> Draft:
        draft = prepare(head)
        return replace(draft, intent=replace(draft.intent, reads=reads))

    return prepared


def reading_where(prepare: Prepare, where: object) -> Prepare:
    """Add the partitions of a predicate to the read set of a prepared commit."""

    def prepared(head: Head) -> Draft:
        return reading(prepare, sees(on_partitions(where, head)))(head)

    return prepared


def made_for(then: Head, prepare: Prepare) -> Prepare:
    """Check that files written for the head `then` still fit the head that is committed to.

    Raises `MetadataChanged` otherwise.
    """

    def prepared(head: Head) -> Draft:
        conflict = outgrown(then, head)
        if conflict is not None:
            raise conflict
        return prepare(head)

    return prepared


def _partition_columns(files: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the partition values under the plain names that predicates use."""
    return pa.table({name: files[f"partition.{name}"] for name in columns})


def on_partitions(where: object, head: Head) -> Predicate:
    """Parse a predicate that selects whole files because it uses only partition columns.

    Raises `InvalidRequest` if it uses other columns or none, or cannot be evaluated exactly.
    """
    predicate = parse(where, head.schema)
    others = sorted(predicate.columns - set(head.metadata.partition_columns))
    if others or not predicate.columns:
        has = ", ".join(head.metadata.partition_columns) or "none"
        reason = (
            f"{others[0]!r} is not a partition column" if others else "it uses no partition column"
        )
        raise InvalidRequest(
            f"The predicate cannot select whole files: {reason}.",
            next=f"Partition columns of the table: {has}.",
        )
    if not predicate.computable:
        raise InvalidRequest(
            f"The predicate {where!r} cannot be evaluated exactly.", next="Use plain comparisons."
        )
    return predicate


def _check_inside(adds: Sequence[Add], predicate: Predicate, head: Head) -> None:
    """Raise `InvalidRequest` for an add outside the partitions of a predicate."""
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
            f"adds[{number}] ({adds[number].path}) does not belong to the partitions it replaces:"
            f" {predicate} is not true for it.",
            next="Change the predicate, or append the file.",
        )


def change_metadata(change: Callable[[Metadata], Metadata], options: Manner) -> Prepare:
    """Commit the metadata that `change` makes of the current one."""

    def prepare(head: Head) -> Draft:
        new = change(head.metadata)
        return Draft(
            operation=options.operation,
            lines=[line("metaData", metadata_fields(new))],
            intent=Intent(metadata=True),
            parameters=options.parameters,
            user_metadata=options.user_metadata,
            metadata=(new, from_spark(new.schema_string)),
        )

    return prepare


def telling(prepare: Prepare, protocol: Callable[[Protocol, Metadata], Protocol]) -> Prepare:
    """Add a protocol change to a metadata change that requires one.

    `protocol` returns the protocol that the new metadata requires.
    """

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


def change_protocol(change: Callable[[Protocol], Protocol], options: Manner) -> Prepare:
    """Commit the protocol that `change` makes of the current one."""

    def prepare(head: Head) -> Draft:
        new = change(head.protocol)
        return Draft(
            operation=options.operation,
            lines=[line("protocol", protocol_fields(new))],
            intent=Intent(protocol=True),
            parameters=options.parameters,
            user_metadata=options.user_metadata,
            protocol=new,
        )

    return prepare


def restore(target: State, options: Manner, context: World) -> Prepare:
    """Restore the files and metadata of an earlier state. The protocol is not lowered."""

    def prepare(head: Head) -> Draft:
        now = context.state(head)
        removed, back = _restore_changes(now.adds, target.adds)
        lines = _remove_lines(removed, context, data_change=True)
        columns, config = head.metadata.partition_columns, context.config(head)
        short = truncate_adds(back, columns, config, target.schema)
        lines += add_lines(short, dataChange=True) if back.num_rows else []
        changed = target.metadata != head.metadata
        if changed:
            lines.insert(0, line("metaData", metadata_fields(target.metadata)))
        if not lines:
            raise InvalidRequest(
                f"Version {head.version} is the same as version {target.version}.",
                next="There is nothing to restore. If other writers changed the table since, call"
                " refresh() first.",
            )
        metrics = {
            "numAddedFiles": back.num_rows,
            "numRemovedFiles": removed.num_rows,
            "numAddedBytes": int(pc.sum(back["size"]).as_py() or 0) if back.num_rows else 0,
            "numRemovedBytes": int(pc.sum(removed["size"]).as_py() or 0) if removed.num_rows else 0,
        }
        intent = Intent(
            removes=removed["key"].combine_chunks(), reads=sees_all, metadata=changed, exact=True
        )
        return Draft(
            operation=options.operation,
            lines=lines,
            intent=intent,
            parameters=options.parameters,
            metrics=metrics,
            user_metadata=options.user_metadata,
            metadata=(target.metadata, target.schema) if changed else None,
            rebuild=True,  # a winning commit may have replaced files that are the same now
        )

    return prepare


def _restore_changes(now: pa.Table, then: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the adds to be removed and those to be added to get from `now` to `then`.

    A file whose add differs between the two is added again.
    """
    if not now.num_rows or not then.num_rows:
        return now, then
    position = pc.index_in(then["key"], value_set=now["key"].combine_chunks())
    both = pc.is_valid(position)
    old, new = then.filter(both), now.take(position.filter(both))
    changed = _rows_differ(old, new)
    back = pa.concat_tables([then.filter(pc.invert(both)), old.filter(changed)])
    removed = now.filter(pc.invert(pc.is_in(now["key"], value_set=then["key"].combine_chunks())))
    return removed, back


def _rows_differ(old: pa.Table, new: pa.Table) -> pa.Array:
    """Return, row by row, whether two adds of the same file differ in any field but `seq`."""
    changed = flags(False, old.num_rows)
    for name in sorted({*old.column_names, *new.column_names} - {"seq"}):
        if name not in old.column_names or name not in new.column_names:
            only = old if name in old.column_names else new
            changed = pc.or_(changed, pc.is_valid(only[name]))
            continue
        one, other = (_without_dictionary(table[name]) for table in (old, new))
        same = pc.fill_null(pc.equal(one, other), False)
        neither = pc.and_(pc.is_null(one), pc.is_null(other))
        changed = pc.or_(changed, pc.invert(pc.or_(same, neither)))
    return changed


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string()) if pa.types.is_dictionary(column.type) else column

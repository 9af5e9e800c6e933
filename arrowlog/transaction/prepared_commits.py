"""The content of each operation's commit.

Functions that return a `Prepare` build the callback that `run_transaction` calls with a head, and
calls again when a rebase requires it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, repeat_bool, sum_exactly
from arrowlog.errors import ConcurrentRemove, InvalidRequest
from arrowlog.formats import parse_spark_schema
from arrowlog.formats.indextables import (
    encode_action,
    encode_adds,
    encode_removes,
    metadata_fields,
    protocol_fields,
)
from arrowlog.predicate import evaluate_predicate, parse_predicate
from arrowlog.snapshot import StatsTruncation, partition_values, truncate_add_fields, truncate_adds
from arrowlog.transaction.add_files import validate_adds
from arrowlog.transaction.commit_loop import PreparedCommit
from arrowlog.transaction.conflict_checker import CONFLICT_NEXT_STEP, ReadSet, check_files_fit
from arrowlog.transaction.version_race import UNREADABLE_PARTITION, typed_partition_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import Metadata, Protocol
    from arrowlog.predicate import Predicate
    from arrowlog.snapshot import State
    from arrowlog.transaction.add_files import Add
    from arrowlog.transaction.conflict_checker import TableHead

    Prepare = Callable[[TableHead], PreparedCommit]


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """What the caller specified about a commit besides its files."""

    operation: str
    data_change: bool = True
    txn: tuple[str, int] | None = None
    user_metadata: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False


def prepare_file_changes(
    adds: Sequence[Add],
    removes: Callable[[State], pa.Table] | None,
    options: CommitOptions,
    context: PrepareContext,
) -> Prepare:
    """Add files, and remove those that `removes` selects from a state."""

    def prepare(head: TableHead) -> PreparedCommit:
        added_lines = _add_lines(adds, head, options, context)
        removed = None if removes is None else removes(context.state(head))
        return _file_changes(added_lines, adds, removed, options, context)

    return prepare


@dataclass(frozen=True, slots=True)
class PrepareContext:
    """What preparing a commit may depend on besides the head.

    Attributes:
        state: returns the state at a head.
        now_ms: the time of the operation, the `deletionTimestamp` of its removes.
        config: returns the settings in force at a head.
    """

    state: Callable[[TableHead], State]
    now_ms: int
    config: Callable[[TableHead], Config]


def prepare_replace_all(
    adds: Sequence[Add], options: CommitOptions, context: PrepareContext
) -> Prepare:
    """Replace every file that is live when the commit lands.

    The read set is empty: the removes are computed anew after every lost race.
    """

    def prepare(head: TableHead) -> PreparedCommit:
        removed = without_paths(context.state(head).adds, adds)
        prepared = _file_changes(
            _add_lines(adds, head, options, context), adds, removed, options, context
        )
        return replace(prepared, read_set=ReadSet(exact=options.exact), rebuild=True)

    return prepare


def prepare_replace_partitions(
    adds: Sequence[Add], where: object, options: CommitOptions, context: PrepareContext
) -> Prepare:
    """Replace the files of the partitions that a predicate selects.

    Raises `InvalidRequest` if one of the new files does not belong to these partitions.
    """

    def prepare(head: TableHead) -> PreparedCommit:
        predicate = parse_partition_predicate(where, head)
        added_lines = _add_lines(adds, head, options, context)
        _check_inside(adds, predicate, head)
        removed = without_paths(select_files_by_partition(context.state(head), predicate), adds)
        prepared = _file_changes(added_lines, adds, removed, options, context)
        return replace(
            prepared, read_set=replace(prepared.read_set, reads=reads_partitions(predicate))
        )

    return prepare


def without_paths(files: pa.Table, adds: Sequence[Add]) -> pa.Table:
    """Return the files without those that are added again: an add replaces an earlier one."""
    paths = make_array([add.path for add in adds], pa.string())
    return files.filter(pc.invert(pc.is_in(files["key"], value_set=paths)))


def _add_lines(
    adds: Sequence[Add], head: TableHead, options: CommitOptions, context: PrepareContext
) -> list[bytes]:
    columns, truncation = head.metadata.partition_columns, StatsTruncation.of(context.config(head))
    fields = [
        truncate_add_fields(item, columns, truncation, head.schema)
        for item in validate_adds(adds, head.metadata, head.schema)
    ]
    if not options.data_change:
        fields = [{**item, "dataChange": False} for item in fields]
    try:
        return [encode_action("add", item) for item in fields]
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"An add cannot be written as JSON: {error}.", next="Use text, numbers, maps and lists."
        ) from None


def _file_changes(
    added_lines: Sequence[bytes],
    adds: Sequence[Add],
    removed: pa.Table | None,
    options: CommitOptions,
    context: PrepareContext,
) -> PreparedCommit:
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
        metrics["numRemovedBytes"] = sum_exactly(removed["size"]) if removed_lines else 0
    rows = [add.num_records for add in adds]
    if rows and None not in rows:
        metrics["numOutputRows"] = sum(count for count in rows if count is not None)
    keys = pa.nulls(0, pa.string()) if removed is None else removed["key"].combine_chunks()
    return PreparedCommit(
        operation=options.operation,
        lines=[*removed_lines, *added_lines],
        read_set=ReadSet(removes=keys, exact=options.exact),
        parameters=options.parameters,
        metrics=metrics,
        txn=options.txn,
        user_metadata=options.user_metadata,
    )


def _remove_lines(removed: pa.Table, context: PrepareContext, *, data_change: bool) -> list[bytes]:
    """Encode removes. The table of an empty state lacks the columns that this needs, hence []."""
    return (
        encode_removes(removed, context.now_ms, data_change=data_change) if removed.num_rows else []
    )


def select_files_by_path(paths: Sequence[str], before: State | None) -> Callable[[State], pa.Table]:
    """Return a function that selects live files by path.

    A path that is not live raises `ConcurrentRemove` if it was live in `before`, the state last
    shown, and `InvalidRequest` otherwise.
    """

    def select(state: State) -> pa.Table:
        if len(set(paths)) != len(paths):
            repeated = next(path for path in paths if paths.count(path) > 1)
            raise InvalidRequest(f"{repeated!r} is to be removed twice.", next="Name it once.")
        wanted = make_array(paths, pa.string())
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
            next=CONFLICT_NEXT_STEP,
            version=state.version,
        )
    raise InvalidRequest(
        f"{path!r} is not a live file of the table at version {state.version}.",
        next="snapshot().files lists the live files.",
    )


def select_files_by_partition(state: State, predicate: Predicate) -> pa.Table:
    """Return the live files of the partitions that a predicate selects.

    Raises `InvalidRequest` if a live file has an unreadable partition value: whether it belongs to
    these partitions is unknown.
    """
    columns = state.metadata.partition_columns
    files = typed_partition_values(state.adds, state.schema, columns)
    unreadable = files.filter(files[UNREADABLE_PARTITION])
    if unreadable.num_rows:
        raise InvalidRequest(
            f"{unreadable['path'][0].as_py()!r} has a partition value that is not of its column's"
            " type, so it is unknown whether the predicate selects it.",
            next="Name the files to be removed by their paths.",
        )
    return state.adds.filter(evaluate_predicate(predicate, _partition_columns(files, columns)))


def reads_partitions(predicate: Predicate) -> Callable[[pa.Table], pa.ChunkedArray]:
    """Return the `ReadSet.reads` of a commit that read the partitions of a predicate.

    Files with an unreadable partition value count as read.
    """

    def reads(files: pa.Table) -> pa.ChunkedArray:
        columns = sorted(predicate.columns)
        matches = evaluate_predicate(predicate, _partition_columns(files, columns))
        return pc.or_(matches, files[UNREADABLE_PARTITION])

    return reads


def reads_whole_table(files: pa.Table) -> pa.Array:
    """The `ReadSet.reads` of a commit that read the whole table."""
    return repeat_bool(True, files.num_rows)


def with_read_set(prepare: Prepare, reads: Callable[[pa.Table], Any]) -> Prepare:
    """Add files to the read set of a prepared commit. See `ReadSet.reads`."""

    def prepare_with(head: TableHead) -> PreparedCommit:
        prepared = prepare(head)
        return replace(prepared, read_set=replace(prepared.read_set, reads=reads))

    return prepare_with


def with_partition_read_set(prepare: Prepare, where: object) -> Prepare:
    """Add the partitions of a predicate to the read set of a prepared commit."""

    def prepare_with(head: TableHead) -> PreparedCommit:
        return with_read_set(prepare, reads_partitions(parse_partition_predicate(where, head)))(
            head
        )

    return prepare_with


def require_fitting_files(then: TableHead, prepare: Prepare) -> Prepare:
    """Check that files written for the head `then` still fit the head that is committed to.

    Raises `MetadataChanged` otherwise.
    """

    def prepare_with(head: TableHead) -> PreparedCommit:
        conflict = check_files_fit(then, head)
        if conflict is not None:
            raise conflict
        return prepare(head)

    return prepare_with


def _partition_columns(files: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the partition values under the plain names that predicates use."""
    return pa.table({name: files[f"partition.{name}"] for name in columns})


def parse_partition_predicate(where: object, head: TableHead) -> Predicate:
    """Parse a predicate that selects whole files because it uses only partition columns.

    Raises `InvalidRequest` if it uses other columns or none, or cannot be evaluated exactly.
    """
    predicate = parse_predicate(where, head.schema)
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


def _check_inside(adds: Sequence[Add], predicate: Predicate, head: TableHead) -> None:
    """Raise `InvalidRequest` for an add outside the partitions of a predicate."""
    if not adds:
        return
    fields = validate_adds(adds, head.metadata, head.schema)
    columns = {}
    for name in sorted(predicate.columns):
        texts = make_array([item["partitionValues"][name] for item in fields], pa.string())
        kind = head.schema.field(name).type
        columns[name] = partition_values(pa.chunked_array([texts]), kind)[0]
    inside = evaluate_predicate(predicate, pa.table(columns))
    if not pc.all(inside).as_py():
        number = pc.index(inside, False).as_py()
        raise InvalidRequest(
            f"adds[{number}] ({adds[number].path}) does not belong to the partitions it replaces:"
            f" {predicate} is not true for it.",
            next="Change the predicate, or append the file.",
        )


def prepare_metadata_change(
    change: Callable[[Metadata], Metadata], options: CommitOptions
) -> Prepare:
    """Commit the metadata that `change` makes of the current one."""

    def prepare(head: TableHead) -> PreparedCommit:
        new = change(head.metadata)
        return PreparedCommit(
            operation=options.operation,
            lines=[encode_action("metaData", metadata_fields(new))],
            read_set=ReadSet(metadata=True),
            parameters=options.parameters,
            user_metadata=options.user_metadata,
            metadata=(new, parse_spark_schema(new.schema_string)),
        )

    return prepare


def with_required_protocol(
    prepare: Prepare, protocol: Callable[[Protocol, Metadata], Protocol]
) -> Prepare:
    """Add a protocol change to a metadata change that requires one.

    `protocol` returns the protocol that the new metadata requires.
    """

    def prepare_with(head: TableHead) -> PreparedCommit:
        prepared = prepare(head)
        assert prepared.metadata is not None
        new = protocol(head.protocol, prepared.metadata[0])
        if new == head.protocol:
            return prepared
        lines = [encode_action("protocol", protocol_fields(new)), *prepared.lines]
        read_set = replace(prepared.read_set, protocol=True)
        return replace(prepared, lines=lines, read_set=read_set, protocol=new)

    return prepare_with


def prepare_protocol_change(
    change: Callable[[Protocol], Protocol], options: CommitOptions
) -> Prepare:
    """Commit the protocol that `change` makes of the current one."""

    def prepare(head: TableHead) -> PreparedCommit:
        new = change(head.protocol)
        return PreparedCommit(
            operation=options.operation,
            lines=[encode_action("protocol", protocol_fields(new))],
            read_set=ReadSet(protocol=True),
            parameters=options.parameters,
            user_metadata=options.user_metadata,
            protocol=new,
        )

    return prepare


def prepare_restore(target: State, options: CommitOptions, context: PrepareContext) -> Prepare:
    """Restore the files and metadata of an earlier state. The protocol is not lowered."""

    def prepare(head: TableHead) -> PreparedCommit:
        now = context.state(head)
        removed, back = _restore_changes(now.adds, target.adds)
        lines = _remove_lines(removed, context, data_change=True)
        columns, config = head.metadata.partition_columns, context.config(head)
        short = truncate_adds(back, columns, config, target.schema)
        lines += encode_adds(short, dataChange=True) if back.num_rows else []
        changed = target.metadata != head.metadata
        if changed:
            lines.insert(0, encode_action("metaData", metadata_fields(target.metadata)))
        if not lines:
            raise InvalidRequest(
                f"Version {head.version} is the same as version {target.version}.",
                next="There is nothing to restore. If other writers changed the table since, call"
                " refresh() first.",
            )
        metrics = {
            "numAddedFiles": back.num_rows,
            "numRemovedFiles": removed.num_rows,
            "numAddedBytes": sum_exactly(back["size"]) if back.num_rows else 0,
            "numRemovedBytes": sum_exactly(removed["size"]) if removed.num_rows else 0,
        }
        read_set = ReadSet(
            removes=removed["key"].combine_chunks(),
            reads=reads_whole_table,
            metadata=changed,
            exact=True,
        )
        return PreparedCommit(
            operation=options.operation,
            lines=lines,
            read_set=read_set,
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
    changed = repeat_bool(False, old.num_rows)
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

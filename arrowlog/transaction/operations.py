"""The operations that change a table: validate the request, prepare the commit, run it.

Every operation takes the table's write session. The errors that every commit can raise are listed
in `Table`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.clock import SystemClock
from arrowlog.config import (
    is_text,
    parse_argument,
    parse_at_least,
    parse_bytes,
    parse_names,
    parse_text,
    shorten,
)
from arrowlog.errors import ConcurrentAppend, InvalidRequest
from arrowlog.snapshot import StatsTruncation
from arrowlog.storage import root_spellings
from arrowlog.transaction import prepared_commits
from arrowlog.transaction.add_files import Add, add_file, parse_add, relative_data_path
from arrowlog.transaction.conflict_checker import CONFLICT_NEXT_STEP
from arrowlog.transaction.data_writer import WriteTarget, write_rows
from arrowlog.transaction.parquet_files import describe_parquet_file
from arrowlog.transaction.prepared_commits import CommitOptions, PrepareContext
from arrowlog.transaction.table_metadata import (
    metadata_with_columns,
    metadata_with_properties,
    raise_protocol,
    required_protocol,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrowlog.predicate import Predicate
    from arrowlog.snapshot import Snapshot, State
    from arrowlog.storage import Store
    from arrowlog.transaction.commit_result import CommitResult
    from arrowlog.transaction.conflict_checker import TableHead
    from arrowlog.transaction.prepared_commits import Prepare
    from arrowlog.transaction.write_session import WriteSession

WriteMode = Literal["append", "overwrite"]
# Concurrent requests for the sizes and times of data files.
_STAT_THREADS = 16
# Transaction versions of applications are 64-bit integers in the log.
_TXN_VERSION_MIN = 1 - (1 << 63)
# Rows held in memory while writing, in multiples of the target file size, and at least.
_HELD_FILES = 4
_HELD_BYTES_MIN = 1 << 20


def _context(session: WriteSession, base: Snapshot | None) -> PrepareContext:
    def state(head: Any) -> State:
        if base is not None and base.version == head.version:
            return base.state
        return session.state(head)

    return PrepareContext(state, session.clock.now_ms(), session.config)


def _base(session: WriteSession, read_version: int | None) -> Snapshot:
    """Return the snapshot that a change is based on."""
    if read_version is None:
        return session.base_snapshot()
    return session.at_version(read_version)


def _adds(session: WriteSession, given: Iterable[object]) -> list[Add]:
    """Normalize adds: paths relative to the table, missing sizes and times from the store."""
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__dataframe__"):
        raise InvalidRequest(
            f"The {type(given).__name__} has rows; it is not a list of data files.",
            next="Write rows with `table.write(data)`, or `table.write(data, mode='overwrite')`.",
        )
    if isinstance(given, (str, Add)) or hasattr(given, "keys"):
        given = [given]
    if not hasattr(given, "__iter__"):
        raise InvalidRequest(
            f"adds is {given!r}.", next="Pass a list of what add_file or add_parquet return."
        )
    store = session.store
    roots = root_spellings(store.root)
    adds = []
    for number, item in enumerate(given):
        add = parse_add(item, f"adds[{number}]")
        path = relative_data_path(add.path, store.root, roots, f"adds[{number}]")
        adds.append(add if path == add.path else replace(add, path=path))
    return _with_stats_from_store(adds, store)


def _with_stats_from_store(adds: list[Add], store: Store) -> list[Add]:
    """Fill in sizes and modification times that were not given.

    Raises `InvalidRequest` if a file without a size does not exist.
    """
    incomplete = [
        n for n, add in enumerate(adds) if add.size is None or add.modification_time is None
    ]
    if not incomplete:
        return adds
    with ThreadPoolExecutor(_STAT_THREADS) as pool:
        stats = list(pool.map(lambda n: store.stat(adds[n].path), incomplete))
    now = SystemClock().now_ms()
    for number, stat in zip(incomplete, stats, strict=True):
        add = adds[number]
        if stat is None and add.size is None:
            raise InvalidRequest(
                f"adds[{number}] ({add.path}).size is not given, and there is no such file in"
                f" {store.root}.",
                next="Write the file first, or pass its size in bytes.",
            )
        adds[number] = replace(
            add,
            size=add.size if add.size is not None or stat is None else stat.size,
            modification_time=add.modification_time
            if add.modification_time is not None
            else (now if stat is None or stat.mtime_ms < 0 else stat.mtime_ms),
        )
    return adds


def _parse_txn(txn: object) -> tuple[str, int] | None:
    if txn is None:
        return None
    if isinstance(txn, (tuple, list)) and len(txn) == 2 and isinstance(txn[0], str) and txn[0]:
        with suppress(ValueError):
            return parse_text(txn[0]), parse_at_least(_TXN_VERSION_MIN)(txn[1])
    raise InvalidRequest(
        f"txn is {shorten(txn)}.", next='Pass an application id and a version: ("app", 3).'
    )


def append(
    session: WriteSession, adds: Iterable[object], *, txn: object, user_metadata: object
) -> CommitResult:
    """Add files. See `Table.append`."""
    options = CommitOptions(
        "WRITE", txn=_parse_txn(txn), user_metadata=user_metadata, parameters={"mode": "Append"}
    )
    files = _adds(session, adds)
    return session.append(
        prepared_commits.prepare_file_changes(files, None, options, _context(session, None))
    )


def overwrite(
    session: WriteSession,
    adds: Iterable[object],
    where: object,
    *,
    read_version: int | None,
    txn: object,
    user_metadata: object,
    new: tuple[list[Add], TableHead] | None = None,
) -> CommitResult:
    """Replace files. See `Table.overwrite`.

    `new` takes the place of `adds` for files that `write` produced: the adds, and the head they
    were written for.
    """
    duplicate = session.find_committed_txn(_parse_txn(txn)) if txn is not None else None
    if duplicate is not None:
        return duplicate
    files = _adds(session, adds) if new is None else new[0]
    parameters = {"mode": "Overwrite"} | ({} if where is None else {"predicate": str(where)})
    options = CommitOptions(
        "OVERWRITE",
        txn=_parse_txn(txn),
        user_metadata=user_metadata,
        parameters=parameters,
        exact=read_version is not None,
    )
    base = _base(session, read_version)
    context = _context(session, base)
    if where is not None or read_version is None:
        prepare = (
            prepared_commits.prepare_replace_all(files, options, context)
            if where is None
            else prepared_commits.prepare_replace_partitions(files, where, options, context)
        )
        prepare = (
            prepare if new is None else prepared_commits.require_fitting_files(new[1], prepare)
        )
        return session.change(prepare, base)
    # With an explicit version, what is replaced is what that version had: no file may be added
    # since.
    prepare = prepared_commits.prepare_file_changes(
        files, lambda state: prepared_commits.without_paths(state.adds, files), options, context
    )
    return session.change(
        prepared_commits.with_read_set(prepare, prepared_commits.reads_whole_table), base
    )


def remove(
    session: WriteSession, what: object, *, read_version: int | None, user_metadata: object
) -> CommitResult:
    """Remove files by path or by partition. See `Table.remove`."""
    before = session.last_shown_state()
    base = _base(session, read_version)
    paths = _paths(what, base.state, root_spellings(session.store.root))
    if paths is None:
        return _remove_where(session, what, "DELETE", base, user_metadata, read_version)
    options = CommitOptions("DELETE", user_metadata=user_metadata, exact=read_version is not None)
    keys = _live_keys(session, paths, base.state)
    if read_version is None:
        base = _with_files(session, base, keys)
    select = prepared_commits.select_files_by_path(keys, before)
    return session.change(
        prepared_commits.prepare_file_changes([], select, options, _context(session, base)), base
    )


def _with_files(session: WriteSession, base: Snapshot, keys: Sequence[str]) -> Snapshot:
    """Return `base`, or the newest snapshot if `base` lacks a named file: it may exist by now."""
    live = base.state.adds["key"].combine_chunks()
    present = pc.is_in(make_array(keys, pa.string()), value_set=live)
    return base if pc.all(present).as_py() is not False else session.read_latest()


def _paths(what: object, state: State, roots: Sequence[str]) -> list[str] | None:
    """Return the argument of `remove` as paths, or None if it is a predicate.

    A string is a path if it begins with the table's root or is the path of a live file.
    """
    if isinstance(what, str):
        if not is_text(what):
            raise InvalidRequest(
                f"{shorten(what)} is no path and no predicate.", next="Use valid Unicode."
            )
        absolute = any(what.startswith(f"{root}/") for root in roots)
        return [what] if absolute or pc.any(pc.equal(state.adds["key"], what)).as_py() else None
    if isinstance(what, (pa.Array, pa.ChunkedArray)):
        return [str(item) for item in what.to_pylist()]
    if isinstance(what, (list, tuple, set, frozenset)) and all(
        isinstance(item, str) for item in what
    ):
        return list(what)
    if hasattr(what, "to_list") and not hasattr(what, "meta"):  # a polars or pandas series
        return [str(item) for item in what.to_list()]
    return None


def _live_keys(session: WriteSession, paths: Sequence[str], state: State) -> list[str]:
    """Return paths relative to the table; live files may have paths that no new file may have."""
    try:
        return _relative_all(session, paths)
    except InvalidRequest:
        if not all(map(is_text, paths)):
            raise
        known = pc.is_in(make_array(paths, pa.string()), value_set=state.column("key"))
        odd = [path for path, live in zip(paths, known.to_pylist(), strict=True) if live]
        rest = [path for path, live in zip(paths, known.to_pylist(), strict=True) if not live]
        return [*odd, *_relative_all(session, rest)]


def _relative_all(session: WriteSession, paths: Sequence[str]) -> list[str]:
    store = session.store
    roots = root_spellings(store.root)
    return [
        relative_data_path(path, store.root, roots, f"removes[{n}]") for n, path in enumerate(paths)
    ]


def _remove_where(
    session: WriteSession,
    where: object,
    operation: str,
    base: Snapshot,
    user_metadata: object,
    read_version: int | None,
) -> CommitResult:
    options = CommitOptions(
        operation,
        user_metadata=user_metadata,
        parameters={"predicate": str(where)},
        exact=read_version is not None,
    )
    predicate = prepared_commits.parse_partition_predicate(where, session.head_of(base))
    if (
        read_version is None
        and not prepared_commits.select_files_by_partition(base.state, predicate).num_rows
    ):
        _check_unseen(session, predicate)
    return session.change(
        prepared_commits.prepare_replace_partitions([], where, options, _context(session, base)),
        base,
    )


def _check_unseen(session: WriteSession, predicate: Predicate) -> None:
    """Raise `ConcurrentAppend` if a predicate selects files only in the newest version.

    Called when the base has no matching file: the caller has not seen those that exist by now.
    """
    newest = session.read_latest()
    unseen = prepared_commits.select_files_by_partition(newest.state, predicate)
    if unseen.num_rows:
        raise session.refused(
            ConcurrentAppend(
                f"{unseen['key'][0].as_py()!r} was added concurrently: this handle has not seen"
                " it.",
                next=CONFLICT_NEXT_STEP,
                version=newest.version,
            )
        )


def drop_partitions(
    session: WriteSession, where: object, *, read_version: int | None
) -> CommitResult:
    """Remove whole partitions. See `Table.drop_partitions`."""
    if where is None:
        raise InvalidRequest(
            "drop_partitions needs a predicate.", next="Pass one, such as \"day < '2024-01-01'\"."
        )
    base = _base(session, read_version)
    return _remove_where(session, where, "DROP PARTITIONS", base, None, read_version)


def commit(
    session: WriteSession,
    adds: Iterable[object],
    removes: Iterable[str],
    *,
    operation: str,
    data_change: bool,
    read_version: int | None,
    where: object,
    txn: object,
    user_metadata: object,
    parameters: Mapping[str, object] | None,
) -> CommitResult:
    """Add and remove files in one commit. See `Table.commit`."""
    if not isinstance(operation, str) or not operation.strip():
        raise InvalidRequest(f"operation is {operation!r}.", next="Pass a name, such as MERGE.")
    files = _adds(session, adds)
    keys = _relative_all(session, [removes] if isinstance(removes, str) else list(removes))
    options = CommitOptions(
        operation,
        data_change=bool(data_change),
        txn=_parse_txn(txn),
        user_metadata=user_metadata,
        parameters=dict(parameters or {}),
        exact=read_version is not None,
    )
    if not keys and where is None and read_version is None:
        return session.append(
            prepared_commits.prepare_file_changes(files, None, options, _context(session, None))
        )
    duplicate = None if options.txn is None else session.find_committed_txn(options.txn)
    if duplicate is not None:
        return duplicate
    before = session.last_shown_state()
    base = _base(session, read_version)
    reads_files = where is not None or (operation.upper() == "OVERWRITE" and data_change)
    if read_version is None and not reads_files:
        base = _with_files(session, base, keys)
    select = prepared_commits.select_files_by_path(keys, before) if keys else None
    prepare: Prepare = prepared_commits.prepare_file_changes(
        files, select, options, _context(session, base)
    )
    if where is not None:
        prepare = prepared_commits.with_partition_read_set(prepare, where)
    elif reads_files:
        prepare = prepared_commits.with_read_set(prepare, prepared_commits.reads_whole_table)
    return session.change(prepare, base)


def check_write_mode(mode: str) -> None:
    """Raise `InvalidRequest` if `mode` is not a `WriteMode`."""
    modes = get_args(WriteMode)
    if mode not in modes:
        raise InvalidRequest(f"mode is {mode!r}.", next=f"Use {' or '.join(modes)}.")


def write(
    session: WriteSession,
    data: object,
    mode: WriteMode,
    *,
    where: object,
    target_size: str | int,
    txn: object,
    user_metadata: object,
) -> CommitResult:
    """Write rows to new files and commit them. See `Table.write`."""
    check_write_mode(mode)
    if where is not None and mode != "overwrite":
        raise InvalidRequest(
            "where is only valid with mode='overwrite'.", next="Leave it out to append."
        )
    app_txn = _parse_txn(txn)
    head = session.head()
    duplicate = session.find_committed_txn(app_txn)
    if duplicate is not None:
        return duplicate
    if where is not None:
        prepared_commits.parse_partition_predicate(where, head)  # fail before any file is written
    adds = _write_files(session, head, data, target_size)
    if mode == "overwrite":
        return overwrite(
            session,
            (),
            where,
            read_version=None,
            txn=txn,
            user_metadata=user_metadata,
            new=(adds, head),
        )
    if not adds:
        raise InvalidRequest("There are no rows to write.", next="Pass at least one row.")
    options = CommitOptions(
        "WRITE", txn=app_txn, user_metadata=user_metadata, parameters={"mode": "Append"}
    )
    prepare = prepared_commits.prepare_file_changes(adds, None, options, _context(session, None))
    return session.append(prepared_commits.require_fitting_files(head, prepare))


def _write_files(
    session: WriteSession, head: TableHead, data: object, target_size: str | int
) -> list[Add]:
    size = parse_argument(parse_bytes, target_size, "target_size")
    config = session.config(head)
    target = WriteTarget(
        session.store,
        head.schema,
        head.metadata.partition_columns,
        StatsTruncation.of(config),
        session.clock,
        file_bytes=size,
        held_bytes=max(_HELD_FILES * size, _HELD_BYTES_MIN),
    )
    return write_rows(data, target)


def set_properties(session: WriteSession, properties: Mapping[str, object]) -> CommitResult:
    """Set or remove table properties. See `Table.set_properties`."""
    if not properties:
        raise InvalidRequest("There are no properties to set.", next="Pass a map of them.")
    names = sorted(map(str, properties))
    options = CommitOptions("SET PROPERTIES", parameters={"properties": names})
    change = prepared_commits.prepare_metadata_change(
        lambda old: metadata_with_properties(old, properties), options
    )
    return session.change(
        prepared_commits.with_required_protocol(change, required_protocol), mends=True
    )


def add_columns(session: WriteSession, columns: object) -> CommitResult:
    """Add columns to the schema. See `Table.add_columns`."""
    options = CommitOptions("ADD COLUMNS")
    return session.change(
        prepared_commits.prepare_metadata_change(
            lambda old: metadata_with_columns(old, columns), options
        )
    )


def upgrade_protocol(
    session: WriteSession,
    reader: int | None,
    writer: int | None,
    reader_features: Sequence[str],
    writer_features: Sequence[str],
) -> CommitResult:
    """Raise the protocol. See `Table.upgrade_protocol`."""
    if reader is not None:
        reader = parse_argument(parse_at_least(1), reader, "reader")
    if writer is not None:
        writer = parse_argument(parse_at_least(1), writer, "writer")
    reader_features = parse_argument(parse_names, reader_features, "reader_features")
    writer_features = parse_argument(parse_names, writer_features, "writer_features")
    options = CommitOptions("UPGRADE PROTOCOL", parameters={"reader": reader, "writer": writer})
    return session.change(
        prepared_commits.prepare_protocol_change(
            lambda old: raise_protocol(old, reader, writer, reader_features, writer_features),
            options,
        )
    )


def restore(session: WriteSession, version: int) -> CommitResult:
    """Restore an earlier version as a new commit. See `Table.restore`."""
    target = session.at_version(version)
    base = session.base_snapshot()
    if base.version <= target.version:
        # What was last shown is not later than the target: other writers may have moved on.
        base = session.read_latest()
    _check_files_exist(session.store, base.state, target.state)
    options = CommitOptions("RESTORE", parameters={"version": target.version})
    return session.change(
        prepared_commits.prepare_restore(target.state, options, _context(session, base)), base
    )


def _check_files_exist(store: Store, now: State, then: State) -> None:
    """Raise `InvalidRequest` if a data file that a restore would add back was deleted.

    A few live files are probed, too: if none of all files exists, the log is kept apart from its
    data files, and nothing can be concluded.
    """
    live = pc.is_in(then.adds["key"], value_set=now.adds["key"].combine_chunks())
    keys = then.adds["key"].filter(pc.invert(live)).to_pylist()
    probes = now.adds["key"].slice(0, _STAT_THREADS).to_pylist()
    with ThreadPoolExecutor(_STAT_THREADS) as pool:
        stats = list(pool.map(store.stat, [*keys, *probes]))
    missing = [key for key, stat in zip(keys, stats, strict=False) if stat is None]
    if missing and any(stats):
        more = "" if len(missing) == 1 else f" and {len(missing) - 1} more"
        raise InvalidRequest(
            f"Version {then.version} cannot be restored: {missing[0]!r}{more} is no longer in"
            f" {store.root}.",
            next="Choose a later version, or restore the files from a backup.",
            version=then.version,
        )


def add_parquet(
    session: WriteSession,
    path: str,
    partition_values: Mapping[str, object] | None,
    fields: Mapping[str, Any],
    *,
    verify: bool,
) -> Add:
    """Describe a Parquet file in the table's folder. See `arrowlog.add_parquet`."""
    snapshot = session.base_snapshot()
    store = session.store
    key = relative_data_path(str(path), store.root, root_spellings(store.root), "add_parquet")
    add = describe_parquet_file(
        store,
        key,
        snapshot.schema,
        snapshot.partition_columns,
        StatsTruncation.of(session.config(session.head_of(snapshot))),
        partition_values,
        verify=verify,
    )
    extra = add_file(key, **fields)
    if extra != Add(key, fields=extra.fields):
        raise InvalidRequest(
            "add_parquet takes size, time, row count and bounds from the file.",
            next="Leave them out, or describe the file with add_file.",
        )
    return replace(add, fields=extra.fields) if fields else add

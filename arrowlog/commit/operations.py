"""The operations that change a table: each checks what was asked for, drafts it, commits it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.clock import SystemClock
from arrowlog.commit import drafts
from arrowlog.commit.adds import Add, relative, to_add
from arrowlog.commit.alter import (
    followed,
    raised,
    with_columns,
    with_properties,
)
from arrowlog.commit.drafts import Manner, World
from arrowlog.commit.parquet import add_of
from arrowlog.commit.write import Target, write_rows
from arrowlog.config import parse_bytes
from arrowlog.errors import ConcurrentAppend, InvalidRequest
from arrowlog.log.arrays import array_of
from arrowlog.state.apply import spellings
from arrowlog.state.truncation import Truncation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.commit.committer import Committer
    from arrowlog.commit.conflict import Head
    from arrowlog.commit.drafts import Prepare
    from arrowlog.commit.transaction import CommitResult
    from arrowlog.log.store import Store
    from arrowlog.scan.predicate import Predicate
    from arrowlog.state.snapshot import Snapshot, State

_MODES = ("append", "overwrite")
_STATS_AT_ONCE = 16
_STEP_MAX = 1 << 63


def _world(committer: Committer, base: Snapshot | None) -> World:
    def state(head: Any) -> State:
        if base is not None and base.version == head.version:
            return base.state
        return committer.state(head)

    return World(state, committer.clock.now_ms(), committer.config)


def _base(committer: Committer, read_version: int | None) -> Snapshot:
    if read_version is None:
        return committer.seen()
    return committer.at(read_version)


def _adds(committer: Committer, given: Iterable[object]) -> list[Add]:
    """Adds as given, with paths relative to the table, sizes and times filled in."""
    if isinstance(given, (str, Add)) or hasattr(given, "keys"):
        given = [given]
    if not hasattr(given, "__iter__"):
        raise InvalidRequest(
            f"adds is {given!r}.", next="Give a list of what add_file or add_parquet return."
        )
    store = committer.store
    roots = spellings(store.root)
    found = []
    for number, item in enumerate(given):
        add = to_add(item, f"adds[{number}]")
        path = relative(add.path, store.root, roots, f"adds[{number}]")
        found.append(add if path == add.path else replace(add, path=path))
    return _filled(found, store)


def _filled(adds: list[Add], store: Store) -> list[Add]:
    """Sizes and times that were not given, from the store."""
    bare = [n for n, add in enumerate(adds) if add.size is None or add.modification_time is None]
    if not bare:
        return adds
    with ThreadPoolExecutor(_STATS_AT_ONCE) as pool:
        stats = list(pool.map(lambda n: store.stat(adds[n].path), bare))
    now = SystemClock().now_ms()
    for number, stat in zip(bare, stats, strict=True):
        add = adds[number]
        if stat is None and add.size is None:
            raise InvalidRequest(
                f"adds[{number}] ({add.path}).size is not given, and there is no such file in"
                f" {store.root}.",
                next="Put the file there first, or give its size in bytes.",
            )
        adds[number] = replace(
            add,
            size=add.size if add.size is not None or stat is None else stat.size,
            modification_time=add.modification_time
            if add.modification_time is not None
            else (now if stat is None or stat.mtime_ms < 0 else stat.mtime_ms),
        )
    return adds


def _txn(txn: object) -> tuple[str, int] | None:
    if txn is None:
        return None
    if (
        isinstance(txn, (tuple, list))
        and len(txn) == 2
        and isinstance(txn[0], str)
        and txn[0]
        and isinstance(txn[1], int)
        and not isinstance(txn[1], bool)
        and abs(txn[1]) < _STEP_MAX
    ):
        return txn[0], txn[1]
    raise InvalidRequest(f"txn is {txn!r}.", next='Give an application and a number: ("app", 3).')


def append(
    committer: Committer, adds: Iterable[object], *, txn: object, user_metadata: object
) -> CommitResult:
    """Add files."""
    how = Manner("WRITE", txn=_txn(txn), user_metadata=user_metadata, parameters={"mode": "Append"})
    files = _adds(committer, adds)
    return committer.append(drafts.change_files(files, None, how, _world(committer, None)))


def overwrite(
    committer: Committer,
    adds: Iterable[object],
    where: object,
    *,
    read_version: int | None,
    txn: object,
    user_metadata: object,
    new: tuple[list[Add], Head] | None = None,
) -> CommitResult:
    """Put files in the place of others. `new`: files of rows, and the head they were made for."""
    done = committer.step_of(_txn(txn)) if txn is not None else None
    if done is not None:
        return done
    files = _adds(committer, adds) if new is None else new[0]
    shown = {"mode": "Overwrite"} | ({} if where is None else {"predicate": str(where)})
    how = Manner(
        "OVERWRITE",
        txn=_txn(txn),
        user_metadata=user_metadata,
        parameters=shown,
        exact=read_version is not None,
    )
    base = _base(committer, read_version)
    world = _world(committer, base)
    if where is not None or read_version is None:
        prepare = (
            drafts.replace_all(files, how, world)
            if where is None
            else drafts.replace_where(files, where, how, world)
        )
        prepare = prepare if new is None else drafts.made_for(new[1], prepare)
        return committer.change(prepare, base)
    prepare = drafts.change_files(files, _all_but(files), how, world)
    return committer.change(drafts.reading(prepare, drafts.sees_all), base)


def _all_but(adds: Sequence[Add]) -> Callable[[State], pa.Table]:
    kept = array_of([add.path for add in adds], pa.string())
    return lambda state: state.adds.filter(pc.invert(pc.is_in(state.adds["key"], value_set=kept)))


def remove(
    committer: Committer, what: object, *, read_version: int | None, user_metadata: object
) -> CommitResult:
    """Remove files by path or by partition."""
    before = committer.last_seen()
    base = _base(committer, read_version)
    paths = _paths(what, base.state, spellings(committer.store.root))
    if paths is None:
        return _remove_where(committer, what, "DELETE", base, user_metadata, read_version)
    how = Manner("DELETE", user_metadata=user_metadata, exact=read_version is not None)
    keys = _relative_all(committer, paths)
    if read_version is None:
        base = _with_files(committer, base, keys)
    pick = drafts.files_named(keys, before)
    return committer.change(drafts.change_files([], pick, how, _world(committer, base)), base)


def _with_files(committer: Committer, base: Snapshot, keys: Sequence[str]) -> Snapshot:
    """The base, or the newest version if a file that is named was not seen: it may be there now."""
    live = base.state.adds["key"].combine_chunks()
    seen = pc.is_in(array_of(keys, pa.string()), value_set=live)
    return base if pc.all(seen).as_py() is not False else committer.look()


def _paths(what: object, state: State, roots: Sequence[str]) -> list[str] | None:
    """Paths, if that is what was given; a text is one if there is such a file."""
    if isinstance(what, str):
        own = any(what.startswith(f"{root}/") for root in roots)
        return [what] if own or pc.any(pc.equal(state.adds["key"], what)).as_py() else None
    if isinstance(what, (pa.Array, pa.ChunkedArray)):
        return [str(item) for item in what.to_pylist()]
    if isinstance(what, (list, tuple, set, frozenset)) and all(
        isinstance(item, str) for item in what
    ):
        return list(what)
    if hasattr(what, "to_list") and not hasattr(what, "meta"):  # a polars or pandas series
        return [str(item) for item in what.to_list()]
    return None


def _relative_all(committer: Committer, paths: Sequence[str]) -> list[str]:
    store = committer.store
    roots = spellings(store.root)
    return [relative(path, store.root, roots, f"removes[{n}]") for n, path in enumerate(paths)]


def _remove_where(
    committer: Committer,
    where: object,
    operation: str,
    base: Snapshot,
    user_metadata: object,
    read_version: int | None,
) -> CommitResult:
    how = Manner(
        operation,
        user_metadata=user_metadata,
        parameters={"predicate": str(where)},
        exact=read_version is not None,
    )
    predicate = drafts.on_partitions(where, committer.head_of(base))
    if read_version is None and not drafts.files_where(base.state, predicate).num_rows:
        _check_unseen(committer, predicate)
    return committer.change(drafts.replace_where([], where, how, _world(committer, base)), base)


def _check_unseen(committer: Committer, predicate: Predicate) -> None:
    """Nothing was seen that is meant. What is there by now, nobody has decided to remove."""
    newest = committer.look()
    found = drafts.files_where(newest.state, predicate)
    if found.num_rows:
        raise committer.refused(
            ConcurrentAppend(
                f"{found['key'][0].as_py()!r} was added meanwhile: this handle has not seen it.",
                next="Look at the table again and decide anew.",
                version=newest.version,
            )
        )


def drop_partitions(
    committer: Committer, where: object, *, read_version: int | None
) -> CommitResult:
    """Remove whole partitions."""
    if where is None:
        raise InvalidRequest(
            "drop_partitions needs a predicate.", next="Give one, such as \"day < '2024-01-01'\"."
        )
    base = _base(committer, read_version)
    return _remove_where(committer, where, "DROP PARTITIONS", base, None, read_version)


def commit(
    committer: Committer,
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
    """The general form."""
    if not isinstance(operation, str) or not operation.strip():
        raise InvalidRequest(f"operation is {operation!r}.", next="Give it a name, such as MERGE.")
    files = _adds(committer, adds)
    keys = _relative_all(committer, [removes] if isinstance(removes, str) else list(removes))
    how = Manner(
        operation,
        data_change=bool(data_change),
        txn=_txn(txn),
        user_metadata=user_metadata,
        parameters=dict(parameters or {}),
        exact=read_version is not None,
    )
    if not keys and where is None and read_version is None:
        return committer.append(drafts.change_files(files, None, how, _world(committer, None)))
    done = None if how.txn is None else committer.step_of(how.txn)
    if done is not None:
        return done
    before = committer.last_seen()
    base = _base(committer, read_version)
    reads = where is not None or (operation.upper() == "OVERWRITE" and data_change)
    if read_version is None and not reads:
        base = _with_files(committer, base, keys)
    pick = drafts.files_named(keys, before) if keys else None
    prepare: Prepare = drafts.change_files(files, pick, how, _world(committer, base))
    if where is not None:
        prepare = drafts.reading_where(prepare, where)
    elif reads:
        prepare = drafts.reading(prepare, drafts.sees_all)
    return committer.change(prepare, base)


def write(
    committer: Committer,
    data: object,
    mode: str,
    *,
    where: object,
    target_size: str | int,
    txn: object,
    user_metadata: object,
) -> CommitResult:
    """Rows to files to a commit."""
    if mode not in _MODES:
        raise InvalidRequest(f"mode is {mode!r}.", next=f"Use {' or '.join(_MODES)}.")
    if where is not None and mode != "overwrite":
        raise InvalidRequest(
            "where goes with mode='overwrite' alone.", next="Leave it out to append."
        )
    step = _txn(txn)
    head = committer.head()
    done = committer.step_of(step)
    if done is not None:
        return done
    if where is not None:
        drafts.on_partitions(where, head)
    adds = _write_files(committer, head, data, target_size)
    if mode == "overwrite":
        return overwrite(
            committer,
            (),
            where,
            read_version=None,
            txn=txn,
            user_metadata=user_metadata,
            new=(adds, head),
        )
    if not adds:
        raise InvalidRequest("There are no rows to write.", next="Give at least one.")
    how = Manner("WRITE", txn=step, user_metadata=user_metadata, parameters={"mode": "Append"})
    prepare = drafts.change_files(adds, None, how, _world(committer, None))
    return committer.append(drafts.made_for(head, prepare))


def _write_files(
    committer: Committer, head: Head, data: object, target_size: str | int
) -> list[Add]:
    try:
        size = parse_bytes(target_size)
    except ValueError as error:
        raise InvalidRequest(
            f"target_size is {target_size!r}.", next=f"Allowed: {error}."
        ) from None
    config = committer.config(head)
    target = Target(
        committer.store,
        head.schema,
        head.metadata.partition_columns,
        Truncation.of(config),
        committer.clock,
        file_bytes=size,
        held_bytes=max(4 * size, 1 << 20),
    )
    return write_rows(data, target)


def set_properties(committer: Committer, properties: Mapping[str, object]) -> CommitResult:
    """Change properties."""
    if not properties:
        raise InvalidRequest("There are no properties to set.", next="Give a map of them.")
    names = sorted(map(str, properties))
    how = Manner("SET PROPERTIES", parameters={"properties": names})
    change = drafts.change_metadata(lambda old: with_properties(old, properties), how)
    return committer.change(drafts.telling(change, followed), mends=True)


def add_columns(committer: Committer, columns: object) -> CommitResult:
    """Add columns."""
    how = Manner("ADD COLUMNS")
    return committer.change(drafts.change_metadata(lambda old: with_columns(old, columns), how))


def upgrade_protocol(
    committer: Committer,
    reader: int | None,
    writer: int | None,
    reader_features: Sequence[str],
    writer_features: Sequence[str],
) -> CommitResult:
    """Raise the protocol."""
    how = Manner("UPGRADE PROTOCOL", parameters={"reader": reader, "writer": writer})
    return committer.change(
        drafts.change_protocol(
            lambda old: raised(old, reader, writer, reader_features, writer_features), how
        )
    )


def restore(committer: Committer, version: int) -> CommitResult:
    """Make the table what it was."""
    target = committer.at(version)
    base = committer.seen()
    if base.version <= version:
        base = committer.look()  # as far as was seen there is nothing to restore; perhaps by now
    _check_there(committer.store, base.state, target.state)
    how = Manner("RESTORE", parameters={"version": version})
    return committer.change(drafts.restore(target.state, how, _world(committer, base)), base)


def _check_there(store: Store, now: State, then: State) -> None:
    """Files that come back must still be there."""
    live = pc.is_in(then.adds["key"], value_set=now.adds["key"].combine_chunks())
    keys = then.adds["key"].filter(pc.invert(live)).to_pylist()
    known = now.adds["key"].slice(0, _STATS_AT_ONCE).to_pylist()
    with ThreadPoolExecutor(_STATS_AT_ONCE) as pool:
        stats = list(pool.map(store.stat, [*keys, *known]))
    gone = [key for key, stat in zip(keys, stats, strict=False) if stat is None]
    if gone and any(stats):  # where no data file is there at all, the log stands by itself
        more = "" if len(gone) == 1 else f" and {len(gone) - 1} more"
        raise InvalidRequest(
            f"Version {then.version} cannot be restored: {gone[0]!r}{more} is no longer in"
            f" {store.root}.",
            next="Choose a later version, or restore the files from a backup.",
            version=then.version,
        )


def add_parquet(
    committer: Committer,
    path: str,
    partition_values: Mapping[str, object] | None,
    fields: Mapping[str, Any],
    *,
    verify: bool,
) -> Add:
    """The add of a Parquet file in the table's folder."""
    from arrowlog.commit.adds import add_file

    seen = committer.seen()
    store = committer.store
    key = relative(str(path), store.root, spellings(store.root), "add_parquet")
    found = add_of(
        store,
        key,
        seen.schema,
        seen.partition_columns,
        Truncation.of(committer.config(committer.head_of(seen))),
        partition_values,
        verify=verify,
    )
    extra = add_file(key, **fields)
    if extra != Add(key, fields=extra.fields):
        raise InvalidRequest(
            "add_parquet takes size, time, rows and bounds from the file.",
            next="Leave them out, or say them yourself with add_file.",
        )
    return replace(found, fields=extra.fields) if fields else found

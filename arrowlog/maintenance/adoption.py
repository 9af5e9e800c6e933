"""Adopt data files that lie in the table's folder and that the log does not know.

Such files are left behind when a log loses commits. Their rows come back by one commit, after the
footers of the files have shown that they fit the table. Splits have no footer that could show it,
so they are adopted only as another log describes them.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.config import parse_argument, parse_text
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import encode_adds
from arrowlog.maintenance.other_logs import find_other_logs, read_adds
from arrowlog.maintenance.vacuum import find_referenced_files
from arrowlog.snapshot import StatsTruncation
from arrowlog.storage import root_spellings, stat_object
from arrowlog.transaction import (
    Add,
    CommitResult,
    describe_parquet_file,
    operations,
    parse_add,
    relative_data_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrowlog.snapshot import Snapshot
    from arrowlog.storage import Store
    from arrowlog.transaction import WriteSession

_FILE_THREADS = 8  # footers that are read at a time
_SPLIT_SUFFIX = ".split"
_NEVER_REMOVED_MS = -1  # a horizon before every removal: all removed files count
FOOTER_FIELDS = frozenset(  # fields of an add that the file itself tells; all others are kept
    {
        "path",
        "partitionValues",
        "size",
        "modificationTime",
        "dataChange",
        "stats",
        "numRecords",
        "minValues",
        "maxValues",
    }
)


@dataclass(frozen=True, slots=True, repr=False)
class AdoptResult:
    """The files that were adopted or, with `dry_run`, would be.

    `files` has one row per file: path, size_bytes, num_records and the partition values as text.
    `commit` is the commit that added them; None after a dry run. `milliseconds` is the duration,
    reading the files included.
    """

    files: pa.Table = field(repr=False)
    commit: CommitResult | None
    replaced: tuple[str, ...] = ()
    milliseconds: float = 0.0

    def __repr__(self) -> str:
        """The number of files and the version."""
        state = "dry run" if self.commit is None else f"version {self.commit.version}"
        return f"AdoptResult({self.num_files} files, {self.num_records} rows; {state})"

    @property
    def dry_run(self) -> bool:
        """Whether nothing was committed."""
        return self.commit is None

    @property
    def num_files(self) -> int:
        """Number of adopted files."""
        return int(self.files.num_rows)

    @property
    def num_records(self) -> int:
        """Number of rows in them."""
        return sum(count or 0 for count in self.files["num_records"].to_pylist())

    @property
    def version(self) -> int:
        """The version of the commit; -1 after a dry run."""
        return -1 if self.commit is None else self.commit.version

    @property
    def attempts(self) -> int:
        """Number of puts sent to the store."""
        return 0 if self.commit is None else self.commit.attempts

    @property
    def operation_metrics(self) -> Mapping[str, int]:
        """Files, bytes and rows added and removed."""
        return {} if self.commit is None else self.commit.operation_metrics

    def to_arrow(self) -> pa.Table:
        """Return the adopted files, as `files`."""
        return self.files


def adopt(
    session: WriteSession,
    paths: str | Iterable[str],
    *,
    replaces: str | Iterable[str] = (),
    partition_values: Mapping[str, object] | None = None,
    from_log: str | None = None,
    allow_removed: bool = False,
    dry_run: bool = False,
) -> AdoptResult:
    """Add data files in the table's folder to the table, in one commit. See `Table.adopt`."""
    started = time.perf_counter()
    snapshot = session.read_latest()
    keys = _relative_paths(session, paths, "paths")
    removed = _relative_paths(session, replaces, "replaces")
    if not keys:
        raise InvalidRequest("paths is empty.", next="Name the files to adopt.")
    _check_unknown(session, snapshot, keys, allow_removed=allow_removed)
    described = {} if from_log is None else _described(session, snapshot, keys, from_log)
    truncation = StatsTruncation.of(session.config(session.head_of(snapshot)))

    def describe(key: str) -> Add:
        if key.endswith(_SPLIT_SUFFIX):
            return _adopt_split(session, key, described.get(key))
        recorded = described.get(key, {})
        values = {**(recorded.get("partitionValues") or {}), **(partition_values or {})}
        kept = {name: value for name, value in recorded.items() if name not in FOOTER_FIELDS}
        columns = snapshot.partition_columns
        add = describe_parquet_file(
            session.store, key, snapshot.schema, columns, truncation, values, kept, verify=True
        )
        unknown = [name for name in columns if name not in (add.partition_values or {})]
        if unknown:
            raise InvalidRequest(
                f"{key}: neither the path nor a log tells the partition: {', '.join(unknown)}.",
                next="Pass partition_values, such as {'day': '2024-01-01'}, for files of one"
                " partition.",
            )
        return add

    with ThreadPoolExecutor(_FILE_THREADS) as pool:
        adds = list(pool.map(describe, keys))
    files = _tabulate(adds, snapshot.partition_columns)
    if dry_run:
        milliseconds = (time.perf_counter() - started) * 1000
        return AdoptResult(files, None, tuple(removed), milliseconds)
    commit = operations.commit(
        session,
        adds,
        removed,
        operation="ADOPT",
        data_change=True,
        read_version=snapshot.version,
        where=None,
        txn=None,
        user_metadata=None,
        parameters={} if from_log is None else {"fromLog": from_log},
    )
    return AdoptResult(files, commit, tuple(removed), (time.perf_counter() - started) * 1000)


def _relative_paths(session: WriteSession, paths: str | Iterable[str], name: str) -> list[str]:
    """Return paths relative to the table, each once. Raises InvalidRequest for others."""
    root = session.store.root
    spellings = root_spellings(root)
    given = [paths] if isinstance(paths, str) else list(paths)
    return list(dict.fromkeys(relative_data_path(str(p), root, spellings, name) for p in given))


def _check_unknown(
    session: WriteSession, snapshot: Snapshot, keys: Sequence[str], *, allow_removed: bool
) -> None:
    """Refuse files that the table has, and files whose rows a commit has removed."""
    wanted = pl.Series("key", keys, dtype=pl.String)
    live = pl.Series("key", pl.from_arrow(snapshot.state.column("key")), dtype=pl.String)
    known = wanted.filter(wanted.is_in(live.implode()))
    if len(known):
        raise InvalidRequest(
            f"{known[0]!r}{_and_more(len(known))} is in the table already.",
            next="Adopt only files that the table does not have.",
        )
    _check_other_spellings(session.store, snapshot, keys)
    if allow_removed:
        return
    config = session.config(session.head_of(snapshot))
    referenced = find_referenced_files(session.store, config, _NEVER_REMOVED_MS).history
    history = pl.Series("key", pl.from_arrow(referenced), dtype=pl.String)
    gone = wanted.filter(wanted.is_in(history.implode()))
    if len(gone):
        raise InvalidRequest(
            f"{gone[0]!r}{_and_more(len(gone))} was in the table and a commit removed it:"
            " adopting it would bring deleted rows back.",
            next="Pass allow_removed=True if that is what you want, or use restore(version).",
        )


def _check_other_spellings(store: Store, snapshot: Snapshot, keys: Sequence[str]) -> None:
    """Refuse files that the table has under another path, or that are given under two.

    On a local disk these are links, and paths that another program has written as `./a.parquet`. A
    file is compared only with live ones of its size.
    """
    if not store.cheap_stat:
        return
    stats = {key: stat_object(store, key) for key in keys}
    sizes = pa.array({stat.size for stat in stats.values() if stat is not None}, pa.int64())
    state = snapshot.state
    live = state.column("key").filter(pc.is_in(state.column("size"), value_set=sizes))
    known: dict[tuple[int, str], str] = {}
    for key in live.to_pylist():
        stat = stat_object(store, key)
        if stat is not None:
            known[stat.size, stat.tag] = key
    for key, stat in stats.items():
        if stat is None:
            continue
        other = known.setdefault((stat.size, stat.tag), key)
        if other != key:
            where = "is given as well" if other in stats else "is in the table already"
            raise InvalidRequest(
                f"{key!r} is the same file as {other!r}, which {where}.",
                next="Adopt only files that the table does not have, each by one path.",
            )


def _and_more(count: int) -> str:
    return f" (and {count - 1:,} more)" if count > 1 else ""


def _described(
    session: WriteSession, snapshot: Snapshot, keys: Sequence[str], folder: str
) -> dict[str, dict[str, Any]]:
    """Return the fields of the adds of files in another log, by key."""
    folder = parse_argument(parse_text, folder, "from_log")
    name = folder.removeprefix(f"{session.store.root}/").strip("/")
    walked = pl.Series(pl.from_arrow(session.store.walk()["key"]), dtype=pl.String)
    others = find_other_logs(walked)
    if name not in others:
        raise InvalidRequest(
            f"There is no other log {name!r} in the table's folder.",
            next=f"The other logs are: {', '.join(others)}." if others else "Leave from_log out.",
        )
    config = session.config(session.head_of(snapshot))
    adds = read_adds(session.store, config, name, make_array(list(keys), pa.string()))
    lines = [json.loads(line)["add"] for line in encode_adds(adds)]
    found = dict(zip(adds["key"].to_pylist(), lines, strict=True))
    missing = [key for key in keys if key not in found]
    if missing:
        raise InvalidRequest(
            f"{name} does not name {missing[0]!r}{_and_more(len(missing))}.",
            next="Adopt these files without from_log.",
        )
    return found


def _adopt_split(session: WriteSession, key: str, recorded: dict[str, Any] | None) -> Add:
    """Return the add of a split as another log describes it. Raises InvalidRequest."""
    if recorded is None:
        raise InvalidRequest(
            f"{key} is a split: its own content does not tell rows, bounds and partition.",
            next="Pass from_log, the folder of a log that names it.",
        )
    stat = session.store.stat(key)
    if stat is None or stat.size != recorded.get("size"):
        found = "does not exist" if stat is None else f"has {stat.size:,} bytes"
        raise InvalidRequest(
            f"{key} {found}, but the log says {recorded.get('size')} bytes.",
            next="Restore the file from a backup.",
        )
    return replace(parse_add(recorded, key), path=key)


def _tabulate(adds: Sequence[Add], partition_columns: Sequence[str]) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "path": pa.array([add.path for add in adds], pa.string()),
        "size_bytes": pa.array([add.size for add in adds], pa.int64()),
        "num_records": pa.array([add.num_records for add in adds], pa.int64()),
    }
    for name in partition_columns:
        values = [(add.partition_values or {}).get(name) for add in adds]
        texts = [None if value is None else str(value) for value in values]
        columns[f"partition.{name}"] = pa.array(texts, pa.string())
    return pa.table(columns)

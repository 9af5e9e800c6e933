"""Repair: a clean log of what can be read of a damaged one, at another place.

The source is read as far as `salvage` goes, and never written to. The new log has protocol and
metadata as version 0, the adds whose data files are there as version 1, and a checkpoint.

Version 1 is written first, then version 0, then the checkpoint, and the pointer last. So the new
log cannot be opened before it is complete, and one without a pointer is not finished: the same
repair, run again, finds what it would write and goes on. Nothing is ever deleted or overwritten,
and a target that holds anything else is refused.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.clock import SystemClock
from arrowlog.config import Config, resolve
from arrowlog.errors import InvalidRequest, LogCorrupt, TableNotFound, redact
from arrowlog.fork_safety import require_polars
from arrowlog.log.arrays import flags
from arrowlog.log.encode import CHECKSUM, add_lines, first_commit, line
from arrowlog.log.envelope import Packing, crc32, unwrap, wrap
from arrowlog.log.infos import info_of, read_info
from arrowlog.log.names import (
    CHECKPOINTS,
    LOG,
    commit_name,
    is_parquet_part,
    is_part,
    manifest_name,
    read_listing,
)
from arrowlog.log.recent import unknown_before
from arrowlog.log.store import open_store, put_same
from arrowlog.log.store.renamed import Renamed
from arrowlog.state.apply import check_writable
from arrowlog.state.checkpoint import json_name
from arrowlog.state.replay import outside_of
from arrowlog.state.truncation import truncate_adds
from arrowlog.upkeep.checkpoints import make_checkpoint
from arrowlog.upkeep.presence import present, present_by_spark
from arrowlog.upkeep.salvage import Salvage, salvage
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import State
    from arrowlog.upkeep.presence import Progress

_LOG = logging.getLogger("arrowlog")
_ROWS = 1 << 15  # adds that are turned into text at a time
_NAMED_MAX = 10  # missing files that are named in the program's log
_STATS = ("stats", "minValues", "maxValues")
NOTES = b"arrowlog.notes"
SCHEMA = pa.schema(
    [
        ("source_path", pa.string()),
        ("target_path", pa.string()),
        ("source_version", pa.int64()),
        ("total_splits", pa.int32()),
        ("valid_splits", pa.int32()),
        ("missing_splits", pa.int32()),
        ("status", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class _Job:
    """A repair: where from, where to, how."""

    source: str
    target: str
    storage_options: Mapping[str, Any]
    options: Mapping[str, object]
    session: Mapping[str, object]
    spark: Any
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class _Counts:
    version: int
    total: int
    valid: int
    notes: tuple[str, ...]


def repair(
    source_log: str | os.PathLike[str],
    target_log: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    spark: Any = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Write a clean log at `target_log` of what can be read of the one at `source_log`.

    Both are folders of logs; data files are looked for beside the source. The target must be empty,
    or hold an unfinished run of the same repair, which is then finished. The source is only read.

    One row comes back: `source_path`, `target_path`, `source_version`, `total_splits`,
    `valid_splits`, `missing_splits` and `status`, which is `SUCCESS`, or `ERROR: …` with a version
    of -1 and zeros. What was left out, and why, goes to Python's `logging` as warnings, into the
    `operationParameters` of the new version 1, and is at hand with `repair_notes(result)`.

    `options` may have `repair.validateSplits`, `repair.preserveStats`, `repair.parallelism`,
    `repair.failOnMissing` and `stats.truncation.*`. With `spark`, workers look for the data files.
    `progress(done, total)` is called as data files are looked up.
    """
    require_polars("Repair")
    resolve(options)  # a wrong option is the caller's mistake, and no outcome of a repair
    session = {} if spark is None else _session(spark)
    source, target = os.fspath(source_log), os.fspath(target_log)
    shown = redact(source), redact(target)
    job = _Job(source, target, storage_options or {}, options or {}, session, spark, progress)
    try:
        done = _repair(job)
    except Exception as error:  # noqa: BLE001 -- every failure is a status, as the protocol has it
        reason = redact(str(error)).split("\n", 1)[0] or type(error).__name__
        _LOG.error("repair of %s failed: %s", shown[0], reason)
        return _row(*shown, -1, 0, 0, f"ERROR: {reason}", ())
    for note in done.notes:
        _LOG.warning("repair of %s: %s", shown[0], note)
    return _row(*shown, done.version, done.total, done.valid, "SUCCESS", done.notes)


def repair_notes(result: pa.Table) -> list[str]:
    """What a repair left out, and why, in sentences; nothing if the log was as it should be."""
    text = (result.schema.metadata or {}).get(NOTES, b"[]")
    return [str(note) for note in json.loads(text)]


def open_log(uri: str, storage_options: Mapping[str, Any], config: Config) -> Store:
    """The store of the table whose log is in a folder of any name."""
    parent, name = split_log(uri)
    store = open_store(
        parent,
        storage_options,
        parallelism=config.checkpoint_parallelism,
        timeout_seconds=config.checkpoint_read_timeout_seconds,
        accelerate=config.store_accelerate,
    )
    return store if name == LOG else Renamed(store, name)


def split_log(uri: str) -> tuple[str, str]:
    """The address of a table, and the name of its log's folder.

    >>> split_log("s3://bucket/events/_transaction_log/")
    ('s3://bucket/events', '_transaction_log')
    """
    text = uri.rstrip("/")
    if text and "://" not in text:
        text = os.path.abspath(os.path.expanduser(text))
    parent, slash, name = text.rpartition("/")
    if not slash or not name or parent.endswith(("/", ":")):
        raise InvalidRequest(
            f"{uri!r} is not the address of a log.",
            next="Give the folder of the log, such as …/table/_transaction_log.",
        )
    return parent or "/", name


def _session(spark: Any) -> dict[str, object]:
    """The settings of a Spark session that are ours."""
    found = spark.conf.getAll
    known = found() if callable(found) else found
    return {key: value for key, value in known.items() if key.startswith("spark.indextables.")}


def _row(
    source: str,
    target: str,
    version: int,
    total: int,
    valid: int,
    status: str,
    notes: tuple[str, ...],
) -> pa.Table:
    values = (source, target, version, total, valid, total - valid, status)
    schema = SCHEMA.with_metadata({NOTES: json.dumps(notes).encode()})
    columns = [pa.array([value], item.type) for value, item in zip(values, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _repair(job: _Job) -> _Counts:
    config = resolve(job.options, job.session)
    _check_apart(job)
    source = open_log(job.source, job.storage_options, config)
    target = open_log(job.target, job.storage_options, config)
    _check_empty(target, job.target)
    found = _salvage(source, job.source, config)
    state = found.snapshot.state
    check_writable(state.protocol, redact(job.source))
    config = _settings(job, state)
    valid, missing = _valid(job, source, state, config)
    notes = _notes(found, missing)
    adds = _clean(valid, state, config)
    size = _write(target, state, adds, config, _facts(job, found, adds, missing, notes))
    if size > Config().max_decompressed_bytes:
        more = "raise transaction.maxDecompressedBytes if the checkpoint is ever lost"
        notes += (f"version 1 has {size:,} bytes, more than readers usually unpack: {more}",)
    return _Counts(state.version, state.num_files, int(adds.num_rows), notes)


def _salvage(store: Store, source: str, config: Config) -> Salvage:
    try:
        return salvage(store, config)
    except TableNotFound:
        inside = LOG in store.list_from(LOG)
        raise TableNotFound(
            f"Source transaction log not found: {redact(source)} has no commits in it.",
            next=f"Did you mean {redact(source).rstrip('/')}/{LOG}?"
            if inside
            else "Check the address: it is the folder of the log that is asked for.",
        ) from None


def _check_apart(job: _Job) -> None:
    """The source is never written to, so the target must not lie in it."""
    source, target = (f"{'/'.join(split_log(uri))}/" for uri in (job.source, job.target))
    if target.startswith(source):
        raise InvalidRequest(
            f"Target location already exists and is not empty: {job.target} is in the source."
            if target == source
            else f"The target {job.target} lies in the source, which is never written to.",
            next="Choose a folder beside the source.",
        )


def _settings(job: _Job, state: State) -> Config:
    """The settings, those of the table included. A repaired log is always compressed."""
    try:
        config = resolve(job.options, job.session, state.metadata.configuration)
    except InvalidRequest:  # a wrong property of a damaged table must not keep it damaged
        config = resolve(job.options, job.session)
    codec = "gzip" if config.compression_codec == "none" else config.compression_codec
    return replace(
        config,
        compression_enabled=True,
        checkpoint_compression_enabled=True,
        compression_codec=codec,
    )


def _valid(job: _Job, store: Store, state: State, config: Config) -> tuple[pa.Table, pa.Table]:
    """The live adds whose data files are there, and those whose files are not."""
    adds = state.adds
    if not config.repair_validate_splits or adds.num_rows == 0:
        return adds, adds.slice(0, 0)
    outside = outside_of(adds["key"])
    if outside is not None:
        first = adds.filter(outside)["key"][0].as_py()
        raise LogCorrupt(
            f"{first!r} lies outside the table, so it is not looked for.",
            next="Keep such files unchecked with repair.validateSplits=false.",
        )
    there = _present(job, store, adds["key"], config)
    missing = adds.filter(pc.invert(there))
    if missing.num_rows and config.repair_fail_on_missing:
        raise LogCorrupt(
            f"{missing.num_rows:,} of {adds.num_rows:,} data files are missing, the first:"
            f" {missing['key'][0].as_py()}.",
            next="Restore them, or leave them out with repair.failOnMissing=false.",
        )
    return adds.filter(there), missing


def _present(job: _Job, store: Store, keys: pa.ChunkedArray, config: Config) -> pa.ChunkedArray:
    width = config.repair_parallelism
    root = split_log(job.source)[0]
    if job.spark is None or root.startswith("memory:"):  # no worker sees the memory of a process
        return present(store, keys, parallelism=width, progress=job.progress)
    found = present_by_spark(job.spark, root, job.storage_options, keys, parallelism=width)
    if job.progress is not None:
        job.progress(len(keys), len(keys))
    return found


def _notes(found: Salvage, missing: pa.Table) -> tuple[str, ...]:
    """What is not in the new log, and what was not as it should be."""
    notes = [str(trouble) for trouble in found.troubles]
    reached, newest = found.snapshot.version, found.newest
    if newest > reached:
        rest = f"version {newest} is"
        if newest > reached + 1:
            rest = f"versions {reached + 1} to {newest} are"
        notes.append(f"the new log is version {reached} of the old one; {rest} not in it")
    if missing.num_rows:
        names = missing["key"].slice(0, _NAMED_MAX).to_pylist()
        more = missing.num_rows - len(names)
        tail = f" and {more:,} more" if more else ""
        notes.append(f"data files are missing and left out: {', '.join(names)}{tail}")
    return tuple(notes)


def _clean(adds: pa.Table, state: State, config: Config) -> pa.Table:
    """The adds as the new log has them: relative paths, and statistics as the settings say."""
    if not config.repair_preserve_stats:
        gone = [n for n in adds.column_names if n.partition(".")[0] in _STATS]
        adds = adds.drop_columns(gone)
    elif adds.num_rows:
        adds = truncate_adds(adds, state.metadata.partition_columns, config, state.schema)
    if adds.num_rows == 0:
        return adds
    for name, column in (("path", adds["key"]), ("dataChange", flags(True, adds.num_rows))):
        at = adds.schema.get_field_index(name)
        adds = adds.append_column(name, column) if at < 0 else adds.set_column(at, name, column)
    return adds


def _facts(
    job: _Job, found: Salvage, adds: pa.Table, missing: pa.Table, notes: tuple[str, ...]
) -> dict[str, Any]:
    """What the commitInfo of version 1 says of the repair."""
    size = int(pc.sum(adds["size"]).as_py() or 0) if adds.num_rows else 0
    return {
        "operation": "REPAIR",
        "operationParameters": {
            "source": redact(job.source),
            "sourceVersion": found.snapshot.version,
            "notes": list(notes),
        },
        "operationMetrics": {
            "numAddedFiles": int(adds.num_rows),
            "numAddedBytes": size,
            "numMissingFiles": int(missing.num_rows),
        },
        "readVersion": 0,
        "engineInfo": f"arrowlog/{__version__}",
    }


def _names(store: Store) -> tuple[list[str], list[str]]:
    """What is in the folder of a log, and in its folder of checkpoints; no temporary files."""
    names = [name for name in store.list_from(LOG) if not name.startswith(".")]
    inner = store.list_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in names else []
    return names, [name for name in inner if not name.startswith(".")]


def _check_empty(store: Store, target: str) -> None:
    """Refuse a target that holds anything but what a repair leaves when it is cut short."""
    names, inner = _names(store)
    if not names:
        return
    ours = {commit_name(0), commit_name(1), json_name(1), CHECKPOINTS}
    other = [name for name in names if name not in ours and not is_part(name, 1)]
    other += [n for n in inner if n != manifest_name(1) and not is_parquet_part(n, 1)]
    if other or commit_name(1) not in names:
        raise InvalidRequest(
            f"Target location already exists and is not empty: {redact(target)}.",
            next="Choose another, or delete what is there.",
        )


def _write(
    store: Store, state: State, adds: pa.Table, config: Config, facts: dict[str, Any]
) -> int:
    """The new log. The order of the writes is what an interruption leaves behind.

    Returns the bytes of version 1, as they are before they are packed.
    """
    clock = SystemClock()
    store.check_writable()
    total = size = 0
    for text in _texts(adds):
        total, size = crc32(text, total), size + len(text)
    stamp = max(clock.now_ms(), (state.timestamp or 0) + 1)
    seal = {"numActions": int(adds.num_rows), "checksum": f"{CHECKSUM}{total:08x}"}
    info = {"txnId": clock.new_id(), "timestamp": stamp, **facts, **seal}
    stamp = _put_adds(store, info, adds, config)
    first = first_commit(state.protocol, state.metadata)
    data = wrap(first, config.compression_codec, config.compression_gzip_level)
    if (
        not put_same(store, f"{LOG}/{commit_name(0)}", data)
        and _plain(store, commit_name(0), config) != first
    ):
        raise _other_repair(commit_name(0))
    steps = {app: (step, 1) for app, (step, _) in state.txns.items()}
    recent = unknown_before(1)  # the ids are those of another log
    new = replace(state, version=1, source=adds, timestamp=stamp, txns=steps, recent=recent)
    listing = read_listing(*_names(store))
    make_checkpoint(store, listing, new, config, clock)
    return size


def _put_adds(store: Store, info: dict[str, Any], adds: pa.Table, config: Config) -> int:
    """Write version 1, or find that it is there already; returns the time it has."""
    packing = Packing(config.compression_codec, config.compression_gzip_level)
    packing.write(line("commitInfo", info))
    for text in _texts(adds):
        packing.write(text)
    if put_same(store, f"{LOG}/{commit_name(1)}", packing.finish()):
        return int(info["timestamp"])
    head, _, body = _plain(store, commit_name(1), config).partition(b"\n")
    raw = info_of(head)
    known = None if raw is None else read_info(raw)
    if known is None or known.operation != "REPAIR" or known.timestamp is None:
        raise _other_repair(commit_name(1))
    if known.checksum != info["checksum"] or f"{CHECKSUM}{crc32(body):08x}" != known.checksum:
        raise _other_repair(commit_name(1))
    return known.timestamp


def _texts(adds: pa.Table) -> Iterator[bytes]:
    """The lines of version 1, some thousand at a time."""
    for start in range(0, adds.num_rows, _ROWS):
        yield b"".join(add_lines(adds.slice(start, _ROWS)))


def _plain(store: Store, name: str, config: Config) -> bytes:
    key = f"{LOG}/{name}"
    return unwrap(store.get(key), key, config.max_decompressed_bytes)


def _other_repair(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Target location already exists and is not empty: its {name} is of another repair, or of"
        " another state of the source.",
        next="Choose another, or delete what is there.",
    )

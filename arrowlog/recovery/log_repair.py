"""Repair: write a clean log, at another place, from what can be salvaged of a damaged one.

The source is never written to. The new log has the protocol and metadata as version 0, the adds
whose data files exist as version 1, and a checkpoint of version 1.

Version 1 is written first, then version 0, then the checkpoint, then the pointer. The new log can
therefore not be opened before it is complete, and one without a pointer is unfinished: running the
same repair again recognizes what it wrote and continues. Nothing is ever deleted or overwritten,
and a target with any other content is refused.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import repeat_bool, sum_exactly
from arrowlog.clock import SystemClock
from arrowlog.config import Config, parse_argument, parse_text, resolve
from arrowlog.decode import extract_commit_info, parse_commit_info
from arrowlog.errors import InvalidRequest, LogCorrupt, TableNotFound, redact
from arrowlog.fork_safety import pl, require_polars
from arrowlog.formats import Protocol, no_recent_commits
from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    CHECKSUM_PREFIX,
    INDEXTABLES,
    LOG_FOLDER,
    STATE_PROTOCOL_VERSION,
    StreamCompressor,
    commit_name,
    compress,
    crc32,
    decompress,
    encode_action,
    encode_adds,
    encode_first_commit,
    is_json_part,
    is_parquet_part,
    manifest_name,
)
from arrowlog.log_lines import REPAIR_DONE, REPAIR_FAILED, REPAIR_NOTE
from arrowlog.maintenance import classify_files, make_checkpoint, read_other_log
from arrowlog.recovery.data_files import check_files_exist, check_files_exist_on_spark
from arrowlog.recovery.salvage import SalvageResult, list_log_folder, salvage
from arrowlog.recovery.stranded import checksum_commit, find_stranded
from arrowlog.snapshot import (
    InMemoryFiles,
    is_state_table,
    json_checkpoint_name,
    paths_leading_out,
    truncate_adds,
)
from arrowlog.storage import open_store, put_identical
from arrowlog.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrowlog.formats import Format
    from arrowlog.recovery.data_files import Progress
    from arrowlog.snapshot import State
    from arrowlog.storage import Store

_ADDS_PER_BATCH = 1 << 15  # adds that are encoded as JSON at a time, to bound memory
_MAX_NAMED_FILES = 10  # files that a note lists by name
_ANY_AGE_MS = 1 << 62  # later than every file: none is too young to count
# The advice of doctor and repair gives the damaged log this name.
REPLACED_LOG_FOLDER = f"{LOG_FOLDER}_old"
_STATS_FIELDS = ("stats", "minValues", "maxValues")
# Keys in the metadata of the result's schema.
NOTES_METADATA_KEY = b"arrowlog.notes"
LOSSES_METADATA_KEY = b"arrowlog.losses"
REPAIR_RESULT_SCHEMA = pa.schema(
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
_STATE_FEATURE = "avroState"
_PROTOCOL_WITHOUT_FEATURES = 2  # for readers and writers


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of a repair."""

    source: str
    target: str
    storage_options: Mapping[str, Any]
    options: Mapping[str, object]
    session: Mapping[str, object]  # settings of the Spark session
    spark: Any
    progress: Progress | None


class _Log(NamedTuple):
    """A log of IndexTables in any folder: its store, and its format, which tells the folder."""

    store: Store
    format: Format


@dataclass(frozen=True, slots=True)
class _Outcome:
    version: int  # of the source
    total: int  # live files in the source
    valid: int  # files in the new log
    notes: tuple[str, ...]
    losses: RepairLosses


@dataclass(frozen=True, slots=True)
class RepairLosses:
    """What of the source is not in the repaired log.

    `versions` are the first and the last version that were left out; None if all are in the new
    log. `missing_files` are live files that do not exist. `stranded_files` exist in the table's
    folder, but only commits after the break name them; `adopt` are the calls that add them again,
    once the new log is in place and the old one renamed to `_transaction_log_old`. There is no call
    for files whose rows may be in the table already.
    `unclaimed_files` exist and no commit names them: they may belong to the commit that is lost.
    """

    versions: tuple[int, int] | None = None
    missing_files: tuple[str, ...] = ()
    stranded_files: tuple[str, ...] = ()
    stranded_bytes: int = 0
    stranded_rows: int | None = 0  # None if the log does not tell
    unclaimed_files: tuple[str, ...] = ()
    adopt: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was left out."""
        return bool(
            self.versions or self.missing_files or self.stranded_files or self.unclaimed_files
        )


def repair(
    source_log: str | os.PathLike[str],
    target_log: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    spark: Any = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Write a clean log to `target_log` from what can be read of the log at `source_log`.

    Both are log folders; data files are looked up next to the source. The target must be empty or
    hold an unfinished run of the same repair, which is then completed. The source is only read.

    Returns one row: `source_path`, `target_path`, `source_version`, `total_splits`, `valid_splits`,
    `missing_splits` and `status`. The status is `SUCCESS`, or `ERROR: …` with version -1 and zeros.
    What was left out, and why, is logged as warnings, stored in the `operationParameters` of the
    new version 1, and returned by `repair_notes(result)`; `repair_losses(result)` has the versions
    and files.

    `options` may contain `repair.validateSplits`, `repair.preserveStats`, `repair.parallelism`,
    `repair.failOnMissing` and `stats.truncation.*`. With `spark`, the session's workers look up the
    data files. `progress(done, total)` is called as data files are looked up.

    Raises InvalidRequest for a wrong option; every other failure is in `status`.
    """
    require_polars("Repair")
    resolve(options)  # a wrong option is a mistake of the caller, so it raises
    session = {} if spark is None else _session_settings(spark)
    source = _address(source_log, "source_log")
    target = _address(target_log, "target_log")
    shown, started = (redact(source), redact(target)), time.perf_counter()
    job = _Job(source, target, storage_options or {}, options or {}, session, spark, progress)
    try:
        outcome = _repair(job)
    except Exception as error:  # noqa: BLE001 -- the protocol reports every failure as a status
        reason = redact(str(error)).split("\n", 1)[0] or type(error).__name__
        REPAIR_FAILED.log(table=shown[0], reason=reason)
        return _result_row(*shown, -1, 0, 0, f"ERROR: {reason}")
    for note in outcome.notes:
        REPAIR_NOTE.log(table=shown[0], note=note)
    REPAIR_DONE.log(
        table=shown[0],
        target=shown[1],
        version=outcome.version,
        files=outcome.valid,
        missing=outcome.total - outcome.valid,
        ms=(time.perf_counter() - started) * 1000,
    )
    counts = outcome.version, outcome.total, outcome.valid
    return _result_row(*shown, *counts, "SUCCESS", outcome.notes, outcome.losses)


def repair_notes(result: pa.Table) -> list[str]:
    """Return what a repair left out and why, one sentence each; empty for an undamaged log."""
    text = (result.schema.metadata or {}).get(NOTES_METADATA_KEY, b"[]")
    return [str(note) for note in json.loads(text)]


def repair_losses(result: pa.Table) -> RepairLosses:
    """Return what of the source is not in the repaired log."""
    text = (result.schema.metadata or {}).get(LOSSES_METADATA_KEY, b"{}")
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()
    }
    return RepairLosses(**fields)


def open_table_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, config: Config
) -> Store:
    """Open the store of a table, which need not be readable."""
    return open_store(
        uri,
        storage_options,
        parallelism=config.request_ceiling,
        timeout_seconds=config.checkpoint_read_timeout_seconds,
        accelerate=config.store_accelerate,
    )


def _open_log_folder(job: _Job, uri: str, config: Config) -> _Log:
    """Open the store of a table by its log folder, which may have any name."""
    parent, name = split_log_address(uri)
    store = open_table_store(parent, job.storage_options, config)
    return _Log(store, INDEXTABLES.relocated(name))


def split_log_address(uri: str) -> tuple[str, str]:
    """Split the address of a log into that of its table and the name of the log folder.

    Raises InvalidRequest if the address has no parent folder.

    >>> split_log_address("s3://bucket/events/_transaction_log/")
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


def _session_settings(spark: Any) -> dict[str, object]:
    """Return the `spark.indextables.*` settings of a Spark session."""
    from arrowlog.spark.versions import all_settings

    settings = all_settings(spark)
    return {key: value for key, value in settings.items() if key.startswith("spark.indextables.")}


def _result_row(
    source: str,
    target: str,
    version: int,
    total: int,
    valid: int,
    status: str,
    notes: tuple[str, ...] = (),
    losses: RepairLosses | None = None,
) -> pa.Table:
    values = (source, target, version, total, valid, total - valid, status)
    schema = REPAIR_RESULT_SCHEMA.with_metadata(
        {
            NOTES_METADATA_KEY: json.dumps(notes).encode(),
            LOSSES_METADATA_KEY: json.dumps(asdict(losses or RepairLosses())).encode(),
        }
    )
    columns = [pa.array([value], item.type) for value, item in zip(values, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _address(given: object, name: str) -> str:
    return parse_argument(
        parse_text, os.fspath(given) if hasattr(given, "__fspath__") else given, name
    )


def _repair(job: _Job) -> _Outcome:
    config = resolve(job.options, job.session)
    _check_separate(job)
    source = _open_log_folder(job, job.source, config)
    target = _open_log_folder(job, job.target, config)
    _check_target(target, job.target)
    salvaged = _salvage(source, job.source, config)
    state = _without_states(salvaged.snapshot.state)
    INDEXTABLES.check_writable(state.protocol, redact(job.source))
    config = _config_for_target(job, state)
    valid, missing = _split_by_existence(job, source.store, state, config)
    losses = _report_losses(source, salvaged, config, missing)
    adds = _normalize_adds(valid, state, config)
    checksum = checksum_commit(source.store, source.format.log_folder, state.version)
    info = _commit_info(job, salvaged, checksum, adds, missing)
    size = _write(target, state, adds, config, info)
    if size > Config().max_decompressed_bytes:
        what = (
            f"version 1 has {size:,} bytes, more than readers decompress by default: raise"
            " transaction.maxDecompressedBytes if the checkpoint is ever lost"
        )
        salvaged.problems.report("commit-large", "warning", what, "", version=1)
    notes = salvaged.problems.notes()
    return _Outcome(state.version, state.num_files, int(adds.num_rows), notes, losses)


def _without_states(state: State) -> State:
    """Return the state with a protocol whose tables are commits and checkpoints only."""
    if not is_state_table(state):
        return state
    old = state.protocol
    readers, writers = (
        tuple(name for name in features if name != _STATE_FEATURE)
        for features in (old.reader_features, old.writer_features)
    )
    version = STATE_PROTOCOL_VERSION - 1 if readers or writers else _PROTOCOL_WITHOUT_FEATURES
    protocol = Protocol(version, version, readers, writers)
    return replace(state, protocol=protocol, txns=dict(state.txns))


def _salvage(log: _Log, source: str, config: Config) -> SalvageResult:
    """Salvage the source, with an error in the protocol's words if there is no log.

    Raises InvalidRequest for a Delta log.
    """
    if log.format.log_folder.rpartition("/")[2] == DELTA.log_folder:
        DELTA.require_writable()
    try:
        return salvage(log.store, config, log.format)
    except TableNotFound:
        names = log.store.list_from(log.format.log_folder)
        is_table_folder = LOG_FOLDER in names
        if DELTA.log_folder in names and not is_table_folder:
            DELTA.require_writable()
        raise TableNotFound(
            f"Source transaction log not found: {redact(source)} has no commits in it.",
            next=f"Did you mean {redact(source).rstrip('/')}/{LOG_FOLDER}?"
            if is_table_folder
            else "Check the address: it must be the folder of the log.",
        ) from None


def _check_separate(job: _Job) -> None:
    """Refuse a target inside the source, which must never be written to."""
    source, target = (f"{'/'.join(split_log_address(uri))}/" for uri in (job.source, job.target))
    if target.startswith(source):
        raise InvalidRequest(
            f"Target location already exists and is not empty: {job.target} is the source."
            if target == source
            else f"The target {job.target} lies in the source, which is never written to.",
            next="Choose a folder next to the source.",
        )


def _config_for_target(job: _Job, state: State) -> Config:
    """Return the settings for the new log, including the table's own, with compression on."""
    try:
        config = resolve(job.options, job.session, state.metadata.configuration)
    except InvalidRequest:  # an invalid table property must not prevent the repair
        config = resolve(job.options, job.session)
    codec = "gzip" if config.compression_codec == "none" else config.compression_codec
    return replace(
        config,
        compression_enabled=True,
        checkpoint_compression_enabled=True,
        compression_codec=codec,
    )


def _split_by_existence(
    job: _Job, store: Store, state: State, config: Config
) -> tuple[pa.Table, pa.Table]:
    """Split the live adds into those whose data files exist and those whose files do not.

    Raises LogCorrupt if a path lies outside the table (a damaged or hostile log must not direct
    requests elsewhere), or if files are missing and `repair.failOnMissing` is set.
    """
    adds = state.adds
    if not config.repair_validate_splits or adds.num_rows == 0:
        return adds, adds.slice(0, 0)
    outside = paths_leading_out(adds["key"])
    if outside is not None:
        first = adds.filter(outside)["key"][0].as_py()
        raise LogCorrupt(
            f"{first!r} lies outside the table, so its existence is not checked.",
            next="Keep such files unchecked with repair.validateSplits=false.",
        )
    exists = _look_up(job, store, adds["key"], config)
    missing = adds.filter(pc.invert(exists))
    if missing.num_rows and config.repair_fail_on_missing:
        raise LogCorrupt(
            f"{missing.num_rows:,} of {adds.num_rows:,} data files are missing, the first:"
            f" {missing['key'][0].as_py()}.",
            next="Restore them, or leave them out with repair.failOnMissing=false.",
        )
    return adds.filter(exists), missing


def _look_up(job: _Job, store: Store, keys: pa.ChunkedArray, config: Config) -> pa.ChunkedArray:
    """Return a mask of the data files that exist."""
    parallelism = config.repair_parallelism
    root = split_log_address(job.source)[0]
    if job.spark is None or root.startswith("memory:"):  # workers cannot see this process's memory
        return check_files_exist(store, keys, parallelism=parallelism, progress=job.progress)
    exists = check_files_exist_on_spark(
        job.spark, root, job.storage_options, keys, parallelism=parallelism
    )
    if job.progress is not None:
        job.progress(len(keys), len(keys))
    return exists


def _report_losses(
    source: _Log, salvaged: SalvageResult, config: Config, missing: pa.Table
) -> RepairLosses:
    """Report what the new log does not contain, beside the problems that salvage has reported."""
    reached, newest = salvaged.snapshot.version, salvaged.newest
    losses = RepairLosses(missing_files=tuple(missing["key"].to_pylist()))
    if newest > reached:
        lost = f"version {newest} is"
        if newest > reached + 1:
            lost = f"versions {reached + 1} to {newest} are"
        what = f"the new log contains version {reached} of the source; {lost} not in it"
        salvaged.problems.report("versions-lost", "error", what, "", version=reached + 1)
        losses = _report_stranded(source, salvaged, config, losses)
        losses = replace(losses, versions=(reached + 1, newest))
    if missing.num_rows:
        what = f"missing data files are left out: {_some(losses.missing_files)}"
        salvaged.problems.report("data-missing", "error", what, "")
    return losses


def _some(paths: Sequence[str]) -> str:
    """Name some of the files, and count the others."""
    more = len(paths) - _MAX_NAMED_FILES
    return ", ".join(paths[:_MAX_NAMED_FILES]) + (f" and {more:,} more" if more > 0 else "")


def _report_stranded(
    source: _Log, salvaged: SalvageResult, config: Config, losses: RepairLosses
) -> RepairLosses:
    """Report the data files in the folder that only the commits left out name, or none does."""
    walked = source.store.walk()
    files = pl.DataFrame(pl.from_arrow(walked))
    log = read_other_log(source.store, config, source.format.log_folder, files)
    snapshot = salvaged.snapshot
    keys = snapshot.state.column("key")
    live = pl.Series("key", pl.from_arrow(keys), dtype=pl.String)
    before = log.events.filter(pl.col("version") <= snapshot.version)["key"]
    known = pl.concat([live, before.cast(pl.String), log.state_keys])
    stranded = find_stranded(log, snapshot.version, live, known, files)
    named = pa.chunked_array([log.named_keys.to_arrow()]).cast(pa.string())
    fates = classify_files(walked, keys, named, snapshot.partition_columns, _ANY_AGE_MS)
    unclaimed = fates.filter(pl.col("fate") == "orphan")["key"].sort().to_list()
    rows = [group.count_rows(source.store, config) for group in stranded]
    losses = replace(
        losses,
        stranded_files=tuple(key for group in stranded for key in group.keys.to_list()),
        stranded_bytes=sum(group.size_bytes for group in stranded),
        stranded_rows=None if None in rows else sum(count or 0 for count in rows),
        unclaimed_files=tuple(unclaimed),
        adopt=tuple(
            group.adopt_call(REPLACED_LOG_FOLDER) for group in stranded if not group.unclear
        ),
    )
    if stranded:
        told = "" if losses.stranded_rows is None else f"{losses.stranded_rows:,} rows, "
        what = (
            f"data files of these versions are stranded ({len(losses.stranded_files):,} files,"
            f" {told}{losses.stranded_bytes:,} bytes): {_some(losses.stranded_files)}. Once the"
            f" new log is in place and the old one is {REPLACED_LOG_FOLDER}, the doctor shows the"
            " calls that add them again"
        )
        salvaged.problems.report("stranded", "error", what, "")
    if unclaimed:
        what = (
            f"no commit names these data files, which may belong to one that is lost:"
            f" {_some(unclaimed)}"
        )
        salvaged.problems.report("unclaimed", "warning", what, "")
    return losses


def _normalize_adds(adds: pa.Table, state: State, config: Config) -> pa.Table:
    """Return the adds for the new log: relative paths, dataChange true, configured statistics."""
    if not config.repair_preserve_stats:
        stats = [n for n in adds.column_names if n.partition(".")[0] in _STATS_FIELDS]
        adds = adds.drop_columns(stats)
    elif adds.num_rows:
        adds = truncate_adds(adds, state.metadata.partition_columns, config, state.schema)
    if adds.num_rows == 0:
        return adds
    for name, column in (("path", adds["key"]), ("dataChange", repeat_bool(True, adds.num_rows))):
        at = adds.schema.get_field_index(name)
        adds = adds.append_column(name, column) if at < 0 else adds.set_column(at, name, column)
    return adds


def _commit_info(
    job: _Job,
    salvaged: SalvageResult,
    checksum: str | None,
    adds: pa.Table,
    missing: pa.Table,
) -> dict[str, Any]:
    """Return the commitInfo of version 1, without id, time and checksum."""
    size = sum_exactly(adds["size"]) if adds.num_rows else 0
    return {
        "operation": "REPAIR",
        "operationParameters": {
            "source": redact(job.source),
            "sourceVersion": salvaged.snapshot.version,
            "sourceChecksum": checksum,
            "notes": list(salvaged.problems.notes()),
        },
        "operationMetrics": {
            "numAddedFiles": int(adds.num_rows),
            "numAddedBytes": size,
            "numMissingFiles": int(missing.num_rows),
        },
        "readVersion": 0,
        "engineInfo": f"arrowlog/{__version__}",
    }


def _list_target(log: _Log) -> tuple[list[str], list[str]]:
    """List a log folder and its checkpoint folder, without temporary files."""
    names, inner = (
        [name for name in folder if not name.startswith(".")] for folder in list_log_folder(*log)
    )
    return names, inner


def _check_target(log: _Log, target: str) -> None:
    """Refuse a target that contains anything but the files of an interrupted repair."""
    names, inner = _list_target(log)
    if not names:
        return
    own = {commit_name(0), commit_name(1), json_checkpoint_name(1), CHECKPOINT_FOLDER_NAME}
    foreign = [name for name in names if name not in own and not is_json_part(name, 1)]
    foreign += [n for n in inner if n != manifest_name(1) and not is_parquet_part(n, 1)]
    if foreign or commit_name(1) not in names:
        raise InvalidRequest(
            f"Target location already exists and is not empty: {redact(target)}.",
            next="Choose another target, or delete its content.",
        )


def _write(log: _Log, state: State, adds: pa.Table, config: Config, info: dict[str, Any]) -> int:
    """Write the new log; return the size of version 1 in bytes, uncompressed.

    The order of the writes matters: see the module's docstring. Raises InvalidRequest if the target
    holds a version 0 or 1 of another repair.
    """
    clock = SystemClock()
    log.store.check_writable(log.format.log_folder)
    crc = size = 0
    for text in _encoded_batches(adds):
        crc, size = crc32(text, crc), size + len(text)
    timestamp = max(clock.now_ms(), (state.timestamp or 0) + 1)  # later than the source's
    integrity = {"numActions": int(adds.num_rows), "checksum": f"{CHECKSUM_PREFIX}{crc:08x}"}
    info = {"txnId": clock.new_id(), "timestamp": timestamp, **info, **integrity}
    timestamp = _put_adds(log, info, adds, config)
    first = encode_first_commit(state.protocol, state.metadata)
    data = compress(first, config.compression_codec, config.compression_gzip_level)
    if (
        not put_identical(log.store, log.format.key(commit_name(0)), data)
        and _read_plain(log, commit_name(0), config) != first
    ):
        raise _other_repair(commit_name(0))
    txns = {app: (step, 1) for app, (step, _) in state.txns.items()}
    recent = no_recent_commits(1)  # transaction ids of the source's versions do not apply here
    new_state = replace(
        state,
        version=1,
        source=InMemoryFiles(adds, log.format),
        timestamp=timestamp,
        txns=txns,
        recent=recent,
        format=log.format,
    )
    listing = log.format.classify(*_list_target(log))
    make_checkpoint(log.store, listing, new_state, config, clock)
    return size


def _put_adds(log: _Log, info: dict[str, Any], adds: pa.Table, config: Config) -> int:
    """Write version 1, or accept an existing one with the same adds; return its timestamp.

    Raises InvalidRequest if the existing one is not of a repair, or has other adds.
    """
    packing = StreamCompressor(config.compression_codec, config.checkpoint_gzip_level)
    packing.write(encode_action("commitInfo", info))
    for text in _encoded_batches(adds):
        packing.write(text)
    if put_identical(log.store, log.format.key(commit_name(1)), packing.finish()):
        return int(info["timestamp"])
    head, _, body = _read_plain(log, commit_name(1), config).partition(b"\n")
    raw = extract_commit_info(head)
    existing = None if raw is None else parse_commit_info(raw)
    if existing is None or existing.operation != "REPAIR" or existing.timestamp is None:
        raise _other_repair(commit_name(1))
    # The body is checked as well: the file may be torn behind an intact commitInfo.
    if (
        existing.checksum != info["checksum"]
        or f"{CHECKSUM_PREFIX}{crc32(body):08x}" != existing.checksum
    ):
        raise _other_repair(commit_name(1))
    return existing.timestamp


def _encoded_batches(adds: pa.Table) -> Iterator[bytes]:
    """Yield the lines of version 1 in batches."""
    for start in range(0, adds.num_rows, _ADDS_PER_BATCH):
        yield b"".join(encode_adds(adds.slice(start, _ADDS_PER_BATCH)))


def _read_plain(log: _Log, name: str, config: Config) -> bytes:
    key = log.format.key(name)
    return decompress(log.store.get(key), key, config.max_decompressed_bytes)


def _other_repair(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Target location already exists and is not empty: its {name} comes from another repair, or"
        " from another state of the source.",
        next="Choose another target, or delete its content.",
    )

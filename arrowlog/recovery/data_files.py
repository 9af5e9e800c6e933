"""The data files of a version: checks of the doctor, and which of them exist.

The checks are column operations, so they scale to millions of files. To look files up with few
requests, a folder with more than a few wanted files is listed (one request covers about a thousand
names), and other files are checked one by one. Folders are processed in parallel; with Spark, by
its workers. If even that takes thousands of requests, the whole table is listed recursively.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, repeat_bool
from arrowlog.config import parse_argument, parse_at_least, parse_names
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.maintenance import (
    ReferencedFiles,
    classify_table_files,
    find_all_referenced_files,
    read_other_logs,
    read_skips,
)
from arrowlog.predicate import may_have_nan
from arrowlog.recovery.findings import Finding
from arrowlog.recovery.stranded import StrandedFiles, find_stranded, read_repair_origin
from arrowlog.scan import SPLIT_SUFFIX
from arrowlog.snapshot import TRUNCATION_MARK, has_bounds
from arrowlog.storage import find_secrets, open_store, stat_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import LogListing
    from arrowlog.maintenance import OtherLogs
    from arrowlog.snapshot import Snapshot
    from arrowlog.storage import Store

    Progress = Callable[[int, int], object]

MIB = 1 << 20
DAY_MS = 86_400_000
_DEFAULT_MAX_SMALL_FILES = 100
_MAX_PATHS_IN_FIX = 10  # up to this many files, a fix lists their paths
_MIN_REPEATED_SKIPS = 3  # skips of one file, from which on they are reported
_COMMON_CUT_LENGTHS = tuple(1 << n for n in range(5, 13))  # 32 to 4096 characters
_MAX_STATS_PER_FOLDER = 8  # up to this many wanted files of a folder are checked one by one
_MAX_SPARK_TASKS = 200
_MAX_REQUESTS = 2000  # beyond this, one recursive listing is cheaper
_MIN_SECRET_CHARACTERS = 4  # masking shorter values would mangle ordinary words

_TRUNCATE_INSTEAD_OF_DROP = (
    "table.set_properties({'spark.indextables.stats.truncation.strategy': 'truncate'})"
)


@dataclass(frozen=True, slots=True)
class DoctorLimits:
    """What the doctor tolerates.

    None means the default limit, which is reported as a warning when exceeded; a limit that the
    caller gives is reported as an error.
    """

    commits_since_checkpoint: int | None = None
    small_files: int | None = None
    stats: tuple[str, ...] = ()  # columns for which every file must have bounds
    data_files: bool = True  # whether to list the table's folder and look for data files
    small_bytes: int = 32 * MIB  # files below this size are small
    orphan_ms: int = 7 * DAY_MS  # unreferenced files older than this are orphans

    @classmethod
    def parse(
        cls,
        commits_since_checkpoint: object,
        small_files: object,
        stats: object,
        *,
        data_files: bool,
    ) -> DoctorLimits:
        """Return the limits of a caller. Raises `InvalidRequest` naming an invalid argument."""
        counts = {
            "max_commits_since_checkpoint": commits_since_checkpoint,
            "max_small_files": small_files,
        }
        commits, files = (
            None if count is None else parse_argument(parse_at_least(0), count, name)
            for name, count in counts.items()
        )
        names = parse_argument(parse_names, stats, "assert_stats")
        return cls(commits, files, names, data_files=data_files)


def check_data_files(
    store: Store,
    config: Config,
    snapshot: Snapshot,
    limits: DoctorLimits,
    now_ms: int,
    repair_call: str,
    *,
    writable: bool,
) -> list[Finding]:
    """Check the live files of a snapshot, and look for orphan files in the table's folder.

    `repair_call` is the fix for missing files if there are many of them or if the log is not
    `writable`. Raises InvalidRequest if a column in `limits.stats` does not exist.
    """
    _check_columns(snapshot, limits)
    findings: list[Finding] = []
    if limits.data_files:
        walked = store.walk()
        findings += _check_existence(store, snapshot, walked, repair_call, writable=writable)
        findings += _find_orphans(store, config, walked, limits, now_ms)
    if snapshot.num_files:
        findings += _check_small_files(snapshot, limits)
        findings += _check_bounds(snapshot, limits)
        findings += _check_nan_counts(snapshot)
        findings += _check_truncated_bounds(snapshot, config)
    return findings


def _check_columns(snapshot: Snapshot, limits: DoctorLimits) -> None:
    for name in limits.stats:
        if snapshot.schema.get_field_index(name) < 0:
            raise InvalidRequest(
                f"There is no column {name!r}.",
                next=f"The columns are: {', '.join(snapshot.schema.names)}.",
            )


def _keys_of(keys: pa.ChunkedArray) -> pl.Series:
    return pl.Series(pl.from_arrow(keys), dtype=pl.String)


def _to_arrow(keys: pl.Series) -> pa.Array:
    return keys.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


def _first_and_count(keys: pl.Series) -> str:
    rest = keys.len() - 1
    return f"{keys[0]!r}{f' and {rest:,} more' if rest else ''}"


def _count_files(count: int) -> str:
    """The subject and verb of a sentence about some data files."""
    return "1 data file is" if count == 1 else f"{count:,} data files are"


def _live_files(keys: pl.Series, one: str, many: str) -> str:
    """The subject and verb of a sentence about some live files."""
    return f"1 live file {one}" if keys.len() == 1 else f"{keys.len():,} live files {many}"


def _live_keys(snapshot: Snapshot) -> pl.Series:
    return _keys_of(snapshot.state.column("key"))


def _keys_where(snapshot: Snapshot, mask: Any) -> pl.Series:
    return _keys_of(snapshot.state.column("key").filter(mask))


def _check_existence(
    store: Store, snapshot: Snapshot, walked: pa.Table, repair_call: str, *, writable: bool
) -> list[Finding]:
    """Report live files that do not exist or whose size differs from the log.

    Files outside the table's folder are not in `walked`; they are not checked.
    """
    live = pl.DataFrame(
        {
            "key": _live_keys(snapshot),
            "logged_size": pl.Series(pl.from_arrow(snapshot.state.column("size")), dtype=pl.Int64),
        },
        schema={"key": pl.String, "logged_size": pl.Int64},
    )
    existing = pl.DataFrame(pl.from_arrow(walked)).select("key", "size")
    inside = ~pl.col("key").str.contains(r"^/|:/")
    not_walked = live.join(existing, on="key", how="anti").filter(inside)["key"]
    existing = pl.concat([existing, _look_up_unlisted(store, not_walked)])
    joined = live.join(existing, on="key", how="left").sort("key")
    missing = joined.filter(pl.col("size").is_null() & inside)["key"]
    findings = []
    if missing.len():
        by_name = missing.len() <= _MAX_PATHS_IN_FIX and writable
        fix = (
            f"table.remove({missing.to_list()!r})"
            "  # Gives up their rows; restore the files from a backup instead if there is one."
            if by_name
            else repair_call
        )
        subject = _live_files(missing, "does not exist", "do not exist")
        what = f"{subject}: {_first_and_count(missing)}. Scans that need such a file fail."
        findings.append(_about_files("data-missing", "error", what, missing, fix))
    resized = joined.filter(pl.col("size") != pl.col("logged_size"))["key"]
    if resized.len():
        subject = _live_files(resized, "has", "have")
        what = f"{subject} a different size than the log says: {_first_and_count(resized)}."
        findings.append(_fixed_by_statistics("data-size", "warning", what, resized))
    return findings


def _look_up_unlisted(store: Store, keys: pl.Series) -> pl.DataFrame:
    """Return key and size of those live files that exist although `Store.walk` does not list them.

    On a local disk, readers reach files behind symbolic links and under unusual spellings of their
    path, such as `./a.parquet`. Object stores have neither.
    """
    schema = {"key": pl.String, "size": pl.Int64}
    if not store.cheap_stat:
        return pl.DataFrame(schema=schema)
    found = [(key, stat_object(store, key)) for key in keys.to_list()]
    rows = [(key, stat.size) for key, stat in found if stat is not None]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _about_files(code: str, severity: str, what: str, keys: pl.Series, fix: str) -> Finding:
    return Finding(code, severity, what, str(keys[0]), fix, keys.len(), _to_arrow(keys))


def _fixed_by_statistics(
    code: str, severity: str, what: str, keys: pl.Series, where: str = ""
) -> Finding:
    """A finding whose fix is to read the statistics of files again; splits keep theirs."""
    readable = keys.filter(~keys.str.ends_with(SPLIT_SUFFIX))
    by_name = readable.len() <= _MAX_PATHS_IN_FIX
    paths = repr(readable.to_list()) if by_name else f"table.doctor().paths({code!r})"
    if not by_name and readable.len() < keys.len():
        paths = f"[p for p in {paths} if not p.endswith({SPLIT_SUFFIX!r})]"
    fix = f"table.update_statistics({paths})  # Reads size and statistics from the files again."
    if readable.is_empty():
        fix = (
            "arrowlog.convert(table.uri, target)  # Parquet files have statistics, splits may not."
        )
    return Finding(code, severity, what, where or str(keys[0]), fix, keys.len(), _to_arrow(keys))


def _find_orphans(
    store: Store,
    config: Config,
    walked: pa.Table,
    limits: DoctorLimits,
    now_ms: int,
) -> list[Finding]:
    """Report files that the log does not reference: orphans, stranded ones, those of other logs."""
    horizon_ms = now_ms - limits.orphan_ms
    try:
        needed = find_all_referenced_files(store, config, horizon_ms)
    except (ArrowlogError, FileNotFoundError):
        return []  # which files a damaged log references is unknown
    others = read_other_logs(store, config, walked)
    classified = classify_table_files(walked, needed, others, horizon_ms)
    findings = _report_stranded(store, config, needed, others, classified)
    orphans = classified.filter(pl.col("fate") == "orphan").sort("key")
    if orphans.is_empty():
        return findings
    hours = limits.orphan_ms // 3_600_000
    size = int(orphans["size"].sum())
    what = (
        f"{orphans.height:,} orphan files of {size:,} bytes belong to no version that can be read:"
        f" {_first_and_count(orphans['key'])}."
    )
    fix = f"table.vacuum(older_than='{hours}h')  # Deletes them."
    return [*findings, _about_files("orphans", "info", what, orphans["key"], fix)]


def _report_stranded(
    store: Store,
    config: Config,
    needed: ReferencedFiles,
    others: OtherLogs,
    classified: pl.DataFrame,
) -> list[Finding]:
    """Report the files that only other logs name, first those whose rows a repair left out."""
    kept = classified.filter(pl.col("fate") == "other-log").sort("key")
    if kept.is_empty():
        return []
    findings: list[Finding] = []
    reported = pl.Series("key", [], dtype=pl.String)
    origin = read_repair_origin(store, config)
    known = pl.concat([_keys_of(needed.live), _keys_of(needed.history)])
    for log in others.logs:
        if origin is None or not origin.is_log(store, log.folder):
            continue  # files of an older log may have been removed or rewritten since
        groups = find_stranded(log, origin.version, _keys_of(needed.live), known, kept)
        for files in groups:
            findings.append(_stranded_finding(store, config, files, origin.version))
            reported = pl.concat([reported, files.keys])
    rest = kept.filter(~pl.col("key").is_in(reported.implode()))
    if rest.height:
        findings.append(_report_other_logs(rest, others))
    return findings


def _stranded_finding(
    store: Store, config: Config, files: StrandedFiles, break_version: int
) -> Finding:
    rows = files.count_rows(store, config)
    told = "" if rows is None else f", {rows:,} rows"
    what = (
        f"{_count_files(files.keys.len())} stranded ({files.size_bytes:,} bytes{told}):"
        f" {files.log} names what commits after version {break_version} added, where the repair"
        f" ended. First: {files.keys[0]!r}."
    )
    if files.lost_later:
        what += (
            f" Version {files.lost_later[0]} of that log is lost, too, and may have removed some of"
            " them."
        )
    if files.unclear:
        what += (
            f" The same commits removed files that the table does not have, such as"
            f" {files.unclear[0]!r}, so some of the rows may be in the table already."
        )
        fix = f"{_dry_run(files)}  # Compare the rows with the table's before you adopt the files."
        return _about_files("stranded-unclear", "warning", what, files.keys, fix)
    if files.replaces:
        what += (
            f" They replace {len(files.replaces):,} files that the table still has, whose rows the"
            " same commits removed."
        )
        fix = (
            f"{files.adopt_call(dry_run=True)}  # Without dry_run, it adds these files and removes"
            " those that they replace."
        )
        return _about_files("stranded-replacing", "warning", what, files.keys, fix)
    call = files.adopt_call()
    if files.keys.len() > _MAX_PATHS_IN_FIX:
        call = f"table.adopt(table.doctor().paths('stranded'), from_log={files.log!r})"
    fix = f"{call}  # Adds their rows to the table again."
    return _about_files("stranded", "warning", what, files.keys, fix)


def _dry_run(files: StrandedFiles) -> str:
    first = [files.keys[0]]
    return f"table.adopt({first!r}, from_log={files.log!r}, dry_run=True)"


def _report_other_logs(files: pl.DataFrame, others: OtherLogs) -> Finding:
    """Report files that are kept because of other logs, and how to see and to delete them."""
    keys, size = files["key"], int(files["size"].sum())
    names = ", ".join(others.folders)
    damaged = [log.folder for log in others.logs if log.damaged]
    why = f" {', '.join(damaged)} is damaged, so it may have named more files." if damaged else ""
    what = (
        f"{_count_files(keys.len())} not in the table's log ({size:,} bytes), but vacuum keeps what"
        f" other logs in the folder may need: {names}.{why} First: {keys[0]!r}."
    )
    fix = (
        f"table.adopt({[keys[0]]!r}, dry_run=True)  # Shows the rows of one. Adopt the files that"
        f" belong to the table; table.vacuum(ignore_logs={list(others.folders)!r}) deletes the"
        " others."
    )
    return _about_files("other-log", "info", what, keys, fix)


def _check_small_files(snapshot: Snapshot, limits: DoctorLimits) -> list[Finding]:
    """Report small files that compaction could merge: those not alone in their partition.

    Splits are not merged.
    """
    partition = {
        f"p{number}": pl.Series(pl.from_arrow(snapshot.columns.partition(name)))
        for number, name in enumerate(snapshot.partition_columns)
    }
    small = pl.DataFrame(
        {
            "key": _live_keys(snapshot),
            "size": pl.Series(pl.from_arrow(snapshot.state.column("size")), dtype=pl.Int64),
            **partition,
        }
    ).filter((pl.col("size") < limits.small_bytes) & ~pl.col("key").str.ends_with(SPLIT_SUFFIX))
    mergeable = small.filter(pl.len().over(list(partition)) > 1) if partition else small
    limit = _DEFAULT_MAX_SMALL_FILES if limits.small_files is None else limits.small_files
    if mergeable.height <= max(limit, 1 if not partition else 0):
        return []
    severity = "warning" if limits.small_files is None else "error"
    what = (
        f"{mergeable.height:,} of {snapshot.num_files:,} files are smaller than"
        f" {limits.small_bytes // MIB} MiB and can be compacted; the limit is {limit:,}."
    )
    fix = "table.compact()  # Merges small files; no row changes."
    return [_about_files("small-files", severity, what, mergeable["key"], fix)]


def _check_bounds(snapshot: Snapshot, limits: DoctorLimits) -> list[Finding]:
    """Report columns without bounds in some files.

    A column in which all rows of a file are null needs no bounds there.
    """
    partition = set(snapshot.partition_columns)
    names = [f.name for f in snapshot.schema if has_bounds(f.type) and f.name not in partition]
    names += [name for name in limits.stats if name not in names and name not in partition]
    columns = snapshot.columns
    columns.prepare(names)
    num_records = columns.num_records()
    lacking: dict[str, pa.Array] = {}  # column -> mask of the files without bounds
    for name in names:
        has_both = pc.and_(pc.is_valid(columns.low(name)), pc.is_valid(columns.high(name)))
        all_null = pc.fill_null(pc.equal(columns.null_count(name), num_records), FALSE)
        lacks = pc.invert(pc.or_(has_both, all_null))
        if pc.any(lacks).as_py():
            lacking[name] = lacks
    required = {name: lacks for name, lacks in lacking.items() if name in limits.stats}
    others = {name: lacks for name, lacks in lacking.items() if name not in limits.stats}
    findings = []
    for masks, severity in ((required, "error"), (others, "info")):
        if masks:
            findings.append(_report_missing_bounds(snapshot, masks, severity))
    return findings


def _report_missing_bounds(
    snapshot: Snapshot, lacking: dict[str, pa.Array], severity: str
) -> Finding:
    total = snapshot.num_files
    columns = [
        f"{name} ({lacks.true_count:,} of {total:,} files)" for name, lacks in lacking.items()
    ]
    what = (
        "files have no min and max values, so predicates on these columns cannot skip them:"
        f" {', '.join(columns)}."
    )
    masks = iter(lacking.values())
    mask = next(masks)
    for other in masks:
        mask = pc.or_(mask, other)
    keys = _keys_where(snapshot, mask)
    finding = _fixed_by_statistics("stats-missing", severity, what, keys, ", ".join(lacking))
    if any(pa.types.is_string(snapshot.schema.field(name).type) for name in lacking):
        # With the strategy `drop`, long strings would lose their bounds again.
        finding = replace(finding, fix=f"{_TRUNCATE_INSTEAD_OF_DROP}; {finding.fix}")
    return finding


def _check_nan_counts(snapshot: Snapshot) -> list[Finding]:
    """Report floating-point columns that may have NaN in some files, for all that the log says.

    Files without bounds are left out: they are reported for that, and the same call adds both.
    """
    partition = set(snapshot.partition_columns)
    names = [f.name for f in snapshot.schema if may_have_nan(f.type) and f.name not in partition]
    columns = snapshot.columns
    columns.prepare(names)
    lacking: dict[str, pa.Array] = {}  # column -> mask of the files without a count of NaNs
    for name in names:
        lacks = pc.and_(pc.is_null(columns.nan_count(name)), pc.is_valid(columns.high(name)))
        if lacks.true_count:
            lacking[name] = lacks
    if not lacking:
        return []
    total = snapshot.num_files
    texts = [f"{name} ({lacks.true_count:,} of {total:,} files)" for name, lacks in lacking.items()]
    what = (
        "files do not record whether they have NaN, which is greater than every maximum, so >, >="
        f" and <> on these columns cannot skip them: {', '.join(texts)}."
    )
    keys = _keys_where(snapshot, reduce(pc.or_, lacking.values()))
    return [_fixed_by_statistics("nan-unknown", "info", what, keys, ", ".join(lacking))]


def _check_truncated_bounds(snapshot: Snapshot, config: Config) -> list[Finding]:
    """Report string bounds that look truncated: they skip fewer files than exact ones.

    A column is suspicious if its longest maximum occurs in several files and has a length at which
    writers commonly cut, or if a bound carries the mark ` [TRUNCATED]`.
    """
    strings = [f.name for f in snapshot.schema if pa.types.is_string(f.type)]
    configured = config.stats_truncation_max_length
    cut_lengths = {*_COMMON_CUT_LENGTHS, configured}
    marked = _marked_as_truncated(snapshot)
    reasons: list[str] = []
    cut_by_setting = False
    mask: Any = marked
    for name in strings:
        if name in snapshot.partition_columns:
            continue
        lengths = pc.utf8_length(snapshot.columns.high(name))
        longest = pc.max(lengths).as_py()
        at_longest = None if longest is None else pc.fill_null(pc.equal(lengths, longest), FALSE)
        if at_longest is not None and longest in cut_lengths and at_longest.true_count > 1:
            reasons.append(f"{name} (at {longest} characters)")
            cut_by_setting |= longest == configured
            mask = pc.or_(mask, at_longest)
    if marked.true_count:
        reasons.append(f"marked{TRUNCATION_MARK}")
    if not reasons:
        return []
    keys = _keys_where(snapshot, mask)
    what = f"min and max values look truncated, which skips fewer files: {', '.join(reasons)}."
    finding = _fixed_by_statistics("bounds-truncated", "info", what, keys, ", ".join(strings))
    if cut_by_setting:
        # Our own setting truncated them, and would do so again.
        longer = f"{{'spark.indextables.stats.truncation.maxLength': {4 * configured}}}"
        finding = replace(finding, fix=f"table.set_properties({longer}); {finding.fix}")
    return [finding]


def _marked_as_truncated(snapshot: Snapshot) -> pa.Array:
    """Return a mask of the files with a bound that ends in the truncation mark."""
    adds = snapshot.state.adds
    mask = repeat_bool(False, adds.num_rows)
    for name in adds.column_names:
        if name.partition(".")[0] in ("minValues", "maxValues", "stats") and pa.types.is_string(
            adds[name].type
        ):
            hit = pc.fill_null(pc.match_substring(adds[name], TRUNCATION_MARK.strip()), FALSE)
            mask = pc.or_(mask, hit.combine_chunks())
    return mask


def check_repeated_skips(
    store: Store, config: Config, listing: LogListing, snapshot: Snapshot
) -> list[Finding]:
    """Report live files that merges skipped repeatedly."""
    try:
        skips = read_skips(store, config, listing.commit_files())
    except (ArrowlogError, FileNotFoundError):
        return []  # commits that cannot be read are reported separately
    frame = pl.DataFrame(pl.from_arrow(skips.select(["key", "skipCount", "reason"])))
    live = _live_keys(snapshot)
    repeated = (
        frame.group_by("key", maintain_order=True)
        .agg(times=pl.max_horizontal(pl.col("skipCount").max(), pl.len()), why=pl.last("reason"))
        .filter((pl.col("times") >= _MIN_REPEATED_SKIPS) & pl.col("key").is_in(live.implode()))
    )
    if repeated.is_empty():
        return []
    what = (
        f"merges skipped {repeated.height:,} files {_MIN_REPEATED_SKIPS} times or more:"
        f" {_first_and_count(repeated['key'])}. The last reason: {repeated['why'][0]}."
    )
    fix = "table.compact(include_skipped=True)  # Tries them again without waiting."
    keys = repeated["key"]
    return [
        Finding(
            "skips-piling-up", "warning", what, f"{LOG_FOLDER}/", fix, keys.len(), _to_arrow(keys)
        )
    ]


def group_by_folder(keys: pa.ChunkedArray) -> pl.DataFrame:
    """Group files by folder: columns `folder` (`""` for the root) and `names`, a list."""
    key = pl.col("key")
    return (
        pl.DataFrame({"key": _keys_of(keys)})
        .select(
            folder=key.str.extract(r"(?s)^(.*)/", 1).fill_null(""),
            name=key.str.extract(r"(?s)([^/]*)$", 1),
        )
        .group_by("folder", maintain_order=True)
        .agg(names=pl.col("name"))
    )


def check_files_exist(
    store: Store,
    keys: pa.ChunkedArray,
    *,
    parallelism: int = 4,
    progress: Progress | None = None,
) -> pa.ChunkedArray:
    """Return for each key of a data file whether the file exists.

    `progress(done, total)` is called after each folder.
    """
    folders = group_by_folder(keys)
    total, done = len(keys), 0
    if not store.cheap_stat and _count_requests(folders) > _MAX_REQUESTS:
        mask = _mask(keys, [_keys_of(store.walk()["key"])])
        if progress is not None:
            progress(total, total)
        return mask
    existing: list[pl.Series] = []
    with ThreadPoolExecutor(parallelism) as pool:
        results = pool.map(lambda row: _existing_in_folder(store, *row), folders.iter_rows())
        for in_folder, names in zip(results, folders["names"], strict=True):
            existing.append(in_folder)
            done += len(names)
            if progress is not None:
                progress(done, total)
    return _mask(keys, existing)


def check_files_exist_on_spark(
    spark: Any,
    root: str,
    storage_options: Mapping[str, Any],
    keys: pa.ChunkedArray,
    *,
    parallelism: int,
) -> pa.ChunkedArray:
    """Like `check_files_exist`, by the workers of a Spark session, which open the store."""
    folders = group_by_folder(keys)
    names = folders["names"].to_list()
    rows = pa.table(
        {
            "folder": make_array(folders["folder"].to_list(), pa.string()),
            "names": pa.array(names, pa.list_(pa.string())),
        }
    )
    tasks = max(1, min(rows.num_rows, _MAX_SPARK_TASKS))
    from arrowlog.spark.executors import require_on_workers
    from arrowlog.spark.versions import frame_from_arrow, frame_to_arrow

    require_on_workers(spark)
    frame = frame_from_arrow(spark, rows, "folder string, names array<string>").repartition(tasks)
    work = _worker(root, dict(storage_options), parallelism)
    existing = frame_to_arrow(frame.mapInArrow(work, "key string"))
    return _mask(keys, [_keys_of(existing["key"])])


def _worker(
    root: str, options: dict[str, Any], parallelism: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark's workers run on batches of folders.

    It is pickled with everything it refers to. Spark shows its errors unchanged, so credentials are
    masked in them.
    """

    def arrowlog_present(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(root, options, parallelism=parallelism)
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            try:
                with ThreadPoolExecutor(parallelism) as pool:
                    rows = zip(*columns)  # noqa: B905 -- columns of one batch have equal length
                    existing = list(pool.map(lambda row: _existing_in_folder(store, *row), rows))
            except Exception as error:  # noqa: BLE001 -- any error may contain a credential
                raise RuntimeError(_mask_secrets(str(error), options)) from None
            keys = pl.concat([pl.Series([], dtype=pl.String), *existing]).to_list()
            yield pa.record_batch([make_array(keys, pa.string())], ["key"])

    return arrowlog_present


def _mask_secrets(text: str, options: Mapping[str, Any]) -> str:
    for secret in find_secrets(options):
        text = text.replace(secret, "***") if len(secret) >= _MIN_SECRET_CHARACTERS else text
    return text


def _count_requests(folders: pl.DataFrame) -> int:
    """Return the number of requests without a recursive listing, at one per listed folder."""
    wanted = folders["names"].list.len()
    requests = pl.when(wanted <= _MAX_STATS_PER_FOLDER).then(wanted).otherwise(1)
    return int(pl.select(requests.sum()).item() or 0)


def _existing_in_folder(store: Store, folder: str, names: Sequence[str]) -> pl.Series:
    """Return the keys of those files of one folder that exist."""
    prefix = f"{folder}/" if folder else ""
    if len(names) <= _MAX_STATS_PER_FOLDER:
        existing = [name for name in names if stat_object(store, prefix + name) is not None]
        return pl.Series([prefix + name for name in existing], dtype=pl.String)
    wanted, listed = pl.Series(names), pl.Series(store.list_from(folder), dtype=pl.String)
    return prefix + wanted.filter(wanted.is_in(listed.implode()))


def _mask(keys: pa.ChunkedArray, existing: Sequence[pl.Series]) -> pa.ChunkedArray:
    """Return for each key whether it is among the existing ones."""
    wanted = _keys_of(keys)
    known = pl.concat([pl.Series([], dtype=pl.String), *existing])
    return pa.chunked_array([wanted.is_in(known.implode()).to_arrow()], pa.bool_())

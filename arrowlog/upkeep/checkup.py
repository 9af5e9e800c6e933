"""What a doctor says of the files of a version: whether they are there, and what is known of them.

Everything is a few operations on columns, so that a million files are no more work than they must.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.log.arrays import FALSE, flags
from arrowlog.log.names import LOG
from arrowlog.state.typed import TRUNCATED, has_bounds
from arrowlog.upkeep.findings import Finding
from arrowlog.upkeep.orphans import sort_out
from arrowlog.upkeep.skipped import read_skips
from arrowlog.upkeep.vacuum import needed_files

if TYPE_CHECKING:
    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import Snapshot

MIB = 1 << 20
DAY_MS = 86_400_000
_SMALL_FILES_MAX = 100
_NAMED_MAX = 10  # files that a fix names one by one
_SKIPS_MAX = 3
_CUTS = tuple(1 << n for n in range(5, 13))  # where writers cut texts

_CUT_TEXTS = "table.set_properties({'spark.indextables.stats.truncation.strategy': 'truncate'})"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still well. What somebody asks for is an error when it is passed, else a warning."""

    commits_since_checkpoint: int | None = None
    small_files: int | None = None
    stats: tuple[str, ...] = ()  # columns that every file must have bounds of
    data_files: bool = True  # whether to look for them
    small_bytes: int = 32 * MIB
    orphan_ms: int = 7 * DAY_MS


def examine_files(
    store: Store,
    config: Config,
    snapshot: Snapshot,
    limits: Limits,
    now_ms: int,
    mend: str,
    *,
    writable: bool,
) -> list[Finding]:
    """All that there is to say about the live files, and about those that nobody needs.

    `mend` is the call that repairs the log, for what only that can mend, or if it is not writable.
    """
    _check_columns(snapshot, limits)
    found: list[Finding] = []
    if limits.data_files:
        walked = store.walk()
        found += _presence(snapshot, walked, mend, writable=writable)
        found += _orphans(store, config, walked, limits, now_ms)
    if snapshot.num_files:
        found += _small(snapshot, limits)
        found += _coverage(snapshot, limits)
        found += _cut(snapshot, config)
    return found


def _check_columns(snapshot: Snapshot, limits: Limits) -> None:
    for name in limits.stats:
        if snapshot.schema.get_field_index(name) < 0:
            raise InvalidRequest(
                f"There is no column {name!r}.",
                next=f"There are: {', '.join(snapshot.schema.names)}.",
            )


def _texts(series: pl.Series) -> pa.Array:
    return series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


def _first(series: pl.Series) -> str:
    rest = series.len() - 1
    return f"{series[0]!r}{f' and {rest:,} more' if rest else ''}"


def _live(series: pl.Series) -> str:
    return "1 live file is" if series.len() == 1 else f"{series.len():,} live files are"


def _presence(snapshot: Snapshot, walked: pa.Table, mend: str, *, writable: bool) -> list[Finding]:
    """Live files that are not there, or not as large as they were."""
    live = pl.DataFrame(
        {
            "key": pl.Series(pl.from_arrow(snapshot.state.column("key")), dtype=pl.String),
            "said": pl.Series(pl.from_arrow(snapshot.state.column("size")), dtype=pl.Int64),
        }
        if snapshot.num_files
        else {"key": [], "said": []},
        schema={"key": pl.String, "said": pl.Int64},
    )
    there = pl.DataFrame(pl.from_arrow(walked)).select("key", "size")
    seen = live.join(there, on="key", how="left").sort("key")
    odd = seen.filter(pl.col("size").is_null())
    missing = odd.filter(~pl.col("key").str.contains(r"^/|:/"))["key"]
    found = []
    if missing.len():
        few = missing.len() <= _NAMED_MAX and writable
        fix = f"table.remove({missing.to_list()!r})  # or restore them" if few else mend
        what = f"{_live(missing)} not there: {_first(missing)}."
        found.append(_of_files("data-missing", "error", what, missing, fix))
    other = seen.filter(pl.col("size") != pl.col("said"))["key"]
    if other.len():
        what = f"{_live(other)} not as large as the log says: {_first(other)}."
        found.append(_again("data-size", "warning", what, other))
    return found


def _of_files(code: str, severity: str, what: str, keys: pl.Series, fix: str) -> Finding:
    return Finding(code, severity, what, str(keys[0]), fix, keys.len(), _texts(keys))


def _again(code: str, severity: str, what: str, keys: pl.Series, where: str = "") -> Finding:
    """A finding that is mended by reading footers again."""
    few = keys.len() <= _NAMED_MAX
    paths = repr(keys.to_list()) if few else f"table.doctor().paths({code!r})"
    fix = f"table.update_statistics({paths})"
    return Finding(code, severity, what, where or str(keys[0]), fix, keys.len(), _texts(keys))


def _orphans(
    store: Store, config: Config, walked: pa.Table, limits: Limits, now_ms: int
) -> list[Finding]:
    """Files that no version needs, and that are too old to be of a commit on its way."""
    horizon = now_ms - limits.orphan_ms
    try:
        needed = needed_files(store, config, horizon)
    except (ArrowlogError, FileNotFoundError):
        return []  # nobody can tell what a damaged log needs
    sorted_out = sort_out(walked, needed.live, needed.history, needed.partition_columns, horizon)
    orphans = sorted_out.filter(pl.col("fate") == "orphan").sort("key")
    if orphans.is_empty():
        return []
    hours = limits.orphan_ms // 3_600_000
    size = int(orphans["size"].sum())
    what = (
        f"{orphans.height:,} files of {size:,} bytes are of no version that can be read:"
        f" {_first(orphans['key'])}."
    )
    fix = f"table.vacuum(older_than='{hours}h')"
    return [_of_files("orphans", "info", what, orphans["key"], fix)]


def _small(snapshot: Snapshot, limits: Limits) -> list[Finding]:
    """Small files that have company in their partition."""
    columns = {
        f"p{number}": pl.Series(pl.from_arrow(snapshot.columns.partition(name)))
        for number, name in enumerate(snapshot.partition_columns)
    }
    frame = pl.DataFrame(
        {
            "key": pl.Series(pl.from_arrow(snapshot.state.column("key")), dtype=pl.String),
            "size": pl.Series(pl.from_arrow(snapshot.state.column("size")), dtype=pl.Int64),
            **columns,
        }
    ).filter(pl.col("size") < limits.small_bytes)
    together = frame.filter(pl.len().over(list(columns)) > 1) if columns else frame
    most = _SMALL_FILES_MAX if limits.small_files is None else limits.small_files
    if together.height <= max(most, 1 if not columns else 0):
        return []
    severity = "warning" if limits.small_files is None else "error"
    what = (
        f"{together.height:,} of {snapshot.num_files:,} files are smaller than"
        f" {limits.small_bytes // MIB} MiB and could be larger ones; {most:,} are allowed."
    )
    return [_of_files("small-files", severity, what, together["key"], "table.compact()")]


def _coverage(snapshot: Snapshot, limits: Limits) -> list[Finding]:
    """Columns that some files have no bounds of."""
    partition = set(snapshot.partition_columns)
    names = [f.name for f in snapshot.schema if has_bounds(f.type) and f.name not in partition]
    names += [name for name in limits.stats if name not in names and name not in partition]
    columns = snapshot.columns
    columns.prepare(names)
    rows = columns.num_records()
    lacking: dict[str, pa.Array] = {}
    for name in names:
        known = pc.and_(pc.is_valid(columns.low(name)), pc.is_valid(columns.high(name)))
        empty = pc.fill_null(pc.equal(columns.null_count(name), rows), FALSE)
        lacks = pc.invert(pc.or_(known, empty))
        if pc.any(lacks).as_py():
            lacking[name] = lacks
    asked = {name: lacks for name, lacks in lacking.items() if name in limits.stats}
    others = {name: lacks for name, lacks in lacking.items() if name not in limits.stats}
    found = []
    for some, severity in ((asked, "error"), (others, "info")):
        if some:
            found.append(_lacking(snapshot, some, severity))
    return found


def _lacking(snapshot: Snapshot, some: dict[str, pa.Array], severity: str) -> Finding:
    total = snapshot.num_files
    words = [f"{name} ({lacks.true_count:,} of {total:,} files)" for name, lacks in some.items()]
    what = f"files have no bounds, and are never pruned by: {', '.join(words)}."
    masks = iter(some.values())
    mask = next(masks)
    for other in masks:
        mask = pc.or_(mask, other)
    keys = pl.Series(pl.from_arrow(snapshot.state.column("key").filter(mask)), dtype=pl.String)
    found = _again("stats-missing", severity, what, keys, ", ".join(some))
    if any(pa.types.is_string(snapshot.schema.field(name).type) for name in some):
        found = replace(found, fix=f"{_CUT_TEXTS}; {found.fix}")  # or long ones are dropped again
    return found


def _cut(snapshot: Snapshot, config: Config) -> list[Finding]:
    """Bounds of text that look as if they had been cut: they prune, and less than they could."""
    texts = [f.name for f in snapshot.schema if pa.types.is_string(f.type)]
    cuts = {*_CUTS, config.stats_truncation_max_length}
    marked = _marked(snapshot)
    found: list[str] = []
    mask: Any = marked
    for name in texts:
        if name in snapshot.partition_columns:
            continue
        lengths = pc.utf8_length(snapshot.columns.high(name))
        longest = pc.max(lengths).as_py()
        at = None if longest is None else pc.fill_null(pc.equal(lengths, longest), FALSE)
        if at is not None and longest in cuts and at.true_count > 1:
            found.append(f"{name} (at {longest} characters)")
            mask = pc.or_(mask, at)
    if marked.true_count:
        found.append(f"marked{TRUNCATED}")
    if not found:
        return []
    keys = pl.Series(pl.from_arrow(snapshot.state.column("key").filter(mask)), dtype=pl.String)
    what = f"bounds look as if they had been cut: {', '.join(found)}."
    told = _again("bounds-truncated", "info", what, keys, ", ".join(texts))
    own = config.stats_truncation_max_length
    if any(f"at {own} characters" in text for text in found):  # our own setting cut them
        longer = f"{{'spark.indextables.stats.truncation.maxLength': {4 * own}}}"
        told = replace(told, fix=f"table.set_properties({longer}); {told.fix}")
    return [told]


def _marked(snapshot: Snapshot) -> pa.Array:
    """Files with a bound that says itself that it was cut."""
    adds = snapshot.state.adds
    mask = flags(False, adds.num_rows)
    for name in adds.column_names:
        if name.partition(".")[0] in ("minValues", "maxValues", "stats") and pa.types.is_string(
            adds[name].type
        ):
            hit = pc.fill_null(pc.match_substring(adds[name], TRUNCATED.strip()), FALSE)
            mask = pc.or_(mask, hit.combine_chunks())
    return mask


def examine_skips(
    store: Store, config: Config, listing: Listing, snapshot: Snapshot
) -> list[Finding]:
    """Live files that merges gave up on again and again."""
    try:
        skips = read_skips(store, config, sorted(listing.commits.items()))
    except (ArrowlogError, FileNotFoundError):
        return []  # commits that cannot be read are findings of their own
    frame = pl.DataFrame(pl.from_arrow(skips.select(["key", "skipCount", "reason"])))
    live = (
        pl.Series(pl.from_arrow(snapshot.state.column("key")), dtype=pl.String)
        if (snapshot.num_files)
        else pl.Series([], dtype=pl.String)
    )
    often = (
        frame.group_by("key", maintain_order=True)
        .agg(times=pl.max_horizontal(pl.col("skipCount").max(), pl.len()), why=pl.last("reason"))
        .filter((pl.col("times") >= _SKIPS_MAX) & pl.col("key").is_in(live.implode()))
    )
    if often.is_empty():
        return []
    what = (
        f"{often.height:,} files were skipped {_SKIPS_MAX} times or more:"
        f" {_first(often['key'])}; the last reason: {often['why'][0]}."
    )
    fix = "table.compact(include_skipped=True)"
    where = f"{LOG}/"
    return [
        Finding("skips-piling-up", "warning", what, where, fix, often.height, _texts(often["key"]))
    ]

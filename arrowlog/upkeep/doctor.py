"""The doctor: looks at everything about a table, writes nothing, and says how to mend it.

Here is what concerns the log: names, commits, checkpoints, the pointer, the protocol. What concerns
the files of the newest version is in `checkup`. Codes are stable; each finding's `fix` is the call
that mends it. A log that cannot be opened can be examined all the same.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.clock import SystemClock
from arrowlog.config import resolve
from arrowlog.errors import ArrowlogError, ArrowlogWarning, LogCorrupt, UnsupportedProtocol
from arrowlog.fork_safety import pl, require_polars
from arrowlog.log.names import CHECKPOINTS, LOG, POINTER, Listing, commit_name
from arrowlog.log.segment import checkpoint_versions, earliest
from arrowlog.log.store import open_store
from arrowlog.log.window import LINE_BITS
from arrowlog.state.apply import check_writable, keyed
from arrowlog.state.load import load, read_commits
from arrowlog.upkeep.checkup import Limits, examine_files, examine_skips
from arrowlog.upkeep.findings import Finding, Findings
from arrowlog.upkeep.salvage import (
    Trouble,
    commit_of,
    differ,
    gone,
    salvage,
    sorted_names,
    strangers,
    whole_forms,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import Snapshot

_AT_ONCE = 512  # commits that are read together
_LOOKS_MAX = 3
_BEHIND = 2  # intervals without a checkpoint that are still normal
_UPGRADE = "pip install --upgrade arrowlog"
_CLEAN = "table.cleanup()  # takes it away once it is older than checkpointRetention.duration"


@dataclass(slots=True)
class _Case:
    """An examination on its way."""

    store: Store
    config: Config
    limits: Limits
    now_ms: int
    found: list[Finding] = field(default_factory=list)
    listing: Listing = field(default_factory=Listing)
    broken: dict[int, str] = field(default_factory=dict)  # commits, and what is wrong with them
    whole: int | None = None  # the newest checkpoint that is whole

    def tell(self, code: str, severity: str, what: str, where: str, fix: str) -> None:
        self.found.append(Finding(code, severity, what, where, fix))

    @property
    def mend(self) -> str:
        """The call that makes a clean log of a damaged one."""
        log = f"{self.store.root}/{LOG}"
        return (
            f"arrowlog.repair({log!r}, {f'{log}_repaired'!r})"
            "  # then put it in the place of the old log"
        )


def doctor(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, object] | None = None,
    max_commits_since_checkpoint: int | None = None,
    max_small_files: int | None = None,
    assert_stats: Sequence[str] = (),
    data_files: bool = True,
) -> Findings:
    """Examine a table, also one that cannot be opened; see `Table.doctor`."""
    config = resolve(options)
    store = open_store(
        uri,
        storage_options,
        parallelism=config.checkpoint_parallelism,
        timeout_seconds=config.checkpoint_read_timeout_seconds,
        accelerate=config.store_accelerate,
    )
    limits = Limits(
        max_commits_since_checkpoint, max_small_files, tuple(assert_stats), data_files=data_files
    )
    return examine(store, config, SystemClock().now_ms(), limits)


def examine(
    store: Store,
    config: Config,
    now_ms: int,
    limits: Limits | None = None,
    *,
    outside: bool = False,
) -> Findings:
    """Everything there is to say about a table. Writes nothing, and raises for the store alone."""
    require_polars("The doctor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)  # what it would say is a finding here
        for attempt in range(_LOOKS_MAX):
            case = _Case(store, config, limits or Limits(), now_ms)
            try:
                return _examine(case, outside=outside)
            except UnsupportedProtocol as error:
                where = f"{store.root}/{LOG}"
                case.tell("protocol-unknown", "error", error.what, where, _UPGRADE)
                return Findings(store.root, None, case.found)
            except FileNotFoundError as error:  # a clean-up may be at work: look again
                if attempt == _LOOKS_MAX - 1:
                    raise gone(error) from None
    raise AssertionError  # the loop either returns or raises


def _examine(case: _Case, *, outside: bool) -> Findings:
    store, config = case.store, case.config
    case.listing, troubles = sorted_names(store, config)
    for trouble in troubles:
        case.tell(trouble.code, "error", trouble.what, trouble.where, case.mend)
    if case.listing.empty:
        case.tell(
            "unreadable",
            "error",
            "there is no log: the folder has no commits in it.",
            f"{store.root}/{LOG}",
            "arrowlog.Table.create(uri, schema)  # or check the address",
        )
        return Findings(store.root, None, case.found)
    _check_commits(case)
    _check_dead(case)
    _check_checkpoints(case)
    snapshot = _open(case, outside=outside)
    _check_pointer(case)
    if snapshot is None:
        return Findings(store.root, None, case.found)
    _check_protocol(case, snapshot)
    _check_identity(case, snapshot)
    _check_history(case, snapshot)
    _check_behind(case, snapshot)
    _check_actions(case, snapshot)
    case.found += examine_skips(store, config, case.listing, snapshot)
    writable = not any(each.severity == "error" for each in case.found)
    case.found += examine_files(
        store, config, snapshot, case.limits, case.now_ms, case.mend, writable=writable
    )
    return Findings(store.root, snapshot.version, case.found)


def _check_commits(case: _Case) -> None:
    """Decode every commit; those that cannot be read are found one by one."""
    commits = sorted(case.listing.commits.items())
    for start in range(0, len(commits), _AT_ONCE):
        some = commits[start : start + _AT_ONCE]
        for _ in range(len(some)):
            try:
                read_commits(case.store, case.config, some)
                break
            except LogCorrupt as error:
                bad = commit_of(error)
                if bad is None:
                    raise
                case.broken[bad] = f"{error.what}" if error.line is None else _line(error)
                some = [each for each in some if each[0] != bad]


def _check_dead(case: _Case) -> None:
    """Commit files at versions that clean-up has deleted: they do not count."""
    dead = case.listing.dead
    if dead:
        name = dead[min(dead)]
        some = f"{len(dead)} commit files" if len(dead) > 1 else "a commit file"
        what = (
            f"{some} at versions that were cleaned up: left by a clean-up or a writer that died, or"
            " restored from a backup. Readers ignore them."
        )
        case.tell("commit-dead", "info", what, f"{LOG}/{name}", "table.cleanup()")


def _line(error: ArrowlogError) -> str:
    return f"line {error.line}: {error.what}"


def _check_checkpoints(case: _Case) -> None:
    """Verify every checkpoint; compare the newest whole one with the commits it stands for."""
    listing = case.listing
    troubles: list[Trouble] = []
    for version in checkpoint_versions(listing):
        before = len(troubles)
        forms = whole_forms(case.store, listing, version, case.config, troubles)
        if any(forms) and case.whole is None:
            case.whole = version
            if len(troubles) == before:
                _compare(case, version, *forms)
    for trouble in troubles:
        _tell_checkpoint(case, trouble)


def _tell_checkpoint(case: _Case, trouble: Trouble) -> None:
    assert trouble.version is not None
    if trouble.code == "checkpoint-diverges":
        case.tell(trouble.code, "error", trouble.what, trouble.where, case.mend)
    elif case.whole is None or trouble.version >= case.whole:
        case.tell(trouble.code, "warning", trouble.what, trouble.where, "table.checkpoint()")
    else:
        what = f"{trouble.what} A newer one is whole."
        case.tell(trouble.code, "info", what, trouble.where, _CLEAN)


def _compare(
    case: _Case, version: int, json_forms: dict[int, str], parquet: dict[int, tuple[str, ...]]
) -> None:
    """A checkpoint must be what its commits lead to, as far as they are there."""
    commits = {v: name for v, name in case.listing.commits.items() if v <= version}
    if len(commits) != version + 1 or any(v in case.broken for v in commits):
        return
    for form in ({"json": json_forms}, {"parquet": parquet}):
        name, known = next(iter(form.items()))
        if not known:
            continue
        only = Listing({}, known, {}) if name == "json" else Listing({}, {}, known)  # type: ignore[arg-type]
        try:
            theirs = load(case.store, only, case.config, outside=True).state
            ours = load(case.store, Listing(commits, {}, {}), case.config, outside=True).state
        except ArrowlogError:
            return
        what = differ(theirs, ours)
        if what is not None:
            folder = LOG if name == "json" else f"{LOG}/{CHECKPOINTS}"
            where = f"{folder}/{version:020d}.checkpoint.{name}"
            case.tell("checkpoint-diverges", "error", what, where, case.mend)


def _open(case: _Case, *, outside: bool) -> Snapshot | None:
    """The newest version as any reader sees it; else as far as it can be salvaged."""
    store, config, listing = case.store, case.config, case.listing
    try:
        snapshot = load(store, listing, config, outside=outside)
        snapshot.state.column("key")  # where it is read later, it is read now
    except (LogCorrupt, FileNotFoundError) as error:
        _tell_broken(case, None)
        if "outside the table" in str(error):
            fix = f"arrowlog.Table({store.root!r}, allow_outside_paths=True)"
            case.tell("paths-outside", "error", str(error), f"{store.root}/{LOG}", fix)
            return load(store, listing, config, outside=True)
        return _salvaged(case, error)
    _tell_broken(case, snapshot)
    gap = snapshot.report.gap
    if gap is not None:
        where = f"{LOG}/{gap.missing:020d}.json"
        what = f"{gap}. Readers do not see what came later, and nobody can write."
        case.tell("gap", "error", what, where, case.mend)
    return snapshot


def _salvaged(case: _Case, error: Exception) -> Snapshot | None:
    """What a repair would keep of a log that cannot be read."""
    text = str(error)
    try:
        found = salvage(case.store, case.config)
    except (ArrowlogError, FileNotFoundError):
        where = f"{case.store.root}/{LOG}"
        fix = "Restore the files of the log from a backup."
        case.tell("unreadable", "error", text, where, fix)
        return None
    kept = found.snapshot.version
    what = f"{text} Version {kept} can be salvaged; what follows is about that version."
    case.tell("unreadable", "error", what, f"{case.store.root}/{LOG}", case.mend)
    return found.snapshot


def _tell_broken(case: _Case, snapshot: Snapshot | None) -> None:
    """Commits that cannot be read: an error, unless a whole checkpoint stands in for them."""
    base = -1 if snapshot is None or snapshot.report.checkpoint is None else case.whole or -1
    newest = max(case.listing.commits, default=-1)
    for version, what in sorted(case.broken.items()):
        where = f"{LOG}/{case.listing.commits[version]}"
        if version <= base:
            text = f"{what} Only versions up to {base - 1} need it."
            case.tell("commit-broken", "warning", text, where, "table.truncate_history()")
        else:
            code = "commit-torn" if version == newest else "commit-broken"
            case.tell(code, "error", what, where, case.mend)


def _check_pointer(case: _Case) -> None:
    """The pointer is a hint, and others may rely on it."""
    where, fix = f"{LOG}/{POINTER}", "table.checkpoint()"
    data = case.store.find_many([where])[0]
    version: object = None
    if data is not None:
        try:
            version = json.loads(data)["version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            version = None
        if isinstance(version, bool) or not isinstance(version, int):
            case.tell("pointer-broken", "warning", "it cannot be read.", where, fix)
            return
    newest = case.listing.newest
    if isinstance(version, int) and version > newest:
        what = f"it speaks of version {version}, and the log ends at version {newest}."
        case.tell("pointer-ahead", "error", what, where, case.mend)
    elif case.whole is not None and (not isinstance(version, int) or version < case.whole):
        said = "it is missing" if version is None else f"it speaks of version {version}"
        what = f"{said}, and there is a checkpoint of version {case.whole}."
        case.tell("pointer-stale", "warning", what, where, fix)


def _check_protocol(case: _Case, snapshot: Snapshot) -> None:
    try:
        check_writable(snapshot.protocol, case.store.root)
    except UnsupportedProtocol as error:
        code = (
            "feature-unknown" if "features" in error.what.partition(";")[0] else "protocol-unknown"
        )
        what = f"{error.what} It can be read, and not written to."
        case.tell(code, "warning", what, f"{case.store.root}/{LOG}", _UPGRADE)


def _check_history(case: _Case, snapshot: Snapshot) -> None:
    """A commit may be missing below a checkpoint, where no reader of the newest version looks."""
    known = sorted(v for v in case.listing.commits if 0 < v <= snapshot.version)
    for before, after in pairwise(known):
        if after > before + 1 and snapshot.report.gap is None:
            first = earliest(case.listing, snapshot.version)
            what = (
                f"commits after version {before} and before {after} are missing. The newest version"
                f" does not need them; of those before {first}, some cannot be read."
            )
            where = f"{LOG}/{commit_name(before + 1)}"
            case.tell("history-gap", "info", what, where, "table.truncate_history()")
            return


def _check_identity(case: _Case, snapshot: Snapshot) -> None:
    """A checkpoint may be left over from a table that was here before, and hide the one that is."""
    name, commits = case.listing.commits.get(0), case.listing.commits
    alone = name is not None and 0 not in case.broken
    if not alone or all(v in commits for v in range(snapshot.version + 1)):
        return
    first = load(case.store, Listing({0: commits[0]}, {}, {}), case.config, outside=True)
    what = strangers(first, snapshot)
    if what is not None:
        case.tell("two-tables", "warning", what, f"{LOG}/{name}", case.mend)


def _check_behind(case: _Case, snapshot: Snapshot) -> None:
    """How much a reader replays that a checkpoint would spare it."""
    asked = case.limits.commits_since_checkpoint
    most = _BEHIND * case.config.checkpoint_interval if asked is None else asked
    base = -1 if case.whole is None else case.whole
    behind = snapshot.version - max(base, 0)
    if behind > most:
        last = "there is no checkpoint" if base < 0 else f"the last checkpoint is of version {base}"
        what = f"{behind:,} commits are to be replayed, more than {most:,}: {last}."
        severity = "warning" if asked is None else "error"
        case.tell("checkpoint-behind", severity, what, f"{LOG}/", "table.checkpoint()")


def _check_actions(case: _Case, snapshot: Snapshot) -> None:
    """Files that were added while they were live, or removed while they were not.

    Looked for in the commits that a reader of the newest version replays.
    """
    listing, base = case.listing, snapshot.report.checkpoint
    first = 0 if base is None else base + 1
    commits = [(v, listing.commits[v]) for v in range(first, snapshot.version + 1)]
    before = pl.Series([], dtype=pl.String)
    if base is not None:
        forms = whole_forms(case.store, listing, base, case.config, [])
        if not any(forms):
            return
        state = load(case.store, Listing({}, *forms), case.config, outside=True).state
        before = pl.Series(pl.from_arrow(state.column("key")), dtype=pl.String)
    odd = _odd_actions(case, commits, before)
    for add, code, verb in (
        (True, "duplicate-adds", "added again while they were live"),
        (False, "removes-without-adds", "removed although they were not live"),
    ):
        some = odd.filter(pl.col("add") == add)
        if some.height:
            version, key = some["version"][0], some["key"][0]
            what = f"{some.height:,} files were {verb}, the first {key!r} in version {version}."
            files = pa.chunked_array([some["key"].to_arrow(compat_level=pl.CompatLevel.oldest())])
            case.found.append(
                Finding(
                    code,
                    "warning" if add else "info",
                    what,
                    f"{LOG}/{listing.commits[version]}",
                    "table.checkpoint()",
                    some.height,
                    files.combine_chunks().cast(pa.string()),
                )
            )


def _odd_actions(
    case: _Case, commits: Sequence[tuple[int, str]], before: pl.Series
) -> pl.DataFrame:
    """Adds and removes that do not go with what came before them, in order."""
    events = [
        pl.DataFrame(
            schema={"key": pl.String, "at": pl.Int64, "version": pl.Int64, "add": pl.Boolean}
        )
    ]
    for start in range(0, len(commits), _AT_ONCE):
        some = commits[start : start + _AT_ONCE]
        actions = read_commits(case.store, case.config, some)
        versions = pl.Series(actions.versions, dtype=pl.Int64)
        for kind in ("add", "remove"):
            table, _ = keyed(actions, kind, case.store.root)
            if table.num_rows == 0:
                continue
            slim = pl.DataFrame(pl.from_arrow(table.select(["key", "seq"])))
            number = slim["seq"] // (1 << LINE_BITS)
            events.append(
                slim.select(
                    "key",
                    at=pl.col("seq") + ((start) << LINE_BITS),
                    version=versions.gather(number),
                    add=pl.lit(kind == "add"),
                )
            )
    ordered = (
        pl.concat(events)
        .sort("at")
        .with_columns(
            last=pl.col("add").shift(1).over("key"), known=pl.col("key").is_in(before.implode())
        )
    )
    live = pl.coalesce("last", "known")
    return ordered.filter(live == pl.col("add"))

"""How far a damaged log can be read: as far as what is there proves itself, and no further.

1. Commits are the log. They are replayed from version 0 on, up to the first that is missing, torn,
   changed or there twice. Nothing of such a commit is taken, and nothing behind it, for nobody can
   tell what it did.
2. A checkpoint that is whole leads on from there if it is newer: it holds all that came before.
   Checkpoints with checksums are verified; others count if all of them can be read, and are named.
3. Where commits and a checkpoint speak of the same version and disagree, the commits count, for a
   checkpoint is made from them; only if commits do not vouch for themselves and the checkpoint
   does, the checkpoint counts.

Whatever is passed over is a `Trouble`. Nothing is written, and nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arrowlog.errors import ArrowlogError, LogCorrupt, TableNotFound
from arrowlog.fork_safety import pl
from arrowlog.log.envelope import unwrap
from arrowlog.log.names import (
    CHECKPOINTS,
    LOG,
    POINTER,
    VERSION_MAX,
    Listing,
    commit_name,
    part_of,
    read_listing,
)
from arrowlog.log.segment import checkpoint_versions
from arrowlog.state.checkpoint import read_pointer
from arrowlog.state.listing import without_retired
from arrowlog.state.load import load, verify_checkpoint
from arrowlog.state.parquet import open_checkpoint
from arrowlog.state.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import Snapshot, State

_SEALED = b'"checksum":"crc32:'
_LOOKS_MAX = 3
_PARTIAL = ("is gone", "it is missing", "not all of one checkpoint", "not whole")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something in a log that is not as it should be: a stable code, where, and what."""

    code: str
    where: str
    what: str
    version: int | None = None

    def __str__(self) -> str:
        """A sentence."""
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Salvage:
    """What could be read of a log, and what could not."""

    snapshot: Snapshot
    listing: Listing
    newest: int  # the highest version that anything in the log speaks of
    troubles: tuple[Trouble, ...] = ()


@dataclass(slots=True)
class _Search:
    store: Store
    config: Config
    listing: Listing
    troubles: list[Trouble] = field(default_factory=list)

    def note(self, code: str, where: str, what: str, version: int | None = None) -> None:
        self.troubles.append(Trouble(code, where, what, version))


def salvage(store: Store, config: Config) -> Salvage:
    """Read a log as far as truth allows.

    `TableNotFound` if there is no log, `LogCorrupt` if no version of it can be read,
    `UnsupportedProtocol` if it needs a newer reader: what is not understood is not repaired.
    """
    for attempt in range(_LOOKS_MAX):
        try:
            return _salvage(store, config)
        except FileNotFoundError as error:  # a clean-up may be at work: look again
            if attempt == _LOOKS_MAX - 1:
                raise gone(error) from None
    raise AssertionError  # the loop either returns or raises


def gone(error: FileNotFoundError) -> LogCorrupt:
    """What is wrong with a log of which files are listed, and are not there, again and again."""
    return LogCorrupt(
        f"{error} was listed, and is gone.",
        next="Something deletes files of the log; try again when it is done.",
    )


def _salvage(store: Store, config: Config) -> Salvage:
    listing, troubles = sorted_names(store, config)
    if listing.empty:
        raise TableNotFound(
            f"There is no log at {store.root}: the folder has no commits in it.",
            next="Check the address; it must be that of the log's folder.",
        )
    search = _Search(store, config, listing, troubles)
    found = _by_commits(search)
    reached = -1 if found is None else found.version
    later = _by_checkpoint(search, reached)
    if found is not None and later is not None:
        what = strangers(found, later)
        if what is not None:
            search.note("two-tables", f"{LOG}/{commit_name(0)}", what, reached)
    found = later or found
    if found is None:
        raise LogCorrupt(
            "no version can be read"
            + "".join(f"; {trouble}" for trouble in search.troubles[:3]).rstrip(".")
            + ".",
            next="Restore version 0 or a checkpoint from a backup.",
        )
    found = _disagreement(search, found)
    newest = max(listing.newest, read_pointer(store))
    _note_lost(search, found.version, newest)
    return Salvage(found, listing, newest, tuple(search.troubles))


def sorted_names(store: Store, config: Config) -> tuple[Listing, list[Trouble]]:
    """The log's files by version, and what is wrong with their names."""
    names = store.list_from(LOG)
    inner = store.list_from(f"{LOG}/{CHECKPOINTS}") if CHECKPOINTS in names else []
    troubles: list[Trouble] = []
    known: dict[tuple[str, int], list[str]] = {}
    kept: list[str] = []
    for name in names:
        part = part_of(name) if name.endswith(".json") else None
        if part is None or part[1] > VERSION_MAX:
            if part is not None:
                what = "the version number is larger than a log can have."
                troubles.append(Trouble("odd-name", f"{LOG}/{name[:60]}", what))
            continue
        if part[0] == "commit" or name.endswith(".checkpoint.json"):
            known.setdefault(part, []).append(name)
        else:
            kept.append(name)
    for (kind, version), twins in known.items():
        if len(twins) == 1 or _alike(store, twins, config):
            kept.append(twins[0])
            continue
        what = f"{' and '.join(twins)} are both version {version}, and say different things."
        troubles.append(Trouble(f"{kind}-twice", f"{LOG}/{twins[0]}", what, version))
    sound = [name for name in inner if (part_of(name) or ("", 0))[1] <= VERSION_MAX]
    return without_retired(store, read_listing(sorted(kept), sound), names), troubles


def _alike(store: Store, names: Iterable[str], config: Config) -> bool:
    """Whether files say the same."""
    try:
        keys = [f"{LOG}/{name}" for name in names]
        limit = config.max_decompressed_bytes
        found = {
            unwrap(data, key, limit) for key, data in zip(keys, store.get_many(keys), strict=True)
        }
    except (LogCorrupt, FileNotFoundError):
        return False
    return len(found) == 1


def _following(listing: Listing, base: int) -> dict[int, str]:
    """The commits right after a version, up to the first that is missing."""
    found = {}
    while base + 1 in listing.commits:
        base += 1
        found[base] = listing.commits[base]
    return found


def _by_commits(search: _Search) -> Snapshot | None:
    return _as_far(search, _following(search.listing, -1), {}, {})


def _as_far(
    search: _Search,
    commits: dict[int, str],
    json: Mapping[int, str],
    parquet: Mapping[int, tuple[str, ...]],
) -> Snapshot | None:
    """The state after a checkpoint, or nothing, and as many of the commits as are good."""
    for _ in range(len(commits) + 1):
        if not commits and not json and not parquet:
            return None
        some = Listing(commits, dict(json), dict(parquet))
        try:
            return load(search.store, some, search.config, outside=True)
        except LogCorrupt as error:
            bad = commit_of(error)
            if bad is None or bad not in commits:
                raise
            search.note("commit-broken", f"{LOG}/{commits[bad]}", _said(error), bad)
            commits = {version: name for version, name in commits.items() if version < bad}
    raise AssertionError  # every round leaves out a commit


def commit_of(error: ArrowlogError) -> int | None:
    """The version of the commit that an error is about; None if it is not about one."""
    part = None if error.file is None else part_of(error.file.rpartition("/")[2])
    return None if part is None or part[0] != "commit" else part[1]


def _said(error: ArrowlogError) -> str:
    line = "" if error.line is None else f"line {error.line}: "
    return f"{line}{error.what}"


def _by_checkpoint(search: _Search, reached: int) -> Snapshot | None:
    """The state from the newest whole checkpoint beyond what commits alone lead to."""
    listing = search.listing
    for version in checkpoint_versions(listing):
        if version <= reached:
            return None
        json, parquet = whole_forms(search.store, listing, version, search.config, search.troubles)
        if json or parquet:
            return _as_far(search, _following(listing, version), json, parquet)
    return None


def whole_forms(
    store: Store, listing: Listing, version: int, config: Config, troubles: list[Trouble]
) -> tuple[dict[int, str], dict[int, tuple[str, ...]]]:
    """The forms of a checkpoint that can be believed; what is wrong with the others is noted."""
    json: dict[int, str] = {}
    parquet: dict[int, tuple[str, ...]] = {}
    if version in listing.json_checkpoints:
        name = listing.json_checkpoints[version]
        found = verify_checkpoint(store, listing, version, config, "json")
        if found:
            gone = found[0].endswith(".json")  # the name of a part, and nothing else
            what = f"{found[0]} is gone." if gone else found[0]
            troubles.append(_broken(f"{LOG}/{name}", what, version))
        else:
            json[version] = name
    if version in listing.parquet_checkpoints:
        wrong = _wrong_parquet(store, listing, version, config)
        if wrong is None:
            parquet[version] = listing.parquet_checkpoints[version]
        else:
            troubles.append(wrong)
    return json, parquet


def _wrong_parquet(store: Store, listing: Listing, version: int, config: Config) -> Trouble | None:
    names = listing.parquet_checkpoints[version]
    where = f"{LOG}/{CHECKPOINTS}/{names[0]}"
    try:
        opened = open_checkpoint(store, version, names, lambda _: None)
        if opened is None:
            what = "its parts are there without the manifest: it was never finished."
            return Trouble("checkpoint-partial", where, what, version)
        if isinstance(opened, Parts):
            found = verify_checkpoint(store, listing, version, config, "parquet")
            return _broken(where, found[0], version) if found else None
        load(store, Listing({}, {}, {version: names}), config, outside=True)
    except (LogCorrupt, FileNotFoundError) as error:
        return _broken(where, str(error), version)
    return None


def _broken(where: str, what: str, version: int) -> Trouble:
    code = "checkpoint-broken"
    if "the commits it stands for leave" in what:
        code = "checkpoint-diverges"
    elif any(sign in what for sign in _PARTIAL) or "no such" in what.lower():
        code = "checkpoint-partial"
    return Trouble(code, where, what, version)


def _disagreement(search: _Search, found: Snapshot) -> Snapshot:
    """What counts if the newest whole checkpoint is not what the commits lead to."""
    listing = search.listing
    version = next((v for v in checkpoint_versions(listing) if v <= found.version), None)
    if version is None or found.report.checkpoint is not None:
        return found
    json, parquet = whole_forms(search.store, listing, version, search.config, search.troubles)
    if not json and not parquet:
        return found
    commits = {v: name for v, name in _following(listing, -1).items() if v <= version}
    other = load(search.store, Listing({}, json, parquet), search.config, outside=True)
    ours = load(search.store, Listing(commits, {}, {}), search.config, outside=True)
    what = differ(other.state, ours.state)
    if what is None:
        return found
    sealed = bool(parquet) or _is_sealed(search, [json[version]])
    trusted = sealed and not _is_sealed(search, [commits[v] for v in commits if v])
    which = "the checkpoint, which vouches for itself" if trusted else "the commits"
    where = f"{LOG}/{(json or listing.json_checkpoints).get(version, CHECKPOINTS)}"
    search.note("checkpoint-diverges", where, f"{what} Believed: {which}.", version)
    if not trusted:
        return found
    return _as_far(search, _following(listing, version), json, parquet) or found


def strangers(before: Snapshot, after: Snapshot) -> str | None:
    """Whether what lies on both sides of a gap calls itself by different ids."""
    if before.metadata.id == after.metadata.id:
        return None
    return (
        f"commits up to version {before.version} are of the table {before.metadata.id}, the"
        f" checkpoint of version {after.report.checkpoint} is of {after.metadata.id}: one of them"
        " may be left over from a table that was here before. Believed: the checkpoint, as readers"
        " do."
    )


def differ(checkpoint: State, replayed: State) -> str | None:
    """How a checkpoint is not what its commits lead to; None if it is."""
    theirs, ours = checkpoint.column("key"), replayed.column("key")
    extra, lacking = _without(theirs, ours), _without(ours, theirs)
    if extra or lacking:
        return (
            f"the checkpoint has {len(theirs):,} files and the commits lead to {len(ours):,}:"
            f" {extra:,} only in the checkpoint, {lacking:,} only in the commits."
        )
    if checkpoint.metadata != replayed.metadata:
        return "its metaData is not that of the commits."
    if checkpoint.protocol != replayed.protocol:
        return "its protocol is not that of the commits."
    return None


def _without(some: pa.ChunkedArray, others: pa.ChunkedArray) -> int:
    """How many of some are not among the others."""
    wanted = pl.Series(pl.from_arrow(some), dtype=pl.String)
    there = pl.Series(pl.from_arrow(others), dtype=pl.String)
    return int((~wanted.is_in(there.implode())).sum())


def _is_sealed(search: _Search, names: Iterable[str]) -> bool:
    """Whether all these files of the log vouch for themselves with a checksum."""
    keys = [f"{LOG}/{name}" for name in names]
    limit = search.config.max_decompressed_bytes
    found = zip(keys, search.store.get_many(keys), strict=True)
    return all(_SEALED in unwrap(data, key, limit) for key, data in found)


def _note_lost(search: _Search, reached: int, newest: int) -> None:
    """Say what lies behind the last version that can be read."""
    listing = search.listing
    later = sorted(v for v in listing.commits if v > reached)
    known = {trouble.version for trouble in search.troubles if trouble.code.startswith("commit")}
    if later and later[0] > reached + 1 and reached + 1 not in known:
        what = f"version {reached + 1} is missing although version {later[0]} is there."
        search.note("gap", f"{LOG}/{commit_name(reached + 1)}", what, reached + 1)
    if newest > max(reached, listing.newest):
        what = f"it speaks of version {newest}, and the log ends at version {listing.newest}."
        search.note("pointer-ahead", f"{LOG}/{POINTER}", what, newest)

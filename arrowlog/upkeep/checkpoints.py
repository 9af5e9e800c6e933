"""Make checkpoints: when asked, and by themselves after commits, behind the writer's back.

A checkpoint that fails is told to the log of the program and to nobody else: the commit that caused
it is in the table's log whatever happens here.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from arrowlog.fork_safety import ForkSafeLock, polars_is_stranded
from arrowlog.log.encode import checksum
from arrowlog.log.names import CHECKPOINTS, LOG, commit_name
from arrowlog.state.checkpoint import (
    CheckpointResult,
    Written,
    read_pointer,
    write_json,
    write_pointer,
)
from arrowlog.state.listing import list_log
from arrowlog.state.load import follow, load, verify_checkpoint
from arrowlog.state.parquet import write_checkpoint
from arrowlog.state.truncation import truncate_adds
from arrowlog.upkeep.cleanup import cleanup, failed, policy_of

if TYPE_CHECKING:
    from arrowlog.commit.pace import Clock
    from arrowlog.config import Config
    from arrowlog.log.names import Listing
    from arrowlog.log.store import Store
    from arrowlog.state.snapshot import Snapshot, State

_LOG = logging.getLogger("arrowlog")
FEATURE = "parquetCheckpoint"


def make_checkpoint(
    store: Store, listing: Listing, state: State, config: Config, clock: Clock
) -> CheckpointResult:
    """Write the checkpoint of a state in the forms that the settings ask for, then the pointer."""
    form = config.checkpoint_format
    if form == "parquet" and FEATURE not in state.protocol.reader_features:
        form = "both"  # readers that were not told could no longer follow after a clean-up
    state = _short(state, config)
    now, new_id = clock.now_ms(), clock.new_id()
    done: list[Written] = []
    if form in ("both", "json") and not _is_there(store, listing, state, config, "json"):
        broken = state.version in listing.json_checkpoints
        done.append(write_json(store, state, config, now, new_id, broken=broken))
    if form in ("both", "parquet") and not _is_there(store, listing, state, config, "parquet"):
        broken = state.version in listing.parquet_checkpoints
        done.append(_write_parquet(store, state, config, now, new_id, broken=broken))
    names = tuple(name for written in done for name in written.names)
    total = Written(names, sum(w.size_bytes for w in done), done[-1].checksum if done else "")
    if done:
        parts = len(names) - len(done) if len(names) > len(done) else None
        write_pointer(store, state, total, form, parts, now)
    elif read_pointer(store) < state.version:  # whoever made it did not come to that
        with suppress(FileNotFoundError):  # truncated meanwhile: a newer one has the pointer
            write_pointer(store, state, _found(store, listing, state.version), form, None, now)
    return CheckpointResult(state.version, state.adds.num_rows, total.size_bytes, form, names)


def _short(state: State, config: Config) -> State:
    """The state without statistics that are too long for the log, whoever wrote them."""
    columns = state.metadata.partition_columns
    adds = truncate_adds(state.adds, columns, config, state.schema)
    return state if adds is state.adds else replace(state, source=adds)


def _is_there(store: Store, listing: Listing, state: State, config: Config, form: str) -> bool:
    """Whether a form of the checkpoint is there and whole."""
    known = listing.json_checkpoints if form == "json" else listing.parquet_checkpoints
    if state.version not in known:
        return False
    return not verify_checkpoint(store, listing, state.version, config, form)


def _found(store: Store, listing: Listing, version: int) -> Written:
    """What a pointer says of a checkpoint that was there already."""
    inner = [f"{CHECKPOINTS}/{name}" for name in listing.parquet_checkpoints.get(version, ())]
    names = [*listing.json_checkpoints.get(version, "").split(), *inner]
    stats = [store.stat(f"{LOG}/{name}") for name in names]
    last = next(name for name in reversed(names) if name.endswith(".json"))
    size = sum(stat.size for stat in stats if stat is not None)
    return Written(tuple(names), size, checksum(store.get(f"{LOG}/{last}")))


def _write_parquet(
    store: Store, state: State, config: Config, now_ms: int, new_id: str, *, broken: bool
) -> Written:
    written = write_checkpoint(store, state, config, now_ms=now_ms, new_id=new_id, broken=broken)
    names = tuple(f"{CHECKPOINTS}/{name}" for name in written.names)
    return Written(names, written.num_bytes, written.checksum)


class Keeper:
    """Makes checkpoints after commits, one at a time, in a thread that a program waits for."""

    def __init__(self, store: Store, clock: Clock, *, outside: bool) -> None:
        """`outside` admits data files that lie outside the table's folder."""
        self._store = store
        self._clock = clock
        self._outside = outside
        self._lock = ForkSafeLock(self._after_torn_fork)
        self._work: threading.Thread | None = None
        self._table: str | None = None  # the id of the table that the next two speak of
        self._last: int | None = None  # the newest checkpoint we know of
        self._tried = 0  # the version of the last one that failed
        self._told = False
        _KEEPERS.add(self)

    def committed(self, version: int, latest: Snapshot | None, config: Config) -> None:
        """A commit landed: begin a checkpoint if it is time."""
        if not config.checkpoint_enabled or latest is None:
            return
        if polars_is_stranded():
            self._tell_once("no checkpoints are made in a process that was forked from a busy one")
            return
        with self._lock:
            if self._table != latest.metadata.id:
                self._table, self._last, self._tried = latest.metadata.id, None, 0
            first = self._last is None
            if self._last is None:
                self._last = latest.report.checkpoint or 0
            interval = config.checkpoint_interval
            if not is_due(version, self._last, self._tried, interval, first=first):
                return
            if self._work is not None and self._work.is_alive():
                return
            work = threading.Thread(
                target=self._make, args=(version, latest, config), name="arrowlog-checkpoint"
            )
            try:
                work.start()
            except RuntimeError as error:  # no thread to be had, or the program is at its end
                self._tried = version
                self._warn("the checkpoint of version %s was not begun: %s", version, error)
                return
            self._work = work

    def _after_torn_fork(self) -> None:
        self._work = None

    def wait(self, seconds: float | None = None) -> bool:
        """Until the checkpoint that is being made is done; whether it is."""
        work = self._work
        if work is None:
            return True
        work.join(seconds)
        return not work.is_alive()

    def made(self, version: int) -> None:
        """A checkpoint is known to be there."""
        with self._lock:
            self._last = max(self._last or 0, version)

    def _make(self, version: int, latest: Snapshot, config: Config) -> None:
        try:
            listing = list_log(self._store)
            newest = max((*listing.json_checkpoints, *listing.parquet_checkpoints, 0))
            self.made(newest)
            if version - newest < config.checkpoint_interval:
                return  # somebody else was faster
            state = self._state(version, latest, listing, config)
            make_checkpoint(self._store, listing, state, config, self._clock)
            self.made(version)
        except Exception as error:  # noqa: BLE001 -- nothing here may fail a commit
            self._tried = version
            self._warn("the checkpoint of version %s failed: %s", version, error)
            return
        if config.cleanup_enabled:
            self._clean(config)

    def _clean(self, config: Config) -> None:
        try:
            dry = config.cleanup_dry_run
            now = self._clock.now_ms()
            result = cleanup(self._store, config, policy_of(config), now, dry_run=dry)
        except Exception as error:  # noqa: BLE001 -- the same
            self._warn("the clean-up failed: %s", error)
            return
        if result.failures:
            self._warn("%s", failed(result))

    def _tell_once(self, text: str) -> None:
        if not self._told:
            self._told = True
            self._warn("%s", text)

    def _warn(self, text: str, *parts: object) -> None:
        _LOG.warning("%s: " + text, self._store.root, *parts)

    def _state(self, version: int, latest: Snapshot, listing: Listing, config: Config) -> State:
        """The state at a version, on top of what the handle has read already."""
        if latest.version == version:
            return latest.state
        commits = [(v, commit_name(v)) for v in range(latest.version + 1, version + 1)]
        if latest.version > version or any(listing.commits.get(v) != name for v, name in commits):
            return load(self._store, listing, config, version, outside=self._outside).state
        return follow(self._store, config, latest, commits, outside=self._outside).state


def is_due(version: int, last: int, tried: int, interval: int, *, first: bool = False) -> bool:
    """Whether the writer of a version makes a checkpoint: an interval after the last one.

    In a crowd, many come after that before it is made. So the writer of the version right then
    makes it, then the next, then every second, fourth, eighth after that, and whoever comes new
    (`first`): it is made soon, whoever dies, and not by everybody. After one that failed, an
    interval passes.
    """
    late = version - max(last, tried) - interval
    return late >= 0 and (first or late >= interval or late & (late - 1) == 0)


_KEEPERS: WeakSet[Keeper] = WeakSet()


def _finish() -> None:
    for keeper in list(_KEEPERS):
        keeper.wait()


# A program that ends waits for its threads anyway, but no pool of threads takes work by then, and a
# large checkpoint needs one. This is called before the pools close: last registered, first called.
_at_end = getattr(threading, "_register_atexit", None)
if _at_end is not None:
    _at_end(_finish)

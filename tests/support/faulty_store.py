"""A store that fails on request, clocks that can be set, and a naive reader of logs."""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass, field, replace

import arrowlog
from arrowlog import clock
from arrowlog.clock import boottime
from arrowlog.config import Config
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables.format import LOG_FOLDER
from arrowlog.snapshot import ReadOptions
from arrowlog.snapshot.tracker import SnapshotTracker
from arrowlog.storage import ObjectStat, PutOutcome
from arrowlog.storage.base import build_walk_table
from arrowlog.transaction.write_session import WriteSession
from support.commit_model import commit_lines, insist

LISTINGS_BEHIND = 4


class FaultyStore:
    """Objects in a dictionary, and the faults that the next requests meet.

    `puts` has a fault for each of the next calls of `put_if_absent`; `outage` is the fault of all
    later ones. `reads` says whether the next reading requests fail. The next `LISTINGS_BEHIND`
    listings miss the newest `lag` objects. `window` has calls that are made right before the next
    puts are applied, as if by other writers.
    """

    def __init__(self, *, cheap_stat=True, root="/table"):
        self.root = root
        self.cheap_stat = cheap_stat
        self.objects: dict[str, bytes] = {}
        self.heal()
        self.late: list[list] = []
        self.turns = 0

    def heal(self):
        self.puts: list[str] = []
        self.reads: list[bool] = []
        self.window: list = []
        self.outage = ""
        self.lag = 0
        self.lagged = 0

    def _read(self):
        self._arrive()
        if self.reads and self.reads.pop(0):
            raise StoreUnavailable("The store did not answer.")

    def _arrive(self):
        """Apply delayed puts whose time has come."""
        for item in list(self.late):
            item[0] -= 1
            if item[0] <= 0:
                self.late.remove(item)
                self.objects.setdefault(item[1], item[2])

    def get(self, key):
        self._read()
        if key not in self.objects:
            raise FileNotFoundError(f"{self.root}/{key}")
        return self.objects[key]

    def get_range(self, key, start, stop):
        return self.get(key)[start:stop]

    def get_many(self, keys):
        return [self.get(key) for key in keys]

    def find_many(self, keys):
        self._read()
        return [self.objects.get(key) for key in keys]

    def read_into(self, window, keys, versions, enough):
        raws = self.get_many(keys)
        window.fill(keys, versions, raws)
        return len(raws), sum(map(len, raws))

    def list_from(self, folder, start=""):
        return sorted(self.stats_from(folder, start))

    def stats_from(self, folder, start=""):
        self._read()
        if self.lag:
            self.lagged += 1
            self.lag = 0 if self.lagged > LISTINGS_BEHIND else self.lag
        keys = list(self.objects)
        keys = keys[: len(keys) - self.lag] if self.lag < len(keys) else keys[:1]
        names = (key[len(folder) + 1 :] for key in keys if key.startswith(f"{folder}/"))
        return {
            name.partition("/")[0]: ObjectStat(0, 0)
            if "/" in name
            else self._stat(f"{folder}/{name}")
            for name in names
            if name.partition("/")[0] >= start
        }

    def page_from(self, folder, start=""):
        return self.stats_from(folder, start), True

    def stat(self, key):
        self._read()
        return self._stat(key)

    def _stat(self, key):
        data = self.objects.get(key)
        return None if data is None else ObjectStat(len(data), 0, f"{zlib.crc32(data)}")

    def check_writable(self, folder):
        pass

    def put_if_absent(self, key, data):
        self._arrive()
        if self.window:
            self.window.pop(0)()
        fault = self.puts.pop(0) if self.puts else self.outage
        if fault == "unavailable":
            raise StoreUnavailable("The store refused.")
        if fault == "transient":
            return PutOutcome.NOT_APPLIED
        if fault == "lost before":
            return PutOutcome.UNKNOWN
        if fault.startswith("late"):
            self.late.append([int(fault.split()[1]), key, data])
            return PutOutcome.UNKNOWN
        outcome = self._put(key, data)
        if fault == "lost after":
            return PutOutcome.UNKNOWN
        return PutOutcome.EXISTS if fault == "retried" else outcome

    def put_or_find(self, key, data):
        """Read before or after the put, in turn, as a concurrent request may."""
        self.turns += 1
        first = self.turns % 2 == 0
        found = self._find_quietly(key) if first else None
        outcome = self.put_if_absent(key, data)
        return outcome, found if first else self._find_quietly(key)

    def _find_quietly(self, key):
        try:
            return self.find_many([key])[0]
        except StoreUnavailable:
            return None

    def _put(self, key, data):
        if key in self.objects:
            return PutOutcome.EXISTS
        self.objects[key] = data
        return PutOutcome.DONE

    def replace(self, key, data):
        self._read()
        self.objects[key] = data

    def replace_from(self, key, file):
        file.seek(0)
        self.replace(key, file.read())

    def walk(self):
        self._read()
        stats = {key: self._stat(key) for key in self.objects}
        times = [stat.mtime_ms for stat in stats.values()]
        return build_walk_table(list(stats), [stat.size for stat in stats.values()], times)

    def delete(self, keys):
        for key in keys:
            self.objects.pop(key, None)


@dataclass
class FakeClock:
    """A clock whose time passes by sleeping only, with a calendar that can be wrong."""

    name: str
    skew_ms: int = 0
    counts_suspension: bool = True
    ids: list[str] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=lambda: [boottime()])  # shared by all

    def now_ms(self):
        return 1_700_000_000_000 + self.skew_ms

    def seconds(self):
        return self.elapsed[0]

    def sleep(self, seconds):
        self.elapsed[0] += seconds

    def uniform(self):
        return 0.5

    def new_id(self):
        self.ids.append(f"{self.name}-{len(self.ids)}")
        return self.ids[-1]


@contextlib.contextmanager
def frozen_clock(elapsed):
    """Replace the machine's monotonic clock by that of a simulation."""
    real, clock._read = clock._read, lambda: elapsed[0]
    try:
        yield
    finally:
        clock._read = real


def table_on(store, clock=None, options=None):
    """Return a table on a given store and clock."""
    table = object.__new__(arrowlog.Table)
    table._store = store
    table._tracker = SnapshotTracker(store, ReadOptions(Config()))
    table._session = WriteSession(table._tracker, options, clock)
    return table


def outdate(table, seconds=31, *, forget_head=False):
    """Make a handle believe that it observed the log some seconds earlier.

    Cleanup deletes no commit that is younger than half a minute. With `forget_head`, it does not
    remember its own last commit either.
    """
    tracker, session = table._tracker, table._session
    base = tracker._base
    tracker._base = replace(base, observed_at=base.observed_at - seconds)
    if forget_head:
        session._state = replace(session._state, head=None)


@dataclass
class Commit:
    """One commit, read line by line with the standard library only."""

    version: int
    info: dict
    adds: dict[str, dict]
    removes: list[str]
    before: dict[str, dict]
    after: dict[str, dict]
    metadata: dict
    protocol: dict


@dataclass
class Log:
    """All commits of a log. Reading one that breaks a promise raises `Violation`."""

    commits: list[Commit] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)  # versions by txnId
    newest_time: int = -1

    @property
    def version(self):
        return len(self.commits) - 1

    @property
    def live(self):
        return self.commits[-1].after

    def absorb(self, objects):
        """Read the commits that are new, and check that the known ones are unchanged."""
        found = {}
        for key in objects:
            name = key.removeprefix(f"{LOG_FOLDER}/")
            if name != key and name.removesuffix(".json").isdigit():
                found[int(name.removesuffix(".json"))] = objects[key]
        versions = sorted(found)
        insist(versions == list(range(len(versions))), f"a gap in {versions}")
        for version, data in enumerate(self.raw):
            insist(found[version] == data, f"version {version} was changed")
        for version in versions[len(self.raw) :]:
            self.raw.append(found[version])
            self.commits.append(self._read(version, found[version]))

    def _read(self, version, data):
        lines = commit_lines(data)
        actions = [json.loads(text) for text in lines]
        last = self.commits[-1] if self.commits else None
        live = dict(last.after) if last else {}
        metadata, protocol = (last.metadata, last.protocol) if last else ({}, {})
        commit = Commit(version, {}, {}, [], dict(live), live, metadata, protocol)
        for action in actions:
            ((kind, fields),) = action.items()
            if kind == "commitInfo":
                insist(not commit.info, f"version {version} has two commitInfos")
                commit.info = fields
            elif kind == "add":
                live[fields["path"]] = commit.adds[fields["path"]] = fields
            elif kind == "remove":
                gone = live.pop(fields["path"], None)
                insist(gone is not None, f"version {version} removes {fields['path']} once more")
                commit.removes.append(fields["path"])
            elif kind == "metaData":
                commit.metadata = fields
            elif kind == "protocol":
                commit.protocol = fields
        self._check_info(commit, lines)
        return commit

    def _check_info(self, commit, lines):
        version, info = commit.version, commit.info
        if version == 0:
            insist(len(lines) == 2 and commit.metadata and commit.protocol, "version 0")
        ours = str(info.get("engineInfo", "")).startswith("arrowlog/")
        if ours:
            insist(info["numActions"] == len(lines) - 1, f"numActions of {version}")
            body = b"".join(text + b"\n" for text in lines[1:])
            insist(info["checksum"] == f"crc32:{zlib.crc32(body):08x}", f"checksum of {version}")
            insist(info["timestamp"] > self.newest_time, f"the time of {version} goes back")
            insist(info["readVersion"] == version - 1, f"readVersion of {version}")
        self.newest_time = max(self.newest_time, info.get("timestamp", -1))
        if "txnId" in info:
            insist(info["txnId"] not in self.at, f"{info['txnId']} is there twice")
            self.at[info["txnId"]] = version
        if "txn" in info:
            app, step = info["txn"]["appId"], info["txn"]["version"]
            last = self.steps.get(app, (-1, -1))[0]
            insist(step > last, f"step {step} of {app} is taken after step {last}")
            self.steps[app] = (step, version)

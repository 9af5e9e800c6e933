"""A simulation of processes that stall, die and race for one log, reproducible from a seed.

A process is a handle. At every request to the store the scheduler may stop it: for a while, in
which other processes work (and may be stopped themselves), or for good. `CommitModel` knows which
commits count.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections import Counter

import pyarrow as pa

from arrowlog import add_file, testing
from arrowlog.config import resolve
from arrowlog.errors import (
    ArrowlogWarning,
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    LogCorrupt,
    StoreUnavailable,
)
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.maintenance.checkpointing import BackgroundCheckpointer
from arrowlog.snapshot import ReadOptions
from arrowlog.snapshot.listing import list_retired
from arrowlog.storage import ObjectStat
from support.commit_model import CommitModel, insist
from support.faulty_store import FakeClock, FaultyStore, frozen_clock, table_on

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
START_MS = 1_700_000_000_000
PROCESSES = 4
DEPTH = 3  # processes that can be stopped at the same time
SEEN = Counter()
ACTS = ["append"] * 6 + ["truncate"] * 3 + ["zombie"] * 2
ACTS += ["remove", "overwrite", "restore", "refresh", "step", "checkpoint", "cleanup"]


class Killed(BaseException):
    """The simulated process is killed."""


class Scheduler(FaultyStore):
    """A store that lets other processes run at every request."""

    def __init__(self, world, *, cheap):
        self.world = world
        self.times = {}
        super().__init__(cheap_stat=cheap)

    def _arrive(self):
        self.world.preempt()
        for item in list(self.late):
            item[0] -= 1
            # A put hands control to others, whose requests may have let the item arrive already.
            if item[0] <= 0 and any(other is item for other in self.late):
                self.late = [other for other in self.late if other is not item]
                self._put(item[1], item[2])

    def _put(self, key, data):
        if key in self.objects:
            return super()._put(key, data)
        outcome = super()._put(key, data)
        self._written(key)
        self.world.record(key, data)
        self.world.preempt()
        return outcome

    def _written(self, key):
        # As S3 does: whole seconds, by the store's clock.
        self.times[key] = START_MS + int(self.world.elapsed[0] + self.world.missed) * 1000

    def replace(self, key, data):
        super().replace(key, data)
        self._written(key)
        self.world.preempt()

    def delete(self, keys):
        for key in keys:
            self.world.preempt()
            self.objects.pop(key, None)

    def _stat(self, key):
        found = super()._stat(key)
        return found and ObjectStat(found.size, self.times.get(key, START_MS), found.tag)


class World:
    """The simulated processes, their schedule, and the check of reported outcomes."""

    def __init__(self, seed, elapsed, *, cheap, options, blind, protocol=2, features=(), acts=()):
        self.options, self.blind, self.acts = options, blind, list(acts)
        self.turn = threading.RLock()
        self.missed = 0.0  # time that the machine's clock has not counted, and the store's has
        self.random = random.Random(seed)
        self.elapsed = elapsed
        self.model = CommitModel()
        self.store = Scheduler(self, cheap=cheap)
        self.stack, self.plans, self.files = [], [], 0
        names = {"readerFeatures": features, "writerFeatures": features} if features else {}
        opening = [testing.protocol(protocol, protocol, **names), testing.metadata(SCHEMA, ["p"])]
        self.store._put(f"{LOG_FOLDER}/{commit_name(0)}", testing.lines(opening))
        self.processes = [self.open(number) for number in range(PROCESSES)]

    def open(self, number):
        clock = FakeClock(f"p{number}.{self.random.getrandbits(40)}", elapsed=self.elapsed)
        table = table_on(self.store, clock, {"commit.timeoutSeconds": 120, **self.options})
        table._tracker.read_options = ReadOptions(resolve(self.options))
        table._checkpointer = BackgroundCheckpointer(self.store, clock, allow_external_paths=False)
        return table

    def record(self, key, data):
        """Tell the model of a commit file that was put."""
        number = key.removeprefix(f"{LOG_FOLDER}/").removesuffix(".json")
        if number.isdigit() and not self.model.put(int(number), data):
            SEEN["dead put"] += 1

    def preempt(self):
        """Perhaps stop the process that makes a request.

        A process may make several requests at a time, in threads; it is stopped in one of them.
        """
        if self.turn.acquire(blocking=False):
            try:
                self._preempt()
            finally:
                self.turn.release()

    def _preempt(self):
        if not self.plans or self.plans[-1] is None:
            return
        plan = self.plans[-1]
        plan["requests"] -= 1
        if plan["requests"] >= 0:
            return
        self.plans[-1] = None  # once a step
        if plan["killed"]:
            raise Killed
        SEEN["stall"] += 1
        before = self.elapsed[0]
        for _ in range(plan["others"]):
            self.step(nested=True)
        self.elapsed[0] = max(self.elapsed[0], before + plan["seconds"])
        if self.blind:
            self.missed += self.elapsed[0] - before
            self.elapsed[0] = before

    def step(self, *, nested=False):
        """Let one process do one thing."""
        SEEN["steps"] += 1
        rng = self.random
        idle = [n for n in range(PROCESSES) if n not in self.stack]
        if not idle or len(self.stack) >= DEPTH:
            return
        number = rng.choice(idle)
        plan = None
        if rng.random() < (0.7 if not nested else 0.3):
            plan = {
                "requests": int(rng.expovariate(1 / 6)),
                "killed": rng.random() < 0.15,
                "others": rng.randint(1, 7),
                "seconds": rng.choice([0, 0, 1, 5, 12, 40, 4000]),
            }
        saved = self.store.puts, self.store.reads
        puts = ["lost after", "lost before", "retried", "late 3", "late 30", "transient"]
        self.store.puts = [rng.choice(puts)] if rng.random() < 0.15 else []
        self.store.reads = [False] * rng.randint(0, 9) + [True] if rng.random() < 0.05 else []
        self.stack.append(number)
        self.plans.append(plan)
        try:
            self.act(number, rng)
        except Killed:
            SEEN["killed"] += 1
            self.plans[-1] = None
            self.store.puts, self.store.reads = [], []
            self.processes[number] = self.open(number)
        finally:
            self.plans.pop()
            self.stack.pop()
            self.store.puts, self.store.reads = saved
        self.elapsed[0] += rng.choice([0, 0.01, 0.5, 3])

    def act(self, number, rng):
        table = self.processes[number]
        clock_ids = table._session.clock.ids
        issued = len(clock_ids)
        kind = rng.choice(self.acts or ACTS)
        SEEN[kind] += 1
        try:
            result = getattr(self, f"do_{kind}")(table, rng)
        except CommitStateUnknown as error:
            SEEN["unknown"] += 1
            insist(error.txn_id in clock_ids[issued:], "another's id")
        except (CommitConflict, InvalidRequest, StoreUnavailable, LogCorrupt) as error:
            SEEN[type(error).__name__] += 1
            if isinstance(error, LogCorrupt):
                # A file may vanish under a reader more often than it looks again, never more.
                insist("gone" in str(error) or "cleaned up" in str(error), f"{kind}: {error}")
            landed = set(clock_ids[issued:]) & set(self.model.ids)
            insist(not landed, f"{kind} landed as {landed}, but reported: {error}")
        else:
            if result is not None and not getattr(result, "duplicate", False):
                insist(result.version < len(self.model.ids), f"{result} is not in the log")
                there = self.model.ids[result.version]
                insist(there == result.txn_id, f"{result} was acknowledged, and {there} is there")
                SEEN["acknowledged"] += 1

    def do_append(self, table, rng):
        self.files += 1
        return table.append([add_file(f"f{self.files}", {"p": "x"}, size=1, modification_time=1)])

    def do_step(self, table, rng):
        self.files += 1
        add = add_file(f"f{self.files}", {"p": "x"}, size=1, modification_time=1)
        return table.append([add], txn=(rng.choice("ab"), rng.randint(0, 1 + self.files // 20)))

    def do_remove(self, table, rng):
        live = sorted(self.model.live[-1])
        return table.remove([rng.choice(live)]) if live else None

    def do_overwrite(self, table, rng):
        self.files += 1
        add = add_file(f"f{self.files}", {"p": "x"}, size=1, modification_time=1)
        return table.overwrite([add])

    def do_restore(self, table, rng):
        first, last = table.earliest_version, len(self.model.ids) - 1
        return table.restore(rng.randint(min(first, last), last))

    def do_refresh(self, table, rng):
        seen = table.refresh()
        truth = self.model.live[seen.version]
        shown = set(seen.files["path"].to_pylist())
        insist(shown == truth, f"a handle shows {shown ^ truth} wrong at version {seen.version}")

    def do_zombie(self, table, rng):
        """Apply a put of a stalled writer at a version that has been deleted since."""
        names = {key.removeprefix(f"{LOG_FOLDER}/") for key in self.store.objects}
        last = len(self.model.ids) - 1
        empty = [v for v in range(1, last) if commit_name(v) not in names]
        for version in {rng.choice(empty), empty[-1], empty[0]} if empty else ():
            self.files += 1
            info = testing.commit_info(self.files, "ZOMBIE", txnId=f"zombie-{self.files}")
            if rng.random() < 0.5:
                info["commitInfo"]["txn"] = {"appId": rng.choice("ab"), "version": 9}
            lines = testing.lines([info, testing.add(f"zombie{self.files}", {"p": "x"})])
            self.store._put(f"{LOG_FOLDER}/{commit_name(version)}", lines)

    def do_checkpoint(self, table, rng):
        table.checkpoint()

    def do_truncate(self, table, rng):
        table.truncate_history()

    def do_cleanup(self, table, rng):
        options = {"logRetention.duration": "0s", "checkpointRetention.duration": "0s"}
        other = table_on(self.store, table._session.clock, options)
        other.cleanup()

    def check(self):
        """Check that a new reader sees what was committed, at every version that it can read."""
        self.store.late, late = [], self.store.late
        reader = table_on(self.store)
        reader._tracker.read_options = ReadOptions(resolve(self.options))
        newest = reader.snapshot()
        insist(newest.version == len(self.model.ids) - 1, f"readers see {newest.version}")
        shown = set(newest.files["path"].to_pylist())
        insist(shown == self.model.live[-1], f"{shown ^ self.model.live[-1]} differ")
        first = reader.earliest_version
        middle = self.random.randint(first, newest.version)
        for version in {0, min(1, newest.version), first, middle}:
            try:
                files = reader.snapshot(version=version).files["path"].to_pylist()
            except InvalidRequest:
                insist(version < first, f"version {version} cannot be read")
            except LogCorrupt:  # whoever deleted its checkpoint died before the last of its files
                insist(version in list_retired(self.store), f"version {version} cannot be read")
            else:
                insist(set(files) == self.model.live[version], f"files of version {version}")
        self.store.late = late


def simulate(
    seed, steps, *, options=None, blind=False, check_every=3, protocol=2, features=(), acts=()
):
    """Run a number of steps; return the number of commits.

    Raises `Violation` with the seed if a process got a wrong outcome. With `blind`, the clock
    of a process stands still while it is stopped, as that of a virtual machine may. With `protocol`
    4, every commit is followed by a table state. `features` are those of the table's protocol, and
    `acts` are those that processes choose from, instead of `ACTS`.
    """
    elapsed = [1000.0]
    with frozen_clock(elapsed), warnings.catch_warnings():
        warnings.simplefilter("ignore", ArrowlogWarning)
        world = World(
            seed,
            elapsed,
            cheap=bool(seed % 2),
            options=options or {},
            blind=blind,
            protocol=protocol,
            features=features,
            acts=acts,
        )
        for number in range(steps):
            try:
                world.step()
                if number % check_every == 0:
                    world.check()
            except BaseException as error:
                error.add_note(f"seed {seed}, step {number}")
                raise
    return len(world.model.ids)

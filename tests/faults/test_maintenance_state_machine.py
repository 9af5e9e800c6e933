"""Random compaction, vacuum, cleanup and writes on a faulty store lose no row.

A naive model keeps every commit and every data file that was ever put. After each step, each
readable version has all its files with unchanged bytes, a compaction keeps the rows of its version
in their order, and no young file is deleted. In the end, on a working store, every operation can be
finished. Removing a guard must make the machine fail.
"""

import io
import json
import time
import warnings
import zlib
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.case_count import cases
from support.commit_model import Violation, insist
from support.faulty_store import FakeClock, FaultyStore, table_on

from arrowlog.config import Config
from arrowlog.errors import (
    ArrowlogWarning,
    CommitConflict,
    CommitStateUnknown,
    InvalidRequest,
    StoreUnavailable,
)
from arrowlog.formats.indextables.format import LOG_FOLDER
from arrowlog.maintenance import compaction, retention, vacuum
from arrowlog.maintenance.checkpointing import BackgroundCheckpointer
from arrowlog.storage import ObjectStat
from arrowlog.transaction.table_metadata import build_metadata, create_table

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
DAY = 86_400_000
START = 1_700_000_000_000
TOLD = (CommitConflict, CommitStateUnknown, InvalidRequest, StoreUnavailable)
SEEN = Counter()
PUTS = [
    *[()] * 8,
    ("lost after",),
    ("lost before",),
    ("retried",),
    ("transient",),
    ("late 2",),
    ("unavailable",),
    ("lost after", "unavailable"),
    ("lost before", "late 1"),
]
READS = [*[()] * 12, *((*[False] * n, True) for n in range(0, 30, 3))]
DELETES = [*[()] * 6, ("fails",), ("lost",), ("lost", "fails", "fails", "fails")]
CONCURRENT_OPERATIONS = ["write", "remove", "drop", "compact", "vacuum", "overwrite"]
PLANS = st.tuples(
    st.sampled_from(PUTS),
    st.sampled_from(READS),
    st.sampled_from(DELETES),
    st.one_of(st.just([]), st.lists(st.sampled_from(CONCURRENT_OPERATIONS), max_size=2)),
)
HANDS = st.integers(0, 1)
PARTS = st.sampled_from("ab")


class World:
    """The shared clock; handles differ from it by seconds."""

    ms = 0


class Clock(FakeClock):
    def now_ms(self):
        return START + World.ms + self.skew_ms


class AgingStore(FaultyStore):
    """Objects with an age, and a record of every object ever put."""

    def __init__(self, *, cheap):
        self.ever, self.times, self.deletes = {}, {}, []
        super().__init__(cheap_stat=cheap)

    def heal(self):
        super().heal()
        self.deletes = []

    def _put(self, key, data):
        if key not in self.objects:
            self._note(key, data)
        return super()._put(key, data)

    def _arrive(self):
        before = set(self.objects)
        super()._arrive()
        for key in set(self.objects) - before:
            self._note(key, self.objects[key])

    def _note(self, key, data):
        self.times[key] = START + World.ms
        self.ever[key] = data

    def replace(self, key, data):
        super().replace(key, data)
        self._note(key, data)
        if self.window and not key.startswith(LOG_FOLDER):  # written, and not committed yet
            self.window.pop(0)()

    def _stat(self, key):
        found = super()._stat(key)
        return found and ObjectStat(found.size, self.times[key], found.tag)

    def delete(self, keys):
        fault = self.deletes.pop(0) if self.deletes else ""
        if fault == "fails":
            raise StoreUnavailable("The store refused.")
        for key in keys:
            if not key.startswith(f"{LOG_FOLDER}/"):
                SEEN["deleted"] += 1
                age = START + World.ms - self.times.get(key, 0)
                insist(age >= DAY - 5_000, f"{key} was deleted {age} ms after it was written")
        super().delete(keys)
        if fault == "lost":
            raise StoreUnavailable("The store did not answer.")


class Model:
    """The log's content, read line by line from every commit ever written."""

    def __init__(self, store):
        self.store, self.live, self.ids = store, [], {}

    def catch_up(self):
        while (data := self.store.ever.get(f"{LOG_FOLDER}/{len(self.live):020d}.json")) is not None:
            self._absorb(zlib.decompress(data[2:], 31))

    def _absorb(self, plain):
        actions = [json.loads(text) for text in plain.splitlines()]
        live = dict(self.live[-1]) if self.live else {}
        removed = [
            fields["path"] for a in actions for kind, fields in a.items() if kind == "remove"
        ]
        added = {f["path"]: f for a in actions for kind, f in a.items() if kind == "add"}
        if actions[0].get("commitInfo", {}).get("operation") == "COMPACT":
            self._check_compaction(removed, added)
        for path in removed:
            insist(live.pop(path, None) is not None, f"{path} is removed once more")
        live.update(added)
        self.live.append(live)

    def _check_compaction(self, removed, added):
        SEEN["compaction"] += 1
        ((path, fields),) = added.items()
        rows = [number for old in removed for number in self.rows(old)]
        insist(rows == self.rows(path), f"{removed} had other rows than {path}")
        insist(fields["dataChange"] is False, "dataChange")
        insist(fields["numRecords"] == len(rows), "numRecords")
        bounds = fields["minValues"]["id"], fields["maxValues"]["id"]
        insist(bounds == (str(min(rows)), str(max(rows))), "bounds")

    def rows(self, key):
        if key not in self.ids:
            table = pq.read_table(io.BytesIO(self.store.ever[key]))
            self.ids[key] = table["id"].to_pylist()
        return self.ids[key]

    def all_rows(self):
        return sorted(number for key in self.live[-1] for number in self.rows(key))


class Machine(RuleBasedStateMachine):
    """Two handles on one table."""

    @initialize(cheap=st.booleans())
    def begin(self, cheap):
        World.ms = 0
        self.store = AgingStore(cheap=cheap)
        self.elapsed = [time.monotonic()]
        create_table(
            self.store, Config(), build_metadata(SCHEMA, ["p"], None, None, None), exist_ok=False
        )
        self.hands = [self._table("a", 0), self._table("b", 3_000)]
        self.model = Model(self.store)
        self.number = 0
        self.broken = {}

    def _table(self, name, skew):
        clock = Clock(name, skew, elapsed=self.elapsed)
        table = table_on(self.store, clock)
        table._checkpointer = BackgroundCheckpointer(self.store, clock, allow_external_paths=False)
        table._storage_options = {}
        return table

    def act(self, hand, plan, call):
        """Run an operation under faults. Its result is right, or it raises a typed error."""
        puts, reads, deletes, concurrent = plan
        self.store.puts, self.store.reads = list(puts), list(reads)
        self.store.deletes = list(deletes)
        self.store.window = [
            lambda what=what: self.concurrent_operation(1 - hand, what) for what in concurrent
        ]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ArrowlogWarning)  # of deletions that failed
                return call(self.hands[hand])
        except TOLD as error:
            SEEN[type(error).__name__] += 1
        finally:
            self.store.heal()
        return None

    def concurrent_operation(self, hand, what):
        table = self.hands[hand]
        puts, reads, deletes = self.store.puts, self.store.reads, self.store.deletes
        self.store.puts, self.store.reads, self.store.deletes = [], [], []
        try:
            SEEN[f"concurrent {what}"] += 1
            if what == "write":
                table.write(self.rows("a"))
            elif what == "overwrite":
                table.write(self.rows("b"), mode="overwrite", where="p = 'b'")
            elif what == "drop":
                table.drop_partitions("p = 'a'")
            elif what == "compact":
                table.compact()
            elif what == "vacuum":
                table.vacuum("1d")
            else:
                table.remove(table.refresh().files["path"].to_pylist()[:1])
        except TOLD:
            pass
        finally:
            self.store.puts, self.store.reads, self.store.deletes = puts, reads, deletes

    def rows(self, part, count=2):
        first = self.number = self.number + 10
        ids = list(range(first, first + count))
        return pa.table({"p": [part] * count, "id": ids}, schema=SCHEMA)

    @rule(hand=HANDS, plan=PLANS, part=PARTS, count=st.integers(1, 3))
    def write(self, hand, plan, part, count):
        self.act(hand, plan, lambda table: table.write(self.rows(part, count)))

    @rule(hand=HANDS, part=PARTS)
    def write_more(self, hand, part):
        for _ in range(3):
            self.hands[hand].write(self.rows(part))

    @rule(hand=HANDS, plan=PLANS, at=st.integers(0, 5))
    def remove(self, hand, plan, at):
        def call(table):
            files = table.refresh().files["path"].to_pylist()
            return table.remove(files[at : at + 1]) if files[at:] else None

        self.act(hand, plan, call)

    @rule(hand=HANDS, plan=PLANS, files=st.sampled_from([None, 2, 3]))
    def compact(self, hand, plan, files):
        done = self.act(hand, plan, lambda table: table.compact(max_files_per_group=files))
        for found in done.groups if done else ():
            SEEN[found.status] += 1

    @rule(
        hand=HANDS,
        concurrent=st.lists(st.sampled_from(CONCURRENT_OPERATIONS), min_size=1, max_size=2),
    )
    def compact_beside_others(self, hand, concurrent):
        self.write_more(hand, "a")
        self.compact(hand, ((), (), (), concurrent), None)

    @rule(hand=HANDS)
    def compact_while_a_file_goes(self, hand):
        self.compact_beside_others(hand, ["remove"])

    @rule(hand=HANDS, plan=PLANS, at=st.integers(0, 3))
    def compact_with_a_broken_file(self, hand, plan, at):
        """A temporarily damaged file is skipped, and later restored."""
        files = sorted(self.hands[hand].refresh().files["path"].to_pylist())
        if not files[at:]:
            return
        key = files[at]
        whole = self.store.objects[key]
        self.store.objects[key] = whole[:-6]
        self.act(hand, plan, lambda table: table.compact())
        if key in self.store.objects:
            self.store.objects[key] = whole

    @rule(hand=HANDS, plan=PLANS, days=st.sampled_from(["1d", "2d", "7d"]))
    def vacuum(self, hand, plan, days):
        self.act(hand, plan, lambda table: table.vacuum(days))

    @rule(hand=HANDS, plan=PLANS, what=st.sampled_from(["drop", "overwrite", "remove"]))
    def vacuum_later(self, hand, plan, what):
        """Files that an earlier version needs have become old enough to vacuum."""
        self.concurrent_operation(hand, what)
        self.wait(2)
        self.vacuum(hand, plan, "1d")

    @rule(hand=HANDS, part=PARTS)
    def vacuum_while_others_write(self, hand, part):
        self.write(hand, ((), (), (), ["vacuum", "vacuum"]), part, 1)

    @rule(hand=HANDS, plan=PLANS)
    def truncate(self, hand, plan):
        self.act(hand, plan, lambda table: table.truncate_history())

    @rule(hand=HANDS, plan=PLANS)
    def checkpoint(self, hand, plan):
        self.act(hand, plan, lambda table: table.checkpoint())

    @rule(hand=HANDS, days=st.sampled_from(["0s", "2d"]))
    def clean_up(self, hand, days):
        options = {"logRetention.duration": days, "checkpointRetention.duration": days}
        self.elapsed[0] += 60  # others do not use this retention: they must have refreshed since
        table = table_on(self.store, self.hands[hand]._session.clock, options)
        table.cleanup()

    @rule(days=st.sampled_from([0.5, 2, 9]))
    def wait(self, days):
        World.ms += int(days * DAY)
        self.elapsed[0] += days * 86_400

    @rule(key=st.sampled_from(["left.parquet", "p=a/left behind.parquet"]))
    def leave_an_orphan(self, key):
        self.store.replace(key, b"left by a killed writer")

    @invariant()
    def every_version_that_can_be_read_has_its_rows(self):
        if not hasattr(self, "store"):
            return
        self.model.catch_up()
        reader = table_on(self.store, Clock("reader"))
        newest = reader.snapshot()
        insist(newest.version == len(self.model.live) - 1, "a version too few, or too many")
        first = reader.earliest_version
        for version in range(first, newest.version + 1):
            for key in self.model.live[version]:
                there = self.store.objects.get(key)
                insist(there == self.store.ever[key], f"{key} of version {version} is gone")
        for version in {first, newest.version}:
            files = reader.snapshot(version=version).files["path"].to_pylist()
            insist(sorted(files) == sorted(self.model.live[version]), f"files of {version}")

    def teardown(self):
        """Every operation can be finished; only live files remain."""
        if not hasattr(self, "store"):
            return
        table = self.hands[0]
        World.ms += 2 * DAY
        self.model.catch_up()
        before = self.model.all_rows()
        table.compact()
        again = table.compact(dry_run=True)
        self.model.catch_up()
        insist(self.model.all_rows() == before, "rows were lost")
        insist(again.num_groups == 0, "a second run finds work")
        World.ms += 9 * DAY
        table.truncate_history()
        table.vacuum()
        left = {key for key in self.store.objects if not key.startswith(f"{LOG_FOLDER}/")}
        insist(left == set(self.model.live[-1]), "not only what is live is left")


def run(examples, steps=25):
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
    )
    run_state_machine_as_test(Machine, settings=how)


@pytest.mark.promise("maintenance.no_row_is_lost")
def test_no_row_is_lost_in_any_order_of_operations():
    SEEN.clear()
    run(cases(20))
    print(dict(SEEN))
    for what in ("compaction", "deleted", "conflict", "StoreUnavailable", "concurrent vacuum"):
        assert SEEN[what], what


def only_the_newest(store, config, horizon):
    """A vacuum that ignores earlier versions."""
    from arrowlog.snapshot import ReadOptions, load_snapshot
    from arrowlog.snapshot.listing import list_log

    state = load_snapshot(store, list_log(store), ReadOptions(config)).state
    key = state.column("key")
    return vacuum.ReferencedFiles(key, key, state.version, 0, ("p",))


def everything_is_old(found, live, spoken_of, columns, horizon, **others):
    """A vacuum that ignores the age of files."""
    return retention.classify_files(found, live, spoken_of, columns, 1 << 60, **others)


def no_files_are_removed(keys, before):
    """A compaction that does not remove the files it has merged."""
    return lambda state: state.adds.slice(0, 0)


class Careless:
    """A session that takes the latest version for its read version."""

    def __init__(self, whole):
        self.whole = whole

    def __call__(self, session, base, group, made):
        newest = session.read_latest()
        live = newest.state.adds["key"]
        kept = [s for s in group.sources if s.key in set(live.to_pylist())]
        if not kept:
            return compaction.GroupOutcome(group, "conflict", made)
        from dataclasses import replace

        return self.whole(session, newest, replace(group, sources=tuple(kept)), made)


def unsorted_rows(sources, files, schema):
    """A rewrite that does not keep the row order."""
    pieces = [pa.Table.from_batches(file.parquet.iter_batches()) for file in files]
    for piece in pieces:
        yield piece.select(schema.names).cast(schema).sort_by([("id", "descending")])


@pytest.mark.parametrize(
    ("place", "name", "change"),
    [
        (vacuum, "find_referenced_files", only_the_newest),
        (vacuum, "classify_files", everything_is_old),
        (compaction, "select_files_by_path", no_files_are_removed),
        (compaction, "_commit", Careless(compaction._commit)),
        ("arrowlog.maintenance.file_rewriter", "_pieces", unsorted_rows),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_removing_a_guard_is_detected(monkeypatch, place, name, change):
    target = f"{place}.{name}" if isinstance(place, str) else f"{place.__name__}.{name}"
    monkeypatch.setattr(target, change)
    with pytest.raises(Violation):
        run(300)  # it stops at the first

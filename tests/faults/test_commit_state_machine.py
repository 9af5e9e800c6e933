"""Writers on a store that loses requests and responses: each commit lands once or raises.

Several handles with differing clocks act at random, with concurrent commits in every race window.
After each step a naive model reads the log. Removing a guard must make the machine fail.
"""

import inspect
import json
from collections import Counter

import pyarrow as pa
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
from support.faulty_store import FakeClock, FaultyStore, Log, frozen_clock, outdate, table_on

from arrowlog import Table, add_file, testing
from arrowlog.errors import CommitConflict, CommitStateUnknown, InvalidRequest, StoreUnavailable
from arrowlog.formats.indextables.compression import decompress
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.transaction import commit_loop, conflict_checker, version_race, write_session

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
PUTS = [
    *[()] * 8,
    ("lost after",),
    ("lost before",),
    ("retried",),
    ("transient",),
    ("late 2",),
    ("late 9",),
    ("unavailable",),
    ("transient", "lost after"),
    ("lost before", "retried"),
    ("lost after", "unavailable"),
    ("late 3", "unavailable"),
    ("lost before", "late 1"),
]
OUTAGES = [*[""] * 13, "lost before", "transient", "unavailable"]
READS = [*[()] * 12, (True,), *((*[False] * n, True) for n in range(1, 6))]
CONCURRENT_COMMITS = [
    "append 0",
    "append 1",
    "bare append 0",
    "remove",
    "replace",
    "compact",
    "overwrite",
    "properties",
    "column",
    "protocol",
    "step",
]
PLANS = st.tuples(
    st.sampled_from(PUTS),
    st.sampled_from(OUTAGES),
    st.sampled_from(READS),
    st.sampled_from([0, 0, 0, 1, 3]),
    st.one_of(st.just([]), st.lists(st.sampled_from(CONCURRENT_COMMITS), max_size=2)),
)
HANDS = st.integers(0, 2)
PARTS = st.sampled_from(["0", "1"])
FEW = st.integers(0, 5)
TOLD = (CommitConflict, InvalidRequest, StoreUnavailable)
SEEN = Counter()


class Hand:
    """One writer: a handle, its clock, and the files that were read through it."""

    def __init__(self, machine, number):
        self.number = number
        self.clock = FakeClock(f"hand{number}", elapsed=machine.elapsed)
        self.machine = machine
        self.reopen()

    def reopen(self):
        self.table = table_on(self.machine.store, self.clock)
        self.known = set()

    @property
    def session(self):
        return self.table._session

    def reads_before_acting(self):
        """A handle without a snapshot, or after a conflict, reads a snapshot before it acts."""
        if self.table._tracker.last_read is None or self.session.is_refused:
            self.known |= set(self.machine.log.live) | self.machine.on_their_way()


class Writers(RuleBasedStateMachine):
    """See the module."""

    @initialize(cheap=st.booleans())
    def start(self, cheap):
        self.store = FaultyStore(cheap_stat=cheap)
        opening = [testing.protocol(), testing.metadata(SCHEMA, ["p"])]
        self.store.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(opening)
        self.log = Log()
        self.log.absorb(self.store.objects)
        self.elapsed = FakeClock("").elapsed
        self.frozen = frozen_clock(self.elapsed)
        self.frozen.__enter__()
        self.hands = [Hand(self, number) for number in range(3)]
        self.clean = FaultyStore(cheap_stat=cheap)
        self.clean.objects = self.store.objects
        self.reader = table_on(self.clean)
        self.files = 0
        self.acknowledged = {}  # versions by txnId
        self.unknown = {}
        self.num_concurrent = 0

    # Others

    def path(self):
        self.files += 1
        return f"f{self.files}"

    def adds(self, count, part):
        made = [self.path() for _ in range(count)]
        return made, [add_file(p, {"p": part}, size=1, modification_time=1) for p in made]

    def concurrent_commit(self, kind):
        """A concurrent commit, written directly as the next version."""
        self.log.absorb(self.store.objects)
        live, last = sorted(self.log.live), self.log.commits[-1]
        self.num_concurrent += 1
        info = testing.commit_info(
            self.log.newest_time + (1 if self.num_concurrent % 3 else 10**6),
            f"RIVAL {kind}",
            txnId=f"concurrent-{self.num_concurrent}",
        )
        word, _, part = kind.removeprefix("bare ").partition(" ")
        actions = [] if kind.startswith("bare") else [info]
        if word == "append":
            actions.append(testing.add(self.path(), {"p": part}))
        elif word == "step":
            step = self.log.steps.get("a", (-1, 0))[0] + 1
            info["commitInfo"]["txn"] = {"appId": "a", "version": step}
            actions.append(testing.add(self.path(), {"p": "0"}))
        elif word == "properties":
            new = {**last.metadata["configuration"], f"concurrent{self.num_concurrent}": "x"}
            actions.append({"metaData": {**last.metadata, "configuration": new}})
        elif word == "column":
            schema = json.loads(last.metadata["schemaString"])
            column = {
                "name": f"r{self.num_concurrent}",
                "type": "long",
                "nullable": True,
                "metadata": {},
            }
            schema["fields"].append(column)
            actions.append({"metaData": {**last.metadata, "schemaString": json.dumps(schema)}})
        elif word == "protocol":
            actions.append(testing.protocol(3, 3))
        elif word == "overwrite":
            actions += [testing.remove(name) for name in live]
            actions.append(testing.add(self.path(), {"p": "1"}))
        elif live:
            actions += self._touch(word, live)
        data = testing.lines(actions)
        if data:
            self.store.objects[f"{LOG_FOLDER}/{commit_name(self.log.version + 1)}"] = data
            self.log.absorb(self.store.objects)

    def _touch(self, word, live):
        """Actions on live files."""
        some = live[self.num_concurrent % len(live)]
        part = self.log.live[some]["partitionValues"]
        if word == "remove":
            return [testing.remove(some)]
        if word == "replace":
            return [testing.add(some, part, size=self.num_concurrent)]
        return [
            testing.remove(some, dataChange=False),
            testing.add(self.path(), part, dataChange=False),
        ]

    def on_their_way(self):
        """Files of commits whose response was lost and that may still land."""
        texts = [decompress(data, key, 1 << 20) for _, key, data in self.store.late]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        return {line["add"]["path"] for line in lines if "add" in line}

    # Common to all operations

    def act(self, number, plan, call, verify):
        """Run an operation while the store fails as planned. The reported outcome must be true."""
        hand, store = self.hands[number], self.store
        hand.reads_before_acting()
        puts, outage, reads, lag, concurrent = plan
        store.puts, store.outage, store.lag = list(puts), outage, lag
        store.reads = list(reads)
        store.window = [lambda kind=kind: self.concurrent_commit(kind) for kind in concurrent]
        issued = len(hand.clock.ids)
        try:
            result = call(hand.table)
        except TOLD as error:
            SEEN[type(error).__name__] += 1
            result = None
        except CommitStateUnknown as error:
            SEEN["CommitStateUnknown"] += 1
            insist(error.txn_id in hand.clock.ids[issued:], "another's id")
            self.unknown[error.txn_id] = error.version
            result = None
        store.heal()
        self.log.absorb(store.objects)
        if result is None:
            return
        if result.duplicate:
            SEEN["duplicate"] += 1
            verify(hand, None, result)
            return
        SEEN["done"] += 1
        SEEN["retried"] += result.attempts > 1
        insist(result.txn_id in hand.clock.ids[issued:], "another's id")
        insist(self.log.at.get(result.txn_id) == result.version, f"{result} is not in the log")
        self.acknowledged[result.txn_id] = result.version
        commit = self.log.commits[result.version]
        insist(commit.info["timestamp"] == result.timestamp, "another time")
        hand.known |= set(commit.adds)
        verify(hand, commit, result)

    # Operations

    @rule(number=HANDS, plan=PLANS, part=PARTS, count=st.integers(1, 2))
    def append(self, number, plan, part, count):
        paths, adds = self.adds(count, part)

        def verify(hand, commit, result):
            insist(sorted(commit.adds) == sorted(paths) and not commit.removes, "append")
            insist(result.operation_metrics["numAddedFiles"] == count, "metrics")

        self.act(number, plan, lambda table: table.append(adds), verify)

    @rule(number=HANDS, plan=PLANS, app=st.sampled_from("ab"), ahead=st.integers(-1, 1))
    def step(self, number, plan, app, ahead):
        step = max(self.log.steps.get(app, (-1, 0))[0] + ahead, 0)
        self._step(number, plan, app, step)
        if self.unknown and ahead == 1:  # a caller with an unknown outcome retries
            self._step(number, ((), "", (), 0, []), app, step)
            insist(self.log.steps[app][0] >= step, "the step was not taken")

    def _step(self, number, plan, app, step):
        paths, adds = self.adds(1, "0")

        def verify(hand, commit, result):
            if commit is None:
                insist(
                    self.log.steps.get(app, (-1, 0))[0] >= step,
                    "a transaction that was not committed",
                )
                insist(not set(paths) & set(self.log.live), "a duplicate was written")
            else:
                insist(commit.info["txn"] == {"appId": app, "version": step}, "txn")
                insist(sorted(commit.adds) == paths and not commit.removes, "step")

        self.act(number, plan, lambda table: table.append(adds, txn=(app, step)), verify)

    @rule(number=HANDS, plan=PLANS, which=FEW, seen=st.booleans())
    def remove(self, number, plan, which, seen):
        choice = sorted(self.hands[number].known) if seen else sorted(self.log.live)
        gone = [choice[which % len(choice)]] if choice else ["nothing"]

        def verify(hand, commit, result):
            insist(commit.removes == gone and not commit.adds, "remove")

        self.act(number, plan, lambda table: table.remove(gone), verify)

    @rule(number=HANDS, plan=PLANS, part=PARTS)
    def remove_where(self, number, plan, part):
        def verify(hand, commit, result):
            insist(not in_part(commit.after, part) and not commit.adds, "remove where")
            insist(sorted(commit.removes) == in_part(commit.before, part), "remove where")

        self.act(number, plan, lambda table: table.remove([("p", "=", part)]), verify)

    @rule(number=HANDS, plan=PLANS, part=PARTS, count=st.integers(1, 2))
    def overwrite(self, number, plan, part, count):
        paths, adds = self.adds(count, part)

        def verify(hand, commit, result):
            insist(sorted(commit.after) == sorted(paths), "overwrite leaves others' files")

        self.act(number, plan, lambda table: table.overwrite(adds), verify)

    @rule(number=HANDS, plan=PLANS, part=PARTS, count=st.integers(0, 2))
    def overwrite_where(self, number, plan, part, count):
        paths, adds = self.adds(count, part)
        where = [("p", "=", part)]

        def verify(hand, commit, result):
            insist(in_part(commit.after, part) == sorted(paths), "overwrite where leaves files")
            unseen = set(commit.removes) - hand.known
            insist(not unseen, f"overwrite where removes {unseen}, which was not read")

        self.act(number, plan, lambda table: table.overwrite(adds, where), verify)

    @rule(number=HANDS, plan=PLANS, back=FEW, which=FEW, rewrite=st.booleans())
    def merge(self, number, plan, back, which, rewrite):
        """Merge files of an earlier version into one, or update based on an earlier version."""
        base = self.log.commits[max(self.log.version - back, 0)]
        part = "01"[which % 2]
        choice = in_part(base.after, part)
        gone = [choice[(which + n) % len(choice)] for n in range(min(2, len(choice)))]
        rewrite = rewrite and bool(gone)  # the removed rows must have been live
        paths, adds = self.adds(1, part)

        def call(table):
            return table.commit(
                adds, gone, operation="MERGE", data_change=not rewrite, read_version=base.version
            )

        def verify(hand, commit, result):
            insist(sorted(commit.removes) == sorted(gone), "merge removes")
            insist(sorted(commit.adds) == paths, "merge adds")
            between = self.log.commits[base.version + 1 : commit.version]
            insist(commit.metadata == base.metadata, "metadata changed under a merge")
            insist(commit.protocol == base.protocol, "the protocol changed under a merge")
            touched = {name for other in between for name in (*other.adds, *other.removes)}
            insist(not touched & set(gone), "a merge of what is no longer there")

        self.act(number, plan, call, verify)

    @rule(number=HANDS, plan=PLANS, back=FEW, part=PARTS)
    def update(self, number, plan, back, part):
        """An append based on reading a partition at an earlier version."""
        base = max(self.log.version - back, 0)
        paths, adds = self.adds(1, "1")
        where = [("p", "=", part)]

        def verify(hand, commit, result):
            insist(sorted(commit.adds) == paths and not commit.removes, "update")
            for other in self.log.commits[base + 1 : commit.version]:
                fresh = {k: v for k, v in other.adds.items() if v.get("dataChange", True)}
                insist(not in_part(fresh, part), "rows that an update should have read")

        self.act(number, plan, lambda t: t.commit(adds, where=where, read_version=base), verify)

    @rule(number=HANDS, plan=PLANS, key=st.sampled_from("xyz"))
    def properties(self, number, plan, key):
        self.files += 1
        new = {key: str(self.files)}

        def verify(hand, commit, result):
            old = self.log.commits[commit.version - 1].metadata
            wanted = {**old, "configuration": {**old["configuration"], **new}}
            insist(commit.metadata == wanted, "concurrently set properties are lost")
            insist(not commit.adds and not commit.removes, "properties")

        self.act(number, plan, lambda table: table.set_properties(new), verify)

    @rule(number=HANDS, plan=PLANS)
    def column(self, number, plan):
        self.files += 1
        name = f"c{self.files}"

        def verify(hand, commit, result):
            old = self.log.commits[commit.version - 1].metadata
            names = [
                [item["name"] for item in json.loads(found["schemaString"])["fields"]]
                for found in (old, commit.metadata)
            ]
            insist(names[1] == [*names[0], name], "concurrently added columns are lost")

        self.act(number, plan, lambda table: table.add_columns({name: pa.int64()}), verify)

    @rule(number=HANDS, plan=PLANS, back=st.integers(1, 8))
    def restore(self, number, plan, back):
        target = self.log.commits[max(self.log.version - back, 0)]

        def verify(hand, commit, result):
            insist(sorted(commit.after) == sorted(target.after), "restore")
            insist(commit.metadata == target.metadata, "restore of the metadata")

        self.act(number, plan, lambda table: table.restore(target.version), verify)

    # The environment

    @rule(number=HANDS)
    def look(self, number):
        hand = self.hands[number]
        snapshot = hand.table.snapshot()
        hand.known = set(snapshot.state.adds["key"].to_pylist())

    @rule(number=HANDS)
    def reopen(self, number):
        self.hands[number].reopen()

    @rule(kind=st.sampled_from(CONCURRENT_COMMITS))
    def interfere(self, kind):
        self.concurrent_commit(kind)

    @rule(number=HANDS, hours=st.integers(-50, 50))
    def set_clock(self, number, hours):
        self.hands[number].clock.skew_ms = hours * 3_600_000

    @rule()
    def wait(self):
        """Half a minute: every handle treats its cached tip as stale."""
        self.elapsed[0] += 31

    @invariant()
    def promises(self):
        self.log.absorb(self.store.objects)
        for txn_id, version in self.log.at.items():
            known = self.acknowledged.get(txn_id, self.unknown.get(txn_id))
            if not txn_id.startswith("concurrent"):
                insist(known == version, f"{txn_id} is in the log as {version}, reported: {known}")
        for txn_id, version in self.acknowledged.items():
            insist(self.log.at.get(txn_id) == version, f"{txn_id} was told to be {version}")
        same(self.reader.snapshot(), self.log)
        for hand in self.hands:
            if hand.table._tracker.last_read is not None:
                same(hand.table._tracker.last_read, self.log)

    def teardown(self):
        if hasattr(self, "frozen"):
            self.frozen.__exit__(None, None, None)
        if len(self.log.commits) == len(self.store.objects):  # not after a violation
            same(table_on(self.clean).snapshot(), self.log)


def in_part(files, part):
    return sorted(p for p, add in files.items() if add["partitionValues"].get("p") == part)


def same(snapshot, log):
    """Whether a snapshot state equals the naive replay of its version."""
    commit = log.commits[snapshot.version]
    keys = snapshot.state.adds["key"].to_pylist()
    insist(sorted(keys) == sorted(commit.after), f"state of version {snapshot.version}")
    insist(
        snapshot.metadata.configuration == commit.metadata["configuration"],
        f"metadata of version {snapshot.version}",
    )


@pytest.mark.promise("commit.exactly_once")
def test_commits_land_once_on_a_faulty_store():
    SEEN.clear()
    how = settings(max_examples=cases(300), stateful_step_count=40, report_multiple_bugs=False)
    run_state_machine_as_test(Writers, settings=how)
    print(dict(SEEN))
    told = {
        "done",
        "retried",
        "duplicate",
        "CommitStateUnknown",
        "StoreUnavailable",
        "ConcurrentRemove",
        "ConcurrentAppend",
        "MetadataChanged",
        "ProtocolChanged",
    }
    assert cases(300) < 100 or told <= set(SEEN)  # every outcome was reached


def broken(module, old, new):
    """The module's names with one guard removed from its source."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, old
    names = dict(vars(module))
    exec(compile(source.replace(old, new), module.__file__, "exec"), names)
    return names


TRANSACTION_GUARDS = {
    "own transaction id": ("if winner.txn_id == self.progress.txn_id:", "if False:"),
    "increasing timestamps": (
        "max(clock.now_ms(), (base.head.timestamp or 0) + 1)",
        "clock.now_ms()",
    ),
    "application transactions": ("head.txns.get(prepared.txn[0])", "None"),
    "own commits": ("return True  # own commit", "return False  # own commit"),
    "prepared commit rebuilt": ("stale = prepared.rebuild", "stale = False"),
}
PUT_GUARDS = {
    "lost responses": ("progress.unknown |= outcome is not PutOutcome.NOT_APPLIED", "pass"),
    "an unknown put before a refusal": (
        "if progress.unknown:\n                raise",
        "if False:\n                raise",
    ),
}
CONFLICT_GUARDS = ["_check_metadata", "_check_removes", "_check_reads"]


def finds_a_violation(examples=300):
    how = settings(
        max_examples=examples,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
    )
    with pytest.raises(Violation) as found:
        run_state_machine_as_test(Writers, settings=how)
    print(found.value)


@pytest.mark.parametrize("guard", TRANSACTION_GUARDS)
def test_removing_a_transaction_guard_is_detected(guard, monkeypatch):
    names = broken(commit_loop, *TRANSACTION_GUARDS[guard])
    monkeypatch.setattr(write_session, "run_transaction", names["run_transaction"])
    finds_a_violation()


@pytest.mark.parametrize("guard", PUT_GUARDS)
def test_removing_a_put_guard_is_detected(guard, monkeypatch):
    names = broken(version_race, *PUT_GUARDS[guard])
    monkeypatch.setattr(commit_loop, "put_commit", names["put_commit"])
    finds_a_violation()


@pytest.mark.parametrize("guard", CONFLICT_GUARDS)
def test_removing_a_conflict_check_is_detected(guard, monkeypatch):
    monkeypatch.setattr(conflict_checker, guard, lambda *_: None)
    finds_a_violation()


def overwritten_after_going_on(root):
    """A handle refreshes internally, then overwrites a partition that others added files to."""
    Table.create(root, SCHEMA, ["p"])
    one, two = Table(root), Table(root)
    one.snapshot()
    two.append([add_file("unseen", {"p": "x"}, size=1, modification_time=1)])
    outdate(one)
    one.append([add_file("own", {"p": "y"}, size=1, modification_time=1)])
    new = add_file("new", {"p": "x"}, size=1, modification_time=1)
    return one.overwrite([new], where="p = 'x'")


def test_read_set_excludes_files_read_by_an_internal_refresh(tmp_path, monkeypatch):
    """Too rare for the state machine to find. Without the guard, the unseen file is removed."""
    with pytest.raises(CommitConflict, match="'unseen'"):
        overwritten_after_going_on(tmp_path / "guarded")
    monkeypatch.setattr(write_session.WriteSession, "_read_on", lambda self: self.tracker.latest())
    bare = overwritten_after_going_on(tmp_path / "bare")
    assert bare.operation_metrics["numRemovedFiles"] == 1

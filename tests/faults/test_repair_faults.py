"""Repair on a faulty store raises and leaves no partial log. Running it again finishes."""

import random
import warnings

import pyarrow as pa
from support.case_count import cases, first_seed
from support.faulty_store import FaultyStore

from arrowlog import repair, testing
from arrowlog.config import Config
from arrowlog.errors import ArrowlogError
from arrowlog.formats.indextables import INDEXTABLES
from arrowlog.formats.indextables.format import LAST_CHECKPOINT, LOG_FOLDER
from arrowlog.recovery import log_repair as module
from arrowlog.snapshot import ReadOptions, load_snapshot
from arrowlog.snapshot.listing import list_log
from arrowlog.storage.base import build_walk_table

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
FAULTS = ["", "", "unavailable", "transient", "lost before", "lost after", "retried", "late 3"]
TARGET = "new"


class Store(FaultyStore):
    """A store that lists recursively, with folders."""

    def stats_from(self, folder, start=""):
        found = super().stats_from(folder, start)
        deeper = {
            key[len(folder) + 1 :].partition("/")[0]
            for key in self.objects
            if key.startswith(f"{folder}/") and "/" in key[len(folder) + 1 :]
        }
        return found | {name: self._stat(f"{folder}/{name}") for name in deeper if name >= start}

    def walk(self):
        self._read()
        keys = list(self.objects)
        return build_walk_table(keys, [len(self.objects[key]) for key in keys], [0] * len(keys))

    def check_writable(self, folder):
        self._read()


def source(store, rng):
    """A log with a gap near its end, and the files that are readable and exist."""
    actions = [[testing.protocol(), testing.metadata(SCHEMA, ["p"])]]
    live = []
    for version in range(1, rng.randrange(2, 6)):
        keys = [f"p={n % 2}/f{version}-{n}" for n in range(rng.randrange(1, 20))]
        actions.append([testing.add(key, {"p": key[2]}) for key in keys])
        live += keys
    for version, content in enumerate(actions):
        store.objects[f"{LOG_FOLDER}/{version:020d}.json"] = testing.lines(content)
    store.objects[f"{LOG_FOLDER}/{len(actions) + 1:020d}.json"] = testing.lines(actions[-1])
    there = [key for key in live if rng.random() < 0.9]
    store.objects |= dict.fromkeys(there, b"1")
    return sorted(there)


def opened(store):
    """The files of the target, or None if it does not open."""
    moved = INDEXTABLES.relocated(TARGET)
    options = ReadOptions(Config(), format=moved)
    try:
        adds = load_snapshot(store, list_log(store, moved), options).state.adds
        return sorted(adds["key"].to_pylist())
    except KeyError:
        return []  # a state without files has no file columns
    except ArrowlogError:
        return None


def one(seed, monkeypatch):
    rng = random.Random(seed)
    store = Store(cheap_stat=rng.random() < 0.5)
    expected = source(store, rng)
    before = dict(store.objects)
    monkeypatch.setattr(module, "open_store", lambda *_, **__: store)
    left = 0
    for attempt in range(60):
        if attempt < 50:
            store.puts = [rng.choice(FAULTS) for _ in range(rng.randrange(8))]
            store.reads = [rng.random() < 0.1 for _ in range(rng.randrange(60))]
        row = repair(f"/table/{LOG_FOLDER}", f"/table/{TARGET}").to_pylist()[0]
        store.heal()
        assert {key: store.objects.get(key) for key in before} == before
        found = opened(store)
        assert found is None or found == expected, "a half log opens"
        left += found is None and row["status"] != "SUCCESS"
        if f"{TARGET}/{LAST_CHECKPOINT}" in store.objects:
            break
        assert row["status"].startswith("ERROR: ")
        assert row["source_version"] == -1
    assert opened(store) == expected
    last = repair(f"/table/{LOG_FOLDER}", f"/table/{TARGET}").to_pylist()[0]
    assert "is not empty" in last["status"]
    return left


def test_store_faults_during_repair_are_reported_and_a_rerun_finishes(monkeypatch):
    first = first_seed()
    interrupted = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(cases(60)):
            interrupted += one(first + number, monkeypatch)
    assert interrupted > 5

"""Every setting has an effect: for each one a proof that changing it changes behavior.

A setting without a proof fails `test_every_setting_has_a_proof`. A proof is a function in this
module, or the name of another test that uses the setting.
"""

import contextlib
import os
import random
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import small_table, split_tables
from support.logged import SECONDS_MAX, append, create

import arrowlog
from arrowlog import decode, memory_limit, testing
from arrowlog import storage as store_module
from arrowlog.config import PREFIX, Config, resolve
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables import detect_codec
from arrowlog.recovery import data_files
from arrowlog.snapshot import commit_reader
from arrowlog.storage import PutOutcome, obstore_s3, open_store
from arrowlog.storage.fsspec_store import MemoryStore

TESTS = Path(__file__).parents[1]
SETTINGS = {
    item.metadata["key"].removeprefix(PREFIX): item
    for item in Config.__dataclass_fields__.values()
    if "key" in item.metadata
}
PROOFS = {
    "avroState.allowStateOnly": "unit/test_avro_state_writes.py::"
    "test_writing_a_states_only_table_requires_allow_state_only",
    "commit.verify": "faults/test_stalled_writers.py::"
    "test_clock_that_misses_stalls_needs_commit_verify_always",
    "history.maxMemory": "unit/test_history_queries.py::test_long_history_respects_max_memory",
    "splits.cache.path": "integration/test_split_tables.py::"
    "test_cache_path_is_set_by_options_not_by_the_table",
}


def proves(*keys):
    def register(proof):
        PROOFS.update(dict.fromkeys(keys, proof))
        return proof

    return register


def names(table, folder=""):
    return set(os.listdir(f"{table.uri}/_transaction_log{folder}"))


def commit_bytes(table, version=1):
    return Path(table.uri, "_transaction_log", f"{version:020d}.json").read_bytes()


def checkpoint_bytes(table, version=1):
    return Path(table.uri, "_transaction_log", f"{version:020d}.checkpoint.json").read_bytes()


def both_ways(tmp_path, act, *settings):
    """Return the result of `act` for a new table with each of the settings."""
    found = []
    for number, options in enumerate(settings):
        table = create(tmp_path / f"{len(os.listdir(tmp_path))}-{number}", **options)
        found.append(act(table))
    return found


@proves("checkpoint.enabled", "checkpoint.interval")
def checkpoints_are_written_at_the_interval(tmp_path, monkeypatch):
    def act(table):
        for number in range(4):
            append(table, f"{number}")
            assert table.wait_for_checkpoint(SECONDS_MAX)
        return sorted(int(name[:20]) for name in names(table) if name.endswith("checkpoint.json"))

    on = {"checkpoint.enabled": True}
    assert both_ways(
        tmp_path,
        act,
        {"checkpoint.enabled": False, "checkpoint.interval": 2},
        {**on, "checkpoint.interval": 2},
        {**on, "checkpoint.interval": 3},
    ) == [[], [2, 4], [3]]


def retained(table):
    for number in range(6):
        append(table, f"{number}")
        if number in (2, 5):
            table.checkpoint()
    deleted = table.cleanup().files.to_pylist()
    return {kind: {f["version"] for f in deleted if f["kind"] == kind} for kind in KINDS}


KINDS = ("commit", "checkpoint")


@proves("checkpoint.retention", "logRetention.duration", "checkpointRetention.duration")
def retention_settings_select_what_is_kept(tmp_path, monkeypatch):
    soon = {"logRetention.duration": "0s"}
    none = {"checkpointRetention.duration": "0s"}
    found = both_ways(
        tmp_path,
        retained,
        {},
        soon,
        {**soon, "checkpoint.retention": 2},
        {**soon, **none},
        {**none, "checkpoint.retention": 0},
    )
    assert [each["commit"] for each in found] == [
        set(),
        {1, 2, 3, 4, 5},
        {1, 2, 3},
        {1, 2, 3, 4, 5},
        set(),
    ]
    assert [each["checkpoint"] for each in found] == [set(), set(), set(), {3}, {3}]


@proves("checkpoint.format")
def checkpoints_have_the_configured_formats(tmp_path, monkeypatch):
    def act(table):
        append(table)
        table.checkpoint()
        last = table.version
        parquet = "_checkpoints" in names(table)
        return f"{last:020d}.checkpoint.json" in names(table), parquet

    forms = [{"checkpoint.format": form} for form in ("both", "json", "parquet")]
    assert both_ways(tmp_path, act, *forms) == [(True, True), (True, False), (False, True)]


@proves("checkpoint.compression")
def parquet_checkpoints_have_their_codec(tmp_path, monkeypatch):
    def act(table):
        append(table)
        table.checkpoint()
        folder = f"{table.uri}/_transaction_log/_checkpoints"
        (part,) = [name for name in os.listdir(folder) if name.endswith(".parquet")]
        return pq.read_metadata(f"{folder}/{part}").row_group(0).column(0).compression

    codecs = ["snappy", "zstd", "gzip", "none", "uncompressed"]
    settings = [{"checkpoint.compression": codec} for codec in codecs]
    assert both_ways(tmp_path, act, *settings) == [
        "SNAPPY",
        "ZSTD",
        "GZIP",
        "UNCOMPRESSED",
        "UNCOMPRESSED",
    ]


@proves(
    "checkpoint.compression.enabled",
    "transaction.compression.enabled",
    "transaction.compression.codec",
    "transaction.compression.minSize",
)
def files_have_the_configured_codec(tmp_path, monkeypatch):
    def act(table):
        append(table, "x", "y" * 3000)
        append(table, "small")
        table.checkpoint()
        read = [commit_bytes(table), commit_bytes(table, 2), checkpoint_bytes(table, 2)]
        return [detect_codec(data) for data in read]

    off = {"transaction.compression.enabled": False}
    own = "checkpoint.compression.enabled"
    zstd = {"transaction.compression.codec": "zstd"}
    found = both_ways(
        tmp_path,
        act,
        {},
        off,
        {**off, own: True},
        {own: False},
        zstd,
        {**zstd, "transaction.compression.minSize": "1KB"},
        {"transaction.compression.minSize": "1MB"},
    )
    assert found == [
        ["gzip", "gzip", "gzip"],
        ["none", "none", "none"],
        ["none", "none", "gzip"],
        ["gzip", "gzip", "none"],
        ["zstd", "zstd", "zstd"],
        ["zstd", "none", "zstd"],
        ["none", "none", "gzip"],
    ]


@proves("transaction.compression.gzip.level")
def gzip_level_applies_to_commits_and_checkpoints(tmp_path, monkeypatch):
    # Numbers and a few words in random order: the size differs between levels by far more than
    # random ids in the file change it.
    rng = random.Random(7)
    words = [rng.randbytes(4).hex() for _ in range(60)]
    paths = ["-".join([*rng.choices(words, k=9), str(number)]) for number in range(600)]
    paths += [f"{number * 7919 % 10007:05d}-{number}" for number in range(600)]
    adds = [arrowlog.add_file(path, {"day": None}, size=1) for path in paths]

    def act(table):
        table.append(adds)
        table.checkpoint()
        return len(commit_bytes(table)), len(checkpoint_bytes(table))

    levels = [{"transaction.compression.gzip.level": level} for level in (0, 1, 4, 9)]
    json = {"checkpoint.format": "json"}
    sizes = both_ways(tmp_path, act, *({**level, **json} for level in levels))
    for of in zip(*sizes, strict=True):  # of the commit, of the checkpoint
        none, fast, medium, best = of
        assert none > fast > medium > best


@proves("checkpoint.maxFileSize")
def no_file_of_a_checkpoint_is_larger_than_its_limit(tmp_path, monkeypatch):
    adds = [
        arrowlog.add_file(os.urandom(20).hex(), {"day": None}, size=number + 1)
        for number in range(3000)
    ]

    def act(table):
        table.append(adds)
        table.checkpoint()
        log = Path(table.uri, "_transaction_log")
        files = [*log.glob(f"{1:020d}.checkpoint*"), *log.glob(f"_checkpoints/{1:020d}*.parquet")]
        assert arrowlog.Table(table.uri).snapshot().files.num_rows == 3000
        assert not arrowlog.Table(table.uri).snapshot().report.warnings
        return len(files), max(path.stat().st_size for path in files)

    limits = (20_000, 60_000, 1 << 27)
    found = both_ways(tmp_path, act, *({"checkpoint.maxFileSize": limit} for limit in limits))
    assert all(largest <= limit for (_, largest), limit in zip(found, limits, strict=True))
    assert found[0][0] > found[1][0] > found[2][0] == 2


class Gate:
    """Counts concurrent calls."""

    def __init__(self):
        self.inside = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, usual):
        def call(*args, **kwargs):
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            time.sleep(0.005)
            try:
                return usual(*args, **kwargs)
            finally:
                with self.lock:
                    self.inside -= 1

        return call


@proves("checkpoint.parallelism")
def concurrent_requests_are_limited(tmp_path, monkeypatch):
    import obstore

    class Body(bytes):
        def bytes(self):
            return self

    keys = {"key": "k" * 20, "secret": "s" * 20, "endpoint_url": "http://127.0.0.1:9"}
    for uri, options in ((f"memory://{tmp_path.name}", {}), ("s3://bucket/t", keys)):
        for ceiling in (1, 3, 8):
            gate = Gate()
            store = open_store(uri, options, parallelism=ceiling)
            if isinstance(store, obstore_s3.ObstoreS3):
                monkeypatch.setattr(obstore, "get", gate(lambda client, key: Body(b"x")))
            else:
                monkeypatch.setattr(store.fs, "cat_file", gate(lambda path: b"x"), raising=False)
            readers = [
                threading.Thread(target=store.get_many, args=([f"{n}" for n in range(20)],))
                for _ in range(3)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(SECONDS_MAX)
            assert gate.most == ceiling
    assert resolve({"checkpoint.parallelism": 3}).request_ceiling == 3
    assert resolve().request_ceiling is None
    table = create(f"memory://{tmp_path.name}", **{"checkpoint.parallelism": 2})
    assert table._store.slots._limit == 2


@proves("checkpoint.read.timeoutSeconds")
def hanging_reads_time_out(tmp_path, monkeypatch):
    table = create(f"memory://{tmp_path.name}", **{"checkpoint.read.timeoutSeconds": 1})
    assert table._store.seconds == 1
    store = open_store(table.uri, timeout_seconds=0.05)
    monkeypatch.setattr(store, "find", lambda key: time.sleep(1))
    with pytest.raises(arrowlog.StoreTimeout, match=r"within 0\.05 s"):
        store.find_many(["a", "b"])


@proves("cleanup.enabled", "cleanup.dryRun")
def cleanup_follows_a_checkpoint_if_enabled(tmp_path, monkeypatch):
    soon = {"checkpoint.enabled": True, "checkpoint.interval": 3, "logRetention.duration": "0s"}

    def act(table):
        for number in range(3):
            append(table, f"{number}")
            assert table.wait_for_checkpoint(SECONDS_MAX)
        return f"{1:020d}.json" in names(table)

    settings = ({}, {"cleanup.enabled": False}, {"cleanup.dryRun": True})
    assert both_ways(tmp_path, act, *({**soon, **more} for more in settings)) == [False, True, True]


@proves("cleanup.failurePolicy")
def failed_deletion_warns_or_raises(tmp_path, monkeypatch):
    def refuse(self, keys):
        raise StoreUnavailable("No.")

    tables = {}
    for policy in ("continue", "fail"):
        soon = {"logRetention.duration": "0s", "cleanup.failurePolicy": policy}
        tables[policy] = create(tmp_path / policy, **soon)
        for number in range(3):
            append(tables[policy], f"{number}")
        tables[policy].checkpoint()
    monkeypatch.setattr(store_module.LocalStore, "delete", refuse)
    with pytest.warns(arrowlog.ArrowlogWarning, match="2 deletions failed"):
        assert len(tables["continue"].cleanup().failures) == 2
    with pytest.raises(StoreUnavailable, match="No"):
        tables["fail"].cleanup()


@proves(
    "transaction.cache.enabled",
    "transaction.cache.expirationSeconds",
    "transaction.cache.maxVersions",
    "transaction.cache.maxSize",
)
def cache_settings_apply_to_earlier_versions(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    for number in range(30):
        append(table, f"{number}")

    def hits(**settings):
        options = {f"transaction.cache.{name}": value for name, value in settings.items()}
        reader = arrowlog.Table(table.uri, options=options)
        for _ in range(2):
            for version in range(20):
                assert reader.snapshot(version=version).num_files == version
        return reader.metrics()["cache_hits"].get("versions", 0)

    assert hits() == 20
    assert hits(enabled=False) == 0
    assert hits(expirationSeconds=0) == 0
    assert hits(maxVersions=20) == 20
    assert hits(maxVersions=19) == 0  # least recently used: the next one was just dropped
    assert hits(maxVersions=0) == 0
    assert hits(maxSize=1) == 0
    reader = arrowlog.Table(table.uri, options={"transaction.cache.maxSize": "100KB"})
    for version in range(30):
        assert reader.snapshot(version=version).files.num_rows == version
    kept = reader._tracker._cache._kept.values()
    assert 5 < len(kept) < 30
    assert sum(item.snapshot.held_bytes for item in kept) < 100 << 10


@proves("transaction.cache.maxStalenessSeconds")
def expiration_limits_the_age_of_a_snapshot(tmp_path, monkeypatch):
    table = create(tmp_path / "t")

    def sees(options, **how):
        reader = arrowlog.Table(table.uri, options=options)
        before = reader.snapshot().version
        append(table, f"{before}")
        return reader.snapshot(**how).version - before

    stale = {"transaction.cache.maxStalenessSeconds": 3600}
    assert sees({}) == 1
    assert sees(stale) == 0
    assert sees(stale, max_staleness=0) == 1
    assert sees({}, max_staleness=3600) == 0


@proves("transaction.useOptimized")
def row_decoder_is_used_if_configured(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    append(table)
    asked = []

    def start(window, pool, *, columnar):
        asked.append(columnar)
        return decode.start_decode(window, pool, columnar=columnar)

    monkeypatch.setattr(commit_reader, "start_decode", start)
    for optimized in (True, False):
        options = {"transaction.useOptimized": optimized}
        assert arrowlog.Table(table.uri, options=options).snapshot().num_files == 1
    assert asked == [True, False]


@proves("transaction.maxDecompressedBytes")
def commit_above_the_decompression_limit_is_refused(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    append(table, "x", "y" * 10_000)
    for limit, fits in ((5_000, False), (50_000, True)):
        reader = arrowlog.Table(table.uri, options={"transaction.maxDecompressedBytes": limit})
        with (
            contextlib.nullcontext()
            if fits
            else pytest.raises(arrowlog.LogCorrupt, match="maxDecompressedBytes")
        ):
            reader.snapshot()


@proves("transaction.maxMemory")
def reading_raises_above_max_memory(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    append(table)
    monkeypatch.setattr(memory_limit, "CHECK_FROM_BYTES", 1)  # small logs are not checked
    with pytest.raises(arrowlog.LogTooLarge):
        arrowlog.Table(table.uri, options={"transaction.maxMemory": "1MB"}).snapshot()
    assert arrowlog.Table(table.uri, options={"transaction.maxMemory": "1TB"}).snapshot()
    assert arrowlog.Table(table.uri).snapshot().num_files == 1


@proves("store.accelerate")
def s3_uses_obstore_if_accelerated(tmp_path, monkeypatch):
    kinds = []

    def note(uri, options, **how):
        kinds.append(how["accelerate"])
        raise arrowlog.TableNotFound("There is none.")

    monkeypatch.setattr("arrowlog.table.open_store", note)
    for accelerate in (True, False):
        with pytest.raises(arrowlog.TableNotFound):
            arrowlog.Table("s3://bucket/t", options={"store.accelerate": accelerate})
    assert kinds == [True, False]
    keys = {"key": "k" * 20, "secret": "s" * 20}
    stores = [open_store("s3://bucket/t", keys, accelerate=how) for how in kinds]
    assert [type(store).__name__ for store in stores] == ["ObstoreS3", "S3Store"]


@proves("commit.timeoutSeconds")
def commit_times_out(tmp_path, monkeypatch):
    waited = []
    for seconds in (2, 7):
        table = create(tmp_path / f"{seconds}", **{"commit.timeoutSeconds": seconds})
        append(table)
        now = [1000.0]
        clock = table._session.clock
        monkeypatch.setattr(type(clock), "seconds", lambda self, now=now: now[0])
        monkeypatch.setattr(
            type(clock), "sleep", lambda self, s, now=now: now.__setitem__(0, now[0] + 0.5)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                store_module.LocalStore, "put_if_absent", lambda *_: PutOutcome.NOT_APPLIED
            )
            with pytest.raises(StoreUnavailable):
                append(table, "b")
        waited.append(now[0] - 1000)
        monkeypatch.undo()
    assert waited == [2, 7]


@proves("commit.maxAttempts")
def max_attempts_limits_lost_races(tmp_path, monkeypatch):
    for attempts in (1, 3):
        table = create(tmp_path / f"{attempts}", **{"commit.maxAttempts": attempts})
        append(table)
        usual = store_module.LocalStore.put_if_absent
        races = []

        def outrun(self, key, data, usual=usual, races=races, root=table.uri):
            races.append(key)
            version = int(key.rpartition("/")[2][:20])
            testing.write_commit(root, version, [testing.add(f"other{version}", {"day": None})])
            return usual(self, key, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_module.LocalStore, "put_if_absent", outrun)
            with pytest.raises(arrowlog.CommitConflict, match="lost"):
                append(table, "b")
        assert len(races) == attempts


@proves("stats.truncation.enabled", "stats.truncation.maxLength", "stats.truncation.strategy")
def truncation_settings_apply_to_statistics(tmp_path, monkeypatch):
    schema = pa.schema([("text", pa.string())])

    def longest(**settings):
        options = {f"stats.truncation.{name}": value for name, value in settings.items()}
        folder = tmp_path / f"{len(os.listdir(tmp_path))}"
        table = arrowlog.Table.create(folder, schema, options=options)
        table.write(pa.table({"text": ["x" * 3000]}))
        (low,) = arrowlog.Table(folder).snapshot().files["min.text"].to_pylist()
        return None if low is None else len(low)

    assert longest() is None
    assert longest(enabled=False) == 3000
    assert longest(maxLength=4000) == 3000
    assert longest(strategy="truncate") in range(1000, 1025)
    assert longest(strategy="truncate", maxLength=10) in range(5, 11)


@proves("repair.validateSplits", "repair.failOnMissing", "repair.preserveStats")
def repair_settings_apply(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    table.write(pa.table({"day": pa.array([None], pa.date32()), "id": [7]}))
    append(table, "missing.parquet")

    def repaired(**settings):
        options = {f"repair.{name}": value for name, value in settings.items()}
        target = f"{table.uri}/_repaired{len(os.listdir(table.uri))}"
        (row,) = arrowlog.repair(
            f"{table.uri}/_transaction_log", target, options=options
        ).to_pylist()
        if row["status"] != "SUCCESS":
            return row["status"]
        text = b"".join(
            arrowlog.formats.indextables.decompress(path.read_bytes(), path.name, 1 << 20)
            for path in Path(target).glob("*.json")
        )
        return row["valid_splits"], row["missing_splits"], b"minValues" in text

    assert repaired() == (1, 1, True)
    assert repaired(validateSplits=False) == (2, 0, True)
    assert repaired(preserveStats=False) == (1, 1, False)
    assert "missing.parquet" in repaired(failOnMissing=True)


@proves("repair.parallelism")
def repair_parallelism_limits_threads(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    for number in range(40):
        append(table, f"folder{number}/f")
    usual = data_files._existing_in_folder
    for number in (1, 5):
        gate = Gate()
        monkeypatch.setattr(data_files, "_existing_in_folder", gate(usual))
        options = {"repair.parallelism": number}
        arrowlog.repair(f"{table.uri}/_transaction_log", f"{table.uri}/_{number}", options=options)
        assert gate.most == number


@proves("history.sandbox")
def sql_over_the_log_reads_no_files_in_the_sandbox(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    query = f"SELECT * FROM '{tmp_path}/secret.csv'"
    assert arrowlog.Table(table.uri).query(query).num_rows == 1
    with pytest.raises(arrowlog.InvalidRequest):
        arrowlog.Table(table.uri, options={"history.sandbox": True}).query(query)


@proves("snapshotCache.path", "snapshotCache.maxSize")
def snapshot_cache_settings_apply(tmp_path, monkeypatch):
    table = create(tmp_path / "t")
    append(table)
    for number, (limit, copied) in enumerate((("256MB", True), (1, False))):
        folder = tmp_path / f"copies{number}"
        options = {"snapshotCache.path": str(folder), "snapshotCache.maxSize": limit}
        arrowlog.Table(table.uri, options=options).snapshot()
        assert (folder.exists() and bool(os.listdir(folder))) is copied


@proves("splits.cache.maxSize")
def split_cache_size_is_limited(tmp_path, monkeypatch):
    days = [(f"2024-01-0{day}", [split_tables_row(day)]) for day in range(1, 6)]
    split_tables.write(str(tmp_path / "t"), days)
    kept = []
    for limit in ("1GB", 1):
        folder = tmp_path / f"cache{limit}"
        options = {"splits.cache.path": str(folder), "splits.cache.maxSize": limit}
        table = arrowlog.Table(tmp_path / "t", options=options)
        for day, _ in days:  # one split at a time: those in use are not evicted
            plan = table.scan(f"day = '{day}' AND body indexquery 'word'")
            assert plan.to_arrow_dataset().count_rows() == 1
        kept.append(sum(path.is_dir() for path in folder.iterdir()))
    assert kept[0] >= 5 > kept[1]


def split_tables_row(number):
    return {"id": number, "text": f"t{number}", "body": "word", "score": 1.0}


def test_every_setting_has_a_proof():
    assert set(PROOFS) == set(SETTINGS)


@pytest.mark.parametrize("key", SETTINGS)
def test_changing_a_setting_has_its_documented_effect(key, tmp_path, monkeypatch):
    proof = PROOFS[key]
    if callable(proof):
        if key == min(each for each in PROOFS if PROOFS[each] is proof):  # once for all its keys
            proof(tmp_path, monkeypatch)
        return
    file, _, name = proof.partition("::")
    text = (TESTS / file).read_text()
    assert f"def {name}(" in text
    assert key in text


def test_partial_invalidation_drops_what_it_names(tmp_path):
    table = create(tmp_path / "t")
    append(table)
    reader = arrowlog.Table(tmp_path / "t")
    latest = reader.snapshot()
    reader.snapshot(version=0)

    def loads():
        return sum(reader.metrics()["loads"].values())

    assert loads() == 2
    reader.invalidate_cache("versions")
    assert reader.snapshot() is latest
    assert reader.snapshot(version=0).num_files == 0
    assert loads() == 3
    for part in ("protocol", "metadata", "files", "listing"):
        before = loads()
        reader.invalidate_cache(part)
        assert reader.snapshot() is not latest
        assert loads() == before + 1
    with pytest.raises(arrowlog.InvalidRequest, match="There is no cache 'everything'"):
        reader.invalidate_cache("everything")
    reader.invalidate_cache()
    before = loads()
    reader.snapshot()
    reader.snapshot(version=0)
    assert loads() == before + 2


def test_machine_settings_are_not_read_from_table_properties(tmp_path):
    table = create(tmp_path / "t")
    machine = [key for key, item in SETTINGS.items() if not item.metadata["table"]]
    assert {"checkpoint.parallelism", "transaction.cache.maxSize", "store.accelerate"} <= {*machine}
    values = {"checkpoint.parallelism": "1", "transaction.cache.maxVersions": "0"}
    table.set_properties(values)
    found = arrowlog.Table(tmp_path / "t")
    found.snapshot()
    config = found._tracker.config
    assert (config.checkpoint_parallelism, config.cache_max_versions) == (4, 1000)
    assert small_table.SCHEMA.equals(found.schema)
    assert MemoryStore.kind == ""

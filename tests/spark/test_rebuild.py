"""State rebuilt on a cluster: row for row what one process gives, checkpoints included."""

import itertools
import pickle
import warnings

import pyarrow as pa
import pytest
from support import log_model, parquet_checkpoints
from support.case_count import cases

import arrowlog
from arrowlog.decode import decoder
from arrowlog.snapshot import FileStats, to_checkpoint_rows
from arrowlog.spark import checkpoints
from arrowlog.spark.checkpoint_tasks import (
    KEY_ROWS,
    STORED_ROWS,
    TABLE_ROWS,
    CheckpointPlan,
    TableShape,
    collect_facts,
    deal_run,
    empty_rows,
    find_dead_rows,
    sample_run,
    write_dealt_part,
    write_part,
)
from arrowlog.spark.checkpoints import merge_facts
from arrowlog.spark.ranges import choose_range_bounds
from arrowlog.spark.rebuild import DistributedReplay, collect_table_actions
from arrowlog.spark.tasks import decode_run, deserialize_table, reconcile_bucket

BATCH = 10
SEEDS = cases(40)


def rows(snapshot):
    """Files as they stand, in their order."""
    return snapshot.files.to_pylist()


def by_tasks(rebuild):
    """What the tasks would do, one after the other."""
    found = pa.concat_tables(
        [pa.Table.from_batches([decode_run(run, rebuild.job)]) for run in rebuild.runs]
    )
    buckets = sorted(set(found["bucket"].to_pylist()))
    done = []
    for bucket in buckets:
        some = found.filter(pa.compute.equal(found["bucket"], bucket))
        backwards = list(reversed(range(some.num_rows)))  # a shuffle keeps no order
        done += reconcile_bucket(some.take(pa.array(backwards, pa.int64()))).to_pylist()
    return done


@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_distributed_replay_of_random_histories_equals_one_process(batch, tmp_path, monkeypatch):
    from arrowlog.spark import rebuild as module

    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=8)
        rng = history.rng
        monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", rng.choice([1, 48]))
        monkeypatch.setattr(module, "RUN_BYTES", rng.choice([1, 500, 10**6]))
        if rng.random() < 0.5:
            parquet_checkpoints.write(root, rng.randrange(7), checkpoint_maxFileSize=4000)
        table = arrowlog.Table(root)
        for version in (rng.randrange(8), 7):
            work = DistributedReplay(root, version, None, {}, rng.choice([1, 2, 5]))
            found = by_tasks(work)
            state = work.state(collect_table_actions(found))
            expected = table.snapshot(version).state
            tables = [deserialize_table(row["adds"]) for row in found if row["bucket"] >= 0]
            keys = sorted(key for each in tables for key in each["key"].to_pylist())
            assert keys == sorted(expected.adds["key"].to_pylist())
            assert state.protocol == expected.protocol
            assert state.metadata == expected.metadata
            assert state.schema == expected.schema
            assert state.timestamp == expected.timestamp
            assert dict(state.txns) == dict(expected.txns)


def by_key(snapshot):
    """Files by key, without their paths: a checkpoint has the keys in place of these."""
    files = snapshot.files.drop_columns("path").to_pylist()
    return dict(zip(snapshot.state.adds["key"].to_pylist(), map(repr, files), strict=True))


def checkpoint_by_tasks(work, state, forms, rng):
    """Do what the tasks of a checkpoint do, one after the other; shuffles keep no order."""
    job, shape = work.job, TableShape.of(state.metadata, state.version)
    samples = [sample_run(run, job, shape) for run in rng.sample(work.runs, rng.randint(1, 2))]
    cuts = choose_range_bounds([each for each in samples if each is not None], job.buckets)
    found = [pa.Table.from_batches([deal_run(run, job, shape, cuts)]) for run in work.runs]
    rng.shuffle(found)
    dealt = pa.concat_tables(found)

    def rows(kind, table=dealt):
        return table.filter(pa.compute.equal(table["kind"], kind))

    def numbered(table):
        for number in sorted(set(table["number"].to_pylist())):
            yield number, table.filter(pa.compute.equal(table["number"], number))

    reports = [pickle.loads(data) for data in rows(TABLE_ROWS)["data"].to_pylist()]
    columns, recipe = merge_facts([facts for _, facts in reports])
    plan = CheckpointPlan(columns, recipe, shape, cuts, f"{rng.randrange(2**48):012x}", forms)
    dead = [find_dead_rows(some) for _, some in numbered(rows(KEY_ROWS))]
    stored = pa.concat_tables([*dead, rows(STORED_ROWS)])
    parts = {number: write_dealt_part(some, plan, job) for number, some in numbered(stored)}
    for number in range(cuts.count):
        if number not in parts:
            parts[number] = write_part(empty_rows(plan), number, plan, job)
    config = arrowlog.config.resolve({})
    ordered = [parts[number] for number in range(cuts.count)]
    checkpoints._write_manifests(work, state, plan, ordered, config)
    return ordered


@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_random_histories_are_dealt_to_parts(batch, tmp_path, monkeypatch):
    from arrowlog.spark import rebuild as module

    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=8)
        rng = history.rng
        monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", rng.choice([1, 48]))
        monkeypatch.setattr(module, "RUN_BYTES", rng.choice([1, 500, 10**6]))
        if rng.random() < 0.5:
            parquet_checkpoints.write(root, rng.randrange(7), checkpoint_maxFileSize=4000)
        before = arrowlog.Table(root).snapshot()
        work = DistributedReplay(root, None, None, {}, rng.choice([1, 2, 5]))
        forms = rng.choice([("json",), ("parquet",), ("json", "parquet")])
        parts = checkpoint_by_tasks(work, before.state, forms, rng)
        assert sum(part["rows"] for part in parts) == before.num_files
        after = arrowlog.Table(root).snapshot()
        assert after.report.checkpoint == before.version
        assert by_key(after) == by_key(before)
        assert parquet_checkpoints.said(after) == parquet_checkpoints.said(before)


def test_dead_rows_of_shared_parts_are_not_replayed(tmp_path, monkeypatch):
    parquet_checkpoints.share_small_parts(monkeypatch)
    schema = pa.schema([("day", pa.string()), ("id", pa.int64())])
    options = {"checkpoint.enabled": False, "checkpoint.format": "parquet"}
    table = arrowlog.Table.create(tmp_path, schema, ["day"], options=options)
    table.append([arrowlog.add_file(f"f{n}", {"day": "x"}, size=n + 1) for n in range(9)])
    table.checkpoint()
    table.remove(["f1", "f4"])
    table.append([arrowlog.add_file(name, {"day": "y"}, size=77) for name in ("f5", "new")])
    table.checkpoint()
    manifest = parquet_checkpoints.manifest(tmp_path, table.version)
    assert manifest.shared_parts
    assert len(manifest.dead) == 3
    table.remove(["f7"])
    found = by_tasks(DistributedReplay(tmp_path, None, None, {}, 3))
    adds = [deserialize_table(row["adds"]) for row in found if row["bucket"] >= 0]
    rows = pa.concat_tables(adds, promote_options="default").select(["key", "size"]).to_pylist()
    sizes = {row["key"]: row["size"] for row in rows}
    assert len(rows) == len(sizes)
    assert sizes == {"f0": 1, "f2": 3, "f3": 4, "f6": 7, "f8": 9, "f5": 77, "new": 77}


def history_of(root, commits=12, seed=5):
    """Commits that add, remove and add again, with steps of applications and a column more."""
    import random

    rng = random.Random(seed)
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("name", pa.string())])
    options = {"checkpoint.enabled": False}
    table = arrowlog.Table.create(root, schema, partition_columns=["day"], options=options)
    for number in range(commits):
        adds = [
            arrowlog.add_file(
                f"d={number}/{each}.parquet",
                {"day": f"2024-01-{number + 1:02d}" if each else None},
                size=100 + each,
                num_records=each if number % 3 else None,
                min_values={"id": each, "name": "a" * each} if each % 2 else {},
                max_values={"id": each + 10, "name": "b"} if each % 2 else {},
                tags={"n": str(each)} if number % 4 == 0 else None,
            )
            for each in range(5)
        ]
        table.append(adds, txn=("app", number))
        if number % 3 == 2:
            table.remove(rng.sample(table.snapshot().files["path"].to_pylist(), 4))
    table.add_columns({"more": pa.float64()})
    return table


@pytest.mark.promise("spark.checkpoints_are_the_same")
def test_distributed_snapshot_equals_one_process(either, root):
    table = history_of(root)
    found = arrowlog.spark.snapshot(either, root, buckets=3)
    expected = table.snapshot()
    assert rows(found) == rows(expected)
    assert parquet_checkpoints.said(found) == parquet_checkpoints.said(expected)
    assert found.report.source == "cluster"
    older = arrowlog.spark.snapshot(either, root, version=5, buckets=2)
    assert rows(older) == rows(table.snapshot(5))


def test_distributed_checkpoint_is_read_by_every_reader(spark, root):
    table = history_of(root)
    before = {version: rows(table.snapshot(version)) for version in range(table.version + 1)}
    made = arrowlog.spark.checkpoint(spark, root, buckets=3)
    assert made.version == table.version
    assert made.num_files == len(before[made.version])
    assert sum(name.endswith(".parquet") for name in made.names) == 3
    again = arrowlog.Table(root)
    found = again.snapshot()
    assert found.report.checkpoint == made.version
    assert sorted(map(repr, rows(found))) == sorted(map(repr, before[made.version]))
    assert again.scan("id = 3 AND day = '2024-01-02'").num_files >= 1
    assert again.scan("id > 1000").num_files == len(
        [row for row in before[made.version] if row["max.id"] is None]
    )
    for version, expected in before.items():
        assert sorted(map(repr, rows(again.snapshot(version)))) == sorted(map(repr, expected))
    for name in made.names:  # the JSON form alone says the same
        if name.endswith(".parquet"):
            (root / "_transaction_log" / name).unlink()
    fresh = arrowlog.Table(root).snapshot()
    assert sorted(map(repr, rows(fresh))) == sorted(map(repr, before[made.version]))
    assert fresh.report.checkpoint == made.version


def test_distributed_checkpoint_on_top_of_a_checkpoint(spark, root):
    table = history_of(root, commits=4)
    arrowlog.spark.checkpoint(spark, root, buckets=2)
    again = arrowlog.spark.checkpoint(spark, root, buckets=2)
    assert again.names == ()
    table.append([arrowlog.add_file("late.parquet", {"day": None}, size=1)])
    table.remove(["d=1/3.parquet"])
    found = arrowlog.spark.snapshot(spark, root, buckets=2)
    assert found.report.checkpoint == again.version
    expected = table.snapshot()
    assert sorted(map(repr, rows(found))) == sorted(map(repr, rows(expected)))
    arrowlog.spark.checkpoint(spark, root, buckets=2)
    assert sorted(map(repr, rows(arrowlog.Table(root).snapshot()))) == sorted(
        map(repr, rows(expected))
    )


def test_texts_are_rebuilt_only_if_every_run_agrees():
    schema = pa.schema([("id", pa.int64())])
    base = {"key": pa.array(["a"]), "path": pa.array(["a"])}
    plain = pa.table({**base, "minValues.id": pa.array(["7"])})
    odd = pa.table({**base, "minValues.id": pa.array(["007"])})
    silent = pa.table({**base, "stats.minValues.id": pa.array(["7"])})
    one, two, three = (
        collect_facts(adds, *to_checkpoint_rows(FileStats(adds, schema, ()), adds))
        for adds in (plain, odd, silent)
    )
    assert "minValues.id" in merge_facts([one])[1].rebuilt
    assert "minValues.id" not in merge_facts([one, two])[1].rebuilt
    assert "minValues.id" in merge_facts([one, two])[0]
    columns, recipe = merge_facts([one, three])
    assert "min.id" not in three.typed or "minValues.id" not in recipe.rebuilt
    assert "path" in columns


def test_parts_whose_files_are_all_removed(spark, root):
    schema = pa.schema([("day", pa.int32()), ("id", pa.int64())])
    options = {"checkpoint.enabled": False}
    table = arrowlog.Table.create(root, schema, ["day"], options=options)
    names = [f"{n:03d}.parquet" for n in range(120)]
    table.append([arrowlog.add_file(n, {"day": i // 30}, size=1) for i, n in enumerate(names)])
    table.remove(names[30:60])
    table.append([arrowlog.add_file(names[40], {"day": 3}, size=2)])
    made = arrowlog.spark.checkpoint(spark, root, buckets=4)
    assert made.num_files == 91
    parquet = [name for name in made.names if name.endswith(".parquet")]
    assert len(parquet) == 4
    found = arrowlog.Table(root).snapshot()
    assert found.report.checkpoint == made.version
    assert arrowlog.spark.checkpoint(spark, root, buckets=4).names == ()  # all of it is intact
    sizes = dict(
        zip(found.files["path"].to_pylist(), found.files["size_bytes"].to_pylist(), strict=True)
    )
    assert sizes == {n: 1 for n in names if n not in names[30:60]} | {names[40]: 2}
    assert arrowlog.Table(root).scan("day = 1").num_files == 0
    assert arrowlog.Table(root).scan("day = 3").num_files == 31


def test_empty_table_and_gap(spark, root):
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    assert arrowlog.spark.snapshot(spark, root).num_files == 0
    arrowlog.spark.checkpoint(spark, root)
    assert arrowlog.Table(root).snapshot().num_files == 0
    for number in range(3):
        table.append([arrowlog.add_file(f"{number}.parquet", size=1)])
    (root / "_transaction_log" / f"{2:020d}.json").unlink()
    with pytest.warns(arrowlog.ArrowlogWarning, match="2"):
        assert arrowlog.spark.snapshot(spark, root).num_files == 1
    with (
        pytest.warns(arrowlog.ArrowlogWarning, match="2"),
        pytest.raises(arrowlog.LogCorrupt, match="2"),
    ):
        arrowlog.spark.checkpoint(spark, root)


def test_parts_are_ranges_of_the_storage_order(spark, root):
    schema = pa.schema([("day", pa.int32()), ("id", pa.int64())])
    options = {"checkpoint.enabled": False}
    table = arrowlog.Table.create(root, schema, partition_columns=["day"], options=options)
    for number in range(6):
        adds = [
            arrowlog.add_file(
                f"{number}-{each}.parquet",
                {"day": (each * 7 + number) % 12},
                size=1,
                min_values={"id": each},
                max_values={"id": each},
            )
            for each in range(100)
        ]
        table.append(adds)
    made = arrowlog.spark.checkpoint(spark, root, buckets=4)
    assert sum(name.endswith(".parquet") for name in made.names) == 4
    found = arrowlog.Table(root).snapshot()
    parts = found.state.source.rows.parts
    days = []
    for part in parts.manifest.parts:
        rows = parts.check(part)
        days.append((pa.compute.min(rows["partition.day"]), pa.compute.max(rows["partition.day"])))
        assert 75 < part.numFiles < 300
    for (_, high), (low, _) in itertools.pairwise(days):
        assert high.as_py() <= low.as_py()
    touched = arrowlog.Table(root).scan("day = 0")
    expected = [(n, e) for n in range(6) for e in range(100) if (e * 7 + n) % 12 == 0]
    assert touched.num_files == len(expected)
    assert sorted(map(repr, rows_of(found))) == sorted(map(repr, rows_of(table.snapshot())))


def rows_of(snapshot):
    return snapshot.files.select(["path", "partition.day", "min.id", "max.id"]).to_pylist()


def test_long_statistics_are_truncated_in_distributed_checkpoints(spark, root):
    options = {"checkpoint.enabled": False, "stats.truncation.enabled": False}
    schema = pa.schema([("name", pa.string()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, options=options)
    for number in range(4):
        long = {"name": "x" * 2000, "id": number}
        add = arrowlog.add_file(f"{number}", size=1, min_values=long, max_values=long)
        table.append([add])
    assert len(table.snapshot().files["min.name"][0].as_py()) == 2000
    arrowlog.spark.checkpoint(spark, root, buckets=2)
    found = arrowlog.Table(root).snapshot()
    assert found.report.checkpoint == 4
    assert found.files["min.name"].to_pylist() == [None] * 4
    assert sorted(found.files["min.id"].to_pylist()) == [0, 1, 2, 3]


def test_repeated_task_gives_the_same_bytes(root):
    history_of(root)
    work = DistributedReplay(root, None, None, {}, 3)
    assert len(work.runs) > 1
    found = pa.concat_tables([pa.Table.from_batches([decode_run(r, work.job)]) for r in work.runs])
    some = found.filter(pa.compute.equal(found["bucket"], 0))
    again = some.take(pa.array(list(reversed(range(some.num_rows))), pa.int64()))
    assert reconcile_bucket(some).equals(reconcile_bucket(again))


def test_driver_receives_parts_and_not_files(spark, root, monkeypatch):
    """What comes to the driver is of the same size however many files there are."""
    from arrowlog.spark import checkpoints as module

    heard = []
    real = module._collect

    def listening(frame):
        rows = real(frame)
        heard[-1] += sum(
            len(value) for row in rows for value in row.values() if type(value) is bytes
        )
        return rows

    monkeypatch.setattr(module, "_collect", listening)
    for name, files in (("few", 3_000), ("many", 12_000)):
        place = root / name
        table = arrowlog.Table.create(place, pa.schema([("id", pa.int64())]))
        table.append([arrowlog.add_file(f"{n}", size=n + 1) for n in range(files)])
        heard.append(0)
        assert arrowlog.spark.checkpoint(spark, place, buckets=3).num_files == files
    few, many = heard
    assert many < few * 1.2


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_existing_checkpoint_is_verified_by_tasks(form, spark, root, monkeypatch):
    from arrowlog.spark import checks

    monkeypatch.setattr(checks, "verify_checkpoint", None)  # the driver reads none of it
    table = history_of(root, commits=4)
    made = arrowlog.spark.checkpoint(spark, root, buckets=2)
    assert arrowlog.spark.checkpoint(spark, root, buckets=2).names == ()
    ends = {"json": "2.json", "parquet": "2-of-00002.parquet"}[form]
    (victim,) = [name for name in made.names if name.endswith(ends)]
    path = root / "_transaction_log" / victim
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some read it, and say that it is damaged
        told = arrowlog.spark.snapshot(spark, root, buckets=2)
        mended = arrowlog.spark.checkpoint(spark, root, buckets=2)
    assert rows(told) == rows(table.snapshot()) or form == "json"
    assert bool(told.report.warnings) == (form == "parquet")
    assert [name for name in mended.names if name.endswith("." + form)] or form == "parquet"
    assert mended.names
    found = arrowlog.Table(root).snapshot()
    assert sorted(map(repr, rows(found))) == sorted(map(repr, rows(table.snapshot())))
    assert not found.report.warnings


def test_work_is_divided_by_decompressed_size(tmp_path, monkeypatch):
    from arrowlog.spark import rebuild as module

    monkeypatch.setattr(module, "RUN_BYTES", 20_000)
    monkeypatch.setattr(module, "BUCKET_BYTES", 40_000)
    cut = {}
    for codec in ("none", "gzip"):
        options = {"transaction.compression.codec": codec, "checkpoint.enabled": False}
        place = tmp_path / codec
        table = arrowlog.Table.create(place, pa.schema([("id", pa.int64())]), options=options)
        for number in range(20):
            table.append([arrowlog.add_file(f"{number}/{n}.parquet", size=1) for n in range(60)])
        work = DistributedReplay(place, None, None, {}, None)
        cut[codec] = (work.job.buckets, len(work.runs))
        assert work.plain >= work.bytes
    (buckets, runs), (packed_buckets, packed_runs) = cut["none"], cut["gzip"]
    assert buckets > 2
    assert abs(packed_buckets - buckets) <= 1
    assert abs(packed_runs - runs) <= 2

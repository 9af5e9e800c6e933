"""Each operation alone: what it writes and what it refuses."""

import json
import os
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.faulty_store import FakeClock, FaultyStore, Log, table_on

import arrowlog
from arrowlog import add_file, testing
from arrowlog.clock import SystemClock
from arrowlog.errors import (
    CommitConflict,
    ConcurrentRemove,
    InvalidRequest,
    LogCorrupt,
    StoreUnavailable,
    TableExists,
    UnsupportedProtocol,
)
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.transaction.commit_loop import PreparedCommit
from arrowlog.transaction.version_race import ContentionBackoff
from arrowlog.transaction.write_session import WriteSession

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
OPENING = [testing.protocol(), testing.metadata(SCHEMA, ["p"])]


def file(name, part="x", **fields):
    return add_file(name, {"p": part}, size=2, modification_time=1, **fields)


@pytest.fixture
def table(root):
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    table.append([file("a"), file("b"), file("c", "y"), file("n", None)])
    return table


def live(table):
    return sorted(arrowlog.Table(table.uri).snapshot().files["path"].to_pylist())


def last(table):
    folder = Path(table.uri) / LOG_FOLDER
    paths = [path for path in folder.iterdir() if path.is_file()]
    log = Log()
    log.absorb({f"{LOG_FOLDER}/{path.name}": path.read_bytes() for path in paths})
    return log.commits[-1]


def test_commit_result_fields(table):
    result = table.append([file("d", num_records=3), file("e", num_records=4)])
    assert (result.version, result.attempts, result.operation) == (2, 1, "WRITE")
    assert not result.duplicate
    assert result.operation_metrics == {
        "numAddedFiles": 2,
        "numRemovedFiles": 0,
        "numAddedBytes": 4,
        "numOutputRows": 7,
    }
    info = last(table).info
    assert info["txnId"] == result.txn_id
    assert info["timestamp"] == result.timestamp
    assert info["operationParameters"] == {"mode": "Append"}
    assert info["engineInfo"] == f"arrowlog/{arrowlog.__version__}"
    removed = table.remove(["a", "d"])
    assert removed.operation_metrics["numRemovedBytes"] == 4


def add_with(value):
    add = {"path": "z", "partitionValues": {"p": None}, "size": 1, "modificationTime": 1}
    return {**add, "dataChange": True, "ofAnotherProgram": value}


def nested(depth):
    found = {}
    for _ in range(depth):
        found = {"in": found}
    return found


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (["a", "c"], ["b", "n"]),
        (("a",), ["b", "c", "n"]),
        ({"a"}, ["b", "c", "n"]),
        ("a", ["b", "c", "n"]),
        (pa.array(["a"]), ["b", "c", "n"]),
        (pa.chunked_array([["a"], ["b"]]), ["c", "n"]),
        (pl.Series(["a"]), ["b", "c", "n"]),
        ("p = 'x'", ["c", "n"]),
        ("p IS NULL", ["a", "b", "c"]),
        ([("p", "=", "y")], ["a", "b", "n"]),
        (pl.col("p") == "x", ["c", "n"]),
        (pc.field("p") == "x", ["c", "n"]),
    ],
    ids=str,
)
def test_remove_by_path_or_by_partition(table, what, left):
    table.remove(what)
    assert live(table) == left


def test_remove_accepts_absolute_paths_in_a_list(table):
    table.remove([f"{table.uri}/a", f"file://{table.uri}/b"])
    assert live(table) == ["c", "n"]


@pytest.mark.promise("commit.refused_leaves_no_trace")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.remove(["nothing"]), "not a live file of the table at version 1"),
        (lambda t: t.remove(["a", "a"]), "removed twice"),
        (lambda t: t.remove([]), "empty"),
        (lambda t: t.remove("p = 'nobody'"), "empty"),
        (lambda t: t.remove("id = 5"), "'id' is not a partition column"),
        (lambda t: t.remove("1 = 1"), "uses no partition column"),
        (lambda t: t.remove(["../x"]), "outside the table"),
        (lambda t: t.drop_partitions(None), "needs a predicate"),
        (lambda t: t.append([]), "empty"),
        (lambda t: t.append("a"), "is a string"),
        (lambda t: t.append([file("z")], txn=("app",)), "txn is"),
        (lambda t: t.append([file("z")], txn=("", 1)), "txn is"),
        (lambda t: t.append([file("z")], txn=("a", True)), "txn is"),
        (lambda t: t.append([file("z")], txn=("a", 2**63)), "txn is"),
        (lambda t: t.append([file("z")], user_metadata=object()), "as JSON"),
        (lambda t: t.append([file("z")], user_metadata=nested(5000)), "as JSON"),
        (lambda t: t.append([file("z")], user_metadata=nested(498)), "more than 500 levels"),
        (lambda t: t.append([add_with([nested(498)])]), "more than 500 levels"),
        (lambda t: t.append([add_with([nested(10**5)])]), "more than 500 levels"),
        (lambda t: t.append([add_with(nested(10**5))]), "nested too deeply"),
        (lambda t: t.append([file("z", null_count=nested(10**5))]), "nested too deeply"),
        (lambda t: t.append([file("z", splitTags=[nested(10**5)])]), "this list. Must be a list"),
        (lambda t: t.append([file("z", tags=object())]), "a map of text"),
        (lambda t: t.append([file("z", tags=["x"])]), "a map of text"),
        (lambda t: t.append([file("z", tags={"x": 1})]), "a map of text"),
        (lambda t: t.append([file("z", splitTags="x")]), "a list of text"),
        (lambda t: t.append([file("z", stats={"numRecords": 1})]), "Must be text"),
        (lambda t: t.append(None), "adds is None"),
        (lambda t: t.append(pa.table({"id": [1]})), r"`table.write\(data\)`"),
        (lambda t: t.overwrite(pd.DataFrame({"id": [1]})), "DataFrame has rows"),
        (lambda t: t.append([{"add": "x"}]), "is a string"),
        (lambda t: t.set_properties(["owner"]), "a list"),
        (lambda t: t.set_properties({"checkpoint.interval": "often"}), "cannot be 'often'"),
        (lambda t: t.add_columns({"x": "nonsense"}), "columns are invalid"),
        (lambda t: t.add_columns([("x",)]), "columns are invalid"),
        (lambda t: t.add_columns("{nope"), "columns are invalid"),
        (lambda t: t.add_columns("[]"), "columns are invalid"),
        (lambda t: t.upgrade_protocol(2.5), "reader cannot be 2.5"),
        (lambda t: t.upgrade_protocol("3"), "reader cannot be"),
        (lambda t: t.upgrade_protocol(3, 3, reader_features="abc"), "Allowed: a list of names"),
        (lambda t: t.restore("1"), "not a version"),
        (lambda t: t.restore(None), "not a version"),
        (lambda t: t.commit([file("z")], operation=" "), "operation is ' '"),
        (lambda t: t.commit([file("z")], operation=None), "operation is None"),
        (lambda t: t.overwrite([file("z", "y")], "p = 'x'"), "does not belong to the partitions"),
        (lambda t: t.overwrite([file("z")], read_version=9), "no version 9"),
        (lambda t: t.overwrite([file("z")], read_version=True), "not a version"),
        (lambda t: t.set_properties({}), "no properties"),
        (lambda t: t.set_properties({"": "x"}), "not a valid property name"),
        (lambda t: t.set_properties({"x": "\ud800"}), "unpaired surrogate"),
        (
            lambda t: t.set_properties({"spark.indextables.checkpoint.interval": "often"}),
            "cannot be 'often'",
        ),
        (lambda t: t.add_columns({}), "no columns"),
        (lambda t: t.add_columns({"P": pa.int64()}), "Spark does not distinguish"),
        (lambda t: t.add_columns({"id": pa.int64()}), "twice"),
        (lambda t: t.add_columns(pa.field("z", pa.int64(), nullable=False)), "is not nullable"),
        (lambda t: t.add_columns(5), "is not a schema"),
        (lambda t: t.upgrade_protocol(1), "cannot become 1"),
        (lambda t: t.upgrade_protocol(2, 2), "already has that protocol"),
        (lambda t: t.restore(1), "the same as version 1"),
        (lambda t: t.restore(5), "no version 5"),
    ],
)
def test_refused_operation_writes_nothing(table, call, said):
    with pytest.raises(InvalidRequest, match=said):
        call(table)
    assert sorted(os.listdir(f"{table.uri}/{LOG_FOLDER}")) == [commit_name(0), commit_name(1)]


@pytest.mark.parametrize(
    "metadata", [nested(497), ["[{" * 300] * 2, [{}] * 600, ['"[', "\\"] * 300]
)
def test_deep_or_bracketed_user_metadata_is_read_back(table, metadata):
    table.append([file("z")], user_metadata=metadata)
    found = arrowlog.Table(table.uri).history()["user_metadata"].to_pylist()[0]
    assert json.loads(found) == metadata


def test_overwrite(table):
    table.overwrite([file("a"), file("new")])
    assert last(table).removes == ["b", "c", "n"]
    assert live(table) == ["a", "new"]
    table.overwrite([file("other", "y")], "p = 'y'")
    assert live(table) == ["a", "new", "other"]
    table.overwrite([], "p = 'y'", read_version=3)
    assert live(table) == ["a", "new"]
    table.overwrite([file("last")], read_version=4)
    assert live(table) == ["last"]


def test_overwrite_with_read_version_conflicts_with_later_commits(table):
    arrowlog.Table(table.uri).append([file("unseen", "y")])
    with pytest.raises(CommitConflict):
        table.overwrite([file("new")], read_version=1)
    assert table.overwrite([file("new")], "p = 'x'", read_version=1).version == 3
    assert live(table) == ["c", "n", "new", "unseen"]


def test_drop_partitions(table):
    result = table.drop_partitions("p = 'x' OR p IS NULL")
    assert result.operation == "DROP PARTITIONS"
    assert live(table) == ["c"]
    arrowlog.Table(table.uri).append([file("late", "z")])
    with pytest.raises(arrowlog.ConcurrentAppend, match="'late' was added concurrently"):
        table.drop_partitions("p = 'z'")  # nothing was read, so the read set is empty
    table.drop_partitions("p = 'z'")  # after a conflict the table is read again
    assert live(table) == ["c"]


def test_unparsable_partition_values_are_not_guessed(root):
    schema = pa.schema([("p", pa.int64()), ("id", pa.int64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, ["p"])])
    testing.write_commit(
        root, 1, [testing.add("odd", {"p": "Monday"}), testing.add("good", {"p": "1"})]
    )
    table = arrowlog.Table(root)
    with pytest.raises(InvalidRequest, match="'odd' has a partition value that is not of its"):
        table.remove("p = 1")
    table.remove(["odd"])
    assert live(table) == ["good"]


def test_commit_with_all_arguments(table):
    result = table.commit(
        [file("ab")],
        "a",
        operation="OPTIMIZE",
        data_change=False,
        txn=["app", 3],
        user_metadata={"why": ["because"]},
        parameters={"target": 5},
    )
    commit = last(table)
    assert commit.adds["ab"]["dataChange"] is False
    assert commit.removes == ["a"]
    assert commit.info["operation"] == "OPTIMIZE"
    assert commit.info["operationParameters"] == {"target": 5}
    assert commit.info["userMetadata"] == {"why": ["because"]}
    assert commit.info["txn"] == {"appId": "app", "version": 3}
    again = table.commit([file("zz")], txn=("app", 2))
    assert (again.duplicate, again.version) == (True, result.version)


def test_commit_conflicts_with_files_added_to_its_read_set(table):
    table.snapshot()
    arrowlog.Table(table.uri).append([file("unseen", "y")])
    with pytest.raises(CommitConflict):
        table.commit([file("z")], where="p = 'y'", read_version=1)
    table.commit([file("z")], where="p = 'x'", read_version=1)
    with pytest.raises(CommitConflict):
        table.commit([file("w")], ["a"], operation="OVERWRITE", read_version=1)


def test_remove_distinguishes_concurrently_removed_from_unknown_files(table):
    table.snapshot()
    arrowlog.Table(table.uri).remove(["a"])
    for _ in range(2):  # the second time after the conflict was raised
        with pytest.raises(ConcurrentRemove):
            table.remove(["a"])
    with pytest.raises(InvalidRequest):
        table.remove(["a"])


def test_properties_and_columns(table):
    table.set_properties({"a": 1, "b": True, "c": "x"})
    table.set_properties({"a": None, "c": "y"})
    assert arrowlog.Table(table.uri).snapshot().metadata.configuration == {"b": "true", "c": "y"}
    table.add_columns(pa.field("one", pa.int64()))
    table.add_columns([pa.field("two", pa.string())])
    table.add_columns(pa.schema([("three", pa.date32())]))
    table.add_columns(json.loads('{"type":"struct","fields":[{"name":"four","type":"long"}]}'))
    assert arrowlog.Table(table.uri).snapshot().schema.names == [
        *SCHEMA.names,
        "one",
        "two",
        "three",
        "four",
    ]
    table.append([file("new", min_values={"one": 1})])
    assert live(table)[-1] == "new"


def test_protocol_is_never_lowered(table):
    table.upgrade_protocol(3, 3, reader_features=["parquetCheckpoint"])
    found = arrowlog.Table(table.uri).snapshot().protocol
    assert (found.min_reader_version, found.reader_features) == (3, ("parquetCheckpoint",))
    with pytest.raises(UnsupportedProtocol, match="up to 4, not 5"):
        table.upgrade_protocol(writer=5)
    with pytest.raises(UnsupportedProtocol, match="'timeMachine'"):
        table.upgrade_protocol(writer_features=["timeMachine"])
    table.append([file("d")])


@pytest.mark.parametrize("fields", [{"writer": 9}, {"writerFeatures": ["timeMachine"]}])
def test_newer_writer_protocol_refuses_writes(table, fields):
    testing.write_commit(table.uri, 2, [testing.protocol(**{"reader": 2, **fields})])
    with pytest.raises(UnsupportedProtocol, match="the table needs writer version"):
        table.append([file("d")])
    with pytest.raises(UnsupportedProtocol):
        arrowlog.Table(table.uri).append([file("d")])
    assert not os.path.exists(f"{table.uri}/{LOG_FOLDER}/{commit_name(3)}")


def test_restore(table):
    table.set_properties({"a": "1"})
    table.overwrite([file("new"), file("a", min_values={"id": 5})])
    table.add_columns({"more": pa.int64()})
    result = table.restore(1)
    assert result.operation == "RESTORE"
    assert result.operation_metrics["numRemovedFiles"] == 1
    snapshot = arrowlog.Table(table.uri).snapshot()
    assert live(table) == ["a", "b", "c", "n"]
    assert (snapshot.metadata.configuration, snapshot.schema.names) == ({}, SCHEMA.names)
    table.restore(0)
    assert live(table) == []
    table.restore(5)
    assert live(table) == ["a", "b", "c", "n"]


def test_restore_brings_back_every_field_and_no_lower_protocol(table):
    table.append([file("full", min_values={"id": 1}, tags={"k": "v"}, null_count={"id": 2})])
    before = {f["path"]: f for f in table.snapshot().files.to_pylist()}
    table.upgrade_protocol(3, 3)
    table.remove(["full"])
    table.restore(2)
    snapshot = arrowlog.Table(table.uri).snapshot()
    assert {f["path"]: f for f in snapshot.files.to_pylist()} == before
    assert snapshot.protocol.min_reader_version == 3


def test_restore_of_deleted_data_files_is_refused(root):
    table = arrowlog.Table.create(root, SCHEMA, ["p"])
    table.write(pa.table({"p": ["x", "y"], "id": [1, 2]}))
    gone = table.snapshot().files["path"].to_pylist()[0]
    table.remove([gone])
    os.unlink(root / gone)
    with pytest.raises(InvalidRequest, match="is no longer in"):
        table.restore(1)


def test_create(root):
    spark = json.dumps(
        {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True}]}
    )

    class StructType:
        fields = ()

        def json(self):
            return spark

    class Foreign:
        def __arrow_c_schema__(self):
            return pa.schema([("a", pa.int64())]).__arrow_c_schema__()

    for number, schema in enumerate([spark, json.loads(spark), StructType(), Foreign()]):
        made = arrowlog.Table.create(root / f"{number}", schema, name="n", description="d")
        assert made.snapshot().schema.names == ["a"]
        assert (made.snapshot().metadata.name, made.snapshot().metadata.description) == ("n", "d")
    with pytest.raises(TableExists):
        arrowlog.Table.create(root / "0", SCHEMA)
    opened = arrowlog.Table.create(root / "0", SCHEMA, exist_ok=True)
    assert opened.snapshot().schema.names == ["a"]


@pytest.mark.parametrize(
    ("schema", "how", "said"),
    [
        (5, {}, "is not a schema"),
        ("{", {}, "cannot be used"),
        (pa.schema([]), {}, "no columns"),
        (pa.schema([("a", pa.int64()), ("A", pa.int64())]), {}, "Spark does not distinguish"),
        (pa.schema([("a", pa.month_day_nano_interval())]), {}, "cannot be used"),
        (SCHEMA, {"partition_columns": "p"}, r"Pass a list: \['p'\]"),
        (SCHEMA, {"partition_columns": ["z"]}, "not in the schema"),
        (SCHEMA, {"partition_columns": ["p", "p"]}, "twice"),
        (SCHEMA, {"partition_columns": ["p", "id"]}, "Every column"),
        (
            pa.schema([("b", pa.binary()), ("i", pa.int64())]),
            {"partition_columns": ["b"]},
            "binary",
        ),
    ],
)
def test_invalid_create_arguments_are_refused(root, schema, how, said):
    with pytest.raises(InvalidRequest, match=said):
        arrowlog.Table.create(root, schema, **how)
    assert not root.exists()


def parquet(table, path, rows, **how):
    os.makedirs(os.path.dirname(f"{table.uri}/{path}"), exist_ok=True)
    pq.write_table(rows, f"{table.uri}/{path}", **how)


def test_add_parquet_reads_the_footer(table):
    rows = pa.table({"id": pa.array([4, None, 9], pa.int64())})
    parquet(table, "p=a%2Fb/f.parquet", rows, row_group_size=1)
    add = arrowlog.add_parquet(table, "p=a%2Fb/f.parquet", tags={"k": "v"})
    table.append([add])
    found = next(f for f in table.snapshot().files.to_pylist() if f["path"].endswith("f.parquet"))
    assert (found["partition.p"], found["num_records"]) == ("a/b", 3)
    assert (found["min.id"], found["max.id"], found["null_count.id"]) == (4, 9, 1)
    assert found["size_bytes"] == os.path.getsize(f"{table.uri}/p=a%2Fb/f.parquet")
    parquet(table, "p=__HIVE_DEFAULT_PARTITION__/g", rows)
    assert arrowlog.add_parquet(table, "p=__HIVE_DEFAULT_PARTITION__/g").partition_values == {
        "p": None
    }
    given = arrowlog.add_parquet(table, f"{table.uri}/p=a%2Fb/f.parquet", {"p": "other"})
    assert (given.path, given.partition_values) == ("p=a%2Fb/f.parquet", {"p": "other"})


def test_add_parquet_refuses_invalid_files(table):
    with pytest.raises(InvalidRequest, match="There is no file"):
        arrowlog.add_parquet(table, "missing.parquet")
    with open(f"{table.uri}/torn.parquet", "wb") as out:
        out.write(b"PAR1 and no more")
    with pytest.raises(InvalidRequest, match="not a readable Parquet file"):
        arrowlog.add_parquet(table, "torn.parquet")
    with pytest.raises(InvalidRequest, match="outside"):
        arrowlog.add_parquet(table, "/etc/passwd")


def test_commit_that_always_loses_the_race_times_out():
    store = FaultyStore()
    store.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(OPENING)
    clock = FakeClock("a")
    table = table_on(store, clock, {"commit.timeoutSeconds": 5})

    def rival():
        clock.sleep(1)
        version = len(store.objects)
        store.objects[f"{LOG_FOLDER}/{commit_name(version)}"] = testing.lines(
            [testing.add(f"{version}")]
        )

    store.window = [rival] * 50
    with pytest.raises(CommitConflict, match=r"lost \d races?"):
        table.append([file("a")])
    assert len(store.objects) < 10
    store.heal()
    assert table.append([file("a")]).version == len(store.objects) - 1


def test_deleted_winning_commits_are_a_conflict():
    store = FaultyStore()
    for version in range(4):
        actions = OPENING if version == 0 else [testing.add(f"{version}", {"p": "x"})]
        store.objects[f"{LOG_FOLDER}/{commit_name(version)}"] = testing.lines(actions)
    table = table_on(store, FakeClock("a"))
    table.snapshot()
    base = table.snapshot(1)
    del store.objects[f"{LOG_FOLDER}/{commit_name(2)}"]
    with pytest.raises(CommitConflict, match="were cleaned up"):
        table._session.change(lambda _: PreparedCommit("X", [b"{}\n"]), base)


def test_damaged_winning_commit_raises():
    for damage, said in [
        (b'{"metaData":{"id":"x","schemaString":"{","partitionColumns":[]}}\n', "schemaString"),
        (b"{\n", "line 1"),
    ]:
        store = FaultyStore()
        store.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(OPENING)
        table = table_on(store, FakeClock("a"))
        table.snapshot()
        store.objects[f"{LOG_FOLDER}/{commit_name(1)}"] = damage
        with pytest.raises(LogCorrupt, match=said):
            table.append([file("a")])
        assert len(store.objects) == 2


def test_contention_increases_the_backoff():
    clock = FakeClock("a")
    backoff = ContentionBackoff()
    assert backoff.wait(clock) == 0
    backoff.record_put(1.0)
    backoff.record_put(2.0)
    assert backoff.put_seconds == pytest.approx(1.2)
    backoff.record_commit(100, clock.seconds())
    assert backoff.wait(clock) == 0.5
    backoff.crowd = 0
    assert backoff.wait(clock) == 0
    clock.sleep(6)
    backoff.crowd = 100
    assert backoff.wait(clock) == 0


def test_writer_that_never_loses_pauses_after_many_commits_in_a_row():
    clock = FakeClock("a")
    waits = []
    backoff = ContentionBackoff()
    for _ in range(70):
        waits.append(backoff.wait(clock))
        clock.sleep(waits[-1] + 1.0)
        backoff.record_put(1.0)
        backoff.record_commit(0, clock.seconds())
    assert waits == [0.5 if number in (32, 64) else 0 for number in range(70)]
    backoff.streak = 32
    assert backoff.wait(clock, network=False) == 0
    clock.sleep(1.5)  # longer than a put: others had their chance
    assert [backoff.wait(clock) for _ in range(40)] == [0] * 40


class Sleeper(FakeClock):
    """A clock that records for how long its owner slept."""

    def sleep(self, seconds):
        self.slept = [*getattr(self, "slept", []), seconds]
        super().sleep(seconds)


class TimedStore(FaultyStore):
    """A store whose puts take 20 ms."""

    def put_if_absent(self, key, data):
        self.elapsed[0] += 0.02
        return super().put_if_absent(key, data)


@pytest.mark.parametrize("cheap", [True, False])
def test_appends_in_a_row_pause_for_other_writers_over_a_network_only(cheap):
    clock = Sleeper("a")
    store = TimedStore(cheap_stat=cheap)
    store.elapsed = clock.elapsed
    store.objects[f"{LOG_FOLDER}/{commit_name(0)}"] = testing.lines(OPENING)
    table = table_on(store, clock, {"checkpoint.enabled": False})
    for number in range(40):
        table.append([file(f"f{number}")])
    assert clock.__dict__.get("slept", []) == ([] if cheap else [pytest.approx(0.01)])


def test_system_clock():
    clock = SystemClock()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.seconds() <= clock.seconds()
    clock.sleep(0)
    assert 0 <= clock.uniform() <= 1
    assert clock.new_id() != clock.new_id()


def test_handle_keeps_only_its_last_own_commits(table, monkeypatch):
    monkeypatch.setattr("arrowlog.transaction.write_session._OWN_COMMITS_MAX", 2)
    for number in range(4):
        table.append([file(f"f{number}")])
    assert list(table._session.own_commits._versions.values()) == [4, 5]


def test_file_system_failure_raises_a_typed_error(table):
    session = WriteSession(table._tracker)
    folder = f"{table.uri}/{LOG_FOLDER}"
    session.base_snapshot()
    os.rename(folder, f"{folder}.away")
    with open(folder, "w") as out:
        out.write("no folder")
    with pytest.raises((StoreUnavailable, arrowlog.errors.TableNotFound)):
        table.append([file("d")])

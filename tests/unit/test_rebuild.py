"""`arrowlog.rebuild`: a new log from the Parquet files in a folder."""

import datetime as dt
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog.errors import (
    DataFileError,
    InvalidRequest,
    LogCorrupt,
    StoreUnavailable,
    TableExists,
    TableNotFound,
)
from arrowlog.recovery import folder_contents
from arrowlog.recovery.folder_contents import to_table_type

LOG = "_transaction_log"
NEW_YEAR = dt.datetime(2024, 1, 1)  # noqa: DTZ001 -- columns without a zone


def put(root, path, columns, **how):
    """Write a Parquet file."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), file, **how)


def rows(root, *order):
    return arrowlog.Table(root).scan().to_polars().collect().sort(*order).to_dicts()


def refused(root, code, **how):
    """Return the problem with this code of a dry run. A real run writes nothing."""
    problems = {
        problem.code: problem for problem in arrowlog.rebuild(root, dry_run=True, **how).problems
    }
    with pytest.raises((DataFileError, InvalidRequest, TableExists)):
        arrowlog.rebuild(root, **how)
    assert not (root / LOG).exists()
    return problems[code]


def test_rebuild_of_a_plain_folder(tmp_path):
    put(tmp_path, "b.parquet", {"id": [3], "name": ["c"]})
    put(tmp_path, "a.parquet", {"id": [1, 2], "name": ["a", None]})
    result = arrowlog.rebuild(tmp_path)
    assert (result.version, result.num_files, result.num_records) == (0, 2, 3)
    assert result.files["path"].to_pylist() == ["a.parquet", "b.parquet"]
    assert result.size_bytes == arrowlog.Table(tmp_path).snapshot().size_bytes > 0
    assert rows(tmp_path, "id") == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 3, "name": "c"},
    ]
    files = arrowlog.Table(tmp_path).snapshot().files
    assert files["min.id"].to_pylist() == [1, 3]
    assert files["null_count.name"].to_pylist() == [1, 0]
    assert arrowlog.Table(tmp_path).scan("id = 3").paths == ["b.parquet"]
    table = arrowlog.Table(tmp_path)
    table.write(pa.table({"id": [4], "name": ["d"]}))
    assert table.version == 1
    assert not table.vacuum(dry_run=True).num_files


def test_dry_run_writes_nothing_and_reports_all(tmp_path):
    put(tmp_path, "day=1/a.parquet", {"id": [1, 2]})
    (tmp_path / "README.md").write_text("about")
    result = arrowlog.rebuild(tmp_path, dry_run=True)
    assert (result.status, result.version, result.dry_run) == ("would be rebuilt", None, True)
    assert (result.num_files, result.num_records, result.partition_columns) == (1, 2, ("day",))
    assert result.schema == pa.schema([("id", pa.int64()), ("day", pa.int64())])
    assert result.left_out.to_pylist() == [
        {"path": "README.md", "size_bytes": 5, "reason": "not Parquet"}
    ]
    text = str(result)
    for part in (
        "1 files, 2 rows",
        "day: int64 (partition)",
        "not Parquet: README.md",
        "come back",
    ):
        assert part in text
    assert "README.md" in result._repr_html_()
    row = result.to_arrow().to_pylist()[0]
    assert json.loads(row["schema"])["fields"][1]["name"] == "day"
    assert row["left_out"][0]["path"] == "README.md"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "day=1"]


def test_rebuild_never_replaces_a_log(table):
    before = (table / LOG / f"{1:020d}.json").read_bytes()
    for damage in (False, True):
        if damage:
            (table / LOG / f"{0:020d}.json").write_bytes(b"{")
        for dry_run in (False, True):
            with pytest.raises(TableExists, match=r"never replaces.*doctor"):
                arrowlog.rebuild(table, dry_run=dry_run)
    assert (table / LOG / f"{1:020d}.json").read_bytes() == before


def test_remains_of_a_log_raise_with_their_names(tmp_path):
    put(tmp_path, "a.parquet", {"id": [1]})
    (tmp_path / LOG).mkdir()
    (tmp_path / LOG / "_last_checkpoint").write_text('{"version":3}')
    with pytest.raises(LogCorrupt, match=r"rename _transaction_log to _transaction_log_old"):
        arrowlog.rebuild(tmp_path)
    (tmp_path / LOG).rename(tmp_path / f"{LOG}_old")
    assert arrowlog.rebuild(tmp_path, ignore_logs=True).num_records == 1


def test_empty_or_missing_folder_raises_table_not_found(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(TableNotFound, match=r"no Parquet files.*1 not Parquet.*Check the address"):
        arrowlog.rebuild(tmp_path)
    with pytest.raises(TableNotFound):
        arrowlog.rebuild(tmp_path / "nowhere", dry_run=True)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("_transaction_log_old", "arrowlog.repair"),
        ("_transaction_log_repaired", "arrowlog.repair"),
        ("_delta_log", "arrowlog.convert"),
        ("backup", "the program"),
        (".hoodie", "the program"),
    ],
)
def test_other_logs_prevent_a_rebuild(tmp_path, name, advice):
    put(tmp_path, "a.parquet", {"id": [1]})
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{0:020d}.json").write_text("{}")
    put(tmp_path, f"{name}/{1:020d}.checkpoint.parquet", {"id": [1]})
    problem = refused(tmp_path, "other-logs")
    assert f"{name}/" in problem.what
    assert "come back" in problem.what
    assert advice in problem.next
    result = arrowlog.rebuild(tmp_path, ignore_logs=True)
    assert (result.num_files, result.ignored_logs) == (1, (name,))


def test_renamed_log_can_be_repaired_as_advised(tmp_path):
    table = arrowlog.Table.create(tmp_path, pa.schema([("id", pa.int64())]))
    table.write(pa.table({"id": [1]}))
    table.remove(table.snapshot().files["path"])
    table.write(pa.table({"id": [2]}))
    (tmp_path / LOG).rename(tmp_path / f"{LOG}_old")
    advice = refused(tmp_path, "other-logs").next
    call = advice.removeprefix("Use ").partition(", or rebuild")[0]
    eval(call, {"arrowlog": arrowlog})
    assert rows(tmp_path, "id") == [{"id": 2}]  # a rebuild would restore row 1


def test_hidden_and_other_files_are_ignored(tmp_path):
    put(tmp_path, "a.parquet", {"id": [1]})
    put(tmp_path, "UPPER.PARQUET", {"id": [2]})
    put(tmp_path, "c.parq", {"id": [3]})
    hidden = ["_metadata", ".a.parquet", "_x/a.parquet", ".x/a.parquet", "d/_y/a.parquet"]
    temporary = ["_temporary/0/a.parquet", "a.parquet.tmp", f".b.{'0' * 32}.tmp"]
    nested = ["t/_transaction_log/0.json", "t/day=1/a.parquet", "u/v/_delta_log/0.json"]
    nested += ["u/v/a.parquet", "ice/metadata/v1.metadata.json", "ice/data/a.parquet"]
    other = ["data.csv", "index.split"]
    for name in hidden + temporary + nested + other:
        put(tmp_path, name, {"other": ["x"]})
    result = arrowlog.rebuild(tmp_path)
    assert result.files["path"].to_pylist() == ["UPPER.PARQUET", "a.parquet", "c.parq"]
    reasons = {row["path"]: row["reason"] for row in result.left_out.to_pylist()}
    expected = dict.fromkeys(hidden, "hidden") | dict.fromkeys(temporary, "temporary")
    assert reasons == expected | dict.fromkeys(nested, "nested table") | dict.fromkeys(
        other, "not Parquet"
    )
    assert rows(tmp_path, "id") == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_partition_folders(tmp_path):
    put(tmp_path, "data/y=2024/_d=2024-02-29/c=01/k=a%2Fb%20%C3%BC/a.parquet", {"id": [1]})
    put(tmp_path, "data/y=-5/_d=2024-01-01/c=2/k=50%/a.parquet", {"id": [2]})
    null = folder_contents.HIVE_NULL
    put(tmp_path, f"data/y={null}/_d={null}/c={null}/k=/a.parquet", {"id": [3]})
    result = arrowlog.rebuild(tmp_path)
    assert result.partition_columns == ("y", "_d", "c", "k")
    assert [item.type for item in result.schema] == [
        pa.int64(),
        pa.int64(),
        pa.date32(),
        pa.string(),
        pa.string(),
    ]
    assert rows(tmp_path, "id") == [
        {"id": 1, "y": 2024, "_d": dt.date(2024, 2, 29), "c": "01", "k": "a/b ü"},
        {"id": 2, "y": -5, "_d": dt.date(2024, 1, 1), "c": "2", "k": "50%"},
        {"id": 3, "y": None, "_d": None, "c": None, "k": ""},
    ]
    assert not arrowlog.Table(tmp_path).vacuum("0s", force=True, dry_run=True).num_files


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "2"], pa.int64()),
        (["0", "-1", None], pa.int64()),
        (["-0"], pa.string()),
        (["1", "+2"], pa.string()),
        (["9223372036854775807"], pa.int64()),
        (["9223372036854775808"], pa.string()),
        (["1", "2024-01-01"], pa.string()),
        (["2024-02-30"], pa.string()),
        (["2024-1-1"], pa.string()),
        (["20240101"], pa.int64()),
        (["1.5"], pa.string()),
        (["", "1"], pa.string()),
        ([None], pa.string()),
        (["１"], pa.string()),  # noqa: RUF001 -- a digit, but not one of ASCII
    ],
)
def test_inferred_partition_types(texts, kind):
    assert folder_contents.infer_partition_type(texts) == kind


def test_inconsistent_partition_folders_are_refused(tmp_path):
    put(tmp_path, "day=1/a.parquet", {"id": [1]})
    put(tmp_path, "day=2/a.parquet", {"id": [2]})
    put(tmp_path, "stray.parquet", {"id": [3]})
    problem = refused(tmp_path, "partition-layout")
    assert "1 file of 3 are not in folders day=…: stray.parquet" in problem.what
    assert problem.files.to_pylist() == ["stray.parquet"]
    with pytest.raises(InvalidRequest, match="not in folders hour=…"):
        arrowlog.rebuild(tmp_path, partition_columns=["hour"])
    with pytest.raises(InvalidRequest, match="is the string"):
        arrowlog.rebuild(tmp_path, partition_columns="day")
    result = arrowlog.rebuild(tmp_path, partition_columns=[])
    assert (result.num_records, result.schema.names) == (3, ["id"])


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("k=%FF", "not percent-encoded UTF-8"),
        ("k=1/k=2", "twice"),
        (f"k={'v' * 118}~01234567", "was cut"),
    ],
)
def test_unparsable_partition_folders_are_refused(tmp_path, folder, reason):
    put(tmp_path, "k=1/a.parquet", {"id": [1]})
    put(tmp_path, "k=2/a.parquet", {"id": [1]})
    put(tmp_path, f"{folder}/a.parquet", {"id": [2]})
    problem = refused(tmp_path, "partition-unknown")
    assert reason in problem.what
    assert problem.files.to_pylist() == [f"{folder}/a.parquet"]


def test_truncated_partition_values_are_not_guessed(tmp_path):
    schema = pa.schema([("k", pa.string()), ("id", pa.int64())])
    arrowlog.Table.create(tmp_path, schema, ["k"]).write(pa.table({"k": ["x" * 300], "id": [1]}))
    shutil.rmtree(tmp_path / LOG)
    assert "was cut" in refused(tmp_path, "partition-unknown").what


def test_column_in_both_the_path_and_the_file(tmp_path):
    put(tmp_path, "day=2024-01-01/k=7/a.parquet", {"day": ["other"], "id": [1], "k": ["7"]})
    put(tmp_path, "day=2024-01-02/k=8/a.parquet", {"day": [5], "id": [2], "k": ["8"]})
    result = arrowlog.rebuild(tmp_path)
    assert result.schema == pa.schema(
        [("day", pa.date32()), ("id", pa.int64()), ("k", pa.string())]
    )
    assert any("'day' is in paths and in files" in note for note in result.notes)
    assert rows(tmp_path, "id") == [
        {"day": dt.date(2024, 1, 1), "id": 1, "k": "7"},
        {"day": dt.date(2024, 1, 2), "id": 2, "k": "8"},
    ]


def test_columns_are_added_and_numbers_widened(tmp_path):
    first = {"n": pa.array([1], pa.int16()), "f": pa.array([0.1], pa.float32()), "x": pa.nulls(1)}
    put(tmp_path, "a.parquet", first)
    second = {"later": ["z"], "f": [0.1], "x": ["x"], "n": pa.array([2**40], pa.int64())}
    put(tmp_path, "b.parquet", second)
    put(tmp_path, "c.parquet", {"n": pa.array([3], pa.uint32())})
    result = arrowlog.rebuild(tmp_path)
    assert result.schema == pa.schema(
        [("n", pa.int64()), ("f", pa.float64()), ("x", pa.string()), ("later", pa.string())]
    )
    single = pa.scalar(0.1, pa.float32()).as_py()
    expected = [
        {"n": 1, "f": single, "x": None, "later": None},
        {"n": 3, "f": None, "x": None, "later": None},
        {"n": 2**40, "f": 0.1, "x": "x", "later": "z"},
    ]
    assert rows(tmp_path, "n") == expected
    table = arrowlog.Table(tmp_path)
    for row in expected:
        assert table.scan(f"n = {row['n']}").to_polars().collect().to_dicts() == [row]
    assert table.scan(f"f = {single!r}").to_polars().collect()["n"].to_list() == [1]
    connection = duckdb.connect()  # relations of DuckDB 1 do not keep it
    assert table.scan("n > 5").to_duckdb(connection).fetchall() == [(2**40, 0.1, "x", "z")]


def test_required_columns_stay_required(tmp_path):
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    put(tmp_path, "a.parquet", pa.table({"id": [1], "n": [1]}, schema=required))
    assert [item.nullable for item in arrowlog.rebuild(tmp_path, dry_run=True).schema] == [
        False,
        True,
    ]
    put(tmp_path, "b.parquet", {"n": [2]})
    assert all(item.nullable for item in arrowlog.rebuild(tmp_path).schema)


def test_conflicting_files_are_named_and_counted(tmp_path):
    for number in range(5):
        put(tmp_path, f"a{number}.parquet", {"id": [number], "at": [NEW_YEAR]})
    put(tmp_path, "b.parquet", {"id": ["x"], "at": [NEW_YEAR]})
    put(tmp_path, "c.parquet", {"id": [1], "at": [dt.date(2024, 1, 1)]})
    put(tmp_path, "d.parquet", {"ID": [1]})
    result = arrowlog.rebuild(tmp_path, dry_run=True)
    assert [problem.code for problem in result.problems] == ["schema-conflict"] * 3
    texts = [problem.what for problem in result.problems]
    assert "'id': id in 7 files (a0.parquet, a1.parquet, a2.parquet and 4 more)" in texts[0]
    assert "ID in 1 file (d.parquet)" in texts[0]
    assert "string in 1 file (b.parquet)" in texts[1]
    assert "date32[day] in 1 file (c.parquet)" in texts[2]
    assert [problem.files.to_pylist() for problem in result.problems] == [
        ["d.parquet"],
        ["b.parquet"],
        ["c.parquet"],
    ]
    with pytest.raises(DataFileError, match=r"disagree.*There are 2 more problems") as raised:
        arrowlog.rebuild(tmp_path)
    assert raised.value.path == "d.parquet"
    assert not (tmp_path / LOG).exists()


@pytest.mark.parametrize(
    "kinds",
    [
        (pa.int64(), pa.float64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.bool_(), pa.int8()),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
    ],
)
def test_other_types_are_not_widened(tmp_path, kinds):
    for number, kind in enumerate(kinds):
        put(tmp_path, f"{number}.parquet", {"x": pa.nulls(1, kind)})
    assert str(kinds[1]) in refused(tmp_path, "schema-conflict").what


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.binary(4), pa.duration("us")])
def test_unsupported_types_are_refused(tmp_path, kind):
    put(tmp_path, "a.parquet", {"id": [1], "x": pa.nulls(1, kind)})
    problem = refused(tmp_path, "unsupported")
    assert "'x'" in problem.what
    assert problem.files.to_pylist() == ["a.parquet"]
    refused(tmp_path, "unsupported", skip_damaged=True)  # it is not damaged
    assert arrowlog.rebuild(tmp_path, schema=pa.schema([("id", pa.int64())])).notes == (
        "'x' is in 1 file, but not in the schema, and is not read",
    )
    assert rows(tmp_path, "id") == [{"id": 1}]


def test_types_of_other_writers():
    nested = pa.struct([("u", pa.uint8()), ("s", pa.large_list(pa.large_string()))])
    assert to_table_type(nested, "x") == pa.struct(
        [("u", pa.int16()), ("s", pa.list_(pa.string()))]
    )
    assert to_table_type(pa.dictionary(pa.int8(), pa.string()), "x") == pa.string()
    with pytest.raises(ValueError, match=r"'x\.t' has type time32"):
        to_table_type(pa.struct([("t", pa.time32("s"))]), "x")


def test_values_are_checked_where_types_are_ambiguous(tmp_path):
    put(tmp_path, "a.parquet", {"u": pa.array([1, 2**63 - 1], pa.uint64())}, write_statistics=False)
    moments = pa.array([1_000, 2_000_000, None], pa.timestamp("ns"))
    put(tmp_path, "b.parquet", {"t": moments})
    assert arrowlog.rebuild(tmp_path, dry_run=True).problems == ()
    put(tmp_path, "c.parquet", {"u": pa.array([2**63], pa.uint64())}, write_statistics=False)
    inner = pa.array([1_000, 1_500, 3_000], pa.timestamp("ns"))  # its bounds are complete
    put(tmp_path, "d.parquet", {"t": inner})
    problem = refused(tmp_path, "unsupported")
    assert problem.files.to_pylist() == ["c.parquet", "d.parquet"]


def test_int96_timestamps_of_spark(tmp_path):
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    old = pa.table({"at": pa.array([moment], pa.timestamp("us", "UTC"))})
    put(tmp_path, "a.parquet", old, use_deprecated_int96_timestamps=True)
    fields = [{"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}]
    fields += [{"name": "local", "type": "timestamp_ntz", "nullable": True, "metadata": {}}]
    key = b"org.apache.spark.sql.parquet.row.metadata"
    written = {key: json.dumps({"type": "struct", "fields": fields}).encode()}
    plain = pa.table({"at": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us"))})
    put(tmp_path, "b.parquet", plain.replace_schema_metadata(written))
    assert arrowlog.rebuild(tmp_path).schema.field("at").type == pa.timestamp("us", "UTC")
    assert [row["at"] for row in rows(tmp_path, "at")] == [moment, moment]


def test_damaged_files(tmp_path):
    put(tmp_path, "good.parquet", {"id": [1]})
    put(tmp_path, "cut.parquet", {"id": list(range(1000))})
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.parquet").write_bytes(b"")
    problem = refused(tmp_path, "damaged")
    assert "2 files cannot be opened: cut.parquet, empty.parquet" in problem.what
    with pytest.raises(DataFileError, match="skip_damaged=True") as raised:
        arrowlog.rebuild(tmp_path)
    assert raised.value.path == "cut.parquet"
    result = arrowlog.rebuild(tmp_path, skip_damaged=True)
    assert [(row["path"], row["reason"]) for row in result.left_out.to_pylist()] == [
        ("cut.parquet", "damaged"),
        ("empty.parquet", "damaged"),
    ]
    assert "vacuum deletes damaged files" in str(result)
    assert rows(tmp_path, "id") == [{"id": 1}]


def test_only_damaged_files_raise_table_not_found(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    refused(tmp_path, "damaged")
    with pytest.raises(TableNotFound):
        arrowlog.rebuild(tmp_path, skip_damaged=True)


def test_store_failure_is_not_a_damaged_file(tmp_path, monkeypatch):
    put(tmp_path, "a.parquet", {"id": [1]})
    from arrowlog.storage import LocalStore

    def fail(*_):
        raise StoreUnavailable("Could not read.", next="Try again.")

    monkeypatch.setattr(LocalStore, "get_range", fail)
    with pytest.raises(StoreUnavailable):
        arrowlog.rebuild(tmp_path, skip_damaged=True)
    assert not (tmp_path / LOG).exists()


def test_given_schema_is_used(tmp_path):
    put(tmp_path, "k=2024-01-01 00%3A00%3A00/a.parquet", {"id": pa.array([1], pa.int32())})
    put(tmp_path, f"k={folder_contents.HIVE_NULL}/b.parquet", {"id": [2], "x": [1.5]})
    given = pa.schema([("k", pa.timestamp("us")), ("id", pa.int64()), ("x", pa.float64())])
    result = arrowlog.rebuild(tmp_path, schema=given, dry_run=True)
    assert (result.schema, result.problems) == (given, ())
    assert (
        "is not date32"
        in refused(tmp_path, "partition-type", schema=given.set(0, pa.field("k", pa.date32()))).what
    )
    assert "not in the schema" in refused(tmp_path, "partition-type", schema=given.remove(0)).what
    required = given.set(2, pa.field("x", pa.float64(), nullable=False))
    problem = refused(tmp_path, "schema-nulls", schema=required)
    assert problem.files.to_pylist() == ["k=2024-01-01 00%3A00%3A00/a.parquet"]
    refused(tmp_path, "unsupported", schema=given.set(1, pa.field("id", pa.string())))
    arrowlog.rebuild(tmp_path, schema=given)
    assert rows(tmp_path, "id") == [
        {"k": NEW_YEAR, "id": 1, "x": None},
        {"k": None, "id": 2, "x": 1.5},
    ]


def test_folders_of_polars_pandas_and_duckdb(tmp_path):
    frame = pl.DataFrame(
        {
            "day": [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None],
            "u": pl.Series([1, 2, 2**32 - 1], dtype=pl.UInt32),
            "c": pl.Series(["a", "b", None], dtype=pl.Categorical),
            "l": [[1], [], None],
        }
    )
    frame.write_parquet(tmp_path / "polars", partition_by="day", mkdir=True)
    result = arrowlog.rebuild(tmp_path / "polars")
    assert result.schema.field("day").type == pa.date32()
    found = arrowlog.Table(tmp_path / "polars").scan().to_polars().collect().sort("u")
    assert found.select("day", "u", "c", "l").rows() == frame.rows()

    data = pd.DataFrame({"a": [1, 2], "t": pd.to_datetime(["2024-01-01", None]), "k": ["x", "y"]})
    data.to_parquet(tmp_path / "pandas", partition_cols=["k"])
    arrowlog.rebuild(tmp_path / "pandas")
    assert rows(tmp_path / "pandas", "a") == [
        {"a": 1, "t": NEW_YEAR, "k": "x"},
        {"a": 2, "t": None, "k": "y"},
    ]

    query = "SELECT i, i % 2 AS g, 'a/b ' || i AS s FROM range(4) t(i)"
    duckdb.sql(f"COPY ({query}) TO '{tmp_path}/duckdb' (FORMAT parquet, PARTITION_BY (g, s))")
    arrowlog.rebuild(tmp_path / "duckdb")
    assert rows(tmp_path / "duckdb", "i") == [
        {"i": i, "g": i % 2, "s": f"a/b {i}"} for i in range(4)
    ]


def test_rebuild_in_a_memory_store():
    root = "memory://rebuild-test/table"
    schema = pa.schema([("k", pa.string()), ("id", pa.int64())])
    arrowlog.Table.create(root, schema, ["k"]).write(pa.table({"k": ["a", "b"], "id": [1, 2]}))
    fsspec.filesystem("memory").rm(f"{root}/{LOG}", recursive=True)
    calls = []
    result = arrowlog.rebuild(root, spark=object(), progress=lambda *done: calls.append(done))
    assert (result.num_files, calls[-1]) == (2, (2, 2))
    assert arrowlog.Table(root).scan("k = 'b'").to_polars().collect()["id"].to_list() == [2]


@pytest.mark.promise("recovery.rebuild_is_atomic")
def test_one_of_several_concurrent_rebuilds_wins(tmp_path):
    for number in range(20):
        put(tmp_path, f"{number}.parquet", {"id": [number]})
    together = Barrier(4)

    def work(_):
        together.wait(60)
        try:
            return arrowlog.rebuild(tmp_path).version
        except TableExists:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(work, range(4)), key=str) == [0, None, None, None]
    assert [row["id"] for row in rows(tmp_path, "id")] == list(range(20))
    assert arrowlog.Table(tmp_path).version == 0


def test_rebuild_in_many_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("arrowlog.recovery.log_rebuild._FILES_PER_CHUNK", 3)
    for number in range(10):
        put(tmp_path, f"n={number}/a.parquet", {"id": [number]})
    calls = []
    arrowlog.rebuild(tmp_path, progress=lambda *done: calls.append(done))
    assert calls == [(3, 10), (6, 10), (9, 10), (10, 10)]
    assert rows(tmp_path, "id") == [{"id": n, "n": n} for n in range(10)]


def test_commit_above_the_readers_limit_is_not_written(tmp_path):
    put(tmp_path, "a.parquet", {"id": [1]})
    with pytest.raises(InvalidRequest, match=r"transaction\.maxDecompressedBytes"):
        arrowlog.rebuild(tmp_path, options={"transaction.maxDecompressedBytes": 100})
    assert not (tmp_path / LOG).exists()


def test_convert_creates_a_table_from_a_folder(tmp_path):
    put(tmp_path, "k=1/a.parquet", {"id": [1]})
    table = arrowlog.convert(tmp_path)
    assert table.scan().to_polars().collect().to_dicts() == [{"id": 1, "k": 1}]
    for how in ({"where": "id = 1"}, {"target": tmp_path / "new"}, {"version": 0}):
        shutil.rmtree(tmp_path / LOG)
        with pytest.raises(TableNotFound, match=r"arrowlog\.rebuild"):
            arrowlog.convert(tmp_path, **how)
        arrowlog.convert(tmp_path)


def test_missing_log_with_data_files_suggests_rebuild(tmp_path):
    with pytest.raises(TableNotFound, match=r"Table\.create"):
        arrowlog.Table(tmp_path)
    for path in ("a.parquet", "day=1/a.parquet"):
        put(tmp_path, path, {"id": [1]})
        with pytest.raises(TableNotFound, match=r"arrowlog\.rebuild") as raised:
            arrowlog.Table(tmp_path)
        assert "Table.create" not in str(raised.value)
        finding = next(iter(arrowlog.doctor(tmp_path)))
        assert finding.fix.startswith("arrowlog.rebuild(")
        shutil.rmtree(tmp_path / path.partition("/")[0]) if "/" in path else (
            tmp_path / path
        ).unlink()
    assert "Table.create" in next(iter(arrowlog.doctor(tmp_path))).fix


def run(*arguments):
    command = [sys.executable, "-m", "arrowlog", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_rebuild_command(tmp_path):
    put(tmp_path, "day=2024-01-01/a.parquet", {"id": [1]})
    (tmp_path / "bad.parquet").write_text("x")
    done = run("rebuild", tmp_path, "--dry-run")
    assert done.returncode == 1
    assert "problem: damaged: bad.parquet" in done.stdout
    assert "problem: partition-layout" in done.stdout
    done = run("rebuild", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    (tmp_path / "bad.parquet").rename(tmp_path / "day=2024-01-01/bad.parquet")
    done = run("rebuild", tmp_path, "--dry-run", "--skip-damaged", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert '"would be rebuilt"' in done.stdout
    assert not (tmp_path / LOG).exists()
    (tmp_path / f"{LOG}_old").mkdir()
    (tmp_path / f"{LOG}_old" / f"{0:020d}.json").write_text("{}")
    assert "--ignore-logs" in run("rebuild", tmp_path, "--skip-damaged").stderr
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    from arrowlog.formats import format_spark_schema

    (tmp_path / "schema.json").write_text(format_spark_schema(schema))
    options = ["--skip-damaged", "--ignore-logs", "--schema", tmp_path / "schema.json"]
    done = run("rebuild", tmp_path, *options, "--partition-columns", "day")
    assert done.returncode == 0, done.stderr
    assert "rebuilt; 1 files, 1 rows" in done.stdout
    assert rows(tmp_path, "id") == [{"id": 1, "day": "2024-01-01"}]
    assert run("rebuild", tmp_path).returncode == 1
    put(tmp_path / "plain", "a.parquet", {"id": [1]})
    assert "1 row in 1 file at " in run("convert", tmp_path / "plain").stdout

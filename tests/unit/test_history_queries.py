"""History queries of a handle, and how results are displayed."""

import gc
import os
import subprocess
import sys

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from support import small_table
from support.event_table import START, build

import arrowlog
from arrowlog import testing
from arrowlog.history import commit_history as past_module
from arrowlog.snapshot import commit_reader as reading_module
from arrowlog.snapshot import loader as load_module


@pytest.fixture
def table(tmp_path):
    build(str(tmp_path / "events"))
    return arrowlog.Table(tmp_path / "events")


def test_history_has_one_row_per_commit_newest_first(table):
    found = table.history()
    assert isinstance(found, pa.Table)
    assert found["version"].to_pylist() == [6, 5, 4, 3, 2, 1, 0]
    first = found.slice(0, 1).to_pylist()[0]
    assert (first["operation"], first["adds"], first["removes"], first["rows"]) == (
        "MERGE",
        1,
        1,
        1000,
    )
    assert int(first["timestamp"].timestamp() * 1000) == START + 6 * 3_600_000
    assert first["bytes_removed"] is None  # the remove has no file size
    assert found["operation"].to_pylist()[-1] is None  # version 0 has no commitInfo
    with pytest.raises(arrowlog.InvalidRequest, match="not a number of commits"):
        table.history(-1)


def test_commit_info_of_own_commits(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", small_table.SCHEMA, ["day"])
    table.append(
        [arrowlog.add_file("a", {"day": None}, size=7, num_records=3)],
        txn=("loader", 4),
        user_metadata="by hand",
    )
    done = table.remove(["a"])
    newest, before, _ = table.history().to_pylist()
    assert (newest["operation"], newest["removes"], newest["bytes_removed"]) == ("DELETE", 1, 7)
    assert newest["txn_id"] == done.txn_id
    assert (before["app_id"], before["app_version"]) == ("loader", 4)
    assert (before["bytes"], before["rows"], before["user_metadata"]) == (7, 3, "by hand")
    query = "SELECT operation_metrics->>'numAddedBytes' FROM commits WHERE version = 1"
    assert table.sql(query).fetchall()[0] == ("7",)


def test_history_by_day_and_operation_adds_up_the_commits(table):
    found = table.history(by=["day", "operation"])
    assert found.column_names == [
        *("day", "operation", "commits", "adds", "removes", "bytes", "bytes_removed", "rows"),
        *("first_version", "last_version"),
    ]
    rows = found.to_pylist()
    assert [row["last_version"] for row in rows] == sorted(
        (row["last_version"] for row in rows), reverse=True
    )
    assert sum(row["commits"] for row in rows) == 7
    assert sum(row["adds"] for row in rows) == sum(table.history()["adds"].to_pylist())
    merge = next(row for row in rows if row["operation"] == "MERGE")
    assert merge["bytes_removed"] is None  # the remove has no file size
    assert table.history(by="day").schema.field("day").type == pa.date32()
    assert table.history(by="hour").schema.field("hour").type == pa.timestamp("ms", "UTC")
    assert table.history(2, by="day")["commits"].to_pylist() == [2]
    empty = table.history(0, by=("month", "operation", "month"))
    assert (empty.num_rows, empty.column_names[:3]) == (0, ["month", "operation", "commits"])


@pytest.mark.parametrize("by", ["week", [], ["day", "txn_id"], 3, [["day"]], ""])
def test_history_by_something_unknown_is_refused(table, by):
    with pytest.raises(arrowlog.InvalidRequest, match="cannot be grouped by"):
        table.history(by=by)


@pytest.mark.parametrize("commits", [3, 80])  # decoded line by line, and as columns
@pytest.mark.parametrize("part", ['"path', '"minValues":{', '"operation"'])
def test_history_by_day_reports_damage_in_any_field(tmp_path, commits, part):
    testing.write_commit(tmp_path, 0, small_table.OPENING)
    for version in range(1, commits):
        add = testing.add(f"f{version}", {"day": None}, minValues={"id": "1"}, size=version)
        testing.write_commit(tmp_path, version, [testing.commit_info(version), add])
    assert arrowlog.Table(tmp_path).history(by="day")["adds"].to_pylist()[0] == commits - 1
    damaged = tmp_path / "_transaction_log" / f"{2:020d}.json"
    text = damaged.read_text()
    assert part in text
    damaged.write_text(text.replace(part, part[:-1], 1))
    with pytest.raises(arrowlog.LogCorrupt, match=f"{2:020d}"):
        arrowlog.Table(tmp_path).history(by="day")


def test_history_by_day_loads_no_engine(table):
    program = (
        "import sys, arrowlog; table = arrowlog.Table(sys.argv[1]);"
        "assert table.history(by=['day', 'operation']).num_rows;"
        "found = {'duckdb', 'polars', 'pandas', 'pyarrow.dataset', 'pyarrow.acero'};"
        "assert not found & set(sys.modules), found & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, table.uri], check=True)


def test_history_limit_reads_only_the_needed_commits(table, monkeypatch):
    read = []
    whole = load_module.stream_actions

    def noted(store, config, commits):
        read.extend(version for version, _ in commits)
        return whole(store, config, commits)

    monkeypatch.setattr(past_module, "stream_actions", noted)
    assert table.history(limit=2)["version"].to_pylist() == [6, 5]
    assert read == [5, 6]
    assert table.history(limit=0).num_rows == 0


def test_version_filter_reads_no_other_commits(table, monkeypatch):
    monkeypatch.setattr(past_module, "COMMITS_PER_BLOCK", 2)
    table.snapshot()
    read = []
    whole = load_module.stream_actions

    def noted(store, config, commits):
        read.extend(version for version, _ in commits)
        return whole(store, config, commits)

    monkeypatch.setattr(past_module, "stream_actions", noted)
    assert table.sql("SELECT version FROM commits WHERE version > 4").fetchall() == [(5,), (6,)]
    assert read == [4, 5, 6]
    table.sql("SELECT path FROM adds WHERE version IN (5, 6)").fetchall()
    assert read == [4, 5, 6]  # each of them once


def test_partition_values_and_bounds_are_typed(table):
    query = 'SELECT "partition.day", "min.id", "max.city" FROM adds ORDER BY version LIMIT 1'
    found = table.sql(query)
    assert [str(kind) for kind in found.types] == ["DATE", "BIGINT", "VARCHAR"]
    assert str(found.fetchall()[0][0]) == "2024-01-01"


@pytest.mark.parametrize("checkpoint", [None, 1])
def test_view_columns_do_not_depend_on_loaded_versions(tmp_path, checkpoint):
    """The history also has columns that neither the first nor the latest schema has."""
    root = tmp_path / "t"
    day = ("day", pa.date32())
    schemas = [
        pa.schema([day, ("id", pa.int64()), ("city", pa.string())]),
        pa.schema([day, ("id", pa.int64()), ("lane", pa.int64())]),
        pa.schema([day, ("city", pa.string()), ("id", pa.int64())]),
    ]
    opening = [small_table.OPENING[0], testing.metadata(schemas[0], ["day"])]
    testing.write_commit(root, 0, opening)
    for version, schema in enumerate(schemas[1:], 1):
        stats = {"minValues": {"lane": "3"}, "maxValues": {"lane": "5"}}
        add = testing.add(f"f{version}", {"day": None}, **(stats if version == 1 else {}))
        testing.write_commit(root, version, [testing.metadata(schema, ["day"]), add])
    if checkpoint is not None:
        testing.write_checkpoint(
            root, checkpoint, [opening[0], testing.metadata(schemas[1], ["day"])]
        )
    views = ("adds", "removes", "files", "file_lifetimes")

    def columns(handle):
        return {view: handle.query(f"FROM {view}").schema for view in views}

    fresh, loaded = arrowlog.Table(root), arrowlog.Table(root)
    loaded.snapshot()
    assert columns(loaded) == columns(fresh)
    assert loaded.query('SELECT "min.lane" AS low FROM adds ORDER BY version').to_pylist() == [
        {"low": 3},
        {"low": None},
    ]


def test_relation_outlives_its_table(table):
    found = table.sql("SELECT count(*) FROM commits")
    other = table.connect()
    del table
    gc.collect()
    assert found.fetchall()[0] == (7,)
    assert other.sql("SELECT count(*) FROM file_lifetimes").fetchall()[0] == (6,)
    other.close()


def test_sql_sees_new_commits_and_a_connection_is_pinned(table):
    pinned = table.connect()
    count = "SELECT count(*) FROM commits"
    assert table.sql(count).fetchall()[0] == (7,)
    table.append([arrowlog.add_file("more", {"day": None}, size=1)])
    assert table.sql(count).fetchall()[0] == (8,)
    assert table.sql("SELECT count(*) FROM files").fetchall()[0] == (6,)
    assert pinned.sql(count).fetchall()[0] == (7,)
    assert pinned.sql("SELECT count(*) FROM files").fetchall()[0] == (5,)
    pinned.close()


def test_recreated_table_is_not_mixed_with_the_old_one(tmp_path):
    import shutil

    root = small_table.write(tmp_path / "t")
    table = arrowlog.Table(root)
    assert table.sql("SELECT path FROM adds").fetchall() == [("good.parquet",)]
    shutil.rmtree(root)
    testing.write_commit(root, 0, small_table.OPENING)
    testing.write_commit(root, 1, [testing.add("other.parquet", {"day": None}, size=12)])
    assert table.sql("SELECT path FROM adds").fetchall() == [("other.parquet",)]


def test_recreated_table_with_short_commit_names_is_not_mixed_with_the_old_one(tmp_path):
    import shutil

    for number, path in enumerate(("one.parquet", "another.parquet")):
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        testing.write_commit(tmp_path / "t", 0, small_table.OPENING, digits=18)
        added = testing.add(path, {"day": None})
        testing.write_commit(tmp_path / "t", 1, [added], digits=18)
        if number == 0:
            table = arrowlog.Table(tmp_path / "t")
        table.snapshot()
        assert table.sql("SELECT path FROM adds").fetchall() == [(path,)]


def test_file_views_are_created_when_a_query_names_them(tmp_path):
    build(str(tmp_path / "events"))
    for query, rows in (
        ("SELECT sum(adds) FROM commits", 1),
        ("SELECT path FROM adds", 6),
        ("FROM files_at(1)", 1),
        ("SELECT DISTINCT table_name FROM information_schema.columns", 16),
        ("SHOW TABLES", 16),
    ):
        assert arrowlog.Table(tmp_path / "events").query(query).num_rows == rows


def test_dropped_columns_remain_in_the_views(tmp_path):
    old = pa.schema([("day", pa.date32()), ("gone", pa.int64())])
    testing.write_commit(tmp_path, 0, [testing.protocol(), testing.metadata(old, ["day"])])
    testing.write_commit(tmp_path, 1, [testing.add("a", {"day": None}, minValues={"gone": "5"})])
    testing.write_commit(tmp_path, 2, [testing.metadata(small_table.SCHEMA, ["day"])])
    for opened in (arrowlog.Table(tmp_path), arrowlog.Table(tmp_path)):
        assert opened.sql('SELECT "min.gone", "min.id" FROM adds').fetchall() == [(5, None)]
        opened.snapshot()


def test_missing_or_formerly_invalid_metadata(tmp_path):
    testing.write_commit(tmp_path / "none", 0, [testing.protocol(), small_table.GOOD])
    with pytest.raises(arrowlog.LogCorrupt, match="no metaData in the log"):
        arrowlog.Table(tmp_path / "none").query("FROM adds")
    root = tmp_path / "once"
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata("{", ["day"])])
    testing.write_commit(root, 1, [testing.metadata(small_table.SCHEMA, ["day"]), small_table.GOOD])
    for _ in range(2):
        opened = arrowlog.Table(root)
        assert opened.query('SELECT path, "min.id" FROM adds').num_rows == 1
        opened.snapshot()
        assert opened.query("FROM file_lifetimes").num_rows == 1


def test_checkpoints_are_listed(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", small_table.SCHEMA, ["day"])
    table.append([arrowlog.add_file("a", {"day": None}, size=7)])
    table.checkpoint()
    query = "SELECT version, format, parts, last FROM checkpoints ORDER BY ALL"
    assert table.sql(query).fetchall() == [(1, "json", 1, True), (1, "parquet", 2, True)]


def test_threads_query_concurrently(table):
    from concurrent.futures import ThreadPoolExecutor

    def ask(number):
        lives = table.query("SELECT count(*) AS n FROM file_lifetimes")["n"][0].as_py()
        return lives, table.sql(f"SELECT {number}, count(*) FROM adds").fetchall()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(12))) == [(6, [(number, 6)]) for number in range(12)]


def test_queries_survive_a_concurrent_cleanup(tmp_path):
    table = arrowlog.Table.create(
        tmp_path / "t", small_table.SCHEMA, ["day"], {"checkpoint.enabled": "false"}
    )
    for name in ("a", "b", "c"):
        table.append([arrowlog.add_file(name, {"day": None}, size=7)])
    opened = arrowlog.Table(tmp_path / "t")
    relation = opened.sql("FROM commits")  # listed, and not read
    table.checkpoint()
    for version in (1, 2):
        os.remove(tmp_path / "t" / "_transaction_log" / f"{version:020d}.json")
    with pytest.raises(duckdb.Error, match="listed but no longer exists"):
        relation.fetchall()
    assert opened.query("SELECT min(version) AS v FROM commits")["v"].to_pylist() == [3]
    assert opened.history()["version"].to_pylist() == [3]
    assert opened.query("FROM file_lifetimes").num_rows == 3


def test_views_end_before_a_gap(tmp_path):
    root = small_table.write(tmp_path / "t")
    testing.write_commit(root, 3, [testing.add("later", {"day": None})])
    table = arrowlog.Table(root)
    with pytest.warns(arrowlog.ArrowlogWarning, match="version 2 is missing"):
        assert table.query("SELECT max(version) AS v FROM commits")["v"].to_pylist() == [1]
    assert table.query("SELECT path FROM file_lifetimes")["path"].to_pylist() == ["good.parquet"]
    assert table.query("FROM coverage")["last_version"].to_pylist() == [1]


def test_history_of_a_log_with_only_a_checkpoint(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", small_table.SCHEMA, ["day"])
    table.append([arrowlog.add_file("a", {"day": None}, size=7)])
    table.checkpoint()
    for version in (0, 1):
        os.remove(tmp_path / "t" / "_transaction_log" / f"{version:020d}.json")
    opened = arrowlog.Table(tmp_path / "t")
    assert opened.history().num_rows == 0
    assert opened.query("FROM adds").num_rows == 0
    lives = opened.query("SELECT path, begin_version, begin_known FROM file_lifetimes")
    assert lives.to_pylist() == [{"path": "a", "begin_version": 1, "begin_known": False}]
    assert opened.query("SELECT version, line FROM metadata").to_pylist() == [
        {"version": 1, "line": None}
    ]
    assert opened.overview().num_files == 1
    note = opened.query("FROM coverage")["note"][0].as_py()
    assert note == "history begins with version 1: earlier versions were cleaned up"


def test_history_with_a_checkpoint_in_place_of_a_commit(tmp_path):
    table = arrowlog.Table.create(
        tmp_path / "t", small_table.SCHEMA, ["day"], {"checkpoint.enabled": "false"}
    )
    for name in ("a", "b", "c"):
        table.append([arrowlog.add_file(name, {"day": None}, size=7)])
        if name == "b":
            table.checkpoint()
    os.remove(tmp_path / "t" / "_transaction_log" / f"{2:020d}.json")
    opened = arrowlog.Table(tmp_path / "t")
    assert opened.earliest_version == 0
    query = "SELECT path, begin_version, end_version, begin_known FROM file_lifetimes ORDER BY ALL"
    assert opened.sql(query).fetchall() == [
        ("a", 1, 2, True),
        ("a", 2, None, False),
        ("b", 2, None, False),
        ("c", 3, None, True),
    ]
    assert "the commits of versions 2 are gone" in str(opened.overview())


def test_modified_commit_raises(tmp_path):
    table = arrowlog.Table.create(
        tmp_path / "t", small_table.SCHEMA, ["day"], {"transaction.compression.codec": "none"}
    )
    table.append([arrowlog.add_file("a", {"day": None}, size=7)])
    path = tmp_path / "t" / "_transaction_log" / f"{1:020d}.json"
    path.write_bytes(path.read_bytes().replace(b'"size":7', b'"size":8'))
    opened = arrowlog.Table(tmp_path / "t")
    for ask in (opened.history, lambda: opened.query("FROM commits")):
        with pytest.raises(arrowlog.LogCorrupt, match="damaged or changed after it was written"):
            ask()


def test_newer_protocol_raises_in_queries(tmp_path):
    root = small_table.write(tmp_path / "t")
    testing.write_commit(root, 2, [testing.protocol(9, 9)])
    with pytest.raises(arrowlog.UnsupportedProtocol):
        arrowlog.Table(root).history()
    with pytest.raises(arrowlog.UnsupportedProtocol):
        arrowlog.Table(root).query("FROM commits")


def test_out_of_range_timestamps_are_null(tmp_path):
    root = small_table.write(tmp_path / "t")
    far = testing.add("far", {"day": None}, modificationTime=(1 << 63) - 1)
    testing.write_commit(root, 2, [testing.commit_info(-(1 << 63)), far])
    table = arrowlog.Table(root)
    query = "SELECT timestamp, modification_time FROM commits JOIN adds USING (version)"
    assert table.sql(f"{query} WHERE version = 2").fetchall() == [(None, None)]


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**30, 1.5, 2.0, 1e30])
def test_number_that_is_no_int64_in_many_commit_infos_is_null(tmp_path, number):
    """So many commitInfos with the same value are decoded as columns, in which it is a constant."""
    root = tmp_path / "t"
    testing.write_commit(root, 0, small_table.OPENING)
    for version in range(1, 60):
        info = testing.commit_info(START + version, readVersion=number)
        testing.write_commit(root, version, [info])
    found = arrowlog.Table(root).history()
    assert found["read_version"].null_count == found.num_rows == 60
    assert found["operation"].to_pylist()[:-1] == ["WRITE"] * 59


def test_diff_reports_files_schema_and_properties(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", small_table.SCHEMA, ["day"], {"owner": "a"})
    files = [arrowlog.add_file(n, {"day": None}, size=5, num_records=1) for n in ("x", "y", "z")]
    table.append(files)
    table.commit([arrowlog.add_file("x", {"day": None}, size=6, num_records=2)], ["y"])
    table.set_properties({"owner": "b", "new": "1"})
    table.add_columns({"more": pa.float64()})
    there, back = table.diff(1, 4), table.diff(4, 1)
    kinds = pl.DataFrame(there).select("change", "path").rows()
    assert kinds == [("changed", "x"), ("removed", "y")]
    assert (there.bytes_added, there.bytes_removed) == (6, 10)
    assert (there.rows_added, there.rows_removed) == (2, 2)
    assert [str(c) for c in there.schema_changes] == ["column more: double (new)"]
    assert {str(c) for c in there.property_changes} == {
        "property owner: a → b",
        "property new: 1 (new)",
    }
    assert back.added["path"].to_pylist() == ["y"]
    assert str(back.schema_changes[0]) == "column more: gone (was double)"
    assert (back.bytes_added, back.rows_added) == (10, 2)
    assert "~ changed" in str(there)
    assert repr(there) == "Diff(1 → 4, added=0, removed=1, changed=1, changes=3)"
    assert table.diff(3, 3).empty
    assert str(table.diff(3, 3)) == "version 3 → 3: no differences"


def test_checkpoint_is_not_a_difference(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", small_table.SCHEMA, ["day"])
    table.append([arrowlog.add_file("x", {"day": None}, size=5, tags={"a": "b"})])
    table.set_properties({"a": "b"})
    table.checkpoint()
    opened = arrowlog.Table(tmp_path / "t")
    assert opened.diff(1, 2).files.num_rows == 0


def test_html_is_escaped(tmp_path):
    root = tmp_path / "t"
    evil = pa.schema([("<script>alert(1)</script>", pa.int64()), ("day", pa.date32())])
    table = arrowlog.Table.create(root, evil, ["day"], name="<img src=x>")
    table.append([arrowlog.add_file("<b>bold</b>", {"day": None}, size=1)])
    cards = [
        table._repr_html_(),
        table.snapshot()._repr_html_(),
        table.scan()._repr_html_(),
        table.diff(0, 1)._repr_html_(),
        table.overview()._repr_html_(),
        table.scan("day = '<b>'").explain()._repr_html_(),
    ]
    for card in cards:
        assert card.startswith("<div>")
        for bad in ("<script", "<img", "<b>"):
            assert bad not in card
    assert "&lt;script&gt;" in cards[1]
    assert "&lt;b&gt;bold" in cards[2]


def test_html_of_a_damaged_table_shows_the_error(tmp_path):
    root = small_table.write(tmp_path / "t")
    table = arrowlog.Table(root)
    testing.write_commit(root, 2, b"{")
    assert "LogCorrupt" in table._repr_html_()


def test_invalid_query_raises_invalid_request(table):
    with pytest.raises(arrowlog.InvalidRequest, match="Parser Error"):
        table.sql("SELEC")
    with pytest.raises(arrowlog.InvalidRequest, match="There is no version 99"):
        table.query("FROM files_at(99)")
    with pytest.raises(duckdb.Error, match="There is no version 99"):
        table.sql("FROM files_at(99)").fetchall()
    table.query("CREATE TABLE mine AS SELECT 1 AS one")
    assert table.sql("FROM mine").fetchall() == [(1,)]


def test_program_with_an_open_connection_exits_cleanly(tmp_path):
    build(str(tmp_path / "events"))
    code = (
        "import arrowlog, sys; table = arrowlog.Table(sys.argv[1]);"
        "con = table.connect(); found = table.sql('FROM commits');"
        "print(con.sql('SELECT count(*) FROM adds').fetchall()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "events")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "(6,)\n"
    assert done.stderr == ""


def test_long_history_respects_max_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading_module, "_RUN_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(reading_module, "_SINGLE_RUN_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(past_module, "COMMITS_PER_BLOCK", 4)
    testing.write_commit(tmp_path, 0, small_table.OPENING)
    for version in range(1, 21):
        adds = [
            testing.add(f"{version}-{n}", {"day": None}, minValues={"id": str(n)}, size=n)
            for n in range(400)
        ]
        testing.write_commit(tmp_path, version, adds)
    held = {}
    for limit in ("1GB", "100KB"):
        table = arrowlog.Table(tmp_path, options={"history.maxMemory": limit})
        lives = 'SELECT count(*), max(size_bytes), max("min.id") FROM file_lifetimes'
        assert table.query(lives).to_pylist()[0] == {
            "count_star()": 8000,
            "max(size_bytes)": 399,
            'max("min.id")': 399,
        }
        pieces = list(table._history_session.sources().past.pieces())
        tables = [found for piece in pieces for found in piece.tables.values()]
        held[limit] = sum(found.nbytes for found in tables if isinstance(found, pa.Table))
        files = [found for found in tables if isinstance(found, str)]
        assert all(os.path.getsize(path) for path in files)
        assert (len(files) > 5) is (limit == "100KB")
    assert held["1GB"] > 300_000
    assert held["100KB"] <= 100 << 10


def test_temporary_folder_is_left_empty(table, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    os.makedirs(tmp_path / "scratch")
    tight = arrowlog.Table(table.uri, options={"history.maxMemory": 1})
    tight.query("FROM file_lifetimes")
    assert os.listdir(tmp_path / "scratch")
    del tight
    gc.collect()
    assert os.listdir(tmp_path / "scratch") == []

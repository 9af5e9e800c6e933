"""Commands that change a table."""

import io
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog.cli.commands import run
from arrowlog.formats import parse_ddl

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def events(tmp_path):
    table = arrowlog.Table.create(tmp_path / "events", SCHEMA, ["day"])
    for day in ("a", "b", "c"):
        table.write(pa.table({"id": [1, 2], "day": [day, day]}, schema=SCHEMA))
    return table


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command in this process; return what it printed."""

    def run_command(*arguments, code=0, stdin=""):
        monkeypatch.setattr(sys, "argv", ["arrowlog", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        assert run() == code, capsys.readouterr()
        return capsys.readouterr().out

    return run_command


def days(table):
    table.refresh()
    return sorted(set(table.to_arrow()["day"].to_pylist()))


def test_create_from_ddl_a_parquet_file_and_json(call, tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "part.parquet")
    (tmp_path / "schema.json").write_text(parse_ddl("id bigint"), encoding="utf-8")
    given = ["id bigint", tmp_path / "part.parquet", tmp_path / "schema.json"]
    for number, schema in enumerate(given):
        out = call("create", tmp_path / f"t{number}", schema, "--output", "json")
        assert json.loads(out)["columns"] == ["id: int64"]
        assert arrowlog.Table(tmp_path / f"t{number}").schema == pa.schema([("id", pa.int64())])


def test_create_with_partitions_and_properties(call, tmp_path):
    ddl = "id bigint not null, day string"
    call("create", tmp_path / "t", ddl, "--partition-by", "day", "--property", "a=b")
    snapshot = arrowlog.Table(tmp_path / "t").snapshot()
    assert snapshot.partition_columns == ("day",) or list(snapshot.partition_columns) == ["day"]
    assert snapshot.metadata.configuration == {"a": "b"}
    assert not snapshot.schema.field("id").nullable
    call("create", tmp_path / "t", ddl, code=1)
    call("create", tmp_path / "t", ddl, "--exist-ok")


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("c decimal(10,2)", pa.decimal128(10, 2)),
        ("c array<int>", pa.list_(pa.int32())),
        ("c map<string,bigint>", pa.map_(pa.string(), pa.int64())),
        ("c struct<x: int, y: array<date>>", None),
        ("`c` TIMESTAMP", pa.timestamp("us", "UTC")),
        ("c: double", pa.float64()),
    ],
)
def test_types_of_ddl(tmp_path, ddl, kind):
    table = arrowlog.Table.create(tmp_path / "t", parse_ddl(ddl))
    assert table.schema.names == ["c"]
    if kind is None:
        assert pa.types.is_struct(table.schema.field("c").type)
    else:
        assert table.schema.field("c").type == kind or pa.types.is_nested(kind)


@pytest.mark.parametrize(
    "ddl",
    ["", "id", "id bigit", "id bigint,", ", id int", "id int not", "c array<int", "c array<>",
     "c decimal(x)", "id int; drop", "id int int", "c " + "array<" * 60 + "int" + ">" * 60],
)  # fmt: skip
def test_invalid_ddl_is_refused(ddl):
    with pytest.raises(arrowlog.InvalidRequest, match="schema is not valid"):
        parse_ddl(ddl)


def test_remove_by_partition_after_a_dry_run(call, events):
    out = call("remove", events.uri, "--where", "day < 'c'", "--dry-run")
    assert "2 files would be removed" in out
    assert days(events) == ["a", "b", "c"]
    assert "Version 4: 2 files removed." in call("remove", events.uri, "--where", "day < 'c'")
    assert days(events) == ["c"]
    for dry_run in ([], ["--dry-run"]):
        call("remove", events.uri, "--where", "id = 1", *dry_run, code=1)


def test_remove_by_path_from_arguments_and_standard_input(call, events):
    first, second = events.scan("day <> 'c'").paths
    assert "1 file would be removed" in call("remove", events.uri, first, "--dry-run")
    call("remove", events.uri, first)
    out = call("remove", events.uri, "-", "--output", "json", stdin=f"{second}\n")
    assert json.loads(out)["numRemovedFiles"] == 1
    assert days(events) == ["c"]


def test_restore_after_a_dry_run(call, events):
    events.remove("day = 'a'")
    assert "+ added        1" in call("restore", events.uri, 3, "--dry-run")
    assert days(events) == ["b", "c"]
    assert "Version 5: version 3 restored." in call("restore", events.uri, 3)
    assert days(events) == ["a", "b", "c"]


def test_properties_are_set_listed_and_removed(call, events):
    call("set-property", events.uri, "a=1", "b=x=y")
    listed = json.loads(call("set-property", events.uri, "--output", "json"))
    assert listed == [{"key": "a", "value": "1"}, {"key": "b", "value": "x=y"}]
    call("set-property", events.uri, "--unset", "a")
    assert json.loads(call("set-property", events.uri, "--output", "json"))[0]["key"] == "b"


def test_truncate_history_after_a_dry_run(call, events):
    assert "would be deleted" in call("truncate-history", events.uri, "--dry-run")
    assert events.earliest_version == 0
    call("truncate-history", events.uri)
    assert arrowlog.Table(events.uri).earliest_version == 3
    assert days(events) == ["a", "b", "c"]


def test_missing_statistics_are_read_from_the_files(call, tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    pq.write_table(pa.table({"id": [5, 7]}), tmp_path / "t" / "f.parquet")
    size = (tmp_path / "t" / "f.parquet").stat().st_size
    table.append([arrowlog.add_file("f.parquet", {}, size=size)])
    assert table.scan("id > 100").num_files == 1
    assert "Would read the footers of 1 file." in call(
        "update-statistics", table.uri, "f.parquet", "--dry-run"
    )
    call("update-statistics", table.uri, "f.parquet")
    table.refresh()
    assert table.scan("id > 100").num_files == 0
    assert table.to_arrow()["id"].to_pylist() == [5, 7]

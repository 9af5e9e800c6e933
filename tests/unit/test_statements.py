"""SQL statements: parsing, error positions and results."""

import os
import random

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases
from support.event_table import build
from support.small_table import paths

import arrowlog
from arrowlog import storage, testing
from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables.format import LOG_FOLDER
from arrowlog.statements import execution, sql_statement
from arrowlog.statements.parser import Statement, is_statement, parse_statement

DAY = 86_400_000
KINDS = {"repair", "describe-log", "describe-state", "checkpoint", "truncate", "drop", "purge"}
KINDS |= {"merge", "invalidate"}
QUIET = {"checkpoint.enabled": False}
GOOD = {
    "REPAIR INDEXFILES TRANSACTION LOG 's' AT LOCATION 't'": Statement("repair", "s", "t"),
    "DESCRIBE INDEXTABLES TRANSACTION LOG 'x'": Statement("describe-log", "x"),
    "DESCRIBE INDEXTABLES TRANSACTION LOG 'x' INCLUDE ALL": Statement(
        "describe-log", "x", include_all=True
    ),
    "DESCRIBE INDEXTABLES STATE 'x'": Statement("describe-state", "x"),
    "CHECKPOINT INDEXTABLES 'x'": Statement("checkpoint", "x"),
    "COMPACT INDEXTABLES 'x'": Statement("checkpoint", "x"),
    "TRUNCATE INDEXTABLES TIME TRAVEL 'x'": Statement("truncate", "x"),
    "TRUNCATE INDEXTABLES TIME TRAVEL 'x' DRY RUN": Statement("truncate", "x", dry_run=True),
    "DROP INDEXTABLES PARTITIONS FROM 'x' WHERE day = '2024-01-01' OR (a > 1)": Statement(
        "drop", "x", where="day = '2024-01-01' OR (a > 1)"
    ),
    "PURGE INDEXTABLE 'x'": Statement("purge", "x"),
    "PURGE INDEXTABLE 'x' OLDER THAN 7 DAYS": Statement("purge", "x", older_than_ms=7 * DAY),
    "PURGE INDEXTABLE 'x' OLDER THAN 36 HOURS TRANSACTION LOG RETENTION 30 DAYS DRY RUN": Statement(
        "purge", "x", older_than_ms=DAY * 3 // 2, log_retention_ms=30 * DAY, dry_run=True
    ),
    "MERGE SPLITS 'x'": Statement("merge", "x"),
    "MERGE SPLITS 'x' WHERE max = 'MAX DEST SPLITS' TARGET SIZE 100M MAX DEST SPLITS 10 MAX SOURCE"
    " SPLITS PER MERGE 500": Statement(
        "merge",
        "x",
        where="max = 'MAX DEST SPLITS'",
        target_size=100 << 20,
        max_groups=10,
        max_files_per_group=500,
    ),
    "MERGE SPLITS 'x' TARGET SIZE '1G'": Statement("merge", "x", target_size=1 << 30),
    "MERGE SPLITS 'x' TARGET SIZE 5368709120 MAX GROUPS 3": Statement(
        "merge", "x", target_size=5 << 30, max_groups=3
    ),
    "INVALIDATE INDEXTABLES TRANSACTION LOG CACHE": Statement("invalidate"),
    "INVALIDATE INDEXTABLES TRANSACTION LOG CACHE FOR 'x'": Statement("invalidate", "x"),
}


@pytest.mark.parametrize("text", GOOD)
def test_statements_are_parsed(text):
    assert parse_statement(text) == GOOD[text]
    assert is_statement(text)


@pytest.mark.parametrize("text", GOOD)
def test_case_comments_product_names_and_semicolons_are_ignored(text):
    rng = random.Random(text)
    parts = text.split("'")
    for number in range(0, len(parts), 2):
        part = parts[number].replace("INDEXTABLES", "TANTIVY4SPARK")
        if "WHERE" not in text:
            part = "".join(rng.choice([c.lower(), c.upper()]) for c in part)
            part = part.replace(" ", rng.choice([" ", "\n", "\t ", " /* so */ ", " -- so\n"]))
        parts[number] = part
    odd = "-- first\n  " + "'".join(parts) + " ; ;\n"
    assert parse_statement(odd) == GOOD[text]
    assert is_statement(odd)


@pytest.mark.parametrize(
    ("quoted", "path"),
    [
        (r"'it\'s'", "it's"),
        ("'it''s'", "it's"),
        ('"it\'s"', "it's"),
        (r"'a\\b'", r"a\b"),
        (r"'tab\there'", "tab\there"),
        ("'-- no comment'", "-- no comment"),
        ("'semi;colon'", "semi;colon"),
        ("`s3://b/t`", "s3://b/t"),
        ("`/odd ``path`", "/odd `path"),
        ("indextables.`/data/t`", "/data/t"),
        ("'日本 ✓'", "日本 ✓"),
    ],
)
def test_paths_in_every_kind_of_quotes(quoted, path):
    assert parse_statement(f"DESCRIBE INDEXTABLES STATE {quoted}").path == path


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("REPAIR INDEXFILES TRANSACTION LGO 'a'", 31, "Expected LOG, found LGO"),
        ("REPAIR INDEXFILES TRANSACTION LOG 'a' AT 'b'", 42, "Expected LOCATION, found 'b'"),
        ("REPAIR INDEXFILES TRANSACTION LOG 'a'", 38, "Expected AT, the statement ends"),
        ("REPAIR INDEXFILES TRANSACTION LOG a", 35, "a is the name of a catalog table"),
        ("DESCRIBE INDEXTABLES DISK CACHE", 22, "Expected TRANSACTION or STATE, found DISK"),
        ("CHECKPOINT INDEXTABLES my_db.my_table", 24, "in quotes: '/data/table'"),
        ("CHECKPOINT INDEXTABLES `my_table`", 24, "not supported here"),
        ("CHECKPOINT INDEXTABLES 'x' NOW", 28, "Expected the end of the statement, found NOW"),
        ("CHECKPOINT INDEXTABLES 'x", 24, "in quotes"),
        ("CHECKPOINT INDEXTABLES ''", 24, "is empty"),
        ("PURGE INDEXTABLE 'x' OLDER THAN x DAYS", 33, "a whole number"),
        ("PURGE INDEXTABLE 'x' OLDER THAN 7 WEEKS", 35, "Expected DAYS or DAY or HOURS or HOUR"),
        ("PURGE INDEXTABLE 'x' DRY", 25, "Expected RUN"),
        ("DROP INDEXTABLES PARTITIONS FROM 'x'", 37, "Expected WHERE"),
        ("DROP INDEXTABLES PARTITIONS FROM 'x' WHERE", 43, "a predicate after WHERE"),
        ("MERGE SPLITS 'x' TARGET SIZE lots", 30, "a number of bytes above 0"),
        ("MERGE SPLITS 'x' MAX SOURCE SPLITS PER MERGE 1", 46, "from 2 to"),
        ("MERGE SPLITS 'x' WHERE TARGET SIZE 1G", 24, "a predicate after WHERE"),
        ("MERGE SPLITS 'x' PRECOMMIT", 18, "Expected the end of the statement"),
        ("SELECT 1", 1, "No statement begins with SELECT"),
        ("", 1, "The statement is empty"),
    ],
)
def test_error_points_at_the_word(text, column, words):
    with pytest.raises(arrowlog.InvalidRequest) as caught:
        parse_statement(text)
    said = str(caught.value)
    assert words in said
    assert said.startswith(f"Line 1, column {column}: ")
    shown, caret = said.split("\n")[1:3]
    assert shown == f"  {text}"
    assert caret.index("^") == column + 1


def test_error_at_the_end_of_the_last_line():
    with pytest.raises(arrowlog.InvalidRequest, match="Line 2, column 1: Expected AT"):
        parse_statement("REPAIR INDEXFILES TRANSACTION LOG 'a'\n")


def test_error_in_a_later_line_shows_that_line():
    with pytest.raises(arrowlog.InvalidRequest) as caught:
        parse_statement("PURGE INDEXTABLE 'x'\n  OLDER THEN 7 DAYS")
    assert str(caught.value) == (
        "Line 2, column 9: Expected THAN, found THEN.\n    OLDER THEN 7 DAYS\n          ^^^^\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t",
        "REPAIR TABLE t",
        "DESCRIBE t",
        "DESCRIBE indextables",
        "DROP TABLE t",
        "TRUNCATE TABLE t",
        "MERGE INTO t USING s ON a WHEN MATCHED THEN DELETE",
        "",
        "   ",
        "'CHECKPOINT INDEXTABLES x'",
    ],
)
def test_other_statements_are_not_recognized(text):
    assert not is_statement(text)


@pytest.fixture
def events(root):
    build(root)
    return root


def only(text, **how):
    found = arrowlog.sql_statement(text, **how)
    assert isinstance(found, pa.Table)
    assert found.num_rows == 1
    return found.to_pylist()[0]


def test_repair(events):
    row = only(
        f"REPAIR INDEXFILES TRANSACTION LOG '{events}/{LOG_FOLDER}' AT LOCATION '{events}/new'"
    )
    assert list(row) == [
        "source_path",
        "target_path",
        "source_version",
        "total_splits",
        "valid_splits",
        "missing_splits",
        "status",
    ]
    assert (row["source_version"], row["valid_splits"], row["status"]) == (6, 5, "SUCCESS")
    options = {"repair.failOnMissing": True}
    os.unlink(events / "day=2024-01-02/part-00001.parquet")
    text = f"REPAIR INDEXFILES TRANSACTION LOG '{events}/{LOG_FOLDER}' AT LOCATION '{events}/more'"
    assert only(text, options=options)["status"].startswith("ERROR: ")


def test_describe_log(events):
    found = arrowlog.sql_statement(f"DESCRIBE INDEXTABLES TRANSACTION LOG '{events}' INCLUDE ALL")
    rows = found.to_pylist()
    kinds = [(row["version"], row["action_type"]) for row in rows]
    assert kinds[:3] == [(0, "protocol"), (0, "metadata"), (1, "add")]
    assert kinds[-2:] == [(6, "remove"), (6, "add")]
    assert len(found.column_names) == 47
    add = rows[2]
    assert add["partition_values"] == '{"day":"2024-01-01"}'
    assert add["min_values"].startswith('{"id":"0"')
    assert add["num_records"] == 1000
    assert add["modification_time"].isoformat() == "2024-01-01T00:00:00+00:00"
    assert add["log_file_path"] == f"{events}/{LOG_FOLDER}/{1:020d}.json"
    assert rows[0]["protocol_min_reader_version"] == 2
    assert rows[1]["metadata_partition_columns"] == '["day"]'
    assert not any(row["is_checkpoint"] for row in rows)


def test_describe_log_from_the_checkpoint_on(events):
    table = arrowlog.Table(events, options=QUIET)
    table.checkpoint()
    table.skips.record(paths(table.snapshot())[0], reason="slow")
    rows = arrowlog.sql_statement(f"describe tantivy4spark transaction log '{events}'").to_pylist()
    kinds = [(row["action_type"], row["is_checkpoint"]) for row in rows]
    assert kinds == [("protocol", True), ("metadata", True), *[("add", True)] * 5, ("skip", False)]
    assert (rows[-1]["skip_reason"], rows[-1]["skip_count"]) == ("slow", 1)
    assert rows[-1]["skip_retry_after"] > rows[-1]["skip_timestamp"]


def test_describe_log_of_lines_without_a_common_template(root):
    opening = [testing.protocol(), testing.metadata(pa.schema([("id", pa.int64())]))]
    testing.write_commit(root, 0, opening)
    odd = testing.add("a", tags={"x": "y"}, splitTags=["s"], stats="{}", numRecords=3)
    testing.write_commit(root, 1, [odd, testing.add("b", minValues={"id": "1"})])
    text = f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}'"
    adds = arrowlog.sql_statement(text).to_pylist()[2:]
    assert [row["path"] for row in adds] == ["a", "b"]
    assert (adds[0]["tags"], adds[0]["split_tags"]) == ('{"x":"y"}', '["s"]')
    assert (adds[0]["num_records"], adds[1]["min_values"]) == (3, '{"id":"1"}')


def test_describe_state(events):
    row = only(f"DESCRIBE INDEXTABLES STATE '{events}'")
    assert (row["format"], row["status"]) == ("none", "No checkpoint found")
    table = arrowlog.Table(events, options=QUIET)
    table.checkpoint()
    table.remove(paths(table.snapshot())[:1])
    row = only(f"DESCRIBE INDEXTABLES STATE '{events}'")
    assert row == {
        "table_path": str(events),
        "format": "both",
        "version": 7,
        "num_files": 4,
        "num_manifests": 1,
        "num_tombstones": 1,
        "tombstone_ratio": 0.2,
        "total_bytes": table.snapshot().size_bytes,
        "needs_compaction": False,
        "status": "OK",
    }


@pytest.mark.parametrize("verb", ["CHECKPOINT", "compact"])
def test_checkpoint(events, verb):
    row = only(f"{verb} INDEXTABLES '{events}'")
    assert row == {
        "table_path": str(events),
        "status": "SUCCESS",
        "checkpoint_version": 6,
        "num_actions": 7,
        "num_files": 5,
        "protocol_version": 2,
        "is_multi_part": False,
    }
    assert arrowlog.Table(events).snapshot().report.checkpoint == 6


def test_truncate(events):
    row = only(f"TRUNCATE INDEXTABLES TIME TRAVEL '{events}' DRY RUN")
    assert (row["status"], row["versions_deleted"], row["files_preserved"]) == ("DRY_RUN", 5, 5)
    assert len(os.listdir(events / LOG_FOLDER)) == 7
    row = only(f"TRUNCATE INDEXTABLES TIME TRAVEL '{events}'")
    assert (row["status"], row["versions_deleted"]) == ("SUCCESS", 5)
    assert row["checkpoint_version"] == 6
    assert arrowlog.Table(events).snapshot().num_files == 5
    assert not (events / LOG_FOLDER / f"{3:020d}.json").exists()


def test_drop_partitions(events):
    text = f"DROP INDEXTABLES PARTITIONS FROM '{events}' WHERE day < '2024-01-03'"
    row = only(text)
    assert list(row)[:4] == ["table_path", "status", "partitions_dropped", "splits_removed"]
    assert (row["status"], row["partitions_dropped"], row["splits_removed"]) == ("success", 2, 2)
    assert row["total_size_bytes"] > 0
    assert arrowlog.Table(events).snapshot().num_files == 3
    assert only(text)["status"] == "no_action"
    with pytest.raises(arrowlog.InvalidRequest):
        arrowlog.sql_statement(f"DROP INDEXTABLES PARTITIONS FROM '{events}' WHERE id = 1")


def test_purge(events):
    orphan = events / "day=2024-01-01/part-00009.parquet"
    orphan.write_bytes(b"1" * (1 << 20))
    os.utime(orphan, (1, 1))
    metrics = only(f"PURGE INDEXTABLE '{events}' DRY RUN")["metrics"]
    assert (metrics["status"], metrics["orphaned_files_found"]) == ("DRY_RUN", 1)
    assert (metrics["orphaned_files_deleted"], metrics["retention_hours"]) == (0, 168)
    assert orphan.exists()
    metrics = only(f"PURGE INDEXTABLE '{events}' OLDER THAN 2 DAYS")["metrics"]
    assert (metrics["status"], metrics["orphaned_files_deleted"]) == ("SUCCESS", 1)
    assert (metrics["size_mb_deleted"], metrics["retention_hours"]) == (1.0, 48)
    assert not orphan.exists()
    with pytest.raises(arrowlog.InvalidRequest, match="day"):
        arrowlog.sql_statement(f"PURGE INDEXTABLE '{events}' OLDER THAN 1 HOURS")


def test_purge_of_the_log(events):
    arrowlog.Table(events).checkpoint()
    for name in os.listdir(events / LOG_FOLDER):
        os.utime(events / LOG_FOLDER / name, (1, 1))
    text = f"PURGE INDEXTABLE '{events}' TRANSACTION LOG RETENTION 1 DAYS"
    metrics = only(text)["metrics"]
    assert metrics["tx_log_files_deleted"] == 5
    assert arrowlog.Table(events).snapshot().num_files == 5


def test_merge(root):
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, ["p"], options=QUIET)
    for number in range(6):
        table.write(pa.table({"p": ["ab"[number % 2]], "id": [number]}))
    row = only(f"MERGE SPLITS '{root}' WHERE p = 'a' TARGET SIZE 100M")
    assert list(row) == ["table_path", "metrics", "temp_directory_path", "heap_size_bytes"]
    metrics = row["metrics"]
    assert (metrics["status"], metrics["merged_files"], metrics["merge_groups"]) == (
        "success",
        3,
        1,
    )
    assert metrics["original_size_bytes"] > metrics["merged_size_bytes"] > 0
    assert table.refresh().num_files == 4
    row = only(f"MERGE SPLITS '{root}' MAX DEST SPLITS 1 MAX SOURCE SPLITS PER MERGE 2")
    assert row["metrics"]["merged_files"] == 2
    assert only(f"MERGE SPLITS '{root}' WHERE p = 'a'")["metrics"]["status"] == "no_action"
    assert sorted(table.scan().to_polars().collect()["id"]) == list(range(6))


def test_invalidate(events):
    table = arrowlog.Table(events)
    table.snapshot()
    table.snapshot()
    row = only(f"INVALIDATE INDEXTABLES TRANSACTION LOG CACHE FOR '{events}'")
    assert row["table_path"] == str(events)
    assert row["cache_hits_before"] > 0
    assert row["hit_rate_before"].endswith("%")
    assert repr(table) == f"Table('{events}')"
    table.snapshot()
    assert only("INVALIDATE INDEXTABLES TRANSACTION LOG CACHE")["table_path"] == "GLOBAL"
    assert repr(table) == f"Table('{events}')"


def test_invalidate_opens_the_table_with_its_storage_options(events):
    class Guarded(LocalFileSystem):
        protocol = "guarded"

        def __init__(self, token=None, **options):
            super().__init__(**options)
            if token != "right":
                raise PermissionError("The token is wrong.")

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(str(path).removeprefix("guarded://"))

    fsspec.register_implementation("guarded", Guarded, clobber=True)
    uri, options = f"guarded://{events}", {"token": "right"}
    table = arrowlog.Table(uri, options)
    table.snapshot()
    text = f"INVALIDATE INDEXTABLES TRANSACTION LOG CACHE FOR '{uri}'"
    row = arrowlog.sql_statement(text, storage_options=options).to_pylist()[0]
    assert row["table_path"] == table.uri
    assert row["result"].endswith("in 1 open tables")


def test_purge_does_not_count_files_that_were_not_deleted(events, monkeypatch):
    table = arrowlog.Table(events)
    table.set_properties({"logRetention.duration": "1h"})  # instead of the last 30 commits
    table.checkpoint()

    class Sealed(storage.LocalStore):
        def delete(self, keys):
            if keys:
                raise StoreUnavailable("It is sealed.")

    monkeypatch.setattr(storage, "LocalStore", Sealed)
    for name in os.listdir(f"{events}/_transaction_log"):
        os.utime(f"{events}/_transaction_log/{name}", (1, 1))
    with pytest.warns(arrowlog.ArrowlogWarning, match="deletions failed"):
        metrics = only(f"PURGE INDEXTABLE '{events}'")["metrics"]
    assert (metrics["status"], metrics["tx_log_files_deleted"]) == ("PARTIAL_SUCCESS", 0)


def test_missing_table_raises(tmp_path):
    with pytest.raises(arrowlog.TableNotFound):
        arrowlog.sql_statement(f"CHECKPOINT INDEXTABLES '{tmp_path}/no'")
    with pytest.raises(arrowlog.InvalidRequest, match="SELECT"):
        arrowlog.sql_statement("SELECT 1")


WORDS = [
    "REPAIR",
    "INDEXFILES",
    "TRANSACTION",
    "LOG",
    "AT",
    "LOCATION",
    "DESCRIBE",
    "INDEXTABLES",
    "STATE",
    "INCLUDE",
    "ALL",
    "WHERE",
    "CHECKPOINT",
    "TRUNCATE",
    "TIME",
    "TRAVEL",
    "DRY",
    "RUN",
    "DROP",
    "PARTITIONS",
    "FROM",
    "PURGE",
    "INDEXTABLE",
    "OLDER",
    "THAN",
    "DAYS",
    "MERGE",
    "SPLITS",
    "TARGET",
    "SIZE",
    "MAX",
    "DEST",
    "'x'",
    '"y"',
    "`a/b`",
    "7",
    "100M",
    "(",
    ")",
    ";",
    "--",
    "/*",
    "*/",
    "'",
    "\\",
    "é",
]


@settings(max_examples=cases(300))
@given(st.lists(st.sampled_from(WORDS), max_size=12) | st.text(max_size=40).map(lambda t: [t]))
def test_any_text_is_parsed_or_raises_with_a_position(words):
    text = " ".join(words)
    is_statement(text)
    try:
        said = parse_statement(text).kind
    except arrowlog.InvalidRequest as error:
        said = str(error)
    assert said in KINDS or (said.startswith("Line ") and "^" in said)


def test_leading_zeros_do_not_shorten_a_number():
    """Seven days, not zero: younger files must not be deleted."""
    statement = parse_statement(f"PURGE INDEXTABLE 'x' OLDER THAN {'0' * 30}7 DAYS")
    assert statement.older_than_ms == 7 * 86_400_000
    assert parse_statement(f"PURGE INDEXTABLE 'x' OLDER THAN {'0' * 30} DAYS").older_than_ms == 0
    with pytest.raises(arrowlog.InvalidRequest, match="Expected a number"):
        parse_statement(f"PURGE INDEXTABLE 'x' OLDER THAN {'9' * 5000} DAYS")


@pytest.mark.parametrize(
    "clauses",
    [
        "MAX DEST SPLITS 1 MAX GROUPS 5",
        "MAX GROUPS 1 MAX GROUPS 5",
        "MAX SOURCE SPLITS PER MERGE 3 MAX SOURCE SPLITS PER MERGE 4",
        "MAX DEST SPLITS 1 MAX SOURCE SPLITS PER MERGE 3 MAX GROUPS 1",
    ],
)
def test_repeated_clause_is_refused(clauses):
    with pytest.raises(arrowlog.InvalidRequest, match="Expected"):
        parse_statement(f"MERGE SPLITS 'x' {clauses}")


def test_describe_log_with_a_number_beyond_its_column(root):
    """The column is a 32-bit integer. Larger values are null there."""
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    skip = {"path": "x", "skipTimestamp": 1, "reason": "r", "operation": "m"}
    for version, count in enumerate([2**31, 2**31 - 1], 1):
        name = f"{version:020d}.json"
        lines = testing.lines([{"mergeskip": {**skip, "skipCount": count}}])
        (root / LOG_FOLDER / name).write_bytes(lines)
    del table
    told = arrowlog.sql_statement(f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}' INCLUDE ALL")
    assert told["skip_count"].to_pylist()[-2:] == [None, 2**31 - 1]


def test_description_of_a_log_whose_only_checkpoint_has_no_manifest_is_explained(root):
    properties = {"checkpoint.format": "parquet"}
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]), properties=properties)
    table.append([arrowlog.add_file("a", size=1)])
    table.checkpoint()
    os.remove(f"{root}/{LOG_FOLDER}/_checkpoints/{1:020d}.checkpoint.json")
    statement = f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}'"
    assert sql_statement(statement)["is_checkpoint"].to_pylist() == [False] * 3
    os.remove(f"{root}/{LOG_FOLDER}/{0:020d}.json")
    expected = "the checkpoint of version 1 cannot be read, and the commit of version 0"
    for text in (statement, f"DESCRIBE INDEXTABLES STATE '{root}'"):
        with pytest.raises(arrowlog.LogCorrupt, match=expected):
            sql_statement(text)
    assert sql_statement(f"{statement} INCLUDE ALL")["path"].to_pylist() == ["a"]


def test_description_survives_a_concurrent_cleanup(root, monkeypatch):
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    table.append([arrowlog.add_file("a", size=1)])
    read = execution.read_verified_actions

    def read_late(*args):
        if os.path.exists(f"{root}/{LOG_FOLDER}/{0:020d}.json"):
            table.checkpoint()
            os.remove(f"{root}/{LOG_FOLDER}/{0:020d}.json")
        return read(*args)

    monkeypatch.setattr(execution, "read_verified_actions", read_late)
    rows = sql_statement(f"DESCRIBE INDEXTABLES TRANSACTION LOG '{root}'")
    assert set(rows["is_checkpoint"].to_pylist()) == {True}

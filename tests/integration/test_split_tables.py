"""Tables of splits in every reader, compared with the rows that were written."""

import json
import os
import pickle
import random
import re
import subprocess
import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import real_tables, split_tables
from support.case_count import cases
from support.split_bundles import make_split

import arrowlog
from arrowlog.errors import DataFileError, InvalidRequest

BODIES = ["Spark reads SQL", "hello world", "only sql", "wörk, work!", None]


def row(number):
    return {
        "id": number,
        "text": None if number % 4 == 0 else f"Doc {number % 7}",
        "body": BODIES[number % 5],
        "score": None if number % 6 == 0 else number / 2,
    }


DAYS = [(f"2024-01-0{day}", [row(10 * day + n) for n in range(10)]) for day in range(1, 5)]
ROWS = [{"day": day, **each} for day, rows in DAYS for each in rows]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return split_tables.write(str(tmp_path_factory.mktemp("splits") / "table"), DAYS)


def read_polars(plan):
    return plan.to_polars().collect().to_dicts()


def read_dataset(plan):
    return plan.to_arrow_dataset().to_table().to_pylist()


def read_duckdb(plan):
    with duckdb.connect() as connection:
        return plan.to_duckdb(connection).to_arrow_table().to_pylist()


def read_workers(plan):
    """Each part of the plan as a worker gets it."""
    parts = pickle.loads(pickle.dumps(plan.splits(1)))
    return [each for part in parts for batch in part.batches() for each in batch.to_pylist()]


def read_arrow(plan):
    return plan.to_arrow().to_pylist()


READERS = [read_polars, read_dataset, read_arrow, read_duckdb, read_workers]


def in_order(rows):
    return sorted(rows, key=lambda each: each["id"])


def has(word):
    return lambda each: word in re.findall(r"\w+", (each["body"] or "").lower())


@pytest.mark.promise("scan.readers_agree")
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("where", "test"),
    [
        (None, lambda each: True),
        ("id BETWEEN 15 AND 32", lambda each: 15 <= each["id"] <= 32),
        ("score IS NULL", lambda each: each["score"] is None),
        ("day = '2024-01-02' AND id > 25", lambda each: each["id"] in range(26, 30)),
        ("body indexquery 'spark AND sql'", has("spark")),
        ("body INDEXQUERY 'NOT sql'", lambda each: not has("sql")(each)),
        ("NOT body indexquery 'sql'", lambda each: not has("sql")(each)),
        ("body NOT indexquery 'sql'", lambda each: not has("sql")(each)),
        (
            "body indexquery 'sql' AND id < 22 AND day <> '2024-01-01'",
            lambda each: has("sql")(each) and 20 <= each["id"] < 22,
        ),
        (
            "body indexquery 'hello' OR score > 20",
            lambda each: has("hello")(each) or (each["score"] or 0) > 20,
        ),
        (
            "(body indexquery 'hello' OR text indexquery '\"Doc 3\"') AND NOT id = 31",
            lambda each: (has("hello")(each) or each["text"] == "Doc 3") and each["id"] != 31,
        ),
        ("_indexall indexquery 'wör*'", has("wörk")),
        (
            "body indexquery 'hello AND id:[10 TO 20}'",
            lambda each: has("hello")(each) and each["id"] < 20,
        ),
        (
            [("body", "indexquery", "sql"), ("id", ">", 30)],
            lambda each: has("sql")(each) and each["id"] > 30,
        ),
        ([("body", "not indexquery", "sql")], lambda each: not has("sql")(each)),
        (
            [[("_indexall", "indexquery", "hello")], [("id", "=", 10)]],
            lambda each: has("hello")(each) or each["id"] == 10,
        ),
        (
            arrowlog.indexquery("body", "sql") & (pl.col("id") > 30),
            lambda each: has("sql")(each) and each["id"] > 30,
        ),
        (
            ~((pl.col("id") > 30) & arrowlog.indexquery("body", "sql")) | (pl.col("id") == 11),
            lambda each: not (has("sql")(each) and each["id"] > 30) or each["id"] == 11,
        ),
        (
            (pl.col("id") < 12) | arrowlog.indexquery("body", "sql"),
            lambda each: has("sql")(each) or each["id"] < 12,
        ),
        (
            arrowlog.indexquery("body", "sql") | (pc.field("id") == 11),
            lambda each: has("sql")(each) or each["id"] == 11,
        ),
        (
            ~arrowlog.indexquery("body", "sql") & "id < 20" & [("day", "=", "2024-01-01")],
            lambda each: not has("sql")(each) and each["id"] < 20,
        ),
    ],
)
def test_every_reader_returns_the_matching_rows(table, read, where, test):
    plan = table.scan(where)
    assert in_order(read(plan)) == [each for each in ROWS if test(each)]


@pytest.mark.promise("splits.search_is_exact")
def test_generated_predicates_mean_the_same_in_every_reader(table):
    chance = random.Random(8)

    def generate(depth=0):
        kind = chance.random()
        if depth < 3 and kind < 0.55:
            left, right = generate(depth + 1), generate(depth + 1)
            if chance.random() < 0.5:
                return f"({left[0]} AND {right[0]})", lambda each: left[1](each) and right[1](each)
            return f"({left[0]} OR {right[0]})", lambda each: left[1](each) or right[1](each)
        if depth < 3 and kind < 0.7:
            inner = generate(depth + 1)
            return f"NOT {inner[0]}", lambda each: not inner[1](each)
        if kind < 0.85:
            bound = chance.randrange(5, 55)
            return f"id < {bound}", lambda each: each["id"] < bound
        word = chance.choice(["sql", "hello", "wörk", "none"])
        return f"body indexquery '{word}'", has(word)

    for number in range(cases(60)):
        text, test = generate()
        wanted = [each for each in ROWS if test(each)]
        read = READERS[number % len(READERS)]
        assert in_order(read(table.scan(text))) == wanted, text
        count = table.scan(text).count()
        assert count is None or count == len(wanted), text


def test_table_readers_return_all_rows(table):
    assert in_order(table.to_polars().collect().to_dicts()) == ROWS
    assert in_order(table.to_arrow().to_pylist()) == ROWS
    assert sorted(table.to_pandas()["id"]) == [each["id"] for each in ROWS]
    assert in_order(arrowlog.scan_polars(table.uri).collect().to_dicts()) == ROWS


def test_columns_limits_and_counts_are_pushed_down(table):
    plan = table.scan("body indexquery 'sql'")
    wanted = [each["id"] for each in ROWS if has("sql")(each)]
    assert sorted(plan.to_polars().select("id").collect()["id"].to_list()) == wanted
    assert sorted(plan.to_arrow_dataset().to_table(columns=["id"])["id"].to_pylist()) == wanted
    assert plan.to_polars().select("day").collect().height == len(wanted)
    later = plan.to_polars().filter(pl.col("id") > 25).select("id", "day").collect()
    assert sorted(later["id"].to_list()) == [number for number in wanted if number > 25]
    assert plan.to_arrow_dataset().count_rows() == len(wanted)
    assert plan.to_arrow_dataset().head(3).num_rows == 3
    assert table.scan().to_polars().head(5).collect().height == 5
    assert table.scan("id < 15").to_arrow_dataset().count_rows() == 5
    assert table.scan().to_arrow_dataset().count_rows() == 40


def test_counts_come_from_the_index_where_exact(table):
    def number(test):
        return sum(map(test, ROWS))

    assert table.scan("body indexquery 'sql'").count() == number(has("sql"))
    both = table.scan("body indexquery 'sql' AND NOT body indexquery 'spark'")
    assert both.count() == number(lambda each: has("sql")(each) and not has("spark")(each))
    day = table.scan("body indexquery 'sql' AND day = '2024-01-02'")
    assert day.count() == number(lambda each: has("sql")(each) and each["day"] == "2024-01-02")
    assert table.scan("body indexquery 'sql' AND score > 3").count() is None
    assert table.scan("body indexquery 'sql' AND day = 'never'").count() == 0
    assert table.scan("body indexquery 'nothing'").count() == 0


def test_explain_reports_documents_and_splits(table):
    text = str(table.scan("body indexquery 'hello' AND id < 20").explain())
    assert "body indexquery 'hello': 2 of 10 documents in 1 of 1 splits match" in text
    assert "1 of 4 files to read" in text
    explanation = table.scan("text indexquery '\"Doc 5\"' OR id = 1").explain()
    assert re.search(r"\d of 40 documents in \d of 4 splits match", explanation.searches[0])
    assert explanation.searches[0] in explanation.to_html().replace("&#x27;", "'").replace(
        "&quot;", '"'
    )


def test_search_predicate_round_trips_through_text(table):
    for text in (
        "body indexquery 'a AND b'",
        "_indexall indexquery 'a'",
        "NOT body indexquery 'a'",
    ):
        assert str(table.scan(str(table.scan(text).predicate)).predicate) == str(
            table.scan(text).predicate
        )


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("body indexquery 'a -b'", "position 3"),
        ("body indexquery id", "right side of indexquery is not a text"),
        ("body indexquery 5", "right side of indexquery is not a text"),
        ("lower(body) indexquery 'a'", "left side of indexquery is not a column"),
        ("'body' indexquery 'a'", "left side of indexquery is not a column"),
        ("nope indexquery 'a'", "no column 'nope'"),
        ("_indexall = 'a'", "no column '_indexall'"),
        ("body indexquery 'nope:a'", "position 6: the table has no column 'nope'"),
        ("body indexquery 'day:a'", "partition column"),
        ("id indexquery 'a'", "'a' is not an integer"),
        ([("body", "indexquery", 5)], "not a text"),
        ([("nope", "indexquery", "a")], "no column 'nope'"),
    ],
)
def test_invalid_searches_are_refused_when_planned(table, where, message):
    with pytest.raises(InvalidRequest, match=message):
        table.scan(where)


def test_maintenance_refuses_or_ignores_splits(tmp_path):
    days = [("a", [row(number)]) for number in range(200)]
    table = split_tables.write(str(tmp_path / "table"), days)
    paths = table.scan().paths
    with pytest.raises(InvalidRequest, match=r"part-0\.split is a split, whose statistics"):
        table.update_statistics(sorted(paths)[:1])
    assert table.compact(target_size="1GB").files_removed == 0
    findings = {finding.code: finding for finding in table.doctor()}
    assert "small-files" not in findings
    assert "arrowlog.convert" in findings["stats-missing"].fix
    more = pa.Table.from_pylist([{"day": "a", "id": 999, "text": None}], split_tables.SCHEMA)
    table.write(more)
    assert table.doctor()
    assert table.version == 2


def test_indexquery_arguments_are_validated():
    with pytest.raises(InvalidRequest, match="position 3"):
        arrowlog.indexquery("body", "a -b")
    with pytest.raises(InvalidRequest, match="a name, not int"):
        arrowlog.indexquery(5, "a")
    with pytest.raises(TypeError, match="instead of and, or and not"):
        bool(arrowlog.indexquery("body", "a"))


def test_search_in_a_foreign_expression_raises_with_a_next_step():
    search = arrowlog.indexquery("body", "a")
    for use in (
        lambda: pl.DataFrame({"id": [1]}).filter(search),
        lambda: pl.col("id") == search,
        search.is_null,
    ):
        with pytest.raises(InvalidRequest, match=r"pass it to Table\.scan"):
            use()
    with pytest.raises(pa.ArrowInvalid, match=r"indexquery.* to be written left of & and \|"):
        (pc.field("id") > 5) & search
    both = pickle.loads(pickle.dumps((pl.col("id") > 5) & search))
    assert isinstance(both, type(search))
    assert both.op == "and"


def test_table_of_splits_and_parquet_files_is_read(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), DAYS[:2])
    more = [{"day": "2024-01-09", **row(90 + n)} for n in range(3)]
    table.write(pa.Table.from_pylist(more, split_tables.SCHEMA))
    everything = [each for each in ROWS if each["id"] < 30] + more
    for read in READERS:
        assert in_order(read(table.scan())) == everything
        assert in_order(read(table.scan("id > 25"))) == [e for e in everything if e["id"] > 25]
    assert table.scan().to_arrow_dataset().count_rows() == 23
    with pytest.raises(InvalidRequest, match=r"\.parquet is not a split, so it has no index"):
        table.scan("body indexquery 'sql'").to_polars()
    searched = table.scan("body indexquery 'sql' AND day < '2024-01-09'")
    assert in_order(read_polars(searched)) == [
        e for e in everything if has("sql")(e) and e["id"] < 90
    ]


def test_added_columns_are_null_and_match_no_search(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), DAYS[:1])
    table.add_columns({"later": pa.string()})
    assert {each["later"] for each in read_polars(table.scan())} == {None}
    assert read_polars(table.scan("later indexquery 'x'")) == []
    assert len(read_polars(table.scan("NOT later indexquery 'x'"))) == 10


def test_companion_splits_in_the_log_are_refused(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), DAYS[:1])
    add = {"path": "x.split", "partitionValues": {"day": "2024-01-01"}, "size": 10}
    add |= {"modificationTime": 1, "dataChange": True, "companionDeltaVersion": 5}
    table.append([add])
    with pytest.raises(DataFileError, match="companion index of Parquet") as raised:
        read_polars(table.scan())
    assert raised.value.path == "x.split"


@pytest.mark.promise("scan.missing_data_is_named")
def test_damaged_or_missing_split_raises_with_its_path_in_every_reader(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), DAYS[:2])
    path = table.scan("id = 25").paths[0]
    place = tmp_path / "table" / path
    data = place.read_bytes()
    for content, message in (
        (data[:-9] + b"x" * 9, "damaged"),
        (data[:100], "damaged"),
        (None, "does not exist"),
    ):
        if content is None:
            place.unlink()
        else:
            place.write_bytes(content)
        for read in (read_dataset, read_workers):
            with pytest.raises(DataFileError, match=message) as raised:
                read(table.scan())
            assert raised.value.path == path
            assert raised.value.version == 1
        with pytest.raises(Exception, match=message):
            read_polars(table.scan())
        assert len(read_dataset(table.scan("id < 15"))) == 5


def test_replaced_split_is_not_read_from_the_cache(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), [("a", [{"id": 1, "body": "old"}])])
    assert len(read_dataset(table.scan("body indexquery 'old'"))) == 1
    place = tmp_path / "table" / table.scan().paths[0]
    # Checksums are decimal numbers, so not every text of three letters gives the same size.
    splits = {
        word: make_split(split_tables.FIELDS, [[{"id": 1, "body": word}]])
        for word in ("new", "neu", "nov", "neo", "nue", "nyt", "nuv", "nua")
    }
    new, data = next(item for item in splits.items() if len(item[1]) == place.stat().st_size)
    place.unlink()
    place.write_bytes(data)
    os.utime(place, (5, 5))
    assert len(read_dataset(table.scan("body indexquery 'old'"))) == 0
    assert len(read_dataset(table.scan(f"body indexquery '{new}'"))) == 1


def test_cache_path_is_set_by_options_not_by_the_table(tmp_path):
    split_tables.write(str(tmp_path / "table"), DAYS[:1])
    options = {"splits.cache.path": str(tmp_path / "mine"), "splits.cache.maxSize": "1GB"}
    table = arrowlog.Table(str(tmp_path / "table"), options=options)
    table.set_properties({"spark.indextables.splits.cache.path": str(tmp_path / "theirs")})
    read_dataset(table.scan("body indexquery 'sql'"))
    assert os.listdir(tmp_path / "mine")
    assert not (tmp_path / "theirs").exists()


def test_splits_in_a_remote_store_are_read_and_searched(tmp_path):
    import fsspec

    local = split_tables.write(str(tmp_path / "table"), DAYS)
    memory = fsspec.filesystem("memory")
    root = f"/split-table-{os.getpid()}"
    for place, _, names in os.walk(tmp_path / "table"):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                memory.pipe_file(f"{root}/{os.path.relpath(path, tmp_path / 'table')}", file.read())
    options = {"splits.cache.path": str(tmp_path / "remote-cache")}
    table = arrowlog.Table(f"memory:/{root}", options=options)
    assert in_order(read_dataset(table.scan())) == in_order(read_dataset(local.scan()))
    found = read_dataset(table.scan("body indexquery 'sql' AND id > 20"))
    assert in_order(found) == [each for each in ROWS if has("sql")(each) and each["id"] > 20]
    # More splits than are fetched ahead, a damaged one among them, and a reader that stops early.
    days = [(f"d{number}", [row(number)]) for number in range(30)]
    many = split_tables.write(str(tmp_path / "many"), days)
    for path in many.scan().paths:
        with open(os.path.join(many.uri, path), "rb") as file:
            memory.pipe_file(f"{root}-many/{path}", file.read())
    log = os.path.join(many.uri, "_transaction_log")
    for name in os.listdir(log):
        with open(os.path.join(log, name), "rb") as file:
            memory.pipe_file(f"{root}-many/_transaction_log/{name}", file.read())
    remote = arrowlog.Table(f"memory:/{root}-many", options=options)
    assert [each["id"] for each in in_order(read_dataset(remote.scan()))] == list(range(30))
    assert remote.scan().to_arrow_dataset().head(3).num_rows == 3
    batches = remote.scan().row_reader.batches()
    next(batches)
    batches.close()
    bad = remote.scan("id = 20").paths[0]
    memory.pipe_file(f"{root}-many/{bad}", b"x" * memory.size(f"{root}-many/{bad}"))
    fresh = arrowlog.Table(remote.uri, options={"splits.cache.path": str(tmp_path / "fresh")})
    with pytest.raises(DataFileError, match="damaged") as raised:
        read_dataset(fresh.scan())
    assert raised.value.path == bad
    memory.rm(root, recursive=True)
    memory.rm(f"{root}-many", recursive=True)


def test_convert_writes_the_rows_as_parquet_with_statistics(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), DAYS)
    made = arrowlog.convert(table.uri, str(tmp_path / "made"))
    assert in_order(read_dataset(made.scan())) == ROWS
    assert all(path.endswith(".parquet") for path in made.scan().paths)
    assert made.scan("id = 25").num_files == 1
    assert made.snapshot().partition_columns == ("day",)
    with pytest.raises(arrowlog.TableExists):
        arrowlog.convert(table.uri, str(tmp_path / "made"))
    with pytest.raises((arrowlog.TableExists, InvalidRequest)):
        arrowlog.convert(table.uri, table.uri)
    part = arrowlog.convert(table.uri, str(tmp_path / "part"), where="body indexquery 'sql'")
    assert in_order(read_dataset(part.scan())) == [each for each in ROWS if has("sql")(each)]


def test_failed_conversion_can_be_repeated(tmp_path):
    table = split_tables.write(str(tmp_path / "table"), DAYS)
    place = tmp_path / "table" / table.scan().paths[3]
    data = place.read_bytes()
    place.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataFileError, match="damaged") as raised:
        arrowlog.convert(table.uri, str(tmp_path / "made"))
    assert raised.value.path == table.scan().paths[3]
    place.write_bytes(data)
    made = arrowlog.convert(table.uri, str(tmp_path / "made"))
    assert in_order(read_dataset(made.scan())) == ROWS


def test_rows_and_convert_on_the_command_line(table, tmp_path):
    def run(*arguments):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "arrowlog", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    shown = run("rows", table.uri, "--where", "body indexquery 'hello'", "--limit", "2")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("hello world") == 2
    some = run("rows", table.uri, "--columns", "id, day", "--output", "csv")
    assert some.stdout.count("\n") == 21
    assert some.stdout.startswith('"id","day"') or some.stdout.startswith("id,day")
    wrong = run("rows", table.uri, "--where", "body indexquery '+a'")
    assert (wrong.returncode, "position 1" in wrong.stderr) == (1, True)
    assert run("rows", table.uri, "--columns", "nope").returncode == 1
    done = run("convert", table.uri, str(tmp_path / "made"))
    assert "40 rows in 4 files" in done.stdout, done.stderr


def test_missing_extra_raises_with_the_package_to_install(table, tmp_path):
    (tmp_path / "tantivy.py").write_text("raise ImportError")
    code = (
        "import sys, arrowlog\n"
        f"table = arrowlog.Table({table.uri!r}, options={{'splits.cache.path': sys.argv[1]}})\n"
        "assert table.scan().to_arrow_dataset().to_table(columns=['id', 'text']).num_rows == 40\n"
        "try:\n"
        "    table.scan(\"body indexquery 'a'\").to_arrow_dataset().to_table()\n"
        "except arrowlog.InvalidRequest as error:\n"
        "    assert \"pip install 'arrowlog[splits]'\" in str(error)\n"
        "else:\n"
        "    raise SystemExit(1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", code, str(tmp_path / "c")]
    subprocess.run(command, check=True, env=environment)


@pytest.mark.promise("splits.rows_are_complete")
@real_tables.needed
def test_rows_of_real_tables_in_every_reader(tmp_path):
    wanted = json.loads((real_tables.FOLDER / "expected_rows.json").read_text())
    assert len(wanted) == 11
    for name, rows in wanted.items():
        options = {"splits.cache.path": str(tmp_path / "cache")}
        table = arrowlog.Table(str(real_tables.FOLDER / name), options=options)
        for read in READERS:
            assert sorted(map(_text, read(table.scan()))) == sorted(map(_text, rows)), name
        first = next(each["text"] for each in rows if each["text"])
        found = read_dataset(table.scan(arrowlog.indexquery("text", f'"{first}"')))
        assert sorted(map(_text, found)) == sorted(_text(e) for e in rows if e["text"] == first)


def _text(each):
    return json.dumps(each, sort_keys=True, default=str)

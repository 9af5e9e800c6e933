"""Searches in splits: the rows that match, and refusals of what the index cannot answer."""

import datetime as dt
import os

import pyarrow as pa
import pytest
from support.split_bundles import field, make_split
from support.split_cases import SCHEMA, open_split

from arrowlog.errors import DataFileError, InvalidRequest
from arrowlog.splits import SplitSearch, check_query
from arrowlog.splits.search import _WINDOW_ROWS

FIELDS = {
    "id": field("i64"),
    "name": field("text"),
    "body": field("text", tokenizer_name="default", fast=False),
    "stems": field("text", tokenizer_name="en_stem", fast=False),
    "words": field("text", tokenizer_name="whitespace", fast=False),
    "score": field("f64"),
    "flag": field("bool"),
    "at": field("date"),
    "ip": field("ip_addr"),
}


def at(day, micros=0):
    return dt.datetime(2024, 1, day, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


ROWS = [
    {"id": 0, "name": "spark", "body": "Spark reads SQL.", "flag": True, "at": at(1)},
    {"id": 1, "name": "Spark SQL", "body": "SQL reads spark", "score": 1.5, "at": at(1, 1)},
    {"id": 2, "name": "line\nbreak", "body": "hello, World! C++", "score": -2.0, "ip": "10.0.0.1"},
    {"id": 3, "body": "running runs", "stems": "running runs", "words": "C++ Case a.b*c"},
    {"id": 4, "name": "", "flag": False, "score": float("nan"), "ip": "2001:db8::5"},
    {"id": -5, "name": "wörk", "body": "wörk Work", "ip": "10.0.0.200", "score": float("inf")},
]


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    data = make_split(FIELDS, [ROWS[:2], ROWS[2:]])
    with open_split(tmp_path_factory.mktemp("split"), data, 6) as files:
        base = {}  # row number to id: segments may come in another order
        from arrowlog.splits import RowDecoder

        for numbers, batch in RowDecoder(files, pa.schema([("id", pa.int64())])).batches():
            base |= dict(zip(numbers.tolist(), batch["id"].to_pylist(), strict=True))
        found = SplitSearch(files)

        def run(column, text):
            rows = found.rows(column, text).tolist()
            assert rows == sorted(rows)
            assert found.count(column, text) == len(rows)
            return {base[row] for row in rows}

        yield run


@pytest.mark.parametrize(
    ("column", "query", "ids"),
    [
        # Raw text is one term, case kept.
        ("name", "spark", {0}),
        ("name", "Spark", set()),
        ("name", '"Spark SQL"', {1}),
        ("name", r"Spark\ SQL", {1}),
        ("name", "Spark*", {1}),
        ("name", "?park*", {0, 1}),
        ("name", "line*", {2}),
        ("name", "line?break", {2}),
        ("name", "w?rk", {-5}),
        ("name", '""', {4}),
        # Divided text, lower case.
        ("body", "SPARK", {0, 1}),
        ("body", "spark AND sql", {0, 1}),
        ("body", "spark sql", {0, 1}),
        ("body", '"spark reads"', {0}),
        ("body", '"reads spark"', {1}),
        ("body", "reads-spark", {1}),
        ("body", "spark AND NOT hello", {0, 1}),
        ("body", "NOT spark", {2, 3, 4, -5}),
        ("body", "NOT spark AND NOT hello", {3, 4, -5}),
        ("body", '(hello OR spark) AND NOT "reads spark"', {0, 2}),
        ("body", "C++", {2}),
        ("body", "WOR*", {2, -5}),
        ("body", "wör?", {-5}),
        ("body", "w*k", {-5}),
        ("body", "...", set()),
        ("body", "nothing OR hello", {2}),
        ("body", "run", set()),
        # Stems, and words with their case.
        ("stems", "run", {3}),
        ("words", "case", set()),
        ("words", "Case", {3}),
        ("words", r"a.b\*c", {3}),
        ("words", "a.*", {3}),
        # Other fields and types.
        ("body", "spark AND id:1", {1}),
        ("body", "id:[1 TO 3}", {1, 2}),
        ("id", "<0", {-5}),
        ("id", ">=3", {3, 4}),
        ("id", r"\-5", {-5}),
        ("score", "1.5", {1}),
        ("score", "[* TO 2]", {1, 2}),
        ("score", ">1", {1, -5}),
        ("flag", "true", {0}),
        ("flag", "NOT true", {1, 2, 3, 4, -5}),
        ("at", "2024-01-01", {0}),
        ("at", ">2024-01-01", {1}),
        ("at", "[2024-01-01T00:00:00Z TO 2024-01-01T00:00:00.000001Z]", {0, 1}),
        ("at", '"2024-01-01T01:00:00+01:00"', {0}),
        ("ip", "10.0.0.1", {2}),
        ("ip", "[10.0.0.0 TO 10.0.0.255]", {2, -5}),
        ("ip", '"2001:db8::5"', {4}),
        # All text fields.
        ("_indexall", "spark", {0, 1}),
        ("_indexall", "wörk OR run", {-5, 3}),
        ("_indexall", "NOT spark", {2, 3, 4, -5}),
        ("_indexall", "flag:true", {0}),
        # A column that the table has and the split lacks.
        ("later", "x", set()),
        ("later", "NOT x", {0, 1, 2, 3, 4, -5}),
    ],
)
def test_search_finds_exactly_its_rows(search, column, query, ids):
    assert search(column, query) == ids


@pytest.mark.parametrize(
    ("column", "query", "what"),
    [
        ("name", "[a TO b]", "position 1: .*ranges are not supported"),
        ("stems", "runn*", "position 1: .*stems"),
        ("id", "x", "position 1: 'x' is not an integer"),
        ("id", "1.5", "is not an integer"),
        ("id", "9223372036854775808", "is not an integer"),
        ("body", "a AND id:1*", "position 10: wildcards search text only"),
        ("score", "nan", "is not a number"),
        ("flag", "yes", "is not true or false"),
        ("flag", "[false TO true]", "no ranges"),
        ("at", "yesterday", "is not a date"),
        ("ip", "10.0.0", "is not an IP address"),
    ],
)
def test_unsupported_search_of_a_field_is_refused(search, column, query, what):
    with pytest.raises(InvalidRequest, match=what):
        search(column, query)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (field("text", stored=False), "the split has its index, but not its values"),
        (
            field("text", tokenizer_name="custom", fast=False),
            "tokenizer 'custom', which is not known",
        ),
    ],
)
def test_field_that_cannot_be_reindexed_raises_with_its_name(tmp_path, fields, message):
    data = make_split({"t": fields, "other": field("text")}, [[{"other": "x"}]])
    with open_split(tmp_path, data) as files:
        found = SplitSearch(files)
        with pytest.raises(DataFileError, match=message) as raised:
            found.rows("t", "x")
        assert "'t'" in str(raised.value)
        assert len(found.rows("other", "x")) == 1


def test_json_fields_are_not_searched(tmp_path):
    data = make_split({"j": field("json_object"), "t": field("text")}, [[{"t": "x"}]])
    with open_split(tmp_path, data) as files, pytest.raises(InvalidRequest, match="json_object"):
        SplitSearch(files).rows("t", "j:x")


def test_field_names_with_dots_and_tokenizers_with_limits(tmp_path):
    fields = {"a.b": field("text", tokenizer_name="default_limit_5", fast=False)}
    with open_split(tmp_path, make_split(fields, [[{"a.b": "Abcd Abcde"}]])) as files:
        assert SplitSearch(files).count("a.b", "ABCD") == 1
        assert SplitSearch(files).count("a.b", "abcde") == 0  # not below the limit
        assert SplitSearch(files).count("a.b", r"a\.b:abcd") == 1


def test_every_character_is_searched_for_literally(tmp_path):
    values = [f"a{chr(code)}b" for code in (*range(1, 128), 0xE9, 0x6771, 0x1F600)]
    rows = [{"id": number, "name": value} for number, value in enumerate(values)]
    fields = {name: FIELDS[name] for name in ("id", "name")}
    with open_split(tmp_path, make_split(fields, [rows])) as files:
        search = SplitSearch(files)
        for number, value in enumerate(values):
            escaped = "".join(f"\\{char}" for char in value)
            quoted = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
            for query in (escaped, quoted, f"{escaped}*", f"*{escaped}", f"?{escaped[2:]}"):
                assert search.rows("name", query).tolist() == [number], query
        assert search.count("name", "a?b") == len(values)
        assert search.count("name", "a*") == len(values)


def test_unwritable_index_raises(tmp_path, monkeypatch):
    import arrowlog.splits.search as module

    monkeypatch.setattr(module, "_WRITER_BYTES", 1)  # less than tantivy accepts
    fields = {"id": FIELDS["id"]}
    with (
        open_split(tmp_path, make_split(fields, [[{"id": 1}]])) as files,
        pytest.raises(InvalidRequest, match=r"cannot be written .*splits\.cache\.path"),
    ):
        SplitSearch(files).rows("id", "1")
    assert not [name for name in os.listdir(tmp_path / "cache") if not name.endswith(".lock")]


def test_wildcards_are_lowercased_like_the_tokenizer(tmp_path):
    fields = {"body": FIELDS["body"]}
    with open_split(tmp_path, make_split(fields, [[{"body": "ΟΔΟΣ İX"}]])) as files:
        for query in ("ΟΔΟΣ", "ΟΔΟΣ*", "*ΟΔΟΣ", "?ΔΟΣ", "ΟΔΟσ", "İ*", "*X"):
            assert SplitSearch(files).count("body", query) == 1, query


def test_indexall_searches_the_columns_of_the_table(tmp_path):
    fields = {"name": FIELDS["name"], "body": FIELDS["body"]}
    data = make_split(fields, [[{"name": "x", "body": "y"}]])
    with open_split(tmp_path, data) as files:
        assert SplitSearch(files).count("_indexall", "x") == 1
        kept = SplitSearch(files, columns=["body", "added"])  # `name` was dropped
        assert [kept.count("_indexall", text) for text in ("x", "y", "NOT x")] == [0, 1, 1]
        assert SplitSearch(files, columns=["added"]).count("_indexall", "y") == 0


def cached_kinds(folder):
    names = os.listdir(folder / "cache")
    return sorted(name.partition(".")[2] for name in names if not name.endswith(".lock"))


def test_first_search_indexes_its_fields_and_later_ones_all(tmp_path):
    rows = [{"id": number, "name": f"n{number}", "body": "a b"} for number in range(9)]
    fields = {name: FIELDS[name] for name in ("id", "name", "body")}
    data = make_split(fields, [rows])
    with open_split(tmp_path, data) as files:
        assert SplitSearch(files).count("body", "b") == 9
        assert cached_kinds(tmp_path) == ["field_search"]
        assert SplitSearch(files).rows("body", '"a b"').tolist() == list(range(9))
        assert cached_kinds(tmp_path) == ["field_search"]
        # Without the values of `name`, the terms would match nothing.
        assert SplitSearch(files).count("name", "n3") == 1
        assert SplitSearch(files).count("body", "b AND id:[2 TO 4] AND NOT name:n3") == 2
        assert cached_kinds(tmp_path) == ["field_search", "search"]


def test_fields_of_all_searches_of_a_predicate_are_indexed_together(tmp_path):
    fields = {name: FIELDS[name] for name in ("id", "name", "body")}
    data = make_split(fields, [[{"id": 1, "name": "n", "body": "b"}]])
    with open_split(tmp_path, data) as files:
        searches = [("name", "n"), ("body", "b OR id:5"), ("missing", "x")]
        found = SplitSearch(files, searches)
        assert [found.count(*search) for search in searches] == [1, 1, 0]
    assert cached_kinds(tmp_path) == ["field_search"]


def test_many_hits_are_read_in_windows(tmp_path, monkeypatch):
    import arrowlog.splits.search as module

    rows = [{"id": n, "body": "even" if n % 2 == 0 else "odd"} for n in range(1000)]
    fields = {name: FIELDS[name] for name in ("id", "body")}
    with open_split(tmp_path, make_split(fields, [rows])) as files:
        whole = SplitSearch(files).rows("body", "even").tolist()
        monkeypatch.setattr(module, "_WINDOW_ROWS", 64)
        assert SplitSearch(files).rows("body", "even").tolist() == whole == list(range(0, 1000, 2))
    assert _WINDOW_ROWS > 64


def test_query_is_validated_before_any_split_is_read():
    schema = SCHEMA.append(pa.field("part", pa.string())).append(
        pa.field("tags", pa.list_(pa.string()))
    )
    check_query("body", "spark AND id:[1 TO 5] AND day:2024-01-01 AND flag:true", schema, ["part"])
    check_query("_indexall", "spark", schema, ["part"])
    check_query("ip", "[10.0.0.0 TO 10.0.0.9]", schema, ["part"])
    for column, query, what in (
        ("body", "x AND nowhere:5", "position 15: the table has no column 'nowhere'"),
        ("nowhere", "x", "no column 'nowhere'"),
        ("body", "part:x", "partition column"),
        ("body", "tags:x", "cannot be searched"),
        ("body", "id:x", "is not an integer"),
        ("id", "1*", "wildcards search text only"),
        ("_indexall", "[1 TO 5]", "needs the name of a field"),
    ):
        with pytest.raises(InvalidRequest, match=what):
            check_query(column, query, schema, ["part"])

"""Adds given by users: validation before anything is written."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrowlog
from arrowlog import add_file
from arrowlog.errors import InvalidRequest
from arrowlog.formats.base import Metadata
from arrowlog.formats.table_schema import format_spark_schema
from arrowlog.snapshot.typed_values import to_log_text
from arrowlog.transaction.add_files import Add, parse_add, relative_data_path, validate_adds

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("f", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("ok", pa.bool_()),
        ("blob", pa.binary()),
    ]
)
METADATA = Metadata("t", format_spark_schema(SCHEMA), ("day",))
NAIVE = dt.datetime.fromisoformat("2024-01-01T00:00:00")
GOOD = {"size": 5, "modification_time": 7}


def check(*adds):
    return validate_adds(adds, METADATA, SCHEMA)


def good(**fields):
    return add_file("a", {"day": "2024-01-01"}, **GOOD | fields)


def test_add_is_encoded_as_in_the_log():
    add = add_file(
        "day=1/a",
        {"day": dt.date(2024, 1, 31)},
        **GOOD,
        num_records=3,
        min_values={"id": 1, "price": decimal.Decimal("1.50"), "at": NAIVE},
        max_values={"id": 9, "name": "z", "ok": True, "local": NAIVE},
        null_count={"id": 0},
        tags={"by": "me"},
        footer_start_offset=4,
        hasFooterOffsets=True,
    )
    assert check(add) == [
        {
            "path": "day=1/a",
            "partitionValues": {"day": "2024-01-31"},
            "size": 5,
            "modificationTime": 7,
            "dataChange": True,
            "tags": {"by": "me"},
            "footerStartOffset": 4,
            "hasFooterOffsets": True,
            "stats": '{"numRecords":3,"nullCount":{"id":0}}',
            "numRecords": 3,
            "minValues": {"at": "2024-01-01T00:00:00.000000Z", "id": "1", "price": "1.50"},
            "maxValues": {
                "id": "9",
                "local": "2024-01-01T00:00:00.000000",
                "name": "z",
                "ok": "true",
            },
        }
    ]


def test_log_field_names_are_validated_like_arguments():
    ours = add_file("a", {"day": None}, size=1, min_values={"id": 1}, num_records=2)
    assert (
        add_file("a", partitionValues={"day": None}, size=1, minValues={"id": 1}, numRecords=2)
        == ours
    )
    given = {"path": "a", "partitionValues": {"day": None}, "size": 1, "tags": None}
    assert parse_add({"add": given | {"minValues": {"id": 1}, "numRecords": 2}}, "x") == ours
    assert parse_add(given | {"null_count": {"id": 1}}, "x").null_count == {"id": 1}
    assert parse_add(ours, "x") is ours


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: add_file("a", colour=1), "no field 'colour'"),
        (lambda: add_file("a", {"day": None}, partitionValues={}), "twice"),
        (lambda: add_file("a", ["day"]), "Pass a map"),
        (lambda: parse_add("a", "adds[0]"), r"adds\[0\] is a string"),
        (lambda: parse_add(5, "adds[0]"), "of type int, not an add"),
        (lambda: parse_add({}, "adds[0]"), "has no path"),
        (lambda: parse_add({"path": "a", "minValues": 5}, "adds[0]"), "Pass a map"),
    ],
)
def test_invalid_adds_are_refused(make, said):
    with pytest.raises(InvalidRequest, match=said):
        make()


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (good(size=0), "size is 0"),
        (good(size=True), "size is True"),
        (good(size=2**63), "bytes, at least 1"),
        (good(modification_time=-1), "modification_time is -1"),
        (good(modification_time=10**15), "before the year 10000"),
        (good(num_records=-1), "num_records is -1"),
        (good(num_records=1.0), "num_records is 1.0"),
        (good(null_count={"id": -1}), r"null_count\['id'\] is -1"),
        (good(null_count={"no": 1}), "null_count has 'no', which is not a column"),
        (good(min_values={"no": 1}), "min_values has 'no', which is not a column"),
        (good(max_values={"no": 1}), "max_values has 'no', which is not a column"),
        (good(footerStartOffset="5"), "footerStartOffset is '5'"),
        (good(hasFooterOffsets=1), "true or false"),
        (good(docMappingJson={}), "Must be text"),
        (good(min_values={"id": "x"}), "not a valid int64"),
        (good(min_values={"id": 2**63}), "not a valid int64"),
        (good(min_values={"id": True}), "not a valid int64"),
        (good(min_values={"id": 5}, max_values={"id": 4}), "Are they swapped"),
        (good(min_values={"name": "b"}, max_values={"name": "a"}), "Are they swapped"),
        (good(min_values={"at": "b"}), "not a valid timestamp"),
        (good(min_values={"day": NAIVE}), "the column holds dates"),
        (good(min_values={"name": "\ud800"}), "unpaired surrogate"),
        (good(min_values={"name": [1]}), "type list cannot be stored"),
        (add_file("a", **GOOD), "partition_values has no 'day'"),
        (add_file("a", {"day": None, "id": 1}, **GOOD), "'id', which is not a partition column"),
        (add_file("a", {"day": "Monday"}, **GOOD), "is 'Monday', which is not a valid date32"),
        (add_file("a", {"day": object()}, **GOOD), "type object cannot be stored"),
    ],
)
def test_invalid_add_fields_are_refused(add, said):
    with pytest.raises(InvalidRequest, match=said):
        check(good(), Add("b", *[getattr(add, n) for n in Add.__slots__[1:]]))


def test_duplicate_add_in_one_commit_is_refused():
    with pytest.raises(InvalidRequest, match=r"adds\[1\] \(a\) is a duplicate"):
        check(good(), good())


def test_partition_values_for_an_unpartitioned_table_are_refused():
    with pytest.raises(InvalidRequest, match="The table is not partitioned"):
        validate_adds([good()], Metadata("t", format_spark_schema(SCHEMA)), SCHEMA)


@pytest.mark.parametrize("value", [None, "", "__HIVE_DEFAULT_PARTITION__"])
def test_empty_partition_values_are_null(value):
    assert check(add_file("a", {"day": value}, **GOOD))[0]["partitionValues"] == {"day": None}


def test_nan_and_infinite_bounds_are_accepted():
    """Readers treat NaN and infinite bounds as unknown and keep the file."""
    found = check(good(min_values={"f": float("-inf")}, max_values={"f": float("nan")}))
    assert found[0]["minValues"] == {"f": "-inf"}
    assert check(good(min_values={"blob": "x"}, max_values={"blob": "a"}))[0]["maxValues"]


ROOT = "/data/table"
SPELLED = [ROOT, f"file://{ROOT}"]


@pytest.mark.parametrize(
    "path",
    [
        "",
        " ",
        None,
        5,
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/..",
        "s3://b/x",
        "file:/x",
        "a\n/../b",
        "_transaction_log/0.json",
        "folder/",
        "nul\0",
        "/data/table/../x",
        "/data/tables/x",
    ],
)
def test_external_paths_are_refused(path):
    with pytest.raises(InvalidRequest, match="adds"):
        relative_data_path(path, ROOT, SPELLED, "adds[0]")


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("a", "a"),
        ("/data/table/a", "a"),
        ("file:///data/table/p=1/a b%20", "p=1/a b%20"),
        ("..a", "..a"),
        ("a..b/c", "a..b/c"),
        ("x\ny", "x\ny"),
    ],
)
def test_paths_inside_the_table_are_made_relative(path, key):
    assert relative_data_path(path, ROOT, SPELLED, "adds[0]") == key


@given(st.text(alphabet="./a:\n\\ é", max_size=8))
def test_accepted_paths_can_be_read(path):
    """A commit with a path its readers refuse would make the table unreadable."""
    from arrowlog import testing
    from arrowlog.decode import LineBuffer, decode_buffer
    from arrowlog.snapshot.log_replay import replay_actions

    try:
        key = relative_data_path(path, ROOT, SPELLED, "adds[0]")
    except InvalidRequest:
        return
    window = LineBuffer(1 << 20)
    opening = [testing.protocol(), testing.metadata(SCHEMA, ["day"])]
    window.append("0.json", 0, testing.lines([*opening, testing.add(key)]))
    assert replay_actions(None, decode_buffer(window), 0, ROOT).state.adds["key"].to_pylist() == [
        key
    ]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, pa.int64(), None),
        ("as it is", pa.int64(), "as it is"),
        (True, pa.bool_(), "true"),
        (False, pa.bool_(), "false"),
        (-0.0, pa.float64(), "-0.0"),
        (1e300, pa.float64(), "1e+300"),
        (decimal.Decimal("1E+3"), pa.decimal128(10, 2), "1000"),
        (decimal.Decimal("0.00"), pa.decimal128(10, 2), "0.00"),
        (dt.date(1, 1, 1), pa.date32(), "0001-01-01"),
        (pa.scalar(5), pa.int64(), "5"),
        (
            dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            pa.timestamp("us", "UTC"),
            "2024-01-01T00:00:00.000000Z",
        ),
        (
            NAIVE + dt.timedelta(hours=2, microseconds=5),
            pa.timestamp("us"),
            "2024-01-01T02:00:00.000005",
        ),
    ],
)
def test_values_are_encoded_as_log_text(value, kind, text):
    assert to_log_text(value, kind) == text


def test_scalars_of_other_libraries_are_accepted():
    class Scalar:
        def item(self):
            return 0.5

    assert to_log_text(Scalar(), pa.float32()) == "0.5"


def test_sizes_and_times_come_from_the_store(root):
    table = arrowlog.Table.create(root, SCHEMA)
    (root / "a").write_bytes(b"12345")
    table.append([add_file("a"), add_file(f"{root}/b", size=3), add_file("c", **GOOD)])
    files = table.snapshot().files.sort_by("path").to_pylist()
    assert [(f["path"], f["size_bytes"]) for f in files] == [("a", 5), ("b", 3), ("c", 5)]
    when = int((root / "a").stat().st_mtime * 1000)
    assert abs(files[0]["modification_time"].timestamp() * 1000 - when) < 2
    with pytest.raises(InvalidRequest, match="there is no such file"):
        table.append(add_file("missing"))

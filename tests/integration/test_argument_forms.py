"""Arguments as other libraries hand them over: numbers of numpy, timedeltas, schemas of polars."""

import datetime as dt
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog import testing
from arrowlog.errors import InvalidRequest

ROWS = pa.table({"day": ["mon", "tue"], "id": [1, 2]})


@pytest.fixture
def table(tmp_path):
    table = arrowlog.Table.create(tmp_path, ROWS.schema, partition_columns=["day"])
    for _ in range(3):
        table.write(ROWS)
    return table


def test_numbers_of_numpy_are_versions_and_times(table):
    versions = table.history().to_pandas()["version"]
    oldest = versions.min()
    assert isinstance(oldest, np.integer)
    assert table.snapshot(version=oldest).version == 0
    assert table.scan(version=versions.max()).num_files == 6
    now = np.int64(dt.datetime.now(dt.UTC).timestamp() * 1000 + 60_000)
    assert table.snapshot(timestamp=now).version == 3
    assert table.diff(np.int64(1), np.int32(3)).added.num_rows == 4
    assert table.diff(np.int64(2)).added.num_rows == 2
    assert table.history(limit=np.int16(2)).num_rows == 2
    new = arrowlog.add_file("day=x/a", partition_values={"day": "x"}, size=1)
    first = table.append([new], txn=("loader", np.int64(7)))
    assert (first.version, first.duplicate) == (4, False)
    assert arrowlog.Table(table.uri).append([new], txn=("loader", 7)).duplicate
    assert table.remove("day = 'x'", read_version=np.int64(4)).version == 5
    assert table.restore(np.uint8(2)).version == 6
    assert table.history(limit=1)["operation_parameters"].to_pylist() == ['{"version":2}']


@pytest.mark.parametrize("wrong", [np.float64(1), np.bool_(True), True, "1", -1, np.int64(-1)])
def test_anything_else_is_no_version(table, wrong):
    with pytest.raises(InvalidRequest, match="is not a version"):
        table.snapshot(version=wrong)
    with pytest.raises(InvalidRequest, match="is not a number of commits"):
        table.history(limit=wrong)


@pytest.mark.parametrize("wrong", [dt.timedelta(seconds=5), "5", True])
def test_max_staleness_is_a_number_of_seconds(table, wrong):
    with pytest.raises(InvalidRequest, match="max_staleness"):
        table.snapshot(max_staleness=wrong)


def test_durations_may_be_timedeltas(table):
    assert table.vacuum(older_than=dt.timedelta(days=7), dry_run=True).num_files == 0
    path = table.snapshot().files["path"][0].as_py()
    table.skips.record(path, reason="damaged", operation="merge", cooldown=dt.timedelta(hours=1))
    skip = table.skips.active().to_pylist()[0]
    assert skip["path"] == path
    with pytest.raises(InvalidRequest, match="older_than"):
        table.vacuum(older_than=dt.timedelta(days=-1), dry_run=True)


def test_schema_of_polars(tmp_path):
    frame = pl.DataFrame(
        {"day": ["mon"], "id": [1], "at": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]}
    )
    table = arrowlog.Table.create(tmp_path, frame.schema, partition_columns=["day"])
    table.write(frame)
    assert table.to_polars().collect().equals(frame)


def test_dict_that_is_no_schema(tmp_path):
    with pytest.raises(InvalidRequest, match="schema"):
        arrowlog.Table.create(tmp_path, {"id": pa.int64()})


def test_rows_with_run_ends(table):
    runs = pa.chunked_array([pc.run_end_encode(pa.array(["wed", "wed", None]))])
    table.write(pa.table({"day": runs, "id": [7, 8, 9]}))
    rows = table.scan("id > 5").to_polars().sort("id").collect()
    assert rows["day"].to_list() == ["wed", "wed", None]


def test_numbers_of_numpy_describe_a_file(table):
    one = np.int64(1)
    new = arrowlog.add_file(
        "day=x/a",
        {"day": "x"},
        size=one,
        modification_time=np.int64(1_700_000_000_000),
        num_records=np.int32(5),
        min_values={"id": one},
        max_values={"id": np.int64(9)},
        null_count={"id": one},
        num_merge_ops=np.uint8(3),
    )
    table.append([new, {"path": "day=x/b", "size": one, "partitionValues": {"day": "x"}}])
    rows = arrowlog.Table(table.uri).scan("day = 'x'").files.sort_by("path").to_pylist()
    assert [row["size_bytes"] for row in rows] == [1, 1]
    added = {name: rows[0][name] for name in ("num_records", "min.id", "max.id", "null_count.id")}
    assert added == {"num_records": 5, "min.id": 1, "max.id": 9, "null_count.id": 1}
    assert rows[0]["num_merge_ops"] == 3
    with pytest.raises(InvalidRequest, match="size"):
        table.append([arrowlog.add_file("c", {"day": "x"}, size=np.bool_(True))])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64()])
def test_integers_fit_decimal_columns(tmp_path, kind):
    for scale, precision in ((2, 10), (0, 3), (30, 38)):
        schema = pa.schema([("x", pa.decimal128(precision, scale))])
        table = arrowlog.Table.create(tmp_path / str(scale), schema)
        table.write(pa.table({"x": pa.array([1, 100, None], kind)}))
        assert table.to_arrow()["x"].to_pylist() == [Decimal(1), Decimal(100), None]
    narrow = arrowlog.Table.create(tmp_path / "t", pa.schema([("x", pa.decimal128(3, 2))]))
    with pytest.raises(InvalidRequest, match="cannot be cast to decimal"):
        narrow.write(pa.table({"x": pa.array([10], kind)}))


def test_dictionary_of_byte_views(tmp_path):
    views = pa.array([b"a", b"b"]).cast(pa.binary_view())
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), views)
    table = arrowlog.Table.create(tmp_path, pa.schema([("x", pa.binary())]))
    table.write(pa.table({"x": column}))
    assert table.to_arrow()["x"].to_pylist() == [b"b", None, b"a"]


SURROGATE = "\ud800"
NO_COUNT = [-1, True, 1.5, float("nan"), np.float64(2), np.bool_(True), "5", 1 << 63, 10**5000]
CALLS_WITH_COUNTS = {
    "version": lambda table, n: table.snapshot(version=n),
    "scan": lambda table, n: table.scan(version=n),
    "restore": lambda table, n: table.restore(n),
    "read_version": lambda table, n: table.remove(["a"], read_version=n),
    "limit": lambda table, n: table.history(limit=n),
    "overview": lambda table, n: table.overview(n),
    "max_groups": lambda table, n: table.compact(max_groups=n),
    "max_files_per_group": lambda table, n: table.compact(max_files_per_group=n),
    "max_commits": lambda table, n: table.doctor(max_commits_since_checkpoint=n),
    "max_small_files": lambda table, n: table.doctor(max_small_files=n),
    "reader": lambda table, n: table.upgrade_protocol(reader=n),
    "writer": lambda table, n: table.upgrade_protocol(writer=n),
    "skip size": lambda table, n: table.skips.record("a", "damaged", size=n),
}


@pytest.mark.parametrize("call", CALLS_WITH_COUNTS.values(), ids=CALLS_WITH_COUNTS)
def test_anything_else_is_no_count(table, call):
    for wrong in NO_COUNT:
        with pytest.raises(InvalidRequest) as caught:
            call(table, wrong)
        assert len(str(caught.value)) < 400
    assert table.history().num_rows == 4


def test_counts_of_numpy_are_accepted(table):
    two = np.int64(2)
    assert table.compact(max_groups=two, max_files_per_group=two, dry_run=True).num_groups == 2
    codes = table.doctor(max_commits_since_checkpoint=two, max_small_files=np.uint8(1)).codes
    assert {"checkpoint-behind", "small-files"} <= set(codes)
    assert table.snapshot(max_staleness=np.float32(5)).version == 3
    assert table.snapshot(max_staleness=two).version == 3
    assert table.wait_for_checkpoint(np.float64(0.5))
    assert table.upgrade_protocol(np.int64(3), np.int8(3)).version == 4


@pytest.mark.parametrize("wrong", [-1, float("nan"), True, "5", dt.timedelta(seconds=1)])
def test_anything_else_is_no_number_of_seconds(table, wrong):
    with pytest.raises(InvalidRequest, match="max_staleness cannot be"):
        table.scan(max_staleness=wrong)
    with pytest.raises(InvalidRequest, match="seconds cannot be"):
        table.wait_for_checkpoint(wrong)


@pytest.mark.parametrize("moment", [1 << 63, 1 << 70, 10**5000], ids=["2^63", "2^70", "10^5000"])
def test_times_beyond_64_bits_are_the_future_or_the_past(table, moment):
    assert table.snapshot(timestamp=moment).version == 3
    assert table.retention("0d", now=moment).version == 3
    assert table.retention("0d", now=-moment).num_files == 0
    with pytest.raises(InvalidRequest, match="begins with version 0"):
        table.snapshot(timestamp=-moment)


BEYOND = [1 << 63, 1 << 70, 10**400, "999999999999999999999"]
BEYOND_IDS = ["2^63", "2^70", "10^400", "text"]


@pytest.mark.parametrize("forever", BEYOND, ids=BEYOND_IDS)
def test_durations_beyond_64_bits_mean_forever(table, forever):
    assert table.vacuum(older_than=forever, dry_run=True).num_files == 0
    assert table.retention(forever, forever).num_files == 0
    table.set_properties({"logRetention.duration": forever})
    path = table.snapshot().files["path"][0].as_py()
    table.skips.record(path, reason="damaged", cooldown=forever)
    again = arrowlog.Table(table.uri)
    assert again.skips.is_active(path)
    assert again.cleanup().num_files == 0
    assert again.checkpoint().num_files == 6


@pytest.mark.parametrize("unlimited", BEYOND, ids=BEYOND_IDS)
def test_sizes_beyond_64_bits_mean_no_limit(table, unlimited):
    assert len(table.scan().splits(unlimited)) == 1
    assert table.write(ROWS, target_size=unlimited).version == 4
    assert table.compact(unlimited).num_groups == 2
    table.set_properties({"checkpoint.maxFileSize": unlimited})
    assert arrowlog.Table(table.uri).checkpoint().num_files == 2


def test_skip_counts_stay_within_64_bits(table):
    most = (1 << 63) - 1
    skip = {"path": "a", "skipTimestamp": 1, "reason": "r", "operation": "merge"}
    testing.write_commit(table.uri, 4, [{"mergeskip": {**skip, "skipCount": most}}])
    table.skips.record("a", reason="again")
    assert arrowlog.Table(table.uri).skips.history()["skip_count"].to_pylist() == [most, most]


@pytest.mark.parametrize("wrong", [{"day": 1}, {1: "mon"}, {"day": SURROGATE}, "mon", [("day", 1)]])
def test_partition_values_of_a_skip_are_text(table, wrong):
    with pytest.raises(InvalidRequest, match="partition_values cannot be"):
        table.skips.record("a", reason="damaged", partition_values=wrong)


def add(path, day="mon", **fields):
    return [arrowlog.add_file(path, {"day": day}, size=1, **fields)]


CALLS_WITH_TEXT = {
    "address": lambda table, text: arrowlog.Table(f"{table.uri}/{text}"),
    "url": lambda table, text: arrowlog.Table(f"memory://{text}"),
    "doctor": lambda table, text: arrowlog.doctor(f"{table.uri}/{text}"),
    "repair": lambda table, text: arrowlog.repair(text, table.uri),
    "rebuild": lambda table, text: arrowlog.rebuild(f"{table.uri}/{text}"),
    "create": lambda table, text: arrowlog.Table.create(f"{table.uri}/{text}", ROWS.schema),
    "partition column": lambda table, text: arrowlog.Table.create(
        f"{table.uri}/new", ROWS.schema, [text]
    ),
    "statement": lambda table, text: arrowlog.sql_statement(f"CHECKPOINT INDEXTABLES '{text}'"),
    "query": lambda table, text: table.sql(f"SELECT '{text}'"),
    "column": lambda table, text: table.scan([(text, "=", 1)]),
    "struct field": lambda table, text: table.scan([(("id", text), "=", 1)]),
    "value": lambda table, text: table.scan([("day", "=", text)]),
    "values": lambda table, text: table.scan([("day", "in", ["mon", text])]),
    "predicate": lambda table, text: table.scan(f"day = '{text}'"),
    "quoted column": lambda table, text: table.scan(f'"{text}" = 1'),
    "read column": lambda table, text: table.to_arrow(columns=[text]),
    "minimum": lambda table, text: table.scan().min(text),
    "search": lambda table, text: table.scan(arrowlog.indexquery(text, "x")),
    "path": lambda table, text: table.append(add(text)),
    "footer": arrowlog.add_parquet,
    "partition": lambda table, text: table.append(add("a", text)),
    "bound": lambda table, text: table.append(add("a", min_values={text: 1})),
    "count": lambda table, text: table.append(add("a", null_count={text: 1})),
    "remove": lambda table, text: table.remove(text),
    "removes": lambda table, text: table.remove([text]),
    "update_statistics": lambda table, text: table.update_statistics([text]),
    "adopt": lambda table, text: table.adopt([text]),
    "from_log": lambda table, text: table.adopt(["a.parquet"], from_log=text),
    "operation": lambda table, text: table.commit(add("a"), operation=text),
    "user_metadata": lambda table, text: table.append(add("a"), user_metadata=text),
    "txn": lambda table, text: table.append(add("a"), txn=(text, 1)),
    "property": lambda table, text: table.set_properties({"a": text}),
    "property name": lambda table, text: table.set_properties({text: "a"}),
    "option": lambda table, text: arrowlog.Table(table.uri, options={text: 1}),
    "feature": lambda table, text: table.upgrade_protocol(reader_features=[text]),
    "assert_stats": lambda table, text: table.doctor(assert_stats=[text]),
    "ignore_logs": lambda table, text: table.vacuum(ignore_logs=[text]),
    "reason": lambda table, text: table.skips.record("a", reason=text),
    "skipped": lambda table, text: table.skips.record(text, reason="damaged"),
    "is_active": lambda table, text: table.skips.is_active(text),
    "filter": lambda table, text: table.skips.filter([text]),
    "report": lambda table, text: table.report(f"{table.uri}/{text}.html"),
}


@pytest.mark.parametrize("call", CALLS_WITH_TEXT.values(), ids=CALLS_WITH_TEXT)
def test_surrogates_are_refused_everywhere(table, call):
    with pytest.raises(InvalidRequest):
        call(table, SURROGATE)
    assert table.history().num_rows == 4


@pytest.mark.parametrize(
    "name", ["address", "url", "column", "path", "footer", "from_log", "report"]
)
def test_nul_characters_are_refused_in_addresses_columns_and_paths(table, name):
    with pytest.raises(InvalidRequest):
        CALLS_WITH_TEXT[name](table, "a\0b")


NO_COLUMNS = ["id", b"id", 5, ["nothing"], ["id", 5], ["__nothing"], [".id.part"], [".nothing"]]
NO_COLUMNS += [{"x": 5}, {5: pc.field("id")}, {"x": pc.field("nothing")}]


@pytest.mark.parametrize("columns", NO_COLUMNS, ids=str)
def test_columns_that_do_not_exist_are_explained(table, columns):
    for read in (table.to_arrow, table.to_pandas, table.scan("id = 1").to_arrow):
        with pytest.raises(InvalidRequest, match=r"columns cannot be|There is no column"):
            read(columns=columns)
    assert table.to_arrow(columns=("id",)).column_names == ["id"]


def test_arguments_that_are_no_lists_or_maps_are_explained(table):
    for call in (
        lambda: table.doctor(assert_stats="id"),
        lambda: table.vacuum(ignore_logs=5),
        lambda: table.update_statistics("a.parquet"),
        lambda: arrowlog.Table(table.uri, "region"),
        lambda: arrowlog.Table(table.uri, options={5: 1}),
        lambda: arrowlog.rebuild(table.uri, partition_columns=5),
        lambda: arrowlog.repair(5, table.uri),
        lambda: arrowlog.sql_statement(5),
    ):
        with pytest.raises(InvalidRequest):
            call()


TYPES = {
    "x": pa.float64(),
    "f": pa.float32(),
    "b": pa.bool_(),
    "s": pa.string(),
    "d": pa.date32(),
    "t": pa.timestamp("us"),
    "z": pa.timestamp("us", "UTC"),
    "n": pa.decimal128(10, 2),
}
NUMPY_VALUES = [
    ("x", np.float64(1.5), 1.5),
    ("x", np.float32(0.1), 0.10000000149011612),
    ("f", np.float64(0.5), 0.5),
    ("b", np.bool_(True), True),
    ("s", np.str_("ü"), "ü"),
    ("n", np.float64(0.25), Decimal("0.25")),
    ("d", np.datetime64("2024-02-29"), dt.date(2024, 2, 29)),
    ("d", np.datetime64("2024-02"), dt.date(2024, 2, 1)),
    ("t", np.datetime64("1969-12-31T23:59:59.999999"), dt.datetime),
    ("t", np.datetime64("2024-01-03T00:00:00.000002", "ns"), dt.datetime),
    ("t", np.datetime64("2024-01-03T00:00", "m"), dt.datetime),
    ("z", np.datetime64("2024-01-03T00:00:00.000002", "ns"), dt.datetime),
    ("t", np.datetime64("NaT"), None),
    ("t", np.datetime64("NaT", "ns"), None),
]


@pytest.mark.parametrize(("column", "value", "expected"), NUMPY_VALUES, ids=str)
def test_values_of_numpy_are_stored_as_those_of_python(tmp_path, column, value, expected):
    if expected is dt.datetime:
        expected = value.astype("datetime64[us]").item()
        expected = expected.replace(tzinfo=dt.UTC) if column == "z" else expected
    schema = pa.schema([(column, TYPES[column]), ("other", pa.int64())])
    parted = arrowlog.Table.create(tmp_path / "parted", schema, [column])
    parted.append([arrowlog.add_file("a", {column: value}, size=1)])
    assert parted.snapshot().files[f"partition.{column}"].to_pylist() == [expected]
    flat = arrowlog.Table.create(tmp_path / "flat", schema)
    bounds = {"min_values": {column: value}, "max_values": {column: value}, "num_records": 1}
    flat.append([arrowlog.add_file("a", size=1, **bounds)])
    assert flat.snapshot().files[f"min.{column}"].to_pylist() == [expected]
    assert flat.scan([(column, "=", value)]).num_files == (expected is not None)


@pytest.mark.parametrize(
    "value",
    [
        np.datetime64("2024-01-03T00:00:00.000002001", "ns"),
        np.datetime64("20000-01-03", "D"),
        np.datetime64(1 << 62, "s"),
        np.timedelta64(5, "ns"),
        dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))),
    ],
    ids=str,
)
def test_times_that_columns_cannot_hold_are_refused(tmp_path, value):
    table = arrowlog.Table.create(tmp_path, pa.schema([("t", pa.timestamp("us"))]))
    with pytest.raises(InvalidRequest, match=r"years 1 to 9999|cannot be stored"):
        table.append([arrowlog.add_file("a", size=1, max_values={"t": value})])

"""Clauses of the Delta protocol, each on a handwritten table."""

import datetime as dt
import json
import math
import os
import uuid
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import delta_model

import arrowlog
from arrowlog.snapshot import delta_checkpoint

UTC = dt.UTC
TEXT, LONG = pa.string(), pa.int64()
MAP = pa.map_(TEXT, TEXT)
METADATA = pa.struct(
    [
        ("id", TEXT),
        ("format", pa.struct([("provider", TEXT), ("options", MAP)])),
        ("schemaString", TEXT),
        ("partitionColumns", pa.list_(TEXT)),
        ("configuration", MAP),
    ]
)
PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(TEXT)),
        ("writerFeatures", pa.list_(TEXT)),
    ]
)
ADD = [
    ("path", TEXT),
    ("partitionValues", MAP),
    ("size", LONG),
    ("modificationTime", LONG),
    ("dataChange", pa.bool_()),
]
STATE = {"metaData": METADATA, "protocol": PROTOCOL, "add": pa.struct(ADD)}


def local(*parts):
    """A timestamp without a zone."""
    return dt.datetime(*parts)  # noqa: DTZ001


def column(name, kind, **metadata):
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def mapped(name, kind, number, physical=None):
    physical = physical or f"p{number}"
    keys = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return column(name, kind, **keys)


def widened(name, old, new):
    return column(name, new, **{"delta.typeChanges": [{"fromType": old, "toType": new}]})


def array_of(kind):
    return {"type": "array", "elementType": kind, "containsNull": True}


def map_to(kind):
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}


def struct_of(*columns):
    return {"type": "struct", "fields": list(columns)}


def metadata(columns, partition=(), configuration=None):
    return {
        "metaData": {
            "id": "x",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(struct_of(*columns)),
            "partitionColumns": list(partition),
            "configuration": configuration or {},
        }
    }


def protocol(*features, reader=1, writer=2):
    if not features:
        return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}
    lists = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **lists}}


def bounds(count, low, high=None, **nulls):
    stats = {"numRecords": count, "minValues": low, "maxValues": low if high is None else high}
    return json.dumps({**stats, "nullCount": nulls})


class Log:
    """Writes a Delta table action by action."""

    def __init__(self, root):
        self.root, self.version = root, -1
        self.log = root / "_delta_log"
        self.log.mkdir()

    def commit(self, *actions):
        self.version += 1
        text = "".join(f"{json.dumps(action)}\n" for action in actions)
        self.commit_path(self.version).write_text(text)
        return self

    def commit_path(self, version):
        return self.log / f"{version:020d}.json"

    def file(self, name, columns, partition=None, **fields):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path)
        add = {"path": name, "partitionValues": partition or {}, "size": path.stat().st_size}
        return {"add": {**add, "modificationTime": 1, "dataChange": True, **fields}}

    def checkpoint(self, rows, kinds=None, name=None):
        """Write a checkpoint, and delete the commits as log cleanup does."""
        arrays = {
            kind: pa.array([delta_model._fit(row.get(kind), kinds_) for row in rows], kinds_)
            for kind, kinds_ in (kinds or STATE).items()
        }
        path = self.log / (name or f"{self.version:020d}.checkpoint.parquet")
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(arrays), path)
        for version in range(self.version + 1):
            self.commit_path(version).unlink(missing_ok=True)
        return path

    def open(self):
        return arrowlog.Table(self.root, allow_outside_paths=True)

    def rows(self, where=None, **options):
        """The matching rows, on which Arrow, polars and DuckDB agree."""
        plan = self.open().scan(where, **options)
        rows = plan.to_arrow_dataset().to_table().to_pylist()
        assert plan.count() in (None, len(rows))
        assert plan.to_polars().collect().height == len(rows)
        assert len(plan.to_duckdb(duckdb.connect()).fetchall()) == len(rows)
        return rows


@pytest.fixture
def log(tmp_path):
    root = tmp_path / "t"
    root.mkdir()
    return Log(root)


def vector(rows, **changes):
    data = delta_model.serialize_bitmap(rows)
    place = {"storageType": "i", "pathOrInlineDv": delta_model.encode_z85(data)}
    return {**place, "sizeInBytes": len(data), "cardinality": len(rows), **changes}


@pytest.mark.parametrize(
    "given",
    [
        protocol(),
        protocol(reader=1, writer=7),
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}},
        {"protocol": {**protocol("x")["protocol"], "readerFeatures": []}},
        {"protocol": {**protocol("x")["protocol"], "readerFeatures": None}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["zz"]}},
    ],
)
def test_writer_features_and_empty_lists_do_not_prevent_reading(log, given):
    log.commit(given, metadata([column("a", "long")])).commit(log.file("f", {"a": [1, 2]}))
    assert len(log.rows()) == 2


def test_protocol_of_the_requested_version_applies(log):
    log.commit(protocol("zz"), metadata([column("a", "long")]))
    log.commit(protocol(), log.file("f", {"a": [1]})).commit(protocol("yy"))
    for version, feature in ((0, "zz"), (None, "yy")):
        with pytest.raises(arrowlog.UnsupportedProtocol, match=feature):
            log.open().snapshot(version)
    assert log.rows(version=1) == [{"a": 1}]


def test_metadata_with_only_a_schema_is_accepted(log):
    schema = json.dumps(struct_of(column("a", "long")))
    given = {"id": "i", "schemaString": schema, "partitionColumns": None}
    log.commit(protocol(), {"metaData": {**given, "configuration": {"x": None}}})
    assert log.commit(log.file("f", {"a": [1]})).rows() == [{"a": 1}]


def test_partition_values_of_every_type(log):
    kinds = {
        "flag": "boolean",
        "tiny": "byte",
        "price": "decimal(10,3)",
        "raw": "binary",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "day": "date",
        "ratio": "float",
        "text": "string",
    }
    columns = [column("a", "long"), *(column(name, kind) for name, kind in kinds.items())]
    log.commit(protocol("timestampNtz"), metadata(columns, kinds))
    first = {"flag": "true", "tiny": "-3", "price": "1.5", "raw": "a\x01b", "ratio": "1.25"}
    first |= {"at": "2020-01-02 03:04:05.123456", "local": "2020-01-02 03:04:05"}
    first |= {"day": "0001-01-01", "text": "__HIVE_DEFAULT_PARTITION__"}
    second = {**first, "at": "2020-01-02T03:04:05.123456Z", "flag": "FALSE", "day": "9999-12-31"}
    second |= {"text": "", "local": "1400-01-01 00:00:00"}
    values = (first, second, dict.fromkeys(kinds))
    log.commit(*(log.file(f"f{i}", {"a": [i]}, value) for i, value in enumerate(values)))
    rows = {row.pop("a"): row for row in log.rows()}
    assert rows[0] == {
        "flag": True,
        "tiny": -3,
        "price": Decimal("1.500"),
        "raw": b"a\x01b",
        "at": dt.datetime(2020, 1, 2, 3, 4, 5, 123456, UTC),
        "local": local(2020, 1, 2, 3, 4, 5),
        "day": dt.date(1, 1, 1),
        "ratio": 1.25,
        "text": "__HIVE_DEFAULT_PARTITION__",
    }
    expected = {"flag": False, "day": dt.date(9999, 12, 31), "text": None}
    assert rows[1] == rows[0] | expected | {"local": local(1400, 1, 1)}
    assert set(rows[2].values()) == {None}
    counts = {
        "flag": 1,
        "at = '2020-01-02T03:04:05.123456Z'": 2,
        "day < '1000-01-01'": 1,
        "price = 1.5": 2,
        "text IS NULL": 2,
        "text = '__HIVE_DEFAULT_PARTITION__'": 1,
        "local < TIMESTAMP '1500-01-01 00:00:00'": 1,
    }
    assert {where: len(log.rows(where)) for where in counts} == counts


def test_partition_values_may_be_nan_and_infinite(log):
    log.commit(protocol(), metadata([column("a", "long"), column("p", "double")], ["p"]))
    texts = ["NaN", "Infinity", "-Infinity", "1e3", None]
    log.commit(*(log.file(f"f{i}", {"a": [i]}, {"p": text}) for i, text in enumerate(texts)))
    values = {row["a"]: row["p"] for row in log.rows()}
    assert math.isnan(values.pop(0))
    assert values == {1: math.inf, 2: -math.inf, 3: 1000.0, 4: None}
    assert [row["a"] for row in log.rows("p BETWEEN 100 AND 2000")] == [3]
    assert [row["a"] for row in log.rows("p < 100")] == [2]


def test_date_column_widened_to_timestamp(log):
    log.commit(
        protocol("timestampNtz", "typeWidening"),
        metadata([column("a", "date"), column("p", "date")], ["p"]),
    )
    days = [dt.date(2024, 1, 2), dt.date(2024, 1, 5)]
    stats = bounds(2, {"a": "2024-01-02"}, {"a": "2024-01-05"}, a=0)
    log.commit(log.file("f", {"a": days}, {"p": "2024-01-02"}, stats=stats))
    columns = [widened(name, "date", "timestamp_ntz") for name in ("a", "p")]
    later = local(2024, 2, 2, 1)
    stats = bounds(1, {"a": "2024-02-02T01:00:00.000"}, a=0)
    given = log.file("g", {"a": [later]}, {"p": "2024-02-02 01:00:00"}, stats=stats)
    log.commit(metadata(columns, ["p"])).commit(given)
    first = local(2024, 1, 2)
    assert sorted((row["a"], row["p"]) for row in log.rows()) == [
        (first, first),
        (local(2024, 1, 5), first),
        (later, later),
    ]
    assert len(log.rows("a = TIMESTAMP '2024-01-05 00:00:00'")) == 1
    assert len(log.rows("p = TIMESTAMP '2024-01-02 00:00:00'")) == 2
    assert log.open().scan("a > TIMESTAMP '2024-01-06 00:00:00'").paths == ["g"]


def test_types_are_widened_at_every_level(log):
    before = [
        column("i", "integer"),
        column("b", "byte"),
        column("d", "decimal(10,2)"),
        column("f", "float"),
        column("l", array_of("integer")),
        column("m", map_to("short")),
        column("s", struct_of(column("x", "short"))),
    ]
    log.commit(protocol("typeWidening"), metadata(before))
    data = {
        "i": pa.array([1, 2], pa.int32()),
        "b": pa.array([1, 2], pa.int8()),
        "d": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "f": pa.array([1.5, 2.5], pa.float32()),
        "l": pa.array([[1], None], pa.list_(pa.int32())),
        "m": pa.array([[("a", 1)], None], pa.map_(TEXT, pa.int16())),
        "s": pa.array([{"x": 3}, None], pa.struct([("x", pa.int16())])),
    }
    low = {"i": 1, "b": 1, "d": 1.25, "f": 1.5}
    stats = bounds(2, low, {"i": 2, "b": 2, "d": 1.25, "f": 2.5}, d=1)
    after = [
        widened("i", "integer", "double"),
        widened("b", "byte", "decimal(12,1)"),
        widened("d", "decimal(10,2)", "decimal(14,4)"),
        widened("f", "float", "double"),
        column("l", array_of("long")),
        column("m", map_to("long")),
        column("s", struct_of(widened("x", "short", "long"))),
    ]
    log.commit(log.file("f", data, stats=stats)).commit(metadata(after))
    first = {"i": 1.0, "b": Decimal("1.0"), "d": Decimal("1.2500"), "f": 1.5}
    assert log.rows()[0] == first | {"l": [1], "m": [("a", 1)], "s": {"x": 3}}
    for where in ("i > 1.5", "b >= 1.5", "d = 1.25", "d IS NULL", "f = 2.5", "s.x = 3"):
        assert len(log.rows(where)) == 1, where
    for where in ("i < 1", "b > 2", "d > 1.25", "f < 1.5"):
        assert log.open().scan(where).num_files == 0, where


def test_structs_gain_lose_and_reorder_fields(log):
    old = pa.struct([("a", LONG), ("gone", LONG)])
    value = {"a": 1, "gone": 2}
    data = {
        "s": pa.array([value, None], old),
        "l": pa.array([[value], None], pa.list_(old)),
        "m": pa.array([[("k", value)], None], pa.map_(TEXT, old)),
    }
    new = struct_of(column("later", "string"), column("nothing", "void"), column("a", "long"))
    columns = [column("s", new), column("l", array_of(new)), column("m", map_to(new))]
    log.commit(protocol(), metadata(columns)).commit(log.file("f", data))
    shown = {"later": None, "nothing": None, "a": 1}
    assert log.rows() == [
        {"s": shown, "l": [shown], "m": [("k", shown)]},
        {"s": None, "l": None, "m": None},
    ]
    assert len(log.rows("s.a = 1")) == 1
    assert len(log.rows("s.later IS NULL")) == 2


@pytest.mark.parametrize("mode", ["name", "id", "NAME"])
def test_mapped_columns_in_lists_and_maps_and_after_renames(log, mode):
    inner = struct_of(mapped("x y", "long", 3), mapped("z", "string", 4))
    columns = [
        mapped("id", "long", 1),
        mapped("l", array_of(inner), 2),
        mapped("m", map_to(struct_of(mapped("q", "long", 6))), 5),
        mapped("part.col", "string", 7),
    ]
    configuration = {"delta.columnMapping.mode": mode}
    log.commit(
        protocol("columnMapping", "deletionVectors"),
        metadata(columns, ["part.col"], configuration),
    )

    def stored(name, kind):
        return pa.field(name, kind, metadata={"PARQUET:field_id": name[1:]})

    member = pa.struct([stored("p3", LONG), stored("p4", TEXT)])
    schema = pa.schema(
        [
            stored("p1", LONG),
            stored("p2", pa.list_(member)),
            stored("p5", pa.map_(TEXT, pa.struct([stored("p6", LONG)]))),
        ]
    )
    data = {"p1": [1, 2, 3], "p2": [[{"p3": 1, "p4": "a"}], None, []]}
    data["p5"] = [[("k", {"p6": 5})], None, []]
    stats = bounds(3, {"p1": 1}, {"p1": 3}, p1=0)
    partition = {"p7": "é/ü"}
    given = log.file(
        "f", pa.table(data, schema), partition, stats=stats, deletionVector=vector([1])
    )
    log.commit(given)
    first = {"id": 1, "l": [{"x y": 1, "z": "a"}], "m": [("k", {"q": 5})], "part.col": "é/ü"}
    assert log.rows() == [first, {"id": 3, "l": [], "m": [], "part.col": "é/ü"}]
    assert log.rows("id = 2") == []
    assert log.open().scan("id > 3").num_files == 0
    assert len(log.rows("\"part.col\" = 'é/ü'")) == 2
    # `id` is renamed, `l` is dropped, and a new column gets its name.
    renamed = [{**columns[0], "name": "ID2"}, columns[2], {**columns[3], "name": "pp"}]
    log.commit(metadata([*renamed, mapped("l", "string", 9)], ["pp"], configuration))
    assert log.rows("ID2 = 3") == [{"ID2": 3, "m": [], "pp": "é/ü", "l": None}]
    assert log.rows(version=1)[0] == first
    assert log.open().diff(1, 2).added.num_rows == 0


def test_two_mapped_columns_swap_their_names(log):
    mode = {"delta.columnMapping.mode": "name"}
    columns = [mapped("a", "long", 1, "a"), mapped("b", "long", 2, "b")]
    log.commit(protocol(reader=2, writer=5), metadata(columns, (), mode))
    log.commit(log.file("f", {"a": [1], "b": [2]}, stats=bounds(1, {"a": 1, "b": 2}, a=0, b=0)))
    swapped = [mapped("b", "long", 1, "a"), mapped("a", "long", 2, "b")]
    log.commit(metadata(swapped, (), mode))
    assert log.rows("a = 2") == [{"b": 1, "a": 2}]
    assert log.open().scan("a = 1").num_files == 0
    assert log.open().scan().min("a") == 2


def test_truncated_statistics_lose_no_row(log):
    log.commit(protocol(), metadata([column("s", "string"), column("t", "timestamp")]))
    moment = dt.datetime(2024, 1, 1, 0, 0, 0, 123999, UTC)
    times = ["2024-01-01T00:00:00.123Z", "2023-12-31T16:00:00.123-08:00"]
    times += ["2024-01-01T00:00:00.123999Z", "2024-01-01 00:00:00.123"]
    ends = ["\ufffd", "\U0010ffff", "", "\U0010ffff"]
    texts = [letter * 40 for letter in "xyzé"]
    for number, (text, end, time) in enumerate(zip(texts, ends, times, strict=True)):
        data = {"s": [text, "a"], "t": pa.array([moment, moment], pa.timestamp("us", "UTC"))}
        high = {"s": text[:32] + end, "t": time}
        stats = bounds(2, {"s": "a", "t": time}, high, s=0, t=0)
        log.commit(log.file(f"f{number}", data, stats=stats))
    for text in texts:
        assert len(log.rows([("s", "=", text)])) == 1
    assert log.open().scan("s > 'yz'").num_files == 2
    for operator, count in (("=", 8), (">=", 8), ("<=", 8), (">", 0), ("<", 0)):
        assert len(log.rows([("t", operator, moment)])) == count
    plan = log.open().scan()
    assert plan.max("t") in (None, moment)
    assert plan.max("s") in (None, texts[-1])


def test_invalid_statistics_are_unknown(log):
    log.commit(protocol(), metadata([column("a", "long"), column("d", "decimal(20,2)")]))
    odd = ["", "null", "{", "[]", "{}", '{"numRecords":"x"}', '{"numRecords":-1}']
    odd += ['{"numRecords":1,"minValues":null,"maxValues":3,"nullCount":[]}']
    exact = ["1E+2", '"100.00"', "100", "100.00", "1.0E2"]
    form = '{"numRecords":1,"minValues":{"d":%s},"maxValues":{"d":%s},"nullCount":{"d":0}}'
    texts = odd + [form % (text, text) for text in exact]
    for number, stats in enumerate(texts):
        data = {"a": [number], "d": pa.array([Decimal(100)], pa.decimal128(20, 2))}
        log.commit(log.file(f"f{number}", data, stats=stats))
    assert len(log.rows("a >= 0")) == len(log.rows("d = 100")) == len(texts)
    assert log.rows("d > 100") == []


def test_in_commit_timestamps_apply_from_their_enablement_version(log):
    def info(time=None):
        declared = {} if time is None else {"inCommitTimestamp": time}
        return {"commitInfo": {"timestamp": 1, "operation": "X", **declared}}

    columns = [column("a", "long")]
    enabled = {"delta.enableInCommitTimestamps": "true"}
    enabled["delta.inCommitTimestampEnablementVersion"] = "2"
    log.commit(info(), protocol(), metadata(columns)).commit(info(999_999_999))
    log.commit(info(5000), metadata(columns, (), enabled)).commit(info(6000)).commit(info(7000))
    for version, seconds in enumerate([1, 2, 9, 9, 9]):
        os.utime(log.commit_path(version), (seconds, seconds))
    expected = {1000: 0, 2000: 1, 4999: 1, 5000: 2, 6500: 3, 7000: 4, 10**12: 4}
    assert {ms: log.open().snapshot(timestamp=ms).version for ms in expected} == expected
    # Without the property, file times apply again, regardless of the commits.
    log.commit(info(8000), metadata(columns))
    for version in range(6):
        os.utime(log.commit_path(version), (version + 1, version + 1))
    expected = {1000: 0, 2000: 1, 3000: 2, 5999: 4, 6000: 5}
    assert {ms: log.open().snapshot(timestamp=ms).version for ms in expected} == expected


def test_missing_in_commit_timestamp_raises(log):
    columns, enabled = [column("a", "long")], {"delta.enableInCommitTimestamps": "true"}
    log.commit({"commitInfo": {"inCommitTimestamp": 5}}, protocol(), metadata(columns, (), enabled))
    log.commit({"commitInfo": {}}).commit({"commitInfo": {"inCommitTimestamp": 9}})
    with pytest.raises(arrowlog.LogCorrupt, match=r"01\.json.*inCommitTimestamp"):
        log.open().snapshot(timestamp=7)


def test_changed_deletion_vector_is_a_changed_file_in_diff(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    add = log.file("f", {"a": [1, 2, 3]}, stats=bounds(3, {"a": 1}, {"a": 3}, a=0))
    gone = {"remove": {"path": "f", "dataChange": True, "deletionTimestamp": 1}}
    log.commit(add).commit(gone, {"add": {**add["add"], "deletionVector": vector([0])}})
    diff = log.open().diff(1, 2)
    assert (diff.added.num_rows, diff.removed.num_rows, diff.changed.num_rows) == (0, 0, 1)
    assert "3 → 2 rows" in str(diff)


def test_missing_file_with_deletion_vector_raises_with_its_version(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    log.commit(log.file("f", {"a": [1, 2, 3]}, deletionVector=vector([0])))
    (log.root / "f").unlink()
    with pytest.raises(arrowlog.DataFileError, match=r"missing \(added by version 1\)") as caught:
        log.open().scan().to_arrow_dataset().to_table()
    assert "table.remove" not in str(caught.value)  # the format is read-only


def test_deletion_vectors_of_all_rows_and_of_none(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    data, stats = {"a": list(range(10))}, bounds(10, {"a": 0}, {"a": 9}, a=0)
    log.commit(log.file("f", data, stats=stats, deletionVector=vector(range(10))))
    assert log.rows() == []
    log.commit(log.file("g", data, stats=stats, deletionVector=vector([], maxRowIndex=0)))
    assert len(log.rows()) == 10


@pytest.mark.parametrize(
    "changes",
    [
        {"cardinality": 2},
        {"cardinality": 0},
        {"sizeInBytes": 8},
        {"sizeInBytes": 10**6},
        {"storageType": "x"},
        {"pathOrInlineDv": "0" * 20},
        {"pathOrInlineDv": ""},
    ],
)
def test_deletion_vector_that_contradicts_its_descriptor_raises(log, changes):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    log.commit(log.file("f", {"a": [1, 2]}, deletionVector=vector([1], **changes)))
    with pytest.raises(arrowlog.DataFileError, match="deletion vector"):
        log.rows()


def test_deletion_vector_beyond_the_end_of_the_file_raises(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    log.commit(log.file("f", {"a": [1, 2]}, deletionVector=vector([5])))
    with pytest.raises(arrowlog.DataFileError, match="deletes row 5"):
        log.rows()


def test_checkpoint_with_only_required_columns_is_read(log):
    state = [protocol(), metadata([column("a", "long")])]
    add = log.file("f", {"a": [1]})
    log.commit(*state, add)
    log.checkpoint([*state, add])
    assert log.rows("a = 1") == [{"a": 1}]
    log.commit(log.file("g", {"a": [2]}))
    assert len(log.rows()) == 2


def test_checkpoint_without_partition_values_is_ignored(log):
    columns = [column("a", "long"), column("p", "integer")]
    state = [protocol(), metadata(columns, ["p"])]
    add = log.file("f", {"a": [1]}, {"p": "7"})
    log.commit(*state, add)
    first = log.commit_path(0).read_text()
    kinds = {**STATE, "add": pa.struct([item for item in ADD if item[0] != "partitionValues"])}
    log.checkpoint([*state, add], kinds)
    with pytest.raises(arrowlog.LogCorrupt, match="no partitionValues"):
        log.rows()
    log.commit_path(0).write_text(first)
    plan = log.open().scan()
    assert "no partitionValues" in "".join(plan.snapshot.report.warnings)
    assert plan.to_arrow_dataset().to_table()["p"].to_pylist() == [7]


def test_typed_statistics_of_widened_columns_are_converted(log):
    columns = [column("a", "long"), column("d", "timestamp_ntz"), column("e", "decimal(12,4)")]
    columns += [column("t", "timestamp"), column("x", "double"), column("later", "long")]
    state = [protocol("timestampNtz", "typeWidening"), metadata(columns)]
    data = {
        "a": pa.array([5], pa.int32()),
        "d": [dt.date(2024, 1, 2)],
        "e": pa.array([Decimal("1.25")], pa.decimal128(10, 2)),
        "t": pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "x": pa.array([1.5], pa.float32()),
    }
    add = log.file("f", data)
    log.commit(*state, add)
    kinds = {name: array.type for name, array in data.items() if name not in "dt"}
    kinds |= {"d": pa.date32(), "t": pa.timestamp("ms")}
    value = {"a": 5, "d": dt.date(2024, 1, 2), "e": Decimal("1.25"), "x": 1.5}
    value["t"] = local(2024, 1, 1)
    both = pa.struct(list(kinds.items()))
    parsed = pa.struct([("numRecords", LONG), ("minValues", both), ("maxValues", both)])
    stats = {"numRecords": 1, "minValues": value, "maxValues": value}
    row = {"add": {**add["add"], "stats_parsed": stats}}
    log.checkpoint([*state, row], {**STATE, "add": pa.struct([*ADD, ("stats_parsed", parsed)])})
    (shown,) = log.open().snapshot().files.to_pylist()
    assert (shown["min.a"], shown["max.e"], shown["num_records"]) == (5, Decimal("1.2500"), 1)
    assert shown["min.d"] == local(2024, 1, 2)
    assert shown["min.t"] == dt.datetime(2024, 1, 1, tzinfo=UTC)
    counts = {"a = 5": 1, "a = 6": 0, "e > 1.25": 0, "x = 1.5": 1, "later IS NULL": 1}
    counts |= {"d = TIMESTAMP '2024-01-02 00:00:00'": 1, "t = '2024-01-01T00:00:00Z'": 1}
    assert {where: len(log.rows(where)) for where in counts} == counts


def test_sidecar_paths_in_every_spelling_and_missing_sidecars_raise(log):
    state = [protocol("v2Checkpoint"), metadata([column("a", "long")])]
    adds = [log.file(f"f{number}", {"a": [number]}) for number in range(4)]
    log.commit(*state, *adds)
    gone = {"remove": {"path": "f9", "deletionTimestamp": 1}}
    kinds = {"add": pa.struct(ADD), "remove": pa.struct([("path", TEXT)])}
    paths = ["s%200.parquet", f"file:{log.log}/_sidecars/s%201.parquet"]
    for number in range(2):
        rows = [*adds[2 * number : 2 * number + 2], gone]
        last = log.checkpoint(rows, kinds, f"_sidecars/s {number}.parquet")
    kinds = {**STATE, "sidecar": pa.struct([("path", TEXT), ("sizeInBytes", LONG)])}
    kinds["checkpointMetadata"] = pa.struct([("version", LONG)])
    rows = [*state, *({"sidecar": {"path": path, "sizeInBytes": 1}} for path in paths)]
    name = f"{0:020d}.checkpoint.{uuid.UUID(int=1)}.parquet"
    log.checkpoint([*rows, {"checkpointMetadata": {"version": 0}}], kinds, name)
    assert len(log.rows()) == 4
    last.unlink()
    with pytest.raises(arrowlog.LogCorrupt):
        log.open().snapshot()


def test_incomplete_multi_part_checkpoint_is_ignored(log):
    state = [protocol(), metadata([column("a", "long")])]
    adds = [log.file(f"f{number}", {"a": [number]}) for number in range(3)]
    log.commit(*state, *adds)
    sets = {(1, 2): [state[0], adds[0]], (2, 2): [state[1], *adds[1:]]}
    sets |= {(1, 3): [*state, adds[0]], (3, 3): [adds[1]]}
    for (number, count), rows in sets.items():
        log.checkpoint(rows, name=f"{0:020d}.checkpoint.{number:010d}.{count:010d}.parquet")
    assert len(log.rows()) == 3


@pytest.mark.parametrize(
    "hint", ["", "garbage", "[1]", '{"version":99,"size":1}', '{"version":0,"parts":7,"x":{}}']
)
def test_invalid_last_checkpoint_hint_is_ignored(log, hint):
    log.commit(protocol(), metadata([column("a", "long")])).commit(log.file("f", {"a": [1]}))
    (log.log / "_last_checkpoint").write_text(hint)
    assert len(log.rows()) == 1


def test_unrelated_files_in_the_log_are_ignored(log):
    log.commit(protocol(), metadata([column("a", "long")])).commit(log.file("f", {"a": [1]}))
    number = uuid.UUID(int=7)
    for name in (
        f"_staged_commits/{2:020d}.{number}.json",
        f"{2:020d}.{number}.json",
        f"{2:020d}.json.tmp",
        f".{2:020d}.json.crc",
        f"{1:020d}.crc",
        f"{1:020d}.checkpoint.{number}.parquet.tmp",
        "2.json",
    ):
        (log.log / name).parent.mkdir(exist_ok=True)
        (log.log / name).write_text("garbage")
    assert len(log.rows()) == 1
    assert log.open().version == 1


def test_repair_of_a_delta_log_names_the_format(log, tmp_path):
    log.commit(protocol(), metadata([column("a", "long")])).commit(log.file("f", {"a": [1]}))
    target = tmp_path / "other" / "_transaction_log"
    for source in (log.root, log.log):
        (row,) = arrowlog.repair(str(source), str(target)).to_pylist()
        assert "delta format" in row["status"]
    assert not target.parent.exists()


def test_overview_names_the_format_and_its_features(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    shown = log.open().overview()
    assert "delta (read-only), reader 3, writer 7 with deletionVectors" in str(shown)
    assert shown.to_arrow()["format"].to_pylist() == ["delta"]


VECTOR = [("storageType", TEXT), ("pathOrInlineDv", TEXT), ("offset", pa.int32())]
VECTOR += [("sizeInBytes", pa.int32()), ("cardinality", LONG)]


@pytest.mark.parametrize("name", [name for name, _ in VECTOR if name != "offset"])
@pytest.mark.parametrize("absent", [False, True], ids=["null", "absent"])
def test_incomplete_deletion_vector_in_a_checkpoint_raises(log, name, absent):
    state = [protocol("deletionVectors"), metadata([column("a", "long")])]
    add = log.file("f", {"a": [1, 2, 3]}, deletionVector=vector([0]) | {name: None})
    log.commit(*state, add)
    fields = [item for item in VECTOR if not absent or item[0] != name]
    kinds = {**STATE, "add": pa.struct([*ADD, ("deletionVector", pa.struct(fields))])}
    log.checkpoint([*state, add], kinds)
    with pytest.raises(arrowlog.LogCorrupt):
        log.open().scan().to_arrow_dataset().to_table()


def test_v2_checkpoint_of_another_version_is_ignored(log):
    state = [protocol("v2Checkpoint"), metadata([column("a", "long")])]
    log.commit(*state)
    kinds = {**STATE, "checkpointMetadata": pa.struct([("version", LONG)])}
    rows = [*state, {"checkpointMetadata": {"version": 7}}]
    log.checkpoint(rows, kinds, f"{0:020d}.checkpoint.{uuid.UUID(int=1)}.parquet")
    with pytest.raises(arrowlog.LogCorrupt):
        log.open().snapshot()


def test_row_counts_are_never_negative(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    data = {"a": [1, 2, 3]}
    log.commit(log.file("f", data, stats=bounds(1, {"a": 1}), deletionVector=vector([0, 1])))
    log.commit(log.file("g", data, stats=bounds(-3, {"a": 1}, {"a": 3})))
    table = log.open()
    assert table.snapshot().files["num_records"].to_pylist() == [None, None]
    assert table.scan().count() is None
    assert table.snapshot().num_records is None


def test_selective_plan_reads_each_checkpoint_field_once(log, monkeypatch):
    state = [protocol(), metadata([column("a", "long"), column("p", "integer")], ["p"])]
    adds = [
        log.file(f"f{i}", {"a": [i]}, {"p": str(i % 2)}, stats=bounds(1, {"a": i}, a=0))
        for i in range(20)
    ]
    log.commit(*state, *adds)
    kinds = {**STATE, "add": pa.struct([*ADD, ("stats", TEXT)])}
    log.checkpoint([*state, *adds], kinds)
    read = []
    original = delta_checkpoint.DeltaCheckpoint.map

    def spy(self, paths, rows, convert):
        read.extend((path, None if rows is None else len(rows)) for path in paths)
        return original(self, paths, rows, convert)

    monkeypatch.setattr(delta_checkpoint.DeltaCheckpoint, "map", spy)
    assert log.open().scan("p = 1 AND a BETWEEN 6 AND 9").paths == ["f7", "f9"]
    assert read == [(("partitionValues",), None), (("stats",), 10), (("path",), 2)]
    read.clear()
    assert log.open().scan("a = 7").paths == ["f7"]
    assert read == [(("stats",), None), (("path",), 1)]


def test_doctor_finds_replaced_files_and_damaged_deletion_vectors(log):
    log.commit(protocol("deletionVectors"), metadata([column("a", "long")]))
    add = log.file("f", {"a": [1, 2, 3]}, deletionVector=vector([0]))
    log.commit(add, log.file("g", {"a": [4]}))
    assert log.open().doctor().codes == []
    log.file("g", {"a": list(range(1000))})
    broken = vector([1], cardinality=2)
    gone = {"path": "f", "deletionVector": add["add"]["deletionVector"], "deletionTimestamp": 1}
    log.commit({"remove": gone}, {"add": {**add["add"], "deletionVector": broken}})
    found = log.open().doctor()
    assert sorted(found.codes) == ["data-size", "deletion-vector"]
    assert found.paths("data-size") == ["g"]


def test_conversion_in_place_keeps_unusual_partition_values(log):
    columns = [column("a", "long"), column("d", "date"), column("x", "double")]
    log.commit(protocol("timestampNtz", "typeWidening"), metadata(columns, ["d", "x"]))
    log.commit(log.file("f", {"a": [1]}, {"d": "2024-01-02", "x": "NaN"}))
    columns[1] = widened("d", "date", "timestamp_ntz")
    later = {"d": "2024-01-03 04:05:06.7", "x": "-Infinity"}
    log.commit(metadata(columns, ["d", "x"]), log.file("g", {"a": [2]}, later))
    expected = sorted(map(str, log.rows()))
    converted = arrowlog.convert(log.root)
    assert sorted(map(str, converted.scan().to_arrow_dataset().to_table().to_pylist())) == expected
    assert len(converted.scan("d = TIMESTAMP '2024-01-02 00:00:00'").paths) == 1


@pytest.mark.parametrize("leaf", ["add.path", "add.stats", "metaData.schemaString"])
def test_damaged_checkpoint_page_is_detected_by_its_checksum(log, leaf):
    state = [protocol(), metadata([column("a", "long")])]
    adds = [log.file(f"f{i}", {"a": [i]}, stats=bounds(1, {"a": i}, a=0)) for i in range(30)]
    log.commit(*state, *adds)
    kinds = {**STATE, "add": pa.struct([*ADD, ("stats", TEXT)])}
    path = log.checkpoint([*state, *adds], kinds)
    stored = pq.read_table(path)
    pq.write_table(stored, path, write_page_checksum=True, use_dictionary=False, compression=None)
    assert len(log.rows()) == 30
    group = pq.read_metadata(path).row_group(0)
    chunk = next(
        chunk
        for chunk in (group.column(i) for i in range(group.num_columns))
        if chunk.path_in_schema == leaf
    )
    damaged = bytearray(path.read_bytes())
    # A digit of a name: the result is still a valid name.
    damaged[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(arrowlog.LogCorrupt):
        _ = log.open().snapshot().files


def test_checkpoints_view_lists_delta_checkpoints(log):
    state = [protocol(), metadata([column("a", "long")])]
    log.commit(*state)
    path = log.checkpoint(state)
    (row,) = log.open().sql("SELECT version, format, parts, size_bytes FROM checkpoints").fetchall()
    assert row == (0, "delta-parquet", 1, path.stat().st_size)
    log.commit({"commitInfo": {}})
    for number in (1, 2):
        log.checkpoint(state, name=f"{1:020d}.checkpoint.{number:010d}.{2:010d}.parquet")
    rows = log.open().sql("SELECT version, parts FROM checkpoints ORDER BY version").fetchall()
    assert rows == [(0, 1), (1, 2)]


@pytest.mark.parametrize("mode", ["none", "id"])
def test_variants_are_read_as_structs_of_metadata_and_value(log, mode):
    configuration = {"delta.columnMapping.mode": mode}
    columns = [
        mapped("a", "long", 1),
        mapped("v", "variant", 2),
        mapped("l", array_of("variant"), 3),
    ]
    log.commit(protocol("variantType", "columnMapping"), metadata(columns, (), configuration))
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    value = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    stored = {"p1": pa.array([7]), "p2": pa.array([value], kind)}
    stored["p3"] = pa.array([[value, None]], pa.list_(kind))
    fields = [
        pa.field(name, array.type, metadata={"PARQUET:field_id": name[1:]})
        for name, array in stored.items()
    ]
    data = pa.table(list(stored.values()), pa.schema(fields))
    log.commit(log.file("f", data if mode == "id" else data.rename_columns(["a", "v", "l"])))
    assert log.rows() == [{"a": 7, "v": value, "l": [value, None]}]
    assert len(log.rows("a = 7")) == 1

"""Spark's schema JSON to Arrow and back."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowlog.formats.table_schema import format_spark_schema, parse_spark_schema

SIMPLE = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "decimal(1,0)": pa.decimal128(1, 0),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,38)": pa.decimal128(38, 38),
}
READ_ONLY = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "null": pa.null(),
    "decimal": pa.decimal128(10, 0),
    "decimal( 12 , 3 )": pa.decimal128(12, 3),
    "char(5)": pa.string(),
    "varchar(100)": pa.string(),
    "interval": pa.month_day_nano_interval(),
    "interval day to second": pa.month_day_nano_interval(),
    "variant": pa.struct([("metadata", pa.binary()), ("value", pa.binary())]),
    "LONG": pa.int64(),
    " String ": pa.string(),
}


def column(kind, name="c", **more):
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **more}


def text(*columns):
    return json.dumps({"type": "struct", "fields": list(columns)})


def array(kind, *, null=True):
    return {"type": "array", "elementType": kind, "containsNull": null}


@pytest.mark.parametrize(("name", "kind"), SIMPLE.items())
def test_every_simple_type_round_trips(name, kind):
    schema = pa.schema([pa.field("c", kind)])
    assert parse_spark_schema(text(column(name))) == schema
    assert json.loads(format_spark_schema(schema)) == json.loads(text(column(name)))


@pytest.mark.parametrize(("name", "kind"), READ_ONLY.items())
def test_every_other_spelling_is_read(name, kind):
    assert parse_spark_schema(text(column(name))).field("c").type == kind


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.decimal256(38, 4), "decimal(38,4)"),
        (pa.large_list(pa.int32()), array("integer")),
        (pa.list_(pa.int32(), 3), array("integer")),
    ],
    ids=str,
)
def test_arrow_types_without_a_spark_type_map_to_the_nearest(kind, name):
    assert json.loads(format_spark_schema(pa.schema([("c", kind)])))["fields"][0]["type"] == name


def test_user_defined_type_is_read_as_its_storage_type():
    udt = {"type": "udt", "class": "org.x.Y", "pyClass": None, "sqlType": array("double")}
    assert parse_spark_schema(text(column(udt))).field("c").type == pa.list_(pa.float64())


def test_missing_or_invalid_nullability_means_nullable():
    fields = [
        {"name": "a", "type": "long"},
        column("long", "b", nullable=None),
        column("long", "n", nullable=False),
    ]
    assert [f.nullable for f in parse_spark_schema(text(*fields))] == [True, True, False]


def test_void_column_is_always_nullable():
    assert parse_spark_schema(text(column("void", nullable=False))).field("c").type == pa.null()


def test_names_keep_every_character():
    names = ["a b", "a.b", "ä", "名", "😀", "`", '"', "", "A", "a", "\n"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    assert parse_spark_schema(format_spark_schema(schema)).names == names


def test_empty_schema_round_trips():
    assert parse_spark_schema(format_spark_schema(pa.schema([]))) == pa.schema([])


leaves = st.sampled_from(list(SIMPLE.values())) | st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))
)
columns = st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True)


def structs(kinds):
    one = st.tuples(kinds, st.booleans())
    return columns.flatmap(
        lambda names: st.tuples(*(one for _ in names)).map(
            lambda found: [
                pa.field(name, kind, nullable=null or pa.types.is_null(kind))
                for name, (kind, null) in zip(names, found, strict=True)
            ]
        )
    )


types = st.recursive(
    leaves,
    lambda kinds: (
        kinds.map(pa.list_)
        | st.tuples(kinds.filter(lambda kind: kind != pa.null()), kinds).map(
            lambda kv: pa.map_(*kv)
        )
        | structs(kinds).map(pa.struct)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(structs(types))
def test_nested_schemas_round_trip(fields):
    schema = pa.schema(fields)
    once = format_spark_schema(schema)
    assert parse_spark_schema(once) == schema
    assert format_spark_schema(parse_spark_schema(once)) == once


@pytest.mark.parametrize(
    "bad",
    [
        "decimal(39,0)",
        "decimal(0,0)",
        "decimal(5,6)",
        "decimal(5,-1)",
        "decimal(5)",
        "decimal(,)",
        "char",
        "varchar(x)",
        "uuid",
        "",
        None,
        5,
        [],
        {},
        {"type": "set"},
        {"type": None},
        {"elementType": "long"},
    ],
    ids=repr,
)
def test_invalid_type_raises_with_its_column(bad):
    with pytest.raises(ValueError, match="'price'"):
        parse_spark_schema(text(column("long", "id"), column(bad, "price")))


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ({"type": "struct", "fields": [column("nope", "b")]}, "'a.b'"),
        (array("nope"), r"'a\[\]'"),
        ({"type": "array"}, r"'a\[\]'"),
        ({"type": "map", "keyType": "nope", "valueType": "long"}, "'a key'"),
        ({"type": "map", "keyType": "long"}, "'a value'"),
        ({"type": "map", "keyType": "void", "valueType": "long"}, "'a key'"),
        ({"type": "struct", "fields": [column(array("nope"), "b")]}, r"'a.b\[\]'"),
        ({"type": "udt", "class": "x"}, "'a'"),
    ],
)
def test_invalid_nested_type_raises_with_its_path(kind, where):
    with pytest.raises(ValueError, match=where):
        parse_spark_schema(text(column(kind, "a")))


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a struct"),
        ("null", "not a struct"),
        ('"long"', "not a struct"),
        ("{}", "not a struct"),
        ('{"type":"array"}', "not a struct"),
        ('{"type":"struct"}', "no list of fields"),
        ('{"type":"struct","fields":{}}', "no list of fields"),
        ('{"type":"struct","fields":["a"]}', "no name"),
        ('{"type":"struct","fields":[{"type":"long"}]}', "no name"),
        ('{"type":"struct","fields":[{"name":5,"type":"long"}]}', "no name"),
        (
            '{"type":"struct","fields":[{"name":"a","type":{"type":"struct"}}]}',
            "a.* no list of fields",
        ),
    ],
    ids=lambda value: value[:40],
)
def test_invalid_schema_is_refused(bad, what):
    with pytest.raises(ValueError, match=what):
        parse_spark_schema(bad)


def test_duplicate_column_is_refused():
    with pytest.raises(ValueError, match="'x' appears twice"):
        parse_spark_schema(text(column("long", "id"), column("long", "x"), column("string", "x")))


def test_duplicate_struct_field_is_refused():
    inner = {"type": "struct", "fields": [column("long", "x"), column("long", "x")]}
    with pytest.raises(ValueError, match="'x' appears twice"):
        parse_spark_schema(text(column(inner, "s")))


def nested(depth):
    opening = '{"type":"array","containsNull":true,"elementType":'
    kind = f'{opening * depth}"long"{"}" * depth}'
    return f'{{"type":"struct","fields":[{{"name":"deep","type":{kind}}}]}}'


def test_deep_nesting_is_read():
    kind = parse_spark_schema(nested(90)).field("deep").type
    for _ in range(90):
        kind = kind.value_type
    assert kind == pa.int64()


@pytest.mark.parametrize("depth", [101, 500, 50_000])
def test_too_deep_nesting_is_refused(depth):
    with pytest.raises(ValueError, match=r"nested too deeply|not JSON"):
        parse_spark_schema(nested(depth))


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.float16(),
        pa.time64("us"),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.decimal256(50, 2),
        pa.list_(pa.uint8()),
        pa.struct([("x", pa.uint8())]),
        pa.map_(pa.string(), pa.uint8()),
    ],
    ids=str,
)
def test_unsupported_arrow_type_raises_with_its_column(kind):
    with pytest.raises(ValueError, match=r"column '(bad|x)'.*cannot hold"):
        format_spark_schema(pa.schema([("good", pa.int64()), ("bad", kind)]))

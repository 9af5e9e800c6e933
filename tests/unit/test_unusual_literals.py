"""NaN, infinities and unusual values in predicates: one meaning in all forms, or a typed error."""

import datetime as dt
import decimal
import enum
import itertools
import math
import operator

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog

VALUES = [1.0, math.nan, math.inf, -math.inf, None, 0.0, -0.0]
OPS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FORMS = {
    "tuple": lambda col, op, v: [(col, op, v)],
    "numpy": lambda col, op, v: [(col, op, np.float64(v))],
    "numpy, 32 bits": lambda col, op, v: [(col, op, np.float32(v))],
    "scalar": lambda col, op, v: [(col, op, pa.scalar(v))],
    "scalar, 32 bits": lambda col, op, v: [(col, op, pa.scalar(v, pa.float32()))],
    "polars": lambda col, op, v: OPS[op](pl.col(col), v),
    "polars literal": lambda col, op, v: OPS[op](pl.col(col), pl.lit(v)),
    "polars, 32 bits": lambda col, op, v: OPS[op](pl.col(col), pl.lit(v, dtype=pl.Float32)),
    "polars, with others": lambda col, op, v: (
        OPS[op](pl.col(col), v) & (pl.col("id") >= 0) & pl.col("d").is_null()
    ),
    "polars, with a foreign expression": lambda col, op, v: (
        OPS[op](pl.col(col), v) & (pl.col("id").cast(pl.String).str.len_chars() == 1)
    ),
    "pyarrow": lambda col, op, v: OPS[op](pc.field(col), v),
    "cast": lambda col, op, v: f"{col} {op} CAST('{v}' AS DOUBLE)",
    "double-colon cast": lambda col, op, v: f"{col} {op} '{v}'::FLOAT",
    "text": lambda col, op, v: f"{col} {op} '{v}'",
}


def rows():
    return pa.table(
        {
            "id": pa.array(range(len(VALUES)), pa.int64()),
            "f": pa.array(VALUES, pa.float64()),
            "g": pa.array(VALUES, pa.float32()),
            "d": pa.nulls(len(VALUES), pa.date32()),
        }
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The same rows in one file, and in a file each."""
    folder = tmp_path_factory.mktemp("odd")
    whole = arrowlog.Table.create(folder / "whole", rows().schema)
    whole.write(rows())
    each = arrowlog.Table.create(folder / "each", rows().schema)
    for at in range(len(VALUES)):
        each.write(rows().slice(at, 1))
    return whole, each


def ids(table, where):
    plan = table.scan(where)
    found = sorted(plan.to_polars().collect()["id"].to_list())
    assert sorted(plan.to_arrow_dataset().to_table()["id"].to_pylist()) == found
    with duckdb.connect() as con:
        assert sorted(row[0] for row in plan.to_duckdb(con).fetchall()) == found
    return found


@pytest.mark.promise("predicate.meaning")
@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_form_equals_duckdb(tables, form, value):
    with duckdb.connect() as con:
        con.register("rows", rows())
        for column, op in itertools.product(("f", "g"), OPS):
            asked = f"SELECT id FROM rows WHERE {column} {op} '{value}'::DOUBLE ORDER BY id"
            true = [row[0] for row in con.execute(asked).fetchall()]
            for table in tables:
                assert ids(table, FORMS[form](column, op, value)) == true, (column, op)


@pytest.mark.thorough
def test_lists_and_ranges_with_nan_and_infinity(tables):
    col, nan = pl.col("f"), math.nan
    for where, true in (
        ([("f", "in", [math.nan, 1.0])], [0, 1]),
        ([("f", "not in", [math.nan, math.inf])], [0, 3, 5, 6]),
        ([("f", "between", [1, math.inf])], [0, 2]),
        ([("f", "<=>", math.nan)], [1]),
        ("f IN ('nan'::DOUBLE, 'inf'::DOUBLE)", [1, 2]),
        (col.is_in([math.nan, 1.0]), [0, 1]),
        (col.is_in([math.inf, 1.0]), [0, 2]),
        (col.is_between(1, math.inf), [0, 2]),
        (col.is_between(1, math.nan), [0, 1, 2]),
        (col.is_between(10**30, math.nan, closed="left"), [2]),
        (col.eq_missing(math.nan), [1]),
        (col.ne_missing(math.inf), [0, 1, 3, 4, 5, 6]),
        (~(col == nan), [0, 2, 3, 5, 6]),
        ((col == nan) | (pl.col("id") == 0), [0, 1]),
        ((col == math.inf) & (pl.col("id") == decimal.Decimal("2.0")), [2]),
        (col + math.inf > 3, [0, 1, 2, 3, 5, 6]),
        (pc.field("f").isin([math.nan, 1.0]), [0, 1]),
    ):
        for table in tables:
            assert ids(table, where) == true, str(where)


class Colour(enum.Enum):
    RED = 1


ODD = [
    decimal.Decimal("NaN"),
    decimal.Decimal("sNaN"),
    decimal.Decimal("-Infinity"),
    decimal.Decimal("1e999"),
    decimal.Decimal("1e-999"),
    10**40,
    -(10**400),
    1 << 63,
    1e308 * 10,
    5e-324,
    1j,
    "",
    "\0",
    "\ud800",
    "\U0010ffff",
    "x" * 2000,
    b"",
    b"\xff\0",
    dt.date.min,
    dt.date.max,
    dt.datetime.fromisoformat("0001-01-01T00:00:00"),
    dt.datetime.fromisoformat("9999-12-31T23:59:59.999999"),
    dt.datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"),
    dt.datetime.fromisoformat("0001-01-01T00:00:00+23:59"),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=23, minutes=59))),
    dt.time(1, 2),
    dt.timedelta(days=1),
    np.datetime64("NaT"),
    np.datetime64("2024-01-01T00:00:00.000000001"),
    np.timedelta64(1, "D"),
    np.bool_(True),
    np.uint64(1 << 63),
    np.float16(1),
    np.array([1, 2]),
    np.str_("x"),
    pa.scalar(None),
    pa.scalar([1, 2]),
    pa.scalar({"a": 1}),
    pa.scalar(b"x", pa.binary(1)),
    pa.scalar(2**63 - 1, pa.timestamp("s")),
    pa.scalar(-(2**63), pa.timestamp("us", "UTC")),
    pa.scalar(decimal.Decimal(10) ** 70, pa.decimal256(76, 0)),
    Colour.RED,
    object(),
    {},
    set(),
    [],
    (1, 2),
    ...,
    NotImplemented,
    print,
    pl.Series([1]),
    math,
]
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("n", pa.decimal128(10, 2)),
        ("b", pa.bool_()),
        ("o", pa.binary()),
        ("p", pa.string()),
    ]
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    table = arrowlog.Table.create(tmp_path_factory.mktemp("mixed") / "t", SCHEMA, ["p"])
    table.write(
        pa.table(
            {
                "i": [1],
                "f": pa.array([1.5], pa.float32()),
                "s": ["a"],
                "d": [dt.date(2024, 1, 1)],
                "t": [dt.datetime.fromisoformat("2024-01-01")],
                "z": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
                "n": pa.array([decimal.Decimal("1.25")], pa.decimal128(10, 2)),
                "b": [True],
                "o": [b"x"],
                "p": ["q"],
            }
        )
    )
    return table


def ask(table, make):
    """Plan, explain and read. A typed error is acceptable."""
    try:
        where = make()
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 -- polars and pyarrow refuse
        return
    try:
        plan = table.scan(where)
        str(plan), plan.explain().to_arrow(), plan.count()
        plan.to_polars().collect()
        plan.to_arrow_dataset().to_table()
    except arrowlog.InvalidRequest:
        return


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyarrow's repr
@pytest.mark.parametrize("number", range(len(ODD)))
def test_unusual_values_are_compared_or_raise_invalid_request(mixed, number):
    value = ODD[number]
    for name in SCHEMA.names:
        for op in ("=", "<", ">=", "in", "between", "like", "<=>"):
            given = [value, value] if op in ("in", "between") else value
            ask(mixed, lambda name=name, op=op, given=given: [(name, op, given)])
        for make in (
            lambda name=name: pl.col(name) == value,
            lambda name=name: pl.col(name) >= pl.lit(value),
            lambda name=name: pl.col(name).is_in([value]),
            lambda name=name: pc.field(name) == value,
            lambda name=name: pc.field(name).isin([value]),
        ):
            ask(mixed, make)


def test_date_out_of_range_is_refused(mixed):
    with pytest.raises(
        arrowlog.InvalidRequest, match="The date is outside the range of every column type"
    ):
        mixed.scan([("d", "=", pa.scalar(2**63 - 1, pa.date64()))])


@pytest.mark.parametrize("digits", [400, 5000])  # Python formats 4,300
@pytest.mark.parametrize("op", ["=", "in"])
def test_integer_out_of_range_is_refused(mixed, op, digits):
    value = -(10**digits)
    with pytest.raises(
        arrowlog.InvalidRequest, match="The integer is outside the range of every column type"
    ):
        mixed.scan([("d", op, [value] if op == "in" else value)])

"""Monotone expressions become column conditions that are never too narrow."""

import datetime as dt
import math
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.predicate import parse_monotone, solve_comparison
from arrowlog.predicate.ast import Call, Column, Literal
from arrowlog.predicate.emit.duckdb import evaluate_node, fold_constants
from arrowlog.predicate.literals import literal_from_scalar
from arrowlog.predicate.monotone import ColumnCondition
from arrowlog.predicate.parse.sql import parse_sql

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("x", pa.float64()),
        ("r", pa.float32()),
        ("c", pa.decimal128(10, 2)),
        ("d", pa.date32()),
        ("w", pa.timestamp("us")),
        ("t", pa.timestamp("us", "UTC")),
        ("s", pa.string()),
    ]
)
DAY = 86_400_000_000
Y2024 = 19_723 * DAY


def solved(text):
    """The conditions of `expression op literal`, as pairs; None if it is not monotone."""
    node = fold_constants(parse_sql(text, SCHEMA, 0))
    expression = parse_monotone(node.args[0], SCHEMA)
    found = None if expression is None else solve_comparison(expression, node.op, node.args[1])
    return None if found is None else [(each.op, each.value) for each in found]


CASES = [
    ("id + 5 > 10", [(">=", 6)]),
    ("id * 2 < 10", [("<=", 4)]),
    ("id * 2 <= 11", [("<=", 5)]),
    ("id * -2 < 10", [(">=", -4)]),
    ("id * 3 = 9", [(">=", 3), ("<=", 3)]),
    ("id * 3 = 10", [(">=", 4), ("<=", 3)]),
    ("-id >= 7", [("<=", -7)]),
    ("100 - id < 5", [(">=", 96)]),
    ("id // 10 = 4", [(">=", 40), ("<=", 49)]),
    ("id // 10 = 0", [(">=", -9), ("<=", 9)]),
    ("id + 9223372036854775807 > 9223372036854775807", [(">=", 1)]),
    ("id * 2 > 99999999999999999999999", [(">=", 2**62)]),
    ("d + 3 = DATE '2024-01-04'", [(">=", 19_723), ("<=", 19_723)]),
    ("d - DATE '2024-01-01' < 2", [("<=", 19_724)]),
    ("DATE '2024-01-01' - d > 0", [("<=", 19_722)]),
    ("year(d) = 2024", [(">=", 19_723), ("<=", 20_088)]),
    ("year(w) = 2024", [(">=", Y2024), ("<=", 20_089 * DAY - 1)]),
    ("date_part('year', t) < 2024", [("<=", Y2024 - 1)]),
    ("date_trunc('month', w) = '2024-01-01'", [(">=", Y2024), ("<=", Y2024 + 31 * DAY - 1)]),
    (
        "date_trunc('month', w) = '2024-01-15'",
        [(">=", Y2024 + 31 * DAY), ("<=", Y2024 + 31 * DAY - 1)],
    ),
    ("date_trunc('week', w) <= '2024-01-01'", [("<=", Y2024 + 7 * DAY - 1)]),
    ("date_trunc('hour', w) > '2024-01-01'", [(">=", Y2024 + 3_600_000_000)]),
    ("w + INTERVAL 1 DAY > TIMESTAMP '2024-01-02'", [(">=", Y2024 + 1)]),
    ("w - INTERVAL '2 hours' < TIMESTAMP '2024-01-01'", [("<=", Y2024 + 7_200_000_000 - 1)]),
    ("CAST(w AS DATE) = DATE '2024-01-01'", [(">=", Y2024), ("<=", Y2024 + DAY - 1)]),
    ("last_day(d) = DATE '2024-01-31'", [(">=", 19_723), ("<=", 19_753)]),
    ("CAST(id AS INTEGER) > 5", [(">=", 6)]),
    ("floor(x) = 3", [(">=", 3.0), ("<=", math.nextafter(4.0, 0))]),
    ("epoch_us(w) < 5", [("<=", 4)]),
]


@pytest.mark.parametrize(("text", "wanted"), CASES, ids=[text for text, _ in CASES])
def test_column_condition_is_exact_without_rounding(text, wanted):
    assert solved(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "id % 3 = 1",
        "id * 0 = 0",
        "id + small > 5",
        "5 / id > 1",
        "month(w) = 3",
        "date_trunc('decade', w) = '2020-01-01'",
        "CAST(s AS BIGINT) = 5",
        "CAST(id AS VARCHAR) = '5'",
        "id + x > 3",
        "x * CAST('inf' AS DOUBLE) > 3",
        "w + INTERVAL '1 fortnight' > TIMESTAMP '2024-01-01'",
        "round(x, 2) = 0.1",
        "length(s) > 3",
    ],
)
def test_non_monotone_expression_gives_no_condition(text):
    assert solved(text) is None


def test_conditions_that_all_or_no_values_satisfy():
    everything, nothing = ColumnCondition("", value=True), ColumnCondition("", value=False)
    expression = parse_monotone(Call("+", (Column("id"), Literal(1, "int"))), SCHEMA)
    large = Literal(-(2**63), "int")
    assert solve_comparison(expression, ">=", large) == [everything]
    days = parse_monotone(Call("year", (Column("d"),)), SCHEMA)
    assert solve_comparison(days, "<", Literal(10**9, "int")) == [everything]
    assert solve_comparison(days, "=", Literal(float("nan"), "double")) is None
    narrow = parse_monotone(Call("*", (Column("c"), Literal(2, "int"))), SCHEMA)
    assert solve_comparison(narrow, ">", Literal(10**30, "int")) == [nothing]


VALUES = {
    "id": lambda rng: rng.choice([rng.randrange(-99, 99), 2**53 + 1, -(2**62), 10**6]),
    "small": lambda rng: rng.randrange(-999, 999),
    "x": lambda rng: rng.choice([rng.uniform(-9, 9), 0.1, 1e300, -1e-300, 2.5, math.inf, -0.0]),
    "r": lambda rng: rng.choice([rng.uniform(-9, 9), 0.1, 1e30, 16777217.0, -0.0, 2.5]),
    "c": lambda rng: Decimal(rng.randrange(-9999, 9999)).scaleb(-2),
    "d": lambda rng: dt.date(1969, 1, 1) + dt.timedelta(days=rng.randrange(40_000)),
    "w": lambda rng: (
        dt.datetime.fromisoformat("1968-02-29") + dt.timedelta(microseconds=rng.randrange(10**16))
    ),
}
NUMBERS = ["1", "-2", "3", "0.1", "2.5", "1e0", "-1e-3", "7", "100"]
STEPS = ["({} + {})", "({} - {})", "({} * {})", "({} / {})", "({1} - {0})", "({1} + {0})", "-({})"]
STEPS += ["floor({})", "ceil({})", "round({})", "trunc({})", "CAST({} AS BIGINT)", "({} // 3)"]
STEPS += ["CAST({} AS DOUBLE)", "CAST({} AS FLOAT)", "CAST({} AS DECIMAL(30,1))"]
UNITS = ["year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond"]
AMOUNTS = ["1 DAY", "3 MONTH", "1 YEAR", "(-5) HOUR", "1.5 SECOND", "2 WEEK", "7 MILLISECOND"]


def expression(rng, name):
    text = name
    for _ in range(rng.choice([1, 2, 3])):
        if name in "dw":
            step = rng.choice(["date_trunc", "+", "-"])
            unit = rng.choice(UNITS)
            interval = f"({text} {step} INTERVAL {rng.choice(AMOUNTS)})"
            text = f"date_trunc('{unit}', {text})" if step == "date_trunc" else interval
        else:
            text = rng.choice(STEPS).format(text, rng.choice(NUMBERS))
    if name in "dw" and rng.random() < 0.5:
        text = rng.choice(["year({})", "epoch({})", "epoch_ms({})", "last_day({})"]).format(text)
    return text


@pytest.mark.thorough
@pytest.mark.promise("scan.no_row_is_lost")
@pytest.mark.parametrize("seed", range(cases(4)))
def test_every_value_that_satisfies_the_comparison_satisfies_the_condition(seed):
    """The literal is the value of the expression at another value: the hardest case."""
    rng = random.Random(seed)
    print("seed", seed)
    checked = 0
    for _ in range(30):
        name = rng.choice(list(VALUES))
        text = expression(rng, name)
        node = fold_constants(parse_sql(text, SCHEMA, 0))
        monotone = parse_monotone(node, SCHEMA) if isinstance(node, Call) else None
        if monotone is None:
            continue
        kind = SCHEMA.field(name).type
        rows = pa.table({name: pa.array([VALUES[name](rng) for _ in range(30)], kind)})
        try:
            results = evaluate_node(node, rows)
        except arrowlog.errors.InvalidRequest:  # an overflow
            continue
        for result in rng.sample(results.to_pylist(), 3):
            value = pa.scalar(result, results.type)
            literal = literal_from_scalar(value)
            if not value.is_valid or literal is None:
                continue
            for op in ("=", "<", "<=", ">", ">="):
                found = solve_comparison(monotone, op, literal)
                if found is None:
                    continue
                checked += 1
                truth = evaluate_node(Call(op, (node, literal)), rows).to_pylist()
                for row, holds in zip(rows[name], truth, strict=True):
                    told = f"{text} {op} {literal} for {row}: {found}"
                    assert not holds or all(satisfies(row, each) for each in found), told
    assert checked > 50


def satisfies(row, condition):
    if not condition.op:
        return condition.value
    value = row.as_py()
    if pa.types.is_temporal(row.type):
        value = row.value
    return value >= condition.value if condition.op == ">=" else value <= condition.value


def test_nan_is_greater_than_every_result(root):
    """A decreasing expression exceeds a number for small values and for NaN."""
    schema = pa.schema([("x", pa.float64())])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, [])])
    bounds = {"minValues": {"x": "5.0"}, "maxValues": {"x": "9.0"}}
    no_nan = '{"numRecords":2,"nanCount":{"x":0}}'
    adds = [testing.add("a", **bounds), testing.add("b", **bounds, stats=no_nan)]
    testing.write_commit(root, 1, adds)
    table = arrowlog.Table(root)
    assert table.scan("-x > 3").paths == ["a"]
    assert table.scan("-x < -10").paths == ["a"]
    assert table.scan("x * 2 > 30").paths == ["a"]
    assert table.scan("x * 2 < 5").paths == []
    assert table.scan("abs(x) > 10").paths == ["a"]
    assert table.scan("-x = 3").paths == []


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize(
    "where", ["x + 1 > {}", "NOT floor(x) <= {}", "x * 2 <> {}", "abs(CAST(x AS DOUBLE)) > {}"]
)
def test_nan_is_greater_than_a_literal_that_no_other_result_exceeds(root, where, engine):
    table = arrowlog.Table.create(root, pa.schema([("x", pa.float64())]))
    table.write(pa.table({"x": [math.nan]}))
    plan = table.scan(where.format("CAST('inf' AS DOUBLE)"), engine=engine)
    assert plan.to_arrow_dataset().count_rows() == 1


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
@pytest.mark.parametrize(
    ("where", "rows"),
    [("abs(id) <> -5", 2), ("NOT abs(id) = -5", 2), ("abs(x) <> -5", 2), ("abs(id) <> 5", 0)],
)
def test_no_absolute_value_equals_a_negative_number(root, where, rows, engine):
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    table.write(pa.table({"id": [5, 5], "x": [5.0, 5.0]}))
    table.write(pa.table({"id": pa.array([None], pa.int64()), "x": pa.array([None], pa.float64())}))
    assert table.scan(where, engine=engine).to_arrow_dataset().count_rows() == rows


def test_infinite_timestamps_have_no_year(root):
    """Their year is NULL, so `IS NOT TRUE` must keep a file that may have one."""
    schema = pa.schema([("w", pa.timestamp("us"))])
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(schema, [])])
    known = {"minValues": {"w": "2024-01-01T00:00:00"}, "stats": '{"nullCount":{"w":0}}'}
    adds = [
        testing.add("finite", maxValues={"w": "2024-02-01T00:00:00"}, **known),
        testing.add("open", **known),
    ]
    testing.write_commit(root, 1, adds)
    table = arrowlog.Table(root)
    assert table.scan("(year(w) = 2024) IS NOT TRUE").paths == ["open"]
    assert table.scan("year(w) IS NULL").paths == ["open"]
    assert table.scan("year(w) = 2025").paths == ["open"]

"""Predicates: four input forms, one tree, and its exact value."""

import datetime as dt
import enum
import operator
import random
from decimal import Decimal
from functools import reduce

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowlog import InvalidRequest
from arrowlog.predicate.parse import sql
from arrowlog.predicate.predicate import evaluate_predicate, parse_predicate


class Colour(enum.StrEnum):
    """An enum of texts."""

    RED = "a"


class Number(enum.IntEnum):
    """An enum of numbers."""

    TWO = 2


STRUCT = pa.struct([("k", pa.int64())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("name", pa.string()),
        ('od"d. col', pa.string()),
        ("partition.x", pa.int32()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("p", pa.decimal128(10, 2)),
        ("s", STRUCT),
        ("f", pa.float64()),
        ("r", pa.float32()),
    ]
)
ROWS = pa.table(
    {
        "id": [1, 2, None, 7],
        "day": pa.array([19723, 19724, None, 20000], pa.date32()),
        "name": ["a", "bc", None, "it's"],
        'od"d. col': ["x", "y", None, "z"],
        "partition.x": pa.array([1, 2, 3, None], pa.int32()),
        "b": [True, False, None, True],
        "t": pa.array([0, 1, 2, None], pa.timestamp("us", "UTC")),
        "p": pa.array([Decimal("1.5"), None, Decimal(2), Decimal(3)], pa.decimal128(10, 2)),
        "s": pa.array([{"k": 1}, {"k": 2}, None, {"k": None}], STRUCT),
        "f": [1.0, float("nan"), None, -0.0],
        "r": pa.array([0.2, None, 1.0, 2.0], pa.float32()),
    },
    schema=SCHEMA,
)
field, col = pc.field, pl.col
NOW = 1_704_758_400_000_000  # 2024-01-09
MATCHES = [
    ("id = 1", [0]),
    ("day = '2024-01-01' AND id BETWEEN 1 AND 9", [0]),
    ("id IN (1, 2) OR name LIKE 'it%'", [0, 1, 3]),
    ("NOT (id = 1)", [1, 3]),
    ("id NOT IN (1, NULL)", []),
    ("id IS NOT NULL", [0, 1, 3]),
    ("id ISNULL", [2]),
    ("id <=> NULL", [2]),
    ("id IS DISTINCT FROM 1", [1, 2, 3]),
    ("day >= current_date - 7", [1, 3]),
    ("day >= date_sub(current_date(), 8)", [0, 1, 3]),
    ("day > DATE '2024-01-01' - INTERVAL 1 DAY", [0, 1, 3]),
    ("day = CAST('2024-01-02' AS DATE)", [1]),
    ("t <= TIMESTAMP '1970-01-01 00:00:00.000001'", [0, 1]),
    ("t = TIMESTAMPTZ '1970-01-01 01:00:00+01:00'", [0]),
    ("t < now() - INTERVAL '1' HOUR", [0, 1, 2]),
    ('"od""d. col" = \'x\'', [0]),
    ("`od\"d. col` = 'x'", [0]),
    ("partition.x = 1", [0]),
    ('"partition.x" IN (2)', [1]),
    ("b", [0, 3]),
    ("NOT b", [1]),
    ("b IS NOT TRUE", [1, 2]),
    ("s.k > 1", [1]),
    ("p > 1.5", [2, 3]),
    ("year(day) = 2024 AND month(day) < 3", [0, 1]),
    ("extract(month from day) = 10", [3]),
    ("name = 'it''s' -- a comment", [3]),
    ("lower(NAME) IN ('a', 'bc')", [0, 1]),
    ("starts_with(name, 'b') /* or */ OR name ^@ 'a'", [0, 1]),
    ("name RLIKE 'C|t'", [3]),
    ("CASE WHEN id = 1 THEN TRUE ELSE b END", [0, 3]),
    ("id::text || '!' = '2!'", [1]),
    ("f > 5", [1]),
    ("f = 0.0", [3]),
    ("1 = 1", [0, 1, 2, 3]),
    ("-id < -1 AND id % 2 = 0", [1]),
    (f"id < 1{'0' * 60} AND p < 1.{'0' * 50}1", []),
    (None, [0, 1, 2, 3]),
    ([], [0, 1, 2, 3]),
    (("id", ">", 1), [1, 3]),
    ([("day", "=", "2024-01-01"), ("id", "<=", 1)], [0]),
    ([[("id", "=", 1)], [("name", "in", ["bc"]), ("b", "=", False)]], [0, 1]),
    ([("id", "not in", [1, 2])], [3]),
    ([("id", "in", [])], []),
    ([("id", "is null")], [2]),
    ([("id", "is not", None)], [0, 1, 3]),
    ([("id", "=", None)], []),
    ([("id", "<=>", None)], [2]),
    ([("id", "between", (2, 7))], [1, 3]),
    ([("name", "not like", "i%")], [0, 1]),
    ([("day", ">=", dt.date(2024, 1, 2))], [1, 3]),
    ([("t", ">", dt.datetime(1970, 1, 1, tzinfo=dt.UTC))], [1, 2]),
    ([("p", "=", Decimal("1.50"))], [0]),
    ([("partition.x", "=", 3)], [2]),
    (col("id") > 1, [1, 3]),
    ((col("id") == 1) | col("name").str.contains("b"), [0, 1]),
    (col("id").is_in([1, 2]) & ~col("b"), [1]),
    (col("id").is_in([1, None]).not_(), [1, 3]),
    (col("day") == dt.date(2024, 1, 1), [0]),
    (col("id").is_between(1, 7, closed="none"), [1]),
    (col("id").eq_missing(None), [2]),
    (col("b") & col("s").struct.field("k").is_null(), [3]),
    (col("f").is_nan(), [1]),
    (field("id") > 1, [1, 3]),
    ((field("id") == 1) | field("name").isin(["bc", None]), [0, 1, 2]),
    (~field("id").isin([1]), [1, 2, 3]),
    (pc.year(field("day")) == 2024, [0, 1, 3]),
    (field("p") > 1.5, [2, 3]),
    (field('od"d. col') == "x", [0]),
    (field(("s", "k")) > 1, [1]),
    (pc.starts_with(field("name"), "b"), [1]),
    (pc.match_like(field("name"), "%c"), [1]),
    (field("t") == pa.scalar(1, pa.timestamp("us", "UTC")), [1]),
    ("r BETWEEN CAST(-1.5 AS FLOAT) AND '0.2'", [0]),
    ("r = CAST('0.2' AS FLOAT)", [0]),
    ("r IN (CAST('0.2' AS DOUBLE), 7)", []),
    ("name ~ 't'", [3]),
    ("name !~ 't'", [0, 1]),
    ("name SIMILAR TO 'b.'", [1]),
    ("name NOT SIMILAR TO 'b.'", [0, 3]),
    ("name GLOB 'b*'", [1]),
    ("id = 1 ;", [0]),
    ("id::INT8 = 1 AND f::DOUBLE PRECISION = 1", [0]),
    ("id IN ()", []),
    ("id NOT IN ()", [0, 1, 2, 3]),
    ("id = int('1')", [0]),
    ("day >= timestamp('2024-01-02')", [1, 3]),
    ("day < DATE '2024-01-01' + INTERVAL 1 QUARTER", [0, 1]),
    ("day < DATE '2024-01-01' + INTERVAL 1.7 DAY", [0]),
    ("day < DATE '2024-01-01' + INTERVAL '1.7' DAY", [0]),
    ("t < TIMESTAMP '1970-01-01' + INTERVAL 0.000001 SECOND", [0]),
    ("id IS TRUE", [0, 1, 3]),
    ("(id IS TRUE) AND NOT (f IS FALSE)", [0, 1]),
    ("((((id = 1) OR id = 2) OR id = 7) AND b)", [0, 3]),
    ("(((id + 1) * 2) = 4)", [0]),
    (f"{'(' * 3000}id = 1{' OR id = 2)' * 3000}", [0, 1]),
    ([("name", "=", Colour.RED)], [0]),
    ([("id", "=", Number.TWO)], [1]),
    ([("day", "=", np.datetime64("2024-01-02"))], [1]),
    ([("day", "<", np.datetime64("2024-02"))], [0, 1]),
    ([("t", "=", np.datetime64(1, "us"))], [1]),
    ([("t", "=", np.datetime64(1000, "ns"))], [1]),
    ([("t", ">=", np.datetime64("NaT"))], []),
    ([("t", ">=", pd.NaT)], []),
    ([("id", "in", [1, pd.NA])], [0]),
    (col("name") + "c" == "ac", [0]),
    ("b" + col("name") + col("name") == "baa", [0]),
    (col("name") + col("id").cast(pl.String) == "a1", [0]),
    (col("day") == pl.date(2024, 1, 2), [1]),
    (col("id").is_in(pl.Series([2, 7])), [1, 3]),
    (col("id") == pl.lit(2).cast(pl.Int8), [1]),
    (pc.add(field("s", "k"), 1) == 2, [0]),
    (reduce(operator.or_, [col("id") == number for number in range(2, 2000)]), [1, 3]),
    (reduce(operator.or_, [field("id") == number for number in range(2, 2000)]), [1, 3]),
]


@pytest.mark.parametrize(("where", "rows"), MATCHES, ids=range(len(MATCHES)))
def test_predicate_matches_the_expected_rows(where, rows):
    found = evaluate_predicate(parse_predicate(where, SCHEMA, now_micros=NOW), ROWS).to_pylist()
    assert [row for row, true in enumerate(found) if true] == rows
    assert None not in found


REFUSED = [
    ("", "empty"),
    ("id = ", "character 6"),
    ("nope = 1", "character 1: there is no column 'nope'"),
    ("id = 1 AND nope.x = 1", "character 12"),
    ("id = 1 id", "character 8"),
    ("SELECT 1", "not row predicates"),
    ("id IN (SELECT 1)", "character 8"),
    ("id = (SELECT 1)", "not row predicates"),
    ("EXISTS (SELECT 1)", "not row predicates"),
    ("sum(id) OVER () > 1", "not row predicates"),
    ("count(*) > 1", "aggregate or window function"),
    ("id = 'x", "character 6"),
    ("id = 1; DROP TABLE x", "character 7"),
    ("id = $1", "character 6"),
    (f"id = {'9' * 5000}", "too long"),
    ("((id = 1)", "character 10"),
    ("id", "not a condition"),
    ("id + 1", "not a condition"),
    ("b AND 5", "not a condition"),
    ("CAST(id AS NONSENSE) = 1", "'NONSENSE' is not a type"),
    ("(b OR " * 200 + "b" + ")" * 200, "nested too deeply"),
    ("id = " + " + ".join(["id"] * 3000), "nested too deeply"),
    ("1 < id < 3", "character 8: comparisons cannot be chained"),
    ("b = (id = 1) = TRUE", "character 14: comparisons cannot be chained"),
    ("id = 1 AND sum(id) > 1", "character 12: sum is an aggregate"),
    ("coalesce(id, 0)", "not a condition"),
    ("b AND upper(name)", "is a value, not a condition"),
    ("CASE WHEN b THEN 5 ELSE 0 END", "not a condition"),
    (col("f").sqrt(), "not a condition"),
    (pc.sqrt(field("f")), "not a condition"),
    (col("id") == col("id").max(), "more than one row"),
    ((col("id") == 1) & (col("id").sum() > 1), "more than one row"),
    (pl.len() > 1, "more than one row"),
    (col("id").shift(1) == 1, "more than one row"),
    (col("id").max().over("b") == 1, "more than one row"),
    (col("id").is_first_distinct(), "more than one row"),
    (~(col("id").is_duplicated() & col("b")), "more than one row"),
    (col("id").map_elements(abs, return_dtype=pl.Int64).sum() > 1, "more than one row"),
    ([("id", "=", np.timedelta64(1, "s"))], "duration"),
    ([("t", "=", np.datetime64(1, "ns"))], "whole number of microseconds"),
    ([("nope", "=", 1)], "no column 'nope'"),
    ([("id", "~", 1)], "not an operator"),
    ([("id", "=", object())], "not a value"),
    ([("id", "in", "abc")], "list of values"),
    ([("id", "=")], "no value"),
    ([5], "not a condition"),
    ([[("id", "=", 1)], []], "empty"),
    (5, "not a predicate"),
    (col("nope") == 1, "no column 'nope'"),
    (field("nope") == 1, "no column 'nope'"),
]


@pytest.mark.parametrize(("where", "why"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_predicate_raises_with_its_position(where, why):
    with pytest.raises(InvalidRequest, match=why.replace("(", r"\(")):
        parse_predicate(where, SCHEMA)


def test_predicate_columns_and_understood_flag():
    found = parse_predicate("s.k > 1 AND lower(name) = 'x'", SCHEMA)
    assert found.columns == {"s", "name"}
    assert found.understood
    odd = parse_predicate("id = 1 AND soundex(name) = 'x'", SCHEMA)
    assert odd.columns == {"id", "name"}
    assert not odd.understood
    with pytest.raises(InvalidRequest, match="soundex"):
        evaluate_predicate(odd, ROWS)
    assert not parse_predicate(col("name").str.contains("b"), SCHEMA).understood


@pytest.mark.parametrize(
    "text", ["current_setting('threads') = 1", "random() < 2", "getenv('A')=''"]
)
def test_non_deterministic_functions_are_not_evaluated(text):
    found = parse_predicate(text, SCHEMA)
    assert not found.understood
    with pytest.raises(InvalidRequest, match="cannot be evaluated"):
        evaluate_predicate(found, ROWS)


def test_decimal_literals_keep_all_digits():
    wide = pa.schema([("m", pa.decimal128(38, 10))])
    value = Decimal("-1234567890123456789012345678.1234567891")
    for where in (f"m = {value}", [("m", "=", value)], col("m") == value, field("m") == value):
        assert parse_predicate(where, wide).tree.args[1].value == value, where


def test_case_insensitive_names_must_be_unambiguous():
    schema = pa.schema([("A", pa.int64()), ("a", pa.int64()), ("B", pa.int64())])
    assert parse_predicate("a = 1 and b = 2", schema).columns == {"a", "B"}
    two = pa.schema([("Ab", pa.int64()), ("aB", pa.int64())])
    with pytest.raises(InvalidRequest, match="may be any of Ab, aB"):
        parse_predicate("ab = 1", two)


def test_incompatible_literal_raises_when_evaluated():
    found = parse_predicate("id = 'abc'", SCHEMA)
    with pytest.raises(InvalidRequest, match="cannot be evaluated"):
        evaluate_predicate(found, ROWS)


@pytest.mark.parametrize("op", ["not is null", "not is not null", "NOT IS", "not is not"])
def test_negated_is_test_in_tuples_is_refused(op):
    """It used to have the opposite meaning."""
    condition = ("id", op) if "null" in op.lower() else ("id", op, None)
    with pytest.raises(InvalidRequest, match=r"is not an operator|no value"):
        parse_predicate([condition], pa.schema([("id", pa.int64())]))


def parsed(parse):
    try:
        return parse()
    except InvalidRequest as error:
        return str(error)


def test_fast_path_for_conjunctions_of_comparisons_equals_the_parser():
    """Conjunctions of comparisons are parsed without tokens, with the same result."""
    schema = pa.schema([(name, pa.int64()) for name in ("id", "Value", "a$b", "é", "select")])
    columns = ["id", "Value", "a$b", "é", "ID", "select", "nope", '"id"', "id::int"]
    signs = ["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>", "< =", " LIKE "]
    values = [
        "5",
        "-5",
        "5.25",
        "-0.50",
        "'a'",
        "''",
        "'and'",
        "- 5",
        "5.",
        ".5",
        "1e3",
        "5L",
        "5bd",
    ]
    values += [
        "5bd",
        "'a''b'",
        "-'x'",
        "NULL",
        "id",
        "(5)",
        "5 -- c",
        "5/*c*/",
        "9" * 30,
        "9" * 120,
        "'a",
    ]
    joints = [" AND ", " and ", "\nAnD\t", " AND", " OR ", " AND NOT ", " AND -- c\n", " AND AND "]
    rng, without_tokens = random.Random(0), 0
    for _ in range(4000):
        odd = rng.random() < 0.3  # otherwise mostly texts parsed without tokens

        def pick(choices, usual, odd=odd):
            return rng.choice(choices if odd else choices[:usual])

        text = rng.choice(["", " ", "\n"])
        for number in range(rng.randint(1, 4)):
            text += pick(joints, 3) if number else ""
            text += pick(columns, 4) + rng.choice(["", " "]) + pick(signs, 8) + pick(values, 7)
        text += pick(["", " ", ";", " AND", " )"], 2)
        expected = parsed(lambda text=text: sql._Parser(text, schema, 0).parse())
        assert parsed(lambda text=text: sql.parse_sql(text, schema, 0)) == expected, text
        without_tokens += sql._parse_comparisons(text, schema.names) is not None
    assert without_tokens > 1000

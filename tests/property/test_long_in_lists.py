"""IN lists that Arrow evaluates by hashing, under operators that distinguish NULL from FALSE."""

import random

import duckdb
import pyarrow as pa
import pytest
from support.case_count import cases, first_seed

import arrowlog
from arrowlog.predicate import literals as literals_module
from arrowlog.predicate import predicate

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
NAN = float("nan")


@pytest.fixture
def world(root):
    """Files with different mixes of NULL, NaN, zeros, members of the list and other values."""
    table = arrowlog.Table.create(root, SCHEMA)
    parts = [
        pa.table({"n": [0, 1], "x": [None, None], "f": [None, NAN], "s": [None, None]}, SCHEMA),
        pa.table({"n": [2, 3], "x": [1, 1], "f": [1.0, 1.0], "s": ["1", "1"]}, SCHEMA),
        pa.table({"n": [4, 5], "x": [900, 900], "f": [900.5, 900.5], "s": ["q", "q"]}, SCHEMA),
        pa.table({"n": [6, 7], "x": [1, None], "f": [-0.0, NAN], "s": ["900", None]}, SCHEMA),
        pa.table({"n": [8, 9], "x": [900, 5], "f": [0.0, 2.0], "s": ["5", "z"]}, SCHEMA),
    ]
    for part in parts:
        table.write(part)
    return table, pa.concat_tables(parts)


def condition(rng, depth):
    if depth == 0:
        column = rng.choice("xfs")
        members = [str(number) for number in range(rng.choice([3, 101, 150]))]
        if column == "s":
            members = [f"'{text}'" for text in members]
        if rng.random() < 0.3:
            members.append("NULL")
        if column == "x" and rng.random() < 0.1:
            members.append("99999999999999999999")  # beyond the column's type
        negated = rng.choice(["", "NOT "])
        if rng.random() < 0.3:
            between, comparison = (" AND ", "<>") if negated else (" OR ", "=")
            return between.join(f"{column} {comparison} {member}" for member in members)
        return f"{column} {negated}IN ({', '.join(members)})"
    inner = f"({condition(rng, depth - 1)})"
    test = rng.choice(
        ["NOT", "TRUE", "FALSE", "NULL", "DISTINCT", "AND", "OR", "NOT TRUE", "NOT FALSE"]
    )
    if test == "NOT":
        return f"NOT {inner}"
    if test in ("AND", "OR"):
        return f"{inner} {test} ({condition(rng, depth - 1)})"
    if test == "DISTINCT":
        other = rng.choice(["TRUE", "FALSE", "NULL"])
        return f"{inner} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {other}"
    if test == "NULL":
        return f"{inner} IS {rng.choice(['', 'NOT '])}NULL"
    return f"{inner} IS {test}"


@pytest.mark.parametrize("literals", [2, 1000])
def test_long_in_lists_lose_no_row_under_any_operator(world, monkeypatch, literals):
    # Literals beyond the limit become value sets, and so do chains of comparisons.
    for module in (literals_module, predicate):
        monkeypatch.setattr(module, "LITERALS_MAX", literals)
    table, rows = world
    seed = first_seed()
    rng = random.Random(seed)
    texts = [
        f"NOT ((x IN ({', '.join(map(str, range(101)))})) IS FALSE)",
        *(condition(rng, rng.randint(1, 4)) for _ in range(cases(150))),
    ]
    with duckdb.connect() as con:
        con.register("rows", rows)
        for text in texts:
            expected = sorted(n for (n,) in con.sql(f"SELECT n FROM rows WHERE {text}").fetchall())
            found = table.scan(text, max_staleness=1e9).to_arrow_dataset().to_table(columns=["n"])
            assert sorted(found["n"].to_pylist()) == expected, text

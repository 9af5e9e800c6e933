"""Filters pushed down by engines return the rows of the same filter on all rows in memory."""

import math
import operator
import random
from dataclasses import dataclass

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.case_count import cases
from support.random_rows import KINDS

import arrowlog
from arrowlog.predicate import parse_pushed_filter

BATCHES, TABLES, FILTERS = 4, cases(4), 60
SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass
class World:
    """A table of real files, and all its rows in memory with the number of their file."""

    rng: random.Random
    table: arrowlog.Table
    rows: pa.Table


def build(root, seed):
    """Small files of few values each, so that files can be skipped."""
    rng = random.Random(seed)
    letters = rng.sample(list(KINDS), 5)
    fields = [("id", pa.int64()), *((letter, KINDS[letter][0]) for letter in letters)]
    schema = pa.schema(fields)
    parts = [rng.choice([c for c in letters if c in "bidsc"] or [[]])] if seed % 3 == 0 else []
    parts = [part for part in parts if part]
    table = arrowlog.Table.create(root, schema, partition_columns=parts)
    chunks, start = [], 0
    for number in range(8):
        count = rng.choice([1, 2, 3, 6])
        columns = {"id": range(start, start + count)}
        for letter in letters:
            pool = KINDS[letter][1] if letter not in parts else KINDS[letter][1][:5]
            few = [rng.choice(pool) for _ in range(rng.choice([1, 1, 2]))]
            few = few[:1] if letter in parts else few
            nulls = rng.choice([0, 0, 0.3, 1])
            columns[letter] = [None if rng.random() < nulls else rng.choice(few)] * count
            if letter not in parts:
                columns[letter] = [
                    None if rng.random() < nulls else rng.choice(few) for _ in range(count)
                ]
        start += count
        chunk = pa.table(columns, schema=schema)
        table.write(chunk)
        chunks.append(chunk.append_column("file", pa.array([number] * count)))
    return World(rng, table, pa.concat_tables(chunks))


def draw(world, depth=3):
    """A filter as nested tuples: (connective, parts) or (test, column, values)."""
    rng = world.rng
    if depth and rng.random() < 0.6:
        word = rng.choice(["and", "or", "not"])
        return word, [draw(world, depth - 1) for _ in range(1 if word == "not" else 2)]
    name = rng.choice(world.rows.schema.names[:-1])
    pool = KINDS[name][1] if name != "id" else list(range(world.rows.num_rows))
    test = rng.choice([*SIGNS, *SIGNS, "in", "null"])
    return test, name, [rng.choice(pool) for _ in range(rng.choice([1, 3]) if test == "in" else 1)]


def as_polars(world, drawn):
    if drawn[0] in ("and", "or", "not"):
        parts = [as_polars(world, part) for part in drawn[1]]
        if drawn[0] == "not":
            return ~parts[0]
        return (operator.and_ if drawn[0] == "and" else operator.or_)(*parts)
    test, name, values = drawn
    if test == "null":
        return pl.col(name).is_null()
    kind = pl.from_arrow(world.rows.schema.empty_table())[name].dtype
    if test == "in":
        return pl.col(name).is_in(pl.Series(values, dtype=kind).implode())
    plain = world.rng.random() < 0.5  # let polars choose the type
    return SIGNS[test](pl.col(name), values[0] if plain else pl.lit(values[0], kind))


def as_arrow(world, drawn):
    if drawn[0] in ("and", "or", "not"):
        parts = [as_arrow(world, part) for part in drawn[1]]
        if drawn[0] == "not":
            return ~parts[0]
        return (operator.and_ if drawn[0] == "and" else operator.or_)(*parts)
    test, name, values = drawn
    kind = world.rows.schema.field(name).type
    if test == "null":
        return pc.field(name).is_null()
    if test == "in":
        return pc.field(name).isin(pa.array(values, kind))
    if pa.types.is_integer(kind) and world.rng.random() < 0.3:
        return SIGNS[test](pc.field(name), float(values[0]))
    return SIGNS[test](pc.field(name), pa.scalar(values[0], kind))


def as_sql(world, drawn):
    if drawn[0] in ("and", "or", "not"):
        parts = [f"({as_sql(world, part)})" for part in drawn[1]]
        return f"NOT {parts[0]}" if drawn[0] == "not" else f" {drawn[0]} ".join(parts)
    test, name, values = drawn
    if test == "null":
        return f"{name} IS NULL"
    texts = [as_literal(value) for value in values]
    return f"{name} IN ({', '.join(texts)})" if test == "in" else f"{name} {test} {texts[0]}"


def as_literal(value):
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    if isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"'{value}'" if hasattr(value, "year") else str(value)


def check_polars(world, frame, drawn):
    """Whether polars accepts the filter; if so, the rows equal those in memory."""
    where = as_polars(world, drawn)
    try:
        true = pl.DataFrame(world.rows).filter(where)["id"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
    found = frame.filter(where).collect()["id"]
    assert sorted(found) == sorted(true), f"{where}"
    return True


def check_arrow(world, dataset, drawn):
    """The number of files read, or None if Arrow does not accept the filter."""
    where = as_arrow(world, drawn)
    try:
        true = world.rows.filter(where)["id"].to_pylist()
    except pa.ArrowInvalid:  # an integer that a float cannot represent
        return None
    assert sorted(dataset.to_table(filter=where)["id"].to_pylist()) == sorted(true), f"{where}"
    assert dataset.count_rows(filter=where) == len(true), f"{where}"
    return len(dataset.filter(where).files)


def check_duckdb(con, relation, sql):
    try:
        true = [row[0] for row in con.sql(f"SELECT id FROM memory WHERE {sql}").fetchall()]
    except duckdb.Error:
        return False
    assert sorted(row[0] for row in relation.filter(sql).fetchall()) == sorted(true), sql
    return True


@pytest.mark.promise("scan.no_row_is_lost")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_pushed_filters_lose_no_row(batch, tmp_path):
    asked = {"polars": 0, "arrow": 0, "duckdb": 0}
    opened = 0
    for seed in range(batch * TABLES, (batch + 1) * TABLES):
        print("seed", seed)
        world = build(tmp_path / str(seed), seed)
        plan = world.table.scan()
        frame, dataset = plan.to_polars(), plan.to_arrow_dataset()
        with duckdb.connect(config={"threads": "1"}) as con:
            con.execute("SET TimeZone = 'UTC'").fetchall()
            con.register("given", world.rows)
            con.execute("CREATE TABLE memory AS SELECT * FROM given").fetchall()
            relation = plan.to_duckdb(con)
            for _ in range(FILTERS):
                drawn = draw(world)
                asked["polars"] += check_polars(world, frame, drawn)
                files = check_arrow(world, dataset, drawn)
                asked["arrow"] += files is not None
                opened += files or 0
                asked["duckdb"] += check_duckdb(con, relation, as_sql(world, drawn))
    print(asked, f"{opened / asked['arrow']:.1f} of 8 files opened")
    assert min(asked.values()) > TABLES * FILTERS / 2  # the engines accept most of the filters
    assert opened < 6 * asked["arrow"]  # and files are skipped


def test_filters_with_engine_specific_semantics_skip_no_file():
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64()), ("s", pa.string())])
    x, n = pc.field("x"), pc.field("n")
    for where in (x > 5, x <= math.inf, ~(n > 5), n.isin([1, 2])):
        assert "ForeignExpr" not in str(parse_pushed_filter(where, schema)), where
    for where in (~(x > 5), ~x.isin([0.0]), n > x, pc.add(n, 1) > 5, ~(pc.abs(n) == 1)):
        assert "ForeignExpr" in str(parse_pushed_filter(where, schema)), where

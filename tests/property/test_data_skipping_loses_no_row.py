"""Data skipping loses no row: the planned files have every row DuckDB finds in all files."""

import math
import operator

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.case_count import cases
from support.random_predicates import predicate
from support.random_rows import KINDS, PLACES, build, letter_of

import arrowlog
from arrowlog.errors import InvalidRequest
from arrowlog.predicate.predicate import evaluate_predicate, parse_predicate

BATCHES, TABLES, PREDICATES = 10, cases(10), 100


def connect(world):
    con = duckdb.connect(config={"threads": "1"})
    con.execute("SET TimeZone = 'UTC'").fetchall()
    con.register("given", world.rows)
    con.execute("CREATE TABLE rows AS SELECT * FROM given").fetchall()
    return con


def found_by_duckdb(con, text):
    """Matching rows by file, or None if DuckDB refuses the predicate."""
    question = f"SELECT file, count(*) FROM rows WHERE {text} GROUP BY file"
    try:
        return dict(con.execute(question).fetchall())
    except duckdb.Error:
        return None


def check(world, table, con, text, number):
    found = found_by_duckdb(con, text)
    plan = table.scan(text, max_staleness=1e9)
    check_engines(table, plan, text, number)
    if found is None:
        return None
    lost = set(found) - set(plan.paths)
    assert not lost, f"{text} lost {lost}\n{plan.explain()}"
    count = plan.count()
    assert count is None or count == sum(found.values()), text
    if number % 8 == 0:
        try:
            rows = evaluate_predicate(parse_predicate(text, world.schema), world.rows)
        except InvalidRequest:  # an overflow that a WHERE may skip, and a SELECT does not
            return plan.total_files - plan.num_files, count is not None
        assert sum(rows.to_pylist()) == sum(found.values()), text
    if number % 4 == 0 and found:
        check_extremes(world, plan, con, text)
    return plan.total_files - plan.num_files, count is not None


def check_engines(table, plan, text, number):
    """DuckDB, Arrow and the SQL of the plan choose the same files."""
    by_duckdb = table.scan(text, max_staleness=1e9, engine="duckdb")
    assert by_duckdb.paths == plan.paths, f"{text}\n{plan.sql}"
    if number % 10 == 0:
        for asked in (plan, table.scan(text, version=1)):
            paths = table.query(asked.sql)["path"].to_pylist()
            assert sorted(paths) == sorted(asked.paths), f"{text}\n{asked.sql}"


def check_extremes(world, plan, con, text):
    name = world.rng.choice(world.schema.names)
    for word, said in (("min", plan.min(name)), ("max", plan.max(name))):
        if said is not None:
            true = con.sql(f"SELECT {word}({name}) AS m FROM rows WHERE {text}").to_arrow_table()
            assert said == true["m"][0].as_py(), f"{word}({name}) of {text}"


@pytest.mark.promise("scan.no_row_is_lost")
@pytest.mark.promise("scan.engines_agree")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_data_skipping_loses_no_row(batch, tmp_path):
    asked = dropped = counted = 0
    for seed in range(batch * TABLES, (batch + 1) * TABLES):
        print("seed", seed)
        root = tmp_path / str(seed)
        world = build(root, seed)
        table = arrowlog.Table(root)
        with connect(world) as con:
            for number in range(PREDICATES):
                text = predicate(world)
                result = check(world, table, con, text, number)
                if result is not None:
                    asked += 1
                    dropped += result[0]
                    counted += result[1]
    print(f"{asked} predicates, {dropped / asked:.1f} of 12 files dropped, {counted} counted")
    assert asked > TABLES * PREDICATES * 0.7
    assert dropped > asked  # files are skipped
    assert counted > asked // 20


def conditions(world):
    """A condition as a tuple, and as expressions of polars and pyarrow."""
    rng = world.rng
    item = rng.choice(list(world.schema))
    pool = PLACES if item.name == "ps" else KINDS[letter_of(item.name)][1]
    # The JSON form of polars has no NaN and no infinity.
    pool = [v for v in pool if not isinstance(v, float) or math.isfinite(v)]
    op, value = rng.choice(["=", "!=", "<", "<=", ">", ">="]), rng.choice(pool)
    act = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[op]
    polars = getattr(operator, act)(pl.col(item.name), pl.lit(value))
    arrow = getattr(operator, act)(pc.field(item.name), pa.scalar(value, item.type))
    if rng.random() < 0.3:
        values = [rng.choice(pool) for _ in range(3)]
        op, value = "in", values
        polars = pl.col(item.name).is_in(values)
        arrow = pc.field(item.name).isin(pa.array(values, item.type))
    return (item.name, op, value), polars, arrow


@pytest.mark.parametrize("seed", range(1000, 1000 + cases(20)))
def test_all_predicate_forms_plan_the_same_files(seed, tmp_path):
    print("seed", seed)
    world = build(tmp_path, seed)
    table = arrowlog.Table(tmp_path)
    dropped = 0
    for _ in range(20):
        first, second = conditions(world), conditions(world)
        forms = ([first[0], second[0]], first[1] & second[1], first[2] & second[2])
        plans = [table.scan(where, max_staleness=1e9) for where in forms]
        for plan in plans:
            rows = world.rows.filter(evaluate_predicate(plan.predicate, world.rows))
            assert set(rows["file"].to_pylist()) <= set(plan.paths), plan
        assert [plan.predicate.understood for plan in plans] == [True] * 3, plans
        assert len({tuple(plan.paths) for plan in plans}) == 1, plans
        dropped += plans[0].total_files - plans[0].num_files
    assert dropped > 20

"""Long and deep predicates work or raise `InvalidRequest`, without crashes or quadratic memory."""

import functools
import operator
import os
import pickle
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog.predicate import limits
from arrowlog.predicate.emit.row_filters import emit_pyarrow
from arrowlog.predicate.predicate import evaluate_predicate, parse_predicate

pytestmark = pytest.mark.thorough
SCHEMA = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
MANY = 200_000
ID = pl.col("id")
FIELD = pc.field("id")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    table = arrowlog.Table.create(tmp_path_factory.mktemp("long") / "table", SCHEMA)
    numbers = [*range(50), None]
    floats = [None if n is None else n * 0.5 - 1 for n in numbers]
    texts = [None if n is None else f"x{n}" for n in numbers]
    table.write(pa.table({"id": numbers, "f": floats, "s": texts}, schema=SCHEMA))
    table.write(pa.table({"id": [-5], "f": [-0.0], "s": ["y"]}, schema=SCHEMA))
    return table


def every_reader(plan):
    """The number of rows each reader finds."""
    assert plan.explain().files_kept == plan.num_files
    splits = pickle.loads(pickle.dumps(plan.splits()))
    connection = duckdb.connect()  # relations of DuckDB 1 do not keep it
    found = {
        plan.to_arrow_dataset().to_table().num_rows,
        plan.to_polars().collect().height,
        len(plan.to_duckdb(connection).fetchall()),
        sum(batch.num_rows for part in splits for batch in part.batches()),
    }
    assert plan.count() in (None, *found)
    return found


def values(count):
    return ", ".join(map(str, range(10, count)))


IN = {
    "sql": (f"id IN ({values(MANY)})", 40),
    "texts": ("s IN (" + ", ".join(f"'x{n}'" for n in range(10, MANY)) + ")", 40),
    "polars": (ID.is_in(list(range(10, MANY))), 40),
    "pyarrow": (FIELD.isin(list(range(10, MANY))), 40),
    "not in": (f"id NOT IN ({values(2000)})", 11),
    "neither is true": (f"NOT (id NOT IN ({values(2000)}))", 40),
    "with NULL": (f"id IN (NULL, {values(2000)})", 40),
    "not in with NULL": (f"id NOT IN (NULL, {values(2000)})", 0),
    "is not true": (f"(id IN ({values(2000)})) IS NOT TRUE", 12),
    "floats": ("f IN (" + ", ".join(f"{n}.0" for n in range(2000)) + ")", 25),
    "tuples": ([("id", "in", range(10, 2000))], 40),
}


@pytest.mark.parametrize("form", IN)
def test_long_in_lists_work_in_every_reader(table, form):
    where, count = IN[form]
    assert every_reader(table.scan(where)) == {count}


@pytest.mark.parametrize("negated", ["", "NOT "])
@pytest.mark.parametrize("kind", ["id", "f", "s"])
def test_in_list_equals_single_comparisons(table, kind, negated):
    values = [f"'x{n}'" if kind == "s" else f"{n}.0" if kind == "f" else n for n in range(-200, 20)]
    where = f"{kind} {negated}IN ({', '.join(map(str, values))})"
    rows = table.scan().to_arrow_dataset().to_table()
    predicate = parse_predicate(where, SCHEMA)
    expected = rows.filter(evaluate_predicate(predicate, rows)).num_rows
    found = emit_pyarrow(predicate.tree, SCHEMA)
    if found is not None:
        assert rows.filter(found).num_rows == expected
    assert (found is None) == (kind == "f" and bool(negated))  # a NaN is not in the list
    assert every_reader(table.scan(where)) == {expected}


CHAINS = {
    "or": (" OR ".join(f"id = {n}" for n in range(10_000)), 50),
    "and": (" AND ".join(f"id <> {n}" for n in range(1, 20_000)), 2),
    "tuples": ([[("id", "=", n)] for n in range(10_000)], 50),
    "polars": (functools.reduce(operator.or_, [n == ID for n in range(10_000)]), 50),
    "polars, any": (pl.any_horizontal([n == ID for n in range(10_000)]), 50),
    "pyarrow": (functools.reduce(operator.or_, [n == FIELD for n in range(10_000)]), 50),
    "pyarrow, right": (
        functools.reduce(lambda a, b: b | a, [n == FIELD for n in range(10_000)]),
        50,
    ),
    "not equalities": (" OR ".join(f"id > {n}" for n in range(2000)), 49),
    "parentheses": ("(" * 10_000 + "id > 5" + ")" * 10_000, 44),
    "not": ("NOT " * 10_000 + "id > 5", 44),
    "minus": ("id > " + "- " * 10_000 + "5", 44),
}


@pytest.mark.parametrize("form", CHAINS)
def test_long_chains_work_in_every_reader(table, form):
    where, count = CHAINS[form]
    assert every_reader(table.scan(where)) == {count}


def test_arrow_gets_no_expression_too_deep_for_its_stack():
    long = parse_predicate(" OR ".join(f"id > {n}" for n in range(2000)), SCHEMA).tree
    short = parse_predicate(" OR ".join(f"id > {n}" for n in range(200)), SCHEMA).tree
    assert emit_pyarrow(long, SCHEMA) is None
    assert emit_pyarrow(short, SCHEMA) is not None


DEEP = {
    "sum": lambda n: " + ".join(["id"] * n) + " > 5",
    "parentheses": lambda n: "(1 + " * n + "id" + ")" * n + " > 5",
    "and in or": lambda n: "(id > 1 AND (id < 5 OR " * n + "id > 5" + "))" * n,
    "not": lambda n: "NOT (" * n + "id > 5" + ")" * n,
    "functions": lambda n: "abs(" * n + "id" + ")" * n + " > 5",
    "concatenation": lambda n: " || ".join(["s", *["'x'"] * (n - 1)]) + " > 'x'",
    "casts": lambda n: "id" + "::BIGINT" * n + " > 5",
    "is null": lambda n: "id > 5 " + "IS NULL " * n,
    "case": lambda n: "CASE WHEN id > 5 THEN TRUE ELSE " * n + "FALSE" + " END" * n,
    "lists": lambda n: "[" * n + "id" + "]" * n + " IS NULL",
    "elements": lambda n: "id" + "[1]" * n + " > 5",
    "tuples": lambda n: functools.reduce(lambda found, _: [found], range(n), [("id", ">", 5)]),
    # polars itself crashes when it builds ten thousand of these
    "polars, not": lambda n: functools.reduce(lambda found, _: ~found, range(min(n, 4000)), ID > 5),
    "polars, sum": lambda n: functools.reduce(lambda found, _: found + ID, range(n), ID) > 5,
    "polars, right": lambda n: functools.reduce(lambda a, b: b | a, [i == ID for i in range(n)]),
    "polars, in turns": lambda n: functools.reduce(
        lambda found, i: (found | (i == ID)) & (i != ID), range(n), ID > 5
    ),
    "pyarrow, not": lambda n: functools.reduce(lambda found, _: ~found, range(n), FIELD > 5),
    "pyarrow, sum": lambda n: functools.reduce(lambda found, _: found + 1, range(n), FIELD) > 5,
    "pyarrow, in turns": lambda n: functools.reduce(
        lambda found, i: (found | (i == FIELD)) & (i != FIELD), range(n), FIELD > 5
    ),
}


@pytest.mark.promise("predicate.limits")
@pytest.mark.parametrize("count", [1000, 20_000])
@pytest.mark.parametrize("form", DEEP)
def test_too_deep_predicate_raises_invalid_request(table, form, count):
    with pytest.raises(arrowlog.InvalidRequest, match=r"too deeply|too long"):
        # polars itself aborts the process for expressions of some thousand levels.
        table.scan(DEEP[form](min(count, 2000) if form.startswith("polars") else count))


@pytest.mark.parametrize("form", ["sum", "concatenation", "casts"])
def test_deepest_allowed_predicate_works_in_every_reader(table, form):
    where = DEEP[form](limits.PREDICATE_DEPTH_MAX - 10)
    plan = table.scan(where)
    assert len(every_reader(plan)) == 1
    assert pickle.loads(pickle.dumps(plan.predicate)) == plan.predicate
    assert hash(plan.predicate)
    assert str(plan.predicate)
    with pytest.raises(arrowlog.InvalidRequest, match=f"{limits.PREDICATE_DEPTH_MAX} levels"):
        table.scan(DEEP[form](limits.PREDICATE_DEPTH_MAX + 10))


TOO_LONG = {
    "sql": lambda n: " OR ".join(f"id > {i}" for i in range(n)),
    "tuples": lambda n: [[("id", ">", i)] for i in range(n)],
    "polars": lambda n: functools.reduce(operator.or_, [i < ID for i in range(n)]),
    "pyarrow": lambda n: functools.reduce(operator.or_, [i < FIELD for i in range(n)]),
}


@pytest.mark.promise("predicate.limits")
@pytest.mark.parametrize("form", TOO_LONG)
def test_too_long_predicate_raises_invalid_request(table, form):
    with pytest.raises(arrowlog.InvalidRequest, match="more than 100,000 conditions"):
        table.scan(TOO_LONG[form](limits.PREDICATE_CONDITIONS_MAX + 10))


@pytest.mark.parametrize("form", ["polars", "pyarrow"])
def test_longest_allowed_predicate_is_parsed(form):
    """Engines serialize expressions recursively, one level per operand of a chain."""
    tree = parse_predicate(TOO_LONG[form](90_000), SCHEMA).tree
    assert (tree.op, len(tree.args)) == ("or", 90_000)


def test_run_on_deep_stack_returns_results_and_raises_errors():
    assert limits.run_on_deep_stack(lambda: 5) == 5
    with pytest.raises(KeyError):
        limits.run_on_deep_stack(lambda: {}["a"])


def test_usual_stack_is_used_when_a_deep_one_cannot_be_allocated(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert limits.run_on_deep_stack(lambda: 5) == 5


LITERAL = """
import resource, sys
import arrowlog
table = arrowlog.Table(sys.argv[1])
def ask(length):
    for where in ("s = '{}'", "s > '{}'", "s LIKE '{}%'", "s IN ('{}', 'a')", "s <> '{}'"):
        plan = table.scan(where.format("x" * (length - 2) + "''"))
        str(plan.explain()), plan.count(), plan.to_arrow_dataset().to_table().num_rows
ask(100)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ask(int(sys.argv[2]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_long_literal_needs_linear_memory(table):
    """Every prefix of 400,000 characters would be 80 GB."""
    paths = os.pathsep.join([str(Path(arrowlog.__file__).parent.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", LITERAL, table.uri, "400000"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert int(done.stdout) < 300, "MB"

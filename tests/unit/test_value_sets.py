"""IN with arrays of values: one array from the predicate to the plan, with the rows of a join."""

import datetime as dt
import math
import random
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowlog
from arrowlog.predicate import ValueSet
from arrowlog.predicate.predicate import evaluate_predicate, parse_predicate

STRUCT = pa.struct([("k", pa.int64())])
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("s", pa.string()), ("a", STRUCT)])


@pytest.fixture
def table(tmp_path):
    """Ten files of a hundred rows, in which `n` is NULL in every tenth row."""
    made = arrowlog.Table.create(tmp_path / "t", SCHEMA)
    for start in range(0, 1000, 100):
        ids = range(start, start + 100)
        rows = [
            {"id": i, "n": None if i % 10 == 0 else i, "s": f"k{i:04d}", "a": {"k": i}} for i in ids
        ]
        made.write(pa.Table.from_pylist(rows, SCHEMA))
    return made


# Members of the third and the sixth file, and many in no file.
KEYS = [*range(205, 210), *range(503, 507), *range(5000, 5200)]
FOUND = [*range(205, 210), *range(503, 507)]
TEXTS = [f"k{key:04d}" for key in KEYS]
FORMS = {
    "arrow": ("id", "in", pa.array(KEYS)),
    "arrow int32": ("id", "in", pa.array(KEYS, pa.int32())),
    "chunked": ("id", "in", pa.chunked_array([KEYS[:50], KEYS[50:]])),
    "dictionary": ("s", "in", pa.array(TEXTS).dictionary_encode()),
    "numpy": ("id", "in", np.array(KEYS)),
    "polars series": ("id", "in", pl.Series(KEYS)),
    "polars text": ("s", "in", pl.Series(TEXTS)),
    "with NULL": ("id", "in", pa.array([*KEYS, None])),
    "struct field": ("a.k", "in", pa.array(KEYS)),
    "polars": pl.col("id").is_in(pl.Series(KEYS)),
    "polars imploded": pl.col("id").is_in(pl.Series(KEYS).implode()),
    "polars struct field": pl.col("a").struct.field("k").is_in(pl.Series(KEYS)),
    "pyarrow": pc.field("id").isin(pa.array(KEYS)),
    "pyarrow text": pc.field("s").isin(pa.array(TEXTS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_prunes_and_finds_the_rows(table, form):
    plan = table.scan(FORMS[form])
    assert "values" in str(plan.predicate)
    assert plan.num_files == 2
    for rows in (plan.to_arrow(), plan.to_polars().collect(), plan.to_duckdb().to_arrow_table()):
        assert (
            sorted(
                rows["id"].to_list() if hasattr(rows["id"], "to_list") else rows["id"].to_pylist()
            )
            == FOUND
        )
    assert plan.explain().clauses[0].files_dropped == 8


def test_in_array_with_other_conditions_and_not(table):
    keys = pa.array(KEYS)
    outside = [i for i in range(1000) if i not in FOUND]
    assert table.scan([("id", "in", keys), ("id", "<", 300)]).num_files == 1
    either = table.scan([[("id", "in", keys)], [("id", "=", 901)]])
    assert sorted(either.to_arrow()["id"].to_pylist()) == [*FOUND, 901]
    assert either.num_files == 3
    negated = table.scan(("id", "not in", keys))
    assert sorted(negated.to_arrow()["id"].to_pylist()) == outside
    assert table.scan(("id", "not in", pa.array([*KEYS, None]))).num_files == 0
    unknown = table.scan(("n", "not in", keys)).to_arrow()["id"].to_pylist()
    assert sorted(unknown) == [i for i in outside if i % 10]
    mixed = pl.col("id").is_in(pl.Series(KEYS)) | pl.col("s").str.contains("k0999")
    assert sorted(table.scan(mixed).to_arrow()["id"].to_pylist()) == [*FOUND, 999]


def test_pushed_filters_use_the_array(table):
    frame = table.to_polars().filter(pl.col("id").is_in(pl.Series(KEYS)))
    assert sorted(frame.collect()["id"]) == FOUND
    rows = table.to_arrow_dataset().to_table(filter=pc.field("id").isin(pa.array(KEYS)))
    assert sorted(rows["id"].to_pylist()) == FOUND


def test_constant_files_are_skipped_by_not_in(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", pa.schema([("x", pa.float64())]))
    for value in (-0.0, 1.0, 2.5, 1000.0):
        table.write(pa.table({"x": [value] * 3}))
    members = pa.array([0.0, 2.5, *map(float, range(2000, 2200))])
    assert table.scan(("x", "in", members)).num_files == 2
    assert table.scan(("x", "not in", members)).num_files == 2
    assert (
        sorted(table.scan(("x", "in", members)).to_arrow()["x"].to_pylist())
        == [0.0] * 3 + [2.5] * 3
    )


VALUES = {
    pa.int32(): lambda rng: rng.randrange(-50, 50),
    pa.int64(): lambda rng: rng.choice([rng.randrange(-50, 50), 2**63 - 1, -(2**63)]),
    pa.float64(): lambda rng: rng.choice([0.0, -0.0, rng.random(), math.inf, -math.inf, 1e300]),
    pa.float32(): lambda rng: rng.choice([0.5, -0.0, 0.0, 1.5, math.inf]) + rng.randrange(40),
    pa.string(): lambda rng: rng.choice(["a", "é", "zz", "\ue000", "😀", "k"]) * rng.randrange(5),
    pa.date32(): lambda rng: dt.date(2024, 1, 1) + dt.timedelta(days=rng.randrange(99)),
    pa.timestamp("us"): lambda rng: dt.datetime.fromtimestamp(rng.randrange(99), dt.UTC).replace(
        tzinfo=None
    ),
    pa.decimal128(10, 2): lambda rng: Decimal(rng.randrange(-500, 500)).scaleb(-2),
    pa.bool_(): lambda rng: rng.random() < 0.5,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_in_array_equals_in_literals(kind, tmp_path):
    """The same list as literals and as an array: the same files and rows, including NULL."""
    rng = random.Random(str(kind))
    draw = VALUES[kind]
    table = arrowlog.Table.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("x", kind)]))
    pool = [draw(rng) for _ in range(60)] + [None] * 3
    for number in range(12):
        few = rng.sample(pool, rng.choice([1, 2, 3]))
        column = pa.array([rng.choice(few) for _ in range(5)], kind)
        table.write(pa.table({"id": range(number * 5, number * 5 + 5), "x": column}))
    rows = table.to_arrow()
    for turn in range(20):
        members = [draw(rng) for _ in range(rng.choice([100, 150]))] + [None] * (turn % 4 == 0)
        op = "not in" if turn % 3 == 0 else "in"
        as_array = table.scan(("x", op, pa.array(members, kind)))
        as_list = table.scan(("x", op, members))
        assert any(isinstance(part, ValueSet) for part in _members(as_array.predicate.tree))
        wanted = rows.filter(evaluate_predicate(as_list.predicate, rows))["id"].to_pylist()
        assert sorted(as_array.to_arrow()["id"].to_pylist()) == sorted(wanted), (op, members)
        found = rows.filter(evaluate_predicate(as_array.predicate, rows))["id"].to_pylist()
        assert sorted(found) == sorted(wanted)
        assert as_array.count() in (None, len(wanted))


def _members(node):
    return getattr(node, "args", ()) if getattr(node, "op", "") == "in" else node.args[0].args


def test_inexact_arrays_fall_back_to_literals():
    schema = pa.schema([("f", pa.float32()), ("s", pa.string()), ("t", pa.timestamp("us"))])
    cases = {
        "f": pa.array([0.1 * n for n in range(200)]),
        "s": pa.array(range(200)),
        "t": pa.array(range(0, 200_000, 1000), pa.int64()),
    }
    for name, values in cases.items():
        tree = parse_predicate((name, "in", values), schema).tree
        assert not any(isinstance(arg, ValueSet) for arg in tree.args)
    with_nan = parse_predicate(("f", "in", pa.array([math.nan] * 200, pa.float32())), schema)
    rows = pa.table({"f": pa.array([math.nan, 1.0], pa.float32())})
    assert evaluate_predicate(with_nan, rows).to_pylist() == [True, False]


def test_million_values_are_one_node(table):
    plan = table.scan(("id", "in", pa.array(np.arange(10**6)[::-1])))
    assert str(plan.predicate) == "id IN (1,000,000 values)"
    assert plan.num_files == 10
    _, members = plan.predicate.tree.args
    assert len(members.values) == 10**6


LISTED = {
    "text": (pa.string(), ["a", "b", None], [f"k{i}" for i in range(200)]),
    "bytes": (pa.binary(), [b"a", b"b", None], [b"%d" % i for i in range(200)]),
    "long": (pa.int64(), [1, 2, None], list(range(100, 300))),
}


@pytest.mark.thorough
@pytest.mark.parametrize("others", [0, 2, 200])
@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize("kind", LISTED)
def test_lists_of_polars_and_views_may_have_nulls(tmp_path, kind, has_null, others):
    arrow_type, (found, missed, _), more = LISTED[kind]
    schema = pa.schema([("n", pa.int64()), ("x", arrow_type)])
    table = arrowlog.Table.create(tmp_path / "t", schema)
    table.write(pa.table({"n": [1, 2, 3], "x": [found, missed, None]}, schema))
    listed = [*more[:others], found] + [None] * has_null
    series, array = pl.Series(listed), pa.array(listed, arrow_type)
    views = array.cast({"text": pa.string_view(), "bytes": pa.binary_view()}.get(kind, arrow_type))
    hidden = pa.DictionaryArray.from_arrays(pa.array(range(len(listed))), array)
    column = pl.col("x")
    # The rows that match, and those that match NOT.
    ignoring, safe = ([1], [2]), ([1, 3], [2]) if has_null else ([1], [2, 3])
    three_valued = ([1], [] if has_null else [2])
    forms = [
        (column.is_in(series), ignoring),
        (column.is_in(series.implode()), ignoring),
        (column.is_in(listed), ignoring),
        (column.is_in(series, nulls_equal=True), safe),
        (column.is_in(listed, nulls_equal=True), safe),
        (pc.field("x").isin(views), safe),
        (pc.field("x").isin(hidden), safe),
    ]
    for form, expected in forms:
        for predicate, rows in zip((form, ~form), expected, strict=True):
            for engine in ("arrow", "duckdb"):
                plan = table.scan(predicate, engine=engine)
                assert sorted(plan.to_polars().collect()["n"]) == rows, (form, engine)
                assert sorted(plan.to_arrow_dataset().to_table()["n"].to_pylist()) == rows
    for values in (series, views, hidden, listed, pa.chunked_array([views])):
        for op, rows in zip(("in", "not in"), three_valued, strict=True):
            plan = table.scan([("x", op, values)])
            assert sorted(plan.to_polars().collect()["n"]) == rows, (op, values)


def test_a_categorical_series_is_a_list_of_texts(tmp_path):
    table = arrowlog.Table.create(tmp_path / "t", pa.schema([("x", pa.string())]))
    table.write(pa.table({"x": ["a", "b", None]}))
    series = pl.Series(["a", "z", None], dtype=pl.Categorical)
    for predicate in (pl.col("x").is_in(series), [("x", "in", series)]):
        assert table.scan(predicate).to_polars().collect()["x"].to_list() == ["a"]

"""A predicate has the same meaning in every form, reader and layout."""

import itertools
import random

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import predicate_meaning
from support.case_count import cases

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.predicate import evaluate_predicate, parse_predicate

LINES = predicate_meaning.lines()
CASES = cases(240)
BATCHES = 6


def test_documented_examples_cover_every_type():
    assert {line.kind for line in LINES} == set(predicate_meaning.TYPES)
    assert len(LINES) > 80


@pytest.mark.promise("predicate.meaning")
@pytest.mark.parametrize("kind", predicate_meaning.TYPES)
def test_documented_examples_hold_for_every_reader_and_layout(kind, tmp_path):
    lines = [line for line in LINES if line.kind == kind]
    schema = pa.schema([("id", pa.int64()), ("x", predicate_meaning.TYPES[kind])])
    values = [line.value for line in lines]
    rows = pa.table([list(range(len(values))), values], schema=schema)
    readers = itertools.cycle(predicate_meaning.READERS.items())
    for number, (name, make) in enumerate(predicate_meaning.LAYOUTS.items()):
        table = make(tmp_path / str(number), rows)
        next(readers)
        for at, line in enumerate(lines):
            asked = [
                (line.predicate, line.answer is True),
                (f"NOT ({line.predicate})", line.answer is False),
                (f"({line.predicate}) IS NULL", line.answer is None),
            ]
            text, wanted = asked[(number + at) % len(asked)]  # each is queried twice in six layouts
            reader, read = next(readers)
            # Values of other lines may raise in a predicate, so each row is queried alone.
            found = read(table.scan(f"id = {at} AND ({text})", max_staleness=1e9))
            assert found == [at] * wanted, f"{line}: {text} ({name}, {reader})"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The same rows in every layout."""
    root = tmp_path_factory.mktemp("meaning")
    rows = predicate_meaning.rows(seed=7)
    made = {
        name: make(root / str(number), rows)
        for number, (name, make) in enumerate(predicate_meaning.LAYOUTS.items())
    }
    return rows.to_pylist(), made


@pytest.mark.promise("scan.readers_agree")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_form_reader_and_layout_equals_the_model(batch, tables):
    rows, made = tables
    pairs = itertools.cycle(itertools.product(predicate_meaning.READERS.items(), range(4)))
    pruned = 0
    for seed in range(batch * CASES // BATCHES, (batch + 1) * CASES // BATCHES):
        print("seed", seed)
        node = predicate_meaning.generate(random.Random(seed))
        wanted = [row["id"] for row in rows if predicate_meaning.answer(node, row) is True]
        forms = list(predicate_meaning.forms(node).items())
        for name, table in made.items():
            (reader, read), turn = next(pairs)
            form, where = forms[turn % len(forms)]
            plan = table.scan(where, max_staleness=1e9)
            pruned += plan.total_files - plan.num_files
            told = f"{node}: as {form}, by {reader}, {name}\n{plan.predicate}"
            assert sorted(read(plan)) == wanted, told
            assert plan.count() in (None, len(wanted)), told
        next(pairs)  # combines readers and forms with every layout
    assert pruned > CASES // BATCHES


F = pc.field
PARTLY = [
    ~(F("f") > 5) & pc.match_substring(F("s"), "a"),
    ~((F("f") > 5) & pc.match_substring(F("s"), "a")),
    (F("f") > 5) | pc.match_substring(F("s"), "zzz"),
    pc.add(F("f"), 1) > 5,
    pc.multiply(F("g"), 1).isin([float("nan"), 0.0]),
    pc.coalesce(F("f") > 5, False) & pc.match_substring(F("s"), ""),
    ~pc.is_finite(F("f")) & ~(F("f") <= 5),
]


@pytest.mark.parametrize("where", PARTLY, ids=str)
def test_foreign_arrow_expression_leaves_other_conjuncts_prunable(where, tmp_path):
    """The rows are the same in every layout, and NaN is above every number in all of them."""
    values = [float("nan"), 10.0, 1.0, -0.0, 0.0, None, float("inf")]
    texts = ["a", "a", "a", "ba", "b", "a", "b"]
    columns = {"id": list(range(7)), "f": values, "g": pa.array(values, pa.float32()), "s": texts}
    rows = pa.table(columns)
    found = {}
    for number, (name, make) in enumerate(predicate_meaning.LAYOUTS.items()):
        plan = make(tmp_path / str(number), rows).scan(where)
        for reader, read in predicate_meaning.READERS.items():
            found[name, reader] = tuple(sorted(read(plan)))
    expected = [(2, 3), (2, 3, 4, 6), (0, 1, 6), (0, 1, 6), (0, 3, 4), (0, 1, 6), (0, 6)]
    assert set(found.values()) == {expected[_place(where)]}, found


def _place(where):
    """`==` of expressions is an expression, so they are looked up by text."""
    return [str(each) for each in PARTLY].index(str(where))


def test_polars_literals_that_json_cannot_represent():
    schema = pa.schema([("f", pa.float64()), ("s", pa.string())])
    contains = pl.col("s").str.contains("a")
    for value in (float("inf"), -float("inf"), float("nan")):
        assert str(parse_predicate(pl.col("f") == value, schema)) == f"f = {value}"
        beside = parse_predicate(~(pl.lit(value) <= pl.col("f")) & contains, schema)
        assert str(beside).startswith(f"(NOT ({value} <= f)) AND ")


def test_empty_is_in_is_null_for_null():
    rows = pa.table({"n": [1, None]})
    for values in ([], [None]):
        where = pl.col("n").is_in(pl.Series(values, dtype=pl.Int64).to_list())
        assert evaluate_predicate(parse_predicate(where, rows.schema), rows).to_pylist() == [
            False,
            False,
        ]
        assert evaluate_predicate(parse_predicate(~where, rows.schema), rows).to_pylist() == [
            True,
            False,
        ]


def test_foreign_expression_inside_a_long_chain_is_extracted():
    """The part is cut out of the expression in place, at any depth."""
    rows = pa.table({"n": [*range(600), None], "s": ["a", "b"] * 300 + ["a"]})
    chain = pl.col("s").str.contains("b") & (pl.col("n") > 500)
    for number in range(400):
        chain |= pl.col("n") == number * 2
    found = evaluate_predicate(parse_predicate(chain, rows.schema), rows)
    wanted = [n % 2 == 0 or n > 500 for n in range(600)]
    assert found.to_pylist() == [*wanted, False]


def test_foreign_expression_with_wrong_types_raises_invalid_request():
    rows = pa.table({"id": [1], "f": [1.0]})
    for where in (pc.match_substring(F("f"), "a") & (F("f") > 1), pl.col("f").str.contains("a")):
        with pytest.raises(InvalidRequest, match="cannot be evaluated"):
            evaluate_predicate(parse_predicate(where, rows.schema), rows)
    with pytest.raises(InvalidRequest, match=r"cannot be read.*not by number"):
        parse_predicate((pc.field(1) > 0) & (F("f") > 1), rows.schema)
    with pytest.raises(InvalidRequest, match="not a condition"):
        parse_predicate(
            pc.utf8_length(F("s")) & (F("f") > 1), pa.schema([("s", "string"), ("f", "double")])
        )

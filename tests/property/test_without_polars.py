"""The implementations for forked children, without polars, give the same results as with it."""

import uuid
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases

from arrowlog import fork_safety
from arrowlog.arrays import search_sorted
from arrowlog.snapshot import reconciliation
from arrowlog.snapshot.snapshot import first_files
from arrowlog.transaction.data_writer import _rows_by_key

KEYS = st.sampled_from(["a", "b", "c", "d", "é", ""])  # a file always has one
# Long enough to be hashed by their ends; some have the same end, or differ after what is hashed.
LONG_KEYS = st.sampled_from(
    [f"part={day}/{'é' * 16}-{name}.parquet" for day in "12" for name in "abcd"]
    + [f"{'x' * 40}-{name}" for name in "abcd"]
)


@st.composite
def histories(draw):
    names = draw(st.sampled_from([KEYS, LONG_KEYS, LONG_KEYS, KEYS | LONG_KEYS]))
    live = draw(st.lists(names, unique=True, max_size=5))
    once = draw(st.booleans())  # every file is added once and removed once at most
    keys = draw(st.lists(st.tuples(names, st.booleans()), max_size=12, unique=once))
    order = draw(st.permutations(range(len(keys))))
    tables = []
    for wanted in (True, False):
        some = [(key, seq) for (key, add), seq in zip(keys, order, strict=True) if add is wanted]
        columns = [
            pa.array([k for k, _ in some], pa.string()),
            pa.array([s for _, s in some], pa.int64()),
        ]
        tables.append(pa.table(columns, names=["key", "seq"]))
    return pa.chunked_array([pa.array(live, pa.string())]), *tables


def mask(found, count):
    if isinstance(found, pl.Series):
        return found.to_list()
    return [True] * count if found is None else found.to_pylist()


@settings(max_examples=cases(300))
@given(histories())
def test_reconciliation_without_polars(given_):
    live, adds, removes = given_
    slim = [pl.DataFrame(pl.from_arrow(table)) for table in (adds, removes)]
    with_polars = reconciliation.reconcile(pl.Series(pl.from_arrow(live), dtype=pl.String), *slim)
    without = reconciliation.reconcile_without_polars(live, adds, removes)
    for one, other, count in zip(with_polars, without, (len(live), adds.num_rows), strict=True):
        assert mask(one, count) == mask(other, count)
    chosen = reconciliation.reconcile_keys(live, adds, removes)
    for one, other, count in zip(chosen, without, (len(live), adds.num_rows), strict=True):
        assert mask(one, count) == mask(other, count)


def keys_and_seqs(names, first_seq, chunk_rows=1000):
    parts = [names[i : i + chunk_rows] for i in range(0, len(names), chunk_rows)]
    keys = pa.chunked_array([pa.array(part) for part in parts], pa.string())
    return pa.table({"key": keys, "seq": pa.array(range(first_seq, first_seq + len(names)))})


def test_many_files_with_unique_names_are_reconciled_without_polars(monkeypatch):
    """In a table of this size, polars was needed to compare keys."""
    count = reconciliation.POLARS_MIN_KEYS + 1
    names = [f"day=1/part-{i:05}-{uuid.UUID(int=i * 7919 << 60)}.parquet" for i in range(count)]
    adds = keys_and_seqs(names, 0)
    removes = keys_and_seqs([names[7], "gone" * 20, names[-1]], count)
    removes = pa.concat_tables([removes, keys_and_seqs(["x" * 50], -5)])
    expected = [
        reconciliation.reconcile_without_polars(names_, adds, removes)
        for names_ in (adds["key"][:0], adds["key"][:9])
    ]
    monkeypatch.setattr(reconciliation, "pl", None)
    assert reconciliation.reconcile_keys(adds["key"][:0], adds, removes[:0]) == (None, None)
    kept, live = reconciliation.reconcile_keys(adds["key"][:0], adds, removes)
    assert kept is None
    assert live.to_pylist() == expected[0][1].to_pylist()
    assert pc.indices_nonzero(pc.invert(live)).to_pylist() == [7, count - 1]
    kept, live = reconciliation.reconcile_keys(adds["key"][:9], adds, removes)
    assert kept.to_pylist() == expected[1][0].to_pylist() == [False] * 9
    assert live.to_pylist() == expected[1][1].to_pylist()


@settings(max_examples=cases(200))
@given(st.lists(st.none() | st.text("abr/:é.", max_size=8)))
def test_file_keys_without_polars(paths):
    paths = [None if path is None else f"{path}" for path in paths] + [
        "r:/b//a",
        "/abr/r/a",
        "/ab/x",
    ]
    roots = ["r:/b", "/abr", "/ab"]
    text = pl.Series("path", paths, dtype=pl.String).to_frame()
    expected = text.select(reconciliation.file_keys(pl.col("path"), roots)).to_series().to_list()
    array = pa.chunked_array([pa.array(paths, pa.string())])
    assert reconciliation.file_keys_without_polars(array, roots).to_pylist() == expected


@settings(max_examples=cases(200))
@given(st.lists(st.tuples(st.none() | KEYS, st.sampled_from([0.0, -0.0, 1.5, None])), min_size=1))
def test_rows_by_key_without_polars(found):
    keys = pa.table(
        [
            pa.array([a for a, _ in found], pa.string()),
            pa.array([b for _, b in found], pa.float64()),
        ],
        names=["a", "b"],
    )
    with_polars = [rows.to_pylist() for rows in _rows_by_key(keys)]
    fork_safety._Stranded.now = True
    try:
        assert [rows.to_pylist() for rows in _rows_by_key(keys)] == with_polars
    finally:
        fork_safety._Stranded.now = False


@settings(max_examples=cases(200))
@given(
    st.lists(st.integers(-50, 50), min_size=1, unique=True),
    st.lists(st.none() | st.integers(-60, 60)),
    st.sampled_from(["left", "right"]),
)
def test_search_sorted_decimals_without_polars(values, among, side):
    kind = pa.decimal128(9, 1)
    sorted_ = pa.array([Decimal(value) / 10 for value in sorted(values)], kind)
    bounds = pa.array([None if b is None else Decimal(b) / 10 for b in among], kind)
    with_polars = search_sorted(sorted_, bounds, side).to_pylist()
    fork_safety._Stranded.now = True
    try:
        assert search_sorted(sorted_, bounds, side).to_pylist() == with_polars
    finally:
        fork_safety._Stranded.now = False


@settings(max_examples=cases(100))
@given(histories(), st.integers(1, 4))
def test_first_files_are_the_adds_that_survive(given_, chunk_rows):
    _, adds, removes = given_
    _, live = reconciliation.reconcile_without_polars(
        pa.chunked_array([], pa.string()), adds, removes
    )
    expected = adds if live is None else adds.filter(live)
    batches = adds.to_batches(max_chunksize=chunk_rows)
    change = first_files(pa.Table.from_batches(batches, adds.schema), removes)
    assert change.fresh.to_pylist() == expected.to_pylist()
    assert change.source.num_files == expected.num_rows

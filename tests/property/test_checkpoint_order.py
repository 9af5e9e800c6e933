"""The storage order of files in checkpoints and row gathering, against plain Python."""

import datetime as dt
import random

import pyarrow as pa
import pytest
from support.case_count import cases, first_seed

from arrowlog.snapshot.checkpoint import row_gather, rows
from arrowlog.snapshot.checkpoint.row_gather import RowGatherer
from arrowlog.snapshot.file_table import FileStats

KINDS = {
    "string": (pa.string(), lambda rng: rng.choice(["", "a", "ab", "é", "𝄞", "Z", "z" * 20])),
    "boolean": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "date": (pa.date32(), lambda rng: dt.date(1960, 1, 1) + dt.timedelta(rng.randrange(20_000))),
    "long": (pa.int64(), lambda rng: rng.choice([-(2**63), 2**63 - 1, 0, 7, rng.randrange(99)])),
    "int": (pa.int32(), lambda rng: rng.randrange(-5, 5)),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        lambda rng: dt.datetime.fromtimestamp(rng.randrange(-99, 10**9), dt.UTC),
    ),
    "double": (pa.float64(), lambda rng: rng.choice([-1.5, 0.0, 2.25, 1e300])),
}


class Chosen(FileStats):
    """Typed columns with given values."""

    def __init__(self, schema, partition, given):
        super().__init__(pa.table({}), schema, partition)
        self._typed |= given


def generated(rng, count):
    """Files with partition values and minima, and the naive sort key of each."""
    names = [f"c{i}" for i in range(rng.randint(0, 4))]
    kinds = [KINDS[rng.choice(list(KINDS))] for _ in names]
    split = rng.randint(0, len(names))
    arrays = []
    for kind, make in kinds:
        missing = rng.choice([0, 0, 0.3, 1])
        values = [None if rng.random() < missing else make(rng) for _ in range(count)]
        arrays.append(pa.array(values, kind))
    given = {("partition", name): a for name, a in zip(names[:split], arrays, strict=False)}
    for name, array in zip(names[split:], arrays[split:], strict=True):
        given["minValues", name] = given["maxValues", name] = array
    schema = pa.schema([pa.field(n, k) for n, (k, _) in zip(names, kinds, strict=True)])
    keys = [f"p{rng.randrange(10**9)}-{i}" for i in range(count)]
    return Chosen(schema, tuple(names[:split]), given), pa.chunked_array([keys]), names[split:]


@pytest.mark.promise("checkpoint.changes_nothing")
def test_files_are_stored_in_the_order_of_all_sort_keys():
    seed = first_seed()
    ranked = 0
    for number in range(seed, seed + cases(300)):
        rng = random.Random(number)
        columns, keys, best = generated(rng, rng.choice([0, 1, 2, 50, 300]))
        order = rows.storage_order(columns, keys, best).to_pylist()
        table = rows.storage_sort_keys(columns, keys, best)
        expected = table.with_row_index("row").sort(table.columns, nulls_last=True)["row"]
        assert order == expected.to_list(), number
        ranked += rows._leading_ranks(list(rows.sort_columns(columns, best).values())) is not None
    assert ranked


TEXTS = ["", "a", "twelve bytes", "more than twelve bytes", "ü" * 40, None]


def chunked(rng, values, kind):
    chunks = [
        pa.array(rng.choices(values, k=rng.randint(0, 5)), kind) for _ in range(rng.randint(1, 9))
    ]
    return pa.chunked_array([c.slice(rng.randint(0, len(c))) if c else c for c in chunks], kind)


@pytest.mark.parametrize("views", [True, False])
def test_row_gather_equals_arrow_take(monkeypatch, views):
    assert row_gather._can_gather_views()
    monkeypatch.setattr(row_gather, "_can_gather_views", lambda: views)
    seed = first_seed()
    for number in range(seed, seed + cases(200)):
        rng = random.Random(number)
        some = rng.choice([TEXTS, TEXTS[:-1], [None]])
        text = chunked(rng, some, pa.string())
        words = chunked(rng, "abc", pa.string()).dictionary_encode()
        numbers = chunked(rng, [None, 1, 2], pa.int64())
        flags = chunked(rng, [None, True, False], pa.bool_())
        count = min(map(len, (text, words, numbers, flags)))
        columns = [each.slice(0, count) for each in (text, words, numbers, flags)]
        table = pa.table(columns, names=["text", "word", "number", "flag"])
        gather = RowGatherer(table)
        for _ in range(3):
            size = rng.randint(0, 9) if count else 0
            wanted = pa.array([rng.randrange(count) for _ in range(size)], pa.uint32())
            taken = gather.take(wanted)
            taken.validate(full=True)
            assert taken.schema == table.schema, number
            assert taken.to_pylist() == table.take(wanted).to_pylist(), number


def test_views_are_not_used_where_arrow_cannot_build_them(monkeypatch):
    def refuse(*_):
        raise pa.ArrowNotImplementedError("no views")

    row_gather._can_gather_views.cache_clear()
    monkeypatch.setattr(row_gather._TextViews, "take", refuse)
    try:
        assert not row_gather._can_gather_views()
        table = pa.table({"text": pa.chunked_array([["a"], ["b", "c"]])})
        assert RowGatherer(table).take(pa.array([2, 0]))["text"].to_pylist() == ["c", "a"]
    finally:
        row_gather._can_gather_views.cache_clear()

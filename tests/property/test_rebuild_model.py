"""Tables rebuilt from their data files after losing the log have the rows that were written."""

import random
import shutil

import pyarrow as pa
import pytest
from support.case_count import cases
from support.random_rows import KINDS, PLACES

import arrowlog
from arrowlog.snapshot import to_log_text

PARTITIONS = {
    "ps": (pa.string(), [*PLACES, "07", "7", "2024-01-01", "ключ", "a+b", "#?&"]),
    "pn": (pa.string(), ["1", "20", "-3"]),
    "pi": (pa.int32(), [-5, 0, 7, 2**31 - 1]),
    "pl": (pa.int64(), KINDS["n"][1]),
    "pd": KINDS["d"],
    "pt": KINDS["t"],
    "pc": KINDS["c"],
    "pb": KINDS["b"],
}
OTHERS = {
    **KINDS,
    "list": (pa.list_(pa.string()), [[], ["a", None], ["é"]]),
    "struct": (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": None}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    "bytes": (pa.binary(), [b"", b"\xff"]),
}


def random_batch(rng, columns):
    count = rng.randrange(1, 9)
    return pa.table(
        {
            name: pa.array([None if rng.random() < 0.2 else rng.choice(v) for _ in range(count)], k)
            for name, (k, v) in columns.items()
        }
    )


def comparable(rows, columns, partitions):
    """Rows as sorted text. Partition values are compared as text: a path has no types."""
    found = []
    for row in rows:
        texts = []
        for name, (kind, _) in columns.items():
            value = row.get(name)
            texts.append(repr(to_log_text(value, kind) if name in partitions else value))
        found.append(tuple(texts))
    return sorted(found)


@pytest.mark.promise("recovery.rebuild_keeps_rows")
@pytest.mark.parametrize("seed", range(cases(25)))
def test_rebuilt_table_has_all_written_rows(tmp_path, seed):
    print("seed", seed)
    rng = random.Random(seed)
    parts = rng.sample(sorted(PARTITIONS), rng.randrange(3))
    others = rng.sample(sorted(OTHERS), rng.randrange(2, 8))
    columns = {name: PARTITIONS[name] for name in parts} | {name: OTHERS[name] for name in others}
    later = {f"later_{name}": OTHERS[name] for name in rng.sample(sorted(OTHERS), 2)}
    schema = pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    table = arrowlog.Table.create(tmp_path, schema, parts)
    written = []
    for number in range(rng.randrange(2, 6)):
        if number == 2:
            table.add_columns([pa.field(name, kind) for name, (kind, _) in later.items()])
            columns |= later
        batch = random_batch(rng, columns)
        table.write(batch)
        written += batch.to_pylist()
    given = table.schema if rng.random() < 0.5 else None
    shutil.rmtree(tmp_path / "_transaction_log")

    tried = arrowlog.rebuild(tmp_path, schema=given, dry_run=True)
    assert not (tmp_path / "_transaction_log").exists()
    assert not tried.problems
    made = arrowlog.rebuild(tmp_path, schema=given)

    assert (made.num_files, made.num_records) == (tried.num_files, len(written))
    rebuilt = arrowlog.Table(tmp_path)
    assert rebuilt.snapshot().num_records == len(written)
    for item in rebuilt.schema:
        if item.name not in parts or given is not None:
            assert item.type == columns[item.name][0]
    rows = rebuilt.scan().to_arrow_dataset().to_table()
    assert comparable(rows.to_pylist(), columns, parts) == comparable(written, columns, parts)
    rebuilt.write(random_batch(rng, columns).select(others) if not parts else rows.slice(0, 1))
    assert rebuilt.snapshot().num_records > len(written)
    assert rebuilt.doctor().healthy

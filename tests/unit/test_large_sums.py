"""Sums of sizes, rows and counts near the limit of 64 bits: exact or unknown, never wrapped."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest

import arrowlog
from arrowlog import testing
from arrowlog.arrays import INT_MAX, INT_MIN, from_numpy, sum_exactly, sum_slices
from arrowlog.statements import sql_statement

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("b", pa.binary()), ("p", pa.int64())])
TOTAL = 2 * INT_MAX + 5


def add(path, size, **counts):
    stats = {"minValues": {"id": 1, "x": 1.0}, "maxValues": {"id": 5, "x": 2.0}, **counts}
    stats["numRecords"] = size
    return testing.add(path, {"p": "1"}, size=size, numRecords=size, stats=json.dumps(stats))


@pytest.fixture
def table(root):
    first = [testing.commit_info(1), testing.protocol(), testing.metadata(SCHEMA, ["p"])]
    testing.write_commit(root, 0, first)
    adds = [add("a", INT_MAX), add("b", INT_MAX)]
    testing.write_commit(root, 1, [testing.commit_info(2, "MERGE"), *adds])
    testing.write_commit(root, 2, [testing.commit_info(3), add("c", 5)])
    return arrowlog.Table(root)


def test_sums_of_snapshots_plans_and_diffs_are_exact(table):
    snapshot, plan, diff = table.snapshot(), table.scan("id = 3"), table.diff(0, 2)
    assert (snapshot.size_bytes, snapshot.num_records) == (TOTAL, TOTAL)
    assert (plan.size_bytes, plan.num_records, plan.count()) == (TOTAL, TOTAL, None)
    assert table.scan("p = 1").count() == TOTAL
    assert (diff.bytes_added, diff.rows_added) == (TOTAL, TOTAL)
    assert "18446.7 PB of 18446.7 PB" in str(plan.explain())
    assert "18446.7 PB" in str(table.overview())
    assert "18,446,744,073,709,551,619" in str(diff)


def test_sums_in_columns_are_null_if_they_exceed_64_bits(table):
    row = table.overview().to_arrow().to_pylist()[0]
    assert (row["num_files"], row["size_bytes"], row["num_records"]) == (3, None, None)
    sums = table.history().select(["version", "adds", "bytes", "rows"]).to_pylist()
    assert [tuple(row.values()) for row in sums] == [
        (2, 1, 5, 5),
        (1, 2, None, None),
        (0, 0, 0, 0),
    ]
    groups = table.history(by="operation").to_pylist()
    assert [(g["operation"], g["bytes"]) for g in groups] == [("WRITE", 5), ("MERGE", None)]
    state = sql_statement(f"DESCRIBE INDEXTABLES STATE '{table.uri}'").to_pylist()[0]
    assert (state["num_files"], state["total_bytes"]) == (3, None)


def test_group_of_commits_whose_sum_just_exceeds_64_bits_is_null(root):
    """A sum of doubles would not tell: it rounds every step down."""
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA, ["p"])])
    testing.write_commit(root, 1, [add("a", INT_MAX - 1)])
    testing.write_commit(root, 2, [add("b", 1)])
    groups = arrowlog.Table(root).history(by="app_id")
    assert groups["bytes"].to_pylist() == [INT_MAX]
    testing.write_commit(root, 3, [add("c", 1)])
    groups = arrowlog.Table(root).history(by="app_id")
    assert groups["bytes"].to_pylist() == [None]


def test_splits_of_huge_files_are_even_and_lose_none(table):
    splits = table.scan("id = 3").splits(target_size=INT_MAX)
    assert [split.paths for split in splits] == [["a"], ["b", "c"]]
    assert [split.size_bytes for split in splits] == [INT_MAX, INT_MAX + 5]


def test_metrics_of_changes_are_exact(table):
    removed = table.remove(["a", "b"]).operation_metrics
    assert removed["numRemovedBytes"] == 2 * INT_MAX
    assert table.restore(2).operation_metrics["numAddedBytes"] == 2 * INT_MAX
    dropped = sql_statement(f"DROP INDEXTABLES PARTITIONS FROM '{table.uri}' WHERE p = 1")
    assert dropped["status"].to_pylist() == ["success"]
    assert arrowlog.Table(table.uri).snapshot().num_files == 0


def test_state_of_a_table_with_huge_files_is_written_and_read(table):
    table.upgrade_protocol(reader=4, writer=4)
    again = arrowlog.Table(table.uri)
    assert again.snapshot().size_bytes == TOTAL
    assert not {"state-count", "state-broken"} & {f.code for f in again.doctor()}


@pytest.mark.parametrize(
    "counts", [[INT_MAX, INT_MAX, 2], [-1, 1], [INT_MAX, -INT_MAX], [-5, 3, 2]], ids=str
)
@pytest.mark.parametrize(
    "where", ["id IS NULL", "b IS NULL", "x IS NULL", "x > 2.5"]
)  # NaN is greater than every number
def test_counts_that_add_up_to_zero_prune_no_file_of_a_checkpoint(root, counts, where):
    first = [testing.protocol(), testing.metadata(SCHEMA, ["p"])]
    nulls = [
        {"nullCount": dict.fromkeys("idxb", n) | {"id": n}, "nanCount": {"x": n}} for n in counts
    ]
    adds = [add(f"{n}", INT_MAX, **fields) for n, fields in enumerate(nulls)]
    testing.write_commit(root, 0, [*first, *adds])
    expected = arrowlog.Table(root).scan(where).num_files
    assert expected == len(counts)
    arrowlog.Table(root).checkpoint()
    assert arrowlog.Table(root).scan(where).num_files == expected


@pytest.mark.parametrize("seed", range(40))
def test_sums_equal_those_of_python(seed):
    rng = random.Random(seed)
    edges = [INT_MIN, INT_MIN + 1, -1, 0, 1, (1 << 32) - 1, 1 << 32, INT_MAX - 1, INT_MAX]
    numbers = [rng.choice([*edges, rng.randrange(-9, 9)]) for _ in range(rng.randrange(1, 30))]
    with_nulls = pa.chunked_array([pa.array([*numbers, None], pa.int64()), pa.array(numbers[:1])])
    assert sum_exactly(with_nulls) == sum(numbers) + numbers[0]
    starts = sorted(rng.sample(range(1, len(numbers) + 1), rng.randrange(len(numbers) + 1)))
    starts = [0, *(n for n in starts if n < len(numbers))]
    ends = [*starts[1:], len(numbers)]
    expected = [sum(numbers[a:b]) for a, b in zip(starts, ends, strict=True)]
    sums, fits = sum_slices(from_numpy(np.array(numbers, np.int64)), np.array(starts))
    assert fits.tolist() == [INT_MIN <= total <= INT_MAX for total in expected]
    assert sums[fits].tolist() == [total for total in expected if INT_MIN <= total <= INT_MAX]

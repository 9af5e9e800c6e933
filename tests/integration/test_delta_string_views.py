"""Files that delta-rs wrote with string views: filters on their strings work in every reader.

Arrow cannot compare the bounds of a row group in such a file with a string column.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import arrowlog

CONDITIONS = {
    "s < 'b'": {"a", ""},
    "s <> ''": {"a", "c", "z"},
    "s >= 'b' AND id < 100": {"c", "z"},
    "s IN ('', 'z')": {"", "z"},
    "NOT (s = 'a')": {"", "c", "z"},
}


@pytest.fixture
def views(root):
    """Three files, of which the second and third have string views."""
    write_deltalake(root, pa.table({"id": [1, 2], "s": ["a", "c"]}))
    for ids, texts in (([3, 4], ["", "z"]), ([5, 6], ["", "z"])):
        rows = pa.table({"id": ids, "s": texts})
        table = DeltaTable(root)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_not_matched_insert_all().execute()
    kinds = [pq.read_schema(path).field("s").type for path in root.glob("*.parquet")]
    assert pa.string_view() in kinds, kinds
    return root


@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_on_string_views_find_the_same_rows_in_every_reader(views, condition):
    table = arrowlog.Table(views)
    every = table.to_arrow().to_pylist()
    expected = sorted(row["id"] for row in every if row["s"] in CONDITIONS[condition])
    assert len(every) == 6
    plan = table.scan(condition)
    assert sorted(plan.to_arrow()["id"].to_pylist()) == expected
    found = table.to_polars().sql(f"SELECT id FROM self WHERE {condition}").collect()
    assert sorted(found["id"]) == expected
    found = table.to_duckdb().filter(condition).to_arrow_table()
    assert sorted(found["id"].to_pylist()) == expected
    assert plan.to_arrow_dataset().count_rows() == len(expected)

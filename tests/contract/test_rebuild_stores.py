"""A lost log is rebuilt on every kind of store."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowlog
from arrowlog.errors import TableExists, TableNotFound


@pytest.mark.promise("recovery.rebuild_keeps_rows")
def test_rebuild_restores_the_log_on_every_store(place):
    for number in range(3):
        sink = io.BytesIO()
        pq.write_table(pa.table({"id": [number], "text": [f"t{number}"]}), sink)
        place.put(f"k=a%2F{number}/part-{number}.parquet", sink.getvalue())
    place.put("_SUCCESS", b"")
    place.put("notes.txt", b"x")
    with pytest.raises(TableNotFound, match=r"arrowlog\.rebuild"):
        arrowlog.Table(place.uri, place.options)
    tried = arrowlog.rebuild(place.uri, dry_run=True, storage_options=place.options)
    assert (tried.num_files, tried.num_records, tried.problems) == (3, 3, ())
    arrowlog.rebuild(place.uri, storage_options=place.options)
    table = arrowlog.Table(place.uri, place.options)
    assert table.scan("id = 1").num_files == 1
    rows = table.scan().to_polars().collect().sort("id").to_dicts()
    assert rows == [{"id": n, "text": f"t{n}", "k": f"a/{n}"} for n in range(3)]
    with pytest.raises(TableExists):
        arrowlog.rebuild(place.uri, storage_options=place.options)

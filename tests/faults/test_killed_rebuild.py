"""A killed rebuild leaves no partial table. Running it again finishes."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import kill_rebuild, programs


@pytest.mark.promise("recovery.rebuild_is_atomic")
@pytest.mark.fork
def test_killed_rebuild_leaves_no_table_or_the_complete_one(tmp_path):
    for number in range(5):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    found = json.loads(programs.run(kill_rebuild.__file__, tmp_path, 5))
    print(found)
    assert found["points"] > 3
    assert 0 < found["opened"] < found["points"]

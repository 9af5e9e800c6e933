"""Tables of protocol 4 on every store: commits, states, time travel and cleanup."""

import pyarrow as pa
import pytest

import arrowlog
from arrowlog.errors import InvalidRequest
from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.maintenance import cleanup

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])


@pytest.mark.promise("storage.same_contract")
def test_commits_states_time_travel_and_cleanup(place, monkeypatch):
    monkeypatch.setattr(cleanup, "MIN_COMMIT_AGE_SECONDS", 0.0)
    monkeypatch.setattr("arrowlog.maintenance.procedures.MIN_COMMIT_AGE_SECONDS", 0.0)
    table = arrowlog.Table.create(place.uri, SCHEMA, ["p"], storage_options=place.options)
    table.upgrade_protocol(reader=4, writer=4)
    other = arrowlog.Table(place.uri, place.options)
    for number in range(4):
        handle = table if number % 2 else other
        handle.write(pa.table({"p": ["x"], "id": [number]}, SCHEMA))
    reader = arrowlog.Table(place.uri, place.options)
    assert reader.snapshot().report.checkpoint == 5
    assert sorted(reader.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    assert sorted(reader.scan(version=3).to_arrow()["id"].to_pylist()) == [0, 1]
    reader.write(pa.table({"p": ["y"], "id": [9]}, SCHEMA), mode="overwrite")
    planned = reader.truncate_history(dry_run=True).files["path"].to_pylist()
    assert reader.truncate_history().files["path"].to_pylist() == planned
    assert {path for path in planned if place.read(path) is not None} == set()
    assert f"{LOG_FOLDER}/00000000000000000005.json" in planned
    assert f"{LOG_FOLDER}/state-v00000000000000000005/_manifest.avro" in planned
    last = arrowlog.Table(place.uri, place.options)
    assert last.earliest_version == 6
    assert last.scan().to_arrow()["id"].to_pylist() == [9]
    assert last.history()["version"].to_pylist() == [6]
    with pytest.raises(InvalidRequest, match="no longer available"):
        last.snapshot(version=4)
    last.append([arrowlog.add_file("f", {"p": "x"}, size=1)])
    for handle in (table, other, arrowlog.Table(place.uri, place.options)):
        assert handle.snapshot().version == 7
        assert handle.snapshot().num_files == 2

"""Tables written by IndexTables 0.5.4: their files and rows, where the fixtures are available."""

import json

import pytest
from support import real_tables

import arrowlog

FOLDER = real_tables.FOLDER
EXPECTED = json.loads((FOLDER / "expected.json").read_text()) if FOLDER else {}
NAMES = sorted(EXPECTED) or [pytest.param("", marks=real_tables.needed)]


@pytest.mark.parametrize("name", NAMES)
def test_files_and_rows_equal_the_writers(name):
    table = arrowlog.Table(FOLDER / name)
    snapshot = table.snapshot()
    assert {"files": snapshot.num_files, "rows": snapshot.num_records} == EXPECTED[name]
    assert snapshot.files.num_rows == snapshot.num_files
    assert snapshot.protocol.min_reader_version == 4
    assert snapshot.schema.names
    assert not snapshot.report.warnings


@pytest.mark.parametrize("name", NAMES)
def test_every_version_can_be_read(name):
    table = arrowlog.Table(FOLDER / name)
    assert table.earliest_version == 0
    sizes = [table.snapshot(version=v).num_files for v in range(table.version + 1)]
    assert sizes[0] == 0
    assert sizes[-1] == EXPECTED[name]["files"]
    for version in range(table.version + 1):
        time = table.snapshot(version=version).state.timestamp
        assert table.snapshot(timestamp=time).version == version

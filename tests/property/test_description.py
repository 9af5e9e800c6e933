"""Schema, metadata and protocol without a snapshot: the same values, from fewer commits."""

import shutil

import pyarrow as pa
import pytest
from support import log_model
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.errors import LogCorrupt, UnsupportedProtocol
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.snapshot import description

SEEDS = cases(40)
ALONE = {"checkpoint.enabled": False}


def described(table):
    return table.schema, table.metadata, table.protocol, table.partition_columns


@pytest.mark.parametrize("batch", range(4))
def test_description_equals_the_snapshot(batch, tmp_path, monkeypatch):
    for seed in range(batch * SEEDS // 4, (batch + 1) * SEEDS // 4):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=12)
        rng = history.rng
        monkeypatch.setattr(description, "_BATCH_COMMITS", rng.choice([1, 2, 100]))
        if rng.random() < 0.5:
            form = rng.choice(["json", "parquet", "both"])
            arrowlog.Table(root, options={"checkpoint.format": form} | ALONE).checkpoint()
            testing.write_commit(root, arrowlog.Table(root).version + 1, [testing.add("z")])
        table = arrowlog.Table(root)
        found = described(table)
        assert table._tracker.last_read is None
        snapshot = table.snapshot()
        assert found == (
            snapshot.schema,
            snapshot.metadata,
            snapshot.protocol,
            snapshot.partition_columns,
        )
        assert described(table) == found


SCHEMA = pa.schema([("id", pa.int64())])
OPENING = [testing.protocol(), testing.metadata(SCHEMA)]


def long_log(root, changed=()):
    testing.write_commit(root, 0, OPENING)
    for version in range(1, 101):
        lines = [testing.commit_info(version, numActions=1), testing.add(f"f{version}")]
        if version in changed:
            lines = [*OPENING, testing.metadata(pa.schema([(f"c{version}", pa.string())]))]
        testing.write_commit(root, version, lines)


def test_commits_before_the_last_change_are_not_read(tmp_path):
    long_log(tmp_path, changed=[40, 90])
    for version in range(1, 40):
        with open(f"{tmp_path}/{LOG_FOLDER}/{commit_name(version)}", "w") as file:
            file.write("nonsense")
    table = arrowlog.Table(tmp_path)
    assert table.schema.names == ["c90"]
    with pytest.raises(LogCorrupt):
        table.snapshot()


def test_later_metadata_change_is_found(tmp_path):
    long_log(tmp_path)
    table = arrowlog.Table(tmp_path)
    assert table.schema == SCHEMA
    assert table.schema is table.schema  # nothing is read again
    testing.write_commit(tmp_path, 101, [testing.metadata(pa.schema([("new", pa.int64())]))])
    assert table.schema.names == ["new"]
    shutil.rmtree(f"{tmp_path}/{LOG_FOLDER}")
    testing.write_commit(tmp_path, 0, [testing.protocol(), testing.metadata(SCHEMA, ["id"])])
    assert table.partition_columns == ("id",)


def test_damage_and_newer_protocols_raise_as_in_a_snapshot(tmp_path):
    long_log(tmp_path)
    broken = [testing.commit_info(1, numActions=7), testing.add("x")]
    testing.write_commit(tmp_path, 101, broken)
    with pytest.raises(LogCorrupt, match="101"):
        arrowlog.Table(tmp_path).schema  # noqa: B018 -- it raises
    testing.write_commit(tmp_path, 101, [testing.protocol(99, 99)])
    with pytest.raises(UnsupportedProtocol):
        arrowlog.Table(tmp_path).schema  # noqa: B018 -- it raises


def test_dead_commits_are_ignored(tmp_path):
    long_log(tmp_path)
    arrowlog.Table(tmp_path, options={"checkpoint.format": "parquet"} | ALONE).truncate_history()
    newest = arrowlog.Table(tmp_path).version
    dead = [testing.metadata(pa.schema([("dead", pa.int64())]))]
    testing.write_commit(tmp_path, newest - 1, dead)
    assert arrowlog.Table(tmp_path).schema == SCHEMA

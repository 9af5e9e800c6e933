"""Every version of thousands of random histories, against a naive model."""

import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from support import log_model
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.decode import decoder
from arrowlog.snapshot import file_table as files_module

SEEDS = cases(360)
BATCH = 30


def expected_row(add: dict, root: str) -> dict:
    stats = json.loads(add.get("stats") or "{}")
    low = {**stats.get("minValues", {}), **_present(add.get("minValues"))}
    high = {**stats.get("maxValues", {}), **_present(add.get("maxValues"))}
    day = add["partitionValues"].get("day")
    unset = (None, "", "__HIVE_DEFAULT_PARTITION__")
    return {
        "path": add["path"],
        "partition.day": None if day in unset else date.fromisoformat(day),
        "size_bytes": add["size"],
        "data_change": add.get("dataChange", True),
        "num_records": add.get("numRecords", stats.get("numRecords")),
        "min.id": _int(low.get("id")),
        "max.id": _int(high.get("id")),
        "min.name": low.get("name"),
        "max.name": high.get("name"),
        "min.price": _decimal(low.get("price")),
        "max.price": _decimal(high.get("price")),
        "null_count.id": stats.get("nullCount", {}).get("id"),
        "null_count.at": None,
        "stats": add.get("stats"),
        "tags": None if add.get("tags") is None else list(add["tags"].items()),
        "footer_start_offset": add.get("footerStartOffset"),
        "has_footer_offsets": add.get("hasFooterOffsets", False),
        "split_tags": add.get("splitTags"),
        "num_merge_ops": add.get("numMergeOps"),
        "doc_mapping_json": add.get("docMappingJson"),
    }


def _present(values):
    return {k: v for k, v in (values or {}).items() if v is not None}


def _int(value):
    return None if value is None else int(value)


def _decimal(value):
    return None if value is None else Decimal(str(value)).quantize(Decimal("0.0001"))


def assert_same(snapshot, state, root):
    expected = sorted((expected_row(add, root) for add in state.values()), key=lambda r: r["path"])
    names = list(expected[0]) if expected else ["path"]
    rows = snapshot.files.select(names).to_pylist()
    assert sorted(rows, key=lambda r: r["path"]) == expected
    assert snapshot.num_files == len(state)
    assert snapshot.size_bytes == sum(add["size"] for add in state.values())


@pytest.fixture(params=[1, 48], ids=["columnar", "mixed"])
def threshold(request, monkeypatch):
    """Small logs are decoded line by line; force them through the columnar decoder as well."""
    monkeypatch.setattr(decoder, "COLUMNAR_MIN_LINES", request.param)


@pytest.mark.promise("snapshot.log_replay")
@pytest.mark.parametrize("batch", range(SEEDS // BATCH))
def test_every_version_equals_the_model(batch, tmp_path, threshold):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=2 + seed % 9)
        table = arrowlog.Table(root)
        assert_same(table.snapshot(), history.live, root)
        for version, state in enumerate(history.states):
            assert_same(table.snapshot(version=version), state, root)


@pytest.mark.parametrize("batch", range(SEEDS // BATCH // 3))
def test_checkpoint_changes_no_version(batch, tmp_path, threshold):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(root, seed, versions=8)
        rng = history.rng
        for version in rng.sample(range(8), 2):
            testing.write_checkpoint(
                root,
                version,
                log_model.actions_at(history, version),
                form=rng.choice(["object", "lines", "actions", "parts"]),
                codec=rng.choice(["none", "gzip", "zstd"]),
            )
        pointer = {"version": rng.randrange(20)}
        testing.write_pointer(root, rng.choice([pointer, b"", b"{", b"\xff\x00"]))
        table = arrowlog.Table(root)
        for version, state in enumerate(history.states):
            assert_same(table.snapshot(version=version), state, root)


@pytest.mark.promise("snapshot.refresh_equals_open")
@pytest.mark.parametrize("batch", range(SEEDS // BATCH // 3))
def test_refresh_after_each_commit_equals_open(batch, tmp_path):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        print("seed", seed)
        root = tmp_path / str(seed)
        history = log_model.write(tmp_path / f"{seed}-source", seed, versions=1)
        history.root = str(root)
        testing.write_commit(root, 0, history.commits[0])
        table = arrowlog.Table(root)
        for version in range(1, 8):
            content = log_model.random_commit(history, version)
            testing.write_commit(root, version, content)
            log_model.replay(history, content)
            if history.rng.random() < 0.5:
                assert_same(table.refresh(), history.live, root)
        assert_same(table.snapshot(), history.live, root)


def test_files_have_the_same_columns_with_any_content(root):
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(log_model.SCHEMA, ["day"])])
    empty = arrowlog.Table(root).snapshot().files
    testing.write_commit(root, 1, [testing.add("a", {"day": "2024-01-01"}, tags={"a": "b"})])
    full = arrowlog.Table(root).snapshot().files
    assert empty.schema == full.schema
    assert isinstance(full, pa.Table)
    assert files_module.files_column_name("numRecords") == "num_records"

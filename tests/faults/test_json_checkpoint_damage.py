"""JSON checkpoints with each file damaged in each way: same snapshot, reported as a warning."""

import os

import pytest
from support.small_table import GOOD, OPENING, paths

import arrowlog
from arrowlog import testing

FORMS = ("object", "lines", "actions", "parts")
MORE = [testing.add(f"more-{i}", {"day": "2024-01-02"}) for i in range(100)]


def damages(data: bytes):
    yield "emptied", b""
    yield "halved", data[: len(data) // 2]
    yield "one byte short", data[:-2]
    yield (
        "flipped",
        data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 0x80]) + data[len(data) // 3 + 1 :],
    )
    yield "zeros", b"\0" * len(data)
    yield "unknown envelope", b"\x01\x77" + data


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("form", FORMS)
def test_damaged_checkpoint_changes_no_snapshot(table, form, codec):
    testing.write_commit(table, 2, MORE)
    path = testing.write_checkpoint(table, 2, [*OPENING, GOOD, *MORE], form=form, codec=codec)
    expected = paths(arrowlog.Table(table).snapshot())
    assert arrowlog.Table(table).snapshot().report.checkpoint == 2
    folder = os.path.dirname(path)
    files = [f"{folder}/{name}" for name in os.listdir(folder) if ".checkpoint." in name]
    for file in files:
        with open(file, "rb") as source:
            whole = source.read()
        for how, broken in damages(whole):
            with open(file, "wb") as out:
                out.write(broken)
            snapshot = arrowlog.Table(table).snapshot()
            assert paths(snapshot) == expected, how
            if snapshot.report.checkpoint is None:
                assert "checkpoint 2 was not used" in snapshot.report.warnings[0], how
            else:
                assert how == "flipped", (
                    how
                )  # without a checksum, a flip inside a value is undetectable
        with open(file, "wb") as out:
            out.write(whole)
        os.remove(file)
        assert paths(arrowlog.Table(table).snapshot()) == expected
        with open(file, "wb") as out:
            out.write(whole)


def test_checkpoint_without_metadata_is_ignored(table):
    testing.write_checkpoint(table, 1, [GOOD], form="lines")
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.report.checkpoint is None
    assert "no metaData" in snapshot.report.warnings[0]


def test_older_checkpoint_is_used_when_the_newest_is_damaged(table):
    testing.write_commit(table, 2, MORE)
    testing.write_checkpoint(table, 1, [*OPENING, GOOD])
    bad = testing.write_checkpoint(table, 2, [*OPENING, GOOD, *MORE])
    with open(bad, "wb") as out:
        out.write(b"{")
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.report.checkpoint == 1
    assert snapshot.num_files == 101


def test_manifest_with_invalid_part_names_is_ignored(table):
    for parts in (["../../secret.json"], [], ["00000000000000000001.json"] * 2, ["x"]):
        manifest = {"version": 1, "checkpointId": "0123456789ab", "parts": parts}
        testing.write_file(
            table, "00000000000000000001.checkpoint.json", testing.lines([manifest])[:-1]
        )
        snapshot = arrowlog.Table(table).snapshot()
        assert snapshot.report.checkpoint is None
        assert paths(snapshot) == ["good.parquet"]


def test_manifest_of_another_version_is_ignored(table):
    path = testing.write_checkpoint(table, 1, [*OPENING, GOOD], form="parts")
    os.rename(path, path.replace("1.checkpoint", "0.checkpoint"))
    assert arrowlog.Table(table).snapshot(version=0).report.checkpoint is None


def test_pretty_printed_checkpoint_is_read(table):
    import json

    document = {**OPENING[0], **OPENING[1], "add": [GOOD["add"], MORE[0]["add"]]}
    testing.write_file(
        table, "00000000000000000001.checkpoint.json", json.dumps(document, indent="\t").encode()
    )
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.report.checkpoint == 1
    assert paths(snapshot) == ["good.parquet", "more-0"]

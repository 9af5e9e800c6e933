"""The commands compact, vacuum and skips, run in a subprocess."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

import arrowlog

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])


def run(*arguments):
    command = [sys.executable, "-m", "arrowlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def table(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"])
    for number in range(4):
        rows = {"day": ["a", "b"], "id": [number, number + 10]}
        table.write(pa.table(rows, schema=SCHEMA))
    return table


def test_compact_reports_what_it_did(table, root):
    planned = run("compact", str(root), "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "planned  day=a" in planned.stdout
    assert "8 files of" in planned.stdout
    assert "would become 2." in planned.stdout
    assert table.refresh().version == 4
    broken = table.scan("day = 'b'").paths[0]
    (root / broken).write_bytes(b"broken")
    done = run("compact", str(root), "--output", "json")
    groups = json.loads(done.stdout)
    assert [(group["status"], group["files"]) for group in groups] == [
        ("compacted", 4),
        ("compacted", 3),
    ]
    assert done.stderr == ""  # no progress bar without a terminal
    shown = run("skips", str(root))
    assert broken in shown.stdout
    assert "1 file in cooldown." in shown.stdout
    again = run("compact", str(root), "--include-skipped", "--where", "day = 'b'")
    assert f"Skipped {broken}: " in again.stdout
    counts = run("skips", str(root), "--history", "--output", "jsonl").stdout.splitlines()
    assert [json.loads(line)["skip_count"] for line in counts] == [1, 2]


def test_vacuum_lists_then_deletes_orphans(table, root):
    (root / "left.parquet").write_bytes(b"12345")
    os.utime(root / "left.parquet", (1, 1))
    planned = run("vacuum", str(root), "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "1 file would be deleted, 5 B." in planned.stdout
    assert (
        "Kept: 8 live files, 0 (0 B) that older versions need (from version 0 on)" in planned.stdout
    )
    assert (root / "left.parquet").exists()
    done = run("vacuum", str(root), "--output", "csv")
    assert done.stdout.splitlines()[1].startswith('"left.parquet",5,')
    assert not (root / "left.parquet").exists()


def test_vacuum_with_short_retention_requires_force(table, root):
    done = run("vacuum", str(root), "--older-than", "1h")
    assert done.returncode == 1
    assert "force" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("vacuum", str(root), "--older-than", "1h", "--force").returncode == 0


def test_skips_record_requires_a_reason(table, root):
    path = table.snapshot().files["path"][0].as_py()
    assert run("skips", str(root), "--record", path).returncode == 2
    done = run("skips", str(root), "--record", path, "--reason", "odd", "--cooldown", "1h")
    assert done.returncode == 0, done.stderr
    assert table.skips.active()["reason"].to_pylist() == ["odd"]


def test_help_has_examples():
    for command in ("compact", "vacuum", "skips"):
        assert f"arrowlog {command} /data/events" in run(command, "--help").stdout

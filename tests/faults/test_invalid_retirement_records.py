"""Retirement records that no cleanup wrote, and logs that lost their commits."""

import pyarrow as pa
import pytest

import arrowlog
from arrowlog.errors import LogCorrupt

SCHEMA = pa.schema([("id", pa.int64())])
QUIET = {"checkpoint.enabled": False}


def build(root):
    """Versions 0 to 6, a checkpoint of version 3."""
    table = arrowlog.Table.create(root, SCHEMA, properties=QUIET)
    for number in range(6):
        table.write(pa.table({"id": [number]}, schema=SCHEMA))
        if number == 2:
            table.checkpoint()
    return table


def record(root, first, last):
    folder = root / "_transaction_log" / "_retired"
    folder.mkdir(exist_ok=True)
    (folder / f"{last:020d}-{first:020d}.json").touch()


USES = {
    "snapshot": lambda root: arrowlog.Table(root).snapshot(),
    "version": lambda root: arrowlog.Table(root).version,
    "time travel": lambda root: arrowlog.Table(root).snapshot(version=1),
    "history": lambda root: arrowlog.Table(root).history(),
    "append": lambda root: arrowlog.Table(root).append([arrowlog.add_file("new", size=1)]),
    "cleanup": lambda root: arrowlog.Table(root).cleanup(),
    "truncate": lambda root: arrowlog.Table(root).truncate_history(),
    "vacuum": lambda root: arrowlog.Table(root).vacuum(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("versions", [(1, 6), (3, 3), (6, 6), (7, 7), (0, 10**20 - 1)], ids=str)
def test_record_without_a_checkpoint_above_it_raises(root, versions, use):
    build(root)
    record(root, *versions)
    with pytest.raises(LogCorrupt, match=rf"_retired/{versions[1]:020d}.*delete the record"):
        USES[use](root)
    (finding,) = [found for found in arrowlog.doctor(root) if found.severity == "error"]
    assert finding.code == "record-wrong"
    for path in (root / "_transaction_log" / "_retired").iterdir():
        path.unlink()
    found = arrowlog.Table(root).scan().to_arrow_dataset().to_table()["id"].to_pylist()
    assert sorted(found) == list(range(6))


def test_open_handle_raises_on_a_record_without_a_checkpoint(root):
    table = build(root)
    table.snapshot()
    record(root, 7, 7)
    with pytest.raises(LogCorrupt, match="delete the record"):
        table.append([arrowlog.add_file("new", size=1)])


@pytest.mark.parametrize("left", ["_retired", "_last_checkpoint"])
def test_log_that_lost_all_but_version_0_raises(root, left):
    build(root).truncate_history()
    kept = ("00000000000000000000.json", left)
    for path in (root / "_transaction_log").rglob("*"):
        if path.is_file() and not {path.name, path.parent.name} & set(kept):
            path.unlink()
    with pytest.raises(LogCorrupt, match="gone"):
        arrowlog.Table(root).snapshot()

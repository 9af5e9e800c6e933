"""A table with any damage in its log gets a report that names the unavailable sections."""

import os
import random
import shutil

import pyarrow as pa
import pytest
from support import event_table
from support.case_count import cases
from support.log_damage import cut, flip

import arrowlog

LOGS = {"json": "_transaction_log", "states": "_transaction_log", "delta": "_delta_log"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of each kind, with checkpoints and commits after them."""
    import deltalake

    folder = tmp_path_factory.mktemp("whole")
    event_table.build(folder / "json")
    table = arrowlog.Table(folder / "json")
    table.checkpoint()
    table.append([arrowlog.add_file("x", {"day": "2024-01-01"}, size=4)])
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    states = arrowlog.Table.create(folder / "states", schema, ["p"])
    states.append([arrowlog.add_file("a", {"p": "1"}, size=3)])
    states.upgrade_protocol(reader=4, writer=4)
    states.append([arrowlog.add_file("b", {"p": "2"}, size=3)])
    rows = pa.table({"region": ["north", "south"], "amount": [1.0, 2.0]})
    for number in range(4):
        deltalake.write_deltalake(folder / "delta", rows, partition_by=["region"], mode="append")
        if number == 2:
            deltalake.DeltaTable(folder / "delta").create_checkpoint()
    return folder


def damage(log, rng):
    """Damage one or two files of a log: cut, flip a bit, empty, overwrite or delete them."""
    names = sorted(os.path.join(base, name) for base, _, files in os.walk(log) for name in files)
    for name in rng.sample(names, min(len(names), rng.choice([1, 1, 2]))):
        with open(name, "rb") as file:
            data = file.read()
        how = rng.choice(["cut", "flip", "flip", "empty", "noise", "delete"])
        if how == "delete":
            os.unlink(name)
            continue
        if how in ("cut", "flip") and data:
            data = (cut if how == "cut" else flip)(data, rng)
        else:
            data = b"" if how == "empty" else rng.randbytes(50)
        with open(name, "wb") as file:
            file.write(data)


@pytest.mark.parametrize("seed", range(cases(12)))
def test_report_of_a_damaged_table_names_unavailable_sections(seed, tables, tmp_path):
    rng = random.Random(seed)
    kind = sorted(LOGS)[seed % len(LOGS)]
    shutil.copytree(tables / kind, tmp_path / "t")
    damage(tmp_path / "t" / LOGS[kind], rng)
    report = arrowlog.Table(tmp_path / "t").report()
    facts = report.facts
    assert str(tmp_path) not in report.html
    shown = report.html.count("Not computed.")
    readable = facts.health.version is not None
    if facts.summary is None:
        assert not (readable and facts.health.worst == "healthy")
        assert {"file_sizes", "partitions", "columns"} <= set(facts.unavailable)
        assert shown >= 3
    for section in ("timeline", "checkpoints", "retention", "commits"):
        if section == "retention" and kind == "delta":
            assert facts.retention is None
            assert section not in facts.unavailable
            continue
        assert (getattr(facts, section) is None) == (section in facts.unavailable)

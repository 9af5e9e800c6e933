"""Maintenance killed at any moment loses no acknowledged row. Running it again finishes."""

import pytest
from support import kill_maintenance, killable_children
from support.case_count import cases, first_seed

import arrowlog

KILLS = 10


@pytest.mark.promise("maintenance.no_row_is_lost")
@pytest.mark.fork
def test_killed_maintenance_loses_no_row_and_a_rerun_finishes(tmp_path):
    seed = first_seed()
    roots = [tmp_path / f"table{number}" for number in range(cases(3))]
    for root in roots:
        arrowlog.Table.create(root, kill_maintenance.SCHEMA, ["p"])
    told = killable_children.run(kill_maintenance.__file__, seed, KILLS, roots)
    for root, rows in zip(roots, told, strict=True):
        check(root, [row for (row,) in rows])
    operations = [len(list((root / "_transaction_log").glob("*.json"))) for root in roots]
    print(
        f"{len(roots) * KILLS} kills, {sum(map(len, told))} rows acknowledged, {operations} commits"
    )
    assert sum(map(len, told)) > len(roots)


def check(root, told):
    table = arrowlog.Table(root, strict=True)
    found = ids(table)
    assert len(set(found)) == len(found), "a row twice"
    assert set(told) <= set(found), "an acknowledged row is lost"
    for version in range(table.earliest_version, table.version + 1):
        ids(table, version)  # every file of every version exists
    assert table.compact().num_conflicts == 0
    assert table.compact(dry_run=True).num_groups == 0
    table.truncate_history()
    table.vacuum("0s", force=True)
    assert ids(arrowlog.Table(root)) == found
    live = set(table.refresh().files["path"].to_pylist())
    data = [path for path in root.rglob("*") if path.is_file() and "_transaction" not in str(path)]
    assert {str(path.relative_to(root)) for path in data} == live, "debris"


def ids(table, version=None):
    rows = table.scan(version=version).to_arrow_dataset().to_table()
    return sorted(rows["id"].to_pylist())

# ruff: noqa: F821 -- run in the kernel of the notebook
loads = weekly.filter("operation = 'WRITE'").aggregate("sum(commits)").fetchall()
assert loads == [(4 * shop.DAYS,)]
who = {row[0]: row for row in rewrites.fetchall()}
assert set(who) == {"compactor 1.0", "backfill.py", "corrections 0.4"}
assert who["backfill.py"][5] == 5  # it touched five days
assert culprit.num_rows == 1
((factor, _),) = amplification.fetchall()
assert 1.5 < factor < 2.5
for version in (1, 50, 100, table.version):
    snap = table.snapshot(version=version)
    told = table.sql(f"SELECT count(*), sum(size_bytes) FROM files_at({version})").fetchall()
    assert told == [(snap.num_files, snap.size_bytes)]
assert owned.to_pylist()[0]["owner"] == "data team"
assert None in owned["owner"].to_pylist()

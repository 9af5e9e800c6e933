# ruff: noqa: F821 -- run in the kernel of the notebook
assert "00000000000000000034.json" in message
codes = {finding.code for finding in findings}
assert {"commit-broken", "checkpoint-broken", "pointer-broken", "data-missing"} <= codes
assert not findings.healthy
assert before.num_files == 33
assert before.report.checkpoint == 20  # 30 is damaged
row = report.to_pylist()[0]
assert row["status"] == "SUCCESS"
assert (row["source_version"], row["valid_splits"], row["missing_splits"]) == (33, 31, 2)
assert (len(losses.stranded_files), len(losses.unclaimed_files)) == (2, 1)
assert per_day["rows"].sum() == 34 * 2000
assert len(lost) == 2
assert table.doctor().healthy

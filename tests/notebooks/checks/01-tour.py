# ruff: noqa: F821 -- run in the kernel of the notebook
assert snap.report.checkpoint == snap.version
assert snap.num_files > 1000
assert files.schema["partition.day"] == pl.Date
assert files.schema["max.order_id"] == pl.Int64
assert files["size_bytes"].sum() == snap.size_bytes
assert by_day["files"].head(20).to_list() == [4] * 20  # compacted
assert by_day["files"].tail(5).min() >= 100
assert 0.9 < files.select(pl.col("min.order_id").is_not_null().mean()).item() < 1
assert plan.num_files < 0.1 * plan.total_files
assert then.version < snap.version
assert then.num_records < snap.num_records
assert difference.rows_added - difference.rows_removed == snap.num_records - then.num_records
back = fresh.diff(snap.version, then.version)
assert back.bytes_added == difference.bytes_removed

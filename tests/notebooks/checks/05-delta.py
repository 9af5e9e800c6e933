# ruff: noqa: F821 -- run in the kernel of the notebook
assert table.format == "delta"
assert snap.report.checkpoint == snap.version
assert snap.num_records == sum(row["count"] for row in per_borough)
every = pl.concat([trips.load(day) for day in range(trips.DAYS)])
deleted = every.filter((pl.col("borough") == "Queens") & (pl.col("distance") > 28))
assert snap.num_records == every.height - deleted.height
since = pl.datetime(2024, 6, 20, time_zone="UTC")
wanted = every.filter(
    (pl.col("borough") == "Queens")
    & (pl.col("pickup") >= since)
    & pl.col("distance").is_between(25, 28, closed="right")
)
assert plan.to_polars().collect().height == wanted.height
assert longest["trip"].to_list() == in_spark["trip"].to_list()
assert earlier.num_files < 0.1 * earlier.total_files

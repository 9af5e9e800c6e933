# ruff: noqa: F821 -- run in the kernel of the notebook
from datetime import date

assert snap.num_files == 15 * 20
assert snap.num_records == 15 * ROWS
assert (plan.total_files, plan.num_files) == (300, 4)
explanation = plan.explain()
assert explanation.pruned > 0.98
assert explanation.clauses[0].files_dropped == 285  # all other days
expected = pl.concat([load(number) for number in range(15)]).filter(
    (pl.col("day") == date(2024, 3, 8))
    & pl.col("order_id").is_between(9000, 21000)
    & (pl.col("amount") > 40)
)
assert rows == expected.height
assert {row["shop"]: row["orders"] for row in by_shop} == dict(
    expected.group_by("shop").len().iter_rows()
)
assert still == again == rows
assert gone.num_files == 0
assert table.scan("day = '2024-03-09'").count() == 15 * ROWS // 20
assert table.scan().max("order_id") == 15 * ROWS - 1

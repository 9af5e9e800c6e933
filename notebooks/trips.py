"""Four weeks of taxi trips as a Delta table, written with delta-rs.

Every day a load; every Sunday implausible trips of one borough are deleted; in the last week small
files are merged. delta-rs dates commits with the time of now, so the commits are dated afterwards:
the table looks as if it had been written in June 2024.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
from deltalake import DeltaTable, write_deltalake

FIRST = datetime(2024, 6, 1, tzinfo=UTC)
DAYS = 28
TRIPS = 600  # per day
BOROUGHS = ("Bronx", "Brooklyn", "Manhattan", "Queens")
MERGE_DAY = 24


def load(day: int) -> pl.DataFrame:
    """Return the trips of a day: the same ones in every run."""
    number = pl.int_range(day * TRIPS, (day + 1) * TRIPS, eager=True)
    spread = pl.col("number") * 7919 % 1009 / 1009  # even, and without an order
    return pl.DataFrame({"number": number}).select(
        pl.col("number").alias("trip"),
        borough=pl.lit(pl.Series(BOROUGHS)).gather(pl.col("number") * 31 // 7 % len(BOROUGHS)),
        pickup=pl.lit(FIRST + timedelta(days=day))
        + pl.duration(seconds=(pl.col("number") - day * TRIPS) * (86_400 // TRIPS)),
        distance=(0.4 + 30 * spread**3).round(2),
        fare=(3 + 80 * spread**3).round(2),
    )


def build(root: str) -> str:
    """Write the table and return its folder."""
    times = []
    for day in range(DAYS):
        midnight = FIRST + timedelta(days=day)
        write_deltalake(root, load(day), partition_by=["borough"], mode="append")
        times.append(midnight + timedelta(hours=23))
        if day % 7 == 6:
            DeltaTable(root).delete("borough = 'Queens' AND distance > 28")
            times.append(midnight + timedelta(hours=23, minutes=30))
        if day == MERGE_DAY:
            DeltaTable(root).optimize.compact()
            times.append(midnight + timedelta(hours=23, minutes=45))
    table = DeltaTable(root)
    _date_commits(Path(root) / "_delta_log", times)
    table.create_checkpoint()
    return root


def _date_commits(log: Path, times: list[datetime]) -> None:
    for version, when in enumerate(times):
        path = log / f"{version:020d}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = int(when.timestamp() * 1000)
        path.write_text("\n".join(map(json.dumps, actions)) + "\n")
        os.utime(path, (when.timestamp(), when.timestamp()))

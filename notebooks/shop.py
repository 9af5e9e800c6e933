"""Six weeks of a shop's orders as a table: only its log, written by hand with the times it says.

Every day four loads of 25 files each; after two weeks a night's compaction of a day to four files;
every week corrections; once a backfill that rewrote more than it had to.
"""

import json
import random
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from arrowlog import testing

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("shop", pa.string()),
        ("order_id", pa.int64()),
        ("amount", pa.float64()),
    ]
)
FIRST = date(2024, 3, 1)
DAYS = 42
SHOPS = ("Basel", "Kyoto", "Lagos", "Quito")
BACKFILL_DAY = 30


class Log:
    """A log that grows; remembers what is live to write removes that are true."""

    def __init__(self, root: str) -> None:
        self.root, self.rng, self.version, self.orders = root, random.Random(7), 0, 0
        self.live: dict[str, dict] = {}
        opening = [testing.protocol(), testing.metadata(SCHEMA, ["day"], created=self.at(0, 0))]
        testing.write_commit(root, 0, opening, codec="gzip")

    def at(self, day: int, hour: int) -> int:
        moment = datetime.combine(FIRST, datetime.min.time(), UTC) + timedelta(days=day, hours=hour)
        return int(moment.timestamp() * 1000)

    def file(self, day: int, rows: int) -> dict:
        """An add of a file with this many orders of a day; one in twenty has no statistics."""
        low, self.orders = self.orders, self.orders + rows
        when = FIRST + timedelta(days=day)
        add = testing.add(
            f"day={when}/orders-{low:09d}.parquet", {"day": str(when)}, size=90 * rows
        )
        fields = {"numRecords": rows}
        if self.rng.random() > 0.05:
            shops = sorted(self.rng.sample(SHOPS, 2))
            fields["minValues"] = {"order_id": str(low), "shop": shops[0], "amount": "0.5"}
            fields["maxValues"] = {
                "order_id": str(low + rows - 1),
                "shop": shops[1],
                "amount": str(round(self.rng.uniform(50, 900), 2)),
            }
            fields["stats"] = json.dumps({"nullCount": {"order_id": 0, "shop": 0, "amount": 0}})
        add["add"] |= fields
        return add

    def commit(self, when: int, operation: str, who: str, adds=(), gone=(), *, change=True) -> None:
        self.version += 1
        removes = [
            testing.remove(path, size=self.live.pop(path)["size"], dataChange=change)
            for path in gone
        ]
        for item in adds:
            item["add"] |= {"modificationTime": when, "dataChange": change}
            self.live[item["add"]["path"]] = item["add"]
        told = testing.commit_info(
            when, operation, engineInfo=who, numActions=len(removes) + len(adds)
        )
        testing.write_commit(self.root, self.version, [told, *removes, *adds], codec="gzip")

    def of_day(self, day: int) -> list[str]:
        start = f"day={FIRST + timedelta(days=day)}/"
        return [path for path in self.live if path.startswith(start)]


def build(root: str) -> str:
    """Write the log; returns the root."""
    log = Log(root)
    for day in range(DAYS):
        for hour in (3, 9, 15, 21):
            files = [log.file(day, log.rng.randrange(500, 3000)) for _ in range(25)]
            log.commit(log.at(day, hour), "WRITE", "loader 2.1", files)
        if day >= 14:
            old = log.of_day(day - 14)
            rows = sum(log.live[path]["numRecords"] for path in old)
            whole = [log.file(day - 14, rows // 4) for _ in range(4)]
            log.commit(log.at(day, 22), "OPTIMIZE", "compactor 1.0", whole, old, change=False)
        if day % 7 == 6:
            some = log.rng.sample(log.of_day(day - 3), 5)
            fixed = [log.file(day - 3, log.live[path]["numRecords"]) for path in some]
            log.commit(log.at(day, 23), "UPDATE", "corrections 0.4", fixed, some)
        if day == BACKFILL_DAY:
            some, again = [], []
            for past in range(day - 5, day):
                files = log.of_day(past)
                some += files
                again += [log.file(past, log.live[path]["numRecords"]) for path in files]
            log.commit(log.at(day, 23), "OVERWRITE", "backfill.py", again, some)
    return root

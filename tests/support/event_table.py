"""A table of five days of events, with the same files, times and bounds in every run."""

import os
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from arrowlog import testing

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("city", pa.string())])
CITIES = ("Basel", "Kyoto", "Lagos", "Quito")
START = 1_704_067_200_000  # 2024-01-01, in milliseconds
HOUR = 3_600_000
DAYS, ROWS = 5, 1000


def build(root):
    """Write one commit per day, then one that replaces the file of the first day."""
    os.makedirs(root, exist_ok=True)
    opening = [testing.protocol(), testing.metadata(SCHEMA, ["day"], created=START)]
    testing.write_commit(root, 0, opening, codec="gzip")
    days = [date(2024, 1, 1) + timedelta(days=n) for n in range(DAYS)]
    adds = [_data_file(root, day, number) for number, day in enumerate(days)]
    for number, action in enumerate(adds):
        _commit(root, number + 1, [action], "WRITE")
    merged = _data_file(root, days[0], 0, name="merged")
    _commit(root, DAYS + 1, [testing.remove(adds[0]["add"]["path"]), merged], "MERGE")


def _commit(root, version, actions, operation):
    info = testing.commit_info(START + version * HOUR, operation, numActions=len(actions))
    testing.write_commit(root, version, [info, *actions], codec="gzip")


def _data_file(root, day, number, name="part"):
    """Write a Parquet file and return the add that describes it."""
    ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
    cities = pa.array([CITIES[(number + row) % len(CITIES)] for row in range(ROWS)])
    path = f"day={day}/{name}-{number:05d}.parquet"
    os.makedirs(f"{root}/day={day}", exist_ok=True)
    pq.write_table(pa.table({"id": ids, "city": cities}), f"{root}/{path}")
    bounds = {"id": pc.min_max(ids).as_py(), "city": pc.min_max(cities).as_py()}
    return testing.add(
        path,
        {"day": str(day)},
        size=os.path.getsize(f"{root}/{path}"),
        modificationTime=START,
        stats='{"nullCount":{"id":0,"city":0}}',
        minValues={column: str(found["min"]) for column, found in bounds.items()},
        maxValues={column: str(found["max"]) for column, found in bounds.items()},
        numRecords=ROWS,
    )

"""Tables whose data files are splits, or splits and Parquet files."""

import os

import pyarrow as pa

import arrowlog
from support.split_bundles import field, make_split

FIELDS = {
    "id": field("i64"),
    "text": field("text"),
    "body": field("text", tokenizer_name="default", fast=False),
    "score": field("f64"),
}
SCHEMA = pa.schema(
    {
        "day": pa.string(),
        "id": pa.int64(),
        "text": pa.string(),
        "body": pa.string(),
        "score": pa.float64(),
    }
)


def write(folder, days, fields=FIELDS, schema=SCHEMA, options=None):
    """Create a table with a split per list of rows of a day."""
    settings = {"splits.cache.path": os.path.join(folder, "..", "split-cache"), **(options or {})}
    table = arrowlog.Table.create(
        folder, schema, partition_columns=["day"], options=settings, exist_ok=True
    )
    adds = []
    for day, rows in days:
        path = f"day={day}/part-{len(adds)}.split"
        data = make_split(fields, [rows])
        os.makedirs(os.path.join(folder, f"day={day}"), exist_ok=True)
        with open(os.path.join(folder, path), "wb") as out:
            out.write(data)
        ids = [row["id"] for row in rows]
        adds.append(
            {
                "path": path,
                "partitionValues": {"day": day},
                "size": len(data),
                "modificationTime": 1,
                "dataChange": True,
                "numRecords": len(rows),
                "minValues": {"id": str(min(ids))},
                "maxValues": {"id": str(max(ids))},
                "footerStartOffset": _footer(data),
                "hasFooterOffsets": True,
            }
        )
    table.append(adds)
    return table


def _footer(data):
    hot = int.from_bytes(data[-4:], "little")
    at = len(data) - 4 - hot - 4
    return at - int.from_bytes(data[at : at + 4], "little")

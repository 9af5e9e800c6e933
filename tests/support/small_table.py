"""A small table: two versions, one file."""

import pyarrow as pa

from arrowlog import testing

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64())])
OPENING = [testing.protocol(), testing.metadata(SCHEMA, ["day"])]
GOOD = testing.add("good.parquet", {"day": "2024-01-01"}, size=1)


def write(root):
    """Write the table and return its folder."""
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [GOOD])
    return root


def paths(snapshot):
    """Return the paths of the live files, sorted."""
    return sorted(snapshot.files["path"].to_pylist())

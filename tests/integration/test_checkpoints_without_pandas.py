"""Checkpoints import no pandas: it takes 0.4 s and 40 MB, and pyarrow imports it where it can."""

import subprocess
import sys

import pyarrow as pa
import pytest
from support.parquet_checkpoints import manifest

import arrowlog

# The limits are lowered so that a table of a few files has checkpoints of either kind.
WRITE = """
import sys
import arrowlog
from arrowlog.snapshot.checkpoint import incremental, parquet, streaming

parquet.SHARED_FILES_MIN, incremental.FOLDED_FILES_MAX = 1, 0
incremental._FOLDED_RATIO_MAX = 0
streaming.STREAMED_LOG_BYTES_MIN = streaming.STREAMED_FILES_MIN = 0
streaming._FRESH_SHARE_MIN = 0
table = arrowlog.Table(sys.argv[1], options={"checkpoint.format": "parquet"})
if sys.argv[2] == "incremental":
    table.snapshot()
finish, streams = streaming.RowStream.finish, []
streaming.RowStream.finish = lambda self: streams.append(self) or finish(self)
table.checkpoint()
print(len(streams))
loaded = sorted(name for name in sys.modules if name.startswith("pandas."))
print(len(loaded))
"""


def _adds(first, last):
    return [
        arrowlog.add_file(f"f{n}.parquet", size=1, num_records=1, min_values={"id": n})
        for n in range(first, last)
    ]


@pytest.mark.parametrize("kind", ["streamed", "incremental"])
def test_checkpoint_imports_no_pandas(root, kind):
    options = {"checkpoint.enabled": False, "checkpoint.format": "parquet"}
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]), options=options)
    table.append(_adds(0, 50))
    if kind == "incremental":
        _run(root, "streamed")
        table.append(_adds(50, 52))
        table.remove(["f7.parquet"])
    streams, loaded = _run(root, kind)
    shared = manifest(root, table.refresh().version).shared_parts
    assert (streams > 0, bool(shared)) == (kind == "streamed", kind == "incremental")
    assert loaded == 0


def _run(root, kind):
    command = [sys.executable, "-c", WRITE, str(root), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]

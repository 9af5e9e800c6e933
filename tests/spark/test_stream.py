"""Tables as streams: everything once, through limits, restarts and kills."""

import os
import signal
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import arrowlog
from arrowlog import testing
from arrowlog.spark.options import SourceOptions
from arrowlog.spark.stream import StreamOffset, StreamReader, StreamWriter
from arrowlog.spark.target import resolve_destination

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def source(spark):
    arrowlog.spark.register(spark)
    return spark


def make(root, commits=1, rows=2):
    table = arrowlog.Table.create(root, SCHEMA)
    for number in range(commits):
        append(table, range(number * rows, (number + 1) * rows))
    return table


def append(table, ids):
    table.write(pa.table({"id": pa.array(list(ids), pa.int64())}))


def run(spark, root, out, **options):
    """Everything that is there now, into a table; returns how many batches it took."""
    stream = spark.readStream.format("arrowlog").options(**options).load(str(root))
    query = (
        stream.writeStream.format("arrowlog")
        .option("checkpointLocation", f"{out}-checkpoint")
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def ids(root):
    return sorted(arrowlog.Table(root).scan().to_arrow_dataset().to_table()["id"].to_pylist())


def test_stream_resumes_at_its_checkpoint(source, root, tmp_path):
    table, out = make(root, 2), tmp_path / "out"
    run(source, root, out)
    assert ids(out) == [0, 1, 2, 3]
    run(source, root, out)
    assert ids(out) == [0, 1, 2, 3]
    append(table, [10, 11])
    append(table, [12])
    run(source, root, out)
    assert ids(out) == [0, 1, 2, 3, 10, 11, 12]


def test_max_files_per_trigger_limits_batches(source, root, tmp_path):
    table, out = make(root, 5), tmp_path / "out"
    assert run(source, root, out, maxFilesPerTrigger=2) == [4, 4, 2]
    append(table, [50])
    adds = [pa.table({"id": pa.array([n], pa.int64())}) for n in (60, 61, 62)]
    commit_files(table, adds)
    assert run(source, root, out, maxFilesPerTrigger=2) == [2, 2]
    assert ids(out) == [*range(10), 50, 60, 61, 62]


def commit_files(table, tables):
    import pyarrow.parquet as pq

    paths = []
    for number, rows in enumerate(tables):
        paths.append(f"many-{number}.parquet")
        pq.write_table(rows, f"{table.uri}/{paths[-1]}")
    table.append([arrowlog.add_parquet(table, path) for path in paths])


def test_stream_starts_at_a_version(source, root, tmp_path):
    table = make(root, 3)
    run(source, root, tmp_path / "from", startingVersion=2)
    assert ids(tmp_path / "from") == [2, 3, 4, 5]
    out = tmp_path / "latest"
    run(source, root, out, startingVersion="latest")
    append(table, [99])
    run(source, root, out, startingVersion="latest")
    assert ids(out) == [99]
    with pytest.raises(StreamingQueryException, match="from 0 to 5"):
        run(source, root, tmp_path / "none", startingVersion=77)


def test_stream_with_a_predicate(source, root, tmp_path):
    make(root, 3)
    run(source, root, tmp_path / "out", where="id > 2")
    assert ids(tmp_path / "out") == [3, 4, 5]


def test_stream_raises_on_deletes_and_changes_by_default(source, root, tmp_path):
    table = make(root, 2)
    outs = [tmp_path / name for name in ("plain", "deletes", "changes")]
    for out in outs:
        run(source, root, out)
    paths = table.snapshot().files["path"].to_pylist()
    table.commit([], [paths[0]], operation="DELETE")
    with pytest.raises(StreamingQueryException, match=r"removes rows.*ignoreDeletes"):
        run(source, root, outs[0])
    run(source, root, outs[1], ignoreDeletes=True)
    append(table, [7])
    run(source, root, outs[1], ignoreDeletes=True)
    assert ids(outs[1]) == [0, 1, 2, 3, 7]
    table.write(pa.table({"id": pa.array([5], pa.int64())}), mode="overwrite")
    with pytest.raises(StreamingQueryException, match=r"changes rows.*ignoreChanges"):
        run(source, root, outs[1], ignoreDeletes=True)
    run(source, root, outs[2], ignoreChanges=True)
    assert ids(outs[2]) == [0, 1, 2, 3, 5, 7]


def test_stream_ignores_compactions(source, root, tmp_path):
    table, out = make(root, 3), tmp_path / "out"
    run(source, root, out)
    seen = table.snapshot()
    merged = pa.table({"id": pa.array(range(6), pa.int64())})
    import pyarrow.parquet as pq

    pq.write_table(merged, root / "merged.parquet")
    add = arrowlog.add_parquet(table, "merged.parquet")
    table.commit([add], seen.files["path"].to_pylist(), operation="MERGE", data_change=False)
    append(table, [8])
    run(source, root, out)
    assert ids(out) == [*range(6), 8]


def test_stream_raises_with_the_deleted_versions(source, root, tmp_path):
    table, out = make(root, 2), tmp_path / "out"
    run(source, root, out)
    for number in range(20, 24):
        append(table, [number])
    table.checkpoint()
    log = root / "_transaction_log"
    for version in (3, 4):
        (log / f"{version:020d}.json").unlink()
    with pytest.raises(StreamingQueryException, match=r"Version 3 is no longer.*startingVersion="):
        run(source, root, out)
    assert ids(out) == [0, 1, 2, 3]


def test_stream_over_narrow_commit_names_and_missing_files(root):
    """Other writers name commits with fewer digits."""
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(SCHEMA)])
    testing.write_commit(root, 1, [testing.add("a.parquet"), testing.add("b.parquet")])
    log = root / "_transaction_log"
    (log / f"{1:020d}.json").rename(log / f"{1:018d}.json")
    reader = StreamReader(SourceOptions(str(root), starting_version="0"), None)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert StreamOffset.of(end) == StreamOffset(2, 0)
    assert len(reader.partitions(start, end)) == 1


def test_sink_without_a_checkpoint_location_is_refused(spark, root):
    goal = resolve_destination(str(root), spark.range(1).schema, mode="append")
    with pytest.raises(arrowlog.InvalidRequest, match="checkpointLocation"):
        StreamWriter(goal, None)


KILLED = """
import sys, os, signal
sys.path[:0] = sys.argv[3:4]
import arrowlog
from arrowlog.spark.target import WriteDestination
spark = arrowlog.spark.session(**{
    "spark.master": "local[1]", "spark.driver.memory": "600m",
    "spark.sql.shuffle.partitions": 1,
})
arrowlog.spark.register(spark)
root, out = sys.argv[1:3]
stream = spark.readStream.format("arrowlog").option("maxFilesPerTrigger", 1).load(root)
def batch(frame, number):
    if number == 1:
        WriteDestination.commit = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
    arrowlog.spark.write(frame, out, txn=("killed", number))

query = stream.writeStream.foreachBatch(batch).option("checkpointLocation", out + "-c")
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.promise("spark.streams_exactly_once")
def test_stream_killed_before_its_commit_writes_rows_once(source, root, tmp_path):
    make(root, 3)
    out = tmp_path / "out"
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    here = os.path.dirname(os.path.dirname(arrowlog.__file__))
    command = [sys.executable, str(script), str(root), str(out), here]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert len(ids(out)) == 2
    stream = source.readStream.format("arrowlog").option("maxFilesPerTrigger", 1).load(str(root))
    query = (
        stream.writeStream.foreachBatch(
            lambda frame, number: arrowlog.spark.write(frame, out, txn=("killed", number))
        )
        .option("checkpointLocation", f"{out}-c")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert ids(out) == list(range(6))


@pytest.mark.promise("spark.streams_exactly_once")
def test_repeated_batch_is_committed_once(source, root, tmp_path):
    """Spark runs a batch again if it did not get to note down that it was committed."""
    table, out = make(root, 2), tmp_path / "out"
    run(source, root, out)
    append(table, [9])
    run(source, root, out)
    version = arrowlog.Table(out).version
    noted = tmp_path / "out-checkpoint" / "commits"
    last = max((path for path in noted.iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (noted / f".{last.name}.crc").unlink()
    assert run(source, root, out) == [1]
    assert arrowlog.Table(out).version == version
    assert ids(out) == [0, 1, 2, 3, 9]

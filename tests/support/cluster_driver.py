"""The program that tests run as a driver of a cluster: `cluster_driver.py SETTINGS FOLDER PYTHON`.

All jobs share one application, as each would start a Java of its own, and executors. Prints what
happened as a line of JSON, by job. Executors have a Python without arrowlog; PYTHON is one that
also lacks what arrowlog requires.
"""

import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

import arrowlog
from arrowlog.spark.executors import _CHECKED
from support.spark_cluster import kill_executor
from support.waiting import wait_until

ROWS = 4000
WAIT_SECONDS = 120  # against hanging only


def refusal(work):
    try:
        work()
    except arrowlog.InvalidRequest as error:
        return str(error)
    return None


def bare(spark, folder):
    """What works on executors with only Spark, and the errors of the rest."""
    table = f"{folder}/table"
    frame = spark.range(ROWS).selectExpr("id", "id % 4 AS part", "id / 8 AS x")
    arrowlog.spark.write(frame, table, partition_columns=["part"], native=True)
    found = arrowlog.spark.read(spark, table, native=True)
    return {
        "count": found.count(),
        "sum": found.filter("part = 3 AND id >= 2000").agg({"id": "sum"}).collect()[0][0],
        "read": refusal(lambda: arrowlog.spark.read(spark, table, native=False)),
        "write": refusal(lambda: arrowlog.spark.write(frame, table, native=False)),
        "checkpoint": refusal(lambda: arrowlog.spark.checkpoint(spark, table)),
        "register": refusal(lambda: arrowlog.spark.register(spark)),
    }


def bare_ship(spark, folder):
    """What is said if arrowlog is sent to executors that lack what it requires."""
    return {"ship": refusal(lambda: arrowlog.spark.ship(spark))}


def shipped(spark, folder):
    """All that Python workers do, after arrowlog was sent to them."""
    table = f"{folder}/table"
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
    options = {"checkpoint.enabled": False}
    made = arrowlog.Table.create(table, schema, partition_columns=["part"], options=options)
    for number in range(6):
        ids = list(range(number * 100, number * 100 + 100))
        made.write(pa.table({"id": ids, "part": [n % 3 for n in ids]}, schema))
    said = refusal(lambda: arrowlog.spark.read(spark, table, native=False))
    arrowlog.spark.ship(spark)
    assert spark in _CHECKED
    arrowlog.spark.register(spark)
    found = {
        "refusal": said,
        "rows": arrowlog.spark.read(spark, table, native=False).count(),
        "source": spark.read.format("arrowlog").option("where", "id < 50").load(table).count(),
        "snapshot": arrowlog.spark.snapshot(spark, table, buckets=2).num_files,
        "checkpoint": arrowlog.spark.checkpoint(spark, table, buckets=2).num_files,
    }
    arrowlog.spark.write(
        spark.range(600, 650).selectExpr("id", "id % 3 AS part"), table, native=False
    )
    found["compacted"] = arrowlog.Table(table).compact(spark=spark).files_removed
    found["after"] = sorted(arrowlog.Table(table).to_arrow()["id"].to_pylist()) == list(range(650))
    return found


def connected(spark, folder):
    """The same cluster through Spark Connect: arrowlog is sent for each session."""
    from pyspark.sql.connect.session import SparkSession

    table = f"{folder}/table"
    arrowlog.spark.write(spark.range(650), table, native=True)
    port = json.loads(sys.argv[1])["spark.connect.grpc.binding.port"]
    client = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    said = refusal(lambda: arrowlog.spark.read(client, table))
    arrowlog.spark.ship(client)
    frame = arrowlog.spark.read(client, table, where="id < 300")
    found = {"refusal": said, "rows": frame.count()}
    arrowlog.spark.write(frame, f"{folder}/copy")
    found["copy"] = arrowlog.Table(f"{folder}/copy").snapshot().num_records
    client.stop()
    return found


def killed(spark, folder):
    """Executors are killed in the middle of the work, and slow tasks run twice."""
    if spark not in _CHECKED:  # if `shipped` failed
        arrowlog.spark.ship(spark)
    return {
        name: work(spark, make_folder(f"{folder}/{name}"))
        for name, work in {"rows": reads_and_writes, "overwrites": overwrites}.items()
    }


def make_folder(folder):
    os.makedirs(folder)
    return folder


def reads_and_writes(spark, folder):
    """Tables are read and written while an executor is killed, and by tasks that run twice."""
    app = spark.sparkContext.applicationId
    table = f"{folder}/table"
    arrowlog.spark.write(spark.range(0, ROWS, 1, 8), table, native=True)
    found = {}
    for native in (True, False):
        name = "native" if native else "workers"
        read = arrowlog.spark.read(spark, table, native=native)
        stops = Stops(f"{folder}/read-{name}")
        ids = while_killing(app, stops, lambda r=read, s=stops: collect(s.kill_point(r)))
        found[f"read {name}"] = ids == list(range(ROWS))
        stops = Stops(f"{folder}/write-{name}")
        copy = f"{folder}/copy-{name}"
        frame = stops.kill_point(spark.range(0, ROWS, 1, 8))
        work = lambda f=frame, c=copy, n=native: arrowlog.spark.write(f, c, native=n)  # noqa: E731
        while_killing(app, stops, work)
        found[f"write {name}"] = stored(copy) == list(range(ROWS))
        stops = Stops(f"{folder}/twice-{name}")
        copy = f"{folder}/twice-copy-{name}"
        frame = stops.straggler(spark.range(0, ROWS, 1, 4))
        arrowlog.spark.write(frame, copy, native=native)
        found[f"speculated {name}"] = stored(copy) == list(range(ROWS)) and stops.passed("second")
    return found


def overwrites(spark, folder):
    """A table is overwritten in three ways; an executor is killed each time.

    Every way fails once, because a task fails after that, and succeeds once.
    """
    app = spark.sparkContext.applicationId
    place = f"{folder}/table"
    arrowlog.spark.write(spark.range(0, ROWS, 1, 4), place, native=True)
    table = arrowlog.Table(place)
    arrowlog.spark.sql(spark, f"CREATE TABLE events USING arrowlog LOCATION '{place}'")
    insert = "INSERT OVERWRITE {} SELECT id FROM {{rows}}"
    ways = {
        "path": lambda rows: arrowlog.spark.sql(
            spark, insert.format(f"arrowlog.`{place}`"), rows=rows
        ),
        "catalog": lambda rows: arrowlog.spark.sql(spark, insert.format("events"), rows=rows),
        "workers": lambda rows: arrowlog.spark.write(rows, place, "overwrite", native=False),
    }
    found = {}
    for number, (name, overwrite) in enumerate(ways.items(), 1):
        version, before = table.refresh().version, stored(place)
        rows = spark.range(number * ROWS, (number + 1) * ROWS, 1, 4)
        stops = Stops(f"{folder}/fails-{name}")
        broken = stops.kill_point(rows, fails=True)
        said = while_killing(app, stops, lambda o=overwrite, b=broken: failure(o, b))
        found[f"{name} fails"] = "the task fails" in said
        kept = stored(place) == before == collect(arrowlog.spark.read(spark, place, native=True))
        found[f"{name} keeps rows"] = kept and table.refresh().version == version
        stops = Stops(f"{folder}/succeeds-{name}")
        whole = stops.kill_point(rows)
        while_killing(app, stops, lambda o=overwrite, w=whole: o(w))
        expected = list(range(number * ROWS, (number + 1) * ROWS))
        replaced = stored(place) == expected == collect(arrowlog.spark.read(spark, place))
        found[name] = replaced and table.refresh().version == version + 1
    return found


def failure(work, frame):
    try:
        work(frame)
    except Exception as error:  # noqa: BLE001 -- Spark raises several types
        return str(error)
    return ""


def collect(frame):
    return sorted(row["id"] for row in frame.collect())


def stored(table):
    return sorted(arrowlog.Table(table).to_arrow()["id"].to_pylist())


def while_killing(app, stops, work):
    """Do work, and kill an executor as soon as rows have passed; the work waits for that."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        wait_until(lambda: stops.passed("started") or result.done(), "the first rows")
        kill_executor(app)
        stops.pass_("killed")
        return result.result()


class Stops:
    """Points in the work of tasks, marked by files: tasks and the driver share a disk."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)

    def passed(self, name):
        return os.path.exists(f"{self.folder}/{name}")

    def pass_(self, name):
        Path(self.folder, name).touch()

    def kill_point(self, frame, *, fails=False):
        """The rows, which wait in the middle of a task until an executor has been killed.

        With `fails`, every task fails after that.
        """
        folder = self.folder

        def wait_for_kill(batches):
            for batch in batches:
                yield batch
                open(f"{folder}/started", "wb").close()
                stop = time.monotonic() + WAIT_SECONDS
                while not os.path.exists(f"{folder}/killed") and time.monotonic() < stop:
                    time.sleep(0.02)
            if fails:
                raise ValueError("the task fails")

        return frame.mapInArrow(wait_for_kill, frame.schema)

    def straggler(self, frame):
        """The rows, of which one task waits until another attempt of it has begun."""
        folder = self.folder

        def wait_for_twin(batches):
            from pyspark import TaskContext

            context = TaskContext.get()
            first = True
            if context.partitionId() == 0:
                try:
                    os.mkdir(f"{folder}/first")
                except FileExistsError:
                    first = False
                    open(f"{folder}/second", "wb").close()
            for batch in batches:
                yield batch
                stop = time.monotonic() + WAIT_SECONDS
                waits = first and context.partitionId() == 0
                while waits and not os.path.exists(f"{folder}/second") and time.monotonic() < stop:
                    time.sleep(0.02)

        return frame.mapInArrow(wait_for_twin, frame.schema)


def outcome(job, spark, folder):
    """What a job found, or the error that ended it: the others run all the same."""
    try:
        return job(spark, make_folder(folder))
    except Exception:  # noqa: BLE001 -- for the test to show
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    session = arrowlog.spark.session("cluster", **json.loads(sys.argv[1]))
    found = {}
    usual, without_packages = session.sparkContext.pythonExec, sys.argv[3]
    # `bare_ship` leaves arrowlog on the executors. Spark deletes what a Connect session sent when
    # that ends, and executors that start later fail to fetch it: `connected` is the last one.
    for job in (bare, shipped, killed, bare_ship, connected):
        session.sparkContext.pythonExec = without_packages if job in (bare, bare_ship) else usual
        found[job.__name__] = outcome(job, session, f"{sys.argv[2]}/{job.__name__}")
    print(json.dumps(found))
    session.stop()

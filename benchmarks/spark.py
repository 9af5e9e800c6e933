"""Spark with and without arrowlog: the same files, in one session, alternating.

Planning ends when Spark knows its tasks. It is measured once, since with its defaults Spark takes
long: it lists every path in a task of its own. The answers must be equal. Memory is not reported,
since it is that of Java.
"""

import importlib.util
import os
import shutil
import time

from benchmarks.figures import Figure
from benchmarks.fresh import check_answers, progress

FULL = {"files": 10_000, "selective": 2_000, "scanned": 20, "rows": 500_000, "rounds": 5}
QUICK = {"files": 500, "selective": 200, "scanned": 4, "rows": 50_000, "rounds": 2}
_DAYS = 50


def labels(size):
    """The shapes of the figures for tables of a size, by case."""
    rows = size["scanned"] * size["rows"]
    return {
        "plan": f"plan {size['files']:,} files",
        "lists": f"the same, Spark lists by {os.cpu_count()} tasks",
        "selective": f"one row of {size['selective']:,} files, end to end",
        "count": f"{rows:,} rows: count",
        "sum": f"{rows:,} rows: sum of one column",
        "all": f"{rows:,} rows: all columns",
        "write": f"write {rows // 4:,} rows",
    }


def _built(folder, name, build):
    """The folder of a table; builds it if it does not exist completely."""
    root = os.path.join(folder, name)
    if not os.path.isdir(root):
        progress(f"building the table {name}")
        shutil.rmtree(f"{root}.part", ignore_errors=True)
        build(f"{root}.part")
        os.rename(f"{root}.part", root)
    return root


def _small(root, count):
    """Build a table of many small files, each with a range of ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import arrowlog.table

    schema = pa.schema([("day", pa.string()), ("id", pa.int64()), ("value", pa.float64())])
    table = arrowlog.Table.create(root, schema, partition_columns=["day"])
    adds = []
    for number in range(count):
        ids = pa.array(range(number * 10, number * 10 + 10), pa.int64())
        day = f"d{number * _DAYS // count:03d}"
        path = f"day={day}/part-{number:05d}.parquet"
        os.makedirs(f"{root}/day={day}", exist_ok=True)
        pq.write_table(pa.table({"id": ids, "value": pa.array([0.5] * 10)}), f"{root}/{path}")
        low, high = {"id": number * 10}, {"id": number * 10 + 9}
        adds.append(
            arrowlog.add_file(path, {"day": day}, num_records=10, min_values=low, max_values=high)
        )
    table.append(adds)


def _large(root, files, rows):
    """Build a table of few large files with ten columns."""
    import numpy as np
    import pyarrow as pa

    import arrowlog.table

    names = [("id", pa.int64()), *((f"n{i}", pa.int64()) for i in range(4))]
    names += [*((f"d{i}", pa.decimal128(12, 2)) for i in range(2)), ("s0", pa.string())]
    names += [("s1", pa.string()), ("flag", pa.bool_())]
    table = arrowlog.Table.create(root, pa.schema(names))
    rng = np.random.default_rng(7)
    for number in range(files):
        columns = {"id": pa.array(np.arange(rows) + number * rows)}
        for i in range(4):
            columns[f"n{i}"] = pa.array(rng.integers(0, 10**6, rows))
        for i in range(2):
            whole = pa.array(rng.integers(0, 10**6, rows)).cast(pa.decimal128(19, 0))
            columns[f"d{i}"] = whole.cast(pa.decimal128(12, 2), safe=False)
        columns["s0"] = pa.array(np.char.add("name ", rng.integers(0, 999, rows).astype(str)))
        columns["s1"] = pa.array(np.char.add("k", rng.integers(0, 10**6, rows).astype(str)))
        columns["flag"] = pa.array(rng.integers(0, 2, rows).astype(bool))
        table.write(pa.table(columns), target_size="4GB")


def _small_in(folder, count):
    return _built(folder, f"spark-{count}", lambda root: _small(root, count))


def _large_in(folder, size):
    files, rows = size["scanned"], size["rows"]
    return _built(folder, f"spark-{files}x{rows}", lambda root: _large(root, files, rows))


def _tasks(frame):
    """The number of tasks that Spark plans for a frame."""
    return frame._jdf.queryExecution().toRdd().getNumPartitions()  # noqa: SLF001


def _in_turn(shape, rounds, jobs, *, warm=True):
    """A row: the jobs alternate; with `warm`, the first round is not counted."""
    runs = {name: [] for name in jobs}
    answers = {name: [] for name in jobs}
    for number in range(0 if warm else 1, rounds + 1):
        progress(f"spark, {shape}: round {number} of {rounds}")
        for name, job in jobs.items():
            started = time.perf_counter()
            answers[name].append(job())
            if number:
                runs[name].append((time.perf_counter() - started) * 1000)
    progress("")
    check_answers(f"spark, {shape}", answers)
    return [Figure("spark", shape, name, tuple(times)) for name, times in runs.items()]


def run(setting):
    """The job `spark`: all cases in one session; nothing if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        return
    import arrowlog.table

    size = QUICK if setting.quick else FULL
    rounds = setting.few(size["rounds"])
    progress("spark: starting")
    spark = arrowlog.spark.session("benchmarks", **{"spark.driver.memory": "3g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield from _planning(spark, setting.folder, size)
        yield from _selective(spark, setting.folder, size, rounds)
        yield from _scans(spark, setting.folder, size, rounds)
        yield from _writes(spark, setting.folder, size, rounds)
    finally:
        spark.stop()


def _planning(spark, folder, size):
    """Plan all files, with Spark's default parallelism of listing and with one task per core."""
    import arrowlog.table

    root = _small_in(folder, size["files"])
    whole = arrowlog.spark.read(spark, root)
    schema, table = whole.drop("day").schema, arrowlog.Table(root)
    _tasks(whole)  # compiles the code of the session

    def ours():
        return len(table.scan().paths) and bool(_tasks(arrowlog.spark.read(spark, root)))

    def theirs():
        paths = [f"{root}/{path}" for path in table.scan().paths]
        return bool(_tasks(spark.read.schema(schema).parquet(*paths)))

    jobs = {"arrowlog": ours, "spark": theirs}
    yield _in_turn(labels(size)["plan"], 1, jobs, warm=False)
    name = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    spark.conf.set(name, str(os.cpu_count()))
    yield _in_turn(labels(size)["lists"], 1, jobs, warm=False)
    spark.conf.unset(name)


def _selective(spark, folder, size, rounds):
    import arrowlog.table

    root = _small_in(folder, size["selective"])
    where = f"id = {size['selective'] * 5 + 3}"
    jobs = {
        "arrowlog": lambda: arrowlog.spark.read(spark, root).filter(where).count(),
        "spark": lambda: spark.read.parquet(root).filter(where).count(),
    }
    yield _in_turn(labels(size)["selective"], rounds, jobs)


def _scans(spark, folder, size, rounds):
    import arrowlog.table

    root = _large_in(folder, size)
    paths = [f"{root}/{path}" for path in arrowlog.Table(root).scan().paths]
    ours, theirs = arrowlog.spark.read(spark, root), spark.read.parquet(*paths)

    def everything(frame):
        frame.write.format("noop").mode("overwrite").save()
        return 0

    for name, job in (
        ("count", lambda frame: frame.count()),
        ("sum", lambda frame: frame.agg({"n0": "sum"}).collect()[0][0]),
        ("all", everything),
    ):
        jobs = {"arrowlog": lambda job=job: job(ours), "spark": lambda job=job: job(theirs)}
        yield _in_turn(labels(size)[name], rounds, jobs)


def _writes(spark, folder, size, rounds):
    import arrowlog.table

    root = _large_in(folder, size)
    frame = spark.read.parquet(
        *(f"{root}/{path}" for path in arrowlog.Table(root).scan().paths[: size["scanned"] // 4])
    )
    out = os.path.join(folder, "spark-written")

    def ours():
        shutil.rmtree(out, ignore_errors=True)
        arrowlog.spark.write(frame, out)
        return 0

    def theirs():
        shutil.rmtree(out, ignore_errors=True)
        frame.write.parquet(out)
        return 0

    yield _in_turn(labels(size)["write"], rounds, {"arrowlog": ours, "spark": theirs})

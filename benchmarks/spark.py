"""Spark with arrowlog beside Spark without: the same files, one session, in turn.

Planning ends when Spark knows its tasks. What is compared must give the same answer.
"""

import os
import shutil
import statistics
import time

import pyarrow as pa
import pyarrow.parquet as pq

FILES, SELECTIVE, SCANNED, ROWS = 10_000, 2_000, 20, 500_000
QUICK = {"files": 2_000, "selective": 500, "scanned": 4, "rows": 100_000}
_DAYS = 50


def _small(folder, count):
    """A table of many small files: ids of a file lie together."""
    import arrowlog

    root = os.path.join(folder, f"spark-{count}")
    if os.path.isdir(root):
        return root
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
    return root


def _large(folder, files, rows):
    """A table of few large files with ten columns."""
    import numpy as np

    import arrowlog

    root = os.path.join(folder, f"spark-{files}x{rows}")
    if os.path.isdir(root):
        return root
    names = [("id", pa.int64()), *((f"n{i}", pa.int64()) for i in range(4))]
    names += [*((f"d{i}", pa.decimal128(12, 2)) for i in range(2)), ("s0", pa.string())]
    names += [("s1", pa.string()), ("flag", pa.bool_())]
    table = arrowlog.Table.create(root, pa.schema(names))
    chance = np.random.default_rng(7)
    for number in range(files):
        columns = {"id": pa.array(np.arange(rows) + number * rows)}
        for i in range(4):
            columns[f"n{i}"] = pa.array(chance.integers(0, 10**6, rows))
        for i in range(2):
            whole = pa.array(chance.integers(0, 10**6, rows)).cast(pa.decimal128(19, 0))
            columns[f"d{i}"] = whole.cast(pa.decimal128(12, 2), safe=False)
        columns["s0"] = pa.array(np.char.add("name ", chance.integers(0, 999, rows).astype(str)))
        columns["s1"] = pa.array(np.char.add("k", chance.integers(0, 10**6, rows).astype(str)))
        columns["flag"] = pa.array(chance.integers(0, 2, rows).astype(bool))
        table.write(pa.table(columns), target_size="4GB")
    return root


def _tasks(frame):
    return frame._jdf.queryExecution().toRdd().getNumPartitions()  # noqa: SLF001


def _in_turn(rounds, **jobs):
    """Seconds of each job, in turn, after one round that does not count."""
    spent = {name: [] for name in jobs}
    answers = set()
    for round_ in range(rounds + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            answers.add(job())
            if round_:
                spent[name].append(time.perf_counter() - started)
    if len(answers) != 1:
        raise SystemExit(f"the answers differ: {answers}")
    return {name: statistics.median(times) for name, times in spent.items()}


def _show(title, found, goal):
    ours, theirs = found["arrowlog"], found["spark"]
    print(
        f"{title:<40}{ours * 1000:>11.0f}{theirs * 1000:>11.0f}{theirs / ours:>9.2f}x   {goal}",
        flush=True,
    )


def run(folder, rounds, *, quick):
    """All cases; the figures by name."""
    import arrowlog

    size = (
        QUICK
        if quick
        else {"files": FILES, "selective": SELECTIVE, "scanned": SCANNED, "rows": ROWS}
    )
    os.makedirs(folder, exist_ok=True)
    spark = arrowlog.spark.session("benchmarks", **{"spark.driver.memory": "3g"})
    print(f"{'ms, one session, in turn':<40}{'arrowlog':>11}{'spark':>11}{'ratio':>10}   goal")
    figures = {}
    for title, goal, found in (
        *_planning(spark, folder, size["files"]),
        *_selective(spark, folder, size["selective"], rounds),
        *_scans(spark, folder, size, rounds),
        *_writes(spark, folder, size, rounds),
    ):
        figures[title] = found
        _show(title, found, goal)
    spark.stop()
    return figures


def _planning(spark, folder, count):
    """Against Spark's defaults, which list every path in a task of its own: once is enough."""
    import arrowlog

    root = _small(folder, count)
    whole = arrowlog.spark.read(spark, root)
    schema, table = whole.drop("day").schema, arrowlog.Table(root)
    _tasks(whole)  # compiled, once a session

    def ours():
        return len(table.scan().paths) and bool(_tasks(arrowlog.spark.read(spark, root)))

    def theirs():
        paths = [f"{root}/{path}" for path in table.scan().paths]
        return bool(_tasks(spark.read.schema(schema).parquet(*paths)))

    found = _once(arrowlog=ours, spark=theirs)
    yield f"plan {count:,} files, Spark's defaults", "10x", found
    name = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    spark.conf.set(name, str(os.cpu_count()))
    yield (
        f"plan {count:,} files, {os.cpu_count()} listing tasks",
        "",
        _once(arrowlog=ours, spark=theirs),
    )
    spark.conf.unset(name)


def _once(**jobs):
    found = {}
    for name, job in jobs.items():
        started = time.perf_counter()
        job()
        found[name] = time.perf_counter() - started
    return found


def _selective(spark, folder, count, rounds):
    import arrowlog

    root = _small(folder, count)
    where = f"id = {count * 5 + 3}"
    found = _in_turn(
        min(rounds, 3),
        arrowlog=lambda: arrowlog.spark.read(spark, root).filter(where).count(),
        spark=lambda: spark.read.parquet(root).filter(where).count(),
    )
    yield f"one row of {count:,} files, end to end", "5x", found


def _scans(spark, folder, size, rounds):
    import arrowlog

    root = _large(folder, size["scanned"], size["rows"])
    paths = [f"{root}/{path}" for path in arrowlog.Table(root).scan().paths]
    ours, theirs = arrowlog.spark.read(spark, root), spark.read.parquet(*paths)

    def everything(frame):
        frame.write.format("noop").mode("overwrite").save()
        return 0

    for title, job in (
        ("count", lambda frame: frame.count()),
        ("sum of one column", lambda frame: frame.agg({"n0": "sum"}).collect()[0][0]),
        ("all columns", everything),
    ):
        found = _in_turn(
            rounds, arrowlog=lambda job=job: job(ours), spark=lambda job=job: job(theirs)
        )
        yield f"scan: {title}", "0.95x", found


def _writes(spark, folder, size, rounds):
    import arrowlog

    root = _large(folder, size["scanned"], size["rows"])
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

    yield "write", "0.87x", _in_turn(min(rounds, 5), arrowlog=ours, spark=theirs)

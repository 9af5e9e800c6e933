"""A log that is larger than its driver's memory: in process and on Spark, under the same cap.

python -m benchmarks.beyond --files 4000000 --cap 800

The driver is a Python process whose memory is limited to CAP megabytes. Java and the workers are
started before the cap is set and are not limited, since on a cluster they run elsewhere.
"""

import argparse
import json
import os
import shutil
import sys

import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks import capped

ADDS = 20_000  # per commit
# Every 10th file of a commit is removed by the next commit; every 20th is added again by the one
# after that.
REMOVED, BACK = 10, 20
_START = 1_700_000_000_000
_KINDS = {"date": "date", "id": "long", "ts": "timestamp", "value": "double", "name": "string"}
_FIELDS = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in _KINDS.items()]
OPENING = (
    {"protocol": {"minReaderVersion": 2, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "00000000-0000-4000-8000-000000000005",
            "format": {"provider": "indextables", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": _FIELDS}),
            "partitionColumns": ["date"],
            "configuration": {},
            "createdTime": _START,
        }
    },
)


def build(folder, files, adds=ADDS):
    """Build a log of commits that add, remove and add again, without a checkpoint."""
    root = place(folder, files, adds)
    log = os.path.join(root, "_transaction_log")
    if os.path.exists(os.path.join(root, "ready")):
        delete_checkpoints(root)
        return root
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(log)
    with open(os.path.join(log, f"{0:020d}.json"), "w") as out:
        out.write("".join(json.dumps(action) + "\n" for action in OPENING))
    before = last = None
    for version in range(1, -(-files // adds) + 1):
        first = (version - 1) * adds
        new = numbered(first, min(first + adds, files))
        gone = None if last is None else last.gather_every(REMOVED)
        back = None if before is None else before.gather_every(BACK)
        with open(os.path.join(log, f"{version:020d}.json"), "wb") as out:
            out.write(text(version, new, gone, back))
        before, last = last, new
    with open(os.path.join(root, "ready"), "w") as out:
        out.write("whole")
    return root


def place(folder, files, adds=ADDS):
    """The folder of the table that `build` makes."""
    return os.path.join(folder, f"beyond-{files}x{adds}")


def live(files, adds=ADDS):
    """The number of live files of that table."""
    sizes = [min(adds, files - first) for first in range(0, files, adds)]
    gone = sum(-(-size // REMOVED) for size in sizes[:-1])
    return files - gone + sum(-(-size // BACK) for size in sizes[:-2])


def delete_checkpoints(root):
    """Delete the checkpoints of an earlier run, and their pointer."""
    log = os.path.join(root, "_transaction_log")
    shutil.rmtree(os.path.join(log, "_checkpoints"), ignore_errors=True)
    for name in os.listdir(log):
        if "checkpoint" in name:
            os.remove(os.path.join(log, name))


def numbered(first, stop):
    """A frame of the files `first` to `stop`: number, id, day and path."""
    number = pl.int_range(first, stop, eager=True).alias("n")
    day = (pl.datetime(2024, 1, 1) + pl.duration(days=pl.col("n") // 977 % 365)).dt.date()
    frame = pl.DataFrame({"n": number, "id": hexes(first, stop - first)})
    frame = frame.with_columns(day=day.cast(pl.String))
    path = pl.format("date={}/part-{}-{}.parquet", "day", "n", "id")
    return frame.with_columns(path=path)


def hexes(seed, count):
    """Random strings of 32 hexadecimal digits."""
    digits = np.random.default_rng(seed).bytes(16 * count).hex().encode()
    offsets = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pl.Series(pl.from_arrow(pa.Array.from_buffers(pa.string(), count, buffers)))


_ADD = (
    '{"add":{"path":"{}","partitionValues":{"date":"{}"},"size":{},"modificationTime":{},'
    '"dataChange":true,"stats":"{\\"nullCount\\":{\\"id\\":0,\\"ts\\":0,\\"value\\":{},'
    '\\"name\\":0}}","minValues":{"id":"{}","ts":"{}T00:00:{}.000Z","value":"0.{}",'
    '"name":"aa{}"},"maxValues":{"id":"{}","ts":"{}T23:00:{}.000Z","value":"1.{}",'
    '"name":"zz{}"},"numRecords":{}}}'
)
_REMOVE = '{"remove":{"path":"{}","deletionTimestamp":{},"dataChange":true}}'
_INFO = (
    '{"commitInfo":{"timestamp":%d,"operation":"WRITE","operationParameters":{},'
    '"engineInfo":"benchmark","txnId":"00000000-0000-0000-0000-%012d"}}'
)


def text(version, new, gone, back):
    """The content of a commit file."""
    lines = [_INFO % (_START + version * 1000, version)]
    if gone is not None:
        moment = pl.lit(_START + version * 1000)
        lines += _filled(gone, _REMOVE, pl.col("path"), moment)
    lines += _adds(new, 0)
    if back is not None:
        lines += _adds(back, 7)
    return ("\n".join(lines) + "\n").encode()


def _adds(frame, more):
    """The lines of adds; `more` is added to the sizes."""
    n, day = pl.col("n"), pl.col("day")
    second = (n % 60).cast(pl.String).str.zfill(2)
    six = (n * 7919 % 1_000_000).cast(pl.String).str.zfill(6)
    name = n.cast(pl.String).str.zfill(9)
    low = (n * 1000, day, second, six, name)
    high = (n * 1000 + 999, day, second, six, name)
    head = (pl.col("path"), day, n % 999 + 1_000_000 + more, n + _START, n % 3)
    return _filled(frame, _ADD, *head, *low, *high, n % 200 + 900)


def _filled(frame, template, *values):
    """The template for every row, with each `{}` replaced by a value; other braces stay."""
    pieces = template.split("{}")
    parts = [pl.lit(pieces[0])]
    for value, piece in zip(values, pieces[1:], strict=True):
        parts += [value.cast(pl.String), pl.lit(piece)]
    return frame.select(pl.concat_str(parts)).to_series().to_list()


# Jobs of the capped process: `python -m benchmarks.beyond --way WAY --root ROOT`.


WHERE = "date = '2024-03-05' AND id BETWEEN 1000000 AND 400000000"


def _process_files(root):
    import arrowlog.table

    return lambda: arrowlog.Table(root).snapshot().files.num_rows


def _process_checkpoint(root):
    import arrowlog.table

    return lambda: arrowlog.Table(root).checkpoint().num_files


def _process_plan(root):
    import pyarrow.parquet  # noqa: F401 -- the import happens before the cap is set

    import arrowlog.table

    def job():
        plan = arrowlog.Table(root).scan(WHERE)
        assert plan.snapshot.report.checkpoint is not None
        return plan.num_files

    return job


def _cluster_checkpoint(root):
    import arrowlog.table

    spark = arrowlog.spark.session(
        "beyond", **{"spark.master": "local[2]", "spark.driver.memory": "3g"}
    )
    spark.range(1).mapInArrow(lambda batches: batches, "id long").count()  # starts the workers
    return lambda: arrowlog.spark.checkpoint(spark, root).num_files


WAYS = {
    "in process, all files": _process_files,
    "in process, checkpoint": _process_checkpoint,
    "Spark, checkpoint": _cluster_checkpoint,
    "in process, plan on it": _process_plan,
}


def drive(way, root):
    """Run one way in this process, after the parent has set the cap. Prints the outcome as JSON."""
    job = WAYS[way](root)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        answer = job()
    except Exception as error:  # noqa: BLE001 -- any error is an outcome
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    print(json.dumps({"answer": answer}))


def measured(way, root, cap=None):
    """Run one way in a capped process: the result of `capped.run`, with "answer" or "error"."""
    arguments = ["-m", "benchmarks.beyond", "--way", way, "--root", root]
    result = capped.run(arguments, cap)
    outcome = json.loads(result["output"]) if result["output"].startswith("{") else {}
    return result | {"way": way, "error": None, "answer": None} | outcome


def same_state(root):
    """Whether the checkpoint has the same files as the commits, row for row."""
    import arrowlog.table

    bare = f"{root}-bare"
    shutil.rmtree(bare, ignore_errors=True)
    os.makedirs(f"{bare}/_transaction_log")
    for name in os.listdir(f"{root}/_transaction_log"):
        if name[:20].isdigit() and name[20:] == ".json":
            os.link(f"{root}/_transaction_log/{name}", f"{bare}/_transaction_log/{name}")
    try:
        of_commits = arrowlog.Table(bare).snapshot()
        of_checkpoint = arrowlog.Table(root).snapshot()
        assert of_commits.report.checkpoint is None
        assert of_checkpoint.report.checkpoint == of_commits.version
        both = [
            pl.DataFrame(pl.from_arrow(each.files)).sort("path")
            for each in (of_commits, of_checkpoint)
        ]
        return bool(both[0].equals(both[1]))
    finally:
        shutil.rmtree(bare)


def _print(result):
    outcome = result["error"] or result["outcome"]
    if result["answer"] is not None:
        outcome = f"{result['answer']:,} files"
    print(
        f"{result['way']:<26}{result['seconds']:>9.1f}{result['driver']:>9.0f}{result['java']:>8.0f}"
        f"{result['workers']:>9.0f}  {outcome[:60]}",
        flush=True,
    )


def compare(folder, files, cap):
    """Run all ways on one log: {way: result}, and whether the state is the "same"."""
    root = build(folder, files)
    print(f"{files:,} adds, a driver of {cap} MB")
    print(f"{'':<26}{'seconds':>9}{'driver':>9}{'Java':>8}{'workers':>9}  peak MB; outcome")
    results = {}
    for way in WAYS:
        if way != "in process, plan on it":
            delete_checkpoints(root)
        results[way] = measured(way, root, cap)
        _print(results[way])
    results["same"] = same_state(root)
    print("the checkpoint has the same files as the commits:", results["same"])
    return results


FILES, CAP = 4_000_000, 600  # adds, megabytes


def run(folder, rounds, quick):  # noqa: ARG001 -- the signature of all jobs; one run is enough
    """The figures of all ways, with the outcomes as notes."""
    from benchmarks.figures import Figure

    results = compare(folder, FILES, CAP)
    if not results.pop("same"):
        raise SystemExit("the checkpoint made on Spark differs from the commits")
    shape = f"{FILES // 10**6} M adds, {CAP} MB"
    figures = []
    for way, result in results.items():
        # The name of the error: its message contains a path.
        note = (result["error"] or result["outcome"]).partition(":")[0]
        note = note if result["answer"] is None else f"{result['answer']:,} files"
        runs = (result["seconds"] * 1000,)
        title = f"{way}: {shape}"
        figures.append(Figure("beyond", title, "arrowlog", runs, result["driver"], note=note[:60]))
    return figures


def main():
    """Compare all ways, or run one of them in this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beyond",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--files", type=int, default=1_000_000, help="adds in the log")
    parser.add_argument(
        "--cap", type=int, default=800, help="memory limit of the driver in megabytes"
    )
    parser.add_argument("--folder", default=os.path.join(os.path.dirname(__file__), "out"))
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.way:
        drive(chosen.way, chosen.root)
    else:
        compare(chosen.folder, chosen.files, chosen.cap)


if __name__ == "__main__":
    main()

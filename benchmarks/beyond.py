"""A log that is too large for its driver: in process, and on Spark, under the same cap.

python -m benchmarks.beyond --files 4000000 --cap 800

The driver is a Python process that may have so many megabytes and no more. Java and its workers are
started before the cap is set and are outside of it, as on a cluster, where they are elsewhere.
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

ADDS = 20_000  # of a commit
REMOVED, BACK = 10, 20  # each so-manieth file of a commit is removed by the next, or comes back
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
    """Commits that add, remove and add again, without a checkpoint, unless they are there."""
    root = place(folder, files, adds)
    log = os.path.join(root, "_transaction_log")
    if os.path.exists(os.path.join(root, "ready")):
        forget(root)
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
    """Where `build` makes its table."""
    return os.path.join(folder, f"beyond-{files}x{adds}")


def live(files, adds=ADDS):
    """How many files the log of `build` leaves."""
    sizes = [min(adds, files - first) for first in range(0, files, adds)]
    gone = sum(-(-size // REMOVED) for size in sizes[:-1])
    return files - gone + sum(-(-size // BACK) for size in sizes[:-2])


def forget(root):
    """Take away what an earlier run has made: checkpoints and their pointer."""
    log = os.path.join(root, "_transaction_log")
    shutil.rmtree(os.path.join(log, "_checkpoints"), ignore_errors=True)
    for name in os.listdir(log):
        if "checkpoint" in name:
            os.remove(os.path.join(log, name))


def numbered(first, stop):
    """Files by number, with what is in their paths."""
    number = pl.int_range(first, stop, eager=True).alias("n")
    day = (pl.datetime(2024, 1, 1) + pl.duration(days=pl.col("n") // 977 % 365)).dt.date()
    frame = pl.DataFrame({"n": number, "id": hexes(first, stop - first)})
    frame = frame.with_columns(day=day.cast(pl.String))
    path = pl.format("date={}/part-{}-{}.parquet", "day", "n", "id")
    return frame.with_columns(path=path)


def hexes(seed, count):
    """So many texts of 32 hex digits."""
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
    """A commit as it is on disk."""
    lines = [_INFO % (_START + version * 1000, version)]
    if gone is not None:
        moment = pl.lit(_START + version * 1000)
        lines += _filled(gone, _REMOVE, pl.col("path"), moment)
    lines += _adds(new, 0)
    if back is not None:
        lines += _adds(back, 7)
    return ("\n".join(lines) + "\n").encode()


def _adds(frame, more):
    n, day = pl.col("n"), pl.col("day")
    second = (n % 60).cast(pl.String).str.zfill(2)
    six = (n * 7919 % 1_000_000).cast(pl.String).str.zfill(6)
    name = n.cast(pl.String).str.zfill(9)
    low = (n * 1000, day, second, six, name)
    high = (n * 1000 + 999, day, second, six, name)
    head = (pl.col("path"), day, n % 999 + 1_000_000 + more, n + _START, n % 3)
    return _filled(frame, _ADD, *head, *low, *high, n % 200 + 900)


def _filled(frame, form, *values):
    """The form filled in for every row; a brace in it that stays is none of a pair `{}`."""
    pieces = form.split("{}")
    parts = [pl.lit(pieces[0])]
    for value, piece in zip(values, pieces[1:], strict=True):
        parts += [value.cast(pl.String), pl.lit(piece)]
    return frame.select(pl.concat_str(parts)).to_series().to_list()


# What the capped process does: `python -m benchmarks.beyond --way WAY --root ROOT`.


WHERE = "date = '2024-03-05' AND id BETWEEN 1000000 AND 400000000"


def _process_files(root):
    import arrowlog.table

    return lambda: arrowlog.Table(root).snapshot().files.num_rows


def _process_checkpoint(root):
    import arrowlog.table

    return lambda: arrowlog.Table(root).checkpoint().num_files


def _process_plan(root):
    import pyarrow.parquet  # noqa: F401 -- imports are outside the cap, on every way

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
    spark.range(1).mapInArrow(lambda batches: batches, "id long").count()  # workers are there
    return lambda: arrowlog.spark.checkpoint(spark, root).num_files


WAYS = {
    "in process, all files": _process_files,
    "in process, checkpoint": _process_checkpoint,
    "Spark, checkpoint": _cluster_checkpoint,
    "in process, plan on it": _process_plan,
}


def drive(way, root):
    """One way in this process, once the cap is set."""
    job = WAYS[way](root)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        answer = job()
    except Exception as error:  # noqa: BLE001 -- what a user would see
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return
    print(json.dumps({"answer": answer}))


def measured(way, root, cap=None):
    """What came of a way, and what it took."""
    arguments = ["-m", "benchmarks.beyond", "--way", way, "--root", root]
    found = capped.run(arguments, cap)
    said = json.loads(found["said"]) if found["said"].startswith("{") else {}
    return found | {"way": way, "error": None, "answer": None} | said


def same_state(root):
    """Whether the checkpoint says what the commits say, row for row, in this process."""
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


def _show(found):
    outcome = found["error"] or found["outcome"]
    if found["answer"] is not None:
        outcome = f"{found['answer']:,} files"
    print(
        f"{found['way']:<26}{found['seconds']:>9.1f}{found['driver']:>9.0f}{found['java']:>8.0f}"
        f"{found['workers']:>9.0f}  {outcome[:60]}",
        flush=True,
    )


def compare(folder, files, cap):
    """All ways on one log, the state at last."""
    root = build(folder, files)
    print(f"{files:,} adds, a driver of {cap} MB")
    print(f"{'':<26}{'seconds':>9}{'driver':>9}{'Java':>8}{'workers':>9}  MB at most; outcome")
    figures = {}
    for way in WAYS:
        if way != "in process, plan on it":
            forget(root)
        found = figures[way] = measured(way, root, cap)
        _show(found)
    figures["same"] = same_state(root)
    print("the checkpoint's files are those of the commits, row for row:", figures["same"])
    return figures


FILES, CAP = 4_000_000, 600  # adds, megabytes of the driver


def run(folder, rounds, quick):  # noqa: ARG001 -- as every job of the harness; once is enough
    """A figure for each way: what it took, and in its note what came of it."""
    from benchmarks.figures import Figure

    found = compare(folder, FILES, CAP)
    if not found.pop("same"):
        raise SystemExit("the checkpoint made on Spark differs from the commits")
    shape = f"{FILES // 10**6} M adds, {CAP} MB"
    figures = []
    for way, one in found.items():
        note = (one["error"] or one["outcome"]).partition(":")[0]  # not where it is
        note = note if one["answer"] is None else f"{one['answer']:,} files"
        spent = (one["seconds"] * 1000,)
        title = f"{way}: {shape}"
        figures.append(Figure("beyond", title, "arrowlog", spent, one["driver"], note=note[:60]))
    return figures


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beyond",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--files", type=int, default=1_000_000, help="adds in the log")
    parser.add_argument("--cap", type=int, default=800, help="megabytes of the driver")
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

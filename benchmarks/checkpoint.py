"""Checkpoints: make one of a large table, plan from it, list all of it; deltalake on its own one.

The table has a checkpoint and then 50 commits of 10 files. Every process measures one case; imports
are not measured. `cpu` is the processor time of all threads, which a busy machine disturbs less.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

from benchmarks import tables

SHAPES = {"1,000,000 files": (50, 20_000)}
QUICK = {"100,000 files": (25, 4000)}
LARGE = {"10,000,000 files": (500, 20_000)}
TRAILING, TRAILING_ADDS = 50, 10
DAY, LOW, HIGH = "2024-03-05", 1_000_000, 40_000_000
CASES = {
    "selective plan, cold": ("ours_plan", "theirs_plan"),
    "all active files, cold": ("ours_files", "theirs_files"),
    "make the checkpoint": ("ours_create", "theirs_create"),
}
LOGS = {"ours": ("_transaction_log", False), "theirs": ("_delta_log", True)}


def _timed(job):
    cpu, started = time.process_time(), time.perf_counter()
    answer = job()
    spent = (time.perf_counter() - started) * 1000
    return {"ms": spent, "cpu": (time.process_time() - cpu) * 1000, "answer": answer}


def ours_plan(root):
    import arrowlog

    where = f"date = '{DAY}' AND id BETWEEN {LOW} AND {HIGH}"
    return _timed(lambda: len(arrowlog.Table(root).scan(where).paths))


def theirs_plan(root):
    """All actions, filtered: its own datasets take minutes and gigabytes for so many files."""
    import deltalake
    import polars as pl

    day = pl.col("partition.date") == pl.lit(DAY).str.to_date()
    wanted = day & (pl.col("max.id") >= LOW) & (pl.col("min.id") <= HIGH)

    def job():
        actions = deltalake.DeltaTable(root).get_add_actions(flatten=True)
        return len(pl.DataFrame(actions).filter(wanted)["path"].to_list())

    return _timed(job)


def ours_files(root):
    import arrowlog

    return _timed(lambda: arrowlog.Table(root).snapshot().files.num_rows)


def theirs_files(root):
    import deltalake

    return _timed(lambda: deltalake.DeltaTable(root).get_add_actions(flatten=True).num_rows)


def ours_create(root):
    import arrowlog
    from arrowlog.config import resolve
    from arrowlog.state.parquet import write_checkpoint

    table = arrowlog.Table(root)
    state = table.snapshot().state
    count = state.adds.num_rows
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    store = _Away(table._store)  # noqa: SLF001 -- what is measured is not kept
    found = _timed(
        lambda: write_checkpoint(store, state, resolve(), now_ms=1, new_id="0" * 12).num_files
    )
    assert found["answer"] == count
    return found | {"before": before, "bytes": store.bytes}


class _Away:
    """A store that writes to other names, so that the next round makes the checkpoint anew."""

    def __init__(self, store):
        self._store = store
        self.bytes = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put_new(self, key, data):
        self.bytes += len(data)
        self._store.delete([f"{key}.away"])
        outcome = self._store.put_new(f"{key}.away", data)
        self._store.delete([f"{key}.away"])
        return outcome


def theirs_create(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    count = table.get_add_actions().num_rows
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def job():
        table.create_checkpoint()
        return count

    found = _timed(job)
    log = os.path.join(root, "_delta_log")
    made = [name for name in os.listdir(log) if f"{table.version():020d}.checkpoint" in name]
    size = 0
    for name in made:
        size += os.path.getsize(os.path.join(log, name))
        os.remove(os.path.join(log, name))
    os.remove(os.path.join(log, "_last_checkpoint"))
    return found | {"before": before, "bytes": size}


def build(folder, commits, adds, who, *, trailing=True):
    """The table with a checkpoint and, after it, some commits; or without both."""
    name, delta = LOGS[who]
    source = tables.build(folder, commits, adds, delta=delta)
    root = os.path.join(folder, f"{who}-checkpoint-{commits}x{adds}-{int(trailing)}")
    if os.path.exists(os.path.join(root, "ready")):
        return root
    shutil.rmtree(root, ignore_errors=True)
    log = os.path.join(root, name)
    os.makedirs(log)
    for entry in os.listdir(os.path.join(source, name)):
        if entry.endswith(".json"):
            os.link(os.path.join(source, name, entry), os.path.join(log, entry))
    if trailing:  # elsewhere: a process passes its peak of memory on to those it starts
        command = [sys.executable, "-m", "benchmarks.checkpoint", root, who]
        subprocess.run(command, check=True)
        _commits(log, commits, adds, delta=delta)
    with open(os.path.join(root, "ready"), "w") as out:
        out.write("whole")
    return root


def _checkpoint(root, who):
    if who == "theirs":
        import deltalake

        deltalake.DeltaTable(root).create_checkpoint()
        return
    import arrowlog
    from arrowlog.config import resolve
    from arrowlog.state.parquet import write_checkpoint

    table = arrowlog.Table(root)
    state = table.snapshot().state
    write_checkpoint(table._store, state, resolve(), now_ms=1, new_id="0" * 12)  # noqa: SLF001


def _commits(log, commits, adds, *, delta):
    import random

    rng = random.Random(8)
    for number in range(TRAILING):
        first = commits * adds + number * TRAILING_ADDS
        lines = tables.commit(rng, commits + 1 + number, TRAILING_ADDS, delta=delta)[:1]
        lines += [{"add": tables.add(rng, first + i, delta=delta)} for i in range(TRAILING_ADDS)]
        tables.write(log, commits + 1 + number, lines)


def run_large(folder, rounds, *, measure):
    """The plan over ten times as many files, without a peer: it would take all the memory."""
    figures = {}
    for label, (commits, adds) in LARGE.items():
        root = build(folder, commits, adds, "ours")
        runs = [measure("ours_plan", root) for _ in range(rounds)]
        row = {key: statistics.median(run[key] for run in runs) for key in ("ms", "cpu", "mb")}
        figures[f"selective plan, cold, {label}"] = {"ours_plan": row}
        title = f"selective plan, cold, {label}"
        print(f"{title:<46}{row['ms']:>10.1f}{row['cpu']:>8.1f}{row['mb']:>6.0f}", end="")
        print(f"{runs[0]['answer']:>51,}", flush=True)
    return figures


def run(folder, rounds, *, quick, measure):
    """Print a line a case; returns the figures."""
    figures = {}
    print(f"{'checkpoints, fresh processes':<46}{'arrowlog':>10}{'cpu':>8}{'MB':>6}", end="")
    print(f"{'deltalake':>11}{'cpu':>8}{'MB':>6}{'ratio':>8}{'cpu':>8}{'files':>10}")
    for label, (commits, adds) in (QUICK if quick else SHAPES).items():
        for case, names in CASES.items():
            trailing = not case.startswith("make")
            roots = {
                who: build(folder, commits, adds, who, trailing=trailing)
                for who in ("ours", "theirs")
            }
            found = {name: [] for name in names}
            for _ in range(rounds):
                for name in names:
                    found[name].append(measure(name, roots[name.partition("_")[0]]))
            answers = {run["answer"] for runs in found.values() for run in runs}
            if len(answers) != 1:
                raise SystemExit(f"{case}: the answers differ: {found}")
            rows = [
                {key: statistics.median(run[key] for run in runs) for key in ("ms", "cpu", "mb")}
                for runs in found.values()
            ]
            figures[f"{case}, {label}"] = dict(zip(names, rows, strict=True))
            _show(f"{case}, {label}", *rows, answers.pop())
    return figures


def _show(title, ours, theirs, files):
    print(
        f"{title:<46}{ours['ms']:>10.1f}{ours['cpu']:>8.1f}{ours['mb']:>6.0f}"
        f"{theirs['ms']:>11.1f}{theirs['cpu']:>8.1f}{theirs['mb']:>6.0f}"
        f"{theirs['ms'] / ours['ms']:>7.1f}x{theirs['cpu'] / ours['cpu']:>7.1f}x{files:>10,}",
        flush=True,
    )


if __name__ == "__main__":
    _checkpoint(*sys.argv[1:3])

"""One measurement in a fresh process: `python -m benchmarks.measure CASE TABLE`; prints JSON.

Imports are done before the clock starts, except in the case `import`.
"""

import json
import os
import resource
import sys
import time


def arrowlog_open(root):
    import arrowlog

    def job():
        return arrowlog.Table(root).snapshot().files.num_rows

    return job


def delta_open(root):
    import deltalake

    def job():
        return deltalake.DeltaTable(root).get_add_actions(flatten=True).num_rows

    return job


def _next_commit(log):
    """Copy the last commit as a new one with other paths; returns the new file."""
    names = sorted(name for name in os.listdir(log) if name.endswith(".json"))
    with open(os.path.join(log, names[-1])) as source:
        text = source.read().replace("/part-", "/more-")
    path = os.path.join(log, f"{int(names[-1][:20]) + 1:020d}.json")
    with open(path, "w") as out:
        out.write(text)
    return path


def arrowlog_refresh(root):
    import arrowlog

    table = arrowlog.Table(root)
    table.snapshot().files  # noqa: B018 -- what was typed is followed on
    new = _next_commit(os.path.join(root, "_transaction_log"))

    def job():
        try:
            return table.refresh().files.num_rows
        finally:
            os.remove(new)

    return job


def delta_refresh(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    table.get_add_actions(flatten=True)
    new = _next_commit(os.path.join(root, "_delta_log"))

    def job():
        try:
            table.update_incremental()
            return table.get_add_actions(flatten=True).num_rows
        finally:
            os.remove(new)

    return job


def arrowlog_travel(root):
    import arrowlog

    middle = len(os.listdir(os.path.join(root, "_transaction_log"))) // 2

    def job():
        return arrowlog.Table(root).snapshot(version=middle).files.num_rows

    return job


def delta_travel(root):
    import deltalake

    middle = len(os.listdir(os.path.join(root, "_delta_log"))) // 2

    def job():
        return deltalake.DeltaTable(root, version=middle).get_add_actions(flatten=True).num_rows

    return job


def arrowlog_history(root):
    """Files and bytes per day by operation."""
    import duckdb  # noqa: F401 -- imports are not measured
    import pyarrow.dataset  # noqa: F401

    import arrowlog

    question = """
        SELECT timestamp::DATE AS day, operation, sum(adds) AS files, sum(bytes) AS bytes
        FROM commits WHERE operation IS NOT NULL GROUP BY ALL ORDER BY ALL
    """

    def job():
        rows = arrowlog.Table(root).sql(question).fetchall()
        return f"{len(rows)} {sum(row[2] for row in rows)} {sum(row[3] for row in rows)}"

    return job


def delta_history(root):
    """The same as far as it goes: its add actions do not say which commit they came with.

    So days and operations are counted from the history and files and bytes from the live adds, and
    the two are not brought together, which would take more.
    """
    import deltalake
    import polars as pl

    def job():
        table = deltalake.DeltaTable(root)
        told = [(h["timestamp"], h["operation"]) for h in table.history() if "operation" in h]
        commits = pl.DataFrame(told, schema=["ms", "operation"], orient="row")
        day = pl.from_epoch("ms", time_unit="ms").dt.date()
        groups = commits.group_by(day, "operation").len().height
        adds = pl.DataFrame(table.get_add_actions(flatten=True))
        return f"{groups} {adds.height} {adds['size_bytes'].sum()}"

    return job


def polars_import(_):
    def job():
        import polars  # noqa: F401

    return job


def arrowlog_import(_):
    import polars  # noqa: F401 -- what arrowlog adds to it is measured

    def job():
        import arrowlog  # noqa: F401

    return job


def main():
    case, root = sys.argv[1:3]
    if "_" in case:  # planning measures itself: one process asks many questions
        from benchmarks import checkpoint, plan

        found = getattr(checkpoint if hasattr(checkpoint, case) else plan, case)(root)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**found, "mb": memory}))
        return
    job = globals()[case.replace("-", "_")](root)
    started = time.perf_counter()
    answer = job()
    spent = (time.perf_counter() - started) * 1000
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"ms": spent, "mb": memory, "answer": answer}))


if __name__ == "__main__":
    main()

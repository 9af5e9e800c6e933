"""arrowlog (the module is not named after it, to keep the two apart)."""

import os

from benchmarks import queries, tables
from benchmarks.peers import warm

FEATURE = "parquetCheckpoint"  # required for checkpoints without a JSON form
FILES_JSON_MAX = 1_000_000  # larger checkpoints are written in Parquet only


def build(root, shape):
    large = shape.files > FILES_JSON_MAX
    kind = "parquet" if large else "both"

    def checkpoint(root):
        import arrowlog

        arrowlog.Table(root, options={"checkpoint.format": kind}).checkpoint()

    features = [FEATURE] if large else []
    tables.write_log(root, shape, checkpoint, delta=False, features=features)


def _table(root, **options):
    import arrowlog

    return arrowlog.Table(root, options=options or None)


def open(root):  # noqa: A001 -- the name of the case
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: _table(root).snapshot().files.num_rows


def only_open(root):
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: _table(root).snapshot().version


def cached(root, copies):
    """Open with a local copy of the last snapshot, which an earlier process wrote to `copies`."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: _table(root, **{"snapshotCache.path": copies}).snapshot().files.num_rows


def cached_plan(root, copies):
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    options = {"snapshotCache.path": copies}
    return lambda: len(_table(root, **options).scan(queries.sql(0)).paths)


def knows_cache():
    """Whether this version of arrowlog has the snapshot cache."""
    import dataclasses

    from arrowlog.config import Config

    keys = {item.metadata.get("key", "").lower() for item in dataclasses.fields(Config)}
    return any(key.endswith("snapshotcache.path") for key in keys)


def plan(root):
    """Open, and plan one day and two ranges."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: len(_table(root).scan(queries.sql(0)).paths)


def plan_range(root):
    """Open, and plan one range without a partition."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    low, high = queries.ids()
    return lambda: len(_table(root).scan(f"id BETWEEN {low} AND {high}").paths)


@warm
def warm_plan(root):
    table = _table(root)
    table.scan(queries.sql(99)).paths  # noqa: B018 -- warm
    return lambda number: len(table.scan(queries.sql(number)).paths)


@warm
def partition(root):
    """Plan one day of an open table."""
    table = _table(root)
    return lambda _: len(table.scan(f"date = '{queries.DAY}'").paths)


warm_dataset = warm_plan  # arrowlog has only one way
warm_uris = warm_plan


@warm
def predicates(root, count):
    """Plan many conjuncts on an open table."""
    table = _table(root)
    table.scan(queries.sql(99)).paths  # noqa: B018 -- warm

    def job(number):
        conjuncts = [
            f"{column} {'>=' if least else '<='} {bound}"
            for column, least, bound in queries.clauses(int(count), number)
        ]
        return len(table.scan(" AND ".join(conjuncts)).paths)

    return job


def refresh(root, news):
    """Refresh after one commit (`news` is "1") or none ("0")."""
    table = _table(root)
    table.snapshot().files  # noqa: B018 -- a refresh also updates the typed files
    with tables.news(os.path.join(root, "_transaction_log"), int(news)):
        yield lambda: table.refresh().files.num_rows


def travel(root, version):
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: _table(root).snapshot(version=int(version)).files.num_rows


def history(root):
    """Files and bytes per day by operation."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    def job():
        found = _table(root).history(by=["day", "operation"]).to_pylist()
        rows = [row for row in found if row["operation"] is not None]
        return [len(rows), sum(row["adds"] for row in rows), sum(row["bytes"] for row in rows)]

    return job


def history_sql(root):
    """The same question in SQL."""
    import duckdb  # noqa: F401 -- imports are not measured
    import pyarrow.dataset  # noqa: F401

    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    query = """
        SELECT timestamp::DATE AS day, operation, sum(adds) AS files, sum(bytes) AS bytes
        FROM commits WHERE operation IS NOT NULL GROUP BY ALL ORDER BY ALL
    """

    def job():
        rows = _table(root).sql(query).fetchall()
        return [len(rows), int(sum(row[2] for row in rows)), int(sum(row[3] for row in rows))]

    return job


def diff(root, a, b):
    import duckdb  # noqa: F401
    import pandas  # noqa: F401 -- pyarrow imports it when it compares with a plain value

    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    def job():
        changes = _table(root).diff(int(a), int(b))
        return [changes.added.num_rows, changes.removed.num_rows]

    return job


def create(root, kind):
    """Write a checkpoint of an open table, in a copy of the log; `kind` is `auto` or `both`."""
    with tables.copied(root) as copy:
        # No automatic checkpoint at the same time.
        options = {"checkpoint.format": kind, "checkpoint.enabled": False, "cleanup.enabled": False}
        table = _table(copy, **options)
        table.snapshot().state.adds  # noqa: B018 -- deltalake has read everything, too
        yield lambda: table.checkpoint().num_files


def create_cold(root):
    """Open a table and write a checkpoint, in a copy of the log."""
    with tables.copied(root) as copy:
        import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

        options = {"checkpoint.enabled": False, "cleanup.enabled": False}
        yield lambda: _table(copy, **options).checkpoint().num_files


def create_again(root):
    """Write the next checkpoint of a table that was just opened, in a copy of the log."""
    with tables.copied(root) as copy:
        options = {"checkpoint.enabled": False, "cleanup.enabled": False}
        table = _table(copy, **options)
        table.snapshot()
        yield lambda: table.checkpoint().num_files


def open_s3(uri, url):
    """All live files of a table on an S3 server at `url`."""
    import arrowlog
    from benchmarks.checkpoints import s3_options

    return lambda: arrowlog.Table(uri, s3_options(url)).snapshot().files.num_rows


def import_alone(_):
    def job():
        import arrowlog  # noqa: F401

    return job


def import_and_open(root):
    def job():
        import arrowlog

        return arrowlog.Table(root).version

    return job


def import_after_polars(_):
    import polars  # noqa: F401 -- only what arrowlog adds is measured

    return import_alone(_)


def import_polars(_):
    def job():
        import polars  # noqa: F401

    return job

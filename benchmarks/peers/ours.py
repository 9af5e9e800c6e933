"""arrowlog."""

import os

from benchmarks import questions, tables
from benchmarks.peers import warm

FEATURE = "parquetCheckpoint"  # readers have to be told, once in the life of a table
FILES_JSON_MAX = 1_000_000  # beyond that only the Parquet form of a checkpoint is written


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
    """With a local copy of the last snapshot, which an earlier process has left in `copies`."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: _table(root, **{"snapshotCache.path": copies}).snapshot().files.num_rows


def cached_plan(root, copies):
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    options = {"snapshotCache.path": copies}
    return lambda: len(_table(root, **options).scan(questions.sql(0)).paths)


def knows_cache():
    """Whether this version can keep such copies."""
    import dataclasses

    from arrowlog.config import Config

    keys = {item.metadata.get("key", "").lower() for item in dataclasses.fields(Config)}
    return any(key.endswith("snapshotcache.path") for key in keys)


def plan(root):
    """Cold: from nothing to the paths of one day and two ranges."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: len(_table(root).scan(questions.sql(0)).paths)


def plan_range(root):
    """Cold: from nothing to the paths of one range, whatever the day."""
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    low, high = questions.ids()
    return lambda: len(_table(root).scan(f"id BETWEEN {low} AND {high}").paths)


@warm
def warm_plan(root):
    table = _table(root)
    table.scan(questions.sql(99)).paths  # noqa: B018 -- warm
    return lambda number: len(table.scan(questions.sql(number)).paths)


@warm
def partition(root):
    """One day, of an open table."""
    table = _table(root)
    return lambda _: len(table.scan(f"date = '{questions.DAY}'").paths)


warm_dataset = warm_plan  # there is only one way here
warm_uris = warm_plan


@warm
def predicates(root, count):
    """Many predicates, of an open table."""
    table = _table(root)
    table.scan(questions.sql(99)).paths  # noqa: B018 -- warm

    def job(number):
        told = [
            f"{column} {'>=' if least else '<='} {bound}"
            for column, least, bound in questions.clauses(int(count), number)
        ]
        return len(table.scan(" AND ".join(told)).paths)

    return job


def refresh(root, news):
    """After one commit (`news` is "1"), or after none."""
    table = _table(root)
    table.snapshot().files  # noqa: B018 -- what was typed is followed on
    with tables.news(os.path.join(root, "_transaction_log"), int(news)):
        yield lambda: table.refresh().files.num_rows


def travel(root, version):
    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    return lambda: _table(root).snapshot(version=int(version)).files.num_rows


def history(root):
    """Files and bytes per day by operation."""
    import duckdb  # noqa: F401 -- imports are not measured
    import pyarrow.dataset  # noqa: F401

    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    question = """
        SELECT timestamp::DATE AS day, operation, sum(adds) AS files, sum(bytes) AS bytes
        FROM commits WHERE operation IS NOT NULL GROUP BY ALL ORDER BY ALL
    """

    def job():
        rows = _table(root).sql(question).fetchall()
        return [len(rows), int(sum(row[2] for row in rows)), int(sum(row[3] for row in rows))]

    return job


def diff(root, a, b):
    import duckdb  # noqa: F401
    import pandas  # noqa: F401 -- pyarrow imports it when it compares with a plain value

    import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

    def job():
        found = _table(root).diff(int(a), int(b))
        return [found.added.num_rows, found.removed.num_rows]

    return job


def create(root, kind):
    """Make a checkpoint of an open table, in a copy of the log: `parquet` alone, or `both`."""
    with tables.copied(root) as copy:
        # By itself it would make one after the next commit, at the same time.
        options = {"checkpoint.format": kind, "checkpoint.enabled": False, "cleanup.enabled": False}
        table = _table(copy, **options)
        if kind == "parquet":
            table.upgrade_protocol(3, 3, reader_features=[FEATURE], writer_features=[FEATURE])
        table.snapshot().state.adds  # noqa: B018 -- as deltalake has read everything, too
        yield lambda: table.checkpoint().num_files


def create_cold(root):
    """Open a table and make a checkpoint of it, in a copy of the log."""
    with tables.copied(root) as copy:
        import arrowlog.table  # noqa: F401 -- imports are measured by a case of their own

        options = {"checkpoint.enabled": False, "cleanup.enabled": False}
        yield lambda: _table(copy, **options).checkpoint().num_files


def create_again(root):
    """Make the next checkpoint of a table that was just opened, in a copy of the log."""
    with tables.copied(root) as copy:
        options = {"checkpoint.enabled": False, "cleanup.enabled": False}
        table = _table(copy, **options)
        table.snapshot()
        yield lambda: table.checkpoint().num_files


def open_s3(uri, url):
    """All live files of a table on the server of this machine."""
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
    import polars  # noqa: F401 -- what comes on top of it is measured

    return import_alone(_)


def import_polars(_):
    def job():
        import polars  # noqa: F401

    return job

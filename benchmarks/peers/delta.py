"""deltalake: the Python package of delta-rs."""

import os

from benchmarks import queries, tables
from benchmarks.peers import warm


def build(root, shape):
    def checkpoint(root):
        import deltalake

        deltalake.DeltaTable(root).create_checkpoint()

    tables.write_log(root, shape, checkpoint, delta=True)


def open(root):  # noqa: A001 -- the name of the case
    import deltalake

    return lambda: deltalake.DeltaTable(root).get_add_actions(flatten=True).num_rows


def open_s3(uri, url):
    """All live files of a table on an S3 server at `url`."""
    import deltalake

    from benchmarks.checkpoints import s3_options

    options = {**s3_options(url), "AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}
    opened = lambda: deltalake.DeltaTable(uri, storage_options=options)  # noqa: E731
    return lambda: opened().get_add_actions(flatten=True).num_rows


def only_open(root):
    import deltalake

    return lambda: deltalake.DeltaTable(root).version()


def _matching(table, condition):
    """Filter its add actions with polars: five times as fast as its own ways of pruning."""
    import polars as pl

    return len(
        pl.DataFrame(table.get_add_actions(flatten=True)).filter(condition)["path"].to_list()
    )


def _condition(number):
    import polars as pl

    low, high, _ = queries.bounds(number)
    return (
        (pl.col("partition.date") == queries.day())
        & (pl.col("max.id") >= low)
        & (pl.col("min.id") <= high)
        & (pl.col("max.ts") >= queries.moment(number))
    )


def plan(root):
    import deltalake

    condition = _condition(0)
    return lambda: _matching(deltalake.DeltaTable(root), condition)


def plan_range(root):
    import deltalake
    import polars as pl

    low, high = queries.ids()
    condition = (pl.col("max.id") >= low) & (pl.col("min.id") <= high)
    return lambda: _matching(deltalake.DeltaTable(root), condition)


@warm
def warm_plan(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    return lambda number: _matching(table, _condition(number))


@warm
def warm_uris(root):
    """Pruning by `file_uris` with a predicate."""
    import deltalake

    table = deltalake.DeltaTable(root)

    def job(number):
        low, high, _ = queries.bounds(number)
        predicate = f"date = '{queries.DAY}' AND id >= {low} AND id <= {high}"
        return len(table.file_uris(file_pruning_predicate=predicate))

    return job


@warm
def warm_dataset(root):
    """Pruning by a dataset of the partition and its fragments that may match."""
    import deltalake
    import pyarrow.compute as pc

    table = deltalake.DeltaTable(root)

    def job(number):
        low, high, _ = queries.bounds(number)
        condition = (pc.field("date") == queries.day()) & (pc.field("id") >= low)
        condition &= (pc.field("id") <= high) & (pc.field("ts") >= queries.moment(number))
        day = [("date", "=", queries.DAY)]
        return len(
            list(table.to_pyarrow_dataset(file_pruning_predicate=day).get_fragments(condition))
        )

    return job


@warm
def partition(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    day = [("date", "=", queries.DAY)]
    return lambda _: len(table.file_uris(file_pruning_predicate=day))


@warm
def predicates(root, count):
    import deltalake
    import polars as pl

    table = deltalake.DeltaTable(root)

    def job(number):
        conjuncts = [
            pl.col(f"max.{column}") >= bound if least else pl.col(f"min.{column}") <= bound
            for column, least, bound in queries.clauses(int(count), number)
        ]
        return _matching(table, pl.all_horizontal(conjuncts))

    return job


def refresh(root, news):
    import deltalake

    table = deltalake.DeltaTable(root)
    table.get_add_actions(flatten=True)

    def job():
        table.update_incremental()
        return table.get_add_actions(flatten=True).num_rows

    with tables.news(os.path.join(root, "_delta_log"), int(news)):
        yield job


def travel(root, version):
    import deltalake

    at = int(version)
    return lambda: deltalake.DeltaTable(root, version=at).get_add_actions(flatten=True).num_rows


def history(root):
    """Days and operations from the history; files and bytes from the live adds.

    deltalake does not report which commit an add belongs to. The two are not joined, which would
    take longer.
    """
    import deltalake
    import polars as pl

    def job():
        table = deltalake.DeltaTable(root)
        commit_infos = [
            (h["timestamp"], h["operation"]) for h in table.history() if "operation" in h
        ]
        commits = pl.DataFrame(commit_infos, schema=["ms", "operation"], orient="row")
        day = pl.from_epoch("ms", time_unit="ms").dt.date()
        groups = commits.group_by(day, "operation").len().height
        adds = pl.DataFrame(table.get_add_actions(flatten=True))
        return [groups, adds.height, adds["size_bytes"].sum()]

    return job


history_sql = history  # it has no SQL over its history: the same, beside ours in SQL


def diff(root, a, b):
    """Open both versions and anti-join them in polars, since deltalake has no such call."""
    import deltalake
    import polars as pl

    def job():
        before, after = (
            pl.DataFrame(deltalake.DeltaTable(root, version=int(v)).get_add_actions(flatten=True))
            for v in (a, b)
        )
        return [
            after.join(before, on="path", how="anti").height,
            before.join(after, on="path", how="anti").height,
        ]

    return job


def create(root, _):
    """Write a checkpoint of an open table, in a copy of the log."""
    import deltalake

    with tables.copied(root) as copy:
        table = deltalake.DeltaTable(copy)
        count = table.get_add_actions().num_rows

        def job():
            table.create_checkpoint()
            return count

        yield job


def create_cold(root):
    """Open a table and write a checkpoint, in a copy of the log."""
    import deltalake

    with tables.copied(root) as copy:

        def job():
            table = deltalake.DeltaTable(copy)
            table.create_checkpoint()
            return table.get_add_actions().num_rows

        yield job


def import_alone(_):
    def job():
        import deltalake  # noqa: F401

    return job


def import_and_open(root):
    def job():
        import deltalake

        return deltalake.DeltaTable(root).version()

    return job


def import_after_polars(_):
    import polars  # noqa: F401

    return import_alone(_)

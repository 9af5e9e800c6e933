"""deltalake: the Python package of delta-rs."""

import os

from benchmarks import questions, tables
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
    """All live files of a table on the server of this machine."""
    import deltalake

    from benchmarks.checkpoints import s3_options

    options = {**s3_options(url), "AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}
    opened = lambda: deltalake.DeltaTable(uri, storage_options=options)  # noqa: E731
    return lambda: opened().get_add_actions(flatten=True).num_rows


def only_open(root):
    import deltalake

    return lambda: deltalake.DeltaTable(root).version()


def _matching(table, wanted):
    """Its add actions, filtered by polars: five times as fast as its own ways of pruning."""
    import polars as pl

    return len(pl.DataFrame(table.get_add_actions(flatten=True)).filter(wanted)["path"].to_list())


def _wanted(number):
    import polars as pl

    low, high, _ = questions.bounds(number)
    return (
        (pl.col("partition.date") == questions.day())
        & (pl.col("max.id") >= low)
        & (pl.col("min.id") <= high)
        & (pl.col("max.ts") >= questions.moment(number))
    )


def plan(root):
    import deltalake

    wanted = _wanted(0)
    return lambda: _matching(deltalake.DeltaTable(root), wanted)


def plan_range(root):
    import deltalake
    import polars as pl

    low, high = questions.ids()
    wanted = (pl.col("max.id") >= low) & (pl.col("min.id") <= high)
    return lambda: _matching(deltalake.DeltaTable(root), wanted)


@warm
def warm_plan(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    return lambda number: _matching(table, _wanted(number))


@warm
def warm_uris(root):
    """Its own way: a predicate that it prunes with."""
    import deltalake

    table = deltalake.DeltaTable(root)

    def job(number):
        low, high, _ = questions.bounds(number)
        told = f"date = '{questions.DAY}' AND id >= {low} AND id <= {high}"
        return len(table.file_uris(file_pruning_predicate=told))

    return job


@warm
def warm_dataset(root):
    """Its other way: a dataset of the partition, and those of its fragments that may match."""
    import deltalake
    import pyarrow.compute as pc

    table = deltalake.DeltaTable(root)

    def job(number):
        low, high, _ = questions.bounds(number)
        wanted = (pc.field("date") == questions.day()) & (pc.field("id") >= low)
        wanted &= (pc.field("id") <= high) & (pc.field("ts") >= questions.moment(number))
        day = [("date", "=", questions.DAY)]
        return len(list(table.to_pyarrow_dataset(file_pruning_predicate=day).get_fragments(wanted)))

    return job


@warm
def partition(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    day = [("date", "=", questions.DAY)]
    return lambda _: len(table.file_uris(file_pruning_predicate=day))


@warm
def predicates(root, count):
    import deltalake
    import polars as pl

    table = deltalake.DeltaTable(root)

    def job(number):
        told = [
            pl.col(f"max.{column}") >= bound if least else pl.col(f"min.{column}") <= bound
            for column, least, bound in questions.clauses(int(count), number)
        ]
        return _matching(table, pl.all_horizontal(told))

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
        return [groups, adds.height, adds["size_bytes"].sum()]

    return job


def diff(root, a, b):
    """It has no such call. The nearest thing: open both versions, and two anti-joins in polars."""
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
    """Make a checkpoint of an open table, in a copy of the log."""
    import deltalake

    with tables.copied(root) as copy:
        table = deltalake.DeltaTable(copy)
        count = table.get_add_actions().num_rows

        def job():
            table.create_checkpoint()
            return count

        yield job


def create_cold(root):
    """Open a table and make a checkpoint of it, in a copy of the log."""
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

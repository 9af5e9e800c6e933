"""PyIceberg, on an Iceberg table with one manifest per commit and bounds of the same columns.

Every commit is a snapshot in the metadata. A real commit also writes a list of all manifests so
far, which would be 50,000,000 entries for 10,000 commits, so only the lists of measured snapshots
exist: the middle one, the last one and one after it. Where the other tables have a checkpoint, the
manifests are rewritten as by Iceberg's own procedure: sorted by partition, with 8,000 entries each,
which makes planning fast. There is no catalog: a table is opened by its metadata.
"""

import contextlib
import datetime as dt
import json
import os
import random

from benchmarks import queries, tables
from benchmarks.peers import warm

ENTRIES = 8000  # per rewritten manifest


def build(root, shape):
    from pyiceberg.io.pyarrow import PyArrowFileIO

    os.makedirs(os.path.join(root, "metadata"))
    schema, spec = _schema(shape.columns)
    maker = _Maker(root, PyArrowFileIO(), schema, spec)
    manifests, loose, sums = {}, [], {}
    for version, numbers in tables.commits(shape):
        rng = random.Random(version)
        adds = [tables.add(rng, number, shape.columns, delta=False) for number in numbers]
        sums[version] = len(adds), sum(add["size"] for add in adds)
        if shape.trailing is not None and version <= shape.commits:
            loose += adds
            if version == shape.commits:
                manifests[version] = maker.rewritten(loose, version)
        else:
            manifests[version] = [maker.manifest(f"m{version}", adds, version)]
    last = shape.versions
    news = [dict(add, path=add["path"].replace("/part-", "/more-")) for add in adds]
    manifests[last + 1] = [maker.manifest("news", news, last + 1)]
    sums[last + 1] = sums[last]
    for version in {tables.middle(shape), last, last + 1}:
        so_far = [one for at, some in manifests.items() if at <= version for one in some]
        maker.list(version, so_far)
    maker.metadata("v1", last, sums)
    maker.metadata("v2", last + 1, sums)


class _Maker:
    """Writes the metadata files of a table."""

    def __init__(self, root, io, schema, spec):
        self._root, self._io, self._schema, self._spec = root, io, schema, spec

    def _path(self, name):
        return os.path.join(self._root, "metadata", name)

    def manifest(self, name, adds, version):
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest

        output = self._io.new_output(self._path(f"{name}.avro"))
        with write_manifest(2, self._spec, self._schema, output, version, "deflate") as writer:
            for add in adds:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=version,
                        sequence_number=version,
                        file_sequence_number=version,
                        data_file=_data_file(add, self._schema),
                    )
                )
        made = writer.to_manifest_file()
        made.sequence_number = version  # else only the list of the same commit takes it
        return made

    def rewritten(self, adds, version):
        adds.sort(key=lambda add: (add["partitionValues"]["date"], add["path"]))
        return [
            self.manifest(f"r{first // ENTRIES}", adds[first : first + ENTRIES], version)
            for first in range(0, len(adds), ENTRIES)
        ]

    def list(self, version, manifests):
        from pyiceberg.manifest import write_manifest_list

        output = self._io.new_output(self._path(f"list-{version}.avro"))
        parent = version - 1 if version > 1 else None
        with write_manifest_list(2, output, version, parent, version, "deflate") as writer:
            writer.add_manifests(manifests)

    def metadata(self, name, last, sums):
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.snapshots import Operation, Snapshot, Summary
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        fresh = new_table_metadata(self._schema, self._spec, UNSORTED_SORT_ORDER, self._root)
        snapshots = []
        for version in range(1, last + 1):
            files, size = sums[version]
            totals = {"added-data-files": str(files), "added-files-size": str(size)}
            snapshots.append(
                Snapshot(
                    snapshot_id=version,
                    parent_snapshot_id=version - 1 if version > 1 else None,
                    sequence_number=version,
                    timestamp_ms=tables.moment_ms(version),
                    manifest_list=self._path(f"list-{version}.avro"),
                    summary=Summary(Operation.APPEND, **totals),
                    schema_id=fresh.current_schema_id,
                )
            )
        filled = fresh.model_copy(
            update={
                "snapshots": snapshots,
                "current_snapshot_id": last,
                "last_sequence_number": last,
            }
        )
        with contextlib.closing(_write(self._path(f"{name}.metadata.json"))) as out:
            out.write(filled.model_dump_json())


def _write(path):
    import builtins

    return builtins.open(path, "w")


def _schema(columns):
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import (
        DateType,
        DoubleType,
        LongType,
        NestedField,
        StringType,
        TimestamptzType,
    )

    kinds = {
        "date": DateType(),
        "long": LongType(),
        "timestamp": TimestamptzType(),
        "double": DoubleType(),
        "string": StringType(),
    }
    fields = [
        NestedField(number, name, kinds[kind], required=False)
        for number, (name, kind) in enumerate(tables.fields(columns), 1)
    ]
    part = PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="date")
    return Schema(*fields), PartitionSpec(part, spec_id=0)


def _data_file(add, schema):
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    def value(name, text):
        if name == "ts":
            return int(dt.datetime.fromisoformat(text).timestamp() * 1_000_000)
        return text if name == "name" else float(text) if name == "value" else int(text)

    def bounds(values):
        return {
            field.field_id: to_bytes(field.field_type, value(field.name, values[field.name]))
            for field in schema.fields[1:]
        }

    nulls = json.loads(add["stats"])["nullCount"]
    day = (dt.date.fromisoformat(add["partitionValues"]["date"]) - dt.date(1970, 1, 1)).days
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=add["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=add["numRecords"],
        file_size_in_bytes=add["size"],
        null_value_counts={field.field_id: nulls[field.name] for field in schema.fields[1:]},
        lower_bounds=bounds(add["minValues"]),
        upper_bounds=bounds(add["maxValues"]),
    )


def _table(root, name="v1"):
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(os.path.join(root, "metadata", f"{name}.metadata.json"))


def _import():
    """Import everything that the jobs use, also what PyIceberg imports lazily."""
    import pyiceberg.expressions.parser
    import pyiceberg.io.pyarrow
    import pyiceberg.table.inspect  # noqa: F401


def open(root):  # noqa: A001 -- the name of the case
    _import()
    return lambda: _table(root).inspect.files().num_rows


def _filter(number):
    low, high, since = queries.bounds(number)
    moment = since.replace(" ", "T") + "+00:00"
    return f"date = '{queries.DAY}' AND id >= {low} AND id <= {high} AND ts >= '{moment}'"


def plan(root):
    _import()
    return lambda: len(list(_table(root).scan(_filter(0)).plan_files()))


@warm
def warm_plan(root):
    table = _table(root)
    return lambda number: len(list(table.scan(_filter(number)).plan_files()))


@warm
def partition(root):
    table = _table(root)
    predicate = f"date = '{queries.DAY}'"
    return lambda _: len(list(table.scan(predicate).plan_files()))


@warm
def predicates(root, count):
    table = _table(root)

    def job(number):
        conjuncts = [
            f"{column} {'>=' if least else '<='} {bound}"
            for column, least, bound in queries.clauses(int(count), number)
        ]
        return len(list(table.scan(" AND ".join(conjuncts)).plan_files()))

    return job


def refresh(root, news):
    """Read the metadata again, as after asking a catalog, then its manifests."""
    _import()
    _table(root).inspect.files()
    name = "v2" if news == "1" else "v1"
    return lambda: _table(root, name).inspect.files().num_rows


def travel(root, version):
    _import()
    return lambda: _table(root).inspect.files(snapshot_id=int(version)).num_rows


def history(root):
    """Files and bytes per day by operation, all of it in the summaries of the snapshots."""
    _import()

    def job():
        groups, files, size = set(), 0, 0
        for snapshot in _table(root).metadata.snapshots:
            summary = snapshot.summary
            day = dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC).date()
            groups.add((day, summary.operation))
            files += int(summary["added-data-files"])
            size += int(summary["added-files-size"])
        return [len(groups), files, size]

    return job


history_sql = history  # it has no SQL over its history: the same, beside ours in SQL


def diff(root, a, b):
    """List both versions and anti-join them in polars, since PyIceberg has no such call."""
    import polars as pl

    _import()

    def job():
        table = _table(root)
        before, after = (
            pl.from_arrow(table.inspect.files(snapshot_id=int(v)).select(["file_path"]))
            for v in (a, b)
        )
        return [
            after.join(before, on="file_path", how="anti").height,
            before.join(after, on="file_path", how="anti").height,
        ]

    return job


def import_alone(_):
    def job():
        import pyiceberg.io.pyarrow
        import pyiceberg.table  # noqa: F401

    return job


def import_after_polars(_):
    import polars  # noqa: F401

    return import_alone(_)

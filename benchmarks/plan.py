"""Planning: which files may hold matching rows? The same table for arrowlog, deltalake, PyIceberg.

Warm: the table is open and has answered another question. Cold: open it and ask. Every process
measures one case; what is compared must give the same number of files.
"""

import importlib.util
import json
import os
import random
import shutil
import statistics
import time

from benchmarks import tables

DAY = "2024-03-05"
SHAPES = {"10,000 files": (5, 2000), "100,000 files": (25, 4000), "1,000,000 files": (50, 20_000)}
QUICK = {"10,000 files": (5, 2000)}
PEERS_MAX = 100_000  # files; beyond that the peers take minutes
REPEATS = 15
ENOUGH_MS = 5000
CASES = {
    "partition, warm": ("arrowlog_partition", "delta_file_uris"),
    "partition + 2 ranges, warm": ("arrowlog_ranges", "delta_fragments", "iceberg_plan"),
    "partition + 2 ranges, cold": ("arrowlog_cold", "delta_cold", "iceberg_cold"),
}


def _ranges(number):
    """Bounds of a question; another number asks another one of the same kind."""
    return 1_000_000 + number * 1000, 9_000_000, f"{DAY} 12:00:00"


def _sql(number):
    low, high, since = _ranges(number)
    return f"date = '{DAY}' AND id BETWEEN {low} AND {high} AND ts >= TIMESTAMP '{since}'"


def _best(job):
    """The median of some runs that all ask something new."""
    answers, spent = [], []
    for number in range(REPEATS + 1):
        started = time.perf_counter()
        answer = job(number)
        spent.append((time.perf_counter() - started) * 1000)
        answers.append(answer)
        if number >= 2 and sum(spent) > ENOUGH_MS:
            break
    return {"ms": statistics.median(spent[1:]), "answer": answers[0]}


def arrowlog_partition(root):
    import arrowlog

    table = arrowlog.Table(root)
    table.scan("date = '2024-01-01'").paths  # noqa: B018 -- warm
    return _best(lambda _: len(table.scan(f"date = '{DAY}'").paths))


def arrowlog_ranges(root):
    import arrowlog

    table = arrowlog.Table(root)
    table.scan(_sql(9)).paths  # noqa: B018 -- warm
    return _best(lambda number: len(table.scan(_sql(number)).paths))


def arrowlog_cold(root):
    import arrowlog

    started = time.perf_counter()
    answer = len(arrowlog.Table(root).scan(_sql(0)).paths)
    return {"ms": (time.perf_counter() - started) * 1000, "answer": answer}


def delta_file_uris(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    table.file_uris([("date", "=", "2024-01-01")])
    return _best(lambda _: len(table.file_uris([("date", "=", DAY)])))


def _delta_filter(number):
    import datetime as dt

    import pyarrow.compute as pc

    low, high, since = _ranges(number)
    moment = dt.datetime.fromisoformat(since).replace(tzinfo=dt.UTC)
    identity = (pc.field("id") >= low) & (pc.field("id") <= high)
    return (pc.field("date") == dt.date.fromisoformat(DAY)) & identity & (pc.field("ts") >= moment)


def delta_fragments(root):
    import deltalake

    table = deltalake.DeltaTable(root)
    return _best(lambda number: _delta_files(table, _delta_filter(number)))


def _delta_files(table, filter_):
    """As quick as it goes: a dataset of the one partition, and its fragments by their bounds."""
    dataset = table.to_pyarrow_dataset(partitions=[("date", "=", DAY)])
    return len(list(dataset.get_fragments(filter_)))


def delta_cold(root):
    import deltalake

    filter_ = _delta_filter(0)
    started = time.perf_counter()
    answer = _delta_files(deltalake.DeltaTable(root), filter_)
    return {"ms": (time.perf_counter() - started) * 1000, "answer": answer}


def _iceberg_filter(number):
    low, high, since = _ranges(number)
    moment = since.replace(" ", "T") + "+00:00"
    return f"date = '{DAY}' AND id >= {low} AND id <= {high} AND ts >= '{moment}'"


def _iceberg(root):
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(os.path.join(root, "metadata", "v1.metadata.json"))


def iceberg_plan(root):
    table = _iceberg(root)
    return _best(lambda number: len(list(table.scan(_iceberg_filter(number)).plan_files())))


def iceberg_cold(root):
    import pyiceberg.table  # noqa: F401 -- imports are not measured

    started = time.perf_counter()
    answer = len(list(_iceberg(root).scan(_iceberg_filter(0)).plan_files()))
    return {"ms": (time.perf_counter() - started) * 1000, "answer": answer}


def build_iceberg(folder, commits, adds):
    """The table as Iceberg keeps it: one manifest a commit, bounds of the same columns."""
    root = os.path.join(folder, f"iceberg-{commits}x{adds}")
    if os.path.exists(os.path.join(root, "ready")):
        return root
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(os.path.join(root, "metadata"))
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO()
    schema, spec = _iceberg_schema()
    rng = random.Random(7)
    manifests = []
    for version in range(1, commits + 1):
        lines = tables.commit(rng, version, adds, delta=False)[1:]
        path = os.path.join(root, "metadata", f"m{version}.avro")
        manifests.append(_manifest(io.new_output(path), schema, spec, lines))
    _iceberg_metadata(root, io, schema, spec, manifests)
    with open(os.path.join(root, "ready"), "w") as out:
        out.write("whole")
    return root


def _iceberg_schema():
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

    kinds = (DateType(), LongType(), TimestamptzType(), DoubleType(), StringType())
    fields = [
        NestedField(number, name, kind, required=False)
        for number, ((name, _), kind) in enumerate(zip(tables.FIELDS, kinds, strict=True), 1)
    ]
    part = PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="date")
    return Schema(*fields), PartitionSpec(part, spec_id=0)


def _manifest(output, schema, spec, lines):
    from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest

    with write_manifest(2, spec, schema, output, 1, "deflate") as writer:
        for line in lines:
            status = ManifestEntryStatus.ADDED
            entry = ManifestEntry.from_args(
                status=status,
                snapshot_id=1,
                sequence_number=1,
                file_sequence_number=1,
                data_file=_data_file(line["add"], schema),
            )
            writer.add_entry(entry)
    return writer.to_manifest_file()


def _data_file(add, schema):
    import datetime as dt

    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    day = (dt.date.fromisoformat(add["partitionValues"]["date"]) - dt.date(1970, 1, 1)).days

    def bound(values):
        found = {}
        for field in list(schema.fields)[1:]:
            text = values[field.name]
            value = {"id": int, "value": float}.get(field.name, str)(text)
            if field.name == "ts":
                moment = dt.datetime.fromisoformat(text)
                value = int(moment.timestamp() * 1_000_000)
            found[field.field_id] = to_bytes(field.field_type, value)
        return found

    nulls = json.loads(add["stats"])["nullCount"]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=add["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=add["numRecords"],
        file_size_in_bytes=add["size"],
        null_value_counts={i: nulls[name] for i, name in enumerate(nulls, 2)},
        lower_bounds=bound(add["minValues"]),
        upper_bounds=bound(add["maxValues"]),
    )


def _iceberg_metadata(root, io, schema, spec, manifests):
    from pyiceberg.manifest import write_manifest_list
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    place = os.path.join(root, "metadata", "list.avro")
    with write_manifest_list(2, io.new_output(place), 1, None, 1, "deflate") as writer:
        writer.add_manifests(manifests)
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, root)
    snapshot = Snapshot(
        snapshot_id=1,
        sequence_number=1,
        timestamp_ms=metadata.last_updated_ms,
        manifest_list=place,
        summary=Summary(Operation.APPEND),
        schema_id=metadata.current_schema_id,
    )
    filled = metadata.model_copy(
        update={"snapshots": [snapshot], "current_snapshot_id": 1, "last_sequence_number": 1}
    )
    with open(os.path.join(root, "metadata", "v1.metadata.json"), "w") as out:
        out.write(filled.model_dump_json())


def run(folder, rounds, *, quick, measure):
    """Print a line a case; returns the figures."""
    figures = {}
    iceberg = importlib.util.find_spec("pyiceberg") is not None
    if not iceberg:
        print("PyIceberg is not here, and is left out: pip install -c constraints.txt '.[bench]'")
    print(
        f"{'planning, ms, fresh processes':<46}{'arrowlog':>10}{'deltalake':>11}{'ratio':>8}",
        end="",
    )
    print(f"{'PyIceberg':>11}{'ratio':>8}{'files':>8}")
    for label, (commits, adds) in (QUICK if quick else SHAPES).items():
        peers = commits * adds <= PEERS_MAX
        roots = {"arrowlog": tables.build(folder, commits, adds, delta=False)}
        if peers:
            roots["delta"] = tables.build(folder, commits, adds, delta=True)
        if peers and iceberg:
            roots["iceberg"] = build_iceberg(folder, commits, adds)
        for case, names in CASES.items():
            wanted = [name for name in names if name.partition("_")[0] in roots]
            found = {name: [] for name in wanted}
            for _ in range(rounds):
                for name in wanted:
                    found[name].append(measure(name, roots[name.partition("_")[0]]))
            answers = {run["answer"] for runs in found.values() for run in runs}
            if len(answers) != 1:
                raise SystemExit(f"{case}: the answers differ: {found}")
            medians = {n: statistics.median(r["ms"] for r in runs) for n, runs in found.items()}
            figures[f"{case}, {label}"] = medians
            _show(f"{case}, {label}", medians, answers.pop())
    return figures


def _show(title, medians, files):
    ours = next(iter(medians.values()))
    line = f"{title:<46}{ours:>10.2f}"
    for peer, width in (("delta", 11), ("iceberg", 11)):
        theirs = [ms for name, ms in medians.items() if name.startswith(peer)]
        line += f"{theirs[0]:>{width}.1f}{theirs[0] / ours:>7.0f}x" if theirs else " " * (width + 8)
    print(f"{line}{files:>8}", flush=True)

"""Avro manifests and tables with an Avro state, read in fresh processes by arrowlog and fastavro.

`run(folder, rounds, quick)` is the job `avro` of `python -m benchmarks`. On the command line:

  python -m benchmarks.manifests FOLDER ROUNDS          70,000 and 1,000,000 entries
  python -m benchmarks.manifests decode READER FIELDS FILE...   one run, as JSON
  python -m benchmarks.manifests query READER QUERY TABLE       the same for a table with a state

A query is `list`, all live files with typed statistics, or `plan`, the files of one partition
value. fastavro reads dictionaries, with the code that a user would write. As in all other cases,
imports are not counted, unless the label says so.
"""

import glob
import json
import os
import sys

from benchmarks.fresh import in_turn, python, without_imports
from benchmarks.measure import PRELOAD, measure_with_modules

ENTRIES = 50_000  # per manifest, as other writers do
LIMIT = 1 << 29  # bytes of a decoded manifest
PLAN_FIELDS = ("path", "size", "partitionValues", "numRecords")
ALL, PLAN = "all", "plan"
LIST = "list"
READERS = ("arrowlog", "fastavro")
DAY = "2024-02-03"  # its month fills one manifest in twelve, and has 28 days


def write(folder, entries):
    """Write manifests with `entries` entries in total: partition values, bounds, doc mappings."""
    import pyarrow as pa

    from arrowlog.formats.indextables import encode_manifest

    os.makedirs(folder, exist_ok=True)
    for start in range(0, entries, ENTRIES):
        rows = range(start, min(start + ENTRIES, entries))
        days = [f"2024-{1 + i // ENTRIES % 12:02d}-{1 + i % 28:02d}" for i in rows]
        unique = [f"{i * 0x9E3779B97F4A7C15 % (1 << 64):016x}" for i in rows]
        numbers = {
            "size": [5000 + i * 7919 % (1 << 24) for i in rows],
            "modificationTime": [1_775_007_204_776 + i * 31 for i in rows],
            "numRecords": [1000 + i % 77 for i in rows],
            "footerStartOffset": [2498 + i * 7919 % (1 << 20) for i in rows],
            "footerEndOffset": [5850 + i * 7919 % (1 << 20) for i in rows],
            "numMergeOps": [0 for _ in rows],
            "uncompressedSizeBytes": [i * 104_729 % (1 << 24) for i in rows],
        }
        texts = {
            "path": [
                f"date={day}/part-{u}-{i:08d}.split"
                for day, u, i in zip(days, unique, rows, strict=True)
            ],
            "partitionValues.date": days,
            "minValues.id": [str(i * 1000) for i in rows],
            "minValues.score": [f"{i * 37 % 100_000 / 1000:.3f}" for i in rows],
            "minValues.ts": [f"{day}T00:00:00Z" for day in days],
            "minValues.name": [f"item{i}" for i in rows],
            "maxValues.id": [str(i * 1000 + 999) for i in rows],
            "maxValues.score": [f"{100 + i * 37 % 100_000 / 1000:.3f}" for i in rows],
            "maxValues.ts": [f"{day}T23:59:59Z" for day in days],
            "maxValues.name": [f"item{i}zz" for i in rows],
            "docMappingRef": ["z7TwwZ-tDWGD-uX5" for _ in rows],
        }
        columns = {name: pa.array(values, pa.int64()) for name, values in numbers.items()}
        columns |= {name: pa.array(values, pa.string()) for name, values in texts.items()}
        data = encode_manifest(
            pa.table(columns), version=1, timestamp=2, sync=os.urandom(16), path="path"
        )
        with open(os.path.join(folder, f"manifest-{start // ENTRIES:016x}.avro"), "wb") as file:
            file.write(data)


def decode_with_arrowlog(files, fields):
    """Number of entries and the sum of their sizes."""
    import pyarrow.compute as pc

    from arrowlog.decode import decode_file_entries

    tables = []
    for name in files:
        with open(name, "rb") as file:
            wanted = None if fields == ALL else PLAN_FIELDS
            tables.append(decode_file_entries(file.read(), name, LIMIT, fields=wanted))
    return [sum(t.num_rows for t in tables), sum(pc.sum(t["size"]).as_py() for t in tables)]


def decode_with_fastavro(files, _fields):
    """Number of entries and the sum of their sizes; always decodes all fields."""
    import fastavro

    entries = []
    for name in files:
        with open(name, "rb") as file:
            entries += fastavro.reader(file)
    return [len(entries), sum(entry["size"] for entry in entries)]


def decode(engine, fields, files):
    """One run in this process: {"ms", "cpu", "mb", "answer", "loaded"}."""
    job = {"arrowlog": decode_with_arrowlog, "fastavro": decode_with_fastavro}[engine]
    return measure_with_modules(lambda: job(files, fields))


def write_table(place, folder):
    """Write a table around the manifests in a folder: version 0, and a state that names them."""
    import pyarrow as pa

    from arrowlog import testing
    from arrowlog.decode import decode_file_entries
    from arrowlog.formats.indextables import (
        ManifestInfo,
        StateManifest,
        encode_state,
        manifest_bounds,
        state_folder_name,
    )

    types = {"date": pa.date32(), "id": pa.int64(), "score": pa.float64()}
    types |= {"ts": pa.timestamp("us", "UTC"), "name": pa.string()}
    head = [testing.protocol(4, 4), testing.metadata(pa.schema(types), ["date"])]
    testing.write_commit(place, 0, head, codec="gzip")
    infos = []
    for name in sorted(glob.glob(os.path.join(folder, "*.avro"))):
        with open(name, "rb") as file:
            data = file.read()
        path = f"manifests/{os.path.basename(name)}"
        testing.write_file(place, path, data)
        adds = decode_file_entries(data, name, LIMIT, fields=["path", "partitionValues"])
        infos.append(ManifestInfo(path, adds.num_rows, manifest_bounds(adds, ["date"])))
    files = sum(info.num_entries for info in infos)
    record = StateManifest(1, 1_775_007_204_776, files, 0, tuple(infos))
    data = encode_state(record, os.urandom(16))
    testing.write_file(place, f"{state_folder_name(1)}/_manifest.avro", data)


def query_with_arrowlog(place, query):
    """Number of files and the sum of their sizes."""
    import arrowlog

    table = arrowlog.Table(place)
    if query == PLAN:
        plan = table.scan(f"date = DATE '{DAY}'")
        return [plan.num_files, plan.size_bytes]
    import pyarrow.compute as pc

    files = table.snapshot().files
    return [files.num_rows, pc.sum(files["size_bytes"]).as_py()]


def query_with_fastavro(place, query):
    """Number of files and the sum of their sizes."""
    import fastavro

    log = os.path.join(place, "_transaction_log")
    (state,) = glob.glob(os.path.join(log, "state-v*", "_manifest.avro"))
    with open(state, "rb") as file:
        (record,) = fastavro.reader(file)
    files = {}
    for item in record["manifests"]:
        bounds = item["partitionBounds"]["date"]
        if query == PLAN and not bounds["min"] <= DAY <= bounds["max"]:
            continue
        with open(os.path.join(log, item["path"]), "rb") as file:
            files.update((entry["path"], entry) for entry in fastavro.reader(file))
    chosen = list(files.values())
    if query == PLAN:
        chosen = [entry for entry in chosen if entry["partitionValues"]["date"] == DAY]
    return [len(chosen), sum(entry["size"] for entry in chosen)]


def query(engine, query_name, place):
    """One query in this process: {"ms", "cpu", "mb", "answer", "loaded"}."""
    job = {"arrowlog": query_with_arrowlog, "fastavro": query_with_fastavro}[engine]
    return measure_with_modules(lambda: job(place, query_name))


def jobs_of(*arguments, imports=False):
    """A job for each reader: `python -m benchmarks.manifests ACTION READER …` in a fresh process.

    With `imports`, the reader's imports are part of the measurement.
    """
    action, *rest = arguments

    def job(engine):
        def run(environment):
            command = ("benchmarks.manifests", action, engine, *rest)
            return json.loads(python(*command, env=environment))

        def without():
            return without_imports((action, engine, *rest), run)

        return (lambda: run({PRELOAD: ""})) if imports else without

    return {engine: job(engine) for engine in READERS}


def run(folder, rounds, quick):
    """The figures of decoding manifests, and of listing and planning tables with a state."""
    figures = []
    for entries in (70_000,) if quick else (70_000, 1_000_000):
        place = os.path.join(folder, f"manifests-{entries}")
        if not glob.glob(os.path.join(place, "*.avro")):
            write(place, entries)
        files = sorted(glob.glob(os.path.join(place, "*.avro")))
        shapes = {f"{entries:,} entries, all fields": (ALL, files)}
        if entries == 70_000:
            shapes["one manifest of 50,000, fields of a plan"] = (PLAN, files[:1])
        for shape, (fields, chosen) in shapes.items():
            figures += in_turn("avro", shape, jobs_of("decode", fields, *chosen), rounds)
        table = os.path.join(folder, f"states-{entries}")
        if not os.path.exists(table):
            write_table(table, place)
        for query_name, shape in (
            (LIST, "listed with typed statistics"),
            (PLAN, "one day planned"),
        ):
            label = f"table of {entries:,} files, {shape}"
            figures += in_turn("avro", label, jobs_of("query", query_name, table), rounds)
            jobs = jobs_of("query", query_name, table, imports=True)
            figures += in_turn("avro", f"{label}, with imports", jobs, rounds)
    return figures


if __name__ == "__main__":
    if sys.argv[1] == "decode":
        print(json.dumps(decode(sys.argv[2], sys.argv[3], sys.argv[4:])))
    elif sys.argv[1] == "query":
        print(json.dumps(query(sys.argv[2], sys.argv[3], sys.argv[4])))
    else:
        for figure in run(sys.argv[1], int(sys.argv[2]), quick=False):
            print(
                f"{figure.shape}: {figure.engine} ms {[round(ms) for ms in figure.runs]}"
                f" cpu {[round(ms) for ms in figure.cpu]} MB {round(figure.mb)}"
            )

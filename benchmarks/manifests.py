"""The manifests of table states in Avro, decoded in fresh processes beside fastavro.

`run(folder, rounds, quick)` gives figures for the command; by itself:

  python -m benchmarks.manifests FOLDER ROUNDS          70,000 and 1,000,000 entries
  python -m benchmarks.manifests decode WHO FIELDS FILE...   one run, as JSON
"""

import glob
import json
import os
import resource
import sys
import time

from benchmarks.fresh import in_turn, python

ENTRIES = 50_000  # a manifest: what other writers put into one
LIMIT = 1 << 29
PLAN_FIELDS = ("path", "size", "partitionValues", "numRecords")
ALL, PLAN = "all", "plan"


def write(folder, entries):
    """Write manifests of `entries` entries with partition values, bounds and doc mappings."""
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


def by_arrowlog(files, fields):
    import pyarrow.compute as pc

    from arrowlog.decode import decode_file_entries

    tables = []
    for name in files:
        with open(name, "rb") as file:
            wanted = None if fields == ALL else PLAN_FIELDS
            tables.append(decode_file_entries(file.read(), name, LIMIT, fields=wanted))
    return [sum(t.num_rows for t in tables), sum(pc.sum(t["size"]).as_py() for t in tables)]


def by_fastavro(files, _fields):
    import fastavro

    entries = []
    for name in files:
        with open(name, "rb") as file:
            entries += fastavro.reader(file)
    return [len(entries), sum(entry["size"] for entry in entries)]


def decode(who, fields, files):
    """One run in this process, imports included: {"ms", "cpu", "mb", "answer"}."""
    cpu, began = time.process_time(), time.perf_counter()
    answer = {"arrowlog": by_arrowlog, "fastavro": by_fastavro}[who](files, fields)
    return {
        "ms": (time.perf_counter() - began) * 1e3,
        "cpu": (time.process_time() - cpu) * 1e3,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "answer": answer,
    }


def run(folder, rounds, quick):
    """Figures for listing all entries, and for a plan that opens one manifest."""
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
            jobs = {
                who: lambda who=who, fields=fields, chosen=chosen: json.loads(
                    python("benchmarks.manifests", "decode", who, fields, *chosen)
                )
                for who in ("arrowlog", "fastavro")
            }
            figures += in_turn("manifests", shape, jobs, rounds)
    return figures


if __name__ == "__main__":
    if sys.argv[1] == "decode":
        print(json.dumps(decode(sys.argv[2], sys.argv[3], sys.argv[4:])))
    else:
        for figure in run(sys.argv[1], int(sys.argv[2]), quick=False):
            print(
                f"{figure.shape}: {figure.who} ms {[round(ms) for ms in figure.runs]}"
                f" cpu {[round(ms) for ms in figure.cpu]} MB {round(figure.mb)}"
            )

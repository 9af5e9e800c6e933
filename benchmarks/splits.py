"""Reading the rows of splits into Arrow, and searching them, in fresh processes.

The table has ten splits written by tantivy, with a number, a raw text, a text of eight words and a
double. In the cold case the cache of splits is empty, so the search indexes every row first. In the
warm case an earlier process has cached the indexes, and the process has searched once.
"""

import json
import os
import random
import resource
import shutil
import struct
import sys
import time

from benchmarks.figures import ARROWLOG
from benchmarks.fresh import in_turn, progress, python

FULL, QUICK = 100_000, 2_000  # rows per split
SPLITS = 10
CASE = "splits"
QUERY = "w0007 AND w0042"


def labels(rows):
    """The shapes of the figures for a table with so many rows, by action."""
    return {
        "rows": f"{rows:,} rows: all columns to Arrow",
        "numbers": f"{rows:,} rows: two numbers to Arrow",
        "cold": f"{rows:,} rows: search, nothing cached",
        "warm": f"{rows:,} rows: search, cached",
    }


def run(folder, rounds, quick):
    """The figures of all actions."""
    rows = SPLITS * (QUICK if quick else FULL)
    root = os.path.join(folder, f"splits-{rows}")
    if not os.path.isdir(root):
        progress("building the table of splits")
        shutil.rmtree(f"{root}.part", ignore_errors=True)
        python("benchmarks.splits", "build", f"{root}.part", rows // SPLITS)
        os.rename(f"{root}.part", root)
    cache = f"{root}-cache"
    figures = []
    for action, label in labels(rows).items():

        def job(action=action):
            if action == "cold":
                shutil.rmtree(cache, ignore_errors=True)
            return json.loads(python("benchmarks.splits", action, root, cache))

        figures += in_turn(CASE, label, {ARROWLOG: job}, min(rounds, 3))
    shutil.rmtree(cache, ignore_errors=True)
    return figures


def build(root, rows):
    """Build a table of splits, with words drawn from a vocabulary of 5,000."""
    import pyarrow as pa

    import arrowlog

    fields = [("id", pa.int64()), ("text", pa.string()), ("body", pa.string())]
    table = arrowlog.Table.create(root, pa.schema([*fields, ("score", pa.float64())]))
    rng = random.Random(1)
    words = [f"w{number:04d}" for number in range(5000)]
    adds = []
    for number in range(SPLITS):
        first = number * rows
        texts = [" ".join(rng.choices(words, k=8)) for _ in range(rows)]
        data = _split(f"{root}/index", first, texts)
        path = f"part-{number}.split"
        with open(f"{root}/{path}", "wb") as out:
            out.write(data)
        bounds = {"min_values": {"id": first}, "max_values": {"id": first + rows - 1}}
        adds.append(arrowlog.add_file(path, size=len(data), num_records=rows, **bounds))
    table.append(adds)


def _split(folder, first, texts):
    """The bytes of a split with these texts; ids start at `first`."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("id", stored=True, fast=True, indexed=True)
    builder.add_text_field("text", stored=True, fast=True, tokenizer_name="raw")
    builder.add_text_field("body", stored=True, tokenizer_name="default")
    builder.add_float_field("score", stored=True, fast=True, indexed=True)
    os.makedirs(folder)
    index = tantivy.Index(builder.build(), path=folder)
    writer = index.writer(heap_size=400_000_000, num_threads=1)
    for number, text in enumerate(texts):
        document = tantivy.Document()
        document.add_integer("id", first + number)
        document.add_text("text", f"document_{first + number}")
        document.add_text("body", text)
        document.add_float("score", number / 7)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    body, directory = b"", {}
    for name in os.listdir(folder):
        if not name.startswith("."):
            with open(f"{folder}/{name}", "rb") as file:
                data = file.read()
            directory[name] = {"start": len(body), "end": len(body) + len(data)}
            body += data
    shutil.rmtree(folder)
    meta = struct.pack("<II", 403_881_646, 1) + json.dumps({"files": directory}).encode()
    return body + meta + struct.pack("<II", len(meta), 0)


def measure(action, root, cache):
    """Measure one run, and print it as JSON: ms, CPU ms, peak MB, and the number of rows."""
    import pyarrow.dataset  # imports are not measured
    import tantivy

    import arrowlog
    import arrowlog.splits.search

    del pyarrow, tantivy
    table = arrowlog.Table(root, options={"splits.cache.path": cache})
    where = f"body indexquery '{QUERY}'" if action in ("cold", "warm") else None
    columns = ["id", "score"] if action == "numbers" else None
    plan = table.scan(where)

    def read():
        batches = plan.row_reader.batches(columns)
        return sum(batch.num_rows for batch in batches)

    if action == "warm":
        read()
    started, used = time.perf_counter(), time.process_time()
    answer = read()
    ms, cpu = 1000 * (time.perf_counter() - started), 1000 * (time.process_time() - used)
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"ms": ms, "cpu": cpu, "mb": round(mb), "answer": answer}))


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(sys.argv[2], int(sys.argv[3]))
    else:
        measure(*sys.argv[1:])

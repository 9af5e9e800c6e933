"""The benefit of checkpoints: opening with and without one, locally and over S3; codecs.

`replay` opens tables by number of commits, once by replay and once from a checkpoint of the last
commit. `checkpoint again` writes the next checkpoint, after ten commits of ten files. `codec`
compresses and decompresses the lines of commits. `slow wire` opens tables on an S3 server in memory
that delays and counts requests (`memory_s3`); deltalake opens a table of its own there.
"""

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarks.cases import Setting, row, table
from benchmarks.figures import ARROWLOG, Figure
from benchmarks.fresh import in_turn, measure
from benchmarks.memory_s3 import MemoryS3
from benchmarks.server import BUCKET
from benchmarks.tables import Shape

TITLES = {
    "replay": "open by replay",
    "replay checkpoint": "open from a checkpoint",
    "checkpoint again": "the next checkpoint, after ten commits of ten files",
    "codec": "compress and decompress the lines of commits",
    "codec ratio": "how many times smaller the lines become",
    "slow wire": "open over S3 with a delay",
    "wire requests": "open over S3: requests",
}
COMMITS, QUICK_COMMITS = (10, 100, 1000, 10_000), (10, 100)
AGAIN, QUICK_AGAIN = [Shape(5, 2000, 10), Shape(50, 20_000, 10)], [Shape(5, 2000, 10)]
LARGE = Shape(500, 20_000, 10)
CODECS = ("none", "gzip", "zstd", "snappy", "lz4")
TRIPS, QUICK_TRIPS = (20, 100), (20,)
WIRE_COMMITS, QUICK_WIRE_COMMITS = (1000, 10_000), (100,)
UPLOADS = 16  # concurrent
FILES_PER_COMMIT = 2
_GZIP_LEVEL = 6


def run(setting):
    """The job `replay`: opening, the next checkpoint, codecs; without peers."""
    alone = replace(setting, peers=())
    yield from replaying(alone)
    yield from again(alone)
    yield from codecs(alone)


def replaying(setting):
    """Open by replay, then from a checkpoint of the last commit, by number of commits."""
    for number, case in enumerate(("replay", "replay checkpoint")):
        for commits in QUICK_COMMITS if setting.quick else COMMITS:
            way, shape = _with_and_without(commits)[number]
            label = f"{commits:,} commits, {way}"
            few = setting.few()
            yield row(setting, case, shape, function="open", label=label, rounds=few, x=commits)


def _with_and_without(commits):
    plain = Shape(commits, FILES_PER_COMMIT)
    return ("by replay", plain), ("from a checkpoint", replace(plain, trailing=0))


def again(setting):
    """The next checkpoint, ten commits after the last."""
    shapes = QUICK_AGAIN if setting.quick else AGAIN
    for shape in [*shapes, *([LARGE] if setting.large else [])]:
        yield row(
            setting,
            "checkpoint again",
            shape,
            function="create_again",
            label=f"{shape.files:,} files",
            rounds=setting.few(),
            x=shape.files,
        )


def codecs(setting: Setting):
    """Compress and decompress a table's commits one by one, as a writer does."""
    from arrowlog.formats.indextables import compress, decompress

    shape = Shape(5, 200) if setting.quick else Shape(5, 2000)
    log = os.path.join(table(setting, ARROWLOG, shape), "_transaction_log")
    names = sorted(name for name in os.listdir(log) if name.endswith(".json"))[1:]
    texts = []
    for name in names:
        with open(os.path.join(log, name), "rb") as file:
            texts.append(decompress(file.read(), name, 1 << 30))
    size = sum(map(len, texts))
    ratios = []
    for codec in CODECS:
        packed, spent = _timed(lambda codec=codec: [compress(t, codec, _GZIP_LEVEL) for t in texts])
        _, back = _timed(lambda packed=packed: [decompress(data, "x", 1 << 30) for data in packed])
        label = f"{codec}, {size / 1e6:.1f} MB of lines"
        yield [Figure("codec", f"{label}: compress", ARROWLOG, (spent,))]
        yield [Figure("codec", f"{label}: decompress", ARROWLOG, (back,))]
        ratio = size / sum(map(len, packed))
        ratios.append(
            Figure("codec ratio", label, ARROWLOG, (round(ratio, 2),), unit="times smaller")
        )
    yield from ([figure] for figure in ratios)


def _timed(job):
    started = time.perf_counter()
    """The result of a job, and its milliseconds."""
    result = job()
    return result, (time.perf_counter() - started) * 1000


def wire(setting):
    """The job `wire`: tables with and without a checkpoint, on a server with latency."""
    engines = [ARROWLOG, *(engine for engine in setting.peers if engine == "deltalake")]
    with MemoryS3() as server:
        for commits in QUICK_WIRE_COMMITS if setting.quick else WIRE_COMMITS:
            for way, shape in _with_and_without(commits):
                title = f"{commits:,} commits, {way}"
                yield from _over_wire(setting, server, engines, title, shape)


def _over_wire(setting, server, engines, label, shape):
    server.round_trip = 0
    uris = {engine: f"s3://{BUCKET}/wire-{uuid.uuid4().hex}" for engine in engines}
    for engine, uri in uris.items():
        _upload(table(setting, engine, shape), uri, server.url)
    requests = {}

    def job(engine):
        server.counts.clear()
        result = measure(engine, "open_s3", uris[engine], server.url)
        # The first call measures twice (`without_imports`); the least count is that of one run.
        requests[engine] = min(sum(server.counts.values()), requests.get(engine, float("inf")))
        return result

    jobs = {engine: lambda engine=engine: job(engine) for engine in engines}
    for trip in QUICK_TRIPS if setting.quick else TRIPS:
        server.round_trip = trip / 1000
        yield in_turn("slow wire", f"{label}, + {trip} ms", jobs, setting.few())
    yield [
        Figure("wire requests", label, engine, (requests[engine],), unit="requests")
        for engine in engines
    ]


def s3_options(url):
    """Storage options for the server on this machine."""
    return {
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }


def _upload(root, uri, url):
    from arrowlog.storage import open_store

    store = open_store(uri, s3_options(url))

    def put(path):
        with open(path, "rb") as file:
            store.put_if_absent(os.path.relpath(path, root), file.read())

    logs = [name for name in ("_transaction_log", "_delta_log") if os.path.isdir(f"{root}/{name}")]
    paths = [
        os.path.join(folder, name)
        for log in logs
        for folder, _, names in os.walk(os.path.join(root, log))
        for name in names
    ]
    with ThreadPoolExecutor(UPLOADS) as pool:
        list(pool.map(put, paths))

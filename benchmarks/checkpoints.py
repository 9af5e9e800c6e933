"""What checkpoints are worth: opening with and without one, the next one, codecs; a slow wire.

Opening is measured by the number of commits, once by replay and once from a checkpoint of the last
one. `checkpoint again` is the next checkpoint after ten commits. Codecs are measured on the lines
of commits, which is what a log consists of. Over the wire, a server in memory delays and counts
requests (`memory_s3`); deltalake opens a table of its own there.
"""

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarks.cases import Setting, row, table
from benchmarks.figures import OURS, Figure
from benchmarks.fresh import in_turn, measure
from benchmarks.memory_s3 import MemoryS3
from benchmarks.server import BUCKET
from benchmarks.tables import Shape

TITLES = {
    "replay": "open by replay, and from a checkpoint",
    "checkpoint again": "the next checkpoint, after ten commits",
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
UPLOADS = 16  # at a time
FILES_A_COMMIT = 2
_LEVEL = 6  # of gzip


def run(setting):
    """All figures, row by row."""
    alone = replace(setting, peers=())
    yield from replaying(alone)
    yield from again(alone)
    yield from codecs(alone)


def replaying(setting):
    for commits in QUICK_COMMITS if setting.quick else COMMITS:
        for words, shape in _with_and_without(commits):
            label = f"{commits:,} commits, {words}"
            few = setting.few()
            yield row(setting, "replay", shape, function="open", label=label, rounds=few, x=commits)


def _with_and_without(commits):
    plain = Shape(commits, FILES_A_COMMIT)
    return ("by replay", plain), ("from a checkpoint", replace(plain, trailing=0))


def again(setting):
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
    """The lines of a table's commits, one commit after the other, as a writer compresses them."""
    from arrowlog.formats.indextables import compress, decompress

    shape = Shape(5, 200) if setting.quick else Shape(5, 2000)
    log = os.path.join(table(setting, OURS, shape), "_transaction_log")
    names = sorted(name for name in os.listdir(log) if name.endswith(".json"))[1:]
    texts = []
    for name in names:
        with open(os.path.join(log, name), "rb") as file:
            texts.append(decompress(file.read(), name, 1 << 30))
    size = sum(map(len, texts))
    ratios = []
    for codec in CODECS:
        packed, spent = _timed(lambda codec=codec: [compress(t, codec, _LEVEL) for t in texts])
        _, back = _timed(lambda packed=packed: [decompress(data, "x", 1 << 30) for data in packed])
        words = f"{codec}, {size / 1e6:.1f} MB of lines"
        yield [Figure("codec", f"{words}: compress", OURS, (spent,))]
        yield [Figure("codec", f"{words}: decompress", OURS, (back,))]
        ratio = size / sum(map(len, packed))
        ratios.append(Figure("codec ratio", words, OURS, (round(ratio, 2),), unit="times smaller"))
    yield from ([figure] for figure in ratios)


def _timed(job):
    started = time.perf_counter()
    found = job()
    return found, (time.perf_counter() - started) * 1000


def wire(setting):
    """The same tables with and without a checkpoint, behind a wire of some length."""
    engines = [OURS, *(who for who in setting.peers if who == "deltalake")]
    with MemoryS3() as server:
        for commits in QUICK_WIRE_COMMITS if setting.quick else WIRE_COMMITS:
            for words, shape in _with_and_without(commits):
                title = f"{commits:,} commits, {words}"
                yield from _over_wire(setting, server, engines, title, shape)


def _over_wire(setting, server, engines, words, shape):
    server.round_trip = 0
    uris = {who: f"s3://{BUCKET}/wire-{uuid.uuid4().hex}" for who in engines}
    for who, uri in uris.items():
        _upload(table(setting, who, shape), uri, server.url)
    asked = {}

    def job(who):
        server.counts.clear()
        found = measure(who, "open_s3", uris[who], server.url)
        # The first measurement is made twice: its least is what one run asks.
        asked[who] = min(sum(server.counts.values()), asked.get(who, float("inf")))
        return found

    jobs = {who: lambda who=who: job(who) for who in engines}
    for trip in QUICK_TRIPS if setting.quick else TRIPS:
        server.round_trip = trip / 1000
        yield in_turn("slow wire", f"{words}, + {trip} ms", jobs, setting.few())
    yield [Figure("wire requests", words, who, (asked[who],), unit="requests") for who in engines]


def s3_options(url):
    """How the server on this machine is reached."""
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

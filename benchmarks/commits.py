"""Commits of one add each, by 1, 4 and 16 processes at the same time, beside deltalake.

arrowlog appends with a handle that stays open. deltalake gets its lowest-level way of doing the
same, `DeltaTable.create_write_transaction` with one add; its handle does not follow its own
commits, so `update_incremental` comes before each one, which is faster than without. Neither makes
checkpoints. Every process commits once before the clock starts. On a disk, arrowlog waits until a
commit would survive a power cut (fsync of the file and of the folder); deltalake does not.

Afterwards every add that was acknowledged must be in the table once, or there is no figure. S3 is
a server in memory that delays its answers (`memory_s3`). PyIceberg is left out: it commits through
a catalog, whose time that would be.
"""

import contextlib
import multiprocessing
import os
import queue
import shutil
import threading
import time
import uuid

from benchmarks.figures import Figure
from benchmarks.fresh import Failed, progress, too_slow
from benchmarks.memory_s3 import MemoryS3
from benchmarks.server import BUCKET

ENGINES = ("arrowlog", "deltalake")
TITLES = {
    "commit rate": "commit: one file each",
    "commit p50": "commit p50: half took at most",
    "commit p99": "commit p99: took at most",
    "commit failures": "commit failures: in a run",
    "commit requests": "commit requests: to S3",
}
QUIET = "refresh with nothing new"
# `disk` and `s3` are commits, shared by the processes; `trips` milliseconds, and
# the processes of each.
FULL = {
    "processes": (1, 4, 16),
    "disk": 400,
    "s3": 160,
    "rounds": 3,
    "trips": {0: (1, 4, 16), 20: (1, 4, 16)},
}
QUICK = {"processes": (1, 4), "disk": 60, "s3": 20, "rounds": 1, "trips": {20: (1,)}}
LATE_SECONDS = 600


class Arrowlog:
    """A handle, and how it commits."""

    def __init__(self, uri, options):
        import arrowlog.table

        self._library = arrowlog
        self._table = arrowlog.Table(uri, options, options={"checkpoint.enabled": False})

    @staticmethod
    def create(uri, options):
        import pyarrow as pa

        import arrowlog.table

        schema = pa.schema([("id", pa.int64())])
        arrowlog.Table.create(uri, schema, storage_options=options)

    def commit(self, path):
        add = self._library.add_file(path, size=1000, modification_time=1, num_records=10)
        self._table.append([add])

    def refresh(self):
        self._table.refresh()

    def paths(self):
        return self._table.refresh().files["path"].to_pylist()


class Deltalake:
    """The same."""

    def __init__(self, uri, options):
        import deltalake
        from deltalake.transaction import AddAction

        self._add = AddAction
        self._table = deltalake.DeltaTable(uri, storage_options=_for_delta(options))
        self._schema = self._table.schema()
        self._after = deltalake.PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        )

    @staticmethod
    def create(uri, options):
        import deltalake
        import pyarrow as pa

        schema = deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())]))
        if not options:
            os.makedirs(uri)
        deltalake.DeltaTable.create(uri, schema, storage_options=_for_delta(options))

    def commit(self, path):
        self._table.update_incremental()
        add = self._add(path, 1000, {}, 1, True, '{"numRecords":10}')
        self._table.create_write_transaction(
            [add], "append", self._schema, post_commithook_properties=self._after
        )

    def refresh(self):
        self._table.update_incremental()

    def paths(self):
        self.refresh()
        return self._table.get_add_actions(flatten=True)["path"].to_pylist()


def _for_delta(options):
    if not options:
        return None
    return {**options, "AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}


KINDS = {"arrowlog": Arrowlog, "deltalake": Deltalake}


def work(engine, uri, options, number, count, turn, gate, results):
    """One process: warm up, wait for the others, commit, tell what came of it."""
    try:
        handle = KINDS[engine](uri, options)
        with turn:
            handle.commit(f"warm-{number}.parquet")
    except BaseException:
        gate.abort()  # nobody waits for this process
        raise
    gate.wait(LATE_SECONDS)  # all are warm
    gate.wait(LATE_SECONDS)  # the requests are counted from here on
    started = time.monotonic()
    spent, good, wrong = [], [], []
    for step in range(count):
        path = f"p{number}-{step}.parquet"
        begun = time.monotonic()
        try:
            handle.commit(path)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the commit has failed
            wrong.append(f"{type(error).__name__}: {error}")
        else:
            good.append(path)
        spent.append(time.monotonic() - begun)
    results.put((started, time.monotonic(), spent, good, wrong))


def race(engine, uri, options, processes, total, server=None):
    """Many processes on one new table; commits a second, and what it took."""
    KINDS[engine].create(uri, options)
    spawn = multiprocessing.get_context("spawn")
    turn, gate, results = spawn.Lock(), spawn.Barrier(processes + 1), spawn.Queue()
    shared = (turn, gate, results)
    workers = [
        spawn.Process(
            target=work,
            args=(engine, uri, options, number, total // processes, *shared),
            daemon=True,
        )
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    try:
        gate.wait(LATE_SECONDS)
        if server is not None:
            server.counts.clear()
        gate.wait(LATE_SECONDS)
        found = [results.get(timeout=LATE_SECONDS) for _ in workers]
    except (threading.BrokenBarrierError, queue.Empty):
        raise Failed(f"{engine}: a process failed, or took {LATE_SECONDS} s") from None
    requests = {} if server is None else dict(server.counts)
    for worker in workers:
        worker.join()
    good = [f"warm-{number}.parquet" for number in range(processes)]
    good += [path for one in found for path in one[3]]
    ghosts = check(engine, KINDS[engine](uri, options).paths(), good)
    return {**summary(found, requests), "ghosts": ghosts}


def check(engine, live, acknowledged):
    """What was acknowledged is there, once; returns how many failed, and are there all the same."""
    lost = set(acknowledged) - set(live)
    if lost or len(live) != len(set(live)):
        raise Failed(f"{engine}: {len(lost)} commits are lost, of {len(live)} live files")
    return len(live) - len(acknowledged)


def summary(found, requests):
    started, ended, spent, good, wrong = zip(*found, strict=True)
    commits = sum(map(len, good))
    times = sorted(time for some in spent for time in some)
    return {
        "rate": commits / (max(ended) - min(started)),
        "p50": times[len(times) // 2] * 1000,
        "p99": times[min(int(len(times) * 0.99), len(times) - 1)] * 1000,
        "failed": sum(map(len, wrong)),
        "errors": sorted({text.partition("\n")[0][:200] for some in wrong for text in some}),
        **({"asked": sum(requests.values()) / max(commits, 1)} if requests else {}),
    }


def run(setting):
    """All places and numbers of processes: rates as they come, and then what each commit took."""
    size = QUICK if setting.quick else FULL
    found = []  # [(title, {engine: [summary, …]})]
    for title, runs in _places(setting, size):
        found.append((title, runs))
        if title != QUIET:
            yield _row("commit rate", title, runs, "rate", "a second")
    for case, name, unit in (
        ("commit p50", "p50", "ms"),
        ("commit p99", "p99", "ms"),
        ("commit failures", "failed", "failed"),
        ("commit requests", "asked", "requests"),
    ):
        for title, runs in found:
            if all(name in one for some in runs.values() for one in some):
                yield _row(case, title, runs, name, unit)


def _row(case, title, runs, name, unit):
    return [
        Figure(
            case,
            title,
            engine,
            tuple(one[name] for one in some),
            unit=unit,
            note=_note(some) if name == "failed" else "",
        )
        for engine, some in runs.items()
    ]


def _note(runs):
    """Why commits failed, and which of them are in the table all the same."""
    errors = sorted({text for run in runs for text in run["errors"]})
    ghosts = sum(run["ghosts"] for run in runs)
    told = [f"failed with {errors[0]}"] if errors else []
    told += [f"{ghosts} that failed are in the table all the same"] if ghosts else []
    return "; ".join(told)


def _places(setting, size):
    with contextlib.ExitStack() as places:
        root = os.path.join(setting.folder, f"commits-{uuid.uuid4().hex}")
        places.callback(shutil.rmtree, root, ignore_errors=True)
        for count in size["processes"]:
            title = f"disk, {_processes(count)}"
            rounds = min(setting.rounds, size["rounds"])
            yield title, compare(title, _on_disk(root), count, size["disk"], rounds)
        server = places.enter_context(MemoryS3())
        for trip, processes in size["trips"].items():
            server.round_trip = trip / 1000
            for count in processes:
                title = f"S3 + {trip} ms, {_processes(count)}"
                yield title, compare(title, _on_s3(server.url), count, size["s3"], 1, server)
        yield QUIET, {engine: [_quiet(engine, server)] for engine in ENGINES}


def _quiet(engine, server):
    """What a refresh asks when nobody has committed."""
    uri, options = _on_s3(server.url)(engine)
    KINDS[engine].create(uri, options)
    handle = KINDS[engine](uri, options)
    handle.commit("a.parquet")
    handle.refresh()
    server.counts.clear()
    handle.refresh()
    return {"asked": sum(server.counts.values())}


def _processes(count):
    return f"{count} process{'es' * (count > 1)}"


def compare(title, place, processes, total, rounds, server=None):
    """Ours and theirs in turn, each time on a table of its own; who takes long has fewer turns."""
    found = {engine: [] for engine in ENGINES}
    took = {}
    for number in range(1, rounds + 1):
        progress(f"commit, {title}: round {number} of {rounds}")
        for engine in ENGINES:
            if too_slow(number, took.get(engine, 0)):
                continue
            started = time.monotonic()
            uri, options = place(engine)
            found[engine].append(race(engine, uri, options, processes, total, server))
            took.setdefault(engine, time.monotonic() - started)
    progress("")
    return found


def _on_disk(root):
    return lambda engine: (os.path.join(root, f"{engine}-{uuid.uuid4().hex}"), {})


def _on_s3(url):
    options = {
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }
    return lambda engine: (f"s3://{BUCKET}/{engine}-{uuid.uuid4().hex}", options)

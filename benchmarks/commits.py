"""Commits of one add each by 1, 4 and 16 concurrent processes, for arrowlog and deltalake.

arrowlog appends with a handle that stays open. deltalake uses its lowest-level call for the same,
`DeltaTable.create_write_transaction` with one add. Its handle does not follow its own commits, so
`update_incremental` precedes each commit, which is faster than leaving it out. Neither writes
checkpoints. Every process commits once before the clock starts. On a disk, arrowlog waits until a
commit would survive a power failure (fsync of the file and of the folder); deltalake does not.

After a race, every acknowledged add must be in the table exactly once, or the run fails. S3 is a
server in memory that delays its responses (`memory_s3`). PyIceberg is not measured: it commits
through a catalog, whose time would be measured instead.
"""

import contextlib
import multiprocessing
import os
import queue
import shutil
import threading
import time
import uuid

from benchmarks.figures import FAILED, PER_SECOND, Figure
from benchmarks.fresh import Failed, progress, too_slow
from benchmarks.memory_s3 import MemoryS3
from benchmarks.server import BUCKET

ENGINES = ("arrowlog", "deltalake")
TITLES = {
    "commit rate": "commit: one file each",
    "commit p50": "commit p50",
    "commit p99": "commit p99",
    "commit failures": "commit failures: per run",
    "commit requests": "commit requests: to S3, per commit",
}
QUIET = "refresh with nothing new"
# `disk` and `s3` are the total numbers of commits of all processes; `trips` maps the latency of S3
# in milliseconds to numbers of processes.
FULL = {
    "processes": (1, 4, 16),
    "disk": 400,
    "s3": 160,
    "rounds": 3,
    "trips": {0: (1, 4, 16), 20: (1, 4, 16)},
}
QUICK = {"processes": (1, 4), "disk": 60, "s3": 20, "rounds": 1, "trips": {20: (1,)}}
TIMEOUT_SECONDS = 600


class Arrowlog:
    """An open arrowlog table."""

    def __init__(self, uri, options):
        import arrowlog.table

        self._library = arrowlog
        self._table = arrowlog.Table(uri, options, options={"checkpoint.enabled": False})

    @staticmethod
    def create(uri, options):
        """Create an empty table."""
        import pyarrow as pa

        import arrowlog.table

        schema = pa.schema([("id", pa.int64())])
        arrowlog.Table.create(uri, schema, storage_options=options)

    def commit(self, path):
        """Append one file."""
        add = self._library.add_file(path, size=1000, modification_time=1, num_records=10)
        self._table.append([add])

    def refresh(self):
        """Read new commits."""
        self._table.refresh()

    def paths(self):
        """The paths of all live files."""
        return self._table.refresh().files["path"].to_pylist()


class Deltalake:
    """An open deltalake table, with the same methods."""

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
        """Create an empty table."""
        import deltalake
        import pyarrow as pa

        schema = deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())]))
        if not options:
            os.makedirs(uri)
        deltalake.DeltaTable.create(uri, schema, storage_options=_for_delta(options))

    def commit(self, path):
        """Append one file."""
        self._table.update_incremental()
        add = self._add(path, 1000, {}, 1, True, '{"numRecords":10}')
        self._table.create_write_transaction(
            [add], "append", self._schema, post_commithook_properties=self._after
        )

    def refresh(self):
        """Read new commits."""
        self._table.update_incremental()

    def paths(self):
        """The paths of all live files."""
        self.refresh()
        return self._table.get_add_actions(flatten=True)["path"].to_pylist()


def _for_delta(options):
    if not options:
        return None
    return {**options, "AWS_ALLOW_HTTP": "true", "AWS_CONDITIONAL_PUT": "etag"}


HANDLES = {"arrowlog": Arrowlog, "deltalake": Deltalake}


def work(engine, uri, options, number, count, lock, barrier, results):
    """A process of a race: warms up, waits for the others, commits, reports to `results`."""
    try:
        handle = HANDLES[engine](uri, options)
        with lock:
            handle.commit(f"warm-{number}.parquet")
    except BaseException:
        barrier.abort()  # so that no process waits for this one
        raise
    barrier.wait(TIMEOUT_SECONDS)  # all processes are warm
    barrier.wait(TIMEOUT_SECONDS)  # requests are counted from here on
    started = time.monotonic()
    seconds, paths, errors = [], [], []
    for step in range(count):
        path = f"p{number}-{step}.parquet"
        commit_started = time.monotonic()
        try:
            handle.commit(path)
        except Exception as error:  # noqa: BLE001 -- any error is a failed commit
            errors.append(f"{type(error).__name__}: {error}")
        else:
            paths.append(path)
        seconds.append(time.monotonic() - commit_started)
    results.put((started, time.monotonic(), seconds, paths, errors))


def race(engine, uri, options, processes, total, server=None):
    """Concurrent commits to a new table: the result of `summary`, and the number of "ghosts"."""
    HANDLES[engine].create(uri, options)
    spawn = multiprocessing.get_context("spawn")
    lock, barrier, results = spawn.Lock(), spawn.Barrier(processes + 1), spawn.Queue()
    shared = (lock, barrier, results)
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
        barrier.wait(TIMEOUT_SECONDS)
        if server is not None:
            server.counts.clear()
        barrier.wait(TIMEOUT_SECONDS)
        outcomes = [results.get(timeout=TIMEOUT_SECONDS) for _ in workers]
    except (threading.BrokenBarrierError, queue.Empty):
        raise Failed(f"{engine}: a process failed, or took {TIMEOUT_SECONDS} s") from None
    requests = {} if server is None else dict(server.counts)
    for worker in workers:
        worker.join()
    acknowledged = [f"warm-{number}.parquet" for number in range(processes)]
    acknowledged += [path for _, _, _, paths, _ in outcomes for path in paths]
    ghosts = check(engine, HANDLES[engine](uri, options).paths(), acknowledged)
    return {**summary(outcomes, requests), "ghosts": ghosts}


def check(engine, live, acknowledged):
    """Check that every acknowledged add is live exactly once.

    Returns the number of "ghosts": adds whose commit was reported as failed, and which are live.
    """
    lost = set(acknowledged) - set(live)
    if lost or len(live) != len(set(live)):
        raise Failed(f"{engine}: {len(lost)} commits are lost; {len(live)} live files")
    return len(live) - len(acknowledged)


def summary(outcomes, requests):
    """Rate, latencies in ms, number of failures and their errors, requests per commit (on S3)."""
    started, ended, seconds, paths, errors = zip(*outcomes, strict=True)
    commits = sum(map(len, paths))
    times = sorted(time for some in seconds for time in some)
    return {
        "rate": commits / (max(ended) - min(started)),
        "p50": times[len(times) // 2] * 1000,
        "p99": times[min(int(len(times) * 0.99), len(times) - 1)] * 1000,
        "failed": sum(map(len, errors)),
        "errors": sorted({text.partition("\n")[0][:200] for some in errors for text in some}),
        **({"requests": sum(requests.values()) / max(commits, 1)} if requests else {}),
    }


def run(setting):
    """The job `commit`: rates as the races finish, then latencies, failures and requests."""
    size = QUICK if setting.quick else FULL
    races = []  # [(title, {engine: [summary, …]})]
    for title, runs in _races(setting, size):
        races.append((title, runs))
        if title != QUIET:
            yield _row("commit rate", title, runs, "rate", PER_SECOND)
    for case, name, unit in (
        ("commit p50", "p50", "ms"),
        ("commit p99", "p99", "ms"),
        ("commit failures", "failed", FAILED),
        ("commit requests", "requests", "requests"),
    ):
        for title, runs in races:
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
    """Why commits failed, and how many of these commits are in the table nevertheless."""
    errors = sorted({text for run in runs for text in run["errors"]})
    ghosts = sum(run["ghosts"] for run in runs)
    parts = [f"failed with {errors[0]}"] if errors else []
    parts += [f"{ghosts} commits reported as failed are in the table"] if ghosts else []
    return "; ".join(parts)


def _races(setting, size):
    """Yields (title, {engine: [summary, …]}) for each place and number of processes."""
    with contextlib.ExitStack() as stack:
        root = os.path.join(setting.folder, f"commits-{uuid.uuid4().hex}")
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        for count in size["processes"]:
            title = f"disk, {_processes(count)}"
            rounds = min(setting.rounds, size["rounds"])
            yield title, compare(title, _on_disk(root), count, size["disk"], rounds)
        server = stack.enter_context(MemoryS3())
        for trip, processes in size["trips"].items():
            server.round_trip = trip / 1000
            for count in processes:
                title = f"S3 + {trip} ms, {_processes(count)}"
                yield title, compare(title, _on_s3(server.url), count, size["s3"], 1, server)
        yield QUIET, {engine: [_quiet(engine, server)] for engine in ENGINES}


def _quiet(engine, server):
    """The number of requests of a refresh without new commits."""
    uri, options = _on_s3(server.url)(engine)
    HANDLES[engine].create(uri, options)
    handle = HANDLES[engine](uri, options)
    handle.commit("a.parquet")
    handle.refresh()
    server.counts.clear()
    handle.refresh()
    return {"requests": sum(server.counts.values())}


def _processes(count):
    return f"{count} process{'es' * (count > 1)}"


def compare(title, place, processes, total, rounds, server=None):
    """The summaries of races on new tables, alternating between engines: {engine: [summary, …]}."""
    summaries = {engine: [] for engine in ENGINES}
    first_seconds = {}
    for number in range(1, rounds + 1):
        progress(f"commit, {title}: round {number} of {rounds}")
        for engine in ENGINES:
            if too_slow(number, first_seconds.get(engine, 0)):
                continue
            started = time.monotonic()
            uri, options = place(engine)
            summaries[engine].append(race(engine, uri, options, processes, total, server))
            first_seconds.setdefault(engine, time.monotonic() - started)
    progress("")
    return summaries


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

"""Commits of one add each, by 1, 4 and 16 processes at the same time, beside deltalake.

arrowlog appends with a handle that stays open. deltalake gets its lowest-level way of doing the
same, `DeltaTable.create_write_transaction` with one add; its handle does not follow its own
commits, so `update_incremental` comes before each one, which is faster than without. Neither makes
checkpoints. Every process commits once before the clock starts. On a disk, arrowlog waits until a
commit would survive a power cut (fsync of the file and of the folder); deltalake does not.

Afterwards every add that was acknowledged must be in the table once, or there is no figure.
"""

import contextlib
import multiprocessing
import os
import queue
import shutil
import statistics
import threading
import time
import uuid

from benchmarks.proxy import Proxy
from benchmarks.server import BUCKET, NoServer, seaweedfs

ENGINES = ("arrowlog", "deltalake")
PROCESSES = (1, 4, 16)
TOTAL_DISK, TOTAL_S3 = 400, 160  # commits, shared by the processes
ROUNDS = 3
ROUND_TRIPS = (0, 20)  # milliseconds
QUICK = {"processes": (1, 4), "disk": 60, "s3": 20, "rounds": 1, "trips": (20,)}
LATE_SECONDS = 600


class Arrowlog:
    """A handle, and how it commits."""

    def __init__(self, uri, options):
        import arrowlog

        self._library = arrowlog
        self._table = arrowlog.Table(uri, options, options={"checkpoint.enabled": False})

    @staticmethod
    def create(uri, options):
        import pyarrow as pa

        import arrowlog

        schema = pa.schema([("id", pa.int64())])
        arrowlog.Table.create(uri, schema, storage_options=options)

    def commit(self, path):
        add = self._library.add_file(path, size=1000, modification_time=1, num_records=10)
        return self._table.append([add]).attempts

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

    def paths(self):
        self._table.update_incremental()
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
    spent, tries, good, wrong = [], 0, [], []
    for step in range(count):
        path = f"p{number}-{step}.parquet"
        begun = time.monotonic()
        try:
            tries += handle.commit(path) or 0
        except Exception as error:  # noqa: BLE001 -- whatever it is, the commit has failed
            wrong.append(f"{type(error).__name__}: {error}")
        else:
            good.append(path)
        spent.append(time.monotonic() - begun)
    results.put((started, time.monotonic(), spent, tries, good, wrong))


def race(engine, uri, options, processes, total, proxy=None):
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
        if proxy is not None:
            proxy.counts.clear()
        gate.wait(LATE_SECONDS)
        found = [results.get(timeout=LATE_SECONDS) for _ in workers]
    except (threading.BrokenBarrierError, queue.Empty):
        raise SystemExit(f"{engine}: a process failed, or took {LATE_SECONDS} s") from None
    requests = {} if proxy is None else dict(proxy.counts)
    for worker in workers:
        worker.join()
    good = [f"warm-{number}.parquet" for number in range(processes)]
    good += [path for one in found for path in one[4]]
    ghosts = check(engine, KINDS[engine](uri, options).paths(), good)
    return {**summary(found, requests), "ghosts": ghosts}


def check(engine, live, acknowledged):
    """What was acknowledged is there, once; returns how many failed, and are there all the same."""
    lost = set(acknowledged) - set(live)
    if lost or len(live) != len(set(live)):
        raise SystemExit(f"{engine}: {len(lost)} commits are lost, of {len(live)} live files")
    return len(live) - len(acknowledged)


def summary(found, requests):
    started, ended, spent, tries, good, wrong = zip(*found, strict=True)
    commits = sum(map(len, good))
    times = sorted(time for some in spent for time in some)
    return {
        "rate": commits / (max(ended) - min(started)),
        "p50": times[len(times) // 2] * 1000,
        "p99": times[min(int(len(times) * 0.99), len(times) - 1)] * 1000,
        "tries": sum(tries) / commits if commits and sum(tries) else None,
        "failed": sum(map(len, wrong)),
        "errors": sorted({text.partition("\n")[0][:200] for some in wrong for text in some}),
        "requests": {name: count / max(commits, 1) for name, count in sorted(requests.items())},
    }


def middle(runs):
    """The run with the median rate, with the failures of all."""
    ranked = sorted(runs, key=lambda run: run["rate"])
    rate = statistics.median(run["rate"] for run in runs)
    told = {name: sum(run[name] for run in runs) for name in ("failed", "ghosts")}
    told["errors"] = sorted({text for run in runs for text in run["errors"]})
    return {**ranked[len(ranked) // 2], "rate": rate, **told}


def compare(title, place, processes, total, rounds, proxy=None):
    """Ours and theirs in turn, each time on a table of its own."""
    found = {engine: [] for engine in ENGINES}
    for _ in range(rounds):
        for engine in ENGINES:
            uri, options = place(engine)
            found[engine].append(race(engine, uri, options, processes, total, proxy))
    rows = {engine: middle(runs) for engine, runs in found.items()}
    show(title, rows)
    return rows


def show(title, rows):
    print(f"{title:<24}", end="")
    for row in rows.values():
        tries = "" if row["tries"] is None else f"{row['tries']:.1f}"
        asked = sum(row["requests"].values())
        print(f"{row['rate']:>10.1f}{row['p50']:>7.0f}{row['p99']:>7.0f}{tries:>6}", end="")
        print(f"{row['failed']:>6}{f'{asked:.1f}' if asked else '':>6}", end="")
    ours, theirs = rows.values()
    print(f"{ours['rate'] / theirs['rate'] if theirs['rate'] else float('inf'):>8.1f}x", flush=True)


def head():
    print(f"{'commits a second':<24}", end="")
    for engine in ENGINES:
        print(f"{engine:>10}{'p50':>7}{'p99':>7}{'tries':>6}{'fail':>6}{'reqs':>6}", end="")
    print(f"{'ratio':>9}", flush=True)


def run(folder, *, quick, rounds=None, processes=None, disk=None, s3=None):
    """All places and numbers of processes; returns the figures."""
    rounds = rounds or (QUICK["rounds"] if quick else ROUNDS)
    processes = processes or (QUICK["processes"] if quick else PROCESSES)
    disk = disk or (QUICK["disk"] if quick else TOTAL_DISK)
    s3 = s3 or (QUICK["s3"] if quick else TOTAL_S3)
    head()
    figures = {}
    with contextlib.ExitStack() as places:
        root = os.path.join(folder, f"commits-{uuid.uuid4().hex}")
        places.callback(shutil.rmtree, root, ignore_errors=True)
        for count in processes:
            title = f"disk, {count} proc."
            figures[title] = compare(title, _on_disk(root), count, disk, rounds)
        try:
            proxy = places.enter_context(Proxy(places.enter_context(seaweedfs())))
        except NoServer as error:
            print(f"No figures for S3: {error}")
            return figures
        for trip in QUICK["trips"] if quick else ROUND_TRIPS:
            proxy.round_trip = trip / 1000
            for count in processes:
                title = f"S3 + {trip} ms, {count} proc."
                figures[title] = compare(title, _on_s3(proxy.url), count, s3, rounds, proxy)
    _tell(figures)
    return figures


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


def _tell(figures):
    """What one uncontended append asks of a server, and why commits failed."""
    alone = [rows for title, rows in figures.items() if "S3" in title and ", 1 proc." in title]
    for engine in ENGINES if alone else ():
        asked = ", ".join(f"{n:.2f} {name}" for name, n in alone[0][engine]["requests"].items())
        print(f"requests for an uncontended append, {engine}: {asked}")
    for engine in ENGINES:
        errors = {text for rows in figures.values() for text in rows[engine]["errors"]}
        for text in sorted(errors)[:3]:
            print(f"{engine} failed with {text}")
        ghosts = sum(rows[engine]["ghosts"] for rows in figures.values())
        if ghosts:
            print(f"{engine}: {ghosts} commits failed, and are in the table all the same")
TITLES = {}

"""Measure the constants of `benchmarks.scale` at small sizes.

python -m benchmarks.scale --measure     some minutes; writes docs/scale-constants.json

Memory and time are measured in fresh processes at two sizes, and the slope between them is the
constant. S3 is SeaweedFS on this machine, behind a proxy with a given latency.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import statistics
import time

from benchmarks import beyond, capped
from benchmarks.proxy import Proxy
from benchmarks.server import BUCKET, seaweedfs

SMALL, LARGE = 200_000, 600_000  # adds of the two logs between which the slope is taken
COMMITS, ADDS = 1_000, 5  # of a log with small commits
OBJECTS = 2_000  # on S3
TRIP = 0.02  # seconds of a round trip
_REPEATED = 5
_RACES = 3
MILLION = 1_000_000


# Jobs in fresh processes.


def _replay(root):
    import arrowlog.table

    table = arrowlog.Table(root)
    return lambda: table.snapshot().files.num_rows


def _state(root):
    """All files of a table with a checkpoint, in memory."""
    import arrowlog.table

    return lambda: arrowlog.Table(root).snapshot().files.num_rows


def _checkpoint(root):
    import arrowlog.table

    table = arrowlog.Table(root, options={"checkpoint.format": "both"})
    return lambda: table.checkpoint().num_files


def _parquet(root):
    """The Parquet form of a checkpoint alone, of a state that is in memory."""
    import arrowlog.table
    from arrowlog.config import resolve
    from arrowlog.snapshot.checkpoint.parquet import write_parquet_form

    table = arrowlog.Table(root)
    state = table.snapshot().state
    state.adds.num_rows  # noqa: B018 -- loads the state
    store = table._store  # noqa: SLF001 -- there is no public way to write one form alone
    details = {"now_ms": 1, "new_id": "0" * 12}
    return lambda: write_parquet_form(store, state, resolve(), **details).num_files


def _verify(form):
    def make(root):
        import arrowlog.table
        from arrowlog.config import resolve
        from arrowlog.snapshot.listing import list_log
        from arrowlog.snapshot.loader import verify_checkpoint

        table = arrowlog.Table(root)
        store = table._store  # noqa: SLF001 -- this step of cleanup alone
        listing = list_log(store)
        version = max(v for v in listing.checkpoints if listing.checkpoint_form(v, "json"))
        return lambda: len(verify_checkpoint(store, listing, version, resolve(), form))

    return make


def _history(root):
    import arrowlog.table

    query = "SELECT operation, count(*), sum(adds), sum(bytes) FROM commits GROUP BY ALL"
    return lambda: len(arrowlog.Table(root).sql(query).fetchall())


JOBS = {
    "replay": _replay,
    "state": _state,
    "parquet": _parquet,
    "checkpoint": _checkpoint,
    "verify-json": _verify("json"),
    "verify-parquet": _verify("parquet"),
    "history": _history,
}


def job(name, root):
    """Run a job in this process; prints seconds, CPU seconds and growth of memory in MB as JSON."""
    work = JOBS[name](root)
    before = capped.resident(os.getpid())[0]
    print("ready", flush=True)
    input()
    cpu, started = time.process_time(), time.perf_counter()
    work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "mb": peak - before}))


def fresh(name, root):
    """Run a job in a fresh process: {"seconds", "cpu", "mb"}."""
    result = capped.run(["-m", "benchmarks.constants", name, root])
    if not result["output"]:
        raise SystemExit(f"{name} failed:\n{result['errors']}")
    return json.loads(result["output"])


def slope(small, large, name, by=LARGE - SMALL):
    """The cost of a million more."""
    return max(large[name] - small[name], 0.0) / by * MILLION


# Measurements: each function returns constants by name.


def of_large_states(folder):
    """Replay, full state, checkpoints and their verification, per million files."""
    roots = {size: beyond.build(folder, size) for size in (SMALL, LARGE)}
    constants, runs = {}, {}
    for name in ("replay", "parquet", "checkpoint", "state", "verify-json", "verify-parquet"):
        runs[name] = [fresh(name, roots[size]) for size in (SMALL, LARGE)]
        if name == "parquet":
            for root in roots.values():
                beyond.delete_checkpoints(root)
        constants |= {
            f"{name.replace('-', '_')}_s_per_m": slope(*runs[name], "seconds"),
            f"{name.replace('-', '_')}_cpu_s_per_m": slope(*runs[name], "cpu"),
            f"{name.replace('-', '_')}_mb_per_m": slope(*runs[name], "mb"),
        }
    live = [beyond.live(size) for size in (SMALL, LARGE)]
    sizes = [checkpoint_bytes(roots[size]) for size in (SMALL, LARGE)]
    for form in ("json", "parquet"):
        constants[f"{form}_bytes_per_file"] = (sizes[1][form] - sizes[0][form]) / (
            live[1] - live[0]
        )
    (few_bytes, few), (many_bytes, many) = (manifest_of(roots[size]) for size in (SMALL, LARGE))
    constants["manifest_bytes_per_group"] = (many_bytes - few_bytes) / (many - few)
    return constants


def manifest_of(root):
    """Bytes of the manifest of a Parquet checkpoint, and its number of row groups."""
    import arrowlog.table

    inner = os.path.join(root, "_transaction_log", "_checkpoints")
    (name,) = [name for name in os.listdir(inner) if name.endswith(".json")]
    groups = arrowlog.Table(root).snapshot().state.source.rows.parts.manifest.index.num_rows
    return os.path.getsize(f"{inner}/{name}"), groups


def checkpoint_bytes(root):
    """Bytes of a checkpoint by form."""
    log = os.path.join(root, "_transaction_log")
    inner = os.path.join(log, "_checkpoints")
    json_ = [f"{log}/{name}" for name in os.listdir(log) if ".checkpoint." in name]
    parquet = [f"{inner}/{name}" for name in os.listdir(inner)]
    return {
        form: sum(map(os.path.getsize, names))
        for form, names in (("json", json_), ("parquet", parquet))
    }


def of_plans(folder):
    """A cold plan on a checkpoint: fixed cost, and cost per row group that it reads."""
    import arrowlog.table
    from arrowlog.snapshot.checkpoint.rows import ROW_GROUP_FILES

    root = beyond.place(folder, LARGE)
    arrowlog.Table(root).checkpoint()  # does nothing if it exists
    points = []
    for days in (1, 30, 90, 240):
        where = f"date BETWEEN '2024-01-10' AND '2024-{(9 + days) // 30 + 1:02d}-28'"
        where = "date = '2024-01-10'" if days == 1 else where
        times = []
        for _ in range(_REPEATED):
            table = arrowlog.Table(root)
            started = time.process_time()
            plan = table.scan(where)
            count = plan.num_files
            times.append(time.process_time() - started)
        parts = table.snapshot().state.source.rows.parts
        groups = max(1, round(count / ROW_GROUP_FILES + 0.5))
        points.append((groups, min(times) * 1000, parts.bytes_read))
    line = statistics.linear_regression(
        [groups for groups, _, _ in points], [ms for _, ms, _ in points]
    )
    largest = max(points)
    return {
        "plan_ms": max(line.intercept, min(ms for _, ms, _ in points) / 2),
        "plan_ms_per_group": line.slope,
        "plan_bytes_per_group": largest[2] / largest[0],
        "group_rows": ROW_GROUP_FILES,
    } | of_manifests(root)


def of_manifests(root):
    """The cost of decoding a manifest with many row groups: those of a real one, repeated."""
    import arrowlog.table
    from arrowlog.snapshot.checkpoint.parts import decode_manifest, encode_manifest

    own = arrowlog.Table(root).snapshot().state.source.rows.parts.manifest
    seconds = {}
    for groups in (400, 4_000):
        data = encode_manifest(_tiled(own, groups), "0" * 12, 1, "benchmark")
        times = [
            _cpu_seconds(lambda data=data: decode_manifest(data, own.version, ""))
            for _ in range(_REPEATED)
        ]
        seconds[groups] = min(times)
    return {"manifest_us_per_group": max(seconds[4_000] - seconds[400], 0) / 3_600 * 1e6}


def _tiled(own, groups, per_part=8):
    import pyarrow as pa

    from arrowlog.snapshot.checkpoint.parts import CheckpointManifest, CheckpointPart

    times = -(-groups // own.index.num_rows)
    index = pa.concat_tables([own.index] * times).slice(0, groups).combine_chunks()
    rows = per_part * 16_384
    crc = "crc32:12345678"
    parts = [
        CheckpointPart(
            f"{own.version:020d}.checkpoint.{i:012x}.parquet", 10**7, rows, per_part, crc, 1, crc
        )
        for i in range(groups // per_part)
    ]
    rest = (own.columns, own.recipe, index, own.timestamp, {})
    return CheckpointManifest(
        own.version, own.protocol, own.metadata, groups * 16_384, tuple(parts), *rest
    )


def _timed(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cpu_seconds(work):
    """CPU seconds, which other processes on the machine do not affect."""
    started = time.process_time()
    work()
    return time.process_time() - started


def of_commits(folder):
    """A log of small commits: their size, and the cost of replay, history and refresh."""
    import arrowlog.table

    root = os.path.join(folder, f"commits-{COMMITS}x{ADDS}")
    shutil.rmtree(root, ignore_errors=True)
    table = _created(root)
    for number in range(COMMITS):
        table.append(_files(number, ADDS))
    log = os.path.join(root, "_transaction_log")
    several = statistics.median(
        os.path.getsize(f"{log}/{version:020d}.json") for version in range(1, COMMITS)
    )
    shutil.rmtree(f"{root}-1", ignore_errors=True)
    alone = _created(f"{root}-1")
    for number in range(20):
        alone.append(_files(number, 1))
    one = os.path.getsize(f"{root}-1/_transaction_log/{10:020d}.json")
    gone = [add.path for add in _files(3, 1)]
    few = alone.remove(gone).version
    more = alone.remove([add.path for each in range(10, 15) for add in _files(each, 1)]).version
    removes = [os.path.getsize(f"{root}-1/_transaction_log/{v:020d}.json") for v in (few, more)]
    more = COMMITS - alone.version  # the fixed cost is in both logs, and cancels out
    replay, history = (
        (fresh(name, root)["cpu"] - fresh(name, f"{root}-1")["cpu"]) / more
        for name in ("replay", "history")
    )
    constants = {
        "commit_adds": ADDS,
        "commit_bytes_per_add": (several - one) / (ADDS - 1),
        "commit_bytes": one - (several - one) / (ADDS - 1),
        "commit_bytes_per_remove": (removes[1] - removes[0]) / 4,
        "commit_replay_us": replay * 1e6,
        "history_us_per_commit": history * 1e6,
    }
    return constants | _refreshes(arrowlog, root, table)


def _created(root):
    import pyarrow as pa

    import arrowlog.table

    fields = [("date", pa.date32()), ("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))]
    schema = pa.schema([*fields, ("value", pa.float64()), ("name", pa.string())])
    more = {"partition_columns": ["date"], "options": {"checkpoint.enabled": False}}
    return arrowlog.Table.create(root, schema, **more)


def _files(commit, count):
    import datetime as dt

    import arrowlog.table

    adds = []
    for each in range(count):
        number = commit * count + each
        day = dt.date(2024, 1, 1) + dt.timedelta(days=number % 365)
        moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number)
        low = {"id": number * 1000, "ts": moment, "value": number / 7, "name": f"a{number:09d}"}
        high = {"id": number * 1000 + 999, "ts": moment, "value": number / 3, "name": f"z{number}"}
        nulls = {"null_count": dict.fromkeys(low, 0), "num_records": 1000 + each}
        path = f"date={day}/part-{number:09d}-{hash((commit, each)) & (1 << 64) - 1:032x}.parquet"
        bounds = {"min_values": low, "max_values": high}
        adds.append(arrowlog.add_file(path, {"date": day}, size=10**6, **nulls, **bounds))
    return adds


def _refreshes(arrowlog, root, writer):
    """Refreshes of a reader that opened a checkpoint: after few commits, and after many."""
    arrowlog.Table(root).checkpoint()
    reader = arrowlog.Table(root)
    reader.scan("id = 5")
    times = []
    for number in range(COMMITS, COMMITS + 300):
        writer.append(_files(number, ADDS))
        times.append(_cpu_seconds(lambda: reader.refresh().version))
    early, late = statistics.median(times[:50]), statistics.median(times[-50:])
    quiet = min(_timed(reader.refresh) for _ in range(_REPEATED))
    per_add = max(late - early, 0) / (250 * ADDS)
    return {
        "refresh_ms": early * 1000,
        "refresh_us_per_tail_add": per_add * 1e6,
        "refresh_quiet_ms": quiet * 1000,
    }


def of_stores():
    """S3: listing, reading and deleting many objects, and races of writers on one log."""
    from arrowlog.storage import open_store
    from benchmarks.commits import race

    constants = {}
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(stack.enter_context(seaweedfs())))
        options = {
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": proxy.url,
        }
        store = open_store(f"s3://{BUCKET}/objects", options)
        keys = [f"_transaction_log/{number:020d}.json" for number in range(OBJECTS)]
        for key in keys:
            store.replace(key, b"x" * 600)
        times = [_timed(lambda: store.list_from("_transaction_log")) for _ in range(_REPEATED)]
        constants["list_us_per_key"] = min(times) / OBJECTS * 1e6
        proxy.round_trip = TRIP
        proxy.counts.clear()
        listed = _timed(lambda: store.list_from("_transaction_log"))
        constants["list_requests_per_1000"] = sum(proxy.counts.values()) / OBJECTS * 1000
        constants["list_s_per_1000_at_20_ms"] = listed / OBJECTS * 1000
        constants["get_many_a_second_at_20_ms"] = OBJECTS / _timed(lambda: store.get_many(keys))
        constants["put_ms_at_20_ms"] = 1000 * statistics.median(
            _timed(lambda n=n: store.put_if_absent(f"new/{n}", b"x" * 600)) for n in range(30)
        )
        constants["get_ms_at_20_ms"] = 1000 * statistics.median(
            _timed(lambda key=key: store.find_many([key])) for key in keys[:30]
        )
        constants["delete_s_per_1000_at_20_ms"] = (
            _timed(lambda: store.delete(keys)) / OBJECTS * 1000
        )
        for writers in (1, 4, 16):
            runs = [
                race("arrowlog", f"s3://{BUCKET}/race-{writers}-{n}", options, writers, 160)
                for n in range(_RACES)
            ]
            median = sorted(runs, key=lambda run: run["rate"])[_RACES // 2]
            constants[f"race_{writers}"] = median["rate"]
            constants[f"race_{writers}_p99_ms"] = median["p99"]
    return constants


def of_spark(folder):
    """A checkpoint written from commits by Spark on this machine, two tasks at a time."""
    runs = []
    for size in (SMALL, LARGE):
        root = beyond.build(folder, size)
        result = beyond.measured("Spark, checkpoint", root)
        if result["answer"] != beyond.live(size):
            raise SystemExit(f"Spark failed:\n{result['errors']}")
        runs.append(result)
    return {
        "spark_cpu_s_per_m": slope(*runs, "cpu"),
        "spark_cpu_s": runs[0]["cpu"] - slope(*runs, "cpu") * SMALL / MILLION,
        "spark_driver_mb": max(run["driver"] for run in runs),
        "spark_driver_mb_per_m": slope(*runs, "driver"),
        "spark_worker_mb": max(run["workers"] for run in runs) / 2,
    }


def measure(folder):
    """All constants, with the machine and the sizes they were measured on."""
    os.makedirs(folder, exist_ok=True)
    constants = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "sizes": [SMALL, LARGE],
    }
    steps = (
        ("states", lambda: of_large_states(folder)),
        ("plans", lambda: of_plans(folder)),
        ("commits", lambda: of_commits(folder)),
        ("stores", of_stores),
        ("Spark", lambda: of_spark(folder)),
    )
    for name, step in steps:
        started = time.perf_counter()
        constants |= {key: _rounded(value) for key, value in step().items()}
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return constants


def check(folder, files):
    """Measure what the model predicts, at a size that was not used to fit it."""
    import arrowlog.table

    root = beyond.build(folder, files)
    replay, checkpoint = fresh("replay", root), fresh("checkpoint", root)
    sizes = checkpoint_bytes(root)
    plans = [
        _cpu_seconds(lambda: arrowlog.Table(root).scan("date = '2024-01-10'").num_files)
        for _ in range(_REPEATED)
    ]
    manifest_bytes = manifest_of(root)[0]
    beyond.delete_checkpoints(root)
    spark = beyond.measured("Spark, checkpoint", root)
    measured = {
        "replay_s": replay["cpu"],
        "replay_mb": replay["mb"],
        "checkpoint_s": checkpoint["cpu"],
        "checkpoint_mb": checkpoint["mb"],
        "parquet_bytes": sizes["parquet"],
        "json_bytes": sizes["json"],
        "manifest_bytes": manifest_bytes,
        "plan_ms": min(plans) * 1000,
        "spark_s": spark["cpu"],
        "spark_driver_mb": spark["driver"],
    }
    return {name: _rounded(value) for name, value in measured.items()}


def _rounded(value):
    """Three significant digits, since more would be noise; counts are exact."""
    return value if isinstance(value, int) else float(f"{value:.3g}")


def main():
    """Run one job in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constants", description=__doc__)
    parser.add_argument("job", choices=list(JOBS))
    parser.add_argument("root")
    chosen = parser.parse_args()
    job(chosen.job, chosen.root)


if __name__ == "__main__":
    main()

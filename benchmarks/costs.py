"""The cost of a large table, as functions of measured constants and a load. Pure.

`c` are the constants measured by `benchmarks.constants`. Requests go to S3 with 20 ms of latency.
"""

from dataclasses import dataclass

from benchmarks import races

DAY = 86_400
PAGE = 1000  # keys per LIST page, and per DELETE
TRIP = 0.02  # seconds of a round trip
SIMULATED = 60  # seconds
_BANDWIDTH = 64e6  # bytes per second of one request: an assumption, not measured


@dataclass(frozen=True)
class Load:
    """The load of a table. Every file is compacted once, `merged` into one."""

    files: int = 100_000_000
    commits: float = 100.0  # per second
    adds: float = 5.0  # per commit
    merged: int = 10
    retention_days: float = 30.0
    between: float = 600.0  # seconds between checkpoints

    @property
    def removes(self):
        """Removes per commit."""
        return self.adds

    @property
    def all_adds(self):
        """Adds per commit, including those of compaction."""
        return self.adds * (1 + 1 / self.merged)

    @property
    def millions(self):
        """Millions of files."""
        return self.files / 1e6

    @property
    def tail(self):
        """Commits after the newest checkpoint, when the next is due."""
        return self.commits * self.between


BASE_LOAD = Load()  # the load in docs/scale.md


# The log.


def commit_size(c, load):
    """Bytes of a compressed commit, including its share of the actions of compaction."""
    files = load.all_adds * c["commit_bytes_per_add"] + load.removes * c["commit_bytes_per_remove"]
    return c["commit_bytes"] + files


def kept(load):
    """The number of commits on the store."""
    return load.commits * DAY * load.retention_days


def listing(c, keys):
    """Pages and seconds of a listing with so many keys, one page after the other."""
    return keys / PAGE, keys / 1000 * c["list_s_per_1000_at_20_ms"]


# Checkpoints.


def groups(c, files):
    """Row groups of a checkpoint."""
    return max(1.0, files / c["group_rows"])


def manifest(c, files):
    """Bytes of the manifest, and milliseconds to decode it."""
    count = groups(c, files)
    return count * c["manifest_bytes_per_group"], count * c["manifest_us_per_group"] / 1000


def checkpoint_bytes(c, files):
    """Bytes of a checkpoint by form."""
    return {form: files * c[f"{form}_bytes_per_file"] for form in ("parquet", "json")}


def in_process(c, files):
    """CPU seconds and megabytes of a checkpoint in both forms, written by one process."""
    return files / 1e6 * c["checkpoint_cpu_s_per_m"], files / 1e6 * c["checkpoint_mb_per_m"]


def on_spark(c, files, tasks):
    """Seconds of a checkpoint written from commits by so many tasks, each on a core of its own."""
    return c["spark_cpu_s"] / 2 + files / 1e6 * c["spark_cpu_s_per_m"] / tasks


# Readers.


def touched(c, load, share=1 / 365):
    """Row groups read by a plan of a share of the table whose files are stored together."""
    return max(1.0, groups(c, load.files) * share) + 1


def cold_plan(c, load):
    """Milliseconds of a plan in a fresh process, by step."""
    parts = touched(c, load)
    size, decode = manifest(c, load.files)
    return {
        "list": listing(c, max(load.tail, PAGE))[1] * 1000,  # from the pointer's checkpoint on
        "manifest": decode + 1000 * (TRIP + size / _BANDWIDTH),
        "groups": c["plan_ms"] + parts * c["plan_ms_per_group"] + 2 * 1000 * TRIP,
        "tail": tail_ms(c, load.tail, load),
    }


def tail_ms(c, commits, load):
    """Milliseconds to read and replay commits."""
    read = commits / c["get_many_a_second_at_20_ms"] * 1000
    decode = commits * load.all_adds / c["commit_adds"] * c["commit_replay_us"] / 1000
    return read + decode


def following(c, load, every):
    """A reader that refreshes every so many seconds: commits, milliseconds, share of its time.

    Files added after the checkpoint are kept next to it, and each makes a refresh slower. On
    average, half of a checkpoint interval has passed.
    """
    commits = load.commits * every
    kept_beside = load.tail * load.all_adds / 2
    ms = tail_ms(c, commits, load) + listing(c, commits)[1] * 1000 + 1000 * TRIP
    ms += c["refresh_ms"] + kept_beside * c["refresh_us_per_tail_add"] / 1000
    return commits, ms, ms / 1000 / every


# Commits.


def trips(c, trip=TRIP):
    """Seconds of a put and of a get with a latency of `trip` seconds."""
    over = trip - TRIP
    return c["put_ms_at_20_ms"] / 1000 + over, c["get_ms_at_20_ms"] / 1000 + over


def raced(c, writers, trip=TRIP):
    """Simulated race of so many writers, based on the measured rate of one writer."""
    alone = 1 / c["race_1"] / (1 + races.JITTER)
    _, get = trips(c, trip)
    return races.race(writers, alone + trip - TRIP, get, SIMULATED)


def group_commit(c, rate, window, trip=TRIP):
    """Simulated group commit of `rate` changes per second."""
    put, _ = trips(c, trip)
    return races.batched(rate, put, window, SIMULATED)


# Cleanup.


def cleaning(c, load):
    """Cleanup of a day: objects, requests, seconds; and the cost of verifying the checkpoint."""
    gone = load.commits * DAY
    return {
        "objects": gone,
        "deletes": gone / PAGE,
        "delete_s": gone / 1000 * c["delete_s_per_1000_at_20_ms"],
        "skips_s": gone / c["get_many_a_second_at_20_ms"],
        "list_s": listing(c, kept(load))[1],
        "verify_s": load.millions * c["verify_json_cpu_s_per_m"],
        "verify_mb": load.millions * c["verify_json_mb_per_m"],
        "verify_parquet_s": load.millions * c["verify_parquet_cpu_s_per_m"],
    }

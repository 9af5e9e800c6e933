"""What a large table costs: functions of constants that were measured, and of a load. Pure.

`c` is what `benchmarks.constants` has measured. Requests go to an S3 at 20 ms a round trip.
"""

from dataclasses import dataclass

from benchmarks import slots

DAY = 86_400
PAGE = 1000  # keys of a LIST page, or of a DELETE
TRIP = 0.02
SIMULATED = 60  # seconds
_BANDWIDTH = 64e6  # bytes a second of one request, taken as given


@dataclass(frozen=True)
class Load:
    """What is asked of a table. Every file that is added is once compacted away, ten into one."""

    files: int = 100_000_000
    commits: float = 100.0  # a second
    adds: float = 5.0  # of a commit
    merged: int = 10
    retention_days: float = 30.0
    between: float = 600.0  # seconds between checkpoints

    @property
    def removes(self):
        return self.adds

    @property
    def all_adds(self):
        return self.adds * (1 + 1 / self.merged)

    @property
    def millions(self):
        return self.files / 1e6

    @property
    def tail(self):
        """Commits after the newest checkpoint, when the next is due."""
        return self.commits * self.between


ASKED = Load()


# The log.


def commit_size(c, load):
    """Bytes of a commit, compressed, with its share of what compaction writes."""
    files = load.all_adds * c["commit_bytes_per_add"] + load.removes * c["commit_bytes_per_remove"]
    return c["commit_bytes"] + files


def kept(load):
    """Commits that are on the store."""
    return load.commits * DAY * load.retention_days


def listing(c, keys):
    """Pages and seconds to list so many names, one page after the other."""
    return keys / PAGE, keys / 1000 * c["list_s_per_1000_at_20_ms"]


# Checkpoints.


def groups(c, files):
    return max(1.0, files / c["group_rows"])


def manifest(c, files):
    """Bytes of the manifest, and milliseconds to read it."""
    count = groups(c, files)
    return count * c["manifest_bytes_per_group"], count * c["manifest_us_per_group"] / 1000


def checkpoint_bytes(c, files):
    return {form: files * c[f"{form}_bytes_per_file"] for form in ("parquet", "json")}


def in_process(c, files):
    """Processor seconds and megabytes of a checkpoint in both forms, made by one process."""
    return files / 1e6 * c["checkpoint_cpu_s_per_m"], files / 1e6 * c["checkpoint_mb_per_m"]


def on_spark(c, files, tasks):
    """Seconds of a checkpoint that so many tasks, each on a core of its own, make of commits."""
    return c["spark_cpu_s"] / 2 + files / 1e6 * c["spark_cpu_s_per_m"] / tasks


# Readers.


def touched(c, load, share=1 / 365):
    """Groups that a plan of a share of the table reads, if its files lie together."""
    return max(1.0, groups(c, load.files) * share) + 1


def cold_plan(c, load):
    """Milliseconds of a plan in a new process, by step; S3 at 20 ms."""
    parts = touched(c, load)
    size, decode = manifest(c, load.files)
    return {
        "list": listing(c, max(load.tail, PAGE))[1] * 1000,  # from the pointer's checkpoint on
        "manifest": decode + 1000 * (TRIP + size / _BANDWIDTH),
        "groups": c["plan_ms"] + parts * c["plan_ms_per_group"] + 2 * 1000 * TRIP,
        "tail": tail_ms(c, load.tail, load),
    }


def tail_ms(c, commits, load):
    """Reading and replaying the commits after a checkpoint."""
    read = commits / c["get_many_a_second_at_20_ms"] * 1000
    decode = commits * load.all_adds / c["commit_adds"] * c["commit_replay_us"] / 1000
    return read + decode


def following(c, load, every):
    """A reader that refreshes every so many seconds: commits, milliseconds, share of its time.

    What came after the checkpoint is kept beside it, and the more there is, the more each costs;
    half of it on average.
    """
    commits = load.commits * every
    kept_beside = load.tail * load.all_adds / 2
    ms = tail_ms(c, commits, load) + listing(c, commits)[1] * 1000 + 1000 * TRIP
    ms += c["refresh_ms"] + kept_beside * c["refresh_us_per_tail_add"] / 1000
    return commits, ms, ms / 1000 / every


# Commits.


def trips(c, trip=TRIP):
    """Seconds of a put and of a get at a round trip, with what they take beside it."""
    over = trip - TRIP
    return c["put_ms_at_20_ms"] / 1000 + over, c["get_ms_at_20_ms"] / 1000 + over


def raced(c, writers, trip=TRIP):
    """What so many writers at a log make of it: from what one makes alone, which was measured."""
    alone = 1 / c["race_1"] / (1 + slots.JITTER)
    _, get = trips(c, trip)
    return slots.race(writers, alone + trip - TRIP, get, SIMULATED)


def gathered(c, rate, window, trip=TRIP):
    put, _ = trips(c, trip)
    return slots.batched(rate, put, window, SIMULATED)


# Clean-up.


def cleaning(c, load):
    """A day's clean-up: objects, requests and seconds; and what it reads to be sure."""
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

"""A table of 100,000,000 files and 100 commits a second: what it costs, by constants measured here.

python -m benchmarks.scale               the tables of docs/scale.md, from docs/scale-constants.json
python -m benchmarks.scale --measure     measure the constants again; a few minutes
python -m benchmarks.scale --check       measure what the model foretells at 4,000,000 files
python -m benchmarks.scale --write       put the tables into docs/scale.md

The arithmetic is in `benchmarks.costs`, the race for versions in `benchmarks.slots`.
"""

import argparse
import json
import os
import re
from dataclasses import replace

from benchmarks import costs
from benchmarks.costs import ASKED, DAY, Load
from benchmarks.written import grid, short, size, span

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONSTANTS = os.path.join(HOME, "docs", "scale-constants.json")
DOCUMENT = os.path.join(HOME, "docs", "scale.md")
CHECKED = 4_000_000
_MARK = "<!-- table: {} -->"
_END = "<!-- end -->"
SIZES = (1_000_000, 10_000_000, 100_000_000)
RATES = (1, 10, 100)


def constants(c):
    """The constants themselves."""
    names = {
        "a commit, gzip; and for each add; each remove": (
            f"{short(c['commit_bytes'])} B; {short(c['commit_bytes_per_add'])} B; "
            f"{short(c['commit_bytes_per_remove'])} B"
        ),
        "replay of commits, a million adds: processor, memory": (
            f"{span(c['replay_cpu_s_per_m'])}, {size(c['replay_mb_per_m'] * 1e6)}"
        ),
        f"replay of a small commit of {c['commit_adds']:.0f} adds, processor": (
            f"{short(c['commit_replay_us'])} µs"
        ),
        "all files of a checkpoint in memory, a million": (
            f"{span(c['state_cpu_s_per_m'])}, {size(c['state_mb_per_m'] * 1e6)}"
        ),
        "a checkpoint in both forms, of a million adds": (
            f"{span(c['checkpoint_cpu_s_per_m'])}, {size(c['checkpoint_mb_per_m'] * 1e6)}"
        ),
        "a file in a Parquet checkpoint; in a JSON one": (
            f"{short(c['parquet_bytes_per_file'])} B; {short(c['json_bytes_per_file'])} B"
        ),
        "its Parquet form alone": (
            f"{span(c['parquet_cpu_s_per_m'])}, {size(c['parquet_mb_per_m'] * 1e6)}"
        ),
        "the same as a whole on Spark, from commits": (
            f"{span(c['spark_cpu_s'])} + {span(c['spark_cpu_s_per_m'])} a million; "
            f"driver {size(c['spark_driver_mb'] * 1e6)}"
        ),
        "the manifest, for each group of 16,384 files": (
            f"{short(c['manifest_bytes_per_group'])} B, {short(c['manifest_us_per_group'])} µs"
        ),
        "a plan on a checkpoint; for each group it reads, processor": (
            f"{short(c['plan_ms'])} ms; {short(c['plan_ms_per_group'])} ms"
        ),
        "a refresh by one commit; for each add after the checkpoint": (
            f"{short(c['refresh_ms'])} ms; {short(c['refresh_us_per_tail_add'])} µs"
        ),
        "S3 at 20 ms: a page of LIST; GETs of many; 1,000 DELETEs": (
            f"{span(c['list_s_per_1000_at_20_ms'])}; "
            f"{short(c['get_many_a_second_at_20_ms'])} a second; "
            f"{span(c['delete_s_per_1000_at_20_ms'])}"
        ),
        "S3 at 20 ms: a PUT; commits a second of 1 / 4 / 16 writers": (
            f"{short(c['put_ms_at_20_ms'])} ms; {short(c['race_1'])} / {short(c['race_4'])} / "
            f"{short(c['race_16'])}"
        ),
        "checking a checkpoint as cleanup does, a million files: JSON; Parquet": (
            f"{span(c['verify_json_cpu_s_per_m'])}, {size(c['verify_json_mb_per_m'] * 1e6)}; "
            f"{span(c['verify_parquet_cpu_s_per_m'])}"
        ),
        "a question to history, for each commit": f"{short(c['history_us_per_commit'])} µs",
    }
    return grid(("", "measured"), names.items())


def validation(c):
    """What the model foretold, beside what was measured and not used to fit it."""
    checked, files = c.get("checked", {}), CHECKED * 0.95
    foretold = {
        "replay_s": (f"replay of {CHECKED:,} adds", c["replay_cpu_s_per_m"] * CHECKED / 1e6, span),
        "replay_mb": (
            "its memory",
            c["replay_mb_per_m"] * CHECKED / 1e6,
            lambda mb: size(mb * 1e6),
        ),
        "checkpoint_s": (
            "a checkpoint of them in process",
            c["checkpoint_cpu_s_per_m"] * CHECKED / 1e6,
            span,
        ),
        "checkpoint_mb": (
            "its memory",
            c["checkpoint_mb_per_m"] * CHECKED / 1e6,
            lambda mb: size(mb * 1e6),
        ),
        "parquet_bytes": ("its Parquet form", files * c["parquet_bytes_per_file"], size),
        "json_bytes": ("its JSON form", files * c["json_bytes_per_file"], size),
        "manifest_bytes": ("its manifest", costs.manifest(c, files)[0], size),
        "plan_ms": (
            "a plan of one day on it, processor",
            c["plan_ms"] + costs.touched(c, Load(files=files)) * c["plan_ms_per_group"],
            lambda ms: f"{short(ms)} ms",
        ),
        "spark_s": (
            "a checkpoint of them on Spark",
            c["spark_cpu_s"] + c["spark_cpu_s_per_m"] * CHECKED / 1e6,
            span,
        ),
        "spark_driver_mb": (
            "memory of its driver",
            c["spark_driver_mb"],
            lambda mb: size(mb * 1e6),
        ),
    }
    rows = [
        (title, write(told), write(checked[name]), f"{checked[name] / told:.2f}")
        for name, (title, told, write) in foretold.items()
        if name in checked
    ]
    for where, known in (("", c), (", on a quiet machine", c | c.get("quiet", {}))):
        for writers in (4, 16):
            told, found = costs.raced(known, writers)["rate"], known[f"race_{writers}"]
            title = f"commits a second of {writers} writers{where}"
            rows.append((title, short(told), short(found), f"{found / told:.2f}"))
    return grid(("", "foretold", "measured", "ratio"), rows)


def log(c):
    """What a day adds."""
    rows = []
    for rate in RATES:
        load = replace(ASKED, commits=rate)
        month, day = costs.kept(load), load.commits * DAY
        rows.append(
            (
                rate,
                short(day),
                short(day * load.all_adds),
                size(day * costs.commit_size(c, load)),
                short(month),
                size(month * costs.commit_size(c, load)),
                f"{short(costs.listing(c, month)[0])}, {span(costs.listing(c, month)[1])}",
                f"{short(costs.listing(c, day)[0])}, {span(costs.listing(c, day)[1])}",
            )
        )
    head = (
        "commits a second",
        "objects a day",
        "adds a day",
        "bytes a day",
        "objects kept 30 days",
    )
    return grid((*head, "bytes", "LIST pages, time", "the same, kept 1 day"), rows)


def checkpoints(c):
    """What a checkpoint takes, by the number of files."""
    rows = []
    for files in SIZES:
        sizes = costs.checkpoint_bytes(c, files)
        seconds, mb = costs.in_process(c, files)
        manifest = costs.manifest(c, files)
        rows.append(
            (
                f"{files:,}",
                size(sizes["parquet"]),
                size(sizes["json"]),
                size(manifest[0]),
                f"{span(seconds)}, {size(mb * 1e6)}",
                span(costs.on_spark(c, files, 2)),
                span(costs.on_spark(c, files, 200)),
                f"{seconds / ASKED.between:.0%}",
            )
        )
    head = ("files", "Parquet", "JSON", "manifest", "one process: processor, memory")
    tail = ("Spark, 2 tasks", "Spark, 200 tasks", "share of a core, one every 10 min")
    return grid((*head, *tail), rows)


def plans(c):
    """A cold plan of one day of a year, step by step."""
    rows = []
    for files in SIZES:
        for days, between in ((30.0, 600.0), (1.0, 60.0)):
            load = replace(ASKED, files=files, retention_days=days, between=between)
            steps = costs.cold_plan(c, load)
            spent = [span(ms / 1000) for ms in steps.values()]
            whole = span(sum(steps.values()) / 1000)
            kept = f"{days:.0f} days" if days > 1 else "1 day"
            rows.append((f"{files:,}", kept, span(between), *spent, whole))
    head = ("files", "commits kept", "checkpoint every", "LIST", "manifest", "groups")
    return grid((*head, "commits after it", "in all"), rows)


def readers(c):
    """Readers that follow."""
    rows = []
    for every in (1, 10, 60):
        for rate in (10, 100):
            load = replace(ASKED, commits=rate)
            commits, ms, share = costs.following(c, load, every)
            rows.append((f"{every} s", rate, short(commits), span(ms / 1000), f"{share:.0%}"))
    return grid(("every", "commits a second", "commits read", "takes", "share of its time"), rows)


def races(c):
    """Commits a second, by writers and round trips."""
    rows = []
    for writers in (1, 4, 16, 64):
        row = [writers]
        for trip in (0.005, 0.02, 0.05):
            found = costs.raced(c, writers, trip)
            row.append(f"{short(found['rate'])} (p99 {span(found['p99'] / 1000)})")
        row.append(f"{costs.raced(c, writers)['tries']:.1f}")
        measured = c.get(f"race_{writers}")
        row.append("" if measured is None else short(measured))
        rows.append(row)
    head = ("writers", "at 5 ms", "at 20 ms", "at 50 ms", "puts a commit", "measured at 20 ms")
    return grid(head, rows)


def batches(c):
    """One committer that gathers what has come."""
    rows = []
    for rate in (100, 1000):
        for window in (0.0, 0.02, 0.1, 0.5):
            found = costs.gathered(c, rate, window)
            day = size(found["puts"] * DAY * costs.commit_size(c, batch_load(rate, found)))
            rows.append(
                (
                    rate,
                    span(window) if window else "none",
                    f"{found['puts']:.1f}",
                    short(found["batch"]),
                    span(found["p50"] / 1000),
                    span(found["p99"] / 1000),
                    short(found["puts"] * DAY),
                    day,
                )
            )
    head = ("changes a second", "waits at least", "PUTs a second", "changes in one")
    return grid((*head, "p50", "p99", "objects a day", "bytes a day"), rows)


def batch_load(rate, found):
    """The load as the log sees it: fewer commits with more in them."""
    return replace(ASKED, commits=found["puts"], adds=ASKED.adds * rate / found["puts"])


def cleaning(c):
    """A day's cleanup."""
    rows = []
    for title, load in (
        ("as asked, kept 30 days", ASKED),
        ("kept 1 day", replace(ASKED, retention_days=1.0)),
        (
            "batched to 9 PUTs a second, kept 1 day",
            replace(ASKED, commits=9.0, adds=55.0, retention_days=1.0),
        ),
    ):
        found = costs.cleaning(c, load)
        rows.append(
            (
                title,
                short(found["objects"]),
                f"{short(found['deletes'])}, {span(found['delete_s'])}",
                span(found["skips_s"]),
                span(found["list_s"]),
                f"{span(found['verify_s'])}, {size(found['verify_mb'] * 1e6)}",
            )
        )
    head = ("", "objects gone a day", "DELETEs, time", "looking for skips in them")
    return grid((*head, "LIST, each time", "checking the checkpoint, each time"), rows)


def limits(c):
    """Where it breaks, the worst first: what is needed, what there is."""
    whole = costs.listing(c, costs.kept(ASKED))[1]
    listed = costs.cold_plan(c, ASKED)["list"] / 1000
    seconds, mb = costs.in_process(c, ASKED.files)
    tail = costs.tail_ms(c, ASKED.tail, ASKED) / 1000
    follows = costs.following(c, ASKED, 1)[2]
    rate = costs.raced(c, 16)["rate"]
    clean = costs.cleaning(c, ASKED)
    state = c["state_mb_per_m"] * ASKED.millions
    rows = [
        ("LIST of a month, for history, time travel, cleanup", span(whole), "1 min", whole / 60),
        ("LIST from the pointer on, for every cold open", span(listed), "1 s", listed),
        ("checkpoints every 10 commits, as is the default", span(seconds), "0.1 s", seconds / 0.1),
        ("memory of a process that makes one", size(mb * 1e6), "16 GB", mb / 16_000),
        (
            "memory of cleanup, which checks the JSON form",
            size(clean["verify_mb"] * 1e6),
            "16 GB",
            clean["verify_mb"] / 16_000,
        ),
        ("all files in a driver's memory", size(state * 1e6), "16 GB", state / 16_000),
        ("reading the commits after a checkpoint 10 min old, cold", span(tail), "5 s", tail / 5),
        ("commits a second", "100", short(rate), 100 / rate),
        ("a reader that follows every second", f"{follows:.0%} of its time", "100%", follows),
        (
            "looking for skips in what cleanup deletes, a day",
            span(clean["skips_s"]),
            "1 h",
            clean["skips_s"] / 3600,
        ),
        (
            "the manifest, for every cold plan",
            size(costs.manifest(c, ASKED.files)[0]),
            "64 MB",
            costs.manifest(c, ASKED.files)[0] / 64e6,
        ),
    ]
    rows.sort(key=lambda row: -row[3])
    ranked = [(*row[:3], f"{short(row[3])} times") for row in rows]
    return grid(("what", "needs", "has, or may take", "over"), ranked)


def changes(c):
    """What would be changed, in order, and what the model expects of it."""
    found = costs.gathered(c, 100, 0.1)
    batched = batch_load(100, found)
    tails = [costs.tail_ms(c, load.tail, load) / 1000 for load in (ASKED, batched)]
    minor = costs.tail_ms(c, batched.tail / 60, replace(batched, adds=batched.adds * 60)) / 1000
    whole = [costs.on_spark(c, files, 2) for files in (ASKED.files, churn(ASKED))]
    wide = ASKED.tail * ASKED.all_adds / ASKED.files
    cold = [sum(costs.cold_plan(c, load).values()) / 1000 for load in (ASKED, batched)]
    rows = [
        (
            "1. a committer that gathers, 100 ms",
            "commits a second",
            short(costs.raced(c, 16)["rate"]),
            f"100 in {found['puts']:.0f} PUTs",
        ),
        ("", "its p99", span(costs.raced(c, 16)["p99"] / 1000), span(found["p99"] / 1000)),
        ("", "commits after a checkpoint, cold", *map(span, tails)),
        (
            "2. checkpoints that keep the parts nothing has changed in",
            "made on Spark, 2 tasks",
            span(whole[0]),
            f"{span(whole[1])}, if {wide:.1%} of the files changed and lie together",
        ),
        (
            "3. minor files: a minute of commits in one",
            "commits after a checkpoint, cold",
            span(tails[1]),
            span(minor),
        ),
        (
            "1 and 3 together",
            "a cold plan of a day",
            span(cold[0]),
            span(cold[1] - tails[1] + minor),
        ),
    ]
    return grid(("change", "of", "now", "then"), rows)


def churn(load):
    """Files that change between two checkpoints."""
    return load.tail * (load.all_adds + load.removes)


def history(c):
    """Questions to a day of history."""
    rows = [
        (
            rate,
            short(rate * DAY),
            span(rate * DAY * c["history_us_per_commit"] / 1e6),
            span(rate * DAY / c["get_many_a_second_at_20_ms"]),
        )
        for rate in RATES
    ]
    return grid(("commits a second", "commits a day", "SQL over a day", "and to read it"), rows)


TABLES = {
    "constants": constants,
    "validation": validation,
    "log": log,
    "checkpoints": checkpoints,
    "plans": plans,
    "readers": readers,
    "races": races,
    "batches": batches,
    "cleaning": cleaning,
    "history": history,
    "limits": limits,
    "changes": changes,
}


def filled(text, c):
    """The document with its tables as the model has them."""
    for name, make in TABLES.items():
        begin = _MARK.format(name)
        if begin not in text:
            raise SystemExit(f"docs/scale.md has no place for the table {name}")
        inner = re.compile(re.escape(begin) + ".*?" + re.escape(_END), re.DOTALL)
        made = f"{begin}\n{make(c)}\n{_END}"
        text = inner.sub(lambda _, made=made: made, text)
    return text


def known():
    """The constants on disk."""
    with open(CONSTANTS) as file:
        return json.load(file)


def _keep(c):
    with open(CONSTANTS, "w") as out:
        json.dump(c, out, indent=1)
        out.write("\n")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure the constants again")
    parser.add_argument("--check", action="store_true", help="measure what the model foretells")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    parser.add_argument("--folder", default=os.path.join(HOME, "benchmarks", "out"))
    chosen = parser.parse_args()
    from benchmarks import constants as measuring

    if chosen.measure:
        before = known() if os.path.exists(CONSTANTS) else {}
        again = measuring.measure(chosen.folder)
        _keep(again | {name: before[name] for name in ("checked", "quiet") if name in before})
    if chosen.check:
        _keep(known() | {"checked": measuring.check(chosen.folder, CHECKED)})
    c = known()
    if chosen.write:
        with open(DOCUMENT) as file:
            text = file.read()
        with open(DOCUMENT, "w") as out:
            out.write(filled(text, c))
    else:
        for name, make in TABLES.items():
            print(f"\n{name}: {make.__doc__}\n\n{make(c)}")


if __name__ == "__main__":
    main()

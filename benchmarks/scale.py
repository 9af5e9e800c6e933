"""The cost of a table of 100,000,000 files and 100 commits per second, from measured constants.

python -m benchmarks.scale               the tables of docs/scale.md, from docs/scale-constants.json
python -m benchmarks.scale --measure     measure the constants again; some minutes
python -m benchmarks.scale --check       measure what the model predicts for 4,000,000 files
python -m benchmarks.scale --write       write the tables into docs/scale.md

The model is in `benchmarks.costs`, the simulation of races in `benchmarks.races`. Each function
below that takes the constants `c` returns a table in Markdown.
"""

import argparse
import json
import os
import re
from dataclasses import replace

from benchmarks import costs
from benchmarks.costs import BASE_LOAD, DAY, Load
from benchmarks.formatting import markdown_table, short, size, span

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONSTANTS = os.path.join(HOME, "docs", "scale-constants.json")
DOCUMENT = os.path.join(HOME, "docs", "scale.md")
CHECKED = 4_000_000
_MARK = "<!-- table: {} -->"
_END = "<!-- end -->"
SIZES = (1_000_000, 10_000_000, 100_000_000)
RATES = (1, 10, 100)


def constants(c):
    """The measured constants."""
    names = {
        "commit, gzip: fixed; per add; per remove": (
            f"{short(c['commit_bytes'])} B; {short(c['commit_bytes_per_add'])} B; "
            f"{short(c['commit_bytes_per_remove'])} B"
        ),
        "replay of commits with a million adds: CPU, memory": (
            f"{span(c['replay_cpu_s_per_m'])}, {size(c['replay_mb_per_m'] * 1e6)}"
        ),
        f"replay of a small commit of {c['commit_adds']:.0f} adds: CPU": (
            f"{short(c['commit_replay_us'])} µs"
        ),
        "all files of a checkpoint in memory, per million: CPU, memory": (
            f"{span(c['state_cpu_s_per_m'])}, {size(c['state_mb_per_m'] * 1e6)}"
        ),
        "checkpoint in both forms, of a million adds: CPU, memory": (
            f"{span(c['checkpoint_cpu_s_per_m'])}, {size(c['checkpoint_mb_per_m'] * 1e6)}"
        ),
        "file in a Parquet checkpoint; in a JSON checkpoint": (
            f"{short(c['parquet_bytes_per_file'])} B; {short(c['json_bytes_per_file'])} B"
        ),
        "checkpoint in Parquet alone: CPU, memory": (
            f"{span(c['parquet_cpu_s_per_m'])}, {size(c['parquet_mb_per_m'] * 1e6)}"
        ),
        "checkpoint in both forms on Spark, from commits: CPU": (
            f"{span(c['spark_cpu_s'])} + {span(c['spark_cpu_s_per_m'])} per million; "
            f"driver {size(c['spark_driver_mb'] * 1e6)}"
        ),
        "manifest, per row group of 16,384 files": (
            f"{short(c['manifest_bytes_per_group'])} B, {short(c['manifest_us_per_group'])} µs"
        ),
        "plan on a checkpoint: fixed; per row group read: CPU": (
            f"{short(c['plan_ms'])} ms; {short(c['plan_ms_per_group'])} ms"
        ),
        "refresh by one commit: fixed; per add after the checkpoint: CPU": (
            f"{short(c['refresh_ms'])} ms; {short(c['refresh_us_per_tail_add'])} µs"
        ),
        "S3 at 20 ms: LIST page; concurrent GETs; 1,000 DELETEs": (
            f"{span(c['list_s_per_1000_at_20_ms'])}; "
            f"{short(c['get_many_a_second_at_20_ms'])} per second; "
            f"{span(c['delete_s_per_1000_at_20_ms'])}"
        ),
        "S3 at 20 ms: PUT; commits per second of 1 / 4 / 16 writers": (
            f"{short(c['put_ms_at_20_ms'])} ms; {short(c['race_1'])} / {short(c['race_4'])} / "
            f"{short(c['race_16'])}"
        ),
        "verifying a checkpoint, per million files: JSON; Parquet": (
            f"{span(c['verify_json_cpu_s_per_m'])}, {size(c['verify_json_mb_per_m'] * 1e6)}; "
            f"{span(c['verify_parquet_cpu_s_per_m'])}"
        ),
        "history query, per commit: CPU": f"{short(c['history_us_per_commit'])} µs",
    }
    return markdown_table(("", "measured"), names.items())


def validation(c):
    """Predictions of the model, and measurements that were not used to fit it."""
    checked, files = c.get("checked", {}), CHECKED * 0.95
    predictions = {
        "replay_s": (
            f"replay of {CHECKED:,} adds, CPU",
            c["replay_cpu_s_per_m"] * CHECKED / 1e6,
            span,
        ),
        "replay_mb": (
            "its memory",
            c["replay_mb_per_m"] * CHECKED / 1e6,
            lambda mb: size(mb * 1e6),
        ),
        "checkpoint_s": (
            "checkpoint of them in one process, CPU",
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
            "plan of one day on it, CPU",
            c["plan_ms"] + costs.touched(c, Load(files=files)) * c["plan_ms_per_group"],
            lambda ms: f"{short(ms)} ms",
        ),
        "spark_s": (
            "checkpoint of them on Spark, CPU",
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
        (title, write(predicted), write(checked[name]), f"{checked[name] / predicted:.2f}")
        for name, (title, predicted, write) in predictions.items()
        if name in checked
    ]
    for machine, known in (("", c), (", on a quiet machine", c | c.get("quiet", {}))):
        for writers in (4, 16):
            predicted = costs.raced(known, writers)["rate"]
            measured = known[f"race_{writers}"]
            title = f"commits per second of {writers} writers{machine}"
            rows.append((title, short(predicted), short(measured), f"{measured / predicted:.2f}"))
    return markdown_table(("", "predicted", "measured", "ratio"), rows)


def log(c):
    """Growth of the log per day."""
    rows = []
    for rate in RATES:
        load = replace(BASE_LOAD, commits=rate)
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
        "commits per second",
        "objects per day",
        "adds per day",
        "bytes per day",
        "objects in 30 days",
    )
    return markdown_table((*head, "bytes", "LIST pages, time", "LIST of 1 day"), rows)


def checkpoints(c):
    """Cost of a checkpoint, by number of files."""
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
                f"{seconds / BASE_LOAD.between:.0%}",
            )
        )
    head = ("files", "Parquet", "JSON", "manifest", "one process: CPU, memory")
    tail = ("Spark, 2 tasks", "Spark, 200 tasks", "share of a core, every 10 min")
    return markdown_table((*head, *tail), rows)


def plans(c):
    """Time of a cold plan of one day of a year, by step."""
    rows = []
    for files in SIZES:
        for days, between in ((30.0, 600.0), (1.0, 60.0)):
            load = replace(BASE_LOAD, files=files, retention_days=days, between=between)
            steps = costs.cold_plan(c, load)
            spent = [span(ms / 1000) for ms in steps.values()]
            whole = span(sum(steps.values()) / 1000)
            kept = f"{days:.0f} days" if days > 1 else "1 day"
            rows.append((f"{files:,}", kept, span(between), *spent, whole))
    head = ("files", "commits kept", "checkpoint every", "LIST", "manifest", "groups")
    return markdown_table((*head, "commits after it", "total"), rows)


def readers(c):
    """Cost of readers that refresh."""
    rows = []
    for every in (1, 10, 60):
        for rate in (10, 100):
            load = replace(BASE_LOAD, commits=rate)
            commits, ms, share = costs.following(c, load, every)
            rows.append((f"{every} s", rate, short(commits), span(ms / 1000), f"{share:.0%}"))
    return markdown_table(
        ("refresh every", "commits per second", "commits read", "time", "share of time"), rows
    )


def races(c):
    """Commits per second, by number of writers and latency."""
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
    head = ("writers", "at 5 ms", "at 20 ms", "at 50 ms", "PUTs per commit", "measured at 20 ms")
    return markdown_table(head, rows)


def batches(c):
    """Group commit by one committer."""
    rows = []
    for rate in (100, 1000):
        for window in (0.0, 0.02, 0.1, 0.5):
            found = costs.group_commit(c, rate, window)
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
    head = ("changes per second", "window", "PUTs per second", "changes per PUT")
    return markdown_table((*head, "p50", "p99", "objects per day", "bytes per day"), rows)


def batch_load(rate, found):
    """The load of the log with group commit: fewer, larger commits."""
    return replace(BASE_LOAD, commits=found["puts"], adds=BASE_LOAD.adds * rate / found["puts"])


def cleaning(c):
    """Cost of cleanup per day."""
    rows = []
    for title, load in (
        ("commits kept 30 days", BASE_LOAD),
        ("commits kept 1 day", replace(BASE_LOAD, retention_days=1.0)),
        (
            "group commit, 9 PUTs per second, kept 1 day",
            replace(BASE_LOAD, commits=9.0, adds=55.0, retention_days=1.0),
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
    head = ("", "objects deleted per day", "DELETEs, time", "reading them for skips")
    return markdown_table((*head, "LIST, per run", "verifying the checkpoint, per run"), rows)


def limits(c):
    """Limits, the most exceeded first."""
    whole = costs.listing(c, costs.kept(BASE_LOAD))[1]
    listed = costs.cold_plan(c, BASE_LOAD)["list"] / 1000
    seconds, mb = costs.in_process(c, BASE_LOAD.files)
    tail = costs.tail_ms(c, BASE_LOAD.tail, BASE_LOAD) / 1000
    follows = costs.following(c, BASE_LOAD, 1)[2]
    rate = costs.raced(c, 16)["rate"]
    clean = costs.cleaning(c, BASE_LOAD)
    state = c["state_mb_per_m"] * BASE_LOAD.millions
    rows = [
        ("LIST of a month, for history, time travel, cleanup", span(whole), "1 min", whole / 60),
        ("LIST from the checkpoint of the pointer, per cold open", span(listed), "1 s", listed),
        ("checkpoint every 10 commits, the default", span(seconds), "0.1 s", seconds / 0.1),
        ("memory of a process that writes one", size(mb * 1e6), "16 GB", mb / 16_000),
        (
            "memory of cleanup, which verifies the JSON form",
            size(clean["verify_mb"] * 1e6),
            "16 GB",
            clean["verify_mb"] / 16_000,
        ),
        ("all files in a driver's memory", size(state * 1e6), "16 GB", state / 16_000),
        ("cold read of the commits after a checkpoint 10 min old", span(tail), "5 s", tail / 5),
        ("commits per second", "100", short(rate), 100 / rate),
        ("reader that refreshes every second", f"{follows:.0%} of its time", "100%", follows),
        (
            "cleanup of a day: reading commits for skips",
            span(clean["skips_s"]),
            "1 h",
            clean["skips_s"] / 3600,
        ),
        (
            "manifest, per cold plan",
            size(costs.manifest(c, BASE_LOAD.files)[0]),
            "64 MB",
            costs.manifest(c, BASE_LOAD.files)[0] / 64e6,
        ),
    ]
    rows.sort(key=lambda row: -row[3])
    ranked = [(*row[:3], short(row[3])) for row in rows]
    return markdown_table(("limit", "needed", "available", "ratio"), ranked)


def changes(c):
    """Proposed changes in order, with the predicted effect."""
    found = costs.group_commit(c, 100, 0.1)
    batched = batch_load(100, found)
    tails = [costs.tail_ms(c, load.tail, load) / 1000 for load in (BASE_LOAD, batched)]
    minor = costs.tail_ms(c, batched.tail / 60, replace(batched, adds=batched.adds * 60)) / 1000
    whole = [costs.on_spark(c, files, 2) for files in (BASE_LOAD.files, churn(BASE_LOAD))]
    wide = BASE_LOAD.tail * BASE_LOAD.all_adds / BASE_LOAD.files
    cold = [sum(costs.cold_plan(c, load).values()) / 1000 for load in (BASE_LOAD, batched)]
    rows = [
        (
            "1. group commit, 100 ms",
            "commits per second",
            short(costs.raced(c, 16)["rate"]),
            f"100 in {found['puts']:.0f} PUTs",
        ),
        ("", "p99 of a commit", span(costs.raced(c, 16)["p99"] / 1000), span(found["p99"] / 1000)),
        ("", "cold read of the commits after a checkpoint", *map(span, tails)),
        (
            "2. incremental checkpoints: unchanged parts are kept",
            "checkpoint on Spark, 2 tasks",
            span(whole[0]),
            f"{span(whole[1])}, if {wide:.1%} of the files changed and are stored together",
        ),
        (
            "3. log compaction: a minute of commits in one file",
            "cold read of the commits after a checkpoint",
            span(tails[1]),
            span(minor),
        ),
        (
            "1 and 3 together",
            "cold plan of a day",
            span(cold[0]),
            span(cold[1] - tails[1] + minor),
        ),
    ]
    return markdown_table(("change", "affects", "now", "predicted"), rows)


def churn(load):
    """The number of files added or removed between two checkpoints."""
    return load.tail * (load.all_adds + load.removes)


def history(c):
    """Cost of a history query over a day."""
    rows = [
        (
            rate,
            short(rate * DAY),
            span(rate * DAY * c["history_us_per_commit"] / 1e6),
            span(rate * DAY / c["get_many_a_second_at_20_ms"]),
        )
        for rate in RATES
    ]
    return markdown_table(
        ("commits per second", "commits per day", "SQL", "reading the commits"), rows
    )


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
    """The document with all tables replaced by those of the model."""
    for name, make in TABLES.items():
        begin = _MARK.format(name)
        if begin not in text:
            raise SystemExit(f"docs/scale.md has no place for the table {name}")
        inner = re.compile(re.escape(begin) + ".*?" + re.escape(_END), re.DOTALL)
        made = f"{begin}\n{make(c)}\n{_END}"
        text = inner.sub(lambda _, made=made: made, text)
    return text


def known():
    """The stored constants."""
    with open(CONSTANTS) as file:
        return json.load(file)


def _store(c):
    with open(CONSTANTS, "w") as out:
        json.dump(c, out, indent=1)
        out.write("\n")


def main():
    """Print or write the tables, after measuring if requested."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="measure the constants again")
    parser.add_argument("--check", action="store_true", help="measure what the model predicts")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scale.md")
    parser.add_argument("--folder", default=os.path.join(HOME, "benchmarks", "out"))
    chosen = parser.parse_args()
    from benchmarks import constants as measuring

    if chosen.measure:
        before = known() if os.path.exists(CONSTANTS) else {}
        again = measuring.measure(chosen.folder)
        _store(again | {name: before[name] for name in ("checked", "quiet") if name in before})
    if chosen.check:
        _store(known() | {"checked": measuring.check(chosen.folder, CHECKED)})
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

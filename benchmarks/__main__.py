"""Measure arrowlog beside its peers, on the same tables, in fresh processes, in turn.

  python -m benchmarks                      every case (half an hour, the first time more)
  python -m benchmarks --quick              every kind of case, small (two minutes)
  python -m benchmarks --only open,plan     some of them
  python -m benchmarks --only open --against benchmarks/out/results.json
                                            and what changed since an earlier run

The cases:
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import beyond, cases, checkpoints, commits, manifests, reach, spark, splits
from benchmarks.cases import Setting
from benchmarks.chart import chart
from benchmarks.figures import OURS, Figure, changes, from_json, rows_of, to_json
from benchmarks.fresh import Failed, progress
from benchmarks.headline import markdown, put
from benchmarks.machine import machine, told, versions
from benchmarks.report import Printer, notes

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "out")
FOOT = "Medians of the runs; without a least or most there was one run. MB is the highest peak."
TITLES = {**cases.TITLES, **checkpoints.TITLES, **commits.TITLES}
DELTA, LOGS = ("deltalake",), ("deltalake", "pyiceberg")


@dataclass(frozen=True)
class Job:
    """Something that measures: yields rows of figures, beside the peers it names."""

    run: Callable[[Setting], Iterator[list[Figure]]]
    words: str
    peers: tuple[str, ...] = LOGS


def plain(run):
    """A job of a module that has `run(folder, rounds, quick) -> list[Figure]`.

    One line in `JOBS` is enough: `"name": Job(plain(module.run), "what it is", ("spark",))`.
    """
    return lambda setting: rows_of(run(setting.folder, setting.rounds, setting.quick))


def at_length(run):
    """A job that has nothing to say when all is to be quick."""
    return lambda setting: iter(()) if setting.quick else plain(run)(setting)


JOBS = {
    "open": Job(cases.opening, "a log from nothing to all live files as Arrow, typed"),
    "cached": Job(cases.cached, "the same where an earlier process left a local copy", ()),
    "plan": Job(cases.planning, "which files may match: cold, and of an open table"),
    "delta": Job(cases.delta_tables, "Delta tables, the same one by us and by deltalake", DELTA),
    "refresh": Job(cases.refreshing, "an open table after one more commit, and after none"),
    "travel": Job(cases.travelling, "the state in the middle of the history"),
    "history": Job(cases.history, "SQL: files and bytes by day and operation"),
    "diff": Job(cases.diff, "what is different between two versions"),
    "checkpoint": Job(cases.checkpoint, "make one of a table that is open", DELTA),
    "replay": Job(checkpoints.run, "what checkpoints and codecs are worth", ()),
    "wire": Job(
        checkpoints.wire, "open over S3 with a delay, with and without a checkpoint", DELTA
    ),
    "commit": Job(commits.run, "1, 4 and 16 processes on one table: disk with fsync, S3", DELTA),
    "import": Job(cases.importing, "until a package is imported"),
    "growth": Job(cases.growth, "cost by commits, files, columns, predicates, with its slope"),
    "spark": Job(spark.run, "Spark with arrowlog beside Spark without", ("spark",)),
    "splits": Job(plain(splits.run), "rows of splits and searches in them", ()),
    "avro": Job(
        plain(manifests.run), "tables whose state is in Avro, beside fastavro", ("fastavro",)
    ),
    "beyond": Job(at_length(beyond.run), "a log larger than its driver's memory; not quick", ()),
}


def arguments(given=None):
    listed = "\n".join(f"  {name:<12}{job.words}" for name, job in JOBS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}{listed}",
        epilog="Times are milliseconds. The answers of all must agree, or the run stops. The files "
        "are in the system's cache.\nTables are kept in the folder and used again; delete it to "
        "have them built anew.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small tables, few rounds")
    add("--large", action="store_true", help="also 10,000,000 files (15 GB of memory to build)")
    add("--only", default=",".join(JOBS), help="cases, by comma", metavar="CASES")
    add("--rounds", type=int, help="rounds of each case (5, quick 2)")
    add("--folder", default=OUT, help="where tables are built (%(default)s)")
    add("--json", help="the figures, with every run (FOLDER/results.json)", metavar="FILE")
    add("--chart", help="the picture (FOLDER/benchmark.svg)", metavar="FILE")
    add("--against", help="an earlier results.json to compare with", metavar="FILE")
    add("--again", help="measure nothing, show an earlier results.json", metavar="FILE")
    add(
        "--readme",
        help="put the tables into this page, between its marks (docs/benchmarks.md)",
        metavar="FILE",
    )
    add("--check", action="store_true", help="exit with 1 if an asked figure is not reached")
    chosen = parser.parse_args(given)
    chosen.only = [name.strip() for name in chosen.only.split(",") if name.strip()]
    unknown = [name for name in chosen.only if name not in JOBS]
    if unknown or not chosen.only:
        parser.error(f"--only {', '.join(unknown) or 'nothing'}: there are {', '.join(JOBS)}")
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error(f"--rounds {chosen.rounds}: at least 1")
    chosen.json = chosen.json or os.path.join(chosen.folder, "results.json")
    chosen.chart = chosen.chart or os.path.join(chosen.folder, "benchmark.svg")
    chosen.earlier = chosen.before = None
    try:
        for name, place in (("against", "earlier"), ("again", "before")):
            path = getattr(chosen, name)
            if path:
                with open(path) as text:
                    setattr(chosen, place, told_before(text.read()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"--{name} {path}: not the results of an earlier run: {error}")
    try:
        if chosen.readme:  # now, not after half an hour
            with open(chosen.readme) as text:
                put(text.read(), "")
    except (OSError, ValueError) as error:
        parser.error(f"--readme {chosen.readme}: {error}")
    return chosen


def told_before(text):
    """The figures of an earlier run, and what it was about."""
    return from_json(text), json.loads(text)


def measured(chosen, setting):
    """Do the jobs: rows, and the peers they are beside."""
    missing = {*LOGS} - {*setting.peers}
    for name, job in JOBS.items():
        if name in chosen.only:
            peers = tuple(who for who in job.peers if who not in missing)
            for row in job.run(setting):
                yield row, peers


def remembered(figures):
    """The same of an earlier run."""
    for row in rows_of(figures):
        seen = {figure.who for figure in figures if figure.case == row[0].case}
        yield row, tuple(who for who in (*LOGS, *sorted(seen - {*LOGS, OURS})) if who in seen)


def show(rows, earlier, out, figures):
    """Print rows as they come, adding to `figures`; then what was asked of them."""
    printer = Printer(TITLES, earlier, out)
    for row, peers in rows:
        figures += row
        since = changes(row, earlier or [])
        printer.row(row, peers, next(iter(since.values()), None))
    printer.end()
    out(f"\n{FOOT}\n{notes(figures)}".rstrip())
    reached = reach.outcomes(figures)
    if reached:
        out(f"\n{reach.table(reached)}")
    return reached


def write(path, text):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as out:
        out.write(text)


def command(chosen):
    """What one has to type to have the same measured."""
    words = ["python3 dev.py bench"]
    words += [f"--{name}" for name in ("quick", "large") if getattr(chosen, name)]
    words += [f"--rounds {chosen.rounds}"] if chosen.rounds else []
    words += [f"--only {','.join(chosen.only)}"] if chosen.only != list(JOBS) else []
    return " ".join(words)


def draw(chosen, figures, run, about, printed):
    """The picture, and the block of the page."""
    write(chosen.chart, chart(figures, TITLES, about))
    if chosen.readme:
        with open(chosen.readme) as text:
            whole = put(text.read(), markdown(figures, TITLES, run["command"], about, printed))
        write(chosen.readme, whole)


def main(given=None):
    chosen = arguments(given)
    started = time.monotonic()
    os.makedirs(chosen.folder, exist_ok=True)
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    run = {"command": command(chosen), "rounds": rounds}
    run |= {"machine": machine(chosen.folder), "versions": versions()}
    setting = Setting(chosen.folder, rounds, chosen.quick, chosen.large, cases.installed())
    rows, figures, lines = measured(chosen, setting), [], []
    if chosen.before:
        before, run = chosen.before
        rows = remembered(before)
    about = told(run["machine"], run["versions"])
    print(about, flush=True)

    def out(text):
        lines.append(text)
        print(text, flush=True)

    try:
        reached = show(rows, chosen.earlier and chosen.earlier[0], out, figures)
    except (Failed, KeyboardInterrupt) as error:
        progress("")
        print(f"\n{str(error) or 'Stopped.'}", file=sys.stderr)
        if figures:
            write(chosen.json, to_json(figures, **run, stopped=str(error) or "by hand"))
            print(f"What was measured until then: {chosen.json}", file=sys.stderr)
        return 1
    if not chosen.before:
        run["seconds"] = round(time.monotonic() - started)
        run["reach"] = [{"asked": r.asked.words, "reached": r.reached} for r in reached]
        write(chosen.json, to_json(figures, **run))
        print(f"\n{run['seconds']} s. Every run: {chosen.json}")
    draw(chosen, figures, run, about, "\n".join(lines))
    print(f"The chart: {chosen.chart}")
    return 1 if chosen.check and not all(one.reached for one in reached) else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Measure arrowlog beside its peers, on the same tables, in fresh processes, in turn.

  python -m benchmarks                      every case (half an hour, the first time more)
  python -m benchmarks --quick              every kind of case, small (two minutes)
  python -m benchmarks --only open,plan     some of them
  python -m benchmarks --only open --against benchmarks/out/results.json
                                            and what changed since an earlier run

The cases:
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import cases, commits, reach, spark
from benchmarks.cases import Setting
from benchmarks.chart import chart
from benchmarks.figures import Figure, changes, from_json, rows_of, to_json
from benchmarks.fresh import Failed, progress
from benchmarks.headline import markdown, put
from benchmarks.machine import machine, told, versions
from benchmarks.report import Printer, notes

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "out")
FOOT = "Medians of the runs; without a least or most there was one run. MB is the highest peak."
TITLES = {**cases.TITLES, **commits.TITLES}
DELTA, LOGS = ("deltalake",), ("deltalake", "pyiceberg")


@dataclass(frozen=True)
class Job:
    """Something that measures: yields rows of figures, beside the peers it names."""

    run: Callable[[Setting], Iterator[list[Figure]]]
    words: str
    peers: tuple[str, ...] = LOGS


def plain(run):
    """A job of a module that has `run(folder, rounds, quick) -> list[Figure]`."""
    return lambda setting: rows_of(run(setting.folder, setting.rounds, setting.quick))


JOBS = {
    "open": Job(cases.opening, "a log from nothing to all live files as Arrow, typed"),
    "cached": Job(cases.cached, "the same where an earlier process left a local copy"),
    "plan": Job(cases.planning, "which files may match: cold, and of an open table"),
    "refresh": Job(cases.refreshing, "an open table after one more commit, and after none"),
    "travel": Job(cases.travelling, "the state in the middle of the history"),
    "history": Job(cases.history, "SQL: files and bytes by day and operation"),
    "diff": Job(cases.diff, "what is different between two versions"),
    "checkpoint": Job(cases.checkpoint, "make one of a table that is open", DELTA),
    "commit": Job(commits.run, "1, 4 and 16 processes on one table: disk with fsync, S3", DELTA),
    "import": Job(cases.importing, "until a package is imported"),
    "growth": Job(cases.growth, "cost by commits, files, columns, predicates, with its slope"),
    "spark": Job(spark.run, "Spark with arrowlog beside Spark without", ("spark",)),
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
    add("--readme", help="put the headline table into this file, between its marks", metavar="FILE")
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
    chosen.earlier = None
    try:
        if chosen.against:
            with open(chosen.against) as text:
                chosen.earlier = from_json(text.read())
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"--against {chosen.against}: not the results of an earlier run: {error}")
    try:
        if chosen.readme:  # now, not after half an hour
            with open(chosen.readme) as text:
                put(text.read(), "")
    except (OSError, ValueError) as error:
        parser.error(f"--readme {chosen.readme}: {error}")
    return chosen


def measured(chosen, setting, out):
    """Do the jobs, printing rows as they come; all figures."""
    figures = []
    printer = Printer(TITLES, chosen.earlier, out)
    for name, job in JOBS.items():
        if name not in chosen.only:
            continue
        for row in job.run(setting):
            figures += row
            since = changes(row, chosen.earlier or [])
            printer.row(row, job.peers, next(iter(since.values()), None))
        printer.end()
    out(f"\n{FOOT}\n{notes(figures)}".rstrip())
    return figures


def write(path, text):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as out:
        out.write(text)


def keep(chosen, figures, about, printed, **more):
    """Write what is to stay: every run, the picture, the block of the README."""
    write(chosen.json, to_json(figures, **more))
    write(chosen.chart, chart(figures, TITLES, about))
    if chosen.readme:
        block = markdown(figures, TITLES, about, printed)
        with open(chosen.readme) as text:
            whole = put(text.read(), block)
        write(chosen.readme, whole)


def main(given=None):
    chosen = arguments(given)
    os.makedirs(chosen.folder, exist_ok=True)
    started = time.monotonic()
    seen, found = machine(chosen.folder), versions()
    about = told(seen, found)
    print(about, flush=True)
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    setting = Setting(chosen.folder, rounds, chosen.quick, chosen.large, cases.installed())
    lines = []

    def out(text):
        lines.append(text)
        print(text, flush=True)

    try:
        figures = measured(chosen, setting, out)
    except Failed as error:
        progress("")
        print(f"\n{error}", file=sys.stderr)
        return 1
    reached = reach.outcomes(figures)
    if reached:
        out(f"\n{reach.table(reached)}")
    told_reach = [
        {"words": one.asked.words, "measured": one.measured, "reached": one.reached}
        for one in reached
    ]
    spent = round(time.monotonic() - started)
    keep(
        chosen,
        figures,
        about,
        "\n".join(lines),
        machine=seen,
        versions=found,
        rounds=rounds,
        seconds=spent,
        reach=told_reach,
    )
    print(f"\n{spent} s. Every run: {chosen.json}; the chart: {chosen.chart}")
    return 1 if chosen.check and not all(one.reached for one in reached) else 0


if __name__ == "__main__":
    raise SystemExit(main())

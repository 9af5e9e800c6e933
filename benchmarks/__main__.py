"""Measure arrowlog and its peers on the same tables, in fresh processes that alternate.

  python -m benchmarks                      all cases: half an hour, longer the first time
  python -m benchmarks --quick              every kind of case on small tables: two minutes
  python -m benchmarks --only open,plan     some cases
  python -m benchmarks --only open --against benchmarks/out/results.json
                                            with the changes since an earlier run

Cases:
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import beyond, cases, checkpoints, commits, goals, manifests, spark, splits
from benchmarks.cases import Setting
from benchmarks.chart import chart
from benchmarks.figures import ARROWLOG, Figure, changes, from_json, rows_of, to_json
from benchmarks.fresh import Failed, progress
from benchmarks.headline import markdown, replace_block
from benchmarks.machine import describe, machine, versions
from benchmarks.report import Printer, notes

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "out")
FOOTER = "Medians of all runs; where least or most is empty, there was one run. MB is peak memory."
TITLES = {**cases.TITLES, **checkpoints.TITLES, **commits.TITLES}
DELTA, LOGS = ("deltalake",), ("deltalake", "pyiceberg")


@dataclass(frozen=True)
class Job:
    """A group of cases that is measured: yields rows, which are compared with `peers`."""

    run: Callable[[Setting], Iterator[list[Figure]]]
    description: str
    peers: tuple[str, ...] = LOGS


def from_list(run):
    """The function of a job, made from `run(folder, rounds, quick) -> list[Figure]`.

    A module takes part with one line in `JOBS`:
    `"name": Job(from_list(module.run), "description", ("spark",))`.
    """
    return lambda setting: rows_of(run(setting.folder, setting.rounds, setting.quick))


def unless_quick(run):
    """As `from_list`, for a job that is left out of `--quick`."""
    return lambda setting: iter(()) if setting.quick else from_list(run)(setting)


JOBS = {
    "open": Job(cases.opening, "open a table: from its log to all live files as typed Arrow"),
    "cached": Job(cases.cached, "open and plan with a local copy left by an earlier process", ()),
    "plan": Job(cases.planning, "files that may match a predicate: cold, and of an open table"),
    "delta": Job(cases.delta_tables, "the same Delta table, read by arrowlog and deltalake", DELTA),
    "refresh": Job(cases.refreshing, "refresh an open table: after one more commit, after none"),
    "travel": Job(cases.travelling, "open the version in the middle of the history"),
    "history": Job(cases.history, "files and bytes by day and operation, also in SQL"),
    "diff": Job(cases.diff, "files added and removed between two versions"),
    "checkpoint": Job(cases.checkpoint, "write a checkpoint of an open table", DELTA),
    "replay": Job(checkpoints.run, "open by replay and from a checkpoint; codecs", ()),
    "wire": Job(checkpoints.wire, "open over S3 with latency, with and without checkpoint", DELTA),
    "commit": Job(commits.run, "commits by 1, 4 and 16 processes: disk with fsync, S3", DELTA),
    "import": Job(cases.importing, "import the package"),
    "growth": Job(cases.growth, "cost by number of commits, files, columns and predicates"),
    "spark": Job(spark.run, "Spark with and without arrowlog", ("spark",)),
    "splits": Job(from_list(splits.run), "rows of splits, and searches in them", ()),
    "avro": Job(
        from_list(manifests.run), "tables with an Avro state; the peer is fastavro", ("fastavro",)
    ),
    "beyond": Job(
        unless_quick(beyond.run), "a log larger than the driver's memory; not with --quick", ()
    ),
}


def parse_arguments(given=None):
    """The arguments, with the stored results that `--against` and `--again` name already read."""
    job_list = "\n".join(f"  {name:<12}{job.description}" for name, job in JOBS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}{job_list}",
        epilog="Times are in milliseconds. The run stops if the engines' answers differ. Files are "
        "in the page cache.\nTables are kept in the folder and used again; delete it to "
        "rebuild them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small tables, few rounds")
    add("--large", action="store_true", help="also 10,000,000 files (15 GB of memory to build)")
    add("--only", default=",".join(JOBS), help="cases, separated by commas", metavar="CASES")
    add("--rounds", type=int, help="rounds of each case (5; with --quick 2)")
    add("--folder", default=OUT, help="where tables are built (%(default)s)")
    add("--json", help="where to write all runs (FOLDER/results.json)", metavar="FILE")
    add("--chart", help="where to write the chart (FOLDER/benchmark.svg)", metavar="FILE")
    add("--against", help="an earlier results.json to compare with", metavar="FILE")
    add("--again", help="do not measure, show an earlier results.json", metavar="FILE")
    add(
        "--readme",
        help="write the tables into this page, between its markers (docs/benchmarks.md)",
        metavar="FILE",
    )
    add("--check", action="store_true", help="exit with 1 if a goal is not reached")
    arguments = parser.parse_args(given)
    arguments.only = [name.strip() for name in arguments.only.split(",") if name.strip()]
    unknown = [name for name in arguments.only if name not in JOBS]
    if unknown or not arguments.only:
        parser.error(f"--only {', '.join(unknown) or 'nothing'}: cases are {', '.join(JOBS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: at least 1")
    arguments.json = arguments.json or os.path.join(arguments.folder, "results.json")
    arguments.chart = arguments.chart or os.path.join(arguments.folder, "benchmark.svg")
    arguments.earlier = arguments.stored = None
    try:
        for option, attribute in (("against", "earlier"), ("again", "stored")):
            path = getattr(arguments, option)
            if path:
                with open(path) as file:
                    setattr(arguments, attribute, parse_results(file.read()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"--{option} {path}: not the results of an earlier run: {error}")
    try:
        if arguments.readme:  # a page without markers is reported before half an hour of measuring
            with open(arguments.readme) as file:
                replace_block(file.read(), "")
    except (OSError, ValueError) as error:
        parser.error(f"--readme {arguments.readme}: {error}")
    return arguments


def parse_results(text):
    """The figures in a results.json, and the whole document, which describes the run."""
    return from_json(text), json.loads(text)


def measured_rows(arguments, setting):
    """Run the jobs: yields each row with the peers that have a column in its table."""
    missing = {*LOGS} - {*setting.peers}
    for name, job in JOBS.items():
        if name in arguments.only:
            peers = tuple(peer for peer in job.peers if peer not in missing)
            for row in job.run(setting):
                yield row, peers


def stored_rows(figures):
    """As `measured_rows`, from the figures of an earlier run."""
    for row in rows_of(figures):
        engines = {figure.engine for figure in figures if figure.case == row[0].case}
        order = (*LOGS, *sorted(engines - {*LOGS, ARROWLOG}))
        yield row, tuple(engine for engine in order if engine in engines)


def print_results(rows, earlier, out, figures):
    """Print rows as they are measured, then notes and goals; returns the goals' results.

    Appends to `figures`, so that the caller has them if a measurement fails.
    """
    printer = Printer(TITLES, earlier, out)
    for row, peers in rows:
        figures += row
        since = changes(row, earlier or [])
        printer.row(row, peers, next(iter(since.values()), None))
    printer.end()
    out(f"\n{FOOTER}\n{notes(figures)}".rstrip())
    results = goals.evaluate(figures)
    if results:
        out(f"\n{goals.table(results)}")
    return results


def write(path, text):
    """Write a file, in a new folder if necessary."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as out:
        out.write(text)


def command_line(arguments):
    """The command that repeats the measurement."""
    words = ["python3 dev.py bench"]
    words += [f"--{name}" for name in ("quick", "large") if getattr(arguments, name)]
    words += [f"--rounds {arguments.rounds}"] if arguments.rounds else []
    words += [f"--only {','.join(arguments.only)}"] if arguments.only != list(JOBS) else []
    return " ".join(words)


def write_chart_and_page(arguments, figures, run, about, printed):
    """Write the chart and, with `--readme`, the block of the page."""
    write(arguments.chart, chart(figures, TITLES, about))
    if arguments.readme:
        with open(arguments.readme) as file:
            page = file.read()
        block = markdown(figures, TITLES, run["command"], about, printed)
        write(arguments.readme, replace_block(page, block))


def main(given=None):
    """Measure, or show stored results; returns the exit code."""
    arguments = parse_arguments(given)
    started = time.monotonic()
    os.makedirs(arguments.folder, exist_ok=True)
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    run = {"command": command_line(arguments), "rounds": rounds}
    run |= {"machine": machine(arguments.folder), "versions": versions()}
    peers = cases.installed()
    setting = Setting(arguments.folder, rounds, arguments.quick, arguments.large, peers)
    rows, figures, lines = measured_rows(arguments, setting), [], []
    if arguments.stored:
        stored, run = arguments.stored
        rows = stored_rows(stored)
    about = describe(run["machine"], run["versions"])
    print(about, flush=True)

    def out(text):
        lines.append(text)
        print(text, flush=True)

    try:
        results = print_results(rows, arguments.earlier and arguments.earlier[0], out, figures)
    except (Failed, KeyboardInterrupt) as error:
        progress("")
        print(f"\n{str(error) or 'Interrupted.'}", file=sys.stderr)
        if figures:
            write(arguments.json, to_json(figures, **run, stopped=str(error) or "interrupted"))
            print(f"Results so far: {arguments.json}", file=sys.stderr)
        return 1
    if not arguments.stored:
        run["seconds"] = round(time.monotonic() - started)
        run["goals"] = [{"goal": one.goal.label, "reached": one.reached} for one in results]
        write(arguments.json, to_json(figures, **run))
        print(f"\n{run['seconds']} s. All runs: {arguments.json}")
    write_chart_and_page(arguments, figures, run, about, "\n".join(lines))
    print(f"Chart: {arguments.chart}")
    return 1 if arguments.check and not all(one.reached for one in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())

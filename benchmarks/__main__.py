"""Measure arrowlog beside deltalake: fresh processes, interleaved, one table out.

python -m benchmarks                 everything, about five minutes
python -m benchmarks --quick         the small tables, three rounds
python -m benchmarks --only open     or refresh, travel, history, plan, checkpoint, commit, spark,
                                     import
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys

from benchmarks import checkpoint, commits, plan, spark
from benchmarks.tables import build

SHAPES = {"1,000 x 10": (1000, 10), "50 x 4,000": (50, 4000), "10,000 x 2": (10_000, 2)}
QUICK = {"1,000 x 10": (1000, 10)}
CASES = {
    "open": ("arrowlog-open", "delta-open"),
    "refresh": ("arrowlog-refresh", "delta-refresh"),
    "travel": ("arrowlog-travel", "delta-travel"),
    "history": ("arrowlog-history", "delta-history"),
}


def measure(case, root):
    command = [sys.executable, "-m", "benchmarks.measure", case, root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def compare(case, shape, folder, rounds):
    """Ours and theirs in turn, and what came of it."""
    commits, adds = shape
    ours = build(folder, commits, adds, delta=False)
    theirs = build(folder, commits, adds, delta=True)
    found = {name: [] for name in CASES[case]}
    for _ in range(rounds):
        for name, root in zip(CASES[case], (ours, theirs), strict=True):
            found[name].append(measure(name, root))
    answers = {run["answer"] for runs in found.values() for run in runs}
    if len(answers) != 1:
        raise SystemExit(f"{case}: the answers differ: {answers}")
    rows = []
    for name, runs in found.items():
        times = [run["ms"] for run in runs]
        memory = max(run["mb"] for run in runs)
        rows.append(
            {"case": name, "median": statistics.median(times), "best": min(times), "mb": memory}
        )
    return rows


def show(title, rows):
    ours, theirs = rows
    print(
        f"{title:<24}{ours['median']:>10.1f}{ours['best']:>9.1f}{ours['mb']:>7.0f}"
        f"{theirs['median']:>12.1f}{theirs['best']:>9.1f}{theirs['mb']:>7.0f}"
        f"{theirs['median'] / ours['median']:>9.1f}x{theirs['best'] / ours['best']:>8.1f}x",
        flush=True,
    )


def _numbers(text):
    return [int(number) for number in text.split(",")] if text else None


def _arguments():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="the small tables, three rounds")
    parser.add_argument(
        "--large", action="store_true", help="also 10,000,000 files (15 GB of memory to build)"
    )
    parser.add_argument("--only", default=",".join([*CASES, *JOBS]), help="cases, by comma")
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument("--processes", help="commit: how many, by comma (1,4,16)")
    parser.add_argument(
        "--commits",
        type=int,
        help=f"commit: in all ({commits.TOTAL_DISK} on disk, {commits.TOTAL_S3} over S3)",
    )
    parser.add_argument("--folder", default=os.path.join(os.path.dirname(__file__), "out"))
    parser.add_argument("--json", help="also write the figures to this file")
    chosen = parser.parse_args()
    unknown = set(chosen.only.split(",")) - {*CASES, *JOBS}
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: use {', '.join([*CASES, *JOBS])}")
    return chosen


def _compared(chosen, rounds, cases):
    print(f"{'ms, fresh processes':<24}{'arrowlog':>10}{'best':>9}{'MB':>7}", end="")
    print(f"{'deltalake':>12}{'best':>9}{'MB':>7}{'ratio':>10}{'best':>9}")
    figures = {}
    for case in cases:
        for label, shape in (QUICK if chosen.quick else SHAPES).items():
            rows = compare(case, shape, chosen.folder, rounds)
            figures[f"{case} {label}"] = rows
            show(f"{case} {label}", rows)
    return figures


def _plans(chosen, rounds):
    return plan.run(chosen.folder, rounds, quick=chosen.quick, measure=measure)


def _checkpoints(chosen, rounds):
    figures = checkpoint.run(chosen.folder, rounds, quick=chosen.quick, measure=measure)
    if chosen.large:
        figures |= checkpoint.run_large(chosen.folder, rounds, measure=measure)
    return figures


def _commits(chosen, _):
    return commits.run(
        chosen.folder,
        quick=chosen.quick,
        rounds=chosen.rounds,
        processes=_numbers(chosen.processes),
        disk=chosen.commits,
        s3=chosen.commits,
    )


def _imports(_, rounds):
    figures = {}
    for name in ("polars-import", "arrowlog-import"):
        figures[name] = min(measure(name, "")["ms"] for _ in range(rounds))
        print(f"{name.replace('-', ' '):<24}{'':>10}{figures[name]:>9.1f}")
    return figures


def _spark(chosen, rounds):
    return spark.run(chosen.folder, rounds, quick=chosen.quick)


JOBS = {
    "plan": _plans,
    "checkpoint": _checkpoints,
    "commit": _commits,
    "spark": _spark,
    "import": _imports,
}


def main():
    chosen = _arguments()
    rounds = chosen.rounds or (3 if chosen.quick else 7)
    packages = ("arrowlog", "deltalake", "polars", "pyarrow")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {versions}")
    wanted = chosen.only.split(",")
    cases = [name for name in wanted if name in CASES]
    figures = _compared(chosen, rounds, cases) if cases else {}
    for name, job in JOBS.items():
        figures |= job(chosen, rounds) if name in wanted else {}
    if chosen.json:
        with open(chosen.json, "w") as out:
            json.dump({"versions": versions, "figures": figures}, out, indent=1)


if __name__ == "__main__":
    main()

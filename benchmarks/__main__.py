"""Measure arrowlog beside deltalake: fresh processes, interleaved, one table out.

python -m benchmarks                 everything, about five minutes
python -m benchmarks --quick         the small tables, three rounds
python -m benchmarks --only open     or refresh, travel, plan, commit, checkpoint, import, spark
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


def main():  # noqa: C901 -- one case after the other
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="the small tables, three rounds")
    everything = "open,refresh,travel,plan,commit,checkpoint,import,spark"
    parser.add_argument("--only", default=everything, help="cases, by comma")
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
    rounds = chosen.rounds or (3 if chosen.quick else 7)
    packages = ("arrowlog", "deltalake", "polars", "pyarrow")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {versions}")
    figures = {}
    cases = [name for name in chosen.only.split(",") if name in CASES]
    if cases:
        print(f"{'ms, fresh processes':<24}{'arrowlog':>10}{'best':>9}{'MB':>7}", end="")
        print(f"{'deltalake':>12}{'best':>9}{'MB':>7}{'ratio':>10}{'best':>9}")
    for case in cases:
        for label, shape in (QUICK if chosen.quick else SHAPES).items():
            rows = compare(case, shape, chosen.folder, rounds)
            figures[f"{case} {label}"] = rows
            show(f"{case} {label}", rows)
    if "plan" in chosen.only.split(","):
        figures |= plan.run(chosen.folder, rounds, quick=chosen.quick, measure=measure)
    if "checkpoint" in chosen.only.split(","):
        figures |= checkpoint.run(chosen.folder, rounds, quick=chosen.quick, measure=measure)
    if "commit" in chosen.only.split(","):
        figures |= commits.run(
            chosen.folder,
            quick=chosen.quick,
            rounds=chosen.rounds,
            processes=_numbers(chosen.processes),
            disk=chosen.commits,
            s3=chosen.commits,
        )
    if "spark" in chosen.only.split(","):
        figures |= spark.run(chosen.folder, rounds, quick=chosen.quick)
    if "import" in chosen.only.split(","):
        for name in ("polars-import", "arrowlog-import"):
            best = min(measure(name, "")["ms"] for _ in range(rounds))
            figures[name] = best
            print(f"{name.replace('-', ' '):<24}{'':>10}{best:>9.1f}")
    if chosen.json:
        with open(chosen.json, "w") as out:
            json.dump({"versions": versions, "figures": figures}, out, indent=1)


if __name__ == "__main__":
    main()

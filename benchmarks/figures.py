"""Measured figures and the arithmetic on them. Pure: no clock, and no files other than JSON text.

A job is a function that measures and yields rows. A row is a list of `Figure`s of one case and one
shape, one figure per engine:

    [Figure("open", "1,000 commits x 10 files", "arrowlog", (50.1, 49.8, 52.0), mb=140),
     Figure("open", "1,000 commits x 10 files", "deltalake", (456.0, 449.2, 461.7), mb=127)]

`runs` holds every run, in `unit`; median and best are computed for display. A job without peers
yields rows of one figure. `x` is set where a case measures how cost grows: the rows of a case with
different values of `x` are the points of a curve, which has a slope. `rows_of` groups a flat list
of figures into rows, so a module may also provide

    def run(folder: str, rounds: int, quick: bool) -> list[Figure]: ...

which `from_list` in `__main__` turns into a job.
"""

import itertools
import json
import math
import statistics
from dataclasses import asdict, dataclass

ARROWLOG = "arrowlog"
PER_SECOND, FAILED = "per second", "failed"
# More is better for these units, less for all others.
MORE_IS_BETTER = {PER_SECOND}
# Counts are shown as whole numbers, and have no ratio.
COUNT_UNITS = {FAILED}
# Names in results.json of earlier versions.
_FORMER_FIELDS = {"who": "engine"}
_FORMER_UNITS = {"a second": PER_SECOND}


@dataclass(frozen=True, slots=True)
class Figure:
    """All runs of one case on one shape by one engine."""

    case: str  # groups rows; the titles of the jobs' modules map it to the text of the heading
    shape: str  # what was measured: the table, the predicate, the number of processes
    engine: str  # arrowlog, deltalake, pyiceberg, spark, …
    runs: tuple[float, ...]  # in `unit`, in the order in which they were made
    mb: float | None = None  # the highest peak memory of the processes of all runs
    unit: str = "ms"  # or PER_SECOND, "requests", FAILED, …
    x: float | None = None  # position on a curve: number of commits, files, columns, predicates
    note: str = ""  # printed below the tables: why commits failed, what limits the comparison
    cpu: tuple[float, ...] = ()  # ms of CPU time of all threads per run: less noisy than `runs`

    @property
    def median(self):
        """The median of the runs."""
        return statistics.median(self.runs)

    @property
    def best(self):
        """The best run: the greatest for rates, else the least."""
        return max(self.runs) if self.unit in MORE_IS_BETTER else min(self.runs)


def rows_of(figures):
    """Group consecutive figures of the same case, shape and unit into rows."""
    for _, row in itertools.groupby(figures, key=lambda f: (f.case, f.shape, f.unit)):
        yield list(row)


def figure_of(row, engine):
    """The figure of an engine in a row, or None."""
    return next((figure for figure in row if figure.engine == engine), None)


def ratio(row, engine):
    """How many times better arrowlog is than a peer, by medians.

    Returns None if either of them is missing, or if the unit is a count.

    >>> ours = Figure("open", "", "arrowlog", (2.0, 1.0, 9.0))
    >>> ratio([ours, Figure("open", "", "deltalake", (30.0,))], "deltalake")
    15.0
    """
    ours, theirs = figure_of(row, ARROWLOG), figure_of(row, engine)
    if ours is None or theirs is None or ours.unit in COUNT_UNITS:
        return None
    numerator, denominator = theirs.median, ours.median
    if ours.unit in MORE_IS_BETTER:
        numerator, denominator = denominator, numerator
    return numerator / denominator if denominator else None


def slope(points):
    """The exponent of growth: least squares of log y by log x. None for less than two values of x.

    >>> round(slope([(10, 5), (100, 50), (1000, 500)]), 3)
    1.0
    >>> round(slope([(1, 7), (4, 7), (16, 7)]), 3)
    0.0
    """
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 2:
        return None
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def curves(figures):
    """The points of every curve: {case: {engine: [(x, median), …]}}."""
    by_case = {}
    for figure in figures:
        if figure.x is not None:
            points = by_case.setdefault(figure.case, {}).setdefault(figure.engine, [])
            points.append((figure.x, figure.median))
    return {
        case: {engine: sorted(points) for engine, points in by_engine.items()}
        for case, by_engine in by_case.items()
    }


def to_json(figures, **run):
    """The text of results.json: the fields that describe the run, then every figure."""
    records = [
        asdict(figure) | {"median": figure.median, "min": min(figure.runs), "max": max(figure.runs)}
        for figure in figures
    ]
    return json.dumps({**run, "figures": records}, indent=1)


def from_json(text):
    """The figures in a text written by `to_json`, by this version or an earlier one."""
    return [_from_record(record) for record in json.loads(text)["figures"]]


def _from_record(record):
    record = {_FORMER_FIELDS.get(name, name): value for name, value in record.items()}
    values = {name: record[name] for name in Figure.__dataclass_fields__ if name in record}
    values |= {name: tuple(values.get(name, ())) for name in ("runs", "cpu")}
    if "unit" in values:
        values["unit"] = _FORMER_UNITS.get(values["unit"], values["unit"])
    return Figure(**values)


def changes(figures, earlier):
    """Relative change of arrowlog's medians since an earlier run: {(case, shape, unit): change}."""
    before = {(f.case, f.shape, f.unit): f.median for f in earlier if f.engine == ARROWLOG}
    result = {}
    for figure in figures:
        key = (figure.case, figure.shape, figure.unit)
        if figure.engine == ARROWLOG and before.get(key):
            result[key] = figure.median / before[key] - 1
    return result

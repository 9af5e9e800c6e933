"""What was measured, and the arithmetic on it. Pure: no clock, no files but JSON text.

A job is a function that measures and yields rows; a row is a list of `Figure`s of one case and one
shape, one figure for each who took part:

    [Figure("open", "1,000 commits x 10 files", "arrowlog", (50.1, 49.8, 52.0), mb=140),
     Figure("open", "1,000 commits x 10 files", "deltalake", (456.0, 449.2, 461.7), mb=127)]

`runs` keeps every run, in `unit`; the middle, the best and the spread are worked out when shown.
A job that has no peer yields rows of one figure. `x` is set where cost is shown as it grows: rows
of one case whose `x` differ are a curve, and have a slope. What a plain list of figures comes to
is `rows_of(figures)`, so a module may as well have

    def run(folder: str, rounds: int, quick: bool) -> list[Figure]: ...

and take part with one line in `JOBS` of `__main__`.
"""

import itertools
import json
import math
import statistics
from dataclasses import asdict, dataclass

OURS = "arrowlog"
# Of these more is better, of all others less. What is only told has no ratio.
MORE_IS_BETTER = {"a second"}
ONLY_TOLD = {"failed"}


@dataclass(frozen=True, slots=True)
class Figure:
    """All runs of one case on one shape by one engine."""

    case: str  # heads a group of rows: see CASES in cases.py for the words shown
    shape: str  # what it was done to
    who: str  # arrowlog, deltalake, pyiceberg, spark, …
    runs: tuple[float, ...]  # in `unit`, in the order they were made
    mb: float | None = None  # highest peak of memory of a run's process
    unit: str = "ms"  # or "a second" (more is better), "requests", "failed"
    x: float | None = None  # where on a curve: number of commits, files, columns, predicates
    note: str = ""  # shown under the table: why commits failed, what has to be known
    cpu: tuple[float, ...] = ()  # ms of all threads, a run: a busy machine disturbs it less

    @property
    def median(self):
        return statistics.median(self.runs)

    @property
    def best(self):
        return max(self.runs) if self.unit in MORE_IS_BETTER else min(self.runs)


def rows_of(figures):
    """Figures of one case, shape and unit side by side."""
    for _, row in itertools.groupby(figures, key=lambda f: (f.case, f.shape, f.unit)):
        yield list(row)


def of(row, who):
    """Who's figure in a row, or None."""
    return next((figure for figure in row if figure.who == who), None)


def ratio(row, who):
    """How many times better we are than a peer, by medians; None where there is nothing to say.

    >>> ours = Figure("open", "", "arrowlog", (2.0, 1.0, 9.0))
    >>> ratio([ours, Figure("open", "", "deltalake", (30.0,))], "deltalake")
    15.0
    """
    ours, theirs = of(row, OURS), of(row, who)
    if ours is None or theirs is None or ours.unit in ONLY_TOLD:
        return None
    up, down = theirs.median, ours.median
    if ours.unit in MORE_IS_BETTER:
        up, down = down, up
    return up / down if down else None


def slope(points):
    """The power that cost grows with: least squares of log y by log x.

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
    """The points of every curve: {case: {who: [(x, median), …]}}."""
    found = {}
    for figure in figures:
        if figure.x is not None:
            points = found.setdefault(figure.case, {}).setdefault(figure.who, [])
            points.append((figure.x, figure.median))
    return {case: {who: sorted(p) for who, p in by.items()} for case, by in found.items()}


def to_json(figures, **about):
    """A run as text: what it was about, then every figure with all its runs."""
    told = [
        asdict(figure) | {"median": figure.median, "min": min(figure.runs), "max": max(figure.runs)}
        for figure in figures
    ]
    return json.dumps({**about, "figures": told}, indent=1)


def from_json(text):
    """The figures of a run that was written with `to_json`."""
    fields = Figure.__dataclass_fields__
    told = json.loads(text)["figures"]
    plain = [{name: one[name] for name in fields if name in one} for one in told]
    lists = ("runs", "cpu")
    return [Figure(**one | {name: tuple(one.get(name, ())) for name in lists}) for one in plain]


def changes(figures, earlier):
    """By (case, shape, unit): our median now over our median then, less one."""
    then = {(f.case, f.shape, f.unit): f.median for f in earlier if f.who == OURS}
    found = {}
    for figure in figures:
        key = (figure.case, figure.shape, figure.unit)
        if figure.who == OURS and then.get(key):
            found[key] = figure.median / then[key] - 1
    return found

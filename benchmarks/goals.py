"""The performance goals of arrowlog, and whether a run reached them. Pure.

Goals whose case was not measured are left out. A goal that is missed is reported, and with
`--check` the exit code is 1. The kinds of goals:

  ratio      how many times better arrowlog is than the peer
  value      arrowlog's median; for failed commits, the sum of all runs
  mb         arrowlog's peak memory
  mb ratio   arrowlog's peak memory divided by the peer's
  own ratio  arrowlog's median of another case divided by its median of this one
"""

from dataclasses import dataclass

from benchmarks import splits
from benchmarks.cases import COLD
from benchmarks.figures import ARROWLOG, COUNT_UNITS, FAILED, figure_of, ratio, rows_of
from benchmarks.report import number, times, whole
from benchmarks.spark import FULL, labels
from benchmarks.tables import Shape

AT_LEAST, AT_MOST = "at least", "at most"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure."""

    label: str
    kind: str  # ratio, value, mb, mb ratio, own ratio
    case: str
    shape: str
    sign: str  # AT_LEAST or AT_MOST
    bound: float
    peer: str = "deltalake"  # for `own ratio`, the other case


@dataclass(frozen=True, slots=True)
class GoalResult:
    """A goal, and what was measured."""

    goal: Goal
    measured: float
    unit: str

    @property
    def reached(self):
        """Whether the measured value is within the bound."""
        if self.goal.sign == AT_LEAST:
            return self.measured >= self.goal.bound
        return self.measured <= self.goal.bound


def _many_commits():
    for shape in (Shape(10_000, 1), Shape(10_000, 2)):
        for case, label, bound in (
            ("open", "open", 25),
            ("plan", "plan, cold", 30),
            ("travel", "time travel", 20),
            ("history", "history by day", 5),
            ("history sql", "history by SQL", 5),
        ):
            yield Goal(f"{label}: {shape}", "ratio", case, str(shape), AT_LEAST, bound)
        new = f"1 new: {shape}"
        yield Goal(f"refresh after one commit: {shape}", "ratio", "refresh", new, AT_LEAST, 50)
        label = f"memory to open: {shape}"
        yield Goal(label, "mb ratio", "open", str(shape), AT_MOST, 0.5)


def _history():
    """PyIceberg reads the sums of every snapshot from one file of metadata."""
    for shape in (Shape(500, 2), Shape(1000, 10), Shape(10_000, 1), Shape(10_000, 2)):
        label = f"history by day: {shape}, pyiceberg"
        yield Goal(label, "ratio", "history", str(shape), AT_LEAST, 1, "pyiceberg")


def _open():
    yield Goal(f"open: {Shape(1000, 10)}", "ratio", "open", str(Shape(1000, 10)), AT_LEAST, 10)
    large = Shape(50, 4000)
    yield Goal(f"open: {large}", "ratio", "open", str(large), AT_LEAST, 5)
    yield Goal(f"memory to open: {large}", "mb ratio", "open", str(large), AT_MOST, 0.9)
    removed = Shape(50, 4000, columns=6, removed=20)
    yield Goal(f"open: {removed}", "ratio", "open", str(removed), AT_LEAST, 5)
    yield Goal(f"memory to open: {removed}", "mb ratio", "open", str(removed), AT_MOST, 0.9)
    for shape in (Shape(10_000, 2, varied=True), Shape(50, 4000, varied=True)):
        yield Goal(f"open: {shape}", "ratio", "open", str(shape), AT_LEAST, 2)
    wide = "400 columns, 1,000 files"
    yield Goal(f"open: {wide}", "ratio", "growth: columns", wide, AT_LEAST, 3)
    for shape in (Shape(1000, 10), large, Shape(10_000, 2)):
        label = f"refresh instead of opening: {shape}"
        yield Goal(label, "own ratio", "refresh", f"1 new: {shape}", AT_LEAST, 20, "open")


def _commits():
    for place, rates in (("disk", (200, 150, 100)), ("S3 + 20 ms", (40, 40, 40))):
        for processes, rate in zip((1, 4, 16), rates, strict=True):
            shape = f"{place}, {processes} process{'es' * (processes > 1)}"
            yield Goal(f"commits: {shape}", "value", "commit rate", shape, AT_LEAST, rate)
            yield Goal(f"commits failed: {shape}", "value", "commit failures", shape, AT_MOST, 0)
    near = "S3 + 0 ms, 16 processes"
    yield Goal(f"commits: {near}", "value", "commit rate", near, AT_LEAST, 100)
    for shape, ms in ((near, 1000), ("S3 + 20 ms, 16 processes", 1500)):
        yield Goal(f"commit p99: {shape}", "value", "commit p99", shape, AT_MOST, ms)
    for processes in (4, 16):
        shape = f"S3 + 20 ms, {processes} processes"
        yield Goal(f"requests per commit: {shape}", "value", "commit requests", shape, AT_MOST, 6)
    alone = "S3 + 20 ms, 1 process"
    yield Goal("requests for an uncontended append", "value", "commit requests", alone, AT_MOST, 1)
    quiet = "refresh with nothing new"
    yield Goal(f"requests for a {quiet}", "value", "commit requests", quiet, AT_MOST, 1)


def _wire():
    for label in ("by replay", "from a checkpoint"):
        shape = f"10,000 commits, {label}, + 20 ms"
        yield Goal(f"open over S3: {shape}", "ratio", "slow wire", shape, AT_LEAST, 5)


def _checkpoints():
    million, more = Shape(50, 20_000, 50), Shape(500, 20_000, 50)
    for shape, ms, mb in ((million, 80, 110), (more, 60, 160)):
        yield Goal(f"plan, cold: {shape}", "value", "plan", str(shape), AT_MOST, ms)
        yield Goal(f"memory to plan: {shape}", "mb", "plan", str(shape), AT_MOST, mb)
    yield Goal(f"open: {million}", "ratio", "open", str(million), AT_LEAST, 3)
    yield Goal(f"memory to open: {million}", "mb ratio", "open", str(million), AT_MOST, 1)
    for made in ("10,000 files", "1,000,000 files"):
        yield Goal(f"write a checkpoint: {made}", "ratio", "checkpoint", made, AT_LEAST, 3)
    # Peak of the whole process. The files of an open table alone take more than that.
    cold = f"{made}, {COLD}"
    yield Goal(f"memory to write it: {cold}", "mb", "checkpoint", cold, AT_MOST, 300)
    for files, ms, mb in (("1,000,000", 150, 250), ("10,000,000", 300, 500)):
        again = f"{files} files"
        label = f"the next checkpoint: {again}"
        yield Goal(label, "value", "checkpoint again", again, AT_MOST, ms)
        yield Goal(f"memory for {label}", "mb", "checkpoint again", again, AT_MOST, mb)


def _plans():
    for files, ms in (("10,000", 5), ("15,000", 1), ("1,000,000", 50)):
        shape = f"{files} files"
        yield Goal(f"plan, warm: {shape}", "value", "warm plan", shape, AT_MOST, ms)
    for way in ("the day alone", "by its file_uris", "by its dataset"):
        shape = f"100,000 files, {way}"
        yield Goal(f"plan, warm: {shape}", "ratio", "warm plan", shape, AT_LEAST, 10)
    label = "plan, warm: 100,000 files, pyiceberg"
    yield Goal(label, "ratio", "warm plan", "100,000 files", AT_LEAST, 10, "pyiceberg")
    for shape in (Shape(10_000, 1), Shape(10_000, 2)):
        yield Goal(f"open with a local copy: {shape}", "value", "cached", str(shape), AT_MOST, 5)


def _starts():
    yield Goal("import arrowlog", "value", "import", "alone", AT_MOST, 30)
    label = f"and the version of {Shape(500, 2)}"
    yield Goal(f"import {label}", "value", "import", label, AT_MOST, 150)


def _predicates():
    many = "64 predicates"
    yield Goal(f"plan, warm: {many}", "ratio", "growth: predicates", many, AT_LEAST, 2)


def _spark():
    names = labels(FULL)
    bounds = {"plan": 10, "selective": 5, "count": 0.95, "sum": 0.95, "all": 0.95, "write": 0.87}
    for name, bound in bounds.items():
        shape = names[name]
        yield Goal(f"Spark: {shape}", "ratio", "spark", shape, AT_LEAST, bound, "spark")


def _splits():
    names = splits.labels(splits.SPLITS * splits.FULL)
    for action, ms in (("rows", 6000), ("numbers", 1000), ("cold", 15_000), ("warm", 50)):
        shape = names[action]
        yield Goal(f"splits: {shape}", "value", splits.CASE, shape, AT_MOST, ms)


GOALS = [
    *_many_commits(),
    *_history(),
    *_open(),
    *_plans(),
    *_predicates(),
    *_starts(),
    *_checkpoints(),
    *_commits(),
    *_wire(),
    *_spark(),
    *_splits(),
]


def evaluate(figures, goals=GOALS):
    """The results of the goals that the figures of a run decide."""
    rows = {(row[0].case, row[0].shape): row for row in rows_of(figures)}
    results = []
    for goal in goals:
        row = rows.get((goal.case, goal.shape))
        value = None if row is None else _measured(goal, row, rows)
        if value is not None:
            results.append(GoalResult(goal, value, _unit(goal, row)))
    return results


def _measured(goal, row, rows):
    """The value that the goal bounds, or None if a figure is missing."""
    ours, theirs = figure_of(row, ARROWLOG), figure_of(row, goal.peer)
    if goal.kind == "ratio":
        return ratio(row, goal.peer)
    if ours is None:
        return None
    if goal.kind == "value":
        # The median would hide failures in less than half of the runs.
        return sum(ours.runs) if ours.unit == FAILED else ours.median
    if goal.kind == "mb":
        return ours.mb
    if goal.kind == "mb ratio":
        return None if theirs is None or not theirs.mb else ours.mb / theirs.mb
    other = figure_of(rows.get((goal.peer, goal.shape.removeprefix("1 new: ")), []), ARROWLOG)
    return None if other is None else other.median / ours.median


def _unit(goal, row):
    if goal.kind == "value":
        return row[0].unit
    return "MB" if goal.kind == "mb" else "x"


def _text(value, unit):
    if unit == "x":
        return times(value)
    return f"{whole(value) if unit in COUNT_UNITS else number(value)} {unit}"


def table(results):
    """The table of goals, as text."""
    reached = sum(result.reached for result in results)
    lines = [f"{'goal':<68}{'':>10}{'':>18}{'measured':>18}{'reached':>10}"]
    for result in results:
        goal = result.goal
        lines.append(
            f"  {goal.label:<66}{goal.sign:>10}{_text(goal.bound, result.unit):>18}"
            f"{_text(result.measured, result.unit):>18}"
            f"{'yes' if result.reached else 'NO':>10}"
        )
    lines.append(f"{reached} of {len(results)} reached.")
    return "\n".join(lines)

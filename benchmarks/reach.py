"""The figures that were asked of arrowlog, and whether a run reached them. Pure.

A figure whose case was not run is left out; not to reach one is told, and with `--check` is an
error. `ratio` is how many times better than the peer, `value` our median, `mb` our peak of memory,
`mb ratio` our peak over the peer's, `own ratio` our median of another case over this one's.
"""

from dataclasses import dataclass

from benchmarks import splits
from benchmarks.cases import COLD
from benchmarks.figures import ONLY_TOLD, OURS, of, ratio, rows_of
from benchmarks.report import number, times, whole
from benchmarks.spark import FULL, labels
from benchmarks.tables import Shape

LEAST, MOST = "at least", "at most"


@dataclass(frozen=True, slots=True)
class Asked:
    """One figure that was asked for."""

    words: str
    kind: str  # ratio, value, mb, mb ratio, own ratio
    case: str
    shape: str
    sign: str
    bound: float
    peer: str = "deltalake"  # or, of `own ratio`, the other case


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    asked: Asked
    measured: float
    unit: str

    @property
    def reached(self):
        if self.asked.sign == LEAST:
            return self.measured >= self.asked.bound
        return self.measured <= self.asked.bound


def _many_commits():
    for shape in (Shape(10_000, 1), Shape(10_000, 2)):
        for case, words, bound in (
            ("open", "open", 25),
            ("plan", "plan, cold", 30),
            ("travel", "time travel", 20),
            ("history", "history by SQL", 5),
        ):
            yield Asked(f"{words}: {shape}", "ratio", case, str(shape), LEAST, bound)
        new = f"1 new: {shape}"
        yield Asked(f"refresh after one commit: {shape}", "ratio", "refresh", new, LEAST, 50)
        words = f"memory to open: {shape}"
        yield Asked(words, "mb ratio", "open", str(shape), MOST, 0.5)


def _open():
    yield Asked(f"open: {Shape(1000, 10)}", "ratio", "open", str(Shape(1000, 10)), LEAST, 10)
    large = Shape(50, 4000)
    yield Asked(f"open: {large}", "ratio", "open", str(large), LEAST, 5)
    yield Asked(f"memory to open: {large}", "mb ratio", "open", str(large), MOST, 0.9)
    for shape in (Shape(10_000, 2, varied=True), Shape(50, 4000, varied=True)):
        yield Asked(f"open: {shape}", "ratio", "open", str(shape), LEAST, 2)
    wide = "400 columns, 1,000 files"
    yield Asked(f"open: {wide}", "ratio", "growth: columns", wide, LEAST, 3)
    for shape in (Shape(1000, 10), large, Shape(10_000, 2)):
        words = f"refresh before opening anew: {shape}"
        yield Asked(words, "own ratio", "refresh", f"1 new: {shape}", LEAST, 20, "open")


def _commits():
    for place, rates in (("disk", (200, 150, 100)), ("S3 + 20 ms", (40, 35, 35))):
        for processes, rate in zip((1, 4, 16), rates, strict=True):
            shape = f"{place}, {processes} process{'es' * (processes > 1)}"
            yield Asked(f"commits: {shape}", "value", "commit rate", shape, LEAST, rate)
            yield Asked(f"commits failed: {shape}", "value", "commit failures", shape, MOST, 0)
    slow = "S3 + 20 ms, 16 processes"
    yield Asked(f"99 of 100 commits: {slow}", "value", "commit p99", slow, MOST, 3000)
    alone = "S3 + 20 ms, 1 process"
    yield Asked("requests for an append nobody races", "value", "commit requests", alone, MOST, 1)
    quiet = "refresh with nothing new"
    yield Asked(f"requests for a {quiet}", "value", "commit requests", quiet, MOST, 1)


def _wire():
    for words in ("by replay", "from a checkpoint"):
        shape = f"10,000 commits, {words}, + 20 ms"
        yield Asked(f"open over S3: {shape}", "ratio", "slow wire", shape, LEAST, 5)


def _checkpoints():
    million, more = Shape(50, 20_000, 50), Shape(500, 20_000, 50)
    for shape, ms, mb in ((million, 80, 200), (more, 160, 400)):
        yield Asked(f"plan, cold: {shape}", "value", "plan", str(shape), MOST, ms)
        yield Asked(f"memory to plan: {shape}", "mb", "plan", str(shape), MOST, mb)
    yield Asked(f"open: {million}", "ratio", "open", str(million), LEAST, 3)
    yield Asked(f"memory to open: {million}", "mb ratio", "open", str(million), MOST, 1)
    for made in ("10,000 files", "1,000,000 files"):
        yield Asked(f"make a checkpoint: {made}", "ratio", "checkpoint", made, LEAST, 3)
    # Of the whole process. With the table open, its files alone take more than that.
    cold = f"{made}, {COLD}"
    yield Asked(f"memory to make it: {cold}", "mb", "checkpoint", cold, MOST, 300)
    for files, ms, mb in (("1,000,000", 150, 250), ("10,000,000", 300, 500)):
        again = f"{files} files"
        words = f"the next checkpoint: {again}"
        yield Asked(words, "value", "checkpoint again", again, MOST, ms)
        yield Asked(f"memory for {words}", "mb", "checkpoint again", again, MOST, mb)


def _plans():
    for files, ms in (("10,000", 5), ("15,000", 1), ("1,000,000", 50)):
        shape = f"{files} files"
        yield Asked(f"plan, warm: {shape}", "value", "warm plan", shape, MOST, ms)
    for way in ("the day alone", "by its file_uris", "by its dataset"):
        shape = f"100,000 files, {way}"
        yield Asked(f"plan, warm: {shape}", "ratio", "warm plan", shape, LEAST, 10)
    words = "plan, warm: 100,000 files, pyiceberg"
    yield Asked(words, "ratio", "warm plan", "100,000 files", LEAST, 10, "pyiceberg")
    for shape in (Shape(10_000, 1), Shape(10_000, 2)):
        yield Asked(f"open with a local copy: {shape}", "value", "cached", str(shape), MOST, 5)


def _spark():
    names = labels(FULL)
    bounds = {"plan": 10, "selective": 5, "count": 0.95, "sum": 0.95, "all": 0.95, "write": 0.87}
    for name, bound in bounds.items():
        shape = names[name]
        yield Asked(f"Spark: {shape}", "ratio", "spark", shape, LEAST, bound, "spark")


def _splits():
    names = splits.labels(splits.SPLITS * splits.FULL)
    for action, ms in (("rows", 6000), ("numbers", 1000), ("cold", 15_000), ("warm", 50)):
        shape = names[action]
        yield Asked(f"splits: {shape}", "value", splits.CASE, shape, MOST, ms)


ASKED = [
    *_many_commits(),
    *_open(),
    *_plans(),
    *_checkpoints(),
    *_commits(),
    *_wire(),
    *_spark(),
    *_splits(),
]


def outcomes(figures, asked=ASKED):
    """What was asked, as far as the run measured it."""
    rows = {(row[0].case, row[0].shape): row for row in rows_of(figures)}
    found = []
    for one in asked:
        row = rows.get((one.case, one.shape))
        value = None if row is None else _measured(one, row, rows)
        if value is not None:
            found.append(Outcome(one, value, _unit(one, row)))
    return found


def _measured(one, row, rows):
    ours, theirs = of(row, OURS), of(row, one.peer)
    if one.kind == "ratio":
        return ratio(row, one.peer)
    if ours is None:
        return None
    if one.kind == "value":
        # Failures of any run count, however it went in the middle.
        return sum(ours.runs) if ours.unit == "failed" else ours.median
    if one.kind == "mb":
        return ours.mb
    if one.kind == "mb ratio":
        return None if theirs is None or not theirs.mb else ours.mb / theirs.mb
    other = of(rows.get((one.peer, one.shape.removeprefix("1 new: ")), []), OURS)
    return None if other is None else other.median / ours.median


def _unit(one, row):
    if one.kind == "value":
        return row[0].unit
    return "MB" if one.kind == "mb" else "x"


def _text(value, unit):
    if unit == "x":
        return times(value)
    return f"{whole(value) if unit in ONLY_TOLD else number(value)} {unit}"


def table(found):
    """The second, short table."""
    reached = sum(outcome.reached for outcome in found)
    lines = [f"{'asked':<54}{'':>12}{'':>16}{'measured':>16}{'reached':>10}"]
    for outcome in found:
        asked = outcome.asked
        lines.append(
            f"  {asked.words:<52}{asked.sign:>12}{_text(asked.bound, outcome.unit):>16}"
            f"{_text(outcome.measured, outcome.unit):>16}"
            f"{'yes' if outcome.reached else 'NO':>10}"
        )
    lines.append(f"{reached} of {len(found)} reached.")
    return "\n".join(lines)

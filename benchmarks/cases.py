"""The cases that read a log: what is measured on which tables, and who takes part.

Everything is done by the functions of the same names in `peers`, in fresh processes, in turn. The
files are in the system's cache: cold is the process, not the disk. Tables are built when they are
first needed and kept in the folder.
"""

import importlib
import importlib.util
import os
import shutil
from dataclasses import dataclass, replace

from benchmarks import tables
from benchmarks.figures import OURS
from benchmarks.fresh import (
    LATE_BUILD,
    SLOW_QUICK,
    SLOW_SECONDS,
    in_turn,
    measure,
    progress,
    python,
)
from benchmarks.measure import ENGINES
from benchmarks.tables import Shape

PEERS = tuple(name for name in ENGINES if name != OURS)
# Beyond so many files a peer takes minutes or all the memory.
FILES_MAX = {"deltalake": 1_000_000, "pyiceberg": 100_000}
TITLES = {
    "open": "open: all live files typed",
    "cached": "open cached: from a local copy",
    "cached plan": "plan cached: from a local copy",
    "plan": "plan cold: a day, two ranges",
    "warm plan": "plan warm: a day, two ranges",
    "delta open": "Delta: open, nothing asked",
    "delta list": "Delta: all live files typed",
    "delta plan": "Delta: plan, a day, two ranges",
    "delta range": "Delta: plan, a range of ids alone",
    "refresh": "refresh: of an open table",
    "travel": "time travel: to the middle",
    "history": "history: files and bytes by day",
    "diff": "diff: the middle to the newest",
    "checkpoint": "make a checkpoint",
    "import": "import: a fresh process",
    "growth: commits": "open by commits",
    "growth: files": "plan by files in a checkpoint",
    "growth: columns": "open by columns with statistics",
    "growth: predicates": "plan by predicates, 10,000 files",
}

COMMITS = [Shape(1000, 10), Shape(50, 4000), Shape(10_000, 1), Shape(10_000, 2)]
IMPORTED = Shape(500, 2)
VARIED = [Shape(10_000, 2, varied=True), Shape(50, 4000, varied=True)]
STOCKED = [Shape(5, 2000, 50), Shape(25, 4000, 50), Shape(50, 20_000, 50)]
LARGE = [Shape(500, 20_000, 50)]
QUICK_COMMITS, QUICK_STOCKED = [Shape(500, 2)], [Shape(5, 2000, 50)]
QUICK_VARIED = [Shape(500, 2, varied=True)]
MADE = [Shape(5, 2000), Shape(25, 4000), Shape(50, 20_000)]
COLD, QUICK_COLD = "opening included", Shape(5, 2000)
WARM = [Shape(5, 2000), Shape(5, 3000), Shape(25, 4000), Shape(50, 20_000)]


@dataclass(frozen=True)
class Setting:
    """How a run was asked for."""

    folder: str
    rounds: int
    quick: bool = False
    large: bool = False
    peers: tuple[str, ...] = PEERS

    def few(self, rounds=3):
        """Fewer rounds, where one takes long or little is at stake."""
        return min(self.rounds, rounds)


def installed():
    """Those peers that are here."""
    return tuple(name for name in PEERS if importlib.util.find_spec(name) is not None)


def table(setting, who, shape):
    """The folder of a table, built if it is not there; in another process, so this stays small."""
    if not tables.is_built(setting.folder, who, shape):
        if shape.trailing is not None and shape.plain in WARM and who != "pyiceberg":
            table(setting, who, shape.plain)  # is needed anyway, and lends its commits
        progress(f"building the table of {shape} for {who}")
        python("benchmarks.tables", setting.folder, who, shape.name, late=LATE_BUILD)
        progress("")
    return tables.place(setting.folder, who, shape)


def who_can(setting, function, shape):
    """We, and the peers that have such a case and can bear the table."""
    found = [OURS]
    for who in setting.peers:
        module = importlib.import_module(f"benchmarks.peers.{ENGINES[who]}")
        if hasattr(module, function) and (shape is None or shape.files <= FILES_MAX[who]):
            found.append(who)
    return found


def row(setting, case, shape, *arguments, function=None, label=None, rounds=None, **more):
    """One case on one table by all who can."""
    function = function or case.replace(" ", "_")
    jobs = {}
    for who in who_can(setting, function, shape):
        root = table(setting, who, shape)
        jobs[who] = lambda who=who, root=root: measure(who, function, root, *arguments)
    slow = SLOW_QUICK if setting.quick else SLOW_SECONDS
    rounds = rounds or setting.rounds
    return in_turn(case, label or str(shape), jobs, rounds, slow=slow, **more)


def _shapes(setting):
    if setting.quick:
        return QUICK_COMMITS + QUICK_STOCKED
    return COMMITS + STOCKED + (LARGE if setting.large else [])


def opening(setting):
    for shape in _shapes(setting):
        if shape not in LARGE:  # 10,000,000 rows as one table are nobody's wish
            yield row(setting, "open", shape)
    # Iceberg's metadata has no lines, and so no order of fields in them.
    lines = replace(setting, peers=[who for who in setting.peers if who == "deltalake"])
    for shape in QUICK_VARIED if setting.quick else VARIED:
        yield row(lines, "open", shape)


def planning(setting):
    for shape in _shapes(setting):
        yield row(setting, "plan", shape)
    for shape in WARM[:1] if setting.quick else WARM:
        rounds = setting.few() if shape.files > 100_000 else None
        yield row(setting, "warm plan", shape, label=f"{shape.files:,} files", rounds=rounds)
    # Our figure beside each of deltalake's own ways, which are slower than what is taken above.
    shape = WARM[0] if setting.quick else WARM[2]
    ways = [
        ("by its file_uris", "warm_uris"),
        ("by its dataset", "warm_dataset"),
        ("the day alone", "partition"),
    ]
    for words, function in ways[:1] if setting.quick else ways:
        label = f"{shape.files:,} files, {words}"
        yield row(setting, "warm plan", shape, function=function, label=label, rounds=setting.few())


def delta_tables(setting):
    """Delta tables by us and by deltalake: both read the same one, which deltalake has made."""
    if "deltalake" not in setting.peers:
        return
    shapes = QUICK_COMMITS + QUICK_STOCKED if setting.quick else [COMMITS[3], STOCKED[2]]
    for shape in shapes:
        root = table(setting, "deltalake", shape)
        for case, function in (
            ("delta open", "only_open"),
            ("delta list", "open"),
            ("delta plan", "plan"),
            ("delta range", "plan_range"),
        ):
            jobs = {
                who: lambda who=who, function=function, root=root: measure(who, function, root)
                for who in (OURS, "deltalake")
            }
            yield in_turn(case, str(shape), jobs, setting.few())


def refreshing(setting):
    """PyIceberg lists everything anew, so it is asked of small tables alone."""
    shapes = QUICK_COMMITS if setting.quick else COMMITS
    delta = _without_iceberg(setting)
    for shape in shapes:
        some = setting if shape.commits <= 1000 else delta
        yield row(some, "refresh", shape, 1, label=f"1 new: {shape}", rounds=setting.few())
    shape = shapes[-1]
    yield row(delta, "refresh", shape, 0, label=f"none new: {shape}", rounds=setting.few())


def _without_iceberg(setting):
    return replace(setting, peers=tuple(who for who in setting.peers if who != "pyiceberg"))


def travelling(setting):
    for shape in QUICK_COMMITS if setting.quick else COMMITS:
        yield row(setting, "travel", shape, tables.middle(shape), rounds=setting.few())


def history(setting):
    for shape in QUICK_COMMITS if setting.quick else COMMITS:
        yield row(setting, "history", shape, rounds=setting.few())


def diff(setting):
    for shape in QUICK_COMMITS if setting.quick else COMMITS:
        ends = tables.middle(shape), shape.versions
        yield row(setting, "diff", shape, *ends, rounds=setting.few())


def checkpoint(setting):
    """As we do it unless told otherwise, in Parquet as deltalake does; and as JSON as well.

    The last one is of a table that is not open: its files need not be in memory.
    """
    for shape in WARM[:1] if setting.quick else MADE:
        kinds = [("auto", ""), ("both", ", and as JSON")]
        for kind, words in kinds[:1] if setting.quick else kinds:
            label = f"{shape.files:,} files{words}"
            yield row(
                setting,
                "checkpoint",
                shape,
                kind,
                function="create",
                label=label,
                rounds=setting.few(),
            )
    shape = QUICK_COLD if setting.quick else MADE[-1]
    label = f"{shape.files:,} files, {COLD}"
    yield row(
        setting,
        "checkpoint",
        shape,
        function="create_cold",
        label=label,
        rounds=setting.few(),
    )


def importing(setting):
    """With compiled modules, for all alike; the first run makes them."""
    ways = [
        ("alone", "import_alone"),
        ("polars alone, which arrowlog needs", "import_polars"),
        ("where polars is imported already", "import_after_polars"),
        (f"and the version of {IMPORTED}", "import_and_open"),
    ]
    for label, function in ways[:2] if setting.quick else ways:
        roots = dict.fromkeys(who_can(setting, function, IMPORTED), "")
        if function == "import_and_open":
            roots = {who: table(setting, who, IMPORTED) for who in roots}
        jobs = {
            who: lambda who=who, function=function, root=root: measure(
                who, function, root, imports=True
            )
            for who, root in roots.items()
        }
        for job in jobs.values():
            job()
        yield in_turn("import", label, jobs, setting.rounds)


def growth(setting):
    """The same question of more and more, and the power its cost grows with."""
    quick, few = setting.quick, setting.few()
    if quick:
        setting = _without_iceberg(setting)
    for commits in (100, 500) if quick else (100, 1000, 10_000):
        label = f"{commits:,} commits x 2 files"
        shape = Shape(commits, 2)
        yield row(
            setting, "growth: commits", shape, function="open", label=label, rounds=few, x=commits
        )
    for shape in [Shape(5, 200, 50), *QUICK_STOCKED] if quick else STOCKED:
        label = f"{shape.files:,} files"
        yield row(
            setting, "growth: files", shape, function="plan", label=label, rounds=few, x=shape.files
        )
    for columns in (4, 40) if quick else (4, 40, 400):
        shape = Shape(10 if quick else 100, 10, columns=columns)
        label = f"{columns} columns, {shape.files:,} files"
        yield row(
            setting, "growth: columns", shape, function="open", label=label, rounds=few, x=columns
        )
    for count in (1, 16) if quick else (1, 4, 16, 64):
        label = f"{count} predicate{'s' * (count > 1)}"
        case, shape = "growth: predicates", Shape(5, 2000)
        some = setting if count <= 16 else _without_iceberg(setting)  # it takes a minute for 64
        yield row(some, case, shape, count, function="predicates", label=label, rounds=few, x=count)


def cached(setting):
    """A local copy of the last snapshot: the first process leaves it, the next ones find it."""
    from benchmarks.peers.ours import knows_cache

    if not knows_cache():
        return
    copies = os.path.join(setting.folder, "copies")
    shutil.rmtree(copies, ignore_errors=True)
    for case, function in (("cached", "cached"), ("cached plan", "cached_plan")):
        for shape in QUICK_COMMITS if setting.quick else COMMITS[2:]:
            root = table(setting, OURS, shape)
            measure(OURS, function, root, copies)
            job = {OURS: lambda f=function, root=root: measure(OURS, f, root, copies)}
            yield in_turn(case, str(shape), job, setting.rounds)

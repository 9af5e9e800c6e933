"""The cases that read a log: what is measured, on which tables, by which engines.

Each case is a function of the same name in the engines' modules in `peers`, called in fresh
processes that alternate. Files are in the page cache: "cold" refers to the process, not the disk.
Tables are built when they are first needed, and kept in the folder.
"""

import importlib
import importlib.util
import os
import shutil
from dataclasses import dataclass, replace

from benchmarks import tables
from benchmarks.figures import ARROWLOG
from benchmarks.fresh import (
    BUILD_TIMEOUT_SECONDS,
    SLOW_QUICK,
    SLOW_SECONDS,
    in_turn,
    measure,
    progress,
    python,
)
from benchmarks.measure import ENGINES
from benchmarks.tables import Shape

PEERS = tuple(name for name in ENGINES if name != ARROWLOG)
# With more files, a peer takes minutes or all the memory.
FILES_MAX = {"deltalake": 1_000_000, "pyiceberg": 100_000}
TITLES = {
    "open": "open: all live files typed",
    "cached": "open cached: from a local copy",
    "cached plan": "plan cached: from a local copy",
    "plan": "plan cold: a day, two ranges",
    "warm plan": "plan warm: a day, two ranges",
    "delta open": "Delta: open, version only",
    "delta list": "Delta: all live files typed",
    "delta plan": "Delta: plan, a day, two ranges",
    "delta range": "Delta: plan, a range of ids alone",
    "refresh": "refresh: of an open table",
    "travel": "time travel: to the middle",
    "history": "history: files and bytes by day",
    "history sql": "history by SQL: files, bytes by day",
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
REMOVED = [Shape(50, 4000, columns=6, removed=20)]
STOCKED = [Shape(5, 2000, 50), Shape(25, 4000, 50), Shape(50, 20_000, 50)]
LARGE = [Shape(500, 20_000, 50)]
QUICK_COMMITS, QUICK_STOCKED = [Shape(500, 2)], [Shape(5, 2000, 50)]
QUICK_VARIED = [Shape(500, 2, varied=True)]
MADE = [Shape(5, 2000), Shape(25, 4000), Shape(50, 20_000)]
COLD, QUICK_COLD = "opening included", Shape(5, 2000)
WARM = [Shape(5, 2000), Shape(5, 3000), Shape(25, 4000), Shape(50, 20_000)]


@dataclass(frozen=True)
class Setting:
    """The options of a run."""

    folder: str
    rounds: int
    quick: bool = False
    large: bool = False
    peers: tuple[str, ...] = PEERS

    def few(self, rounds=3):
        """Fewer rounds, for cases that take long or vary little."""
        return min(self.rounds, rounds)


def installed():
    """The peers that are installed."""
    return tuple(name for name in PEERS if importlib.util.find_spec(name) is not None)


def table(setting, engine, shape):
    """The folder of a table; builds it if necessary, in a process of its own to save memory."""
    if not tables.is_built(setting.folder, engine, shape):
        if shape.trailing is not None and shape.plain in WARM and engine != "pyiceberg":
            table(setting, engine, shape.plain)  # needed by another case; its commits are linked
        progress(f"building the table of {shape} for {engine}")
        python(
            "benchmarks.tables", setting.folder, engine, shape.name, timeout=BUILD_TIMEOUT_SECONDS
        )
        progress("")
    return tables.place(setting.folder, engine, shape)


def engines_with(setting, function, shape):
    """The engines that have the case and can process a table of that size, arrowlog first."""
    engines = [ARROWLOG]
    for engine in setting.peers:
        module = importlib.import_module(f"benchmarks.peers.{ENGINES[engine]}")
        if hasattr(module, function) and (shape is None or shape.files <= FILES_MAX[engine]):
            engines.append(engine)
    return engines


def row(setting, case, shape, *arguments, function=None, label=None, rounds=None, **more):
    """Measure one case on one table, by all engines that have it; returns the row."""
    function = function or case.replace(" ", "_")
    jobs = {}
    for engine in engines_with(setting, function, shape):
        root = table(setting, engine, shape)
        jobs[engine] = lambda engine=engine, root=root: measure(engine, function, root, *arguments)
    slow = SLOW_QUICK if setting.quick else SLOW_SECONDS
    rounds = rounds or setting.rounds
    return in_turn(case, label or str(shape), jobs, rounds, slow=slow, **more)


def _shapes(setting):
    if setting.quick:
        return QUICK_COMMITS + QUICK_STOCKED
    return COMMITS + STOCKED + (LARGE if setting.large else [])


def opening(setting):
    """All live files, typed."""
    for shape in _shapes(setting):
        if shape not in LARGE:  # as one Arrow table, 10,000,000 rows are no realistic use
            yield row(setting, "open", shape)
    # Iceberg has no JSON lines, so neither an order of fields nor removes in a commit.
    lines = replace(setting, peers=[engine for engine in setting.peers if engine == "deltalake"])
    for shape in QUICK_VARIED if setting.quick else VARIED + REMOVED:
        yield row(lines, "open", shape)


def planning(setting):
    """Files that may match a predicate: in a fresh process, and of an open table."""
    for shape in _shapes(setting):
        yield row(setting, "plan", shape)
    for shape in WARM[:1] if setting.quick else WARM:
        rounds = setting.few() if shape.files > 100_000 else None
        yield row(setting, "warm plan", shape, label=f"{shape.files:,} files", rounds=rounds)
    # deltalake's other ways, which are slower than the one compared above.
    shape = WARM[0] if setting.quick else WARM[2]
    ways = [
        ("by its file_uris", "warm_uris"),
        ("by its dataset", "warm_dataset"),
        ("the day alone", "partition"),
    ]
    for way, function in ways[:1] if setting.quick else ways:
        label = f"{shape.files:,} files, {way}"
        yield row(setting, "warm plan", shape, function=function, label=label, rounds=setting.few())


def delta_tables(setting):
    """The same Delta table read by arrowlog and deltalake; its checkpoint is deltalake's."""
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
                engine: lambda engine=engine, function=function, root=root: measure(
                    engine, function, root
                )
                for engine in (ARROWLOG, "deltalake")
            }
            yield in_turn(case, str(shape), jobs, setting.few())


def refreshing(setting):
    """PyIceberg lists all files again, so it is measured on small tables only."""
    shapes = QUICK_COMMITS if setting.quick else COMMITS
    delta = _without_iceberg(setting)
    for shape in shapes:
        some = setting if shape.commits <= 1000 else delta
        yield row(some, "refresh", shape, 1, label=f"1 new: {shape}", rounds=setting.few())
    shape = shapes[-1]
    yield row(delta, "refresh", shape, 0, label=f"none new: {shape}", rounds=setting.few())


def _without_iceberg(setting):
    return replace(
        setting, peers=tuple(engine for engine in setting.peers if engine != "pyiceberg")
    )


def travelling(setting):
    """All live files of the version in the middle."""
    for shape in QUICK_COMMITS if setting.quick else COMMITS:
        yield row(setting, "travel", shape, tables.middle(shape), rounds=setting.few())


def history(setting):
    """The groups of `Table.history`, and the same question in SQL, for which DuckDB starts."""
    shapes = QUICK_COMMITS if setting.quick else [IMPORTED, *COMMITS]
    for case in ("history", "history sql"):
        for shape in shapes:
            yield row(setting, case, shape, rounds=setting.few())


def diff(setting):
    """The files added and removed between the middle and the latest version."""
    for shape in QUICK_COMMITS if setting.quick else COMMITS:
        ends = tables.middle(shape), shape.versions
        yield row(setting, "diff", shape, *ends, rounds=setting.few())


def checkpoint(setting):
    """In the default format, Parquet as in Delta, and in Parquet and JSON.

    The last row includes opening the table, so its files need not all be in memory.
    """
    for shape in WARM[:1] if setting.quick else MADE:
        kinds = [("auto", ""), ("both", ", and as JSON")]
        for kind, suffix in kinds[:1] if setting.quick else kinds:
            label = f"{shape.files:,} files{suffix}"
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
    """With compiled modules for all engines; a run that is not counted compiles them."""
    ways = [
        ("alone", "import_alone"),
        ("polars alone, which arrowlog needs", "import_polars"),
        ("where polars is imported already", "import_after_polars"),
        (f"and the version of {IMPORTED}", "import_and_open"),
    ]
    for label, function in ways[:2] if setting.quick else ways:
        roots = dict.fromkeys(engines_with(setting, function, IMPORTED), "")
        if function == "import_and_open":
            roots = {engine: table(setting, engine, IMPORTED) for engine in roots}
        jobs = {
            engine: lambda engine=engine, function=function, root=root: measure(
                engine, function, root, imports=True
            )
            for engine, root in roots.items()
        }
        for job in jobs.values():
            job()
        yield in_turn("import", label, jobs, setting.rounds)


def growth(setting):
    """The same case at several sizes, as points of curves."""
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
        # 64 predicates take PyIceberg a minute.
        some = setting if count <= 16 else _without_iceberg(setting)
        yield row(some, case, shape, count, function="predicates", label=label, rounds=few, x=count)


def cached(setting):
    """With a local copy of the last snapshot, which a process that is not measured writes."""
    from benchmarks.peers.ours import knows_cache

    if not knows_cache():
        return
    copies = os.path.join(setting.folder, "copies")
    shutil.rmtree(copies, ignore_errors=True)
    for case, function in (("cached", "cached"), ("cached plan", "cached_plan")):
        for shape in QUICK_COMMITS if setting.quick else COMMITS[2:]:
            root = table(setting, ARROWLOG, shape)
            measure(ARROWLOG, function, root, copies)
            job = {ARROWLOG: lambda f=function, root=root: measure(ARROWLOG, f, root, copies)}
            yield in_turn(case, str(shape), job, setting.rounds)

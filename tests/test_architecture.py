"""The house keeps its shape: imports point one way, rooms stay small, importing stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import arrowlog

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "arrowlog"
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE = (
    "look",
    "names",
    "recent",
    "retired",
    "envelope",
    "segment",
    "shape",
    "match",
    "lines",
    "checkpoint",
    "schema",
    "actions",
    "replay",
    "safe",
    "truncation",
    "stored",
    "groups",
    "manifest",
    "foreign",
    "tree",
    "sql",
    "literals",
    "bounds",
    "normal",
    "prune",
    "reasons",
    "facts",
    "filters",
    "column_types",
    "encode",
    "conflict",
    "alter",
    "stats",
    "texts",
    "catalyst",
    "retention",
    "findings",
    "statements",
    "orphans",
    "bins",
)


def test_imports_point_one_way():
    # In a process of its own: import-linter configures logging and disables existing loggers.
    command = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_stays_light():
    code = "import sys, arrowlog; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"duckdb", "pyspark", "s3fs", "obstore", "pandas", "click", "rich", "fsspec", "altair"}
    assert not heavy & set(loaded.stdout.split())


def test_the_room_of_spark_is_there_and_wakes_no_pyspark():
    code = (
        "import sys, arrowlog; assert 'arrowlog.spark' not in sys.modules;"
        "arrowlog.spark.session; assert 'pyspark' not in sys.modules; arrowlog.sparks"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "module 'arrowlog' has no attribute 'sparks'" in asked.stderr


def test_opening_a_table_wakes_no_pandas(tmp_path):
    """pyarrow imports it for every list and plain value it is given: a third of a second."""
    marker = tmp_path / "woken"
    (tmp_path / "pandas.py").write_text(f"open({str(marker)!r}, 'w'); raise ImportError")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]; import small, arrowlog, pyarrow, numpy;"
        "table = arrowlog.Table(small.write(sys.argv[3])); table.snapshot().files;"
        "table.append([arrowlog.add_file('x', {'day': None}, size=1)]); table.refresh().files;"
        "import os; assert not os.path.exists(sys.argv[4]);"
        "pyarrow.array([1]); assert os.path.exists(sys.argv[4])"
    )
    places = [str(tmp_path), str(HERE), str(tmp_path / "table"), str(marker)]
    subprocess.run([sys.executable, "-c", code, *places], check=True)


def test_public_names_are_sorted_and_there():
    assert arrowlog.__all__ == sorted(arrowlog.__all__)
    assert all(hasattr(arrowlog, name) for name in arrowlog.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_and_modules_stay_small(module):
    text = module.read_text()
    assert text.count("\n") <= 800
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 70, node.name


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_ask_no_clock_and_no_store(name):
    module = next(path for path in MODULES if path.stem == name)
    imported = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {node.module, node.module.partition(".")[0]}
    assert not imported & {
        "os",
        "time",
        "random",
        "datetime",
        "io",
        "pathlib",
        "arrowlog.log.store",
    }


def test_polars_is_used_through_its_guard():
    """In a forked child whatever goes around it may wait for ever."""
    bare = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(name.name == "polars" for name in node.names)
    }
    # Types for checkers; expressions as a user gave them; what says before that polars is needed.
    allowed = {"scan/plan.py", "scan/polars_form.py", "scan/rows.py", "fork_safety.py"}
    assert bare == allowed


def test_rooms_say_what_they_are_for():
    for room in ("log", "state", "scan", "commit", "upkeep", "sql", "spark", "cli"):
        text = (PACKAGE / room / "__init__.py").read_text()
        assert "ay import" in text, room


def test_conftest_stays_short():
    assert (HERE / "conftest.py").read_text().count("\n") < 100

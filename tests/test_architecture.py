"""The structure that ARCHITECTURE.md describes: import direction, contracts, purity, size."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import source_tree
from support.source_tree import (
    ARCHITECTURE,
    CONTRACTS,
    PACKAGE,
    contract_of,
    exports,
    imports,
    modules,
    needed,
    reaches,
    syntax,
)

HERE = Path(__file__).parent
# About 800 lines: a concept is not cut in two to stay below a number.
MODULE_LINES_MAX = 800
# `Table` is one class, and most of its lines are the documentation of its methods.
LONGER_MODULES = {"arrowlog.table": 1300}
FUNCTION_LINES_MAX = 70

# No I/O, no clock, no engine connection, in the module and in everything it needs to run.
PURE = (
    "display",
    "formats.avro",
    "formats.base",
    "formats.table_schema",
    "formats.delta.column_mapping",
    "formats.delta.deletion_vectors",
    "formats.delta.format",
    "formats.indextables.avro_encoder",
    "formats.indextables.avro_state",
    "formats.indextables.commit_encoder",
    "formats.indextables.compression",
    "formats.indextables.format",
    "formats.indextables.json_checkpoint",
    "decode.avro_columns",
    "decode.avro_records",
    "decode.columnar_decoder",
    "decode.line_splitter",
    "decode.row_decoder",
    "decode.schema_decoder",
    "splits.bundle",
    "splits.doc_store",
    "splits.query",
    "snapshot.log_segment",
    "snapshot.reconciliation",
    "snapshot.stats_truncation",
    "snapshot.tracked_state",
    "snapshot.typed_values",
    "predicate.ast",
    "predicate.emit.row_filters",
    "predicate.emit.text",
    "predicate.literals",
    "predicate.parse.spark",
    "predicate.parse.sql",
    "predicate.rewrites",
    "predicate.searches",
    "scan.stats_predicate",
    "transaction.conflict_checker",
    "maintenance.retention",
    "recovery.findings",
    "report.facts",
    "report.measures",
    "report.markup",
    "report.sections",
    "statements.parser",
)
# `fork_safety` hands out polars and reads /proc at a fork, `config` makes paths absolute; neither
# touches a table.
TRUSTED = {"arrowlog.fork_safety", "arrowlog.config"}
IMPURE = {"os", "io", "time", "random", "pathlib", "socket", "subprocess", "threading", "duckdb"}


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


def test_modules_have_no_import_cycle():
    # `ScanPlan.to_spark` and `compact(spark=)` import the package `spark` when they are called.
    upward = {name for name in modules() if name.startswith("arrowlog.spark")}
    needs = {name: needed(name) - upward for name in modules() if name not in upward}
    # A package and the modules that it exports belong together.
    needs = {name: {n for n in found if not _nested(name, n)} for name, found in needs.items()}
    remaining = dict(needs)
    while ready := [name for name, found in remaining.items() if not found & set(remaining)]:
        for name in ready:
            del remaining[name]
    assert not remaining


def _nested(name, other):
    return name.startswith(f"{other}.") or other.startswith(f"{name}.") or name == other


@pytest.mark.parametrize("module", modules())
def test_packages_are_imported_through_their_contracts(module):
    own = contract_of(module)
    inside = {
        f"{source}.{name}"
        for source, name in imports(module, types=True)
        if source in modules()
        and contract_of(source) not in (None, own)
        and (source != f"arrowlog.{contract_of(source)}" or not exports(source, name))
    }
    assert not inside


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_clock_store_or_engine(name):
    ways = reaches(f"arrowlog.{name}")
    ours = {way: path for way, path in ways.items() if not TRUSTED & set(path[:-1])}
    reached = {
        way: path
        for way, path in ours.items()
        if way.partition(".")[0] in IMPURE or way.startswith("arrowlog.storage")
    }
    assert not reached


def test_module_map_is_up_to_date():
    page = ARCHITECTURE.read_text()
    assert page == source_tree.with_module_map(page), "run python tests/support/source_tree.py"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/glossary.md"])
def test_names_in_the_documentation_exist(page):
    known = set()
    for module in modules():
        known |= set(module.split("."))
        for node in ast.walk(syntax(module)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                known.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute):
                known.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.arg | ast.keyword):
                known.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                known |= set(re.findall(r"\w+", node.value)) if "\n" not in node.value else set()
    text = (HERE.parent / page).read_text()
    before, _, rest = text.partition(source_tree.BEGIN)
    named = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", before + rest.partition(source_tree.END)[2])
    assert len(named) > 10
    assert not {name for name in named if not set(name.split(".")) <= known}


def test_spark_package_loads_no_pyspark():
    code = (
        "import sys, arrowlog; assert 'arrowlog.spark' not in sys.modules;"
        "arrowlog.spark.session; assert 'pyspark' not in sys.modules; arrowlog.sparks"
    )
    asked = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "module 'arrowlog' has no attribute 'sparks'" in asked.stderr


def test_opening_a_table_imports_no_pandas(tmp_path):
    """pyarrow would import it for lists and plain values, which takes a third of a second."""
    marker = tmp_path / "loaded"
    (tmp_path / "pandas.py").write_text(f"open({str(marker)!r}, 'w'); raise ImportError")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3];"
        "from support import small_table; import arrowlog, pyarrow, numpy;"
        "table = arrowlog.Table(small_table.write(sys.argv[3])); table.snapshot().files;"
        "table.append([arrowlog.add_file('x', {'day': None}, size=1)]); table.refresh().files;"
        "assert table.history().num_rows and table.history(1).num_rows == 1;"
        "assert table.history(by=['day', 'month', 'operation']).num_rows;"
        "assert 'duckdb' not in sys.modules;"
        "import os; assert not os.path.exists(sys.argv[4]);"
        "pyarrow.array([1]); assert os.path.exists(sys.argv[4])"
    )
    places = [str(tmp_path), str(HERE), str(tmp_path / "table"), str(marker)]
    subprocess.run([sys.executable, "-c", code, *places], check=True)


def test_table_without_states_imports_no_avro_module(tmp_path):
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]];"
        "from support import small_table; import arrowlog;"
        "table = arrowlog.Table(small_table.write(sys.argv[2]));"
        "table.append([arrowlog.add_file('x', {'day': None}, size=1)]); table.checkpoint();"
        "arrowlog.Table(sys.argv[2]).scan('id = 1').files;"
        "from arrowlog import decode, formats; from arrowlog.formats import indextables;"
        "avro = [name for name in sys.modules if name.startswith('arrowlog') and 'avro' in name];"
        "assert not avro, avro;"
        "[getattr(each, name) for each in (decode, formats, indextables) for name in each.__all__]"
    )
    subprocess.run([sys.executable, "-c", code, str(HERE), str(tmp_path / "table")], check=True)


def test_table_with_states_is_read_without_polars(tmp_path):
    """Importing it takes as long as a plan over 100,000 files."""
    make = (
        "import sys; sys.path[:0] = [sys.argv[1]]; from support import state_tables as st;"
        "st.first_commit(sys.argv[2]);"
        "adds = [st.add(f'part-{n:09}', 'a', n) for n in range(21000)];"
        "st.write_state(sys.argv[2], 1, [adds, [st.add('x', 'b', 1)]])"
    )
    read = (
        "import sys, arrowlog; table = arrowlog.Table(sys.argv[2]);"
        "assert table.scan(\"p = 'a' AND id < 5\").num_files == 5;"
        "assert table.snapshot().files.num_rows == 21001; assert 'polars' not in sys.modules"
    )
    for code in (make, read):
        subprocess.run([sys.executable, "-c", code, str(HERE), str(tmp_path / "t")], check=True)


@pytest.mark.parametrize("module", modules())
def test_functions_and_modules_stay_small(module):
    limit = LONGER_MODULES.get(module, MODULE_LINES_MAX)
    assert modules()[module].read_text().count("\n") <= limit
    for node in ast.walk(syntax(module)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, node.name


def test_polars_is_imported_through_its_guard():
    """In a forked child, a call that bypasses the guard may never return."""
    bare = {
        str(path.relative_to(PACKAGE))
        for name, path in modules().items()
        for node in ast.walk(syntax(name))
        if isinstance(node, ast.Import) and any(alias.name == "polars" for alias in node.names)
    }
    # Types for checkers; expressions as a user gave them; code that first says it needs polars.
    assert bare == {
        "fork_safety.py",
        "predicate/parse/polars.py",
        "scan/lazy_readers.py",
        "scan/plan.py",
        "scan/readable_rows.py",
        "table.py",
    }


def test_opening_a_table_imports_no_writer_and_no_planner(tmp_path):
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]];"
        "from support import small_table; import arrowlog; path = small_table.write(sys.argv[2]);"
        "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('arrowlog')];"
        "import arrowlog; assert arrowlog.Table(path).snapshot().files.num_rows;"
        "print(*[name for name in sys.modules if name.startswith('arrowlog')])"
    )
    arguments = [str(HERE), str(tmp_path / "table")]
    loaded = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    ).stdout.split()
    later = ("transaction", "maintenance", "recovery", "predicate", "splits", "spark")
    assert not [
        name
        for name in loaded
        if name.split(".")[1:2] in [[each] for each in later] and name.count(".") > 1
    ]
    assert "arrowlog.snapshot.delta_files" not in loaded
    assert "arrowlog.storage.fsspec_store" not in loaded


@pytest.mark.parametrize("package", CONTRACTS)
def test_every_name_of_a_contract_can_be_imported(package):
    contract = importlib.import_module(f"arrowlog.{package}")
    assert [getattr(contract, name) for name in contract.__all__]

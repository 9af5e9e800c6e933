"""The public names of `arrowlog`, and what importing it and printing help loads."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest

import arrowlog
from arrowlog import fork_safety
from arrowlog.cli.commands import commands

ENGINES = {"polars", "pyarrow", "duckdb", "numpy", "pandas", "pyspark"}
OPTIONAL = {"s3fs", "obstore", "fsspec", "rich", "altair"}


def loaded_by(code, *arguments):
    """The top-level packages that a program has loaded when it ends."""
    report = "\nprint('\\n' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}{report}", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_loads_no_engine():
    assert not loaded_by("import arrowlog; dir(arrowlog)") & (ENGINES | OPTIONAL | {"click"})


def test_table_version_loads_no_engine(tmp_path):
    schema = pa.schema([("id", pa.int64())])
    table = arrowlog.Table.create(tmp_path / "t", schema, options={"checkpoint.enabled": False})
    table.append([arrowlog.add_file("a.parquet", size=1)])
    code = "import arrowlog; assert arrowlog.Table(sys.argv[1]).version == 1"
    assert not loaded_by(code, str(tmp_path / "t")) & (ENGINES | OPTIONAL)


def test_plan_of_a_checkpoint_and_later_commits_loads_only_arrow(tmp_path):
    schema = pa.schema([("id", pa.int64())])
    table = arrowlog.Table.create(tmp_path / "t", schema, options={"checkpoint.enabled": False})
    for number in range(60):
        bounds = {"min_values": {"id": number}, "max_values": {"id": number}}
        table.append([arrowlog.add_file(f"{number}.parquet", size=1, num_records=1, **bounds)])
        if number == 3:
            table.checkpoint()
    code = (
        "import arrowlog; assert arrowlog.Table(sys.argv[1]).scan('id = 7').paths == ['7.parquet']"
    )
    assert loaded_by(code, str(tmp_path / "t")) & (ENGINES | OPTIONAL) == {"pyarrow", "numpy"}


def test_errors_load_no_engine():
    assert not loaded_by("from arrowlog import CommitConflict, InvalidRequest") & ENGINES


HELP = """
from contextlib import suppress
from arrowlog.cli.commands import commands
for arguments in [["--help"], ["--version"], *([name, "--help"] for name in commands.commands)]:
    with suppress(SystemExit):
        commands.main(arguments, prog_name="arrowlog")
"""


def test_help_of_every_command_loads_no_engine():
    assert not loaded_by(HELP) & (ENGINES | OPTIONAL)


def test_wrong_usage_loads_no_engine():
    code = "import arrowlog.cli; sys.argv = ['arrowlog', 'files']; assert arrowlog.cli.main() == 2"
    assert not loaded_by(code) & ENGINES


def test_dir_lists_exactly_the_public_names():
    assert dir(arrowlog) == arrowlog.__all__ == sorted(arrowlog.__all__)
    assert {"Table", "spark", "plots", "testing", "__version__"} <= set(dir(arrowlog))


def test_every_public_name_resolves():
    assert all(getattr(arrowlog, name) is not None for name in arrowlog.__all__)
    assert arrowlog.testing.write_commit
    assert arrowlog.spark.session


def test_type_checkers_and_programs_see_the_same_names():
    tree = ast.parse(Path(arrowlog.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    for_checkers = {
        (node.module.removeprefix("arrowlog").removeprefix("."), alias.name, alias.asname)
        for node in guarded.body
        for alias in node.names
    }
    at_run_time = {(home, name, name) for home, names in arrowlog._HOMES.items() for name in names}
    assert for_checkers == at_run_time
    assert {name for _, name, _ in at_run_time} == set(arrowlog.__all__) - {"__version__"}


def test_names_can_be_imported_by_every_import_form():
    code = (
        "from arrowlog import Table, TableNotFound, spark, testing, add_file\n"
        "import arrowlog\n"
        "assert arrowlog.Table is Table and arrowlog.spark is spark\n"
        "import arrowlog.testing as again\n"
        "assert again is testing\n"
        "namespace = {}; exec('from arrowlog import *', namespace)\n"
        "assert set(arrowlog.__all__) <= set(namespace)"
    )
    assert "polars" in loaded_by(code)


@pytest.mark.parametrize("name", ["table_", "sparks", "Follower", "_missing"])
def test_unknown_name_raises_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'arrowlog' has no attribute '{name}'"):
        getattr(arrowlog, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from arrowlog import {name}")


def test_entry_point_is_the_command_line():
    entry = (Path(arrowlog.__file__).parents[1] / "pyproject.toml").read_text()
    assert 'arrowlog = "arrowlog.cli:program"' in entry
    code = "import sys; sys.argv = ['arrowlog', '--version']; from arrowlog.cli import program"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; program()"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"arrowlog, version {arrowlog.__version__}\n"


def test_every_command_is_registered():
    names = "info files history diff scan explain sql checkpoint cleanup vacuum compact repair"
    assert set(commands.commands) >= {*names.split(), "doctor", "skips", "demo"}
    assert all(isinstance(command, click.Command) for command in commands.commands.values())


def test_guarded_polars_is_pickled_as_a_reference():
    """Functions that Spark pickles for its workers refer to it."""
    assert pickle.loads(pickle.dumps(fork_safety.pl)) is fork_safety.pl

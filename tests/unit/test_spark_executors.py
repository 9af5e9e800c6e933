"""The archive that `arrowlog.spark.ship` sends to executors."""

import subprocess
import sys
import zipfile

import pytest

import arrowlog
from arrowlog.spark.executors import _archive

NAMES = ("pyspark_arrowlog", "pyspark_indextables", "pyspark_indextables_provider")
PROGRAM = """
import sys
archive, ending = sys.argv[1:]
sys.path.insert(0, archive)
import arrowlog.spark.frame, arrowlog.spark.tasks
for name in ("arrowlog", "arrowlog.spark.frame", "arrowlog.spark.tasks"):
    file = sys.modules[name].__file__
    assert file.startswith(archive), file
    assert file.endswith(ending), file
print(arrowlog.__version__)
"""


def imported(archive, ending, *options):
    command = [sys.executable, *options, "-c", PROGRAM, str(archive), ending]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.thorough
def test_workers_import_compiled_modules():
    assert imported(_archive(), ".pyc") == arrowlog.__version__


@pytest.mark.thorough
def test_other_python_version_compiles_the_modules(tmp_path):
    """Compiled files begin with a magic number of the Python version."""
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(_archive()) as made, zipfile.ZipFile(other, "w") as archive:
        for name in made.namelist():
            data = made.read(name)
            archive.writestr(name, b"\0\0\0\0" + data[4:] if name.endswith(".pyc") else data)
    assert imported(other, ".py") == arrowlog.__version__


def test_workers_find_the_source_under_its_three_names():
    with zipfile.ZipFile(_archive()) as archive:
        found = {name for name in archive.namelist() if "/" not in name}
    assert found == {f"{name}.py" for name in NAMES}

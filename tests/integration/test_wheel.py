"""The wheel that `dev.py build` makes has every module, and works where the checkout is not."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import arrowlog, pyarrow as pa
from arrowlog.cli import main

assert arrowlog.__file__.startswith(sys.argv[1]), arrowlog.__file__
table = arrowlog.Table.create("t", pa.schema([("id", pa.int64())]))
table.write(pa.table({"id": [1, 2]}))
assert arrowlog.Table("t").scan("id = 2").to_polars().collect().height == 1
sys.argv[1:] = ["info", "t"]
sys.exit(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        entry_points = next(
            name for name in archive.namelist() if name.endswith("entry_points.txt")
        )
        assert "arrowlog = arrowlog.cli:program" in archive.read(entry_points).decode()
    tracked = subprocess.run(
        ["git", "ls-files", "arrowlog", "pyspark_*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert names == set(tracked)


def test_the_wheel_is_named_as_the_documentation_says(wheel):
    for page in ("README.md", "docs/install.md"):
        assert f"dist/{wheel.name}" in (ROOT / page).read_text()


def test_the_installed_wheel_opens_a_table(wheel, tmp_path):
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target"]
    subprocess.run([*pip, str(site), str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(site)],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rows        2" in done.stdout

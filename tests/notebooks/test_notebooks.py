"""Every notebook runs with its stored output, and its results hold.

`checks/` has the assertions on a notebook's variables. They run in its kernel, after its last cell,
so that readers of the notebook do not see them.
"""

import os
import re
from pathlib import Path

import nbformat
import pytest
from support import notebook_outputs
from support.notebook_outputs import BOOKS, FOLDER

CHECKS = Path(__file__).parent / "checks"
SPARK = ("03-spark", "05-delta")
RUNS = [pytest.param(path, marks=pytest.mark.spark if path.stem in SPARK else ()) for path in BOOKS]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_notebook_reproduces_its_stored_output(path, monkeypatch, tmp_path):
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER.parent}{os.pathsep}{known}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    stored = notebook_outputs.shown(nbformat.read(path, as_version=4))
    book = notebook_outputs.execute(path, checks=(CHECKS / f"{path.stem}.py").read_text())
    advice = f"run `python tests/support/notebook_outputs.py {path.stem}`"
    assert notebook_outputs.shown(book) == stored, advice


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_output(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert sum("image/svg+xml" in each.get("data", {}) for each in outputs) >= 1
    assert any("<strong>" in each.get("data", {}).get("text/html", "") for each in outputs)
    assert not [each for each in outputs if each.output_type == "error"]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebook_starts_with_a_title_and_has_no_asserts(path):
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert not any(re.search(r"^\s*assert\b", cell.source, re.MULTILINE) for cell in cells)


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebook_output_loads_nothing_from_a_network(path):
    text = path.read_text()
    assert not re.search(r"<(script|link|iframe|img)\b[^>]*https?:", text)
    assert "jsdelivr" not in text
    assert path.stat().st_size < 1_000_000


def test_guide_lists_all_notebooks():
    assert [path.stem[:2] for path in BOOKS] == ["01", "02", "03", "04", "05"]
    guide = (FOLDER.parent / "docs" / "guides" / "notebooks.md").read_text()
    assert re.findall(r"\[`(\d\d-[\w-]+)`\]", guide) == [path.stem for path in BOOKS]

"""Every notebook runs from start to end; what it claims, it asserts itself."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
RUNS = [
    pytest.param(path, marks=pytest.mark.spark if "spark" in path.stem else ()) for path in BOOKS
]
CELL_SECONDS_MAX = 1200  # against hanging


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_it_runs_and_its_claims_hold(path, monkeypatch, tmp_path):
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER.parent}{os.pathsep}{known}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book, timeout=CELL_SECONDS_MAX, resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    shown = [
        output.get("data", {}).get("text/html", "")
        for cell in book.cells
        for output in cell.get("outputs", [])
    ]
    assert any("<strong>" in html for html in shown)  # things show themselves
    assert any("vega" in html for html in shown)  # and are drawn
    assert any("assert " in cell.source for cell in book.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_there_are_enough_of_them():
    assert [path.stem[:2] for path in BOOKS] == [f"{n + 1:02d}" for n in range(len(BOOKS))]
    assert len(BOOKS) >= 4

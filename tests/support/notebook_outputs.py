"""The notebooks: run them, store what they show, and compare it with what they showed before.

`python tests/support/notebook_outputs.py [NAME …]` runs the notebooks and stores their output.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
_CELL_SECONDS_MAX = 1200  # against hanging
_KERNEL_SETTINGS = {"kernelspec", "language_info"}

# What differs from run to run: folders, names, times of now, durations, sizes of written files.
_VOLATILE = (
    (re.compile(r"(/[\w.-]+)*/(shop|orders|sensors|trips)-\w{8}"), r"/\2"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"part-[0-9a-f]{8}-[0-9a-f-]*…"), "part-ID"),
    (re.compile(r"20(2[5-9]|[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "NOW"),
    (re.compile(r"\b\d[\d,.]* ?(ns|µs|ms|s)\b"), "DURATION"),
    (re.compile(r"\b\d[\d.,]* ?[kM]?B\b"), "SIZE"),
    (re.compile(r"\b[\d,]+ bytes\b"), "SIZE"),
    (re.compile(r"0x[0-9a-f]+"), "ADDRESS"),
)


def execute(path, *, checks=None):
    """Return the notebook with the output of a run; `checks` is a program that is run at the end.

    Whatever programs write to standard error, such as the log of Spark, is not kept.
    """
    book = nbformat.read(path, as_version=4)
    if checks is not None:
        book.cells.append(nbformat.v4.new_code_cell(checks))
    client = NotebookClient(
        book,
        timeout=_CELL_SECONDS_MAX,
        store_widget_state=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    if checks is not None:
        book.cells.pop()
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    book.metadata = {key: book.metadata[key] for key in sorted(_KERNEL_SETTINGS & {*book.metadata})}
    book.metadata["language_info"] = {"name": "python"}
    return book


def shown(book):
    """Return what every code cell of a notebook shows, as texts without volatile parts."""
    return [
        [_steady(each) for each in cell.outputs] for cell in book.cells if cell.cell_type == "code"
    ]


def _steady(output):
    """Return an output as a text that is the same in every run."""
    data = output.get("data", {})
    if "image/svg+xml" in data:  # the labels: where exactly they are drawn depends on fonts
        text = "\n".join(re.findall(r">([^<>\n]+)</text>", data["image/svg+xml"]))
    else:
        text = output.get("text") or data.get("text/html") or data.get("text/plain", "")
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return re.sub(r"[ \t]+", " ", text)  # columns are as wide as volatile parts make them


def store(path):
    """Run a notebook and store it with its output."""
    book = execute(path)
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number}"
    nbformat.validate(book)
    nbformat.write(book, path)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    )
    with tempfile.TemporaryDirectory() as settings:
        os.environ["IPYTHONDIR"] = settings
        for each in [book for book in BOOKS if not sys.argv[1:] or book.stem in sys.argv[1:]]:
            print(each.stem, flush=True)
            store(each)

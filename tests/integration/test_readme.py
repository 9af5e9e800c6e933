"""What the README shows runs as it stands."""

import re
from pathlib import Path

import duckdb
import polars as pl

from arrowlog.cli.demo import build

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build("path/to/table")
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["snap"].num_files == 5
    assert names["duckdb"] is duckdb
    assert names["pl"] is pl


def test_the_two_commands_are_the_ones_that_exist():
    text = README.read_text()
    assert "python3 dev.py demo" in text
    assert "python3 dev.py test" in text
    assert "python3 dev.py test" in (README.parent / ".ci" / "run").read_text()

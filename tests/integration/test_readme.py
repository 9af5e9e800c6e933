"""What the README shows runs as it stands."""

import re
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
from support.event_table import build

from arrowlog.storage.s3 import parse_s3_options

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build("path/to/table")
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 13
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["snap"].num_files == 5
    assert names["duckdb"] is duckdb
    assert names["pl"] is pl
    assert names["result"].operation == "RESTORE"
    assert names["mended"]["status"].to_pylist() == ["SUCCESS"]
    assert names["findings"].healthy
    assert names["events"].snapshot().num_files == 3
    assert (names["done"].files_removed, names["done"].files_added) == (18, 3)
    assert names["gone"].num_files == 18
    assert parse_s3_options(names["one"]) == replace(
        parse_s3_options(names["two"]), region="us-east-1"
    )
    shown = str(names["plan"].explain()).splitlines()
    assert shown[0] in README.read_text()
    assert shown[1].partition(",")[0] in README.read_text()


def test_the_two_commands_are_the_ones_that_exist():
    text = README.read_text()
    assert "python3 dev.py demo" in text
    assert "python3 dev.py test" in text
    assert "python3 dev.py test" in (README.parent / ".ci" / "run").read_text()

"""Type checking of user programs: mypy, strict, on the package as shipped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import arrowlog

ROOT = Path(arrowlog.__file__).parents[1]

PROGRAM = """
import arrowlog

table = arrowlog.Table("events")
reveal_type(table)  # arrowlog.table.Table
reveal_type(table.snapshot())  # arrowlog.snapshot.snapshot.Snapshot
reveal_type(table.snapshot().files)  # pyarrow.Table
reveal_type(table.scan("id = 7"))  # arrowlog.scan.plan.ScanPlan
reveal_type(table.scan("id = 7").paths)  # list[str]
reveal_type(table.scan("id = 7").to_duckdb)  # -> duckdb._relation.DuckDBPyRelation
reveal_type(table.scan("id = 7").to_spark)  # -> pyspark.sql.dataframe.DataFrame
reveal_type(table.to_polars())  # polars.lazyframe.frame.LazyFrame
reveal_type(table.to_arrow("id = 7"))  # pyarrow.Table
reveal_type(table.to_duckdb())  # duckdb._relation.DuckDBPyRelation
reveal_type(table.schema)  # pyarrow.Schema
reveal_type(arrowlog.scan_polars("events"))  # polars.lazyframe.frame.LazyFrame
reveal_type(table.history())  # pyarrow.Table
reveal_type(table.diff(1, 2))  # arrowlog.history.reports.Diff
reveal_type(table.sql("FROM commits"))  # duckdb._relation.DuckDBPyRelation
reveal_type(table.query("FROM commits"))  # pyarrow.Table
reveal_type(table.write(None, mode="append"))  # arrowlog.transaction.commit_result.CommitResult
reveal_type(arrowlog.add_parquet(table, "x"))  # arrowlog.transaction.add_files.Add
reveal_type(arrowlog.doctor("events"))  # arrowlog.recovery.findings.Findings
reveal_type(arrowlog.spark.session)  # -> pyspark.sql.session.SparkSession
reveal_type(arrowlog.spark.read)  # -> pyspark.sql.dataframe.DataFrame
reveal_type(arrowlog.spark.files)  # -> pyspark.sql.dataframe.DataFrame
reveal_type(arrowlog.spark.plan)  # -> pyspark.sql.dataframe.DataFrame
reveal_type(arrowlog.spark.write)  # -> arrowlog.transaction.commit_result.CommitResult | None
reveal_type(arrowlog.__version__)  # str
table.write(None, mode="overwrite", where="id = 7")
table.write(None, mode="upsert")  # error: [arg-type]
rows = arrowlog.spark.session().range(3)
arrowlog.spark.write(rows, "events", mode="overwrite")
arrowlog.spark.write(rows, "events", mode="ignore")
arrowlog.spark.write(rows, "events", mode="replace")  # error: [arg-type]
table.scann("id = 7")  # error: [attr-defined]
arrowlog.Tabel("events")  # error: [attr-defined]
"""

# pyarrow ships no types. With these few, annotations show which of its classes they name.
PYARROW = """
from typing import Any
class Table: ...
class Schema: ...
def __getattr__(name: str) -> Any: ...
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The output of mypy for each line of the program."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "stubs" / "pyarrow").mkdir(parents=True)
    (folder / "stubs" / "pyarrow" / "__init__.pyi").write_text(PYARROW)
    command = ["-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "program.py"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "MYPYPATH": f"{folder / 'stubs'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {}
    for line in done.stdout.splitlines():
        match = re.match(r"program\.py:(\d+): (.*)", line)
        if match:
            lines.setdefault(int(match[1]), []).append(match[2])
    assert lines, done.stdout + done.stderr
    return lines


def test_mypy_infers_result_types_and_reports_mistakes(told):
    wrong = {}
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        code, _, expected = line.partition("  # ")
        said = " ".join(told.get(number, []))
        if expected.startswith("error: "):
            right = said.startswith("error: ") and expected.removeprefix("error: ") in said
        else:
            right = said.startswith("note: Revealed type is") == bool(expected) and expected in said
        if not right:
            wrong[code] = said
    assert not wrong


def test_package_has_py_typed():
    assert (ROOT / "arrowlog" / "py.typed").read_text() == ""

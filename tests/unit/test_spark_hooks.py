"""When pyspark's readers and writers are hooked; no Java is needed."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, inspect, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in ("pyspark.sql.readwriter", "pyspark.sql.connect.readwriter"):
    module = importlib.import_module(name)
    for method in (module.DataFrameReader.load, module.DataFrameWriter.save):
        assert hasattr(method, "arrowlog_wraps"), (name, method)
        assert not hasattr(method.arrowlog_wraps, "arrowlog_wraps"), (name, method)
    assert "class DataFrameReader" in inspect.getsource(module)
    assert importlib.reload(module) is module
    assert hasattr(module.DataFrameReader.load, "arrowlog_wraps")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "before",
    [
        ("arrowlog.spark",),
        ("pyspark.sql", "arrowlog.spark"),
        ("arrowlog.spark", "pyspark.sql"),
        ("pyspark.sql.connect.readwriter", "arrowlog.spark"),
    ],
)
def test_order_of_imports_does_not_matter(before):
    """A session of Connect is often the first to import its modules."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *before]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Fixtures and settings that all tests share."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

import small

settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_report_header():
    return f"cases: x{cases(1)} (set ARROWLOG_CASES to multiply)"


def cases(count: int) -> int:
    """How many generated cases to run: more in long mode."""
    return int(count * float(os.environ.get("ARROWLOG_CASES", "1")))


@pytest.fixture
def root(tmp_path):
    """The folder of a table that does not exist yet."""
    return tmp_path / "table"


@pytest.fixture
def table(root):
    """The folder of a small table: two versions, one file."""
    return small.write(root)

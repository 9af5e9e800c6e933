"""Fixtures and settings that all tests share."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

import places
import servers
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


@pytest.fixture(scope="session")
def moto():
    """A moto server of this test process, and a client of it."""
    with servers.moto() as server:
        yield server, server.client()


@pytest.fixture(scope="session")
def seaweedfs():
    """A SeaweedFS of this test process, and a client of it."""
    with servers.seaweedfs() as server:
        yield server, server.client()


@pytest.fixture(params=places.KINDS)
def place(request):
    """An empty place of every kind of store."""
    return places.make(request.param, request)

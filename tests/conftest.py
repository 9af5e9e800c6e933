"""Fixtures and settings that all tests share."""

import pytest
from hypothesis import HealthCheck, settings
from support import s3_servers, small_table, store_places
from support.case_count import cases

settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_report_header():
    return f"cases: x{cases(1)} (set ARROWLOG_CASES to multiply)"


@pytest.fixture
def root(tmp_path):
    """The folder of a table that does not exist yet."""
    return tmp_path / "table"


@pytest.fixture
def table(root):
    """The folder of a small table: two versions, one file."""
    return small_table.write(root)


@pytest.fixture(scope="session")
def moto():
    """A moto server of this test process, and a client of it."""
    with s3_servers.moto() as server:
        yield server, server.client()


@pytest.fixture(scope="session")
def seaweedfs():
    """A SeaweedFS of this test process, and a client of it."""
    with s3_servers.seaweedfs() as server:
        yield server, server.client()


@pytest.fixture(params=store_places.KINDS)
def place(request):
    """An empty place of every kind of store."""
    return store_places.make(request.param, request)

"""Fixtures and settings that all tests share."""

import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import s3_servers, small_table, store_places
from support.case_count import SEED, cases
from support.logged import lines_of

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    derandomize=SEED != "random",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


HERE = Path(__file__).parent
S3_FIXTURES = {"moto", "seaweedfs"}
S3_KINDS = {kind for kind in store_places.KINDS if kind.partition("-")[2] in S3_FIXTURES}


def pytest_collection_modifyitems(items):
    """Mark tests that need a server or Java."""
    for item in items:
        if item.path.is_relative_to(HERE / "spark"):
            item.add_marker("spark")
        if _needs_s3(item):
            item.add_marker("s3")


def _needs_s3(item):
    """Whether a test uses a server: as a fixture, or as the kind of store in its parameters."""
    if S3_FIXTURES & set(getattr(item, "fixturenames", ())):
        return True
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(value in S3_KINDS for value in parameters if isinstance(value, str))


def pytest_report_header():
    return (
        f"cases: x{cases(1)}, seed {SEED} (ARROWLOG_CASES multiplies, ARROWLOG_SEED=random varies)"
    )


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
    """An empty root in every kind of store."""
    return store_places.make(request.param, request)


@pytest.fixture(autouse=True)
def _logging_as_before():
    """Undo logging configuration by a test or a documentation page that it runs."""
    names = [None, "arrowlog", *(n for n in logging.root.manager.loggerDict if "arrowlog." in n)]
    loggers = [logging.getLogger(name) for name in names]
    before = [(each, each.level, each.handlers[:]) for each in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def lines(caplog):
    """Return a function: the log lines of an event so far, checked against its declaration."""
    caplog.set_level(logging.DEBUG, logger="arrowlog")
    return lambda name: lines_of(name, caplog.records)

"""What `dev.py` installs for a job."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dev():
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pip_gets_brackets_only_around_extras(dev):
    assert dev.requirement([dev.BASE]) == "."
    assert dev.requirement([dev.BASE, "dev", "docs"]) == ".[dev,docs]"


def test_every_job_asks_for_extras_that_exist(dev):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for job in dev.JOBS:
        wanted = set(dev.EXTRAS.get(job, "dev").split(","))
        assert wanted <= {*extras, dev.BASE}, job


def test_every_job_is_described(dev):
    for job in dev.JOBS:
        assert f"python3 dev.py {job} " in dev.__doc__

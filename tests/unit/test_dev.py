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


@pytest.mark.parametrize(
    ("extras", "project"), [("base", "."), ("docs", ".[docs]"), ("bench,docs", ".[bench,docs]")]
)
def test_pip_gets_brackets_only_around_extras(dev, monkeypatch, tmp_path, extras, project):
    installed = []
    environment = dev.Environment(str(tmp_path / "venv"), "constraints.txt")
    monkeypatch.setattr(dev.venv, "create", lambda folder, **_: folder.mkdir())
    monkeypatch.setattr(environment, "install", lambda *arguments: installed.append(arguments))
    environment.set_up(extras)
    assert installed == [("-c", "constraints.txt", "-e", project)]


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

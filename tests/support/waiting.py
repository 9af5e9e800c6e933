"""Wait for conditions, with a deadline against hanging only: no result depends on it."""

import time

SECONDS_MAX = 300


def wait_until(condition, what):
    """Return as soon as `condition()` is true; fail if that does not happen in minutes."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {SECONDS_MAX} seconds in vain for {what}")
        time.sleep(0.002)

"""Time and randomness in one place, so that tests can replace them."""

from __future__ import annotations

import random
import sys
import time
from uuid import uuid4

# CLOCK_BOOTTIME advances while the machine is suspended; on Linux, CLOCK_MONOTONIC does not. A
# writer that was suspended must not mistake an old observation of the log for a recent one. On
# macOS, CLOCK_MONOTONIC is the clock that counts suspension, and time.monotonic() is not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
if _CLOCK is None and sys.platform == "darwin":
    _CLOCK = time.CLOCK_MONOTONIC
COUNTS_SUSPENSION = _CLOCK is not None


def boottime() -> float:
    """Return elapsed seconds, including suspended time if `COUNTS_SUSPENSION`. Never decreases."""
    return _read()


def _read() -> float:
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class SystemClock:
    """The clocks and the random numbers of the machine. Implements `transaction.Clock`."""

    counts_suspension = COUNTS_SUSPENSION

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Return elapsed seconds, including suspension where the platform counts it."""
        return boottime()

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    def uniform(self) -> float:
        """Return a random number from 0 to 1."""
        return random.random()  # noqa: S311 -- not a secret

    def new_id(self) -> str:
        """Return a random UUID."""
        return str(uuid4())

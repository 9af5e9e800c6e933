"""Time and randomness, in one place, so that tests can inject their own."""

from __future__ import annotations

import random
import sys
import time
from uuid import uuid4

# CLOCK_BOOTTIME advances while the machine is suspended; on Linux, CLOCK_MONOTONIC does not. A
# writer that slept through a suspension must not mistake an old observation for a recent one. On
# macOS, CLOCK_MONOTONIC is the clock that counts suspension, and time.monotonic() is not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
if _CLOCK is None and sys.platform == "darwin":
    _CLOCK = time.CLOCK_MONOTONIC
COUNTS_SUSPENSION = _CLOCK is not None


def boottime() -> float:
    """Seconds that never go back and, where `COUNTS_SUSPENSION`, count suspended time."""
    return _read()


def _read() -> float:
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class SystemClock:
    """The machine's clocks and randomness."""

    counts_suspension = COUNTS_SUSPENSION

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Elapsed seconds, suspended time included where the platform can tell."""
        return boottime()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def uniform(self) -> float:
        """A random number from 0 to 1."""
        return random.random()  # noqa: S311 -- not a secret

    def new_id(self) -> str:
        """A random id."""
        return str(uuid4())

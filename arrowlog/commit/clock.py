"""The world's time and chance, in one place, so that tests may hand in their own."""

from __future__ import annotations

import random
import time
from uuid import uuid4


class SystemClock:
    """The machine's."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def seconds(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def uniform(self) -> float:
        """A number from 0 to 1."""
        return random.random()  # noqa: S311 -- not a secret

    def new_id(self) -> str:
        """A text nobody else has."""
        return str(uuid4())

"""How long a writer waits before it commits, so that others get their turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_POLITE_SECONDS = 5.0
_WAIT_SECONDS_MAX = 0.5


class Clock(Protocol):
    """Time and randomness, injected."""

    counts_suspension: bool  # whether `seconds` advances while the machine is suspended

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def seconds(self) -> float:
        """Seconds that only go forward."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def uniform(self) -> float:
        """A number from 0 to 1."""

    def new_id(self) -> str:
        """A text nobody else has."""


@dataclass(slots=True)
class Pace:
    """How crowded the log is, as one writer sees it: how long a put takes, which races were lost.

    A writer that has just won knows the next free slot at once; those that lost must read first,
    and would lose to it for ever. So who has met others lately now and then lets them go first, the
    more often, the larger the crowd. The numbers come from a simulation of 2 to 16 writers at one
    round trip a put: 9 of 10 of what one writer alone could do, and nobody waits long.
    """

    put_seconds: float = 0.0
    lost_at: float = float("-inf")
    crowd: float = 0.0

    def took(self, seconds: float) -> None:
        """A put took so long."""
        self.put_seconds = 0.8 * self.put_seconds + 0.2 * seconds if self.put_seconds else seconds

    def raced(self, losses: int, now: float) -> None:
        """A commit came to its end after so many lost races."""
        self.crowd = max(float(losses), 0.9 * self.crowd + 0.1 * losses)
        if losses:
            self.lost_at = now

    def wait(self, clock: Clock) -> float:
        """How long to wait before a commit's first put."""
        if clock.seconds() - self.lost_at > _POLITE_SECONDS:
            return 0.0
        if clock.uniform() > min(0.1 + self.crowd / 120, 0.6):
            return 0.0
        return min(2 * self.put_seconds * (0.75 + clock.uniform() / 2), _WAIT_SECONDS_MAX)

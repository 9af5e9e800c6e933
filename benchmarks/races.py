"""Simulate writers that race for the next version of a log. Pure and seeded.

A put of an existing version fails; its writer then reads the new commits and tries the next
version, as `arrowlog.transaction.commit_loop` does, with the same `ContentionBackoff`. Times are in
seconds. Only round trips take time; the difference to a measurement is the cost of everything else.
"""

import heapq
import random
from dataclasses import dataclass, field

from arrowlog.transaction.version_race import ContentionBackoff

_WIDTH, _WIDTH_MAX = (
    4,
    64,
)  # commits read in one round trip after a lost race, as in the commit loop
JITTER = 0.05  # mean delay of a round trip, as a share of it


@dataclass
class World:
    """The clock, the random numbers, and the log: the time of each version."""

    rng: random.Random
    now: float = 0.0
    taken: list[float] = field(default_factory=list)

    def seconds(self):
        """The current time."""
        return self.now

    def uniform(self):
        """A random number between 0 and 1."""
        return self.rng.random()

    def trip(self, seconds):
        """The duration of a round trip, with jitter."""
        return seconds * (1 + self.rng.expovariate(1 / JITTER))


@dataclass
class Writer:
    """The state of a writer: the next version it knows of, and its current commit."""

    version: int = 0
    losses: int = 0
    behind: int = 0
    since: float = 0.0
    backoff: ContentionBackoff = field(default_factory=ContentionBackoff)


def race(writers, put, get, seconds, seed=7):
    """Commits per second ("rate"), latency in ms, puts per commit ("tries").

    Latencies are "p50", "p99" and "longest".

    >>> round(race(1, 0.02, 0.02, 20)["rate"])
    47
    """
    world = World(random.Random(seed))
    states = [Writer() for _ in range(writers)]
    events = []
    for number in range(writers):
        heapq.heappush(events, (world.uniform() * put, number, "begin", 0.0))
    latencies, puts = [], 0
    while events:
        world.now, number, event, sent = heapq.heappop(events)
        writer = states[number]
        if event == "begin":
            writer.since, writer.losses, writer.behind = world.now, 0, 0
            wait = writer.backoff.wait(world)
            heapq.heappush(events, (world.now + wait, number, "send", 0.0))
        elif event == "send":
            puts += 1
            trip = world.trip(put)
            heapq.heappush(events, (world.now + trip / 2, number, "arrive", trip))
        elif event == "arrive":
            won = len(world.taken) == writer.version
            if won:
                world.taken.append(world.now)
            answer = "won" if won else "lost"
            heapq.heappush(events, (world.now + sent / 2, number, answer, sent))
        elif event == "won":
            writer.backoff.record_put(sent)
            writer.backoff.record_commit(writer.losses, world.now)
            writer.version += 1
            latencies.append(world.now - writer.since)
            if world.now < seconds:
                heapq.heappush(events, (world.now, number, "begin", 0.0))
        elif event == "lost":
            writer.backoff.record_put(sent)
            writer.losses += 1
            trip = world.trip(get)
            heapq.heappush(events, (world.now + trip / 2, number, "look", trip))
        else:  # look: the commits that exist when the request arrives
            width = max(min(1 + writer.losses, _WIDTH), min(writer.behind // 2, _WIDTH_MAX))
            count = min(width, len(world.taken) - writer.version)
            writer.behind = writer.behind + count if count == width else 0
            writer.version += count
            heapq.heappush(events, (world.now + sent / 2, number, "send", 0.0))
    tries = puts / max(len(latencies), 1)
    return _summary(latencies, max(world.now, 1e-9)) | {"tries": tries}


def batched(rate, put, window, seconds, seed=7):
    """Group commit: one committer puts all changes that have arrived since its last put.

    It waits at least `window` seconds for further changes. Changes arrive at random, `rate` per
    second. Latency is the time from a change's arrival to the response. Returns as `race`, and
    changes per put ("batch") and puts per second ("puts").
    """
    rng = random.Random(seed)
    world = World(rng)
    arrivals, moment = [], 0.0
    while moment < seconds:
        moment += rng.expovariate(rate)
        arrivals.append(moment)
    latencies, batches, at, free = [], 0, 0, 0.0
    while at < len(arrivals):
        begin = max(free, arrivals[at] + window)
        stop = at
        while stop < len(arrivals) and arrivals[stop] <= begin:
            stop += 1
        free = begin + world.trip(put)
        latencies += [free - moment for moment in arrivals[at:stop]]
        batches += 1
        at = stop
    batch = {"batch": len(latencies) / batches, "puts": batches / free}
    return _summary(latencies, free) | batch


def _summary(latencies, seconds):
    times = sorted(latencies)
    return {
        "rate": len(times) / seconds,
        "p50": times[len(times) // 2] * 1000,
        "p99": times[min(int(len(times) * 0.99), len(times) - 1)] * 1000,
        "longest": times[-1] * 1000,
    }

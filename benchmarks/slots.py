"""Writers that race for the next free version of one log, simulated. Pure and seeded.

A put of a version that is taken fails, and its writer reads what is there and tries the next: as
`arrowlog.transaction.commit_loop` does it, with its own `ContentionBackoff`. Times are seconds.
Nothing but round trips takes time, so what is measured beside it is what the rest costs.
"""

import heapq
import random
from dataclasses import dataclass, field

from arrowlog.transaction.version_race import ContentionBackoff

_WIDTH, _WIDTH_MAX = 4, 64  # commits that are read at once after a lost race, as it does
JITTER = 0.05  # of a round trip, on top of it, as a mean


@dataclass
class World:
    """Time, chance, and the log: when each version came to be."""

    rng: random.Random
    now: float = 0.0
    taken: list[float] = field(default_factory=list)

    def seconds(self):
        return self.now

    def uniform(self):
        return self.rng.random()

    def trip(self, seconds):
        return seconds * (1 + self.rng.expovariate(1 / JITTER))


@dataclass
class Writer:
    """Where a writer is: what it knows of the log, and since when it tries to commit."""

    version: int = 0
    losses: int = 0
    behind: int = 0
    since: float = 0.0
    backoff: ContentionBackoff = field(default_factory=ContentionBackoff)


def race(writers, put, get, seconds, seed=7):
    """Commits a second, milliseconds to commit (middle, and 99 of 100), puts a commit.

    >>> round(race(1, 0.02, 0.02, 20)["rate"])
    48
    """
    world = World(random.Random(seed))
    crowd = [Writer() for _ in range(writers)]
    events = []
    for number in range(writers):
        heapq.heappush(events, (world.uniform() * put, number, "begin", 0.0))
    spent, puts = [], 0
    while events:
        world.now, number, what, sent = heapq.heappop(events)
        writer = crowd[number]
        if what == "begin":
            writer.since, writer.losses, writer.behind = world.now, 0, 0
            wait = writer.backoff.wait(world)
            heapq.heappush(events, (world.now + wait, number, "send", 0.0))
        elif what == "send":
            puts += 1
            trip = world.trip(put)
            heapq.heappush(events, (world.now + trip / 2, number, "arrive", trip))
        elif what == "arrive":
            won = len(world.taken) == writer.version
            if won:
                world.taken.append(world.now)
            answer = "won" if won else "lost"
            heapq.heappush(events, (world.now + sent / 2, number, answer, sent))
        elif what == "won":
            writer.backoff.record_put(sent)
            writer.backoff.record_commit(writer.losses, world.now)
            writer.version += 1
            spent.append(world.now - writer.since)
            if world.now < seconds:
                heapq.heappush(events, (world.now, number, "begin", 0.0))
        elif what == "lost":
            writer.backoff.record_put(sent)
            writer.losses += 1
            trip = world.trip(get)
            heapq.heappush(events, (world.now + trip / 2, number, "look", trip))
        else:  # look: what is there when the request arrives
            width = max(min(1 + writer.losses, _WIDTH), min(writer.behind // 2, _WIDTH_MAX))
            count = min(width, len(world.taken) - writer.version)
            writer.behind = writer.behind + count if count == width else 0
            writer.version += count
            heapq.heappush(events, (world.now + sent / 2, number, "send", 0.0))
    return _told(spent, max(world.now, 1e-9)) | {"tries": puts / max(len(spent), 1)}


def batched(rate, put, window, seconds, seed=7):
    """One committer that puts whatever has come since its last put, `window` seconds at least.

    Changes come by chance, `rate` a second. What each waits is from its coming to its answer.
    """
    rng = random.Random(seed)
    world = World(rng)
    coming, moment = [], 0.0
    while moment < seconds:
        moment += rng.expovariate(rate)
        coming.append(moment)
    spent, batches, at, free = [], 0, 0, 0.0
    while at < len(coming):
        begin = max(free, coming[at] + window)
        stop = at
        while stop < len(coming) and coming[stop] <= begin:
            stop += 1
        free = begin + world.trip(put)
        spent += [free - moment for moment in coming[at:stop]]
        batches += 1
        at = stop
    return _told(spent, free) | {"batch": len(spent) / batches, "puts": batches / free}


def _told(spent, seconds):
    times = sorted(spent)
    return {
        "rate": len(times) / seconds,
        "p50": times[len(times) // 2] * 1000,
        "p99": times[min(int(len(times) * 0.99), len(times) - 1)] * 1000,
    }

"""From commits in a store to actions: runs of them are read and decoded side by side.

A thread takes a run of commits from the disk to columns, because most of both is done outside
Python's lock: the system's calls to read small files, and Arrow's kernels. How many commits make a
run is guessed by their size; what a run was too short for is read next.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from arrowlog.errors import LogCorrupt
from arrowlog.log.arrays import THRIFTY
from arrowlog.log.decode import Actions, begin
from arrowlog.log.lines import protocol_of
from arrowlog.log.match import PIECE
from arrowlog.log.names import LOG
from arrowlog.log.window import SMALL, Window
from arrowlog.state.apply import check_readable
from arrowlog.state.listing import check_current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.log.store import Store

_RUN_MAX = 6 << 20  # bytes of a run
_LONG_RUN_MAX = 24 << 20  # a run costs some calls for every column, and long lines have many
_RUN_MIN = 1 << 20
_FEW = 8  # lines that fill what is a small file otherwise are long
_RUNS = 3  # for each thread, where there are enough commits
_WORKERS_MAX = 4  # more wait for Python's lock, and each has a run in memory
_GUESS = 4096  # bytes of a commit, where asking costs a request


class Run(NamedTuple):
    """What some commits say, how many they are, and their size in the store."""

    actions: Actions
    commits: int
    size: int


class Reading:
    """Where commits are read from, and the buffers for it, which are used again."""

    def __init__(self, store: Store, config: Config, observed: float = float("-inf")) -> None:
        """Nothing is read yet. `observed` is when the commits were seen to belong to the log."""
        self._store = store
        # A clock that misses suspended time cannot tell that the observation is recent.
        self._observed = float("-inf") if config.commit_verify == "always" else observed
        self._config = config
        self._memory: pa.MemoryPool | None = None
        self._free: list[Window] = []
        # A store over a network reads many files at once by itself, and no more than it may.
        self._turn = nullcontext() if store.cheap_stat else Lock()

    def runs(self, commits: Sequence[tuple[int, str]]) -> Iterator[Run]:
        """All commits, in order, some at a time."""
        if not commits:
            return
        size, most = self._guess(commits)
        workers = min(max(os.cpu_count() or 1, 2), _WORKERS_MAX)
        with ThreadPoolExecutor(workers) as readers, ThreadPoolExecutor(workers) as cutters:
            if size * len(commits) > most:
                enough = min(max(size * len(commits) // (_RUNS * workers), _RUN_MIN), most)
                self._memory = THRIFTY

                def run(part: Sequence[tuple[int, str]]) -> Future[Run]:
                    return readers.submit(self._run, part, 2 * enough, cutters)

                yield from _in_turn(run, commits, size, enough, workers)
                return
            while commits:
                found = self._run(commits, most, cutters)
                yield found
                commits = commits[found.commits :]

    def _guess(self, commits: Sequence[tuple[int, str]]) -> tuple[int, int]:
        """How large a commit may be, and a run at most: where lines are long, by one of them."""
        if not self._store.cheap_stat:
            return _GUESS, _RUN_MAX
        key = f"{LOG}/{commits[len(commits) // 2][1]}"
        found = self._store.stat(key)
        if found is None or found.size < SMALL:
            return (_GUESS, _RUN_MAX) if found is None else (max(found.size, 1), _RUN_MAX)
        long = self._store.get_range(key, 0, SMALL).count(b"\n") < _FEW
        return found.size, _LONG_RUN_MAX if long else _RUN_MAX

    def _run(self, commits: Sequence[tuple[int, str]], enough: int, cutters: Executor) -> Run:
        """Read and decode commits, as many as make about `enough` bytes."""
        try:
            window = self._free.pop()
        except IndexError:  # asked for by pop itself: another thread may take the last one
            window = Window(self._config.max_decompressed_bytes, self._memory)
        versions = [version for version, _ in commits]
        keys = [f"{LOG}/{name}" for _, name in commits]
        with self._turn:
            count, size = self._store.read_into(window, keys, versions, enough)
        check_current(self._store, commits[:count], self._observed)
        actions = self.decoded(window, cutters)
        window.clear()
        self._free.append(window)
        return Run(actions, count, size)

    def decoded(self, window: Window, cutters: Executor) -> Actions:
        """What a window says. Of a large one, pieces are decoded side by side."""
        pool = cutters if window.size > PIECE else None
        try:
            return begin(window, pool, columnar=self._config.use_optimized).finish()
        except LogCorrupt:
            self._check_protocols(window)
            raise

    def _check_protocols(self, window: Window) -> None:
        """What cannot be decoded may be from a newer protocol: then say that instead."""
        texts = [text for apart in window.apart for text in apart.lines.to_pylist()]
        texts += bytes(window.view).split(b"\n")
        for text in texts:
            protocol = protocol_of(text)
            if protocol is not None:
                check_readable(protocol, self._store.root)


def _in_turn(
    run: Callable[[Sequence[tuple[int, str]]], Future[Run]],
    commits: Sequence[tuple[int, str]],
    size: int,
    enough: int,
    workers: int,
) -> Iterator[Run]:
    """Runs of about `enough` bytes, `workers` of them and one more on their way."""
    busy: deque[tuple[Sequence[tuple[int, str]], Future[Run]]] = deque()
    start = 0
    try:
        while busy or start < len(commits):
            while start < len(commits) and len(busy) <= workers:
                count = max(enough // size, 1)
                if start + count + count // 2 >= len(commits):  # no crumbs at the end
                    count = len(commits) - start
                part = commits[start : start + count]
                busy.append((part, run(part)))
                start += len(part)
            part, future = busy.popleft()
            found = future.result()
            size = max(found.size // found.commits, 1)
            rest = part[found.commits :]
            if rest:  # they are larger than was guessed
                busy.appendleft((rest, run(rest)))
            yield found
    finally:
        for _, future in busy:
            future.cancel()

"""Reads commits from a store and decodes them, several runs of commits in parallel.

One thread takes a run from the store to columns. Both halves of that work, system calls for small
files and Arrow kernels, run without Python's global lock; handing data from a reading to a decoding
thread would cost more than it gains (decision 14). The number of commits in a run is estimated from
their size; commits that did not fit are read by the next run. Over a network, one thread reads
while others decode: requests are sent ahead, and reading is mostly waiting.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from arrowlog.arrays import LOW_PEAK_POOL
from arrowlog.decode import PIECE_BYTES, ActionBatch, LineBuffer, probe_protocol, start_decode
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import decompress, detect_codec
from arrowlog.log_lines import COMMIT_READ, compression_ratio
from arrowlog.snapshot.listing import check_not_retired, needs_retired_check
from arrowlog.storage import SMALL_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    import pyarrow as pa

    from arrowlog.config import Config
    from arrowlog.formats import CommitFile, Format
    from arrowlog.storage import FileBuffer, ObjectStat, Store

# Up to so many bytes are one run. More are split into runs of less, which several threads decode:
# each holds a run in memory, which should fit the cache.
_SINGLE_RUN_BYTES_MAX = 6 << 20
_RUN_BYTES_MAX = 2 << 20
# A run has a fixed cost per column, and logs with long lines have many columns, so their runs are
# longer.
_LONG_LINES_RUN_BYTES_MAX = 24 << 20
_RUN_BYTES_MIN = 1 << 20
# Lines are long if fewer than this many fit into the first `SMALL_FILE_BYTES` bytes of a commit.
_LONG_LINES_MAX = 8
# Runs per thread, if there are enough commits: with one each, threads would idle at the end.
_RUNS_PER_WORKER = 3
# More threads only wait for Python's lock, and each holds a run in memory.
_WORKERS_MAX = 4
# Up to so many bytes, as they are stored, are read from a network at once. That should be several
# times as many commits as there are concurrent reads: at the end of a run, most readers are idle.
_NETWORK_RUN_BYTES_MAX = 8 << 20
_ALL = 1 << 62  # more than any run
# Assumed size of a commit that is gone.
_COMMIT_BYTES_ESTIMATE = 4096


class CommitRun(NamedTuple):
    """The actions of consecutive commits, their number, and their size in the store in bytes."""

    actions: ActionBatch
    commits: int
    size: int


class CommitReader:
    """Reads commits from one store; buffers are reused from run to run."""

    def __init__(
        self,
        store: Store,
        table_format: Format,
        config: Config,
        observed: float = float("-inf"),
        stats: Mapping[str, ObjectStat] | None = None,
    ) -> None:
        """Read nothing yet.

        `observed` is when the commits were seen to belong to the log, `stats` those of commits by
        name, as far as a listing has told: runs are measured by them.
        """
        self._store = store
        self._stats = stats or {}
        self._format = table_format
        # "always" is for machines whose clock may stand still while they are paused; there, no
        # observation counts as recent.
        self._observed = float("-inf") if config.commit_verify == "always" else observed
        self._config = config
        self._memory: pa.MemoryPool | None = None
        self._free_windows: list[LineBuffer] = []
        # Estimated size of a commit; 0 if they are small, which are collected elsewhere.
        self._large_commit_bytes = 0

    def runs(self, commits: Sequence[CommitFile]) -> Iterator[CommitRun]:
        """Yield the actions of all commits in log order, run by run; `check` has to follow.

        Raises `LogCorrupt` or `UnsupportedProtocol` if a commit cannot be decoded, and
        `FileNotFoundError` if one is gone.
        """
        if not commits:
            return
        if not self._store.cheap_stat:
            yield from self._runs_over_network(commits)
            return
        commit_bytes, long_lines = self._estimate_sizes(commits)
        self._large_commit_bytes = commit_bytes if commit_bytes > SMALL_FILE_BYTES else 0
        run_bytes_max = _LONG_LINES_RUN_BYTES_MAX if long_lines else _RUN_BYTES_MAX
        single_run_max = _LONG_LINES_RUN_BYTES_MAX if long_lines else _SINGLE_RUN_BYTES_MAX
        total = commit_bytes * len(commits)
        workers = min(max(os.cpu_count() or 1, 2), _WORKERS_MAX)
        with ThreadPoolExecutor(workers) as readers, ThreadPoolExecutor(workers) as cutters:
            if total > single_run_max:
                even_share = total // (_RUNS_PER_WORKER * workers)
                run_bytes = min(max(even_share, _RUN_BYTES_MIN), run_bytes_max)
                self._memory = LOW_PEAK_POOL

                def submit(part: Sequence[CommitFile]) -> Future[CommitRun]:
                    return readers.submit(self._run, part, 2 * run_bytes, cutters)

                yield from _in_order(submit, commits, commit_bytes, run_bytes, workers)
                if self._memory is not None:
                    self._memory.release_unused()
                return
            while commits:
                run = self._run(commits, single_run_max, cutters)
                yield run
                commits = commits[run.commits :]

    def _runs_over_network(self, commits: Sequence[CommitFile]) -> Iterator[CommitRun]:
        """Yield runs; while one is decoded, another thread reads the next one.

        A run is as many commits as the listing says are `_NETWORK_RUN_BYTES_MAX`. Without their
        sizes, the store decides by the mean size of the files that it has read last.
        """
        workers = min(max(os.cpu_count() or 1, 2), _WORKERS_MAX)
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(workers) as cutters:
            window, count, size = self._read_some(commits)
            while True:
                commits = commits[count:]
                reading = reader.submit(self._read_some, commits) if commits else None
                yield CommitRun(self._decode_and_free(window, cutters), count, size)
                if reading is None:
                    return
                window, count, size = reading.result()

    def release_buffers(self) -> None:
        """Free the memory that is kept for further runs."""
        self._free_windows.clear()

    def _read_some(self, commits: Sequence[CommitFile]) -> tuple[LineBuffer, int, int]:
        """Read the next run over a network; returns what `_read` returns."""
        count = bytes_known = 0
        for commit in commits if self._stats else ():
            stat = self._stats.get(commit.name)
            if stat is None or (count and bytes_known + stat.size > _NETWORK_RUN_BYTES_MAX):
                break
            bytes_known += stat.size
            count += 1
        return self._read(commits[:count], _ALL) if count else self._read(commits, _RUN_BYTES_MAX)

    def check(
        self, commits: Sequence[CommitFile], meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Check that commits that were read are the ones that count (decision 17).

        Raises `FileNotFoundError` if one was retired since it was observed. If that takes a request
        over a network, `meanwhile` is called at the same time.
        """
        where = self._store, self._format, commits, self._observed
        if meanwhile is None or self._store.cheap_stat or not needs_retired_check(*where):
            check_not_retired(*where)
            return
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(meanwhile)
            check_not_retired(*where)
            other.result()

    def _estimate_sizes(self, commits: Sequence[CommitFile]) -> tuple[int, bool]:
        """Estimate the bytes of a commit from the middle one, and whether its lines are long."""
        key = commits[len(commits) // 2].key
        stat = self._store.stat(key)
        if stat is None:
            return _COMMIT_BYTES_ESTIMATE, False
        if stat.size < SMALL_FILE_BYTES:
            return max(stat.size, 1), False
        long_lines = self._store.get_range(key, 0, SMALL_FILE_BYTES).count(b"\n") < _LONG_LINES_MAX
        return stat.size, long_lines

    def _run(self, commits: Sequence[CommitFile], enough: int, cutters: Executor) -> CommitRun:
        """Read and decode commits until about `enough` bytes are read."""
        window, count, size = self._read(commits, enough)
        return CommitRun(self._decode_and_free(window, cutters), count, size)

    def _read(self, commits: Sequence[CommitFile], enough: int) -> tuple[LineBuffer, int, int]:
        """Read commits until about `enough` bytes are read; returns their number and size."""
        try:
            window = self._free_windows.pop()
        except IndexError:  # not `if`: another thread may take the last one in between
            limit = self._config.max_decompressed_bytes
            window = LineBuffer(limit, self._memory, self._format)
        versions = [commit.version for commit in commits]
        keys = [commit.key for commit in commits]
        buffer: FileBuffer = window
        if COMMIT_READ.enabled:
            buffer = _LoggedBuffer(window, self._store.root, self._config.max_decompressed_bytes)
        # One allocation of the right size: a buffer that grows is copied again and again.
        room = min(self._large_commit_bytes * len(commits), enough)
        window.reserve(room + room // 8).release()
        count, size = self._store.read_into(buffer, keys, versions, enough)
        return window, count, size

    def _decode_and_free(self, window: LineBuffer, cutters: Executor) -> ActionBatch:
        actions = self.decoded(window, cutters)
        window.clear()
        self._free_windows.append(window)
        return actions

    def decoded(self, window: LineBuffer, cutters: Executor) -> ActionBatch:
        """Decode a window; the pieces of a large one in parallel."""
        pool = cutters if window.size > PIECE_BYTES else None
        try:
            return start_decode(window, pool, columnar=self._config.use_optimized).finish()
        except LogCorrupt:
            self._check_protocols(window)
            raise

    def _check_protocols(self, window: LineBuffer) -> None:
        """Raise `UnsupportedProtocol` if the window declares one.

        Actions of a newer protocol may fail to decode; then the protocol is the better error.
        """
        texts = [text for apart in window.non_add_lines for text in apart.lines.to_pylist()]
        texts += bytes(window.view).split(b"\n")
        for text in texts:
            protocol = probe_protocol(text)
            if protocol is not None:
                self._format.check_readable(protocol, self._store.root)


def _in_order(
    submit: Callable[[Sequence[CommitFile]], Future[CommitRun]],
    commits: Sequence[CommitFile],
    commit_bytes: int,
    run_bytes: int,
    workers: int,
) -> Iterator[CommitRun]:
    """Yield runs of about `run_bytes` in log order, with up to `workers` + 1 of them submitted.

    `commit_bytes` is the first estimate of a commit's size; each finished run corrects it.
    """
    pending: deque[tuple[Sequence[CommitFile], Future[CommitRun]]] = deque()
    start = 0
    try:
        while pending or start < len(commits):
            while start < len(commits) and len(pending) <= workers:
                count = max(run_bytes // commit_bytes, 1)
                if start + count + count // 2 >= len(commits):  # avoid a tiny last run
                    count = len(commits) - start
                part = commits[start : start + count]
                pending.append((part, submit(part)))
                start += len(part)
            part, future = pending.popleft()
            run = future.result()
            # Not much less at once: the first commit of a log is small.
            commit_bytes = max(run.size // run.commits, commit_bytes // 2, 1)
            rest = part[run.commits :]
            if rest:  # the commits are larger than estimated
                pending.appendleft((rest, submit(rest)))
            yield run
    finally:
        for _, future in pending:
            future.cancel()


class _LoggedBuffer:
    """A `FileBuffer` that hands everything to the decoder's buffer, and logs it.

    It stands in for that buffer while the log line is enabled, so that reading costs nothing more
    while it is not.
    """

    def __init__(self, inner: LineBuffer, root: str, limit: int) -> None:
        """Log the files of the table at `root`; `limit` is the maximum decompressed size."""
        self._inner = inner
        self.size = inner.size
        self._root = root
        self._limit = limit

    def staging_memory(self, room: int) -> memoryview:
        """Return scratch memory."""
        return self._inner.staging_memory(room)

    def reserve(self, room: int) -> memoryview:
        """Return the free end of the buffer."""
        return self._inner.reserve(room)

    def accept(self, name: str, version: int, length: int) -> None:
        """Take the bytes that were read into the free end as one file."""
        start = self._inner.end
        raw = bytes(memoryview(self._inner.data)[start : start + length])
        self._inner.accept(name, version, length)
        self._log(name, version, raw)

    def put(
        self,
        names: Sequence[str],
        versions: Sequence[int],
        raws: bytes | memoryview,
        ends: Sequence[int],
    ) -> None:
        """Take small files that lie one after the other."""
        pieces = [bytes(raws[start:stop]) for start, stop in pairwise((0, *ends))]
        self._inner.put(names, versions, raws, ends)
        for name, version, raw in zip(names, versions, pieces, strict=True):
            self._log(name, version, raw)

    def fill(self, names: Sequence[str], versions: Sequence[int], raws: Sequence[bytes]) -> None:
        """Take files of any size."""
        self._inner.fill(names, versions, raws)
        for name, version, raw in zip(names, versions, raws, strict=True):
            self._log(name, version, raw)

    def _log(self, name: str, version: int, raw: bytes) -> None:
        compressible = self._inner.format.compressed_commits
        codec = detect_codec(raw) if compressible else "none"
        # The buffer has accepted the file, so that it decompresses.
        plain = len(raw) if codec == "none" else len(decompress(raw, name, self._limit))
        self.size = self._inner.size
        COMMIT_READ.log(
            table=self._root,
            path=name,
            version=version,
            codec=codec,
            bytes=len(raw),
            uncompressed_bytes=plain,
            ratio=compression_ratio(plain, len(raw)),
        )

"""What a forked child can still use of the engines that its parent had started.

A fork copies the memory of a process and one of its threads. Everything else stays behind:

- polars gives its work to a pool of threads. In a child of a process whose pool runs, such work is
  never done, and the call that waits for it never returns. The pool cannot be started again. So
  `polars_is_stranded` tells, code that has another way takes it, and every other use of polars
  raises `ForkedProcess` before it begins: modules import `pl` from here instead of polars itself.
- A DuckDB connection joins its threads when it is destroyed. In a child they do not exist, and
  joining them ends in signal 11. Connections made before a fork are therefore kept alive for ever
  in the child; the child makes its own.
- A lock that another thread holds at the moment of the fork is held for ever in the child, and
  what it guards may be half changed. `ForkSafeLock` is free again in the child, and has what it
  guards forgotten.

Arrow starts its own pools again in a child; stores look after their clients themselves. This module
stands below all others but `config` and `errors`, since every layer uses one of the engines.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, ref

import polars  # noqa: ICN001 -- `pl` is what others may use of it
import pyarrow as pa

from arrowlog.errors import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

    import polars as pl

__all__ = [
    "ForkSafeLock",
    "keep_through_forks",
    "pl",
    "polars_is_stranded",
    "require_polars",
]

_TASKS = "/proc/self/task"
_POOL_THREAD = re.compile(rb"polars-[0-9]")  # polars has other threads, which do no harm
_IMPORTING = "<frozen importlib"
_IMPORT_SECONDS_MAX = 10.0  # a fork waits this long for imports of other threads
_POLARS = os.path.dirname(polars.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_NEXT = (
    "Start worker processes with multiprocessing.get_context('spawn'), or fork before the parent"
    " uses arrowlog or polars."
)


class _Stranded:
    """Whether the pool of polars was left behind, here and in the children to come."""

    now = False
    in_children = False


def polars_is_stranded() -> bool:
    """Whether this process was forked from one that had started polars' threads."""
    return _Stranded.now


def require_polars(what: str) -> None:
    """Raise `ForkedProcess` if `what`, which needs polars, cannot be done in this process."""
    if _Stranded.now:
        raise ForkedProcess(
            f"{what} needs polars, whose threads stayed with the parent when this process was"
            " forked.",
            next=_NEXT,
        )


# Names that give work to nobody: types, expressions not yet evaluated, and series made of arrays.
# The methods of a series are another matter: most of them are evaluated as expressions.
_HARMLESS = frozenset(
    {"Binary", "Boolean", "Decimal", "Float64", "Int8", "Int32", "Int64", "Null", "String", "UInt8"}
    | {"UInt64", "Unknown", "CompatLevel", "Expr", "LazyFrame", "Series", "exceptions", "int_range"}
)


class _Guarded:
    """polars; in a process where it is stranded, only what needs no thread of its pool."""

    def __getattr__(self, name: str) -> Any:
        if _Stranded.now and name not in _HARMLESS:
            if name in ("concat", "from_arrow"):
                return functools.partial(_of_arrays, name)
            require_polars("This call")
        return getattr(polars, name)


def _of_arrays(name: str, given: Any, **options: Any) -> Any:
    """Series of an array, or of other series. Tables would go to the pool, column by column."""
    parts = given if name == "concat" else [given]
    if not all(isinstance(part, (polars.Series, pa.Array, pa.ChunkedArray)) for part in parts):
        require_polars("This call")
    return getattr(polars, name)(given, **options)


if not TYPE_CHECKING:
    pl = _Guarded()


class ForkSafeLock:
    """A re-entrant lock that is free in a forked child, unless the forking thread itself holds it.

    If another thread held it, what it guards may be half changed: `torn`, a method of the object
    that owns the lock, is called in the child and has to put that right.
    """

    def __init__(self, torn: Callable[[], None]) -> None:
        """`torn` runs while a child is being set up: it may only forget."""
        self._lock = threading.RLock()
        self._torn = WeakMethod(torn)
        _note(_LOCKS, self)

    def __enter__(self) -> None:
        """Wait for the lock."""
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self._lock.release()

    def renew(self) -> None:
        """Called in a child."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return
        self._lock = threading.RLock()
        torn = self._torn()
        if torn is not None:
            torn()


def keep_through_forks(connection: Any) -> None:
    """Have a DuckDB connection never destroyed in children of this process."""
    _note(_CONNECTIONS, connection)


# By identity, and no WeakSet: another thread may add to one while a fork goes through it.
_Weak = dict[int, "ref[Any]"]
_LOCKS: _Weak = {}
_CONNECTIONS: _Weak = {}
_held: list[Any] = []


def _note(where: _Weak, item: Any) -> None:
    key = id(item)
    where[key] = ref(item, lambda _: where.pop(key, None))


def _living(where: _Weak) -> list[Any]:
    found = [weak() for weak in list(where.values())]
    return [item for item in found if item is not None]


def _pool_runs() -> bool:
    try:
        tasks = os.listdir(_TASKS)
    except OSError:  # not Linux: there is no telling
        return True
    for task in tasks:
        try:
            with open(f"{_TASKS}/{task}/comm", "rb") as name:
                if _POOL_THREAD.match(name.read()):
                    return True
        except OSError:  # the thread has ended meanwhile
            continue
    return False


def _stacks_of_others() -> Iterator[list[str]]:
    """The files whose code each other thread is in, the innermost call first."""
    mine = threading.get_ident()
    for thread, frame in sys._current_frames().items():  # noqa: SLF001 -- the documented way
        if thread == mine:
            continue
        files: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            files.append(at.f_code.co_filename)
            at = at.f_back
        yield files


def _others_in_polars() -> bool:
    return any(file.startswith(_POLARS) for files in _stacks_of_others() for file in files)


def _others_import() -> bool:
    """Whether a call of ours in another thread is importing something, an engine most likely.

    Programs that are imported and run for ever in that import are none of our business.
    """
    for files in _stacks_of_others():
        ours = [at for at, file in enumerate(files) if file.startswith(_OURS)]
        if ours and any(file.startswith(_IMPORTING) for file in files[: ours[0]]):
            return True
    return False


def _await_imports() -> None:
    """A module that is half imported at a fork stays so in the child, and its lock stays held."""
    deadline = time.monotonic() + _IMPORT_SECONDS_MAX
    while _others_import() and time.monotonic() < deadline:
        time.sleep(0.001)


def _before() -> None:
    _await_imports()
    # Threads of other callers end with the fork, and what only they refer to is destroyed in the
    # child before any hook runs there. Hence the references are taken here.
    _held.extend(_living(_CONNECTIONS))
    # A thread that is inside polars may be about to start its pool.
    _Stranded.in_children = _Stranded.now or _pool_runs() or _others_in_polars()


def _in_parent() -> None:
    _held.clear()


def _in_child() -> None:
    _Stranded.now = _Stranded.in_children
    for connection in _held:  # one reference more than will ever be given back
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _held.clear()
    _CONNECTIONS.clear()
    for lock in _living(_LOCKS):
        lock.renew()
    _renew_property_locks()


def _renew_property_locks() -> None:
    """Until Python 3.12 a `cached_property` has a lock, one for all instances of its class."""
    for item in _cached_properties():
        if hasattr(item, "lock"):
            item.lock = threading.RLock()


def _cached_properties() -> Iterable[Any]:
    for name, module in list(sys.modules.items()):
        if not name.startswith("arrowlog."):
            continue
        for kind in list(vars(module).values()):
            if isinstance(kind, type) and kind.__module__ == name:
                for item in vars(kind).values():
                    if isinstance(item, functools.cached_property):
                        yield item


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

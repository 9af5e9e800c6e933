"""Safe use of the engines and of locks in forked processes.

`fork` copies the memory of a process but only the calling thread. This breaks three things:

- polars runs its work on a thread pool. In a child of a process whose pool was running, the work is
  never done, the call blocks forever, and the pool cannot be restarted. `polars_is_stranded` tells
  whether this is so. Code that has an alternative uses it; every other use of polars raises
  `ForkedProcess` instead of blocking. For this, modules import `pl` from here, not from polars.
- A DuckDB connection joins its threads when it is destroyed. In a child they do not exist, and the
  join crashes with SIGSEGV. Connections opened before a fork are therefore never destroyed in the
  child, which opens its own.
- A lock held by another thread at the time of the fork is never released in the child, and the
  state it guards may be inconsistent. `ForkSafeLock` is free in the child and has that state
  discarded.

Arrow restarts its thread pools in a child, and stores handle their clients themselves. This module
is below all others except `config` and `errors`, because every layer uses one of the engines.

`import arrowlog` loads this module, because a fork is only noticed by hooks that were registered
before it. It loads no engine itself: polars is imported when an attribute of `pl` is first used.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from itertools import pairwise
from weakref import WeakMethod, ref

from arrowlog.errors import ForkedProcess

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from functools import cached_property as OnFirstUse  # noqa: N812 -- the same type
    from types import FrameType, ModuleType, TracebackType
    from typing import Any

    import polars as pl

__all__ = [
    "ForkSafeLock",
    "OnFirstUse",
    "keep_connection_alive",
    "pl",
    "polars_is_stranded",
    "require_polars",
]

_TASKS = "/proc/self/task"  # the threads of this process, on Linux
# The threads of polars' pool are named `polars-N`. polars has other threads, which are harmless.
_POOL_THREAD = b"polars"
# How the file names of the import system's frames begin.
_IMPORTING = ("<frozen importlib", importlib.__file__)
# A fork waits at most this long for imports of other threads to finish.
_IMPORT_SECONDS_MAX = 10.0
_OURS = os.path.dirname(__file__) + os.sep
_NEXT_STEP = (
    "Start worker processes with multiprocessing.get_context('spawn'), or fork before the parent"
    " uses arrowlog or polars."
)


class _Stranded:
    """Whether polars' pool is unusable in this process, and in a child forked from it."""

    now = False
    in_children = False


def polars_is_stranded() -> bool:
    """Whether this process was forked from one that had started polars' thread pool."""
    return _Stranded.now


def require_polars(what: str) -> None:
    """Raise `ForkedProcess` if polars cannot be used in this process.

    `what` is the operation that needs it, the subject of the message.
    """
    if _Stranded.now:
        raise ForkedProcess(
            f"{what} needs polars, whose threads were lost when this process was forked.",
            next=_NEXT_STEP,
        )


# Names of polars that use no thread: types, unevaluated expressions, and series made from arrays.
# Most methods of a series are evaluated as expressions, on the pool, and are not safe.
_THREADLESS = frozenset(
    {"Binary", "Boolean", "Decimal", "Float64", "Int8", "Int32", "Int64", "Null", "String", "UInt8"}
    | {"UInt64", "Unknown", "CompatLevel", "Expr", "LazyFrame", "Series", "exceptions", "int_range"}
)


class _GuardedPolars:
    """The polars module, imported on first use; where its pool is lost, only what needs none."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reference: functions that Spark sends to its workers refer to `pl`."""
        return _guarded_polars, ()

    def __getattr__(self, name: str) -> Any:
        if name == "_polars":
            import polars  # noqa: ICN001 -- `pl` is the guarded module for others

            self._polars = polars
            return polars
        if _Stranded.now and name not in _THREADLESS:
            if name in ("concat", "from_arrow"):
                return lambda given, **options: self._make_series(name, given, **options)
            require_polars("This call")
        return getattr(self._polars, name)

    def _make_series(self, name: str, given: Any, **options: Any) -> Any:
        """Make a series from an array or series. Tables are converted on the pool and refused."""
        import pyarrow as pa

        series = (self._polars.Series, pa.Array, pa.ChunkedArray)
        parts = given if name == "concat" else [given]
        if not all(isinstance(part, series) for part in parts):
            require_polars("This call")
        return getattr(self._polars, name)(given, **options)


def _guarded_polars() -> Any:
    return pl


if not TYPE_CHECKING:  # type checkers see the import of `pl` above
    pl = _GuardedPolars()


class ForkSafeLock:
    """A re-entrant lock that is free in a forked child, unless the forking thread itself holds it.

    If another thread held it, the state it guards may be inconsistent: `torn`, a method of the
    object that owns the lock, is called in the child to discard that state.
    """

    def __init__(self, torn: Callable[[], None]) -> None:
        """Create a lock.

        Args:
            torn: discards the guarded state. It runs inside the fork hook, so it must not take
                locks, do I/O or use an engine.
        """
        self._lock = threading.RLock()
        self._torn = WeakMethod(torn)
        _register(_LOCKS, self)

    def __enter__(self) -> None:
        """Acquire the lock."""
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock if another thread held it at the fork. Called in the child."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return
        self._lock = threading.RLock()
        torn = self._torn()
        if torn is not None:
            torn()


if not TYPE_CHECKING:

    class OnFirstUse:
        """A part of an object that is made when it is first used.

        Unlike `cached_property` before Python 3.12, it has no lock that a fork could leave held and
        that the threads of all objects share. Threads that come first at the same time each make
        the part; `setdefault` is atomic and gives all of them the same one.
        """

        def __init__(self, make: Callable[[Any], Any]) -> None:
            """Decorate the method that makes the part, which two threads may call at once."""
            self._make = make
            self.__doc__ = make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Learn the name under which the part is kept."""
            self._name = name

        def __get__(self, item: Any, owner: type | None = None) -> Any:
            """Make the part; from then on the attribute of the object hides this method."""
            if item is None:  # asked of the class
                return self
            return item.__dict__.setdefault(self._name, self._make(item))


def keep_connection_alive(connection: Any) -> None:
    """Ensure that a DuckDB connection is never destroyed in children of this process."""
    _register(_CONNECTIONS, connection)


# Weak references by identity. Not a WeakSet: another thread may add to it while a fork iterates.
_WeakRefs = dict[int, "ref[Any]"]
_LOCKS: _WeakRefs = {}
_CONNECTIONS: _WeakRefs = {}
_kept_alive: list[Any] = []  # connections, from before a fork until after it


def _register(registry: _WeakRefs, item: Any) -> None:
    key = id(item)
    registry[key] = ref(item, lambda _: registry.pop(key, None))


def _living(registry: _WeakRefs) -> list[Any]:
    items = [weak() for weak in list(registry.values())]
    return [item for item in items if item is not None]


def _pool_runs() -> bool:
    """Whether polars' thread pool is running; True where this cannot be determined."""
    try:
        tasks = os.listdir(_TASKS)
    except OSError:  # not Linux
        return True
    for task in tasks:
        try:
            with open(f"{_TASKS}/{task}/comm", "rb") as name:
                prefix, _, number = name.read().partition(b"-")
                if prefix == _POOL_THREAD and number[:1].isdigit():
                    return True
        except OSError:  # the thread has ended
            continue
    return False


def _stacks_of_others() -> Iterator[list[str]]:
    """Iterate over the stacks of the other threads, as source files, innermost call first."""
    mine = threading.get_ident()
    for thread, frame in sys._current_frames().items():  # noqa: SLF001 -- documented, in spite of its name
        if thread == mine:
            continue
        files: list[str] = []
        current: FrameType | None = frame
        while current is not None:
            files.append(current.f_code.co_filename)
            current = current.f_back
        yield files


def _others_in_polars(polars: ModuleType) -> bool:
    folder = os.path.dirname(polars.__file__ or "") + os.sep
    return any(file.startswith(folder) for files in _stacks_of_others() for file in files)


def _others_import() -> bool:
    """Whether another thread is inside an import that arrowlog code has begun.

    That is an engine, or a module of arrowlog behind a public name. Imports that others have begun
    do not count: a program may run forever inside an import.
    """
    return any(
        inner.startswith(_IMPORTING) and outer.startswith(_OURS)
        for files in _stacks_of_others()
        for inner, outer in pairwise(files)
    )


def _await_imports() -> None:
    """Wait until arrowlog imports nothing in other threads.

    A module that is partially imported at the fork stays so in the child, with its lock held.
    """
    deadline = time.monotonic() + _IMPORT_SECONDS_MAX
    while _others_import() and time.monotonic() < deadline:
        time.sleep(0.001)


def _before() -> None:
    _await_imports()
    # Objects that only other threads refer to are destroyed in the child before any hook runs
    # there. Hence the references are taken here, before the fork.
    _kept_alive.extend(_living(_CONNECTIONS))
    if _kept_alive:
        import ctypes  # noqa: F401 -- the child needs it, and should not import
    polars = sys.modules.get("polars")
    # A thread that is inside polars may be about to start the pool.
    _Stranded.in_children = _Stranded.now or (
        polars is not None and (_pool_runs() or _others_in_polars(polars))
    )


def _in_parent() -> None:
    _kept_alive.clear()


def _in_child() -> None:
    _Stranded.now = _Stranded.in_children
    for connection in _kept_alive:  # an extra reference, so that it is never destroyed
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _kept_alive.clear()
    _CONNECTIONS.clear()
    for lock in _living(_LOCKS):
        lock.renew()
    _renew_property_locks()


def _renew_property_locks() -> None:
    """Replace the locks of cached properties: before Python 3.12, each has one per class."""
    for item in _cached_properties():
        if hasattr(item, "lock"):
            item.lock = threading.RLock()


def _cached_properties() -> Iterable[Any]:
    functools = sys.modules.get("functools")
    if functools is None:
        return
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

"""A progress bar: one line on a terminal, redrawn in place and erased at the end."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 30  # characters
_ERASE_LINE = "\r\x1b[K"


@contextmanager
def progress_bar(
    label: str, *, at_once: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that draws a progress bar, or None if standard error is no terminal.

    The bar appears with the first call that reports unfinished work, so that quick work shows none.
    With `at_once` it appears before that: for work whose first step may take long. The callback may
    be called by several threads.
    """
    if not sys.stderr.isatty():
        yield None
        return
    line = _ProgressLine(label, sys.stderr)
    if at_once:
        line.draw(f"{label} …")
    try:
        yield line.report
    finally:
        line.erase()


class _ProgressLine:
    """The line of one bar. It is redrawn a few times per second, however often work reports."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label = label
        self._stream = stream
        self._lock = threading.Lock()
        self._drawn_at = float("-inf")
        self._visible = False

    def report(self, done: int, total: int) -> None:
        """Show that `done` of `total` units are finished."""
        with self._lock:
            now = time.monotonic()
            if (done >= total and not self._visible) or now < self._drawn_at + _REDRAW_SECONDS:
                return
            self._drawn_at = now
            self.draw(format_progress(self._label, done, total))

    def draw(self, text: str) -> None:
        """Replace the line by a text, cut to the width of the terminal."""
        room = shutil.get_terminal_size().columns - 1
        self._stream.write(f"{_ERASE_LINE}{text[:room]}")
        self._stream.flush()
        self._visible = True

    def erase(self) -> None:
        """Remove the line, if it was drawn."""
        with self._lock:
            if self._visible:
                self._stream.write(_ERASE_LINE)
                self._stream.flush()


def format_progress(label: str, done: int, total: int) -> str:
    """Format the state of some work as a line.

    >>> format_progress("compacting", 3, 12)
    'compacting [#######.......................]  25%  3 of 12'
    """
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    filled = int(share * _BAR_WIDTH)
    bar = "#" * filled + "." * (_BAR_WIDTH - filled)
    return f"{label} [{bar}] {int(share * 100):3d}%  {done:,} of {total:,}"

"""A report as a value: its facts, its page, and the file that it is saved to."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from uuid import uuid4

from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import OnFirstUse
from arrowlog.report.page import GENERATOR, render_page

if TYPE_CHECKING:
    from arrowlog.report.facts import ReportFacts

_HEAD_BYTES = 2048  # the mark of a report is in the head of its page
_FRAME_HEIGHT = 720  # pixels, in a notebook


@dataclass(frozen=True)
class TableReport:
    """A report on a table: `html` is the page, `save(path)` writes it, `facts` has the numbers.

    In a notebook, it shows itself.
    """

    facts: ReportFacts

    @OnFirstUse
    def html(self) -> str:
        """The page: one HTML document that refers to nothing outside."""
        return render_page(self.facts)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the page to a file, atomically, and return the path.

        A report that is there is replaced; any other file is refused.

        Raises:
            InvalidRequest: the file exists and is not a report, or cannot be written.
        """
        target = check_target(path)
        data = self.html.encode("utf-8", "replace")
        try:
            _write(target, data)
        except OSError as error:
            raise InvalidRequest(
                f"The report cannot be written to {os.fspath(path)}: {error.strerror}.",
                next="Give a path in a folder in which you may create files.",
            ) from None
        return os.fspath(path)

    def to_json(self) -> str:
        """Return the facts as one JSON document; times are ISO 8601."""
        import msgspec

        return msgspec.json.format(msgspec.json.encode(self.facts), indent=2).decode()

    def __repr__(self) -> str:
        """Return the table and its health."""
        health = self.facts.health
        return f"TableReport({self.facts.name!r}, {health.worst}, {health.total} findings)"

    def _repr_html_(self) -> str:
        """Return a frame with the page: its styles and the notebook's stay apart."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" width="100%"'
            f' height="{_FRAME_HEIGHT}" style="border:0" title="Table report"></iframe>'
        )


def check_target(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file that a report may be written to.

    Raises `InvalidRequest` if it is a URL, a folder or a file that is no report, or in no folder.
    """
    given = os.fspath(path)
    if "://" in given:
        raise InvalidRequest(
            f"{given} is a URL; a report is written to a local file.",
            next="Give a path, and copy the file where you want it.",
        )
    target = os.path.realpath(given)  # a link stays a link
    if os.path.isdir(target):
        raise InvalidRequest(f"{given} is a folder.", next="Give the name of a file in it.")
    if not os.path.isdir(os.path.dirname(target)):
        raise InvalidRequest(
            f"The folder of {given} does not exist.", next="Create it, or give another path."
        )
    if os.path.isfile(target) and os.path.getsize(target) and not _is_report(target):
        raise InvalidRequest(
            f"{given} exists and is not a report of arrowlog.",
            next="Give another path; only reports are replaced.",
        )
    return target


def _is_report(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return GENERATOR.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False


def _write(target: str, data: bytes) -> None:
    """Replace a file atomically. A device or a pipe, such as /dev/stdout, is written to."""
    mode = 0o666  # less the umask
    if os.path.lexists(target):
        status = os.stat(target)
        if not stat.S_ISREG(status.st_mode):
            with open(target, "wb") as out:
                out.write(data)
            return
        mode = stat.S_IMODE(status.st_mode)
    temporary = f"{target}.{uuid4().hex}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as out:
            out.write(data)
        os.replace(temporary, target)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise

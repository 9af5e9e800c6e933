"""A report as a value: its facts, its page, and the file that it is saved to.

The page is one HTML document with its styles and its script, and nothing outside. A content
security policy in the page allows exactly that style sheet and that script, by their hashes, and no
request to any address: a name in a log cannot become code, and opening a report sends nothing.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING
from uuid import uuid4

from arrowlog.config import is_text, shorten
from arrowlog.display import format_bytes
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import OnFirstUse
from arrowlog.report import sections
from arrowlog.report.markup import name, text
from arrowlog.report.sections import format_age, format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.report.facts import ReportFacts

GENERATOR = '<meta name="generator" content="arrowlog table report">'
_SLOT = re.compile(r"<!--slot:([a-z-]+)-->")
_FORMATS = {"indextables": "IndexTables", "delta": "Delta"}
_ICONS = {
    "healthy": "M5 12.5l4.5 4.5L19 7.5",
    "info": "M12 11v6M12 7v.5",
    "warning": "M12 6v7M12 17v.5",
    "error": "M7 7l10 10M17 7L7 17",
}
# Sections in their order: the anchor, the title, and what makes their content.
_SECTIONS: tuple[tuple[str, str, Callable[[ReportFacts], str]], ...] = (
    ("health", "Health", sections.health),
    ("growth", "Growth and churn", sections.growth),
    ("sizes", "File sizes", sections.file_sizes),
    ("partitions", "Partitions", sections.partitions),
    ("pruning", "Pruning", sections.pruning),
    ("statistics", "Statistics", sections.statistics),
    ("checkpoints", "Checkpoints", sections.checkpoints),
    ("retention", "Retention", sections.retention),
    ("commits", "Last commits", sections.commits),
)


@cache
def _asset(file: str) -> str:
    return resources.files("arrowlog.report").joinpath("assets", file).read_text("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def render_page(facts: ReportFacts) -> str:
    """Return the page of a report."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
        " base-uri 'none'; form-action 'none'"
    )
    body = "".join(
        f'<section class="card" id="{anchor}" aria-labelledby="{anchor}-h">'
        f'<h2 id="{anchor}-h">{title}</h2>{make(facts)}</section>'
        for anchor, title, make in _SECTIONS
    )
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title, _ in _SECTIONS)
    slots = {
        "generator": GENERATOR,
        "policy": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "title": f"<title>{text(facts.name)}: table report</title>",
        "style": f"<style>{style}</style>",
        "heading": _heading(facts),
        "status": _status(facts),
        "tiles": _tiles(facts),
        "links": links,
        "sections": body,
        "footer": _footer(facts),
        "script": f"<script>{script}</script>",
    }
    # One pass over the template: what is filled in is not searched for slots again.
    return _SLOT.sub(lambda match: slots[match[1]], _asset("page.html"))


def _heading(facts: ReportFacts) -> str:
    parts = [f'<span class="badge">{text(_FORMATS.get(facts.format, facts.format))}</span>']
    if facts.summary is not None:
        summary = facts.summary
        parts.append(f"version {summary.version:,}")
        parts.append(f"protocol {summary.reader_version}/{summary.writer_version}")
    parts.append(f"as of {format_time(facts.generated)}")
    where = f'<p class="where">{name(facts.location)}</p>' if facts.location else ""
    line = '<span class="dot" aria-hidden="true">·</span>'.join(
        f"<span>{part}</span>" for part in parts
    )
    return f'<h1>{name(facts.name)}</h1>{where}<p class="facts">{line}</p>'


def _status(facts: ReportFacts) -> str:
    health = facts.health
    titles = {
        "healthy": "Healthy",
        "info": "Healthy, with notes",
        "warning": "Needs attention",
        "error": "Cannot be read" if facts.summary is None else "Has errors",
    }
    detail = health.counts.capitalize() if health.total else "The doctor found no problem."
    if facts.unavailable:
        count = len(facts.unavailable)
        detail += f" · {count} {'section' if count == 1 else 'sections'} could not be computed"
    return (
        f'<a class="status {health.worst}" href="#health">'
        '<svg width="24" height="24" viewBox="0 0 24 24" aria-hidden="true" focusable="false">'
        f'<circle cx="12" cy="12" r="11"/><path d="{_ICONS[health.worst]}"/></svg>'
        f"<span><strong>{titles[health.worst]}</strong><span>{text(detail)}</span></span></a>"
    )


def _tile(label: str, value: str, note: str = "") -> str:
    return (
        f'<li><span class="label">{label}</span><span class="value">{value}</span>'
        f'<span class="note">{note}</span></li>'
    )


def _tiles(facts: ReportFacts) -> str:
    tiles = []
    summary = facts.summary
    if summary is not None:
        tiles.append(_tile("Size", format_bytes(summary.size_bytes), _mean_size(facts)))
        tiles.append(_tile("Files", f"{summary.num_files:,}", _partition_note(facts)))
        columns = f"{summary.num_columns:,} column{'' if summary.num_columns == 1 else 's'}"
        if summary.num_records is None:
            tiles.append(_tile("Rows", "unknown", "some files have no row count"))
        else:
            tiles.append(_tile("Rows", f"{summary.num_records:,}", columns))
    if facts.commits:
        last = facts.commits[0]
        if last.time is not None:
            age = format_age((facts.generated - last.time).total_seconds())
            operation = name(last.operation) if last.operation else "no operation"
            tiles.append(_tile("Last commit", age, operation))
    if facts.checkpoints is not None:
        lag = facts.checkpoints.commits_since
        base = facts.checkpoints.version
        commits = f"commit{'' if lag == 1 else 's'}"
        note = f"{commits}, no checkpoint" if base is None else f"{commits} after version {base:,}"
        tiles.append(_tile("Checkpoint lag", f"{lag:,}", note))
    if facts.columns is not None:
        counted = [each for each in facts.columns.items if each.verdict != "unsupported"]
        good = sum(each.verdict == "prunes" for each in counted)
        tiles.append(_tile("Columns that prune", f"{good:,} of {len(counted):,}", "in a lookup"))
    return f'<ul class="tiles">{"".join(tiles)}</ul>' if tiles else ""


def _mean_size(facts: ReportFacts) -> str:
    sizes = facts.file_sizes
    return "" if sizes is None else f"{format_bytes(sizes.mean)} per file"


def _partition_note(facts: ReportFacts) -> str:
    if facts.partitions is not None:
        total = facts.partitions.total
        return f"in {total:,} partition{'' if total == 1 else 's'}"
    assert facts.summary is not None
    return "partitioned, no files" if facts.summary.partition_columns else "not partitioned"


def _footer(facts: ReportFacts) -> str:
    paths = (
        "It shows the address of the table and paths of files."
        if facts.with_paths
        else "Paths of files are left out, or are hashes such as <code>file-3fa2c1d0</code>."
    )
    return (
        f"<p>Made by arrowlog {text(facts.arrowlog_version)} on {format_time(facts.generated)} from"
        " the transaction log of the table. This file works offline and sends nothing. It has names"
        " of columns, values of partitions and operations; no rows, no credentials, no storage"
        f" options. {paths}</p>"
    )


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
    if not is_text(given) or "\0" in given:
        raise InvalidRequest(
            f"{shorten(given)} is no path of a file.", next="Give a path of valid Unicode."
        )
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

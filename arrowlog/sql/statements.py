"""Statements in SQL that keep a table well: text in, what is asked for out. Pure.

REPAIR INDEXFILES TRANSACTION LOG 's' AT LOCATION 't'
DESCRIBE INDEXTABLES TRANSACTION LOG 'x' [INCLUDE ALL]
DESCRIBE INDEXTABLES STATE 'x'
CHECKPOINT | COMPACT INDEXTABLES 'x'
TRUNCATE INDEXTABLES TIME TRAVEL 'x' [DRY RUN]
DROP INDEXTABLES PARTITIONS FROM 'x' WHERE …
PURGE INDEXTABLE 'x' [OLDER THAN n DAYS|HOURS] [TRANSACTION LOG RETENTION n DAYS|HOURS] [DRY RUN]
MERGE SPLITS 'x' [WHERE …] [TARGET SIZE 100M] [MAX DEST SPLITS n] [MAX SOURCE SPLITS PER MERGE n]
INVALIDATE INDEXTABLES TRANSACTION LOG CACHE [FOR 'x']

Words are in any case; TANTIVY4SPARK is another word for INDEXTABLES. Comments, a semicolon at the
end, both kinds of quotes, and addresses in backquotes are understood. An error points at the word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from arrowlog.config import parse_bytes
from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<name>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b"}
_BRAND = ("INDEXTABLES", "TANTIVY4SPARK")
_HOUR_MS = 3_600_000
_UNITS = {"DAYS": 24 * _HOUR_MS, "DAY": 24 * _HOUR_MS, "HOURS": _HOUR_MS, "HOUR": _HOUR_MS}
_OPENINGS = (
    *(f"{verb} {brand}" for verb in ("CHECKPOINT", "COMPACT", "TRUNCATE") for brand in _BRAND),
    *(f"{verb} {brand}" for verb in ("DESCRIBE", "DROP", "INVALIDATE") for brand in _BRAND),
    "REPAIR INDEXFILES",
    "PURGE INDEXTABLE",
    "MERGE SPLITS",
)
_COUNT_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement asks for.

    `kind` is `repair`, `describe-log`, `describe-state`, `checkpoint`, `truncate`, `drop`, `purge`,
    `merge` or `invalidate`; `path` is the table's address, or that of the log to be repaired.
    """

    kind: str
    path: str | None = None
    target: str | None = None
    where: str | None = None
    include_all: bool = False
    dry_run: bool = False
    older_than_ms: int | None = None
    log_retention_ms: int | None = None
    target_size: int | None = None
    max_groups: int | None = None
    max_files_per_group: int | None = None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.text)

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def _tokens(text: str) -> list[_Token]:
    """The words of a text, without spaces and comments."""
    found = [
        _Token(str(match.lastgroup), match.group(), match.start())
        for match in _TOKEN.finditer(text)
        if match.lastgroup != "space"
    ]
    while found and found[-1].text == ";":
        found.pop()
    return found


def is_statement(text: str) -> bool:
    r"""Whether a text is one of these statements, right or not: by its first two words.

    >>> is_statement("-- mend it\nrepair indexfiles transaction log 'a'"), is_statement("SELECT 1")
    (True, False)
    """
    words = _tokens(text)[:3]
    opening = " ".join(token.upper for token in words[:2])
    # A table may have the name: DESCRIBE indextables, DROP …: those have other words behind them.
    return opening in _OPENINGS and len(words) > 2


def parse(text: str) -> Statement:
    """What a statement asks for; `InvalidRequest` that points at the word which does not fit."""
    words = _Words(text, _tokens(text))
    if not words.left:
        words.fail("The statement is empty.")
    form = _FORMS.get(words.peek().upper)
    if form is None:
        words.fail(f"No statement begins with {words.peek().text}.", f"Known are {_KNOWN}.")
    statement = form(words)
    if words.left:
        words.fail(f"The statement should end here, and goes on with {words.peek().text}.")
    return statement


class _Words:
    """The words of a statement, read from left to right."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    @property
    def left(self) -> bool:
        return self.at < len(self.tokens)

    def peek(self, ahead: int = 0) -> _Token:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else _Token("end", "", len(self.text))

    def take(self) -> _Token:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, *options: str) -> str:
        """The next word, which must be one of these."""
        token = self.peek()
        if token.upper not in options:
            found = f"found {token.text}" if token.text else "the statement ends"
            self.fail(f"Expected {' or '.join(options)}, {found}.")
        return self.take().upper

    def phrase(self, *words: str) -> None:
        for word in words:
            self.expect(word)

    def brand(self) -> None:
        self.expect(*_BRAND)

    def comes(self, *words: str) -> bool:
        """Whether these words are next; then they are read."""
        if any(self.peek(n).upper != word for n, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def path(self, what: str = "the address of the table") -> str:
        """An address in quotes, or in backquotes as Spark has it."""
        token = self.peek()
        if token.kind == "text":
            found = _plain(self.take().text)
            if not found.strip():
                self.at -= 1
                self.fail(f"Here {what} is empty.")
            return found
        if token.kind == "word" and self.peek(1).text == "." and self.peek(2).kind == "name":
            self.at += 2
            token = self.peek()
        if token.kind == "name" and "/" in token.text:
            return self.take().text[1:-1].replace("``", "`")
        if token.kind in ("word", "name"):
            self.fail(
                f"{token.text} is a table of a catalog, and there is none here.",
                f"Give {what} in quotes: '/data/table' or 's3://bucket/table'.",
            )
        self.fail(f"Expected {what} in quotes.")
        return None

    def count(self, least: int = 0) -> int:
        token = self.peek()
        if not token.text.isascii() or not token.text.isdigit():
            self.fail("Expected a whole number.")
        number = int(token.text[:20])
        if not least <= number <= _COUNT_MAX:
            self.fail(f"Expected a number from {least} to {_COUNT_MAX}.")
        self.at += 1
        return number

    def span(self) -> int:
        """A number of days or hours, in milliseconds."""
        return self.count() * _UNITS[self.expect(*_UNITS)]

    def size(self) -> int:
        token = self.peek()
        try:
            found = parse_bytes(_plain(token.text) if token.kind == "text" else token.text)
        except ValueError as error:
            self.fail(f"Expected {error}.")
        self.at += 1
        return found

    def where(self, *ends: tuple[str, ...]) -> str:
        """A condition as it stands, up to one of the phrases or the end."""
        first = self.peek()
        depth, last = 0, first
        while self.left:
            token = self.peek()
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            ahead = [self.peek(n).upper for n in range(3)]
            if depth == 0 and any(ahead[: len(end)] == list(end) for end in ends):
                break
            last = self.take()
        condition = self.text[first.start : last.stop].strip()
        if first.kind == "end" or last.stop <= first.start or first is self.peek():
            self.fail("Expected a condition after WHERE.")
        return condition

    def fail(self, what: str, further: str = "") -> NoReturn:
        token = self.peek()
        before = self.text[: token.start]
        line, column = before.count("\n") + 1, token.start - (before.rfind("\n") + 1)
        shown = self.text.split("\n")[line - 1]
        width = max(1, min(len(token.text), len(shown) - column))
        raise InvalidRequest(
            f"Line {line}, column {column + 1}: {what}\n  {shown}\n  {' ' * column}{'^' * width}\n",
            next=further,
        )


def _plain(quoted: str) -> str:
    """What stands between quotes."""
    mark, inner = quoted[0], quoted[1:-1]
    parts = re.split(r"(\\.|'')" if mark == "'" else r'(\\.|"")', inner, flags=re.DOTALL)
    return "".join(_unescaped(part) for part in parts)


def _unescaped(part: str) -> str:
    if part in ("''", '""'):
        return part[0]
    if len(part) == 2 and part[0] == "\\":
        return _ESCAPED.get(part[1], part[1])
    return part


def _repair(words: _Words) -> Statement:
    words.phrase("REPAIR", "INDEXFILES", "TRANSACTION", "LOG")
    source = words.path("the address of the log")
    words.phrase("AT", "LOCATION")
    return Statement("repair", source, words.path("the address of the new log"))


def _describe(words: _Words) -> Statement:
    words.expect("DESCRIBE")
    words.brand()
    if words.expect("TRANSACTION", "STATE") == "STATE":
        return Statement("describe-state", words.path())
    words.expect("LOG")
    path = words.path()
    whole = words.comes("INCLUDE", "ALL")
    return Statement("describe-log", path, include_all=whole)


def _checkpoint(words: _Words) -> Statement:
    words.expect("CHECKPOINT", "COMPACT")
    words.brand()
    return Statement("checkpoint", words.path())


def _truncate(words: _Words) -> Statement:
    words.expect("TRUNCATE")
    words.brand()
    words.phrase("TIME", "TRAVEL")
    path = words.path()
    return Statement("truncate", path, dry_run=words.comes("DRY", "RUN"))


def _drop(words: _Words) -> Statement:
    words.expect("DROP")
    words.brand()
    words.phrase("PARTITIONS", "FROM")
    path = words.path()
    words.expect("WHERE")
    return Statement("drop", path, where=words.where())


def _purge(words: _Words) -> Statement:
    words.phrase("PURGE", "INDEXTABLE")
    found = Statement("purge", words.path())
    if words.comes("OLDER"):
        words.expect("THAN")
        found = replace(found, older_than_ms=words.span())
    if words.comes("TRANSACTION"):
        words.phrase("LOG", "RETENTION")
        found = replace(found, log_retention_ms=words.span())
    if words.comes("DRY"):
        words.expect("RUN")
        found = replace(found, dry_run=True)
    return found


def _merge(words: _Words) -> Statement:
    words.phrase("MERGE", "SPLITS")
    found = Statement("merge", words.path())
    if words.comes("WHERE"):
        ends = (("TARGET", "SIZE"), ("MAX", "DEST"), ("MAX", "SOURCE"), ("MAX", "GROUPS"))
        found = replace(found, where=words.where(*ends))
    if words.comes("TARGET"):
        words.expect("SIZE")
        found = replace(found, target_size=words.size())
    for _ in range(2):
        if not words.comes("MAX"):
            break
        word = words.expect("DEST", "SOURCE", "GROUPS")
        if word == "SOURCE":
            words.phrase("SPLITS", "PER", "MERGE")
            found = replace(found, max_files_per_group=words.count(2))
            continue
        if word == "DEST":
            words.expect("SPLITS")
        found = replace(found, max_groups=words.count(1))
    return found


def _invalidate(words: _Words) -> Statement:
    words.expect("INVALIDATE")
    words.brand()
    words.phrase("TRANSACTION", "LOG", "CACHE")
    return Statement("invalidate", words.path() if words.comes("FOR") else None)


_FORMS: dict[str, Callable[[_Words], Statement]] = {
    "REPAIR": _repair,
    "DESCRIBE": _describe,
    "CHECKPOINT": _checkpoint,
    "COMPACT": _checkpoint,
    "TRUNCATE": _truncate,
    "DROP": _drop,
    "PURGE": _purge,
    "MERGE": _merge,
    "INVALIDATE": _invalidate,
}
_KNOWN = ", ".join(_FORMS)

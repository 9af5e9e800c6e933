"""Parser for the maintenance statements of IndexTables SQL. Pure.

    REPAIR INDEXFILES TRANSACTION LOG 's' AT LOCATION 't'
    DESCRIBE INDEXTABLES TRANSACTION LOG 'x' [INCLUDE ALL]
    DESCRIBE INDEXTABLES STATE 'x'
    CHECKPOINT | COMPACT INDEXTABLES 'x'
    TRUNCATE INDEXTABLES TIME TRAVEL 'x' [DRY RUN]
    DROP INDEXTABLES PARTITIONS FROM 'x' WHERE …
    PURGE INDEXTABLE 'x' [OLDER THAN n DAYS|HOURS]
        [TRANSACTION LOG RETENTION n DAYS|HOURS] [DRY RUN]
    MERGE SPLITS 'x' [WHERE …] [TARGET SIZE 100M]
        [MAX DEST SPLITS n] [MAX SOURCE SPLITS PER MERGE n]
    INVALIDATE INDEXTABLES TRANSACTION LOG CACHE [FOR 'x']

Keywords are case-insensitive. TANTIVY4SPARK is a synonym of INDEXTABLES, and MAX GROUPS of MAX DEST
SPLITS. Comments, trailing semicolons, single and double quotes, and paths in backquotes are
accepted. Every error names line and column and marks the offending word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from arrowlog.config import parse_argument, parse_bytes, parse_text
from arrowlog.errors import InvalidRequest
from arrowlog.predicate import STATEMENT_TOKENS, tokenize, unquote_identifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrowlog.predicate import Token

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b"}
_PRODUCT = ("INDEXTABLES", "TANTIVY4SPARK")
_HOUR_MS = 3_600_000
_UNITS = {"DAYS": 24 * _HOUR_MS, "DAY": 24 * _HOUR_MS, "HOURS": _HOUR_MS, "HOUR": _HOUR_MS}
# The first two words by which `is_statement` recognizes a statement.
_OPENINGS = (
    *(
        f"{verb} {product}"
        for verb in ("CHECKPOINT", "COMPACT", "TRUNCATE")
        for product in _PRODUCT
    ),
    *(f"{verb} {product}" for verb in ("DESCRIBE", "DROP", "INVALIDATE") for product in _PRODUCT),
    "REPAIR INDEXFILES",
    "PURGE INDEXTABLE",
    "MERGE SPLITS",
)
_MAX_COUNT = 1 << 31  # also keeps a number of days, in milliseconds, within 64 bits


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed statement.

    `kind` is `repair`, `describe-log`, `describe-state`, `checkpoint`, `truncate`, `drop`, `purge`,
    `merge` or `invalidate`. `path` is the table, for `repair` the damaged log, and None for
    `invalidate` of all tables. The other fields are None or False if the statement omits them.
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


def _tokens(text: str) -> list[Token]:
    """Split a text into tokens, without the semicolons that precede its end."""
    *tokens, end = tokenize(text, STATEMENT_TOKENS)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    return [*tokens, end]


def _keyword(token: Token) -> str:
    """The upper-case word of a token; empty for any other kind."""
    return token.text.upper() if token.kind == "word" else ""


def is_statement(text: str) -> bool:
    r"""Return whether a text begins like one of these statements, valid or not.

    >>> is_statement("-- mend it\nrepair indexfiles transaction log 'a'"), is_statement("SELECT 1")
    (True, False)
    """
    tokens = _tokens(text)
    opening = " ".join(map(_keyword, tokens[:2]))
    # Two words alone, as in `DESCRIBE indextables`, are Spark's own statement about a table of that
    # name.
    return opening in _OPENINGS and tokens[2].kind != "end"


def parse_statement(text: str) -> Statement:
    """Parse one statement. Raises `InvalidRequest` that marks the word that does not fit."""
    tokens = _TokenStream(parse_argument(parse_text, text, "The statement"))
    if not tokens.has_more:
        tokens.fail("The statement is empty.")
    parser = _PARSERS.get(_keyword(tokens.peek()))
    if parser is None:
        first = tokens.peek().text
        tokens.fail(f"No statement begins with {first}.", f"Statements begin with {_FIRST_WORDS}.")
    statement = parser(tokens)
    if tokens.has_more:
        tokens.fail(f"Expected the end of the statement, found {tokens.peek().text}.")
    return statement


class _TokenStream:
    """The tokens of a statement, consumed from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0

    @property
    def has_more(self) -> bool:
        return self.peek().kind != "end"

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, *options: str) -> str:
        """Consume and return the next keyword, which must be one of `options`."""
        token = self.peek()
        if _keyword(token) not in options:
            actual = f"found {token.text}" if token.text else "the statement ends"
            self.fail(f"Expected {' or '.join(options)}, {actual}.")
        return _keyword(self.take())

    def phrase(self, *words: str) -> None:
        for word in words:
            self.expect(word)

    def product(self) -> None:
        self.expect(*_PRODUCT)

    def accept(self, *words: str) -> bool:
        """Consume these keywords if they come next; return whether they did."""
        if any(_keyword(self.peek(n)) != word for n, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def path(self, what: str = "the path of the table") -> str:
        """Consume a path in quotes, or in backquotes with or without a format as in Spark SQL.

        A name without a slash is a catalog table, which is not supported.
        """
        token = self.peek()
        if token.kind == "text":
            path = _unquote(self.take().text)
            if not path.strip():
                self.at -= 1
                self.fail(f"Here {what} is empty.")
            return path
        if token.kind == "word" and self.peek(1).text == "." and self.peek(2).kind == "quoted":
            self.at += 2
            token = self.peek()
        if token.kind == "quoted" and "/" in token.text:
            return unquote_identifier(self.take())
        if token.kind in ("word", "quoted"):
            self.fail(
                f"{token.text} is the name of a catalog table, which is not supported here.",
                f"Give {what} in quotes: '/data/table' or 's3://bucket/table'.",
            )
        self.fail(f"Expected {what} in quotes.")
        return None

    def count(self, minimum: int = 0) -> int:
        token = self.peek()
        if not token.text.isascii() or not token.text.isdigit():
            self.fail("Expected a whole number.")
        # int() raises on thousands of digits; 20 significant ones are enough to see that a number
        # is too large.
        number = int(token.text.lstrip("0")[:20] or "0")
        if not minimum <= number <= _MAX_COUNT:
            self.fail(f"Expected a number from {minimum} to {_MAX_COUNT}.")
        self.at += 1
        return number

    def duration(self) -> int:
        """Consume a number of days or hours; return milliseconds."""
        return self.count() * _UNITS[self.expect(*_UNITS)]

    def size(self) -> int:
        token = self.peek()
        try:
            size = parse_bytes(_unquote(token.text) if token.kind == "text" else token.text)
        except ValueError as error:
            self.fail(f"Expected {error}.")
        self.at += 1
        return size

    def where(self, *ends: tuple[str, ...]) -> str:
        """Consume a predicate up to one of the phrases `ends` or the end; return its text.

        A phrase inside parentheses does not end the predicate.
        """
        first = self.peek()
        depth, last = 0, first
        while self.has_more:
            token = self.peek()
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            ahead = [_keyword(self.peek(n)) for n in range(3)]
            if depth == 0 and any(ahead[: len(end)] == list(end) for end in ends):
                break
            last = self.take()
        predicate = self.text[first.start : last.stop].strip()
        if first.kind == "end" or last.stop <= first.start or first is self.peek():
            self.fail("Expected a predicate after WHERE.")
        return predicate

    def fail(self, what: str, hint: str = "") -> NoReturn:
        """Raise `InvalidRequest` with the current line and carets under the current token."""
        token = self.peek()
        before = self.text[: token.start]
        line, column = before.count("\n") + 1, token.start - (before.rfind("\n") + 1)
        shown = self.text.split("\n")[line - 1]
        width = max(1, min(len(token.text), len(shown) - column))
        raise InvalidRequest(
            f"Line {line}, column {column + 1}: {what}\n  {shown}\n  {' ' * column}{'^' * width}\n",
            next=hint,
        )


def _unquote(literal: str) -> str:
    """Return the text of a string literal: backslash escapes and doubled quotes are resolved."""
    quote, inner = literal[0], literal[1:-1]
    parts = re.split(r"(\\.|'')" if quote == "'" else r'(\\.|"")', inner, flags=re.DOTALL)
    return "".join(_unescape(part) for part in parts)


def _unescape(part: str) -> str:
    if part in ("''", '""'):
        return part[0]
    if len(part) == 2 and part[0] == "\\":
        return _ESCAPES.get(part[1], part[1])
    return part


def _repair(tokens: _TokenStream) -> Statement:
    tokens.phrase("REPAIR", "INDEXFILES", "TRANSACTION", "LOG")
    source = tokens.path("the path of the log")
    tokens.phrase("AT", "LOCATION")
    return Statement("repair", source, tokens.path("the path of the new log"))


def _describe(tokens: _TokenStream) -> Statement:
    tokens.expect("DESCRIBE")
    tokens.product()
    if tokens.expect("TRANSACTION", "STATE") == "STATE":
        return Statement("describe-state", tokens.path())
    tokens.expect("LOG")
    path = tokens.path()
    include_all = tokens.accept("INCLUDE", "ALL")
    return Statement("describe-log", path, include_all=include_all)


def _checkpoint(tokens: _TokenStream) -> Statement:
    tokens.expect("CHECKPOINT", "COMPACT")
    tokens.product()
    return Statement("checkpoint", tokens.path())


def _truncate(tokens: _TokenStream) -> Statement:
    tokens.expect("TRUNCATE")
    tokens.product()
    tokens.phrase("TIME", "TRAVEL")
    path = tokens.path()
    return Statement("truncate", path, dry_run=tokens.accept("DRY", "RUN"))


def _drop(tokens: _TokenStream) -> Statement:
    tokens.expect("DROP")
    tokens.product()
    tokens.phrase("PARTITIONS", "FROM")
    path = tokens.path()
    tokens.expect("WHERE")
    return Statement("drop", path, where=tokens.where())


def _purge(tokens: _TokenStream) -> Statement:
    tokens.phrase("PURGE", "INDEXTABLE")
    statement = Statement("purge", tokens.path())
    if tokens.accept("OLDER"):
        tokens.expect("THAN")
        statement = replace(statement, older_than_ms=tokens.duration())
    if tokens.accept("TRANSACTION"):
        tokens.phrase("LOG", "RETENTION")
        statement = replace(statement, log_retention_ms=tokens.duration())
    if tokens.accept("DRY"):
        tokens.expect("RUN")
        statement = replace(statement, dry_run=True)
    return statement


def _merge(tokens: _TokenStream) -> Statement:
    tokens.phrase("MERGE", "SPLITS")
    statement = Statement("merge", tokens.path())
    if tokens.accept("WHERE"):
        ends = (("TARGET", "SIZE"), ("MAX", "DEST"), ("MAX", "SOURCE"), ("MAX", "GROUPS"))
        statement = replace(statement, where=tokens.where(*ends))
    if tokens.accept("TARGET"):
        tokens.expect("SIZE")
        statement = replace(statement, target_size=tokens.size())
    options = ["DEST", "GROUPS", "SOURCE"]  # those that have not been given yet
    while options and tokens.accept("MAX"):
        word = tokens.expect(*options)
        options = [other for other in options if (other == "SOURCE") is not (word == "SOURCE")]
        if word == "SOURCE":
            tokens.phrase("SPLITS", "PER", "MERGE")
            statement = replace(statement, max_files_per_group=tokens.count(2))
            continue
        if word == "DEST":
            tokens.expect("SPLITS")
        statement = replace(statement, max_groups=tokens.count(1))
    return statement


def _invalidate(tokens: _TokenStream) -> Statement:
    tokens.expect("INVALIDATE")
    tokens.product()
    tokens.phrase("TRANSACTION", "LOG", "CACHE")
    return Statement("invalidate", tokens.path() if tokens.accept("FOR") else None)


_PARSERS: dict[str, Callable[[_TokenStream], Statement]] = {
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
_FIRST_WORDS = ", ".join(_PARSERS)

"""The query language of `indexquery`: a stated subset, parsed here, and its syntax tree. Pure.

    word                     one term; a field with a tokenizer divides it into a phrase
    "two words"              a phrase
    wor*  hel?o              any characters, one character
    a AND b   a b            both
    a OR b                   either
    NOT a                    all rows but those
    (a OR b) AND c           grouping; NOT binds tighter than AND, AND tighter than OR
    field:word               another field than the default one
    field:[1 TO 5]           a range with its bounds; {1 TO 5} without; * is an open end
    field:>=5                the same; also >, <, <=

A backslash makes the next character an ordinary one. Operators are upper case. Everything else that
other programs give a meaning to (`+a`, `-a`, `a~1`, `a^2`, `/regex/`, `IN [...]`) raises
InvalidRequest with the position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.splits import ALL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bounds on what a query costs to parse and to run.
_LENGTH_MAX = 20_000
_LEAVES_MAX = 1024
_DEPTH_MAX = 64

ANY_CHARS, ANY_CHAR = "*", "?"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Characters that end a word, and those that a word cannot start with: all of them have, or may get,
# a meaning of their own.
_ENDS_WORD = frozenset(' \t\r\n\f\v()[]{}":^~')
_NOT_FIRST = frozenset("+-!/<>='`&|^~:]})@#%$,;")


@dataclass(frozen=True, slots=True)
class Term:
    """A word, or quoted text if `quoted`; `position` is its offset in the query."""

    field: str | None
    text: str
    position: int
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """A word with wildcards; `parts` are ordinary text, and wildcards where `wild` is set."""

    field: str | None
    parts: tuple[tuple[str, bool], ...]
    position: int


@dataclass(frozen=True, slots=True)
class Range:
    """A range; a bound is None if the range is open at that end."""

    field: str | None
    lower: str | None
    upper: str | None
    include_lower: bool
    include_upper: bool
    position: int


@dataclass(frozen=True, slots=True)
class And:
    """All of several queries."""

    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of several queries."""

    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """All rows but those of a query."""

    part: Query


Leaf = Term | Pattern | Range
Query = Term | Pattern | Range | And | Or | Not


def query_error(text: str, position: int, what: str, advice: str = "") -> InvalidRequest:
    """Return the error for a position of a query, counted from 1 in the message."""
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return InvalidRequest(f"indexquery {shown!r}, position {position + 1}: {what}.", next=advice)


def parse_query(text: str) -> Query:
    """Parse a query. Raises InvalidRequest with the position of what is not in the subset.

    >>> parse_query("spark AND NOT sql")
    And(parts=(Term(field=None, text='spark', position=0, quoted=False), Not(part=Term(...))))
    """
    if not isinstance(text, str):
        raise InvalidRequest(
            f"The query of indexquery is text, not {type(text).__name__}.",
            next="Write it as in indexquery('text', 'spark AND sql').",
        )
    if len(text) > _LENGTH_MAX:
        raise InvalidRequest(
            f"A query has at most {_LENGTH_MAX:,} characters, not {len(text):,}.",
            next="Divide it into several predicates with OR.",
        )
    return _Parser(text).parse()


def leaves(query: Query) -> list[Leaf]:
    """The terms, patterns and ranges of a query, in order."""
    if isinstance(query, And | Or):
        return [leaf for part in query.parts for leaf in leaves(part)]
    if isinstance(query, Not):
        return leaves(query.part)
    return [query]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._leaves = 0
        self._depth = 0

    def parse(self) -> Query:
        self._skip_space()
        if self._at == len(self._text):
            self._fail("the query is empty", at=0)
        query = self._or()
        if self._at < len(self._text):
            self._fail(f"{self._text[self._at]!r} is not expected here")
        return query

    def _fail(self, what: str, advice: str = "", at: int | None = None) -> NoReturn:
        raise query_error(self._text, self._at if at is None else at, what, advice)

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _keyword(self, word: str) -> bool:
        """Consume an operator and the space after it, if it is next."""
        end = self._at + len(word)
        if self._text[self._at : end] != word:
            return False
        after = self._text[end : end + 1]
        if after and not after.isspace() and after not in '("':
            return False
        self._at = end
        self._skip_space()
        if self._at == len(self._text):
            self._fail(f"{word} is followed by nothing")
        return True

    def _or(self) -> Query:
        parts = [self._and()]
        while self._keyword("OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Query:
        parts = [self._not()]
        while True:
            explicit = self._keyword("AND")
            if not explicit and (self._peek() in ("", ")") or self._next_is_or()):
                break
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _next_is_or(self) -> bool:
        at = self._at
        found = self._keyword("OR")
        self._at = at
        return found

    def _not(self) -> Query:
        if self._keyword("NOT"):
            self._enter()
            part = self._not()
            self._depth -= 1
            return Not(part)
        return self._primary()

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._fail(f"the query is nested deeper than {_DEPTH_MAX} levels")

    def _primary(self) -> Query:
        if self._peek() == "(":
            opened = self._at
            self._enter()
            self._at += 1
            self._skip_space()
            query = self._or()
            if self._peek() != ")":
                self._fail("the parenthesis is not closed", at=opened)
            self._at += 1
            self._depth -= 1
            self._skip_space()
            return query
        self._leaves += 1
        if self._leaves > _LEAVES_MAX:
            self._fail(f"the query has more than {_LEAVES_MAX:,} terms")
        leaf = self._leaf()
        after = self._peek()
        if after in ("^", "~"):
            self._fail(
                f"{after!r} (boost, distance) is not supported", "Escape it with a backslash."
            )
        if after and not after.isspace() and after != ")":
            self._fail(
                f"{after!r} is not expected here", "Quote the term, or escape with a backslash."
            )
        self._skip_space()
        return leaf

    def _leaf(self) -> Leaf:
        start = self._at
        field: str | None = None
        if self._peek() not in ('"', "[", "{", "<", ">"):
            parts = self._word()
            if self._peek() != ":":
                return self._word_leaf(None, parts, start)
            if any(wild for _, wild in parts):
                self._fail("a field name has no wildcards", at=start)
            field = "".join(text for text, _ in parts)
            self._at += 1
        return self._value(field)

    def _value(self, field: str | None) -> Leaf:
        """Parse what follows the field."""
        start = self._at
        first = self._peek()
        if first == '"':
            return Term(field, self._quoted(), start, quoted=True)
        if first in ("[", "{"):
            return self._range(field)
        if first in ("<", ">"):
            return self._comparison(field)
        if first == "(":
            self._fail("a field before a group is not supported", "Name the field of each term.")
        if not first or first.isspace():
            self._fail("a value is expected")
        return self._word_leaf(field, self._word(), start)

    def _word_leaf(
        self, field: str | None, parts: tuple[tuple[str, bool], ...], start: int
    ) -> Leaf:
        if not any(wild for _, wild in parts):
            text = "".join(text for text, _ in parts)
            if self._text[start : self._at] in ("AND", "OR", "NOT"):
                self._fail(f"{text} needs a term beside it", at=start)
            return Term(field, text, start)
        if all(wild and text == ANY_CHARS for text, wild in parts):
            self._fail(
                "a wildcard alone is not supported",
                "Use `column IS NOT NULL` outside the query.",
                at=start,
            )
        return Pattern(field, parts, start)

    def _word(self) -> tuple[tuple[str, bool], ...]:
        """Parse a word into ordinary text and wildcards."""
        if self._peek() in _NOT_FIRST:
            self._fail(
                f"{self._peek()!r} cannot start a term",
                "Quote the term, or escape the character with a backslash.",
            )
        parts: list[tuple[str, bool]] = []
        plain: list[str] = []
        while (char := self._peek()) and char not in _ENDS_WORD and not char.isspace():
            self._at += 1
            if char == "\\":
                char = self._peek()
                if not char:
                    self._fail("a backslash at the end escapes nothing")
                self._at += 1
                plain.append(char)
            elif char in (ANY_CHARS, ANY_CHAR):
                if plain:
                    parts.append(("".join(plain), False))
                    plain = []
                parts.append((char, True))
            else:
                plain.append(char)
        if plain:
            parts.append(("".join(plain), False))
        if not parts:
            self._fail("a term is expected")
        return tuple(parts)

    def _quoted(self) -> str:
        opened = self._at
        self._at += 1
        chars: list[str] = []
        while (char := self._peek()) != '"':
            if char == "\\":
                self._at += 1
                char = self._peek()
            if not char:
                self._fail("the quotation mark is not closed", at=opened)
            self._at += 1
            chars.append(char)
        self._at += 1
        return "".join(chars)

    def _range(self, field: str | None) -> Range:
        start = self._at
        include_lower = self._peek() == "["
        self._at += 1
        self._skip_space()
        lower = self._bound()
        self._skip_space()
        if self._text[self._at : self._at + 2] != "TO":
            self._fail("TO is expected", "Write a range as [1 TO 5].")
        self._at += 2
        self._skip_space()
        upper = self._bound()
        self._skip_space()
        closing = self._peek()
        if closing not in ("]", "}"):
            self._fail("the range is not closed", at=start)
        self._at += 1
        if lower is None and upper is None:
            self._fail(
                "a range without bounds is not supported",
                "Use `column IS NOT NULL` outside the query.",
                at=start,
            )
        return Range(field, lower, upper, include_lower, closing == "]", start)

    def _bound(self) -> str | None:
        """Parse a bound of a range: a word, quoted text, or * for none.

        Numbers may have a sign and times have colons, which are ordinary characters here.
        """
        if self._peek() == '"':
            return self._quoted()
        start = self._at
        while (char := self._peek()) and not char.isspace() and char not in '[]{}()"':
            self._at += 1
        text = self._text[start : self._at]
        if not text or "\\" in text:
            self._fail("a bound is expected", "Quote it if it has special characters.", at=start)
        return None if text == "*" else text

    def _comparison(self, field: str | None) -> Range:
        start = self._at
        lower_bound = self._peek() == ">"
        self._at += 1
        inclusive = self._peek() == "="
        self._at += inclusive
        value = self._bound()
        if value is None:
            self._fail("a value is expected", at=start)
        if lower_bound:
            return Range(field, value, None, inclusive, True, start)
        return Range(field, None, value, True, inclusive, start)


def check_query(
    column: str, text: str, schema: pa.Schema, partition_columns: Sequence[str]
) -> Query:
    """Parse a query and check it against the schema of the table.

    Raises InvalidRequest with the position of an unknown field or of a value of another type.
    """
    query = parse_query(text)
    if column == ALL_FIELDS and ALL_FIELDS not in schema.names:
        for leaf in leaves(query):
            if leaf.field is None and isinstance(leaf, Range):
                raise query_error(text, leaf.position, "a range needs the name of a field")
    for leaf in leaves(query):
        name = column if leaf.field is None else leaf.field
        if name == ALL_FIELDS and leaf.field is None and name not in schema.names:
            continue
        position = leaf.position
        if name not in schema.names:
            raise query_error(text, position, f"the table has no column {name!r}")
        if name in partition_columns:
            advice = "Write a condition on it outside the query."
            raise query_error(text, position, f"{name!r} is a partition column", advice)
        kind = _kind_of(schema.field(name).type)
        if kind is None:
            raise query_error(
                text,
                position,
                f"column {name!r} has type {schema.field(name).type}, which cannot be searched",
            )
        # A text column may be a field of IP addresses; only the split tells.
        if kind != "text":
            check_leaf(leaf, kind, text)
    return query


def _kind_of(type_: pa.DataType) -> str | None:
    types = pa.types
    if types.is_signed_integer(type_):
        return "i64"
    if types.is_floating(type_):
        return "f64"
    if types.is_boolean(type_):
        return "bool"
    if types.is_date32(type_) or types.is_timestamp(type_):
        return "date"
    return "text" if types.is_string(type_) else None


def check_leaf(leaf: Leaf, kind: str, text: str) -> None:
    """Raise InvalidRequest unless the values of a leaf are of the type of its field."""
    if isinstance(leaf, Pattern):
        raise query_error(text, leaf.position, "wildcards search text only")
    if isinstance(leaf, Range) and kind == "bool":
        raise query_error(text, leaf.position, "booleans have no ranges")
    values = [leaf.lower, leaf.upper] if isinstance(leaf, Range) else [leaf.text]
    for value in values:
        if value is not None:
            try:
                parse_value(kind, value)
            except ValueError as error:
                raise query_error(text, leaf.position, f"{value!r} is not {error}") from None


def parse_value(kind: str, text: str) -> int | float | bool | str:
    """Parse the value of a field that is not text; an instant as microseconds since 1970.

    Raises ValueError saying what is expected.
    """
    if kind == "i64":
        if _INTEGER.fullmatch(text) and _INT_MIN <= int(text) <= _INT_MAX:
            return int(text)
        raise ValueError("an integer")
    if kind == "f64":
        if _NUMBER.fullmatch(text):
            return float(text)
        raise ValueError("a number")
    if kind == "bool":
        if text in ("true", "false"):
            return text == "true"
        raise ValueError("true or false")
    if kind == "date":
        return _parse_instant(text)
    if kind == "ip_addr":
        return _parse_address(text)
    raise ValueError(f"no value: fields of type {kind} cannot be searched")


def _parse_instant(text: str) -> int:
    """Parse ISO text, in UTC without a zone, to microseconds since 1970."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a date or a time such as 2024-01-31T12:00:00Z") from None
    zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1)


def _parse_address(text: str) -> str:
    """Parse an IP address; IPv4 becomes mapped IPv6, as it is indexed."""
    import ipaddress  # few queries need it, every import of this package would load it

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("an IP address") from None
    return f"::ffff:{address}" if address.version == 4 else str(address)

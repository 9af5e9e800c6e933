"""SQL text in pieces: words, signs, texts, numbers, and where each of them stands. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from arrowlog.errors import InvalidRequest
from arrowlog.scan.tree import Literal

_TOKEN = re.compile(
    r"""\s*(?:--[^\n]*\n?\s*|/\*.*?\*/\s*)*(?:
    (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[lLsSyYdD](?![A-Za-z0-9_])|[bB][dD])?(?![A-Za-z0-9_]))
  | (?P<text>'[^']*(?:''[^']*)*')
  | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
  | (?P<word>[^\W0-9][\w$]*)
  | (?P<sign><=>|<>|!=|==|<=|>=|\|\||::|//|!~|\^@|[-+*/%()=<>,.;\[\]~])
  | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
TYPES = {
    "STRING": "VARCHAR", "TEXT": "VARCHAR", "VARCHAR": "VARCHAR", "CHAR": "VARCHAR",
    "BOOLEAN": "BOOLEAN", "BOOL": "BOOLEAN", "TINYINT": "TINYINT", "BYTE": "TINYINT",
    "SMALLINT": "SMALLINT", "SHORT": "SMALLINT", "INT": "INTEGER", "INTEGER": "INTEGER",
    "BIGINT": "BIGINT", "LONG": "BIGINT", "HUGEINT": "HUGEINT", "FLOAT": "FLOAT", "REAL": "FLOAT",
    "DOUBLE": "DOUBLE", "DATE": "DATE", "TIME": "TIME", "DATETIME": "TIMESTAMP",
    "TIMESTAMP": "TIMESTAMP", "TIMESTAMP_NTZ": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMPTZ",
    "TIMESTAMP_LTZ": "TIMESTAMPTZ", "BINARY": "BLOB", "BLOB": "BLOB", "BYTEA": "BLOB",
    "INT1": "TINYINT", "INT2": "SMALLINT", "INT4": "INTEGER", "INT8": "BIGINT",
    "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE",
    "INTERVAL": "INTERVAL", "DECIMAL": "DECIMAL", "NUMERIC": "DECIMAL", "DEC": "DECIMAL",
}  # fmt: skip
NEXT = "Write one condition, such as day = '2024-01-01' AND id BETWEEN 5 AND 9."


class Token(NamedTuple):
    """A piece of the text; `key` is a word in small letters or a sign, to compare with."""

    kind: str
    text: str
    start: int
    key: str

    @property
    def word(self) -> str:
        """The word in small letters; empty for anything else."""
        return self.key if self.kind == "word" else ""


def tokens(text: str) -> list[Token]:
    """The pieces of a text, the end of it being the last."""
    found: list[Token] = []
    start = 0
    while True:
        match = _TOKEN.match(text, start)
        if match is None or match.lastgroup is None:
            start += len(text[start:]) - len(text[start:].lstrip())
            raise wrong(start, f"{text[start : start + 1]!r} is not understood here")
        kind = match.lastgroup
        piece = match[kind]
        key = piece.lower() if kind == "word" else piece if kind == "sign" else ""
        found.append(Token(kind, piece, match.start(kind), key))
        if kind == "end":
            return found
        start = match.end()


def wrong(start: int, why: str) -> InvalidRequest:
    """What to raise if something is wrong at a place."""
    return InvalidRequest(f"The predicate, at character {start + 1}: {why}.", next=NEXT)


def unquoted(token: Token) -> str:
    """A name without its quotation marks."""
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


def number_of(text: str) -> Literal:
    """Whole numbers and decimals are exact; an exponent makes a double, as in DuckDB and Spark."""
    lower = text.lower()
    if lower.endswith("bd"):
        return Literal(Decimal(lower[:-2]), "decimal")
    if lower[-1] in "lsy":
        lower = lower[:-1]
    elif lower[-1] == "d":
        return Literal(float(lower[:-1]), "double")
    if "e" in lower:
        return Literal(float(lower), "double")
    if "." in lower:
        return Literal(Decimal(lower), "decimal")
    return Literal(int(lower), "int")

"""Split SQL text into tokens with their positions. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import Literal

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
# SQL type names of DuckDB and Spark, and the DuckDB type that each stands for.
SQL_TYPES = {
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
SYNTAX_HINT = "Write one condition, such as day = '2024-01-01' AND id BETWEEN 5 AND 9."


class Token(NamedTuple):
    """A token. `key` is the lower-case word or the symbol, and empty for anything else."""

    kind: str
    text: str
    start: int
    key: str

    @property
    def word(self) -> str:
        """The lower-case word; empty for any other kind of token."""
        return self.key if self.kind == "word" else ""


def tokenize(text: str) -> list[Token]:
    """Tokenize a text; the last token is `end`. Raises InvalidRequest for invalid text."""
    result: list[Token] = []
    start = 0
    while True:
        match = _TOKEN.match(text, start)
        if match is None or match.lastgroup is None:
            start += len(text[start:]) - len(text[start:].lstrip())
            raise syntax_error(start, f"{text[start : start + 1]!r} is not valid here")
        kind = match.lastgroup
        token_text = match[kind]
        key = token_text.lower() if kind == "word" else token_text if kind == "sign" else ""
        result.append(Token(kind, token_text, match.start(kind), key))
        if kind == "end":
            return result
        start = match.end()


def syntax_error(start: int, why: str) -> InvalidRequest:
    """The error for a problem at a character position, counted from 0."""
    return InvalidRequest(f"The predicate, at character {start + 1}: {why}.", next=SYNTAX_HINT)


def quote_identifier(name: str) -> str:
    """A name in double quotes, as DuckDB and this package's SQL read it."""
    return '"' + name.replace('"', '""') + '"'


def unquote_identifier(token: Token) -> str:
    """A name without its quotation marks."""
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


def parse_number(text: str) -> Literal:
    """Parse a number with an optional Spark type suffix.

    Integers and decimals are exact; an exponent makes a double, as in DuckDB and Spark.
    """
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

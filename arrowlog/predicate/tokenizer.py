"""Split SQL text into tokens with their positions: predicates and statements. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

# Whitespace and comments, which separate tokens.
_SKIPPED = r"\s*(?:--[^\n]*\n?\s*|/\*.*?\*/\s*)*"


def _compile(tokens: str) -> re.Pattern[str]:
    """The pattern of one token and what precedes it. A character that begins none is `other`."""
    return re.compile(rf"{_SKIPPED}(?:{tokens}|(?P<end>\Z)|(?P<other>.))", re.VERBOSE | re.DOTALL)


# The common ground of DuckDB and Spark: double quotes enclose names.
PREDICATE_TOKENS = _compile(
    r"""
    (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[lLsSyYdD](?![A-Za-z0-9_])|[bB][dD])?(?![A-Za-z0-9_]))
  | (?P<text>'[^']*(?:''[^']*)*')
  | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
  | (?P<word>[^\W0-9][\w$]*)
  | (?P<sign><=>|<>|!=|==|<=|>=|\|\||::|//|!~|\^@|[-+*/%()=<>,.;\[\]~])
    """
)
# As in Spark: double quotes enclose text as well, and a backslash escapes. A word may begin with a
# digit, as the size 100M does.
STATEMENT_TOKENS = _compile(
    r"""
    (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<word>\w+)
    """
)


class Token(NamedTuple):
    """A token. `key` is the lower-case word or the symbol, and empty for anything else."""

    kind: str
    text: str
    start: int
    key: str

    @property
    def stop(self) -> int:
        """The position after the token."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """The lower-case word; empty for any other kind of token."""
        return self.key if self.kind == "word" else ""


def tokenize(text: str, tokens: re.Pattern[str]) -> list[Token]:
    """Tokenize a text; the last token is `end`.

    A character that begins none of `tokens` becomes a token of the kind `other`.
    """
    result: list[Token] = []
    start = 0
    while not result or result[-1].kind != "end":
        match = tokens.match(text, start)
        assert match is not None
        assert match.lastgroup is not None
        kind = match.lastgroup
        token_text = match[kind]
        key = token_text.lower() if kind == "word" else token_text if kind == "sign" else ""
        result.append(Token(kind, token_text, match.start(kind), key))
        start = match.end()
    return result


def quote_identifier(name: str) -> str:
    """A name in double quotes, as DuckDB and this package's SQL read it."""
    return '"' + name.replace('"', '""') + '"'


def unquote_identifier(token: Token) -> str:
    """A name without its quotation marks."""
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)

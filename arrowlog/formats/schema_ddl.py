"""Schemas as DDL text: `id bigint not null, day string` parsed to Spark's schema JSON. Pure.

The names of types are those of Spark SQL.
"""

from __future__ import annotations

import json
import re
from typing import Any

from arrowlog.errors import InvalidRequest

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")
_TYPES = {
    "boolean": "boolean",
    "bool": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "varchar": "string",
    "text": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_EXAMPLE = "Write columns as: id bigint not null, day string, amount decimal(10,2)."
_MAX_DEPTH = 50  # nested types


def parse_ddl(text: str) -> str:
    """Convert DDL text to Spark's schema JSON. Raises `InvalidRequest` if it is not DDL.

    >>> parse_ddl("id bigint not null")
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":false,"metadata":{}}]}'
    """
    parser = _Parser(text)
    schema = {"type": "struct", "fields": parser.fields("")}
    return json.dumps(schema, separators=(",", ":"))


class _Parser:
    """A recursive descent over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []  # kind and text: quoted, word or sign
        self._position = 0
        self._depth = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise _invalid(f"{text[at:].strip()[:20]!r} is not expected")
            quoted, word, sign = match.groups()
            if quoted is not None:
                self._tokens.append(("quoted", quoted.replace("``", "`")))
            else:
                self._tokens.append(("word", word) if word is not None else ("sign", sign))
            at = match.end()

    def fields(self, end: str) -> list[dict[str, Any]]:
        """Parse columns up to the sign `end`, or to the end of the text if it is empty."""
        found = [self._field()]
        while self._accept(","):
            found.append(self._field())
        if end:
            self._expect(end)
        elif self._position < len(self._tokens):
            raise _invalid(f"{self._tokens[self._position][1]!r} is not expected")
        return found

    def _field(self) -> dict[str, Any]:
        kind, name = self._next("the name of a column")
        if kind == "sign":
            raise _invalid(f"{name!r} is not the name of a column")
        self._accept(":")
        data_type = self._type()
        nullable = True
        if self._accept_word("not"):
            if not self._accept_word("null"):
                raise _invalid("NOT is not followed by NULL")
            nullable = False
        else:
            self._accept_word("null")
        return {"name": name, "type": data_type, "nullable": nullable, "metadata": {}}

    def _type(self) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _invalid(f"types are nested more than {_MAX_DEPTH} deep")
        kind, text = self._next("a type")
        name = text.lower()
        result: Any = _TYPES.get(name) if kind == "word" else None
        if kind == "word" and name in ("decimal", "numeric"):
            result = f"decimal({self._precision()})"
        elif kind == "word" and name == "array":
            self._expect("<")
            result = {"type": "array", "elementType": self._type(), "containsNull": True}
            self._expect(">")
        elif kind == "word" and name == "map":
            self._expect("<")
            result = {"type": "map", "keyType": self._type()}
            self._expect(",")
            result |= {"valueType": self._type(), "valueContainsNull": True}
            self._expect(">")
        elif kind == "word" and name == "struct":
            self._expect("<")
            result = {"type": "struct", "fields": self.fields(">")}
        if result is None:
            raise _invalid(f"{text!r} is not a type")
        if name == "varchar" and self._accept("("):
            self._next("a length")
            self._expect(")")
        self._depth -= 1
        return result

    def _precision(self) -> str:
        if not self._accept("("):
            return "10,0"
        precision, scale = self._next("a precision")[1], "0"
        if self._accept(","):
            scale = self._next("a scale")[1]
        self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal()):
            raise _invalid(f"decimal({precision},{scale}) is not a type")
        return f"{int(precision)},{int(scale)}"

    def _next(self, what: str) -> tuple[str, str]:
        if self._position >= len(self._tokens):
            raise _invalid(f"{what} is missing at the end")
        self._position += 1
        return self._tokens[self._position - 1]

    def _accept(self, sign: str) -> bool:
        found = self._tokens[self._position : self._position + 1] == [("sign", sign)]
        self._position += found
        return found

    def _accept_word(self, word: str) -> bool:
        kind, text = (*self._tokens, ("", ""))[self._position]
        found = kind == "word" and text.lower() == word
        self._position += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise _invalid(f"{sign!r} is missing")


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The schema is not valid: {reason}.", next=_EXAMPLE)

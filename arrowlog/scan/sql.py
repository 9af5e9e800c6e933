"""SQL text to a tree: one expression over the columns of a table, no statement, no subquery.

The common ground of DuckDB and Spark, read by precedence: OR, AND, NOT, IS, comparison, range
(IN, BETWEEN, LIKE), `||`, sum, product, sign, cast and field. Errors say at which character.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from arrowlog.errors import InvalidRequest
from arrowlog.scan.tree import FALSE, NULL, TRUE, Call, Column, Literal

if TYPE_CHECKING:
    import pyarrow as pa

    from arrowlog.scan.tree import Node

_TOKEN = re.compile(
    r"""\s*(?:--[^\n]*\n?\s*|/\*.*?\*/\s*)*(?:
    (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[lLsSyYdD](?![A-Za-z0-9_])|[bB][dD])?(?![A-Za-z0-9_]))
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
  | (?P<word>[^\W0-9][\w$]*)
  | (?P<sign><=>|<>|!=|==|<=|>=|\|\||::|//|!~|\^@|[-+*/%()=<>,.\[\]~])
  | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_COMPARE = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">"}
_COMPARE |= {">=": ">=", "<=>": "<=>"}
_TYPES = {
    "STRING": "VARCHAR", "TEXT": "VARCHAR", "VARCHAR": "VARCHAR", "CHAR": "VARCHAR",
    "BOOLEAN": "BOOLEAN", "BOOL": "BOOLEAN", "TINYINT": "TINYINT", "BYTE": "TINYINT",
    "SMALLINT": "SMALLINT", "SHORT": "SMALLINT", "INT": "INTEGER", "INTEGER": "INTEGER",
    "BIGINT": "BIGINT", "LONG": "BIGINT", "HUGEINT": "HUGEINT", "FLOAT": "FLOAT", "REAL": "FLOAT",
    "DOUBLE": "DOUBLE", "DATE": "DATE", "TIME": "TIME", "DATETIME": "TIMESTAMP",
    "TIMESTAMP": "TIMESTAMP", "TIMESTAMP_NTZ": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMPTZ",
    "TIMESTAMP_LTZ": "TIMESTAMPTZ", "BINARY": "BLOB", "BLOB": "BLOB", "BYTEA": "BLOB",
    "INTERVAL": "INTERVAL", "DECIMAL": "DECIMAL", "NUMERIC": "DECIMAL", "DEC": "DECIMAL",
}  # fmt: skip
_TYPED = ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X")
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "year")
_WORDS = """
and or not is in between like ilike rlike regexp null true false case when then else end as
select from where union exists distinct escape having group order limit with over any all
similar collate
"""
_RESERVED = frozenset(_WORDS.split())
_CLOCK = {"current_date": "date", "current_timestamp": "timestamptz", "localtimestamp": "timestamp"}
_CLOCK_CALLS = {"now": "timestamptz", "today": "date", "curdate": "date", "getdate": "timestamptz"}
_DAY_MICROS = 86_400_000_000
_DEPTH_MAX = 40
_DIGITS_MAX = 1000
_NEXT = "Write one condition, such as day = '2024-01-01' AND id BETWEEN 5 AND 9."


class _Token(NamedTuple):
    """A piece of the text; `key` is a word in small letters or a sign, to compare with."""

    kind: str
    text: str
    start: int
    key: str

    @property
    def word(self) -> str:
        return self.key if self.kind == "word" else ""


def read_sql(text: str, schema: pa.Schema, now_micros: int) -> Node:
    """The tree of a condition. `now_micros` is what `current_timestamp` stands for."""
    return _Parser(text, schema, now_micros).whole()


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    start = 0
    while True:
        match = _TOKEN.match(text, start)
        if match is None or match.lastgroup is None:
            start += len(text[start:]) - len(text[start:].lstrip())
            raise _wrong(start, f"{text[start : start + 1]!r} is not understood here")
        kind = match.lastgroup
        piece = match[kind]
        key = piece.lower() if kind == "word" else piece if kind == "sign" else ""
        found.append(_Token(kind, piece, match.start(kind), key))
        if kind == "end":
            return found
        start = match.end()


def _wrong(start: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"The predicate, at character {start + 1}: {why}.", next=_NEXT)


class _Parser:
    """One pass over the tokens of one text."""

    def __init__(self, text: str, schema: pa.Schema, now_micros: int) -> None:
        self._schema = schema
        self._names = set(schema.names)
        self._now = now_micros
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        if self._peek.kind == "end":
            raise InvalidRequest("The predicate is empty.", next=_NEXT)
        tree = self._or()
        if self._peek.kind != "end":
            raise self._unexpected()
        return tree

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _take(self, *texts: str) -> str | None:
        """The next token if it is one of these words or signs."""
        found = self._tokens[self._at].key
        if found not in texts:
            return None
        self._at += 1
        return found

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            raise self._unexpected(f"{text.upper()} is missing")

    def _unexpected(self, why: str = "") -> InvalidRequest:
        token = self._peek
        found = "the text ends" if token.kind == "end" else f"{token.text[:40]!r} stands there"
        if token.word in ("select", "exists", "with", "over", "union"):
            why = "subqueries, window functions and statements are no condition on a row"
        reason = f"{why}, {found}" if why else f"{found}, which does not belong"
        return _wrong(token.start, reason)

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _wrong(self._peek.start, "the condition is nested too deeply")
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Call("or", tuple(parts))

    def _and(self) -> Node:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else Call("and", tuple(parts))

    def _not(self) -> Node:
        turns = 0
        while self._take("not"):
            turns += 1
        node = self._is()
        return Call("not", (node,)) if turns % 2 else node

    def _is(self) -> Node:
        node = self._comparison()
        while True:
            if self._take("isnull"):
                node = Call("is null", (node,))
            elif self._take("notnull"):
                node = Call("not", (Call("is null", (node,)),))
            elif self._take("is"):
                node = self._is_what(node)
            else:
                return node

    def _is_what(self, node: Node) -> Node:
        negated = self._take("not") is not None
        word = self._take("null", "true", "false", "unknown", "distinct")
        if word is None:
            raise self._unexpected("NULL, TRUE, FALSE or DISTINCT FROM is missing")
        if word == "distinct":
            self._need("from")
            found: Node = Call("<=>", (node, self._comparison()))
            negated = not negated
        else:
            found = Call("is null" if word in ("null", "unknown") else f"is {word}", (node,))
        return Call("not", (found,)) if negated else found

    def _comparison(self) -> Node:
        node = self._range()
        while (sign := self._take(*_COMPARE)) is not None:
            if self._take("any", "all", "some"):
                self._at -= 1
                raise self._unexpected("a single value is missing")
            node = Call(_COMPARE[sign], (node, self._range()))
        return node

    def _range(self) -> Node:
        node = self._concat()
        while True:
            mark = self._at
            negated = self._take("not") is not None
            word = self._take("in", "between", "like", "ilike", "rlike", "regexp", "~", "!~", "^@")
            if word is None:
                self._at = mark
                return node
            if word == "in":
                node = self._in(node)
            elif word == "between":
                low = self._concat()
                self._need("and")
                node = Call("between", (node, low, self._concat()))
            elif word in ("like", "ilike"):
                args = [node, self._concat()]
                if self._take("escape"):
                    args.append(self._concat())
                node = Call(word, tuple(args))
            elif word == "^@":
                node = Call("starts_with", (node, self._concat()))
            else:
                # `~` is a match of the whole text in DuckDB, RLIKE of any part of it in Spark.
                op = "regexp_matches" if word in ("rlike", "regexp") else "regexp_full_match"
                node = Call(op, (node, self._concat()))
                negated ^= word == "!~"
            if negated:
                node = Call("not", (node,))

    def _in(self, node: Node) -> Node:
        self._need("(")
        if self._peek.word in ("select", "with"):
            raise self._unexpected()
        values = [self._or()]
        while self._take(","):
            values.append(self._or())
        self._need(")")
        return Call("in", (node, *values))

    def _concat(self) -> Node:
        node = self._sum()
        while self._take("||"):
            node = Call("||", (node, self._sum()))
        return node

    def _sum(self) -> Node:
        node = self._product()
        while (sign := self._take("+", "-")) is not None:
            node = Call(sign, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._sign()
        while (sign := self._take("*", "/", "//", "%", "div")) is not None:
            node = Call("//" if sign == "div" else sign, (node, self._sign()))
        return node

    def _sign(self) -> Node:
        negative = False
        while (sign := self._take("-", "+")) is not None:
            negative ^= sign == "-"
        node = self._postfix()
        if not negative:
            return node
        if isinstance(node, Literal) and isinstance(node.value, Decimal):
            return Literal(node.value.copy_negate(), node.kind)  # a minus sign would round
        if isinstance(node, Literal) and isinstance(node.value, (int, float)):
            return Literal(-node.value, node.kind)
        return Call("negative", (node,))

    def _postfix(self) -> Node:
        node = self._primary()
        while True:
            if self._take("::"):
                node = Call("cast", (node,), self._type())
            elif self._take("["):
                node = Call("element", (node, self._or()))
                self._need("]")
            elif self._peek.word == "at" and self._tokens[self._at + 1].word == "time":
                self._at += 2
                self._need("zone")
                node = Call("timezone", (self._primary(), node))
            else:
                return node

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "number":
            if len(token.text) > _DIGITS_MAX:
                raise _wrong(token.start, "the number is too long")
            return _number(token.text)
        if token.kind == "text":
            return Literal(token.text[1:-1].replace("''", "'"), "text")
        if token.kind == "quoted":
            return self._column(token)
        if token.kind == "word":
            return self._worded(token)
        if token.text == "(" and self._peek.word not in ("select", "with"):
            node = self._or()
            self._need(")")
            return node
        if token.text == "[":
            return Call("list", self._arguments("]"))
        self._at -= token.text != "(" and token.kind != "end"
        raise self._unexpected("a value or a column is missing")

    def _worded(self, token: _Token) -> Node:  # noqa: C901 -- one line a case
        word = token.word
        following = self._peek
        if word in ("true", "false"):
            return TRUE if word == "true" else FALSE
        if word == "null":
            return NULL
        if word == "case":
            return self._case()
        if following.kind == "text" and (token.text.upper() in _TYPED or word == "timestamp"):
            if word == "x":
                return self._bytes(token)
            return Call("cast", (self._primary(),), _TYPES[token.text.upper()])
        if word == "timestamp" and following.word in ("with", "without"):
            self._at -= 1
            kind = self._type()
            return Call("cast", (self._primary(),), kind)
        if word == "interval" and (following.kind in ("text", "number") or following.text == "("):
            return self._interval()
        if following.text == "(" and following.kind == "sign":
            return self._call(token)
        if word in _CLOCK and word not in self._names:
            return self._clock(_CLOCK[word])
        if word in _RESERVED:
            self._at -= 1
            raise self._unexpected("a value or a column is missing")
        return self._column(token)

    def _clock(self, kind: str) -> Literal:
        return Literal(self._now // _DAY_MICROS if kind == "date" else self._now, kind)

    def _bytes(self, token: _Token) -> Literal:
        digits = self._next().text[1:-1]
        try:
            return Literal(bytes.fromhex(digits), "blob")
        except ValueError:
            why = "X'…' needs pairs of hexadecimal digits"
            raise _wrong(token.start, why) from None

    def _case(self) -> Node:
        args: list[Node] = []
        subject = None if self._peek.word == "when" else self._or()
        while self._take("when"):
            condition = self._or()
            args.append(condition if subject is None else Call("=", (subject, condition)))
            self._need("then")
            args.append(self._or())
        if not args:
            raise self._unexpected("WHEN is missing")
        args.append(self._or() if self._take("else") else NULL)
        self._need("end")
        return Call("case", tuple(args))

    def _interval(self) -> Node:
        amount = self._primary()
        unit = self._peek.word.removesuffix("s")
        if unit in _UNITS:
            self._at += 1
            return Call("interval", (amount,), unit)
        return Call("cast", (amount,), "INTERVAL")

    def _arguments(self, close: str) -> tuple[Node, ...]:
        if self._take(close):
            return ()
        args = [self._or()]
        while self._take(","):
            args.append(self._or())
        self._need(close)
        return tuple(args)

    def _call(self, token: _Token) -> Node:
        self._need("(")
        name = token.word
        if self._peek.word in ("select", "distinct") or name == "exists":
            raise self._unexpected()
        if name in ("cast", "try_cast"):
            node = self._or()
            self._need("as")
            node = Call(name, (node,), self._type())
            self._need(")")
            return node
        if name == "extract":
            unit = self._next()
            self._need("from")
            node = Call("date_part", (Literal(unit.text.strip("'").lower(), "text"), self._or()))
            self._need(")")
            return node
        if self._peek.text == "*" and self._peek.kind == "sign":
            raise self._unexpected("aggregates are no condition on a row")
        args = self._arguments(")")
        if self._peek.word == "over":
            raise self._unexpected()
        if not args and (name in _CLOCK_CALLS or name in _CLOCK):
            return self._clock(_CLOCK_CALLS.get(name) or _CLOCK[name])
        return Call(name, args)

    def _type(self) -> str:
        token = self._next()
        name = token.text.upper()
        if token.kind != "word" or name not in _TYPES:
            raise _wrong(token.start, f"{token.text[:40]!r} is not a type")
        found = _TYPES[name]
        if name == "TIMESTAMP" and (zone := self._take("with", "without")) is not None:
            self._need("time")
            self._need("zone")
            return "TIMESTAMPTZ" if zone == "with" else "TIMESTAMP"
        sizes = self._sizes() if self._take("(") else []
        if found != "DECIMAL":
            return found
        precision, scale = (*sizes, 0, 0)[:2] if sizes else (18, 3)
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise _wrong(token.start, "a decimal has 1 to 38 digits")
        return f"DECIMAL({precision},{scale})"

    def _sizes(self) -> list[int]:
        sizes: list[int] = []
        for _ in range(2):
            token = self._next()
            if token.kind != "number" or not token.text.isdigit() or len(token.text) > 4:
                raise _wrong(token.start, "a number is missing")
            sizes.append(int(token.text))
            if not self._take(","):
                break
        self._need(")")
        return sizes

    def _column(self, token: _Token) -> Node:
        parts = [_unquoted(token)]
        while self._peek.text == "." and self._peek.kind == "sign":
            self._at += 1
            part = self._next()
            if part.kind not in ("word", "quoted"):
                raise _wrong(part.start, "the name of a field is missing")
            parts.append(_unquoted(part))
        root = self._resolve(parts[0])
        if root is not None:
            return Column(root, tuple(parts[1:]))
        whole = self._resolve(".".join(parts))
        if whole is None:
            known = ", ".join(self._schema.names[:12])
            raise InvalidRequest(
                f"The predicate, at character {token.start + 1}: there is no column"
                f" {'.'.join(parts)!r}.",
                next=f"The columns are {known}{', …' if len(self._names) > 12 else ''}.",
            )
        return Column(whole)

    def _resolve(self, name: str) -> str | None:
        """A column by its name, or by its name in other letters if only one is meant."""
        if name in self._names:
            return name
        near = [known for known in self._schema.names if known.lower() == name.lower()]
        if len(near) > 1:
            raise InvalidRequest(
                f"The column {name!r} may be any of {', '.join(near)}.",
                next="Write the name in the right letters, in quotation marks.",
            )
        return near[0] if near else None


def _unquoted(token: _Token) -> str:
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


def _number(text: str) -> Literal:
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

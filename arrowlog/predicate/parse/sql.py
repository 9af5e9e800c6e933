"""Parse SQL text to the predicate AST: one expression, no statement and no subquery. Pure.

A recursive descent parser for the common ground of DuckDB and Spark. Precedence, lowest first: OR,
AND, NOT, IS, comparison, range (IN, BETWEEN, LIKE), `||`, sum, product, sign, cast and field.
Errors give the character position. The tokenizer also splits the statements of IndexTables SQL.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    FALSE,
    NULL,
    TRUE,
    Call,
    Column,
    Literal,
    join_nodes,
    resolve_struct_path,
    unknown_column_error,
)
from arrowlog.predicate.literals import DAY_MICROS
from arrowlog.predicate.searches import SEARCH_OP, make_search
from arrowlog.splits import ALL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Collection

    from arrowlog.predicate.ast import Node

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
    kinds = {index: kind for kind, index in tokens.groupindex.items()}
    make = tuple.__new__  # without the checks of arguments, which take as long as the match
    for match in tokens.finditer(text):
        index = match.lastindex
        assert index is not None
        kind, token_text = kinds[index], match[index]
        key = token_text.lower() if kind == "word" else token_text if kind == "sign" else ""
        result.append(make(Token, (kind, token_text, match.start(index), key)))
        if kind == "end":
            break
    return result


def unquote_identifier(token: Token) -> str:
    """A name without its quotation marks."""
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)


# SQL type names of DuckDB and Spark, and the DuckDB type that each stands for.
_SQL_TYPES = {
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
_SYNTAX_HINT = "Write one condition, such as day = '2024-01-01' AND id BETWEEN 5 AND 9."
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">"}
_COMPARISONS |= {">=": ">=", "<=>": "<=>"}
# Type names that may precede a text: DATE '2024-01-01', X'00ff'.
_LITERAL_PREFIXES = ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X")
_UNIT_NAMES = "microsecond millisecond second minute hour day week month quarter year"
_UNITS = frozenset(_UNIT_NAMES.split())
_RESERVED_NAMES = """
and or not is in between like ilike rlike regexp null true false case when then else end as
select from where union exists distinct escape having group order limit with over any all
similar collate
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())
# Reserved words that can also be function names.
_CALLABLE_KEYWORDS = frozenset({"like", "ilike", "rlike", "regexp", "exists"})
# Aggregate and window functions, which are refused.
_AGGREGATE_NAMES = """
any_value approx_count_distinct array_agg avg bool_and bool_or collect_list collect_set corr count
count_if every first first_value group_concat kurtosis last last_value list listagg max max_by mean
median min min_by mode product quantile skewness some stddev stddev_pop stddev_samp string_agg sum
var_pop var_samp variance cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
"""
_AGGREGATES = frozenset(_AGGREGATE_NAMES.split())
# Type names that can be called as a function: INT(x).
_CAST_FUNCTIONS = ("BIGINT", "BOOLEAN", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIMESTAMP")
_RANGE_OPS = (
    *("in", "between", "like", "ilike", "rlike", "regexp", "glob", "similar"),
    SEARCH_OP,
    *("~", "!~", "^@"),
)
_CLOCK_WORDS = {
    "current_date": "date",
    "current_timestamp": "timestamptz",
    "localtimestamp": "timestamp",
}
_CLOCK_CALLS = {"now": "timestamptz", "today": "date", "curdate": "date", "getdate": "timestamptz"}
# AST operators that can be written as function calls: least and greatest number of arguments.
_ARITY = {"like": (2, 3), "ilike": (2, 3), "glob": (2, 2), "element": (2, 2)}
_ARITY |= {"negative": (1, 1), "interval": (1, 1)}
# Nested parentheses, lists and arguments; each takes about a dozen frames of Python's stack.
_DEPTH_MAX = 60
_NUMBER_LENGTH_MAX = 1000  # characters
# `column sign literal`, followed by AND or the end of the text.
_CONJUNCT = re.compile(
    r"""
    \s* ([^\W0-9][\w$]*) \s* (<>|!=|==|<=|>=|[=<>]) \s*
    (?: (-?)([0-9]{1,100}(?:\.[0-9]{1,100})?) | '([^']*)' )
    (?: \s+and(?=\s) | \s*(\Z) )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def parse_sql(text: str, schema: pa.Schema, now_micros: int) -> Node:
    """Parse a SQL condition over the columns of `schema`.

    `now_micros` is the value of `current_timestamp`, in microseconds since 1970. Raises
    InvalidRequest with the character position of the error.
    """
    simple = _parse_comparisons(text, frozenset(schema.names))
    return _Parser(text, schema, now_micros).parse() if simple is None else simple


def _parse_comparisons(text: str, names: Collection[str]) -> Node | None:
    """Parse comparisons of columns with literals that AND joins; None if there is anything else.

    Generated predicates have hundreds of them, and a token for each word and sign takes longer
    than everything that follows.
    """
    parts: list[Node] = []
    position = 0
    while (match := _CONJUNCT.match(text, position)) is not None:
        name, sign, minus, number, quoted, end = match.groups()
        if name not in names or name.lower() in _RESERVED:
            return None
        literal = Literal(quoted, "text") if number is None else _parse_number(number)
        value = _negate(literal) if minus else literal
        parts.append(Call(_COMPARISONS[sign], (Column(name), value)))
        if end is not None:
            return join_nodes("and", parts)
        position = match.end()
    return None


def _syntax_error(start: int, why: str) -> InvalidRequest:
    """The error for a problem at a character position, counted from 0."""
    return InvalidRequest(f"{_position(start)}: {why}.", next=_SYNTAX_HINT)


def _position(start: int) -> str:
    return f"The predicate, at character {start + 1}"


class _Parser:
    """Recursive descent parser over the tokens of one text."""

    def __init__(self, text: str, schema: pa.Schema, now_micros: int) -> None:
        self._schema = schema
        self._names = set(schema.names)
        self._now = now_micros
        self._tokens = tokenize(text, PREDICATE_TOKENS)
        invalid = next((token for token in self._tokens if token.kind == "other"), None)
        if invalid is not None:
            raise _syntax_error(invalid.start, f"{invalid.text!r} is not valid here")
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        """Parse the whole text; a trailing semicolon is allowed."""
        if self._peek.kind == "end":
            raise InvalidRequest("The predicate is empty.", next=_SYNTAX_HINT)
        tree = self._or()
        self._at += self._peek.key == ";" and self._tokens[self._at + 1].kind == "end"
        if self._peek.kind != "end":
            raise self._unexpected()
        return tree

    @property
    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _take(self, *keys: str) -> str | None:
        """Consume the next token and return its key if it is one of these words or symbols."""
        key = self._tokens[self._at].key
        if key not in keys:
            return None
        self._at += 1
        return key

    def _need(self, text: str) -> None:
        """Consume the given word or symbol, or raise."""
        if self._take(text) is None:
            raise self._unexpected(f"{text.upper()} is missing")

    def _unexpected(self, expected: str = "") -> InvalidRequest:
        token = self._peek
        actual = "the end of the text" if token.kind == "end" else repr(token.text[:40])
        if token.word in ("select", "exists", "with", "over", "union"):
            expected = "subqueries, window functions and statements are not row predicates"
        reason = f"{expected}, found {actual}" if expected else f"unexpected {actual}"
        return _syntax_error(token.start, reason)

    # One method per precedence level. `left` is an operand that has been parsed already.

    def _or(self, left: Node | None = None) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _syntax_error(self._peek.start, "the condition is nested too deeply")
        parts = [self._and(left)]
        while self._take("or"):
            parts.append(self._and())
        self._depth -= 1
        return join_nodes("or", parts)

    def _and(self, left: Node | None = None) -> Node:
        parts = [self._not(left)]
        while self._take("and"):
            parts.append(self._not())
        return join_nodes("and", parts)

    def _not(self, left: Node | None = None) -> Node:
        simple = self._simple_comparison() if left is None else None
        if simple is not None:
            return simple
        negations = 0
        while left is None and self._take("not"):
            negations += 1
        node = self._is(left)
        return Call("not", (node,)) if negations % 2 else node

    def _simple_comparison(self) -> Node | None:
        """Parse `column sign literal` without descending the precedence levels; else None.

        Generated predicates have hundreds of these, and nothing binds tighter inside one.
        """
        at, tokens = self._at, self._tokens
        column = tokens[at]
        if column.kind != "word" or column.text not in self._names or column.key in _RESERVED:
            return None
        sign = tokens[at + 1]
        if sign.key not in _COMPARISONS:
            return None
        value = at + 2 + (tokens[at + 2].key == "-")
        is_number = tokens[value].kind == "number"
        if not is_number and (tokens[value].kind != "text" or value > at + 2):
            return None
        after = tokens[value + 1]
        if after.kind != "end" and after.key not in ("and", "or", ")"):
            return None
        self._at = value
        literal = self._primary()
        if value > at + 2:
            literal = _negate(literal)
        return Call(_COMPARISONS[sign.key], (Column(column.text), literal))

    def _is(self, left: Node | None) -> Node:
        node = self._comparison(left)
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
            test: Node = Call("<=>", (node, self._comparison()))
            negated = not negated
        else:
            test = Call("is null" if word in ("null", "unknown") else f"is {word}", (node,))
        return Call("not", (test,)) if negated else test

    def _comparison(self, left: Node | None = None) -> Node:
        node = self._range(left)
        sign = self._take(*_COMPARISONS)
        if sign is None:
            return node
        if self._peek.word in ("any", "all", "some"):
            raise self._unexpected("a single value is missing")
        node = Call(_COMPARISONS[sign], (node, self._range()))
        if self._peek.key in _COMPARISONS:
            raise self._unexpected("comparisons cannot be chained; combine them with AND")
        return node

    def _range(self, left: Node | None = None) -> Node:
        node = self._concat(left)
        while True:
            start = self._at
            negated = self._take("not") is not None
            word = self._take(*_RANGE_OPS)
            if word is None:
                self._at = start
                return node
            node = self._ranged(node, word)
            if negated ^ (word == "!~"):
                node = Call("not", (node,))

    def _ranged(self, node: Node, word: str) -> Node:
        if word == "in":
            return self._in(node)
        if word == "between":
            low = self._concat()
            self._need("and")
            return Call("between", (node, low, self._concat()))
        if word == SEARCH_OP:
            return make_search(node, self._concat())
        if word == "similar":
            self._need("to")
        args = [node, self._concat()]
        if word in ("like", "ilike") and self._take("escape"):
            args.append(self._concat())
        # SIMILAR TO matches the whole text, the regex operators any part of it.
        function = {"^@": "starts_with", "similar": "regexp_full_match"}.get(word, "regexp_matches")
        return Call(word if word in ("like", "ilike", "glob") else function, tuple(args))

    def _in(self, node: Node) -> Node:
        self._need("(")
        if self._peek.word in ("select", "with"):
            raise self._unexpected()
        values = self._arguments(")")
        return Call("in", (node, *values)) if values else FALSE

    def _concat(self, left: Node | None = None) -> Node:
        node = self._sum(left)
        while self._take("||"):
            node = Call("||", (node, self._sum()))
        return node

    def _sum(self, left: Node | None = None) -> Node:
        node = self._product(left)
        while (sign := self._take("+", "-")) is not None:
            node = Call(sign, (node, self._product()))
        return node

    def _product(self, left: Node | None = None) -> Node:
        node = self._sign(left)
        while (sign := self._take("*", "/", "//", "%", "div")) is not None:
            node = Call("//" if sign == "div" else sign, (node, self._sign()))
        return node

    def _sign(self, left: Node | None = None) -> Node:
        negative = False
        while left is None and (sign := self._take("-", "+")) is not None:
            negative ^= sign == "-"
        node = self._postfix(left)
        return _negate(node) if negative else node

    def _postfix(self, left: Node | None) -> Node:
        node = self._primary() if left is None else left
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
            if len(token.text) > _NUMBER_LENGTH_MAX:
                raise _syntax_error(token.start, "the number is too long")
            return _parse_number(token.text)
        if token.kind == "text":
            return Literal(token.text[1:-1].replace("''", "'"), "text")
        if token.kind == "quoted":
            return self._column(token)
        if token.kind == "word":
            return self._word(token)
        if token.text == "(" and self._peek.word not in ("select", "with"):
            return self._parentheses()
        if token.text == "[":
            return Call("list", self._arguments("]"))
        self._at -= token.text != "(" and token.kind != "end"
        raise self._unexpected("a value or a column is missing")

    def _parentheses(self) -> Node:
        """Parse after an opening parenthesis.

        Parentheses that open at the same position are handled in a loop instead of by recursion:
        generated SQL may contain thousands.
        """
        inner = 0
        while self._peek.key == "(" and self._tokens[self._at + 1].word not in ("select", "with"):
            self._at += 1
            inner += 1
        node = self._or()
        self._need(")")
        for _ in range(inner):
            node = self._or(node)
            self._need(")")
        return node

    def _word(self, token: Token) -> Node:  # noqa: C901 -- one branch per keyword
        """Parse an operand that starts with a word: keyword, literal, call or column."""
        word = token.word
        following = self._peek
        if word in ("true", "false"):
            return TRUE if word == "true" else FALSE
        if word == "null":
            return NULL
        if word == "case":
            return self._case()
        if following.kind == "text" and token.text.upper() in _LITERAL_PREFIXES:
            if word == "x":
                return self._bytes(token)
            return Call("cast", (self._primary(),), _SQL_TYPES[token.text.upper()])
        if word == "timestamp" and following.word in ("with", "without"):
            self._at -= 1
            kind = self._type()
            return Call("cast", (self._primary(),), kind)
        if word == "interval" and (following.kind in ("text", "number") or following.text == "("):
            return self._interval()
        if following.key == "(" and (word not in _RESERVED or word in _CALLABLE_KEYWORDS):
            return self._call(token)
        if word in _CLOCK_WORDS and word not in self._names:
            return self._clock(_CLOCK_WORDS[word])
        if word in _RESERVED:
            self._at -= 1
            raise self._unexpected("a value or a column is missing")
        return self._column(token)

    def _clock(self, kind: str) -> Literal:
        return Literal(self._now // DAY_MICROS if kind == "date" else self._now, kind)

    def _bytes(self, token: Token) -> Literal:
        digits = self._next().text[1:-1]
        try:
            return Literal(bytes.fromhex(digits), "blob")
        except ValueError:
            why = "X'…' needs pairs of hexadecimal digits"
            raise _syntax_error(token.start, why) from None

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
        args = [self._argument(close)]
        while self._take(","):
            args.append(self._argument(close))
        self._need(close)
        return tuple(args)

    def _argument(self, close: str) -> Node:
        """Parse an argument. A bare literal skips the precedence levels: lists may be long."""
        bare = self._peek.kind in ("number", "text")
        bare = bare and self._tokens[self._at + 1].key in (",", close)
        return self._primary() if bare else self._or()

    def _call(self, token: Token) -> Node:
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
        starred = self._peek.key == "*"  # as in count(*)
        args = () if starred else self._arguments(")")
        if self._peek.word == "over":
            raise self._unexpected()
        if starred or name in _AGGREGATES:
            why = f"{name} is an aggregate or window function, not a row predicate"
            raise _syntax_error(token.start, why)
        least, most = _ARITY.get(name, (0, len(args)))
        if not least <= len(args) <= most:
            raise _syntax_error(token.start, f"{name} does not take {len(args)} arguments")
        if name.upper() in _CAST_FUNCTIONS and len(args) == 1:
            return Call("cast", args, _SQL_TYPES[name.upper()])
        if not args and (name in _CLOCK_CALLS or name in _CLOCK_WORDS):
            return self._clock(_CLOCK_CALLS.get(name) or _CLOCK_WORDS[name])
        return Call(name, args)

    def _type(self) -> str:
        token = self._next()
        name = token.text.upper()
        if token.kind != "word" or name not in _SQL_TYPES:
            raise _syntax_error(token.start, f"{token.text[:40]!r} is not a type")
        duckdb_type = _SQL_TYPES[name]
        if name == "DOUBLE":
            self._take("precision")
        if name == "TIMESTAMP" and (zone := self._take("with", "without")) is not None:
            self._need("time")
            self._need("zone")
            return "TIMESTAMPTZ" if zone == "with" else "TIMESTAMP"
        sizes = self._sizes() if self._take("(") else []
        if duckdb_type != "DECIMAL":
            return duckdb_type
        precision, scale = (*sizes, 0, 0)[:2] if sizes else (18, 3)
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise _syntax_error(
                token.start, "DECIMAL takes a precision from 1 to 38 and a scale up to it"
            )
        return f"DECIMAL({precision},{scale})"

    def _sizes(self) -> list[int]:
        """Parse one or two numbers and the closing parenthesis of a type."""
        sizes: list[int] = []
        for _ in range(2):
            token = self._next()
            if token.kind != "number" or not token.text.isdigit() or len(token.text) > 4:
                raise _syntax_error(token.start, "a number is missing")
            sizes.append(int(token.text))
            if not self._take(","):
                break
        self._need(")")
        return sizes

    def _column(self, token: Token) -> Node:
        """Parse a column, a struct field, or a column name that contains dots."""
        parts = [unquote_identifier(token)]
        while self._peek.text == "." and self._peek.kind == "sign":
            self._at += 1
            part = self._next()
            if part.kind not in ("word", "quoted"):
                raise _syntax_error(part.start, "a field name is missing")
            parts.append(unquote_identifier(part))
        root = self._resolve(parts[0])
        is_struct = root is not None and pa.types.is_struct(self._schema.field(root).type)
        if root is not None and (is_struct or self._resolve(".".join(parts)) is None):
            return resolve_struct_path(root, parts[1:], self._schema)
        if parts == [ALL_FIELDS] and SEARCH_OP in (
            self._peek.word,
            self._tokens[self._at + 1].word,
        ):
            return Literal(ALL_FIELDS, "text")
        dotted_column = self._resolve(".".join(parts))
        if dotted_column is None:
            raise unknown_column_error(".".join(parts), self._schema, _position(token.start))
        return Column(dotted_column)

    def _resolve(self, name: str) -> str | None:
        """Find a column by exact name, else by its only case-insensitive match, else None."""
        if name in self._names:
            return name
        matches = [known for known in self._schema.names if known.lower() == name.lower()]
        if len(matches) > 1:
            raise InvalidRequest(
                f"The column {name!r} may be any of {', '.join(matches)}.",
                next="Write the exact name in double quotes.",
            )
        return matches[0] if matches else None


def _negate(node: Node) -> Node:
    """The node after a minus sign."""
    if isinstance(node, Literal) and isinstance(node.value, Decimal):
        # Unary minus would round to the precision of the decimal context.
        return Literal(node.value.copy_negate(), node.kind)
    if isinstance(node, Literal) and isinstance(node.value, (int, float)):
        return Literal(-node.value, node.kind)
    return Call("negative", (node,))


def _parse_number(text: str) -> Literal:
    """Parse a number with an optional Spark type suffix.

    Integers and decimals are exact; an exponent makes a double, as in DuckDB and Spark.
    """
    if text.isdigit():
        return Literal(int(text), "int")
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

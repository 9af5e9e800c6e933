"""A tree as a DuckDB condition: names quoted, every value bound, only functions that are known.

DuckDB says what a predicate means. It runs in memory, without access to files or settings.
"""

from __future__ import annotations

import atexit
import os
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.scan.literals import read_date, read_moment, scalar_literal
from arrowlog.scan.tree import Call, Column, Foreign, Literal, columns_of, describe, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.scan.tree import Node

# What these give depends on their arguments alone: no clock, no chance, no settings, no files.
_WORDS = """
abs add_months array_contains ascii bit_length ceil ceiling char_length character_length chr
coalesce concat concat_ws contains cos date date_add date_diff date_part date_sub date_trunc
datediff day dayname dayofmonth dayofweek dayofyear ends_with endswith epoch epoch_ms
epoch_us exp floor greatest hour if ifnull ilike instr isfinite isinf isnan isnotnull isnull
last_day lcase least left len length like list_contains ln log log10 log2 lower lpad ltrim
make_date make_timestamp map_extract md5 microsecond millisecond minute mod month monthname
nullif nvl ord position pow power prefix quarter regexp_extract regexp_full_match
regexp_like regexp_matches regexp_replace repeat replace reverse right round rpad rtrim
second sha256 sign sin sqrt starts_with startswith strftime strip_accents strlen strpos
strptime struct_extract substr substring suffix tan timezone to_date to_timestamp translate
trim trunc try_strptime ucase unicode upper week weekday weekofyear year yearweek
"""
FUNCTIONS = frozenset(_WORDS.split())
_RENAMED = {
    "endswith": "ends_with",
    "startswith": "starts_with",
    "regexp_like": "regexp_matches",
    "nvl": "ifnull",
    "lcase": "lower",
    "ucase": "upper",
    "element": "array_extract",
    "to_date": "cast",
}
_SIGNS = {"=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "//", "%", "||"}
_SPECIAL = frozenset(
    {"and", "or", "not", "is null", "is true", "is false", "in", "between", "<=>", "case"}
    | {"cast", "try_cast", "negative", "interval", "list", "element", "glob"}
)
_KNOWN = _SIGNS | _SPECIAL | FUNCTIONS
_KINDS = {"timestamp": "make_timestamp(?)", "timestamptz": "make_timestamptz(?)"}
_KINDS |= {"float": "CAST(? AS FLOAT)"}
_DIGITS_MAX, _HUGE = 38, 1 << 127
_KINDS_SEEN: dict[Any, pa.DataType | None] = {}
_SEEN_MAX = 1000
_LOCK = Lock()
_PLACE = "arrowlog_rows"


def known(node: Node) -> bool:
    """Whether every part of a tree can be evaluated here."""
    return all(
        not isinstance(part, Foreign) and (not isinstance(part, Call) or part.op in _KNOWN)
        for part in walk(node)
    )


def computable(node: Node) -> bool:
    """Whether every part can be evaluated, here or by the engine whose expression it is."""
    return all(
        part.source is not None
        if isinstance(part, Foreign)
        else not isinstance(part, Call) or part.op in _KNOWN
        for part in walk(node)
    )


class Condition:
    """DuckDB text for a tree, and the values bound in it."""

    def __init__(self, names: Callable[[str], str]) -> None:
        """`names` says how a column is called where the text will run."""
        self.values: list[Any] = []
        self._names = names

    def text(self, node: Node) -> str:
        """The text of a node; values are collected in the order of their marks."""
        if isinstance(node, Column):
            base = quoted(self._names(node.name))
            for part in node.path:
                base = f"struct_extract({base}, {self._bind(part)})"
            return base
        if isinstance(node, Literal):
            return self._literal(node)
        if isinstance(node, Foreign) or not known(Call(node.op, ())):
            raise InvalidRequest(
                f"{describe(node)} cannot be evaluated here.",
                next="Use functions that DuckDB and Spark both have, and that depend on the row.",
            )
        return self._call(node)

    def _bind(self, value: Any) -> str:
        self.values.append(value)
        return "?"

    def _literal(self, node: Literal) -> str:
        if node.value is None:
            return "NULL"
        if node.kind == "date":
            return f"(DATE '1970-01-01' + CAST({self._bind(node.value)} AS INTEGER))"
        value = node.value
        digits = len(value.as_tuple().digits) if isinstance(value, Decimal) else 0
        if digits > _DIGITS_MAX or (isinstance(value, int) and abs(value) >= _HUGE):
            value = float(value)  # no exact type is as wide
        self._bind(value)
        return _KINDS.get(node.kind, "?")

    def _call(self, node: Call) -> str:  # noqa: C901 -- one line a case
        op, args = node.op, node.args
        if op in ("and", "or"):
            return f"({f' {op.upper()} '.join(map(self.text, args))})"
        if op in _SIGNS:
            return f"({self.text(args[0])} {op} {self.text(args[1])})"
        if op == "<=>":
            return f"({self.text(args[0])} IS NOT DISTINCT FROM {self.text(args[1])})"
        if op in ("not", "negative"):
            return f"({'NOT' if op == 'not' else '-'} {self.text(args[0])})"
        if op in ("is null", "is true", "is false"):
            return f"({self.text(args[0])} {op.upper()})"
        if op == "between":
            first = self.text(args[0])
            low, high = self.text(args[1]), self.text(args[2])
            return f"({first} BETWEEN {low} AND {high})"
        if op == "in":
            first = self.text(args[0])
            return f"({first} IN ({', '.join(map(self.text, args[1:]))}))"
        if op in ("cast", "try_cast"):
            return f"{op.upper()}({self.text(args[0])} AS {node.detail})"
        if op == "interval":
            amount = f"CAST({self.text(args[0])} AS DOUBLE)"
            if node.detail not in ("second", "millisecond"):  # only these have fractions
                amount = f"CAST(trunc({amount}) AS BIGINT)"
            return f"to_{node.detail}s({amount})"
        if op == "list":
            return f"[{', '.join(map(self.text, args))}]"
        return self._worded(node)

    def _worded(self, node: Call) -> str:
        op, args = node.op, node.args
        if op in ("like", "ilike"):
            text = f"{self.text(args[0])} {op.upper()} {self.text(args[1])}"
            return f"({text} ESCAPE {self.text(args[2])})" if len(args) > 2 else f"({text})"
        if op == "glob":
            return f"({self.text(args[0])} GLOB {self.text(args[1])})"
        if op == "case":
            pairs = zip(args[:-1:2], args[1:-1:2], strict=True)
            whens = [f"WHEN {self.text(when)} THEN {self.text(then)}" for when, then in pairs]
            return f"(CASE {' '.join(whens)} ELSE {self.text(args[-1])} END)"
        spark = _from_spark(node)
        if spark is not None:
            return self.text(spark)
        return f"{_RENAMED.get(op, op)}({', '.join(map(self.text, args))})"


def _from_spark(node: Call) -> Node | None:
    """Spark's functions that DuckDB has under the same name with another meaning, or not at all."""
    op, args = node.op, node.args
    if len(args) == 1 and op in ("isnull", "isnotnull"):
        found = Call("is null", args)
        return found if op == "isnull" else Call("not", (found,))
    if len(args) == 1 and op in ("to_date", "date"):
        return Call("cast", args, "DATE")
    if len(args) == 1 and op == "to_timestamp" and getattr(args[0], "kind", "") == "text":
        return Call("cast", args, "TIMESTAMP")
    if len(args) == 2 and op in ("date_add", "date_sub", "datediff"):
        return Call("+" if op == "date_add" else "-", args)
    if len(args) == 2 and op == "add_months":
        return Call("cast", (Call("+", (args[0], Call("interval", args[1:], "month"))),), "DATE")
    return None


def quoted(name: str) -> str:
    """A name as DuckDB takes it, whatever characters are in it."""
    return '"' + name.replace('"', '""') + '"'


class _Engine:
    """One DuckDB connection of ours, made when first needed. One question at a time."""

    def __init__(self) -> None:
        import duckdb

        self._errors = duckdb.Error
        # One thread: answers are matched with rows by their place, and with more of them the
        # batches of an Arrow table may come back in another order.
        self._connection = duckdb.connect(":memory:", config={"threads": "1"})
        for setting in (
            "SET enable_external_access = false",
            "SET autoinstall_known_extensions = false",
            "SET TimeZone = 'UTC'",
            "SET lock_configuration = true",
        ):
            self._connection.execute(setting).fetchall()

    def close(self) -> None:
        """End the connection and its threads."""
        self._connection.close()

    def ask(self, text: str, values: Sequence[Any], rows: pa.Table | None) -> pa.Table:
        """The answer; `InvalidRequest` in DuckDB's words if it cannot be given."""
        try:
            if rows is not None:
                self._connection.register(_PLACE, rows)
            return self._connection.sql(text, params=list(values)).to_arrow_table()
        except self._errors as error:
            words = str(error).partition("\n")[0]
            raise InvalidRequest(f"The predicate cannot be evaluated: {words}") from None
        finally:
            if rows is not None:
                self._connection.unregister(_PLACE)


_ENGINES: list[_Engine] = []  # one, or none yet


def _ask(text: str, values: Sequence[Any], rows: pa.Table | None) -> pa.Table:
    with _LOCK:
        if not _ENGINES:
            _ENGINES.append(_Engine())
        return _ENGINES[0].ask(text, values, rows)


def _close() -> None:
    """End the connection; the next question makes another."""
    while _ENGINES:
        _ENGINES.pop().close()


def _before_fork() -> None:
    """A connection does not survive in a child, nor does a lock that another thread holds."""
    _LOCK.acquire()
    _close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
atexit.register(_close)


def evaluate(node: Node, rows: pa.Table) -> pa.ChunkedArray:
    """The value of a node for every row, by DuckDB."""
    places = {name: f"c{number}" for number, name in enumerate(rows.column_names)}
    condition = Condition(places.__getitem__)
    text = condition.text(node)
    renamed = rows.rename_columns(list(places.values())) if places else rows
    question = f"SELECT ({text}) AS answer FROM {_PLACE}"  # noqa: S608 -- built from a tree
    return _ask(question, condition.values, renamed)["answer"]


def kind_of(node: Node, schema: pa.Schema) -> pa.DataType | None:
    """The type of a node, by DuckDB; None if it cannot be told. Asked once for each form."""
    names = sorted(columns_of(node))
    condition = Condition(str)
    try:
        form = condition.text(node)
    except InvalidRequest:
        return None
    values = tuple(type(value) for value in condition.values)
    key = (form, values, tuple(str(schema.field(name).type) for name in names))
    if key not in _KINDS_SEEN:
        if len(_KINDS_SEEN) >= _SEEN_MAX:
            _KINDS_SEEN.clear()
        empty = pa.schema([schema.field(name) for name in names]).empty_table()
        try:
            _KINDS_SEEN[key] = evaluate(node, empty).type
        except (InvalidRequest, pa.ArrowException):
            _KINDS_SEEN[key] = None
    return _KINDS_SEEN[key]


def constant(node: Node) -> Literal | None:
    """The value of a node without columns; None if it has none, or none of a literal's kinds."""
    condition = Condition(str)
    try:
        text = condition.text(node)
        answer = _ask(f"SELECT ({text}) AS answer", condition.values, None)["answer"]
    except InvalidRequest:
        return None
    return scalar_literal(answer[0])


def folded(node: Node) -> Node:
    """The tree with every part computed that is the same for all rows."""
    if not isinstance(node, Call):
        return node
    if node.op == "cast" and isinstance(node.args[0], Literal):
        found = _cast(node.args[0], node.detail)
        if found is not None:
            return found
    if _same_for_all(node) and known(node):
        return constant(node) or node
    args = tuple(folded(arg) if isinstance(arg, Call) else arg for arg in node.args)
    changed = any(new is not old for new, old in zip(args, node.args, strict=True))
    return Call(node.op, args, node.detail) if changed else node


def _same_for_all(node: Call) -> bool:
    """Whether no row has a say in it."""
    return all(
        _same_for_all(arg) if isinstance(arg, Call) else isinstance(arg, Literal)
        for arg in node.args
    )


def _cast(value: Literal, kind: str) -> Literal | None:
    """The usual dates and times, without asking DuckDB."""
    if not isinstance(value.value, str):
        return None
    if kind == "DATE":
        days = read_date(value.value)
        return None if days is None else Literal(days, "date")
    moment = read_moment(value.value) if kind.startswith("TIMESTAMP") else None
    # A zone in the text of a TIMESTAMP without one is read differently by different engines.
    if moment is None or (moment[1] and kind == "TIMESTAMP"):
        return None
    return Literal(moment[0], kind.lower())

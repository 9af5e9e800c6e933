"""Translate predicate trees to DuckDB SQL and evaluate them there.

DuckDB defines what a predicate means. Identifiers are quoted, every value is bound as a parameter,
and only functions on an allow-list are called. The connection is in memory, without access to files
and with its settings locked.
"""

from __future__ import annotations

import atexit
import os
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    Call,
    Column,
    ForeignExpr,
    Literal,
    format_node,
    referenced_columns,
    walk_nodes,
)
from arrowlog.predicate.literals import literal_from_scalar, parse_date, parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.predicate.ast import Node

# Deterministic functions: the result depends on the arguments alone, not on the clock, random
# numbers, settings or files.
_FUNCTION_NAMES = """
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
SUPPORTED_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
# Names that DuckDB spells differently.
_DUCKDB_NAMES = {
    "endswith": "ends_with",
    "startswith": "starts_with",
    "regexp_like": "regexp_matches",
    "nvl": "ifnull",
    "lcase": "lower",
    "ucase": "upper",
    "element": "array_extract",
    "to_date": "cast",
}
_INFIX = {"=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "//", "%", "||"}
_SPECIAL_OPS = frozenset(
    {"and", "or", "not", "is null", "is true", "is false", "in", "between", "<=>", "case"}
    | {"cast", "try_cast", "negative", "interval", "list", "element", "glob"}
)
_SUPPORTED_OPS = _INFIX | _SPECIAL_OPS | SUPPORTED_FUNCTIONS
# How a bound value becomes a literal of its kind; other kinds are bound as they are.
_LITERAL_SQL = {"timestamp": "make_timestamp(?)", "timestamptz": "make_timestamptz(?)"}
_LITERAL_SQL |= {"float": "CAST(? AS FLOAT)"}
_DECIMAL_DIGITS_MAX = 38
_HUGEINT_LIMIT = 1 << 127
_TYPE_CACHE: dict[Any, pa.DataType | None] = {}
_TYPE_CACHE_MAX = 1000  # entries; the cache is cleared when it is full
_LOCK = Lock()
_INPUT_VIEW = "arrowlog_rows"


def is_supported(node: Node) -> bool:
    """Whether DuckDB can evaluate every part of a tree."""
    return all(
        not isinstance(part, ForeignExpr)
        and (not isinstance(part, Call) or part.op in _SUPPORTED_OPS)
        for part in walk_nodes(node)
    )


def is_evaluable(node: Node) -> bool:
    """Whether every part can be evaluated, by DuckDB or by the engine it comes from."""
    return all(
        part.source is not None
        if isinstance(part, ForeignExpr)
        else not isinstance(part, Call) or part.op in _SUPPORTED_OPS
        for part in walk_nodes(node)
    )


class DuckDBCondition:
    """Builds DuckDB SQL for trees and collects the values to bind."""

    def __init__(self, names: Callable[[str], str]) -> None:
        """`names` maps a column to its name where the SQL will run."""
        self.values: list[Any] = []
        self._names = names

    def text(self, node: Node) -> str:
        """The SQL of a node. Its values are appended to `values` in the order of the placeholders.

        Raises InvalidRequest for a `ForeignExpr` part or an unknown function.
        """
        if isinstance(node, Column):
            base = quote_identifier(self._names(node.name))
            for part in node.path:
                base = f"struct_extract({base}, {self._bind(part)})"
            return base
        if isinstance(node, Literal):
            return self._literal(node)
        if isinstance(node, ForeignExpr) or not is_supported(Call(node.op, ())):
            raise InvalidRequest(
                f"{format_node(node)} cannot be evaluated.",
                next="Use deterministic functions that both DuckDB and Spark support.",
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
        if digits > _DECIMAL_DIGITS_MAX or (
            isinstance(value, int) and abs(value) >= _HUGEINT_LIMIT
        ):
            value = float(value)  # wider than DECIMAL(38) and HUGEINT
        self._bind(value)
        return _LITERAL_SQL.get(node.kind, "?")

    def _call(self, node: Call) -> str:  # noqa: C901 -- one branch per operator
        op, args = node.op, node.args
        if op in ("and", "or"):
            return f"({f' {op.upper()} '.join(map(self.text, args))})"
        if op in _INFIX:
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
            if node.detail not in ("second", "millisecond"):  # only these take fractions
                amount = f"CAST(trunc({amount}) AS BIGINT)"
            return f"to_{node.detail}s({amount})"
        if op == "list":
            return f"[{', '.join(map(self.text, args))}]"
        return self._function(node)

    def _function(self, node: Call) -> str:
        """Pattern matching, CASE and functions."""
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
        translated = _from_spark(node)
        if translated is not None:
            return self.text(translated)
        return f"{_DUCKDB_NAMES.get(op, op)}({', '.join(map(self.text, args))})"


def _from_spark(node: Call) -> Node | None:
    """Rewrite Spark functions that DuckDB lacks or defines differently; None for all others."""
    op, args = node.op, node.args
    if len(args) == 1 and op in ("isnull", "isnotnull"):
        is_null = Call("is null", args)
        return is_null if op == "isnull" else Call("not", (is_null,))
    if len(args) == 1 and op in ("to_date", "date"):
        return Call("cast", args, "DATE")
    if len(args) == 1 and op == "to_timestamp" and getattr(args[0], "kind", "") == "text":
        return Call("cast", args, "TIMESTAMP")
    if len(args) == 2 and op in ("date_add", "date_sub", "datediff"):
        return Call("+" if op == "date_add" else "-", args)
    if len(args) == 2 and op == "add_months":
        return Call("cast", (Call("+", (args[0], Call("interval", args[1:], "month"))),), "DATE")
    return None


def quote_identifier(name: str) -> str:
    """Quote an identifier for DuckDB."""
    return '"' + name.replace('"', '""') + '"'


class _Connection:
    """The in-memory DuckDB connection of this process. Not thread-safe: guarded by `_LOCK`."""

    def __init__(self) -> None:
        import duckdb

        self._errors = duckdb.Error
        # One thread: results are matched with rows by position, and with several threads the
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
        """Close the connection and end its threads."""
        self._connection.close()

    def query(self, sql: str, values: Sequence[Any], rows: pa.Table | None) -> pa.Table:
        """Run a query over `rows`; raises InvalidRequest with DuckDB's message if it fails."""
        try:
            if rows is not None:
                self._connection.register(_INPUT_VIEW, rows)
            return self._connection.sql(sql, params=list(values)).to_arrow_table()
        except self._errors as error:
            message = str(error).partition("\n")[0]
            raise InvalidRequest(
                f"The predicate cannot be evaluated: {message}",
                next="Check the types of its columns, values and function arguments.",
            ) from None
        finally:
            if rows is not None:
                self._connection.unregister(_INPUT_VIEW)


_CONNECTIONS: list[_Connection] = []  # at most one, opened on first use


def _query(sql: str, values: Sequence[Any], rows: pa.Table | None) -> pa.Table:
    """Run a query on the shared connection, one at a time."""
    with _LOCK:
        if not _CONNECTIONS:
            _CONNECTIONS.append(_Connection())
        return _CONNECTIONS[0].query(sql, values, rows)


def _close() -> None:
    """Close the connection; the next query opens another."""
    while _CONNECTIONS:
        _CONNECTIONS.pop().close()


def _before_fork() -> None:
    """Close the connection and hold the lock across a fork.

    Neither a DuckDB connection nor a lock held by another thread is usable in the child.
    """
    _LOCK.acquire()
    _close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
atexit.register(_close)


def evaluate_node(node: Node, rows: pa.Table) -> pa.ChunkedArray:
    """Evaluate a node for every row. Raises InvalidRequest if DuckDB cannot."""
    aliases = {name: f"c{number}" for number, name in enumerate(rows.column_names)}
    condition = DuckDBCondition(aliases.__getitem__)
    text = condition.text(node)
    renamed = rows.rename_columns(list(aliases.values())) if aliases else rows
    query = f"SELECT ({text}) AS answer FROM {_INPUT_VIEW}"  # noqa: S608 -- values are bound
    return _query(query, condition.values, renamed)["answer"]


def infer_type(node: Node, schema: pa.Schema) -> pa.DataType | None:
    """The Arrow type of a node's value, as DuckDB infers it; None if it cannot.

    Cached per SQL text, parameter types and column types.
    """
    names = sorted(referenced_columns(node))
    condition = DuckDBCondition(str)
    try:
        sql = condition.text(node)
    except InvalidRequest:
        return None
    value_types = tuple(type(value) for value in condition.values)
    key = (sql, value_types, tuple(str(schema.field(name).type) for name in names))
    if key not in _TYPE_CACHE:
        if len(_TYPE_CACHE) >= _TYPE_CACHE_MAX:
            _TYPE_CACHE.clear()
        empty = pa.schema([schema.field(name) for name in names]).empty_table()
        try:
            _TYPE_CACHE[key] = evaluate_node(node, empty).type
        except (InvalidRequest, pa.ArrowException):
            _TYPE_CACHE[key] = None
    return _TYPE_CACHE[key]


def evaluate_constant(node: Node) -> Literal | None:
    """Evaluate a node without columns; None if that fails or gives no kind of literal."""
    condition = DuckDBCondition(str)
    try:
        sql = condition.text(node)
        result = _query(f"SELECT ({sql}) AS answer", condition.values, None)["answer"]
    except InvalidRequest:
        return None
    return literal_from_scalar(result[0])


def fold_constants(node: Node) -> Node:
    """Fold constants: replace every part that is the same for all rows by its value."""
    if not isinstance(node, Call):
        return node
    if node.op == "cast" and isinstance(node.args[0], Literal):
        literal = _cast_temporal(node.args[0], node.detail)
        if literal is not None:
            return literal
    if _is_constant(node) and is_supported(node):
        return evaluate_constant(node) or node
    args = tuple(fold_constants(arg) if isinstance(arg, Call) else arg for arg in node.args)
    changed = any(new is not old for new, old in zip(args, node.args, strict=True))
    return Call(node.op, args, node.detail) if changed else node


def _is_constant(node: Call) -> bool:
    """Whether a call references no column."""
    return all(
        _is_constant(arg) if isinstance(arg, Call) else isinstance(arg, Literal)
        for arg in node.args
    )


def _cast_temporal(value: Literal, kind: str) -> Literal | None:
    """Cast ISO text to a date or timestamp without DuckDB; None for anything else."""
    if not isinstance(value.value, str):
        return None
    if kind == "DATE":
        days = parse_date(value.value)
        return None if days is None else Literal(days, "date")
    moment = parse_timestamp(value.value) if kind.startswith("TIMESTAMP") else None
    # Engines disagree on a zone in the text of a TIMESTAMP without time zone: leave it to DuckDB.
    if moment is None or (moment[1] and kind == "TIMESTAMP"):
        return None
    return Literal(moment[0], kind.lower())

"""Translate predicate trees to DuckDB SQL and evaluate them there.

DuckDB defines what a predicate means. Identifiers are quoted, every value is bound as a parameter,
and only functions on an allow-list are called. The connection is in memory, without access to files
and with its settings locked.
"""

from __future__ import annotations

import atexit
import math
import os
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.arrays import DECIMAL_DIGITS_MAX, INT_MAX, empty_table
from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    ARITHMETIC_OPS,
    COMPARISON_OPS,
    SUPPORTED_OPS,
    Call,
    Literal,
    NodeVisitor,
    Untranslatable,
    handles,
    is_supported,
    referenced_columns,
)
from arrowlog.predicate.emit.text import format_node, quote_identifier
from arrowlog.predicate.literals import (
    DAY_MICROS,
    days_from_date,
    literal_from_scalar,
    parse_date,
    parse_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrowlog.predicate.ast import Column, Node, ValueSet

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
# How a bound value becomes a literal of its kind; other kinds are bound as they are.
_LITERAL_SQL = {"timestamp": "make_timestamp({})", "timestamptz": "make_timestamptz({})"}
_LITERAL_SQL |= {"float": "CAST({} AS FLOAT)"}
# How a condition is compared with the truth value that is asked for: by `want` and `null`.
_TRUTH_TESTS = {
    (True, False): "IS TRUE",
    (True, True): "IS NOT FALSE",
    (False, False): "IS FALSE",
    (False, True): "IS NOT TRUE",
}
_HUGEINT_LIMIT = 1 << 127
# The types of integers that are bound as parameters.
_INTEGER_TYPES = (
    ("INTEGER", -(1 << 31), 1 << 31),
    ("BIGINT", -(1 << 63), 1 << 63),
    ("UBIGINT", 1 << 63, 1 << 64),
)
_DATE_INFINITY = (1 << 31) - 1  # days since 1970 that DuckDB reads as infinity
_TYPE_CACHE: dict[Any, pa.DataType | None] = {}
_TYPE_CACHE_MAX = 1000  # entries; the cache is cleared when it is full
_LOCK = Lock()
_INPUT_VIEW = "arrowlog_rows"


def emit_duckdb(node: Node, names: Callable[[str], str]) -> tuple[str, list[Any]]:
    """The SQL of a node, and the values to bind in the order of its placeholders.

    `names` maps a column to its name where the SQL will run. Raises InvalidRequest for a
    `ForeignExpr` part or an unknown function.
    """
    emitter = _SQLEmitter(names)
    try:
        return emitter.visit(node), emitter.values
    except Untranslatable as error:
        raise InvalidRequest(
            f"{format_node(error.part)} cannot be evaluated.",
            next="Use deterministic functions that both DuckDB and Spark support.",
        ) from None


def emit_condition(
    node: Node, names: Callable[[str], str], *, want: bool, null: bool
) -> tuple[str, list[Any]]:
    """The SQL of whether a condition is `want`, or NULL if `null` is set, and the values to bind.

    Its value is NULL for a row for which the condition cannot be evaluated.
    """
    text, values = emit_duckdb(node, names)
    return f"TRY(CAST({text} AS BOOLEAN) {_TRUTH_TESTS[want, null]})", values


def write_condition(
    node: Node, schema: pa.Schema, names: Callable[[str], str], *, want: bool, null: bool
) -> str | None:
    """The SQL of `emit_condition` with its values written out; None if DuckDB rejects it."""
    kind = infer_type(node, schema)
    if kind is None:
        return None
    text = _SQLWriter(names).visit(node)
    text = text if pa.types.is_boolean(kind) else f"CAST({text} AS BOOLEAN)"
    text = f"TRY({text} {_TRUTH_TESTS[want, null]})"
    fields = [schema.field(name).with_name(names(name)) for name in referenced_columns(node)]
    query = f"SELECT {text} FROM {_INPUT_VIEW}"  # noqa: S608 -- values are literals
    try:
        _query(query, (), empty_table(pa.schema(fields)))
    except InvalidRequest:
        return None
    return text


class _SQLEmitter(NodeVisitor[str]):
    """Emits SQL and collects the values to bind, in the order of the placeholders."""

    def __init__(self, names: Callable[[str], str]) -> None:
        self.values: list[Any] = []
        self._names = names

    def _bind(self, value: Any) -> str:
        self.values.append(value)
        return "?"

    def visit_column(self, node: Column) -> str:
        base = quote_identifier(self._names(node.name))
        for part in node.path:
            base = f"struct_extract({base}, {self._bind(part)})"
        return base

    def visit_literal(self, node: Literal) -> str:
        if node.value is None:
            return "NULL"
        if node.kind == "date":
            return f"(DATE '1970-01-01' + CAST({self._bind(node.value)} AS INTEGER))"
        value = node.value
        digits = len(value.as_tuple().digits) if isinstance(value, Decimal) else 0
        if digits > DECIMAL_DIGITS_MAX or (isinstance(value, int) and abs(value) >= _HUGEINT_LIMIT):
            value = float(value)  # wider than DECIMAL(38) and HUGEINT
        return _LITERAL_SQL.get(node.kind, "{}").format(self._bind(value))

    def visit_value_set(self, node: ValueSet) -> str:
        values = node.values.to_pylist()
        return f"SELECT unnest({self._bind([*values, None] if node.has_null else values)})"

    def visit_call(self, node: Call) -> str:
        """Functions; those of Spark that DuckDB lacks are rewritten first."""
        if node.op not in SUPPORTED_OPS:
            raise Untranslatable(node)
        rewritten = _from_spark(node)
        if rewritten is not None:
            return self.visit(rewritten)
        return f"{_DUCKDB_NAMES.get(node.op, node.op)}({', '.join(self.visit_args(node))})"

    @handles("and", "or")
    def _connective(self, node: Call) -> str:
        return f"({f' {node.op.upper()} '.join(self.visit_args(node))})"

    @handles(*COMPARISON_OPS, *ARITHMETIC_OPS, "||")
    def _infix(self, node: Call) -> str:
        left, right = self.visit_args(node)
        return f"({left} {node.op} {right})"

    @handles("<=>")
    def _null_safe_equal(self, node: Call) -> str:
        left, right = self.visit_args(node)
        return f"({left} IS NOT DISTINCT FROM {right})"

    @handles("not")
    def _not(self, node: Call) -> str:
        return f"(NOT {self.visit(node.args[0])})"

    @handles("negative")
    def _negative(self, node: Call) -> str:
        return f"(- {self.visit(node.args[0])})"

    @handles("is null", "is true", "is false")
    def _is(self, node: Call) -> str:
        return f"({self.visit(node.args[0])} {node.op.upper()})"

    @handles("between")
    def _between(self, node: Call) -> str:
        value, low, high = self.visit_args(node)
        return f"({value} BETWEEN {low} AND {high})"

    @handles("in")
    def _in(self, node: Call) -> str:
        value, *members = self.visit_args(node)
        return f"({value} IN ({', '.join(members)}))"

    @handles("cast", "try_cast")
    def _cast(self, node: Call) -> str:
        return f"{node.op.upper()}({self.visit(node.args[0])} AS {node.detail})"

    @handles("interval")
    def _interval(self, node: Call) -> str:
        amount = f"CAST({self.visit(node.args[0])} AS DOUBLE)"
        if node.detail not in ("second", "millisecond"):  # only these take fractions
            amount = f"CAST(trunc({amount}) AS BIGINT)"
        return f"to_{node.detail}s({amount})"

    @handles("list")
    def _list(self, node: Call) -> str:
        return f"[{', '.join(self.visit_args(node))}]"

    @handles("like", "ilike", "glob")
    def _like(self, node: Call) -> str:
        value, pattern, *escape = self.visit_args(node)
        ending = f" ESCAPE {escape[0]}" if escape else ""
        return f"({value} {node.op.upper()} {pattern}{ending})"

    @handles("case")
    def _case(self, node: Call) -> str:
        *pairs, otherwise = self.visit_args(node)
        whens = zip(pairs[::2], pairs[1::2], strict=True)
        cases = " ".join(f"WHEN {when} THEN {then}" for when, then in whens)
        return f"(CASE {cases} ELSE {otherwise} END)"


class _SQLWriter(_SQLEmitter):
    """Emits SQL with the values in it, for people to read."""

    def _bind(self, value: Any) -> str:
        """A value with the type that it has as a parameter; a plain integer adapts to others."""
        if isinstance(value, Decimal) and value == value.to_integral_value():
            return f"CAST('{value:f}' AS DECIMAL{_decimal_size(value)})"
        if not isinstance(value, int) or isinstance(value, bool):
            return write_value(value)
        kinds = (kind for kind, low, high in _INTEGER_TYPES if low <= value < high)
        return f"CAST({value} AS {next(kinds, 'HUGEINT')})"

    @handles("in")
    def _in(self, node: Call) -> str:
        """IN as a function of a list: DuckDB runs a long IN as a join, which TRY does not cover."""
        value, *members = self.visit_args(node)
        return f"list_transform([{value}], lambda v: v IN ({', '.join(members)}))[1]"

    def visit_literal(self, node: Literal) -> str:
        if node.value is not None and node.kind in ("date", "timestamp", "timestamptz"):
            return write_moment(int(node.value), node.kind)
        return super().visit_literal(node)


def write_value(value: Any) -> str:
    """A boolean, number, text or bytes as a SQL literal that DuckDB reads as exactly this value."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        # The parser takes NUL for the end of the query.
        return " || chr(0) || ".join(_quote_text(part) for part in value.split("\0"))
    if isinstance(value, bytes):
        return "CAST('" + "".join(rf"\x{byte:02X}" for byte in value) + "' AS BLOB)"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"CAST('{value}' AS DOUBLE)"
        # With an exponent a number is a DOUBLE, without one a DECIMAL.
        return repr(value) if "e" in repr(value) else f"{value!r}e0"
    return str(value)


def _decimal_size(value: Decimal) -> tuple[int, int]:
    """The digits of a decimal, and how many of them follow the point."""
    _, digits, exponent = value.as_tuple()
    scale = max(-exponent, 0) if isinstance(exponent, int) else 0
    whole = len(digits) + max(exponent, 0) if isinstance(exponent, int) else len(digits)
    return max(whole, scale, 1), scale


def write_moment(value: int, kind: str) -> str:
    """A date (days since 1970) or timestamp (microseconds since 1970) as a SQL literal."""
    limit, days = (_DATE_INFINITY, value) if kind == "date" else (INT_MAX, value // DAY_MICROS)
    if abs(value) >= limit:
        return f"{kind.upper()} '{'-' if value < 0 else ''}infinity'"
    if days_from_date(1, 1, 1) <= days < days_from_date(10_000, 1, 1):
        return format_node(Literal(value, kind))
    if kind == "date":
        return f"(DATE '1970-01-01' + CAST({value} AS INTEGER))"
    return f"make_{kind}({value})"


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
            # As a join, an IN inside TRY would fail the query instead of being NULL.
            "SET disabled_optimizers = 'in_clause'",
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
    text, values = emit_duckdb(node, aliases.__getitem__)
    renamed = rows.rename_columns(list(aliases.values())) if aliases else rows
    query = f"SELECT ({text}) AS answer FROM {_INPUT_VIEW}"  # noqa: S608 -- values are bound
    return _query(query, values, renamed)["answer"]


def evaluate_condition(node: Node, rows: pa.Table, *, want: bool, null: bool) -> pa.ChunkedArray:
    """Whether a condition is `want`, or NULL if `null` is set, for every row.

    NULL for a row for which it cannot be evaluated. Raises InvalidRequest if DuckDB rejects it.
    """
    aliases = {name: f"c{number}" for number, name in enumerate(rows.column_names)}
    text, values = emit_condition(node, aliases.__getitem__, want=want, null=null)
    query = f"SELECT {text} AS answer FROM {_INPUT_VIEW}"  # noqa: S608 -- values are bound
    return _query(query, values, rows.rename_columns(list(aliases.values())))["answer"]


def query_rows(sql: Callable[[str], str], rows: pa.Table) -> pa.Table:
    """Run a query over rows; `sql` receives the name under which they can be selected from."""
    return _query(sql(_INPUT_VIEW), (), rows)


def infer_type(node: Node, schema: pa.Schema) -> pa.DataType | None:
    """The Arrow type of a node's value, as DuckDB infers it; None if it cannot.

    Cached per SQL text, parameter types and column types.
    """
    names = sorted(referenced_columns(node))
    try:
        sql, values = emit_duckdb(node, str)
    except InvalidRequest:
        return None
    value_types = tuple(type(value) for value in values)
    key = (sql, value_types, tuple(str(schema.field(name).type) for name in names))
    if key not in _TYPE_CACHE:
        if len(_TYPE_CACHE) >= _TYPE_CACHE_MAX:
            _TYPE_CACHE.clear()
        empty = empty_table(pa.schema([schema.field(name) for name in names]))
        try:
            _TYPE_CACHE[key] = evaluate_node(node, empty).type
        except (InvalidRequest, pa.ArrowException):
            _TYPE_CACHE[key] = None
    return _TYPE_CACHE[key]


def evaluate_constant(node: Node) -> Literal | None:
    """Evaluate a node without columns; None if that fails or gives no kind of literal."""
    try:
        sql, values = emit_duckdb(node, str)
        result = _query(f"SELECT ({sql}) AS answer", values, None)["answer"]
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

"""Parse polars expressions to the predicate AST, by way of their JSON serialization.

A part that the AST cannot represent becomes a `ForeignExpr` node, which polars evaluates one batch
of rows at a time. Such a part must therefore be elementwise; an expression that looks at more than
one row is refused.

JSON has no NaN and no infinity: polars writes null for them. Where null stands for a float, and for
foreign parts, the sub-expression itself is retrieved.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    NULL,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Untranslatable,
    column_type,
    join_nodes,
    resolve_column,
)
from arrowlog.predicate.limits import (
    PREDICATE_CONDITIONS_MAX,
    predicate_too_deep_error,
    predicate_too_long_error,
    run_on_deep_stack,
)
from arrowlog.predicate.literals import (
    literal_from_scalar,
    make_in,
    make_null_safe_in,
    round_to_float32,
)

if TYPE_CHECKING:
    import polars as pl

    from arrowlog.predicate.ast import Node

_BINARY_OPS = {
    "Eq": "=",
    "NotEq": "<>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "And": "and",
    "LogicalAnd": "and",
    "Or": "or",
    "LogicalOr": "or",
    "EqValidity": "<=>",
    "Plus": "+",
    "Minus": "-",
    "Multiply": "*",
}
_BETWEEN_OPS = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_NON_FINITE_FLOAT = re.compile(r'"Float(?:32|64)?":null')
# A condition has four nodes: the comparison, its column, its value, and the AND or OR above it.
_NODES_MAX = 4 * PREDICATE_CONDITIONS_MAX
# Levels that the default stack of any thread can hold.
_SHALLOW_DEPTH = 1000
# A shallow expression whose binary form is larger is decoded from that.
_BINARY_DEPTH_MAX, _JSON_BYTES_MAX = 100, 1 << 14
_JSON_LEFT_OPERAND = '{"BinaryExpr":{"left":'
# Elementwise expressions of which polars cannot tell that they are: they call Python functions.
_ELEMENTWISE = re.compile(r"\[\(.*\)\]|.*\.(python_udf|not|is_null|is_not_null)\(\)", re.DOTALL)


def parse_polars(expression: pl.Expr, schema: pa.Schema) -> Node:
    """Parse a polars expression; parts that the AST cannot represent become `ForeignExpr` nodes.

    Raises InvalidRequest if the expression references an unknown column, has several outputs, is
    too large or too deep, or contains a foreign part that is not elementwise.
    """
    roots = expression.meta.root_names()
    for name in roots:
        resolve_column(name, schema)
    if expression.meta.has_multiple_outputs():
        raise InvalidRequest(
            f"{expression} has more than one output column.",
            next="Combine the conditions with & or |.",
        )
    depth = _check_size(expression)
    try:
        serialized = (
            _serialize(expression, shallow=depth <= _BINARY_DEPTH_MAX)
            if depth <= _SHALLOW_DEPTH
            else run_on_deep_stack(lambda: _serialize(expression))
        )
    except RecursionError:
        raise predicate_too_deep_error() from None
    except Exception as error:  # noqa: BLE001 -- whatever polars cannot serialize
        del error
        if depth > _SHALLOW_DEPTH:
            raise predicate_too_deep_error() from None
        _check_elementwise(expression)
        return ForeignExpr(str(expression), frozenset(roots), expression)
    return _Converter(schema).condition(_ExprNode(serialized, expression))


def _serialize(expression: pl.Expr, *, shallow: bool = False) -> Any:
    """An expression as nested dicts and lists.

    JSON is preferred: the binary form is decoded recursively and has bytes where JSON has large
    integers. But it can hold NaN and infinity, which JSON cannot, and the values of a long `is_in`
    as bytes, not as text that is several times as long.
    """
    if shallow:
        data = expression.meta.serialize(format="binary")
        if len(data) > _JSON_BYTES_MAX:
            return msgspec.msgpack.decode(data)
    text = expression.meta.serialize(format="json")
    if _NON_FINITE_FLOAT.search(text) is None:
        return _parse_json(text)
    return msgspec.msgpack.decode(expression.meta.serialize(format="binary"))


def _check_size(expression: pl.Expr) -> int:
    """Return the depth of an expression; raise InvalidRequest if it has too many nodes.

    Runs before polars serializes it, and level by level: polars' own traversals are recursive.
    """
    level, depth, count = [expression], 0, 0
    while level:
        depth += 1
        count += len(level)
        if count > _NODES_MAX:
            raise predicate_too_long_error()
        level = [part for node in level for part in node.meta.pop()]
    return depth


def _parse_json(text: str) -> Any:
    """Parse the JSON of an expression.

    A chain of a thousand ORs is nested a thousand levels deep on its left side. These levels are
    unwrapped in a loop, since the JSON decoder is recursive.
    """
    depth = 0
    while text.startswith(_JSON_LEFT_OPERAND, depth * len(_JSON_LEFT_OPERAND)):
        depth += 1
    decode = json.JSONDecoder().raw_decode
    node, position = decode(text, depth * len(_JSON_LEFT_OPERAND))
    for _ in range(depth):
        op, position = decode(text, position + len(',"op":'))
        right, position = decode(text, position + len(',"right":'))
        position += len("}}")
        node = {"BinaryExpr": {"left": node, "op": op, "right": right}}
    if position != len(text):
        raise ValueError(text[position : position + 40])
    return node


def _check_elementwise(expression: pl.Expr) -> None:
    """Raise InvalidRequest if a part is not elementwise; polars reports this per part."""
    parts = [expression]
    while parts:
        part = parts.pop()
        parts += part.meta.pop()
        try:
            elementwise = part.meta.is_row_separable()
            # A constant has length 1, whatever the number of rows.
            elementwise &= part.meta.is_length_preserving() or not part.meta.root_names()
        except Exception as error:  # noqa: BLE001 -- polars cannot tell for Python functions
            del error
            elementwise = _ELEMENTWISE.fullmatch(str(part)) is not None
        if not elementwise:
            raise InvalidRequest(
                f"{part} looks at more than one row, or is not known to be elementwise.",
                next="Use a row predicate, and aggregate the rows that the plan returns.",
            )


class _ExprNode:
    """A node of an expression: its JSON and, on demand, the polars expression itself."""

    __slots__ = ("cached", "index", "parent", "spec")

    def __init__(
        self,
        spec: Any,
        expression: pl.Expr | None = None,
        parent: _ExprNode | None = None,
        index: int = 0,
    ) -> None:
        """The root has an expression; every other node has its parent and its input index there."""
        self.spec = spec
        self.cached = expression
        self.parent = parent
        self.index = index

    def input(self, spec: Any, index: int) -> _ExprNode:
        """The node of one of the inputs."""
        return _ExprNode(spec, None, self, index)

    def sides(self) -> tuple[_ExprNode, _ExprNode]:
        """Both operands of a binary operator."""
        inner = self.spec["BinaryExpr"]
        return self.input(inner["left"], 0), self.input(inner["right"], 1)

    def expression(self) -> pl.Expr:
        """The polars expression of this node. Iterative: a chain may be thousands of nodes deep."""
        ancestors: list[_ExprNode] = []
        part = self
        while part.cached is None and part.parent is not None:
            ancestors.append(part)
            part = part.parent
        expression = part.cached
        assert expression is not None
        for part in reversed(ancestors):
            expression = expression.meta.pop()[::-1][part.index]  # polars returns the last first
            part.cached = expression
        return expression


def _names_in(spec: Any) -> set[str]:
    """The columns that serialized JSON references."""
    if isinstance(spec, dict):
        inner = set().union(*(_names_in(value) for value in spec.values()))
        name = spec.get("Column")
        return inner | {name} if isinstance(name, str) else inner
    return set().union(*map(_names_in, spec)) if isinstance(spec, list) else set()


class _Converter:
    """Converts serialized expressions over one table to AST nodes."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, part: _ExprNode) -> Node:
        """Convert a condition; operands of AND, OR and NOT may become `ForeignExpr` nodes."""
        op, operands = _flatten(part)
        if op:
            return join_nodes(op, [self.condition(operand) for operand in operands])
        negated = _operand_of_not(part)
        if negated is not None:
            return Call("not", (self.condition(negated),))
        try:
            return self._node(part)
        except Untranslatable:
            expression = part.expression()
            _check_elementwise(expression)
            return ForeignExpr(str(expression), frozenset(_names_in(part.spec)), expression)

    def _node(self, part: _ExprNode) -> Node:
        spec = part.spec
        if not isinstance(spec, dict) or len(spec) != 1:
            raise Untranslatable
        ((kind, inner),) = spec.items()
        if kind == "Column":
            return Column(inner)
        if kind == "Literal":
            return _literal(inner, part)
        if not _names_in(spec):
            return _evaluate_constant(part)
        if kind == "Alias":
            return self._node(part.input(inner[0], 0))
        if kind == "BinaryExpr":
            return self._binary(part)
        if kind == "Cast":
            return self._cast(part.input(inner["expr"], 0), inner["dtype"])
        if kind == "Function":
            inputs = [part.input(child, index) for index, child in enumerate(inner["input"])]
            return self._function(inner["function"], inputs)
        raise Untranslatable

    def _binary(self, part: _ExprNode) -> Node:
        connective, operands = _flatten(part)
        if connective:
            return join_nodes(connective, [self._node(operand) for operand in operands])
        op = part.spec["BinaryExpr"]["op"]
        left, right = (self._node(side) for side in part.sides())
        if op == "NotEqValidity":
            return Call("not", (Call("<=>", (left, right)),))
        if op not in _BINARY_OPS:
            raise Untranslatable
        texts = [self._is_text(side) for side in (left, right)]
        if op == "Plus" and any(texts):
            if not all(texts):
                raise Untranslatable
            return Call("||", (left, right))
        return Call(_BINARY_OPS[op], (left, right))

    def _cast(self, part: _ExprNode, dtype: Any) -> Node:
        """Convert a cast of a column that gives every value exactly one result in all engines.

        polars inserts such casts where a column is compared with a value of another type.
        """
        column = self._node(part)
        target = dtype.get("Literal") if isinstance(dtype, dict) else None
        kind = column_type(column, self._schema) if isinstance(column, Column) else None
        if kind is None:
            raise Untranslatable
        if target == "Float64" and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
            return Call("cast", (column,), "DOUBLE")
        if target == "Int64" and pa.types.is_signed_integer(kind):
            return Call("cast", (column,), "BIGINT")
        if target == {"Datetime": ["Microseconds", None]} and pa.types.is_date32(kind):
            return Call("cast", (column,), "TIMESTAMP")
        if target == "Date" and pa.types.is_timestamp(kind) and kind.tz in (None, "UTC"):
            return Call("cast", (column,), "DATE")
        raise Untranslatable

    def _is_text(self, node: Node) -> bool:
        if isinstance(node, Column):
            kind = column_type(node, self._schema)
            return kind is not None and bool(pa.types.is_string(kind))
        return getattr(node, "kind", "") == "text" or getattr(node, "op", "") == "||"

    def _function(self, function: Any, inputs: list[_ExprNode]) -> Node:  # noqa: C901, PLR0912 -- a branch each
        boolean = function.get("Boolean") if isinstance(function, dict) else None
        if isinstance(boolean, dict) and "IsIn" in boolean:
            return self._in(boolean["IsIn"], inputs)
        args = tuple(self._node(arg) for arg in inputs)
        if boolean == "IsNull":
            return Call("is null", args)
        if boolean == "IsNotNull":
            return Call("not", (Call("is null", args),))
        if boolean == "Not":
            return Call("not", args)
        if boolean == "IsNan":
            return Call("isnan", args)
        if boolean == "IsNotNan":
            return Call("not", (Call("isnan", args),))
        if boolean in ("AllHorizontal", "AnyHorizontal"):
            return join_nodes("and" if boolean == "AllHorizontal" else "or", list(args))
        if isinstance(boolean, dict) and "IsBetween" in boolean:
            low, high = _BETWEEN_OPS[boolean["IsBetween"]["closed"]]
            if (low, high) == (">=", "<="):
                return Call("between", args)
            return Call("and", (Call(low, args[:2]), Call(high, (args[0], args[2]))))
        if isinstance(function, dict) and function.get("TemporalExpr") == "Date":
            return self._cast(inputs[0], {"Literal": "Date"})
        if isinstance(function, dict) and function.get("StringExpr") == "StartsWith":
            return Call("starts_with", args)
        if isinstance(function, dict) and isinstance(function.get("StructExpr"), dict):
            name = function["StructExpr"].get("FieldByName")
            if isinstance(args[0], Column) and isinstance(name, str):
                return Column(args[0].name, (*args[0].path, name))
        raise Untranslatable

    def _in(self, options: Any, inputs: list[_ExprNode]) -> Node:
        column, members = self._node(inputs[0]), inputs[1].spec
        inner = members.get("Literal", {}) if isinstance(members, dict) else {}
        data = inner.get("Series") or inner.get("Scalar", {}).get("List")
        if data is None:
            raise Untranslatable
        with pa.ipc.open_stream(bytes(data)) as reader:
            values = reader.read_all().column(0).combine_chunks()
        if len(values) == 1 and (
            pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
        ):
            values = values.flatten()  # of `Series.implode()`
        if options.get("nulls_equal"):
            return _translated(make_null_safe_in(column, values, self._schema))
        if values.null_count == len(values):  # FALSE, but NULL where the column is NULL
            return Call("and", (Call("is null", (column,)), NULL))
        # In polars a NULL in the list matches nothing, and does not make the result NULL either.
        return _translated(make_in(column, values, self._schema, keep_null=False))


def _translated(condition: Node | None) -> Node:
    if condition is None:
        raise Untranslatable
    return condition


def _operand_of_not(part: _ExprNode) -> _ExprNode | None:
    """The operand of a NOT; None for any other node."""
    function = part.spec.get("Function") if isinstance(part.spec, dict) else None
    if not isinstance(function, dict) or function["function"] != {"Boolean": "Not"}:
        return None
    return part.input(function["input"][0], 0)


def _flatten(part: _ExprNode) -> tuple[str, list[_ExprNode]]:
    """The connective ("and", "or" or "") of a node, and its operands.

    Operands of the same connective on the left side are flattened in a loop.
    """
    op = _connective(part.spec)
    operands: list[_ExprNode] = []
    while op and _connective(part.spec) == op:
        part, right = part.sides()
        operands.append(right)
    return op, [part, *reversed(operands)]


def _connective(spec: Any) -> str:
    binary = spec.get("BinaryExpr") if isinstance(spec, dict) else None
    op = _BINARY_OPS.get(binary["op"], "") if isinstance(binary, dict) else ""
    return op if op in ("and", "or") else ""


def _evaluate_constant(part: _ExprNode) -> Literal:
    """Evaluate an expression without columns, such as `pl.date(2024, 1, 2)`."""
    from arrowlog.fork_safety import pl  # raises ForkedProcess in a forked child

    expression = part.expression()
    _check_elementwise(expression)
    try:
        values = pl.select(expression).to_series().to_arrow()
    except pl.exceptions.PolarsError:
        raise Untranslatable from None
    literal = literal_from_scalar(values[0]) if len(values) == 1 else None
    if literal is None:
        raise Untranslatable
    return literal


def _literal(spec: Any, part: _ExprNode) -> Literal:  # noqa: C901, PLR0912 -- one branch per type
    """Convert a literal; NaN and infinity are null in JSON and are evaluated instead."""
    dynamic = spec.get("Dyn")
    if isinstance(dynamic, dict):
        if dynamic.get("Float", 0) is None:
            return _evaluate_constant(part)
        if "Int" in dynamic:
            return Literal(_integer(dynamic["Int"]), "int")
        if isinstance(dynamic.get("Float"), (int, float)):
            return Literal(float(dynamic["Float"]), "double")
        if "Str" in dynamic:
            return Literal(dynamic["Str"], "text")
    scalar = spec.get("Scalar")
    if not isinstance(scalar, dict) or len(scalar) != 1:
        raise Untranslatable
    ((kind, value),) = scalar.items()
    if kind == "Null":
        return NULL
    if kind == "Boolean":
        return Literal(bool(value), "bool")
    if kind == "String" and isinstance(value, str):
        return Literal(value, "text")
    if kind in ("Float32", "Float64"):
        if value is None:
            return _evaluate_constant(part)
        # The JSON of a 32-bit float has the fewest digits that denote it, as 0.1 for 0.10000000149.
        number = round_to_float32(value) if kind == "Float32" else float(value)
        return Literal(number, "double")
    if kind.startswith(("Int", "UInt")) and isinstance(value, (int, bytes)):
        return Literal(_integer(value), "int")
    if kind == "Binary" and isinstance(value, (list, bytes)):
        return Literal(bytes(value), "blob")
    if kind == "Date":
        return Literal(value, "date")
    if kind == "Decimal":
        unscaled = _integer(value[0])
        digits = tuple(int(digit) for digit in str(abs(unscaled)))
        return Literal(Decimal((int(unscaled < 0), digits, -value[2])), "decimal")
    if kind == "Datetime" and value[1] in ("Microseconds", "Milliseconds"):
        micros = value[0] * (1000 if value[1] == "Milliseconds" else 1)
        return Literal(micros, "timestamp" if value[2] is None else "timestamptz")
    raise Untranslatable


def _integer(value: int | bytes) -> int:
    """An integer; the binary form has bytes for 128-bit ones."""
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)

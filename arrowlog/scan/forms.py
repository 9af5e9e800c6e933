"""Tuples and polars expressions as trees."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.scan.literals import literal_of, scalar_literal
from arrowlog.scan.tree import NULL, TRUE, Call, Column, Foreign, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.scan.tree import Node

_TUPLE = 'A condition is ("column", "op", value); a list of them is AND, a list of lists OR.'
_SIGNS = {"=": "=", "==": "=", "!=": "<>", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_SIGNS |= {"<=>": "<=>"}
_OPS = "=, !=, <, <=, >, >=, <=>, in, not in, between, like, not like, is null, is not null"


def from_tuples(given: Sequence[Any], schema: pa.Schema) -> Node:
    """A flat list of tuples is their AND, a list of lists the OR of ANDs; no tuple is no limit."""
    if isinstance(given, tuple) and given and isinstance(given[0], str):
        return _condition(given, schema)
    if not given:
        return TRUE
    if all(isinstance(part, list) for part in given):
        if not all(given):
            raise InvalidRequest("One of the alternatives is empty.", next=_TUPLE)
        return _joined("or", [from_tuples(part, schema) for part in given])
    return _joined("and", [_condition(part, schema) for part in given])


def _joined(op: str, parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Call(op, tuple(parts))


def _condition(given: Any, schema: pa.Schema) -> Node:
    if not isinstance(given, tuple) or len(given) not in (2, 3) or not isinstance(given[0], str):
        raise InvalidRequest(f"{given!r} is not a condition.", next=_TUPLE)
    column = _column(given[0], schema)
    op = " ".join(str(given[1]).lower().split()) if isinstance(given[1], str) else ""
    negated = op.startswith("not ")
    op = op.removeprefix("not ")
    where = f"The condition on {given[0]!r}"
    value = given[2] if len(given) == 3 else None
    if op in ("is null", "is not null") or (op in ("is", "is not") and value is None):
        found: Node = Call("is null", (column,))
        negated = "not" in op
    elif len(given) == 2:
        raise InvalidRequest(f"{given!r} has no value to compare with.", next=_TUPLE)
    elif op in ("in", "between"):
        found = _several(column, op, value, where)
    elif op in ("like", "ilike", "starts_with"):
        found = Call(op, (column, literal_of(value, where)))
    elif op in _SIGNS and not negated:
        found = Call(_SIGNS[op], (column, literal_of(value, where)))
    else:
        raise InvalidRequest(f"{given[1]!r} is not an operator.", next=f"Use one of {_OPS}.")
    return Call("not", (found,)) if negated else found


def _several(column: Column, op: str, value: Any, where: str) -> Node:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise InvalidRequest(f"{where}: {op.upper()} needs a list of values.", next=_TUPLE)
    values = [literal_of(item, where) for item in value]
    if op == "between":
        if len(values) != 2:
            raise InvalidRequest(f"{where}: BETWEEN needs two values.", next=_TUPLE)
        return Call("between", (column, *values))
    return Call("in", (column, *values)) if values else Literal(False, "bool")


def _column(name: str, schema: pa.Schema) -> Column:
    if schema.get_field_index(name) >= 0:
        return Column(name)
    known = ", ".join(schema.names[:12]) + (", …" if len(schema.names) > 12 else "")
    raise InvalidRequest(f"There is no column {name!r}.", next=f"The columns are {known}.")


class _Beyond(Exception):
    """A part of an expression that has no equal here."""


def from_polars(expression: Any, schema: pa.Schema) -> Node:
    """A polars expression, by way of its JSON form."""
    roots = expression.meta.root_names()
    for name in roots:
        _column(name, schema)
    if expression.meta.has_multiple_outputs():
        raise InvalidRequest(
            f"{expression} gives more than one column.", next="Give one condition."
        )
    try:
        found = json.loads(expression.meta.serialize(format="json"))
    except Exception as error:  # noqa: BLE001 -- whatever polars cannot put into words
        del error
        return Foreign(str(expression), frozenset(roots))
    return _polars(found, expression)


_POLARS = {
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
_CLOSED = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}


def _polars(found: Any, whole: Any) -> Node:
    """A tree, with foreign leaves for what is beyond us where it can stand on its own."""
    try:
        return _polars_node(found)
    except _Beyond:
        pass
    binary = found.get("BinaryExpr") if isinstance(found, dict) else None
    if binary is not None and _POLARS.get(binary["op"]) in ("and", "or"):
        sides = (_polars(binary["left"], whole), _polars(binary["right"], whole))
        return Call(_POLARS[binary["op"]], sides)
    columns = frozenset(_names_in(found))
    return Foreign(_polars_text(found, whole), columns)


def _polars_text(found: Any, whole: Any) -> str:
    import io

    import polars as pl

    try:
        part = pl.Expr.deserialize(io.BytesIO(json.dumps(found).encode()), format="json")
    except Exception:  # noqa: BLE001 -- only a label
        part = whole
    return str(part)


def _names_in(found: Any) -> set[str]:
    if isinstance(found, dict):
        inner = set().union(*(_names_in(value) for value in found.values()))
        name = found.get("Column")
        return inner | {name} if isinstance(name, str) else inner
    return set().union(*map(_names_in, found)) if isinstance(found, list) else set()


def _polars_node(found: Any) -> Node:
    if not isinstance(found, dict) or len(found) != 1:
        raise _Beyond
    ((kind, inner),) = found.items()
    if kind == "Column":
        return Column(inner)
    if kind == "Alias":
        return _polars_node(inner[0])
    if kind == "Literal":
        return _polars_literal(inner)
    if kind == "BinaryExpr":
        left, right = _polars_node(inner["left"]), _polars_node(inner["right"])
        if inner["op"] == "NotEqValidity":
            return Call("not", (Call("<=>", (left, right)),))
        if inner["op"] not in _POLARS:
            raise _Beyond
        return Call(_POLARS[inner["op"]], (left, right))
    if kind == "Function":
        return _polars_function(inner["function"], inner["input"])
    raise _Beyond


def _polars_function(function: Any, given: list[Any]) -> Node:  # noqa: C901 -- one line a case
    boolean = function.get("Boolean") if isinstance(function, dict) else None
    if isinstance(boolean, dict) and "IsIn" in boolean:
        return _polars_in(boolean["IsIn"], given)
    args = tuple(_polars_node(arg) for arg in given)
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
        return _joined("and" if boolean == "AllHorizontal" else "or", list(args))
    if isinstance(boolean, dict) and "IsBetween" in boolean:
        low, high = _CLOSED[boolean["IsBetween"]["closed"]]
        if (low, high) == (">=", "<="):
            return Call("between", args)
        return Call("and", (Call(low, args[:2]), Call(high, (args[0], args[2]))))
    if isinstance(function, dict) and function.get("StringExpr") == "StartsWith":
        return Call("starts_with", args)
    if isinstance(function, dict) and isinstance(function.get("StructExpr"), dict):
        name = function["StructExpr"].get("FieldByName")
        if isinstance(args[0], Column) and isinstance(name, str):
            return Column(args[0].name, (*args[0].path, name))
    raise _Beyond


def _polars_in(options: Any, given: list[Any]) -> Node:
    column = _polars_node(given[0])
    data = given[1].get("Literal", {}).get("Scalar", {}).get("List")
    if data is None or options.get("nulls_equal"):
        raise _Beyond
    with pa.ipc.open_stream(bytes(data)) as reader:
        values = [scalar_literal(value) for value in reader.read_all().column(0)]
    if any(value is None for value in values):
        raise _Beyond
    # In polars a NULL in the list equals nothing, and makes nothing unknown either.
    known = [value for value in values if value is not None and value is not NULL]
    return Call("in", (column, *known)) if known else Literal(False, "bool")


def _polars_literal(found: Any) -> Literal:  # noqa: C901, PLR0912 -- one line a case
    dynamic = found.get("Dyn")
    if isinstance(dynamic, dict):
        if "Int" in dynamic:
            return Literal(int(dynamic["Int"]), "int")
        if isinstance(dynamic.get("Float"), (int, float)):
            return Literal(float(dynamic["Float"]), "double")
        if "Str" in dynamic:
            return Literal(dynamic["Str"], "text")
    scalar = found.get("Scalar")
    if not isinstance(scalar, dict) or len(scalar) != 1:
        raise _Beyond
    ((kind, value),) = scalar.items()
    if kind == "Null":
        return NULL
    if kind == "Boolean":
        return Literal(bool(value), "bool")
    if kind == "String" and isinstance(value, str):
        return Literal(value, "text")
    if kind in ("Float32", "Float64") and isinstance(value, (int, float)):
        return Literal(float(value), "double")
    if kind.startswith(("Int", "UInt")) and isinstance(value, int):
        return Literal(value, "int")
    if kind == "Date":
        return Literal(value, "date")
    if kind == "Decimal":
        digits = tuple(int(digit) for digit in str(abs(value[0])))
        return Literal(Decimal((int(value[0] < 0), digits, -value[2])), "decimal")
    if kind == "Datetime" and value[1] in ("Microseconds", "Milliseconds"):
        micros = value[0] * (1000 if value[1] == "Milliseconds" else 1)
        return Literal(micros, "timestamp" if value[2] is None else "timestamptz")
    raise _Beyond

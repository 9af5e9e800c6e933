"""polars expressions as trees, by way of their JSON form.

What has no equal here is a foreign part, which polars evaluates itself, a batch of rows at a time.
So it must look at one row at a time; what does not is no condition on a row, and refused.

JSON has no NaN and no infinity: polars writes null for them. Where that stands, and for foreign
parts, the part of the expression itself is looked up.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.scan.forms import column_of
from arrowlog.scan.limits import CONDITIONS_MAX, on_deep_stack, too_deep, too_long
from arrowlog.scan.literals import scalar_literal
from arrowlog.scan.tree import NULL, Call, Column, Foreign, Literal, joined

if TYPE_CHECKING:
    import polars as pl

    from arrowlog.scan.tree import Node

_SIGNS = {
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
_NOT_FINITE = re.compile(r'"Float(?:32|64)?":null')
_PARTS_MAX = 4 * CONDITIONS_MAX  # a condition is a comparison, a column, a value and what joins it
_FLAT = 1000  # levels that any stack holds
_LEFT = '{"BinaryExpr":{"left":'
_BY_ROW = re.compile(r"\[\(.*\)\]|.*\.(python_udf|not|is_null|is_not_null)\(\)", re.DOTALL)


class _Beyond(Exception):
    """A part of an expression that has no equal here."""


def from_polars(expression: pl.Expr, schema: pa.Schema) -> Node:
    """The tree of a polars expression; what has no equal here is a foreign part of it."""
    roots = expression.meta.root_names()
    for name in roots:
        column_of(name, schema)
    if expression.meta.has_multiple_outputs():
        raise InvalidRequest(
            f"{expression} gives more than one column.", next="Give one condition."
        )
    depth = _check_size(expression)
    try:
        found = (
            _serialized(expression)
            if depth <= _FLAT
            else on_deep_stack(lambda: _serialized(expression))
        )
    except RecursionError:
        raise too_deep() from None
    except Exception as error:  # noqa: BLE001 -- whatever polars cannot put into words
        del error
        if depth > _FLAT:
            raise too_deep() from None
        _check_rows(expression)
        return Foreign(str(expression), frozenset(roots), expression)
    return _Reader(schema).condition(_Part(found, expression))


def _serialized(expression: pl.Expr) -> Any:
    """An expression as maps and lists.

    JSON has no NaN and no infinity: they are null there. The binary form has them, but is decoded
    by recursion, and has bytes where JSON has large numbers.
    """
    text = expression.meta.serialize(format="json")
    if _NOT_FINITE.search(text) is None:
        return _loads(text)
    return msgspec.msgpack.decode(expression.meta.serialize(format="binary"))


def _check_size(expression: pl.Expr) -> int:
    """How deep an expression is. One with too many parts is refused before polars writes it down.

    A level at a time: polars' own functions that look into an expression are recursive.
    """
    level, depth, count = [expression], 0, 0
    while level:
        depth += 1
        count += len(level)
        if count > _PARTS_MAX:
            raise too_long()
        level = [part for node in level for part in node.meta.pop()]
    return depth


def _loads(text: str) -> Any:
    """The JSON of an expression. A chain of a thousand ORs is a thousand deep on its left side."""
    depth = 0
    while text.startswith(_LEFT, depth * len(_LEFT)):
        depth += 1
    decode = json.JSONDecoder().raw_decode
    found, at = decode(text, depth * len(_LEFT))
    for _ in range(depth):
        op, at = decode(text, at + len(',"op":'))
        right, at = decode(text, at + len(',"right":'))
        at += len("}}")
        found = {"BinaryExpr": {"left": found, "op": op, "right": right}}
    if at != len(text):
        raise ValueError(text[at : at + 40])
    return found


def _check_rows(expression: pl.Expr) -> None:
    """Refuse what looks at more rows than one: polars says so of each part by itself."""
    parts = [expression]
    while parts:
        part = parts.pop()
        parts += part.meta.pop()
        try:
            single = part.meta.is_row_separable()
            # A value that no row has a say in need not be as long as the rows.
            single &= part.meta.is_length_preserving() or not part.meta.root_names()
        except Exception as error:  # noqa: BLE001 -- polars cannot say it of Python functions
            del error
            single = _BY_ROW.fullmatch(str(part)) is not None
        if not single:
            raise InvalidRequest(
                f"{part} looks at more than one row, or is not known to look at one alone.",
                next="Give a condition on a row; aggregate the rows that a plan finds.",
            )


class _Part:
    """A part of an expression: its JSON, and the expression itself when that is asked for."""

    __slots__ = ("above", "found", "known", "place")

    def __init__(
        self,
        found: Any,
        expression: pl.Expr | None = None,
        above: _Part | None = None,
        place: int = 0,
    ) -> None:
        """The whole has an expression; a part has its place among the inputs of one above it."""
        self.found = found
        self.known = expression
        self.above = above
        self.place = place

    def input(self, found: Any, place: int) -> _Part:
        """One of its inputs."""
        return _Part(found, None, self, place)

    def sides(self) -> tuple[_Part, _Part]:
        """Both sides of an operator."""
        inner = self.found["BinaryExpr"]
        return self.input(inner["left"], 0), self.input(inner["right"], 1)

    def expression(self) -> pl.Expr:
        """The expression; without recursion, as a chain may be a thousand parts deep."""
        way: list[_Part] = []
        part = self
        while part.known is None and part.above is not None:
            way.append(part)
            part = part.above
        found = part.known
        assert found is not None
        for part in reversed(way):
            found = found.meta.pop()[::-1][part.place]  # polars gives the last input first
            part.known = found
        return found


def _names_in(found: Any) -> set[str]:
    if isinstance(found, dict):
        inner = set().union(*(_names_in(value) for value in found.values()))
        name = found.get("Column")
        return inner | {name} if isinstance(name, str) else inner
    return set().union(*map(_names_in, found)) if isinstance(found, list) else set()


class _Reader:
    """Reads the JSON of expressions over one table."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, part: _Part) -> Node:
        """A tree, with foreign leaves for what is beyond us where it can stand on its own."""
        op, parts = _chain(part)
        if op:
            return joined(op, [self.condition(each) for each in parts])
        under = _negated(part)
        if under is not None:
            return Call("not", (self.condition(under),))
        try:
            return self._node(part)
        except _Beyond:
            whole = part.expression()
            _check_rows(whole)
            return Foreign(str(whole), frozenset(_names_in(part.found)), whole)

    def _node(self, part: _Part) -> Node:
        found = part.found
        if not isinstance(found, dict) or len(found) != 1:
            raise _Beyond
        ((kind, inner),) = found.items()
        if kind == "Column":
            return Column(inner)
        if kind == "Literal":
            return _literal(inner, part)
        if not _names_in(found):
            return _computed(part)
        if kind == "Alias":
            return self._node(part.input(inner[0], 0))
        if kind == "BinaryExpr":
            return self._binary(part)
        if kind == "Function":
            inputs = [part.input(given, place) for place, given in enumerate(inner["input"])]
            return self._function(inner["function"], inputs)
        raise _Beyond

    def _binary(self, part: _Part) -> Node:
        joint, parts = _chain(part)
        if joint:
            return joined(joint, [self._node(each) for each in parts])
        op = part.found["BinaryExpr"]["op"]
        left, right = (self._node(side) for side in part.sides())
        if op == "NotEqValidity":
            return Call("not", (Call("<=>", (left, right)),))
        if op not in _SIGNS:
            raise _Beyond
        texts = [self._is_text(side) for side in (left, right)]
        if op == "Plus" and any(texts):
            if not all(texts):
                raise _Beyond
            return Call("||", (left, right))
        return Call(_SIGNS[op], (left, right))

    def _is_text(self, node: Node) -> bool:
        if isinstance(node, Column):
            return not node.path and pa.types.is_string(self._schema.field(node.name).type)
        return getattr(node, "kind", "") == "text" or getattr(node, "op", "") == "||"

    def _function(self, function: Any, given: list[_Part]) -> Node:  # noqa: C901 -- one line a case
        boolean = function.get("Boolean") if isinstance(function, dict) else None
        if isinstance(boolean, dict) and "IsIn" in boolean:
            return self._in(boolean["IsIn"], given)
        args = tuple(self._node(arg) for arg in given)
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
            return joined("and" if boolean == "AllHorizontal" else "or", list(args))
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

    def _in(self, options: Any, given: list[_Part]) -> Node:
        column, among = self._node(given[0]), given[1].found
        inner = among.get("Literal", {}) if isinstance(among, dict) else {}
        data = inner.get("Series") or inner.get("Scalar", {}).get("List")
        if data is None or options.get("nulls_equal"):
            raise _Beyond
        with pa.ipc.open_stream(bytes(data)) as reader:
            values = [scalar_literal(value) for value in reader.read_all().column(0)]
        if any(value is None for value in values):
            raise _Beyond
        # In polars a NULL in the list equals nothing, and makes nothing unknown either.
        known = [value for value in values if value is not None and value is not NULL]
        if not known:  # FALSE, and NULL for a NULL
            return Call("and", (Call("is null", (column,)), NULL))
        return Call("in", (column, *known))


def _negated(part: _Part) -> _Part | None:
    """What a NOT is of; None if it is none."""
    found = part.found.get("Function") if isinstance(part.found, dict) else None
    if not isinstance(found, dict) or found["function"] != {"Boolean": "Not"}:
        return None
    return part.input(found["input"][0], 0)


def _chain(part: _Part) -> tuple[str, list[_Part]]:
    """The parts of an AND or OR, as many as follow each other on its left side."""
    op = _joint(part.found)
    parts: list[_Part] = []
    while op and _joint(part.found) == op:
        part, right = part.sides()
        parts.append(right)
    return op, [part, *reversed(parts)]


def _joint(found: Any) -> str:
    binary = found.get("BinaryExpr") if isinstance(found, dict) else None
    op = _SIGNS.get(binary["op"], "") if isinstance(binary, dict) else ""
    return op if op in ("and", "or") else ""


def _computed(part: _Part) -> Literal:
    """What no row has a say in, such as `pl.date(2024, 1, 2)`."""
    from arrowlog.fork_safety import pl  # refused at once in a child that polars cannot work in

    whole = part.expression()
    _check_rows(whole)
    try:
        answer = pl.select(whole).to_series().to_arrow()
    except pl.exceptions.PolarsError:
        raise _Beyond from None
    literal = scalar_literal(answer[0]) if len(answer) == 1 else None
    if literal is None:
        raise _Beyond
    return literal


def _literal(found: Any, part: _Part) -> Literal:  # noqa: C901, PLR0912 -- one line a case
    dynamic = found.get("Dyn")
    if isinstance(dynamic, dict):
        if dynamic.get("Float", 0) is None:
            return _computed(part)
        if "Int" in dynamic:
            return Literal(_integer(dynamic["Int"]), "int")
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
    if kind in ("Float32", "Float64"):
        return _computed(part) if value is None else Literal(float(value), "double")
    if kind.startswith(("Int", "UInt")) and isinstance(value, (int, bytes)):
        return Literal(_integer(value), "int")
    if kind == "Binary" and isinstance(value, (list, bytes)):
        return Literal(bytes(value), "blob")
    if kind == "Date":
        return Literal(value, "date")
    if kind == "Decimal":
        whole = _integer(value[0])
        digits = tuple(int(digit) for digit in str(abs(whole)))
        return Literal(Decimal((int(whole < 0), digits, -value[2])), "decimal")
    if kind == "Datetime" and value[1] in ("Microseconds", "Milliseconds"):
        micros = value[0] * (1000 if value[1] == "Milliseconds" else 1)
        return Literal(micros, "timestamp" if value[2] is None else "timestamptz")
    raise _Beyond


def _integer(value: int | bytes) -> int:
    """A number; in the binary form, one of 128 bits is bytes."""
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)

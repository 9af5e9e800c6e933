"""Monotone expressions: a comparison of one with a literal as comparisons of its column. Pure.

`year(at) = 2024` holds from one moment to another, and `id * 2 < 10` up to one number, because both
expressions are monotone in their column. The turning point is found by a binary search among the
values of the column's type, so that no function needs an inverse.

An expression is evaluated in interval arithmetic. The interval contains the result however an
engine computes it: exactly, as a decimal, or rounded to 64 or 32 bits. So the comparison of the
column is true for every row for which that of the expression is, and possibly for more.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.arrays import INT_MAX, INT_MIN
from arrowlog.predicate.ast import (
    Call,
    Column,
    Literal,
    NodeVisitor,
    Untranslatable,
    column_type,
    handles,
)
from arrowlog.predicate.literals import (
    DAY_MICROS,
    civil_from_days,
    days_from_date,
    enclose_literal,
    round_to_float32,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    # Ends of an interval: int, Fraction, or an infinite float.
    Bounds = tuple[Any, Any]
    Step = Callable[[Any, Any], Bounds]

# Kinds of values, and the type as whose value a literal is compared with them.
_KIND_TYPES = {
    "int": pa.int64(),
    "real": pa.float64(),  # 64-bit floats, and decimals
    "real32": pa.float32(),
    "date": pa.date32(),  # days since 1970
    "timestamp": pa.timestamp("us"),  # microseconds since 1970
    "timestamptz": pa.timestamp("us", "UTC"),
}
_NUMERIC = ("int", "real", "real32")
_MOMENTS = ("timestamp", "timestamptz")
# The years of the civil calendar on whose numbers all engines agree.
_FIRST_DAY, _LAST_DAY = days_from_date(1, 1, 1), days_from_date(9999, 12, 31)
# DuckDB's infinite dates and timestamps lie beyond these, and so do values near an overflow.
INFINITE_DAYS, INFINITE_MICROS = (1 << 31) - 2, (1 << 63) - 2
_UNIT_MICROS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_MICROS,
    "week": 7 * DAY_MICROS,
}
_UNIT_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_SHORTEST_MONTH, _LONGEST_MONTH = 28, 31  # days
_INTERVAL_TEXT = re.compile(r"\s*(-?[0-9]{1,9})\s+([a-z]+?)s?\s*", re.IGNORECASE)
_FRACTIONAL_UNITS = ("second", "millisecond")
_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_DECIMAL_TYPE = re.compile(r"DECIMAL\([0-9]+,([0-9]+)\)")
_AMOUNT_MAX = 10**9  # of an interval; larger ones overflow
_INF = math.inf


class MonotoneExpr(msgspec.Struct, frozen=True):
    """An expression that grows, or falls, with the value of one column.

    `infinite_is_null` says that it is NULL for infinite dates and timestamps, `fallible` that it
    may be NULL for other values too. NULL for NULL it always is, and NaN for NaN.
    """

    column: Column
    type: pa.DataType
    kind: str
    increasing: bool = True
    steps: tuple[Step, ...] = ()
    infinite_is_null: bool = False
    fallible: bool = False

    def then(self, kind: str, step: Step, *, increasing: bool = True) -> MonotoneExpr:
        """The expression with one more step, a function from interval to interval."""
        return MonotoneExpr(
            self.column,
            self.type,
            kind,
            self.increasing is increasing,
            (*self.steps, step),
            self.infinite_is_null,
            self.fallible,
        )

    def bounds(self, value: Any) -> Bounds:
        """An interval that contains the result for a value of the column."""
        low = high = value
        for step in self.steps:
            low, high = step(low, high)
        return low, high


class ColumnCondition(msgspec.Struct, frozen=True):
    """A comparison of the column; TRUE where the expression's comparison is TRUE.

    `op` is `>=` or `<=`, or empty: then every value satisfies it (`value` True) or none (False).
    """

    op: str
    value: Any


def parse_monotone(node: Call, schema: pa.Schema) -> MonotoneExpr | None:
    """The monotone expression that a call is; None if it is none, or not known to be one."""
    try:
        return _Parser(schema).visit(node)
    except Untranslatable:
        return None


def solve_comparison(
    expression: MonotoneExpr, op: str, literal: Literal
) -> list[ColumnCondition] | None:
    """The conditions on the column, all of which hold where `expression op literal` is TRUE.

    `op` is not `<>`. None if the comparison is not certain.
    """
    pair = enclose_literal(literal, _KIND_TYPES[expression.kind])
    if pair is None:
        return None
    down, up = (-_INF if pair[0] is None else pair[0]), (_INF if pair[1] is None else pair[1])
    domain = _domain(expression.type)
    conditions = []
    if op in (">", ">=", "="):
        conditions.append(_search(expression, domain, down, strict=op == ">", upper=True))
    if op in ("<", "<=", "="):
        conditions.append(_search(expression, domain, up, strict=op == "<", upper=False))
    return conditions


class _Domain(msgspec.Struct, frozen=True):
    """The values of a type in their order, numbered from `first` to `last`."""

    first: int
    last: int
    value: Callable[[int], Any]  # for the comparison with bounds
    number: Callable[[int], Any]  # for arithmetic


def _domain(kind: pa.DataType) -> _Domain:
    if pa.types.is_floating(kind):
        end = _float_bits(_INF)
        return _Domain(-end, end, _float_at, lambda at: _exact(_float_at(at)))
    if pa.types.is_decimal(kind):
        limit, scale = 10**kind.precision - 1, kind.scale
        return _Domain(
            -limit,
            limit,
            lambda at: Decimal((int(at < 0), tuple(map(int, str(abs(at)))), -scale)),
            lambda at: Fraction(at, 10**scale),
        )
    if pa.types.is_date32(kind):
        return _Domain(-INFINITE_DAYS, INFINITE_DAYS, int, int)
    return _Domain(INT_MIN, INT_MAX, int, int)


def _float_bits(value: float) -> int:
    """The number of a non-negative double in the order of doubles."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _float_at(number: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", abs(number)))[0]
    return -value if number < 0 else value


def _search(
    expression: MonotoneExpr, domain: _Domain, end: Any, *, strict: bool, upper: bool
) -> ColumnCondition:
    """Where the upper end of the result exceeds `end`, or with `upper` False the lower end is less.

    The values for which that holds are a range that is open on one side; the search finds its end.
    """

    def holds(at: int) -> bool:
        low, high = expression.bounds(domain.number(at))
        if upper:
            return bool(high > end if strict else high >= end)
        return bool(low < end if strict else low <= end)

    first, last = domain.first, domain.last
    grows = expression.increasing is upper  # it holds from some value on, not up to one
    inside, outside = (last, first) if grows else (first, last)
    if holds(outside):
        return ColumnCondition("", value=True)
    if not holds(inside):
        return ColumnCondition("", value=False)
    while abs(inside - outside) > 1:
        middle = (inside + outside) // 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return ColumnCondition(">=" if grows else "<=", domain.value(inside))


def _exact(value: float | Decimal) -> Any:
    """A number as a fraction; infinities stay floats."""
    return Fraction(value) if math.isfinite(value) else float(value)


def _down(value: Any, kind: str) -> Any:
    return _outward(value, kind, -_INF)


def _up(value: Any, kind: str) -> Any:
    return _outward(value, kind, _INF)


def _outward(value: Any, kind: str, towards: float) -> Any:
    """A number beyond the value and beyond what rounding makes of it; integers are exact."""
    if kind not in ("real", "real32") or (isinstance(value, float) and math.isinf(value)):
        return value
    try:
        nearest = float(value)
    except OverflowError:
        nearest = _INF if value > 0 else -_INF
    if kind == "real32":
        nearest = _next_float32(round_to_float32(nearest), towards)
    else:
        nearest = math.nextafter(nearest, towards)
    return _exact(nearest)


def _next_float32(value: float, towards: float) -> float:
    """The next 32-bit float in a direction."""
    if value == towards:
        return value
    if value == 0.0:
        return math.copysign(2.0**-149, towards)
    bits = struct.unpack("<i", struct.pack("<f", abs(value)))[0]
    bits += 1 if (value > 0) is (towards > 0) else -1
    size: float = struct.unpack("<f", struct.pack("<i", bits))[0]
    return math.copysign(size, value)


def _monotone(function: Callable[[Any], Any], kind: str, *, increasing: bool = True) -> Step:
    """The step of an exact function, whose result an engine may round as it does `kind`."""

    def apply(value: Any) -> Any:
        if isinstance(value, float) and math.isinf(value):
            return value if increasing else -value
        return function(value)

    def step(low: Any, high: Any) -> Bounds:
        first, last = (low, high) if increasing else (high, low)
        return _down(apply(first), kind), _up(apply(last), kind)

    return step


def _rounded(kind: str) -> Step:
    """The step of a conversion to `kind`, before a computation in it."""
    return _monotone(lambda value: value, kind)


def _scaled(factor: Bounds, kind: str, *, divide: bool) -> Step:
    """The step of a multiplication with, or division by, a constant that is not zero."""

    def product(value: Any, end: Any) -> Any:
        if isinstance(value, float):  # infinite
            return value if end > 0 else -value
        return Fraction(value) / end if divide else value * end

    def step(low: Any, high: Any) -> Bounds:
        ends = [product(value, end) for value in (low, high) for end in factor]
        return _down(min(ends), kind), _up(max(ends), kind)

    return step


def _shifted(offset: Bounds, kind: str, *, sign: int = 1) -> Step:
    """The step of `offset + sign * value`."""

    def step(low: Any, high: Any) -> Bounds:
        first, last = (low, high) if sign > 0 else (-high, -low)
        return _down(first + offset[0], kind), _up(last + offset[1], kind)

    return step


def _civil(function: Callable[[int], int], per_day: int) -> Step:
    """The step of a function of the calendar day; beyond the years 1 to 9999 it is not computed.

    `per_day` is the number of units of its argument in a day.
    """
    first, last = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1

    def step(low: Any, high: Any) -> Bounds:
        return (
            -_INF if low < first else function(min(low, last)),
            _INF if high > last else function(max(high, first)),
        )

    return step


def _truncated_day(unit: str) -> Callable[[int], int] | None:
    """The function from a day to the first day of its week, month, quarter or year."""

    def truncate(days: int) -> int:
        if unit == "week":  # Monday; 1970-01-01 was a Thursday
            return (days + 3) // 7 * 7 - 3
        year, month, _ = civil_from_days(days)
        if unit == "year":
            month = 1
        elif unit == "quarter":
            month = (month - 1) // 3 * 3 + 1
        return days_from_date(year, month, 1)

    return truncate if unit in ("week", "month", "quarter", "year") else None


def _last_day(days: int) -> int:
    year, month, _ = civil_from_days(days)
    return days_from_date(year + month // 12, month % 12 + 1, 1) - 1


class _Parser(NodeVisitor[MonotoneExpr]):
    """Builds monotone expressions; raises Untranslatable for everything else."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def visit_column(self, node: Column) -> MonotoneExpr:
        kind = column_type(node, self._schema)
        if kind is None:
            raise Untranslatable(node)
        if pa.types.is_integer(kind):
            name = "int"
        elif pa.types.is_floating(kind):
            name = "real32" if pa.types.is_float32(kind) else "real"
        elif pa.types.is_decimal(kind):
            name = "real"
        elif pa.types.is_date32(kind):
            name = "date"
        elif pa.types.is_timestamp(kind):
            name = "timestamp" if kind.tz is None else "timestamptz"
        else:
            raise Untranslatable(node)
        return MonotoneExpr(node, kind, name)

    @handles("+", "-", "*", "/", "//")
    def _arithmetic(self, node: Call) -> MonotoneExpr:
        left, right = node.args
        if isinstance(left, Literal):
            if node.op == "+" and not isinstance(right, Literal):
                return self._shift(self.visit(right), left, sign=1)
            if node.op == "*":
                return self._scale(self.visit(right), left, node)
            if node.op == "-":
                return self._subtract_from(left, self.visit(right))
            raise Untranslatable(node)
        if isinstance(left, Call) and left.op in ("interval", "cast") and node.op == "+":
            offset = _interval(left)
            if offset is not None:
                return self._move(self.visit(right), offset)
        operand = self.visit(left)
        offset = _interval(right) if isinstance(right, Call) else None
        if offset is not None and node.op in ("+", "-"):
            return self._move(operand, offset if node.op == "+" else (-offset[1], -offset[0]))
        if not isinstance(right, Literal):
            raise Untranslatable(node)
        if node.op in ("+", "-"):
            return self._shift(operand, right, sign=1 if node.op == "+" else -1)
        return self._scale(operand, right, node)

    def _shift(self, operand: MonotoneExpr, literal: Literal, *, sign: int) -> MonotoneExpr:
        """`operand + literal`, or with a negative sign `operand - literal`."""
        if operand.kind == "date":
            if literal.kind == "date" and sign < 0:
                return operand.then("int", _shifted((-_integer(literal),) * 2, "int"))
            if literal.kind == "int":
                return operand.then("date", _shifted((sign * _integer(literal),) * 2, "int"))
            raise Untranslatable(literal)
        value, kind = _constant(literal, operand.kind)
        low, high = _down(sign * value, kind), _up(sign * value, kind)
        return operand.then(kind, _rounded(kind)).then(kind, _shifted((low, high), kind))

    def _subtract_from(self, literal: Literal, operand: MonotoneExpr) -> MonotoneExpr:
        """`literal - operand`."""
        if operand.kind == "date" and literal.kind == "date":
            step = _shifted((_integer(literal),) * 2, "int", sign=-1)
            return operand.then("int", step, increasing=False)
        value, kind = _constant(literal, operand.kind)
        step = _shifted((_down(value, kind), _up(value, kind)), kind, sign=-1)
        return operand.then(kind, _rounded(kind)).then(kind, step, increasing=False)

    def _scale(self, operand: MonotoneExpr, literal: Literal, node: Call) -> MonotoneExpr:
        value, kind = _constant(literal, operand.kind)
        if not value:
            raise Untranslatable(node)
        if node.op == "//":
            if kind != "int":
                raise Untranslatable(node)
            step = _monotone(lambda n: math.trunc(Fraction(n, value)), "int", increasing=value > 0)
            return operand.then("int", step, increasing=value > 0)
        if node.op == "/" and kind == "int":  # a division of integers has a double as its result
            kind = "real"
        factor = (_down(value, kind), _up(value, kind))
        if factor[0] * factor[1] <= 0:
            raise Untranslatable(node)  # rounding may make it zero
        step = _scaled(factor, kind, divide=node.op == "/")
        return operand.then(kind, _rounded(kind)).then(kind, step, increasing=value > 0)

    def _move(self, operand: MonotoneExpr, offset: Bounds) -> MonotoneExpr:
        """A date or timestamp plus an interval."""
        if operand.kind == "date":
            operand = operand.then("timestamp", _scaled((DAY_MICROS,) * 2, "int", divide=False))
        if operand.kind not in _MOMENTS:
            raise Untranslatable(operand)
        return operand.then(operand.kind, _shifted(offset, "int"))

    @handles("negative")
    def _negative(self, node: Call) -> MonotoneExpr:
        operand = self.visit(node.args[0])
        if operand.kind not in _NUMERIC:
            raise Untranslatable(node)
        step = _shifted((0, 0), "int", sign=-1)
        return operand.then(operand.kind, step, increasing=False)

    @handles("floor", "ceil", "ceiling", "round", "trunc")
    def _round(self, node: Call) -> MonotoneExpr:
        operand = self.visit(node.args[0])
        if operand.kind not in _NUMERIC or len(node.args) != 1:
            raise Untranslatable(node)
        kind = "real" if operand.kind == "int" else operand.kind

        def step(low: Any, high: Any) -> Bounds:
            low, high = _down(low, kind), _up(high, kind)
            first = low if isinstance(low, float) else math.floor(low)
            last = high if isinstance(high, float) else math.ceil(high)
            return _down(first, kind), _up(last, kind)

        exact = {"floor": math.floor, "ceil": math.ceil, "ceiling": math.ceil}
        if node.op in exact and operand.kind != "int":
            return operand.then(kind, _monotone(exact[node.op], kind))
        return operand.then(kind, step)

    @handles("cast", "try_cast")
    def _cast(self, node: Call) -> MonotoneExpr:
        operand, target = self.visit(node.args[0]), node.detail
        result = self._convert(operand, target)
        if node.op == "cast":
            return result
        return MonotoneExpr(
            result.column, result.type, result.kind, result.increasing, result.steps, fallible=True
        )

    def _convert(self, operand: MonotoneExpr, target: str) -> MonotoneExpr:
        if operand.kind in _NUMERIC:
            if target in _INTEGER_TYPES:
                if operand.kind == "int":
                    return operand
                return operand.then("int", _to_integer)
            if target in ("DOUBLE", "FLOAT"):
                kind = "real32" if target == "FLOAT" or operand.kind == "real32" else "real"
                return operand.then(kind, _rounded(kind))
            decimal = _DECIMAL_TYPE.fullmatch(target)
            if decimal is not None:
                unit = Fraction(1, 10 ** int(decimal[1]))
                kind = "real" if operand.kind == "int" else operand.kind
                return operand.then(kind, _shifted((-unit, unit), kind))
        if target == "DATE" and operand.kind in ("date", *_MOMENTS):
            return self._to_date(operand)
        if target in ("TIMESTAMP", "TIMESTAMPTZ"):
            kind = target.lower()
            if operand.kind == "date":
                return operand.then(kind, _scaled((DAY_MICROS,) * 2, "int", divide=False))
            if operand.kind in _MOMENTS:
                return operand.then(kind, lambda low, high: (low, high))
        raise Untranslatable(operand)

    def _to_date(self, operand: MonotoneExpr) -> MonotoneExpr:
        if operand.kind == "date":
            return operand
        return operand.then("date", _monotone(lambda micros: micros // DAY_MICROS, "int"))

    @handles("date", "to_date")
    def _date(self, node: Call) -> MonotoneExpr:
        operand = self.visit(node.args[0])
        if len(node.args) != 1 or operand.kind not in ("date", *_MOMENTS):
            raise Untranslatable(node)
        return self._to_date(operand)

    def _temporal(self, node: Call, arg: Any) -> MonotoneExpr:
        operand = self.visit(arg)
        if operand.kind not in ("date", *_MOMENTS):
            raise Untranslatable(node)
        return operand

    @handles("date_add", "date_sub")
    def _date_add(self, node: Call) -> MonotoneExpr:
        return self._arithmetic(Call("+" if node.op == "date_add" else "-", node.args))

    @handles("year", "last_day")
    def _year(self, node: Call) -> MonotoneExpr:
        operand = self._null_if_infinite(self._to_date(self._temporal(node, node.args[0])))
        if node.op == "last_day":
            return operand.then("date", _civil(_last_day, 1))
        return operand.then("int", _civil(lambda days: civil_from_days(days)[0], 1))

    @handles("date_part")
    def _date_part(self, node: Call) -> MonotoneExpr:
        part = node.args[0].value if isinstance(node.args[0], Literal) else None
        if part not in ("year", "epoch") or len(node.args) != 2:
            raise Untranslatable(node)
        return self.visit(Call(str(part), node.args[1:]))

    @handles("epoch", "epoch_ms", "epoch_us")
    def _epoch(self, node: Call) -> MonotoneExpr:
        operand = self._temporal(node, node.args[0])
        if operand.kind == "date":
            operand = operand.then("timestamp", _scaled((DAY_MICROS,) * 2, "int", divide=False))
        operand = self._null_if_infinite(operand)
        if node.op == "epoch_us":
            return operand.then("int", lambda low, high: (low, high))
        if node.op == "epoch_ms":  # engines differ in how they round
            to_millis = _monotone(lambda micros: micros // 1000, "int")
            return operand.then("int", to_millis).then("int", _shifted((0, 1), "int"))
        seconds = _scaled((1_000_000,) * 2, "real", divide=True)
        return operand.then("real", seconds)

    @handles("date_trunc")
    def _date_trunc(self, node: Call) -> MonotoneExpr:
        unit = node.args[0].value if isinstance(node.args[0], Literal) else None
        if not isinstance(unit, str) or len(node.args) != 2:
            raise Untranslatable(node)
        unit = unit.lower()
        operand = self._temporal(node, node.args[1])
        if operand.kind == "date":
            # DuckDB 2.0 evaluates comparisons of such a result wrongly for columns of a table: its
            # statistics have the wrong unit. No condition on the column could agree with that.
            raise Untranslatable(node)
        by_day = _truncated_day(unit)
        if by_day is not None:
            step = _civil(lambda micros: by_day(micros // DAY_MICROS) * DAY_MICROS, DAY_MICROS)
            return operand.then(operand.kind, step)
        width = _UNIT_MICROS.get(unit)
        if width is None:
            raise Untranslatable(node)
        return operand.then(operand.kind, _monotone(lambda micros: micros // width * width, "int"))

    def _null_if_infinite(self, operand: MonotoneExpr) -> MonotoneExpr:
        return MonotoneExpr(
            operand.column,
            operand.type,
            operand.kind,
            operand.increasing,
            operand.steps,
            infinite_is_null=True,
            fallible=operand.fallible,
        )


def _to_integer(low: Any, high: Any) -> Bounds:
    """The step of a cast to an integer, which rounds to one of the neighbours."""
    return (
        low if isinstance(low, float) else math.floor(low),
        high if isinstance(high, float) else math.ceil(high),
    )


def _constant(literal: Literal, kind: str) -> tuple[Any, str]:
    """The exact value of a numeric literal, and the kind of a computation with it."""
    value = literal.value
    if kind not in _NUMERIC or isinstance(value, (bool, str, bytes)) or value is None:
        raise Untranslatable(literal)
    if literal.kind == "int":
        return value, kind
    if literal.kind not in ("decimal", "double", "float") or not math.isfinite(value):
        raise Untranslatable(literal)
    single = literal.kind == "float" or kind == "real32"
    return Fraction(value), "real32" if single else "real"


def _integer(literal: Literal) -> int:
    assert isinstance(literal.value, int)
    return literal.value


def _interval(node: Call) -> Bounds | None:
    """The shortest and the longest duration of a constant interval in microseconds; else None."""
    amount: Any = node.args[0].value if isinstance(node.args[0], Literal) else None
    unit = node.detail
    if node.op == "cast" and unit == "INTERVAL" and isinstance(amount, str):
        match = _INTERVAL_TEXT.fullmatch(amount)
        if match is None:
            return None
        amount, unit = int(match[1]), match[2].lower()
    elif node.op != "interval":
        return None
    try:
        exact = Fraction(str(amount) if isinstance(amount, (str, Decimal)) else amount)
    except (TypeError, ValueError, OverflowError):
        return None
    if abs(exact) > _AMOUNT_MAX:
        return None
    if unit not in _FRACTIONAL_UNITS:
        exact = Fraction(math.trunc(exact))
    if unit in _UNIT_MONTHS:
        days = [exact * _UNIT_MONTHS[unit] * n for n in (_SHORTEST_MONTH, _LONGEST_MONTH)]
        return int(min(days)) * DAY_MICROS, int(max(days)) * DAY_MICROS
    if unit not in _UNIT_MICROS:
        return None
    micros = exact * _UNIT_MICROS[unit]
    return math.floor(micros), math.ceil(micros)

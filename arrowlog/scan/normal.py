"""A tree as tests that statistics can answer. Pure.

Each test stands for rows: those for which a part of the predicate is TRUE (or FALSE, under a NOT;
or NULL as well, where that counts). NOT disappears on the way, by the rules of three-valued logic:
`rows(node, want, null)` are the rows for which `node` is `want`, or is NULL and `null` is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.scan.bounds import beside, pair_of
from arrowlog.scan.casts import TURNED, uncast
from arrowlog.scan.engine import known
from arrowlog.scan.literals import double_of
from arrowlog.scan.tree import COMPARISONS, NULL, Call, Column, Foreign, Literal, columns_of
from arrowlog.state.safe import comparable, has_nan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.scan.tree import Node

_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_FEW = 8  # so many comparisons are as fast one by one
_MIXED = frozenset({"int", "decimal", "double", "date", "timestamp", "timestamptz"})
WILD = "%_\\"  # Spark's patterns have the backslash as an escape, DuckDB's have none


@dataclass(frozen=True, slots=True)
class Every:
    """Rows in all of the parts."""

    parts: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """Rows in any of the parts."""

    parts: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """Rows whose value compares with a literal, which lies from `down` to `up`."""

    name: str
    op: str
    down: Any
    up: Any

    @property
    def exact(self) -> bool:
        """Whether the column can have just this value."""
        return self.down is not None and bool(self.down == self.up)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Rows whose value is one of several, all exact; or is another one."""

    name: str
    values: tuple[Any, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Begins:
    """Rows whose text begins like this, or does not."""

    name: str
    prefix: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Null:
    """Rows without a value, or with one."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Exactly:
    """Rows for which a condition on partition columns alone is this; anybody can work it out."""

    node: Node
    want: bool
    null: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """Rows that statistics say nothing about."""

    node: Node
    why: str


@dataclass(frozen=True, slots=True)
class Constant:
    """All rows, or none."""

    value: bool


Test = Every | Some | Compare | OneOf | Begins | Null | Exactly | Unknown | Constant
ALL, NONE = Constant(True), Constant(False)
NOT_PRUNABLE = "not prunable"
NOT_COMPARABLE = "type not comparable"


class Normal:
    """Turns trees over one table into tests."""

    def __init__(self, schema: pa.Schema, partition_columns: Iterable[str]) -> None:
        """The schema says what a column is; partition columns are known exactly."""
        self._schema = schema
        self._partition = frozenset(partition_columns)

    def rows(self, node: Node, *, want: bool = True, null: bool = False) -> Test:
        """The rows for which a node is `want`, or NULL if that counts too."""
        if isinstance(node, Literal):
            if node.kind not in ("bool", "null"):
                return Unknown(node, NOT_COMPARABLE)
            return ALL if (null if node.value is None else node.value is want) else NONE
        if isinstance(node, Column):
            return self._flag(node, want=want, null=null)
        if isinstance(node, Foreign):
            return Unknown(node, NOT_PRUNABLE)
        node = uncast(node, self._schema)
        if node.op in ("and", "or"):
            parts = tuple(self.rows(arg, want=want, null=null) for arg in gathered(node))
            return _every(parts) if (node.op == "and") is want else _some(parts)
        if node.op == "not":
            return self.rows(node.args[0], want=not want, null=null)
        if node.op in ("is true", "is false"):
            inner = node.op == "is true"
            return self.rows(node.args[0], want=inner is want, null=not want)
        if node.op == "between":
            return self._between(node, want=want, null=null)
        return self._call(node, want=want, null=null)

    def _flag(self, node: Column, *, want: bool, null: bool) -> Test:
        """A column as a condition; 5 is true, and yet not equal to TRUE."""
        if node.path:
            return self._column(node, want=want, null=null)
        if not pa.types.is_boolean(self._schema.field(node.name).type):
            return self._column(Call("cast", (node,), "BOOLEAN"), want=want, null=null)
        return self._leaf(Call("=", (node, Literal(want, "bool"))), null)

    def _between(self, node: Call, *, want: bool, null: bool) -> Test:
        """Two comparisons, if both ends are converted to the column's type like one would be."""
        column, *ends = node.args
        if isinstance(column, Column) and not column.path:
            kind = self._schema.field(column.name).type
            found = alike([end for end in ends if isinstance(end, Literal)], kind)
            if found is None:
                return self._column(node, want=want, null=null)
            ends = [*found] if len(found) == len(ends) else ends
        low, high = Call(">=", (column, ends[0])), Call("<=", (column, ends[1]))
        return self.rows(Call("and", (low, high)), want=want, null=null)

    def _call(self, node: Call, *, want: bool, null: bool) -> Test:
        op, args = node.op, node.args
        first = args[0] if args else None
        if not isinstance(first, Column) or first.path:
            if len(args) == 2 and op in TURNED and isinstance(args[1], Column):
                turned = Call(TURNED[op], (args[1], args[0]))
                return self._call(turned, want=want, null=null)
            return self._column(node, want=want, null=null)
        if op == "is null":
            return Null(first.name, negated=not want)
        if not all(isinstance(arg, Literal) for arg in args[1:]):
            return self._column(node, want=want, null=null)
        if op == "<=>":
            return self._same(first, args[1], want=want)
        if op in COMPARISONS:
            return self._leaf(Call(op if want else _OPPOSITE[op], args), null)
        if op == "in":
            return self._in(node, want=want, null=null)
        if op in ("like", "starts_with", "prefix") and first.name not in self._partition:
            return self._pattern(node, want=want, null=null)
        return self._column(node, want=want, null=null)

    def _column(self, node: Node, *, want: bool, null: bool) -> Test:
        """A condition that statistics cannot answer; exact if it is on partition columns alone."""
        mentioned = columns_of(node)
        if mentioned and mentioned <= self._partition and known(node):
            return Exactly(node, want, null)
        return Unknown(node, NOT_PRUNABLE)

    def _or_null(self, test: Test, name: str, null: bool) -> Test:  # noqa: FBT001 -- as in rows
        return _some((test, Null(name))) if null else test

    def _same(self, column: Column, value: Node, *, want: bool) -> Test:
        """`<=>` is never NULL."""
        if isinstance(value, Literal) and value.value is None:
            return Null(column.name, negated=not want)
        return self._leaf(Call("=" if want else "<>", (column, value)), not want)

    def _leaf(self, node: Call, null: bool) -> Test:  # noqa: FBT001 -- as in rows
        column, literal = node.args
        assert isinstance(column, Column)
        assert isinstance(literal, Literal)
        if literal.value is None:
            return ALL if null else NONE
        return self._or_null(self._compare(node, column, literal), column.name, null)

    def _compare(self, node: Call, column: Column, literal: Literal) -> Test:
        kind = self._schema.field(column.name).type
        exactly = column.name in self._partition
        pair = None if comparable(kind) is None else pair_of(literal, kind)
        near = None if exactly else beside(node.op, literal, kind)
        if near is not None:
            return Compare(column.name, *near)
        if pair is not None and (not exactly or pair[0] == pair[1]):
            return Compare(column.name, node.op, *pair)
        if exactly and not isinstance(literal.value, str):
            return Exactly(node, want=True, null=False)
        if exactly and (pair is not None or pa.types.is_string(kind)):
            return Exactly(node, want=True, null=False)
        return Unknown(node, NOT_COMPARABLE)

    def _in(self, node: Call, *, want: bool, null: bool) -> Test:
        column, *values = node.args
        assert isinstance(column, Column)
        literals = [value for value in values if isinstance(value, Literal)]
        known_values = [value for value in literals if value.value is not None]
        found = alike(known_values, self._schema.field(column.name).type)
        if found is None:
            return self._column(node, want=want, null=null)
        known_values = found
        # With a NULL in the list no value is surely outside it: IN is TRUE or NULL, never FALSE.
        if len(known_values) < len(literals) and want == null:
            return ALL if want else NONE
        op = "=" if want else "<>"
        tests = [self._compare(Call(op, (column, v)), column, v) for v in known_values]
        if not want:
            return self._or_null(_every(_none_of(column.name, tests)), column.name, null)
        return self._or_null(self._one_of(column.name, tests), column.name, null)

    def _one_of(self, name: str, tests: list[Test]) -> Test:
        """Many values as one test, if they are all of the column's type."""
        pairs = [test for test in tests if isinstance(test, Compare) and test.exact]
        if len(pairs) < len(tests) or len(tests) < 2:
            return _some(tuple(tests))
        return OneOf(name, tuple(sorted({test.down for test in pairs})))

    def _pattern(self, node: Call, *, want: bool, null: bool) -> Test:
        """LIKE by its prefix; exact only if nothing but a prefix is asked for."""
        column, literal, *escape = node.args
        assert isinstance(column, Column)
        assert isinstance(literal, Literal)
        kind = self._schema.field(column.name).type
        if not pa.types.is_string(kind) or not isinstance(literal.value, str):
            return Unknown(node, NOT_COMPARABLE)
        text, whole = literal.value, node.op != "like"
        wild = WILD + "".join(str(e.value) for e in escape if isinstance(e, Literal))
        prefix = text if whole else _until(text, wild)
        if pair_of(Literal(prefix, "text"), kind) is None:
            return Unknown(node, NOT_COMPARABLE)
        if not whole and prefix == text:
            same = Call("=" if want else "<>", (column, literal))
            return self._leaf(same, null)
        if not want and not whole and text != prefix + "%":
            return Unknown(node, NOT_PRUNABLE)
        if want and not prefix:
            return Unknown(node, NOT_PRUNABLE)
        return self._or_null(Begins(column.name, prefix, negated=not want), column.name, null)


def _none_of(name: str, tests: list[Test]) -> tuple[Test, ...]:
    """What must all hold where no value is one of several: the exact ones go together."""
    exact = [test for test in tests if isinstance(test, Compare) and test.exact]
    if len(exact) < 2:
        return tuple(tests)
    rest = [test for test in tests if not (isinstance(test, Compare) and test.exact)]
    values = tuple(sorted({test.down for test in exact}))
    return (*rest, OneOf(name, values, negated=True))


def gathered(node: Call) -> tuple[Node, ...]:
    """The parts of an OR or AND; equalities with one column become one IN, as they mean that."""
    sign = "=" if node.op == "or" else "<>"
    found: dict[tuple[str, str], list[Node]] = {}
    rest: list[Node] = []
    for part in node.args:
        column, value = part.args if isinstance(part, Call) and part.op == sign else (part, NULL)
        if isinstance(column, Literal):
            column, value = value, column
        known_value = isinstance(value, Literal) and value.value is not None
        if isinstance(column, Column) and not column.path and known_value:
            assert isinstance(value, Literal)
            found.setdefault((column.name, value.kind), []).append(value)
        else:
            rest.append(part)
    if all(len(values) <= _FEW for values in found.values()):
        return node.args
    for (name, _), values in found.items():
        inside = Call("in", (Column(name), *values))
        rest.append(inside if sign == "=" else Call("not", (inside,)))
    return tuple(rest)


def alike(literals: list[Literal], kind: pa.DataType) -> list[Literal] | None:
    """Literals that an engine brings to one type with the column, as it would; None if unsure.

    In `n IN (9007199254740993, 1e0)` all are compared as doubles, the large number rounded; in
    `name IN ('10', 10)` all as integers, so that '010' is in the list.
    """
    kinds = {literal.kind for literal in literals if literal.value is not None}
    if len(kinds) < 2:
        return literals
    if pa.types.is_string(kind) or not kinds <= _MIXED:
        return None
    numeric = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    return [double_of(literal) for literal in literals] if numeric else literals


def _until(text: str, stops: str) -> str:
    for at, letter in enumerate(text):
        if letter in stops:
            return text[:at]
    return text


def _every(parts: tuple[Test, ...]) -> Test:
    if NONE in parts:
        return NONE
    kept = tuple(part for part in parts if part != ALL)
    return ALL if not kept else kept[0] if len(kept) == 1 else Every(kept)


def _some(parts: tuple[Test, ...]) -> Test:
    if ALL in parts:
        return ALL
    kept = tuple(part for part in parts if part != NONE)
    return NONE if not kept else kept[0] if len(kept) == 1 else Some(kept)


def without_nan(test: Test, schema: pa.Schema) -> frozenset[str]:
    """Columns that are surely not NaN in the rows of a test."""
    if isinstance(test, Every):
        return frozenset().union(*(without_nan(part, schema) for part in test.parts))
    if isinstance(test, Some):
        found = [without_nan(part, schema) for part in test.parts]
        return frozenset.intersection(*found)
    if isinstance(test, Compare) and test.op in ("=", "<", "<="):
        return frozenset({test.name}) if has_nan(schema.field(test.name).type) else frozenset()
    if isinstance(test, OneOf) and not test.negated and has_nan(schema.field(test.name).type):
        return frozenset({test.name})
    return frozenset()

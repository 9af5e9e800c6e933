"""Rewrite predicate trees into tests that file statistics can answer. Pure.

A test denotes a set of rows: those for which a part of the predicate is TRUE, or FALSE under a NOT,
optionally including those for which it is NULL. `Normal.rows(node, want, null)` returns the rows
for which `node` evaluates to `want`, or to NULL if `null` is set. NOT is eliminated in the process
by the rules of three-valued logic.
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

_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
# Up to this many equalities on one column, single comparisons are as fast as one IN.
_MERGE_ABOVE = 8
# Literal kinds that engines bring to a common type when a list mixes them.
_COERCIBLE_KINDS = frozenset({"int", "decimal", "double", "date", "timestamp", "timestamptz"})
# Characters that end the literal prefix of a LIKE pattern. The backslash is the default escape
# character in Spark; DuckDB has no default.
WILD = "%_\\"


@dataclass(frozen=True, slots=True)
class Every:
    """Rows that satisfy all parts."""

    parts: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """Rows that satisfy at least one part."""

    parts: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """Rows whose value compares with a literal.

    `down` and `up` enclose the literal in the column's type (see `bounds.pair_of`); they are equal
    if the type represents it exactly.
    """

    name: str
    op: str
    down: Any
    up: Any

    @property
    def exact(self) -> bool:
        """Whether the column's type represents the literal exactly."""
        return self.down is not None and bool(self.down == self.up)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Rows whose value is in a sorted list of exact values; if `negated`, is not in it."""

    name: str
    values: tuple[Any, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Begins:
    """Rows whose text starts with `prefix`; if `negated`, rows with a text that does not."""

    name: str
    prefix: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Null:
    """Rows in which the column is NULL; if `negated`, rows in which it is not."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Exactly:
    """Rows for which a condition on partition columns alone is `want`, or NULL if `null` is set.

    It is evaluated on the partition values of each file.
    """

    node: Node
    want: bool
    null: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """Rows of a condition that statistics cannot decide; `why` is the reason `explain` shows."""

    node: Node
    why: str


@dataclass(frozen=True, slots=True)
class Constant:
    """All rows (True) or no rows (False)."""

    value: bool


Test = Every | Some | Compare | OneOf | Begins | Null | Exactly | Unknown | Constant
ALL, NONE = Constant(True), Constant(False)
NOT_PRUNABLE = "not prunable"
NOT_COMPARABLE = "type not comparable"


class Normal:
    """Rewrites the predicate trees of one table into tests."""

    def __init__(self, schema: pa.Schema, partition_columns: Iterable[str]) -> None:
        """`schema` gives the column types; values of `partition_columns` are known exactly."""
        self._schema = schema
        self._partition = frozenset(partition_columns)

    def rows(self, node: Node, *, want: bool = True, null: bool = False) -> Test:
        """The rows for which a node evaluates to `want`, or to NULL if `null` is set."""
        if isinstance(node, Literal):
            if node.kind not in ("bool", "null"):
                return Unknown(node, NOT_COMPARABLE)
            return ALL if (null if node.value is None else node.value is want) else NONE
        if isinstance(node, Column):
            return self._boolean_column(node, want=want, null=null)
        if isinstance(node, Foreign):
            return Unknown(node, NOT_PRUNABLE)
        node = uncast(node, self._schema)
        if node.op in ("and", "or"):
            parts = tuple(self.rows(arg, want=want, null=null) for arg in gathered(node))
            return _and(parts) if (node.op == "and") is want else _or(parts)
        if node.op == "not":
            return self.rows(node.args[0], want=not want, null=null)
        if node.op in ("is true", "is false"):
            inner = node.op == "is true"
            return self.rows(node.args[0], want=inner is want, null=not want)
        if node.op == "between":
            return self._between(node, want=want, null=null)
        return self._call(node, want=want, null=null)

    def _boolean_column(self, node: Column, *, want: bool, null: bool) -> Test:
        """A column used as a condition.

        A number is cast to BOOLEAN instead of compared with TRUE: 5 is true but not equal to TRUE.
        """
        if node.path:
            return self._opaque(node, want=want, null=null)
        if not pa.types.is_boolean(self._schema.field(node.name).type):
            return self._opaque(Call("cast", (node,), "BOOLEAN"), want=want, null=null)
        return self._literal_comparison(Call("=", (node, Literal(want, "bool"))), null)

    def _between(self, node: Call, *, want: bool, null: bool) -> Test:
        """BETWEEN as two comparisons, if splitting it does not change how literals are coerced."""
        column, *ends = node.args
        if isinstance(column, Column) and not column.path:
            kind = self._schema.field(column.name).type
            coerced = alike([end for end in ends if isinstance(end, Literal)], kind)
            if coerced is None:
                return self._opaque(node, want=want, null=null)
            ends = [*coerced] if len(coerced) == len(ends) else ends
        low, high = Call(">=", (column, ends[0])), Call("<=", (column, ends[1]))
        return self.rows(Call("and", (low, high)), want=want, null=null)

    def _call(self, node: Call, *, want: bool, null: bool) -> Test:
        """A call other than AND, OR, NOT, IS TRUE, IS FALSE and BETWEEN."""
        op, args = node.op, node.args
        first = args[0] if args else None
        if not isinstance(first, Column) or first.path:
            if len(args) == 2 and op in TURNED and isinstance(args[1], Column):
                turned = Call(TURNED[op], (args[1], args[0]))
                return self._call(turned, want=want, null=null)
            return self._opaque(node, want=want, null=null)
        if op == "is null":
            return Null(first.name, negated=not want)
        if not all(isinstance(arg, Literal) for arg in args[1:]):
            return self._opaque(node, want=want, null=null)
        if op == "<=>":
            return self._null_safe_equal(first, args[1], want=want)
        if op in COMPARISONS:
            return self._literal_comparison(Call(op if want else _NEGATED[op], args), null)
        if op == "in":
            return self._in(node, want=want, null=null)
        if op in ("like", "starts_with", "prefix") and first.name not in self._partition:
            return self._prefix_pattern(node, want=want, null=null)
        return self._opaque(node, want=want, null=null)

    def _opaque(self, node: Node, *, want: bool, null: bool) -> Test:
        """A condition without a statistics test.

        On partition columns alone it is evaluated exactly; otherwise it cannot skip files.
        """
        mentioned = columns_of(node)
        if mentioned and mentioned <= self._partition and known(node):
            return Exactly(node, want, null)
        return Unknown(node, NOT_PRUNABLE)

    def _or_null(self, test: Test, name: str, null: bool) -> Test:  # noqa: FBT001 -- named `null`
        """Add the rows in which the column is NULL, if `null` is set."""
        return _or((test, Null(name))) if null else test

    def _null_safe_equal(self, column: Column, value: Node, *, want: bool) -> Test:
        """`<=>`, which is never NULL."""
        if isinstance(value, Literal) and value.value is None:
            return Null(column.name, negated=not want)
        return self._literal_comparison(Call("=" if want else "<>", (column, value)), not want)

    def _literal_comparison(self, node: Call, null: bool) -> Test:  # noqa: FBT001 -- named `null`
        """A comparison of a column with a literal; with NULL it is NULL for every row."""
        column, literal = node.args
        assert isinstance(column, Column)
        assert isinstance(literal, Literal)
        if literal.value is None:
            return ALL if null else NONE
        return self._or_null(self._compare(node, column, literal), column.name, null)

    def _compare(self, node: Call, column: Column, literal: Literal) -> Test:
        """A comparison with a literal that is not NULL, for the rows that are not NULL."""
        kind = self._schema.field(column.name).type
        is_partition = column.name in self._partition
        pair = None if comparable(kind) is None else pair_of(literal, kind)
        snapped = None if is_partition else beside(node.op, literal, kind)
        if snapped is not None:
            return Compare(column.name, *snapped)
        if pair is not None and (not is_partition or pair[0] == pair[1]):
            return Compare(column.name, node.op, *pair)
        if is_partition and not isinstance(literal.value, str):
            return Exactly(node, want=True, null=False)
        if is_partition and (pair is not None or pa.types.is_string(kind)):
            return Exactly(node, want=True, null=False)
        return Unknown(node, NOT_COMPARABLE)

    def _in(self, node: Call, *, want: bool, null: bool) -> Test:
        """IN and NOT IN with literals, some of which may be NULL."""
        column, *values = node.args
        assert isinstance(column, Column)
        literals = [value for value in values if isinstance(value, Literal)]
        non_null = [value for value in literals if value.value is not None]
        coerced = alike(non_null, self._schema.field(column.name).type)
        if coerced is None:
            return self._opaque(node, want=want, null=null)
        non_null = coerced
        # With a NULL in the list IN is TRUE or NULL, never FALSE.
        if len(non_null) < len(literals) and want == null:
            return ALL if want else NONE
        op = "=" if want else "<>"
        tests = [self._compare(Call(op, (column, v)), column, v) for v in non_null]
        if not want:
            return self._or_null(_and(_not_in_list(column.name, tests)), column.name, null)
        return self._or_null(self._in_list(column.name, tests), column.name, null)

    def _in_list(self, name: str, tests: list[Test]) -> Test:
        """Merge equalities with one column into a single `OneOf`, if all are exact."""
        exact = [test for test in tests if isinstance(test, Compare) and test.exact]
        if len(exact) < len(tests) or len(tests) < 2:
            return _or(tuple(tests))
        return OneOf(name, tuple(sorted({test.down for test in exact})))

    def _prefix_pattern(self, node: Call, *, want: bool, null: bool) -> Test:
        """LIKE, starts_with and prefix as a prefix test.

        A pattern with more than a prefix is weakened to its prefix. That is safe for rows that
        match, not under NOT, where it is Unknown.
        """
        column, literal, *escape = node.args
        assert isinstance(column, Column)
        assert isinstance(literal, Literal)
        kind = self._schema.field(column.name).type
        if not pa.types.is_string(kind) or not isinstance(literal.value, str):
            return Unknown(node, NOT_COMPARABLE)
        text, is_prefix_function = literal.value, node.op != "like"
        wildcards = WILD + "".join(str(e.value) for e in escape if isinstance(e, Literal))
        prefix = text if is_prefix_function else _take_until(text, wildcards)
        if pair_of(Literal(prefix, "text"), kind) is None:
            return Unknown(node, NOT_COMPARABLE)
        if not is_prefix_function and prefix == text:
            equality = Call("=" if want else "<>", (column, literal))
            return self._literal_comparison(equality, null)
        if not want and not is_prefix_function and text != prefix + "%":
            return Unknown(node, NOT_PRUNABLE)
        if want and not prefix:
            return Unknown(node, NOT_PRUNABLE)
        return self._or_null(Begins(column.name, prefix, negated=not want), column.name, null)


def _not_in_list(name: str, tests: list[Test]) -> tuple[Test, ...]:
    """The conjuncts of a NOT IN, with the exact values merged into one `OneOf`."""
    exact = [test for test in tests if isinstance(test, Compare) and test.exact]
    if len(exact) < 2:
        return tuple(tests)
    rest = [test for test in tests if not (isinstance(test, Compare) and test.exact)]
    values = tuple(sorted({test.down for test in exact}))
    return (*rest, OneOf(name, values, negated=True))


def gathered(node: Call) -> tuple[Node, ...]:
    """The parts of an AND or OR, with many (in)equalities on one column merged into one [NOT] IN.

    Literals of different kinds are not merged: a mixed list would be coerced to a common type.
    """
    op = "=" if node.op == "or" else "<>"
    values_by_column: dict[tuple[str, str], list[Node]] = {}
    rest: list[Node] = []
    for part in node.args:
        column, value = part.args if isinstance(part, Call) and part.op == op else (part, NULL)
        if isinstance(column, Literal):
            column, value = value, column
        known_value = isinstance(value, Literal) and value.value is not None
        if isinstance(column, Column) and not column.path and known_value:
            assert isinstance(value, Literal)
            values_by_column.setdefault((column.name, value.kind), []).append(value)
        else:
            rest.append(part)
    if all(len(values) <= _MERGE_ABOVE for values in values_by_column.values()):
        return node.args
    for (name, _), values in values_by_column.items():
        in_list = Call("in", (Column(name), *values))
        rest.append(in_list if op == "=" else Call("not", (in_list,)))
    return tuple(rest)


def alike(literals: list[Literal], kind: pa.DataType) -> list[Literal] | None:
    """Coerce literals to the type in which an engine compares a mixed list; None if uncertain.

    In `n IN (9007199254740993, 1e0)` all values are compared as doubles, the large integer rounded.
    In `name IN ('10', 10)` all are compared as integers, so '010' is in the list.
    """
    kinds = {literal.kind for literal in literals if literal.value is not None}
    if len(kinds) < 2:
        return literals
    if pa.types.is_string(kind) or not kinds <= _COERCIBLE_KINDS:
        return None
    numeric = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    return [double_of(literal) for literal in literals] if numeric else literals


def _take_until(text: str, stops: str) -> str:
    """The part of `text` before the first character of `stops`."""
    for position, character in enumerate(text):
        if character in stops:
            return text[:position]
    return text


def _and(parts: tuple[Test, ...]) -> Test:
    """Conjunction, with constants folded."""
    if NONE in parts:
        return NONE
    kept = tuple(part for part in parts if part != ALL)
    return ALL if not kept else kept[0] if len(kept) == 1 else Every(kept)


def _or(parts: tuple[Test, ...]) -> Test:
    """Disjunction, with constants folded."""
    if ALL in parts:
        return ALL
    kept = tuple(part for part in parts if part != NONE)
    return NONE if not kept else kept[0] if len(kept) == 1 else Some(kept)


def without_nan(test: Test, schema: pa.Schema) -> frozenset[str]:
    """Floating-point columns that cannot be NaN in the rows of a test."""
    if isinstance(test, Every):
        return frozenset().union(*(without_nan(part, schema) for part in test.parts))
    if isinstance(test, Some):
        per_part = [without_nan(part, schema) for part in test.parts]
        return frozenset.intersection(*per_part)
    if isinstance(test, Compare) and test.op in ("=", "<", "<="):
        return frozenset({test.name}) if has_nan(schema.field(test.name).type) else frozenset()
    if isinstance(test, OneOf) and not test.negated and has_nan(schema.field(test.name).type):
        return frozenset({test.name})
    return frozenset()

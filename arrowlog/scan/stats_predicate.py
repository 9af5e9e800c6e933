"""Rewrite predicate trees into tests that file statistics can answer. Pure.

A test denotes a set of rows: those for which a part of the predicate is TRUE, or FALSE under a NOT,
optionally including those for which it is NULL. `StatsPredicateBuilder.rows(node, want, null)`
returns the rows for which `node` evaluates to `want`, or to NULL if `null` is set. NOT is
eliminated in the process by the rules of three-valued logic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.formats import find_field_type, leaf_name, stats_type
from arrowlog.predicate import (
    COMPARISON_OPS,
    LIKE_WILDCARDS,
    SWAPPED_COMPARISONS,
    Call,
    Column,
    ForeignExpr,
    Literal,
    coerce_literals,
    enclose_literal,
    is_supported,
    may_have_nan,
    merge_equalities,
    referenced_columns,
    snap_to_integer,
    split_between,
    unwrap_cast,
)
from arrowlog.snapshot import comparison_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrowlog.predicate import Node

_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class And:
    """Rows that satisfy all parts."""

    parts: tuple[StatsPredicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Rows that satisfy at least one part."""

    parts: tuple[StatsPredicate, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows whose value compares with a literal.

    `down` and `up` enclose the literal in the column's type (see `enclose_literal`); they are equal
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
class In:
    """Rows whose value is in a sorted list of exact values; if `negated`, is not in it."""

    name: str
    values: tuple[Any, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class StartsWith:
    """Rows whose text starts with `prefix`; if `negated`, rows with a text that does not."""

    name: str
    prefix: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """Rows in which the column is NULL; if `negated`, rows in which it is not."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNaN:
    """Rows in which a floating-point column is NaN."""

    name: str


@dataclass(frozen=True, slots=True)
class PartitionEval:
    """Rows for which a condition on partition columns alone is `want`, or NULL if `null` is set.

    It is evaluated on the partition values of each file.
    """

    node: Node
    want: bool
    null: bool


@dataclass(frozen=True, slots=True)
class Unprunable:
    """Rows of a condition that statistics cannot decide; `why` is the reason `explain` shows."""

    node: Node
    why: str


@dataclass(frozen=True, slots=True)
class ConstantResult:
    """All rows (True) or no rows (False)."""

    value: bool


StatsPredicate = (
    And
    | Or
    | Comparison
    | In
    | StartsWith
    | IsNull
    | IsNaN
    | PartitionEval
    | Unprunable
    | ConstantResult
)
ALL_ROWS, NO_ROWS = ConstantResult(True), ConstantResult(False)
REASON_NOT_PRUNABLE = "not prunable"
REASON_NOT_COMPARABLE = "type not comparable"


class StatsPredicateBuilder:
    """Rewrites the predicate trees of one table into tests."""

    def __init__(self, schema: pa.Schema, partition_columns: Iterable[str]) -> None:
        """`schema` gives the column types; values of `partition_columns` are known exactly."""
        self._schema = schema
        self._partition = frozenset(partition_columns)

    def rows(self, node: Node, *, want: bool = True, null: bool = False) -> StatsPredicate:
        """The rows for which a node evaluates to `want`, or to NULL if `null` is set."""
        if isinstance(node, Literal):
            if node.kind not in ("bool", "null"):
                return Unprunable(node, REASON_NOT_COMPARABLE)
            return ALL_ROWS if (null if node.value is None else node.value is want) else NO_ROWS
        if isinstance(node, Column):
            return self._boolean_column(node, want=want, null=null)
        if isinstance(node, ForeignExpr):
            return Unprunable(node, REASON_NOT_PRUNABLE)
        node = unwrap_cast(node, self._schema)
        if node.op in ("and", "or"):
            parts = tuple(self.rows(arg, want=want, null=null) for arg in merge_equalities(node))
            return _and(parts) if (node.op == "and") is want else _or(parts)
        if node.op == "not":
            return self.rows(node.args[0], want=not want, null=null)
        if node.op in ("is true", "is false"):
            inner = node.op == "is true"
            return self.rows(node.args[0], want=inner is want, null=not want)
        if node.op == "between":
            return self._between(node, want=want, null=null)
        return self._call(node, want=want, null=null)

    def _boolean_column(self, node: Column, *, want: bool, null: bool) -> StatsPredicate:
        """A column used as a condition.

        A number is cast to BOOLEAN instead of compared with TRUE: 5 is true but not equal to TRUE.
        """
        kind = self._type(node)
        if kind is None:
            return self._opaque(node, want=want, null=null)
        if not pa.types.is_boolean(kind):
            return self._opaque(Call("cast", (node,), "BOOLEAN"), want=want, null=null)
        return self._literal_comparison(Call("=", (node, Literal(want, "bool"))), null)

    def _between(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """BETWEEN as two comparisons, if splitting it does not change how literals are coerced."""
        column, *ends = node.args
        if isinstance(column, Column) and (kind := self._type(column)) is not None:
            coerced = coerce_literals([end for end in ends if isinstance(end, Literal)], kind)
            if coerced is None:
                return self._opaque(node, want=want, null=null)
            ends = [*coerced] if len(coerced) == len(ends) else ends
        return self.rows(split_between(Call("between", (column, *ends))), want=want, null=null)

    def _call(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """A call other than AND, OR, NOT, IS TRUE, IS FALSE and BETWEEN."""
        op, args = node.op, node.args
        first = args[0] if args else None
        if not isinstance(first, Column) or (kind := self._type(first)) is None:
            if len(args) == 2 and op in SWAPPED_COMPARISONS and isinstance(args[1], Column):
                turned = Call(SWAPPED_COMPARISONS[op], (args[1], args[0]))
                return self._call(turned, want=want, null=null)
            return self._opaque(node, want=want, null=null)
        if op == "is null":
            return IsNull(self._name(first), negated=not want)
        if not all(isinstance(arg, Literal) for arg in args[1:]):
            return self._opaque(node, want=want, null=null)
        if op == "<=>":
            return self._null_safe_equal(first, args[1], want=want)
        if op in COMPARISON_OPS:
            return self._literal_comparison(Call(op if want else _NEGATED[op], args), null)
        if op == "in":
            return self._in(node, want=want, null=null)
        if op == "isnan" and want and may_have_nan(kind):
            name = self._name(first)
            opaque = self._opaque(node, want=want, null=null)
            return opaque if name in self._partition else self._or_null(IsNaN(name), name, null)
        if op in ("like", "starts_with", "prefix") and self._name(first) not in self._partition:
            return self._prefix_pattern(node, want=want, null=null)
        return self._opaque(node, want=want, null=null)

    def _type(self, column: Column) -> pa.DataType | None:
        """The type of a column or struct field; None if it has no statistics of its own.

        Fields of structs that the schema lacks, and structs inside structs, have none.
        """
        if not column.path:
            return self._schema.field(column.name).type
        path = (column.name, *column.path)
        kind = find_field_type(self._schema, path)
        if kind is None or pa.types.is_nested(kind) or leaf_name(self._schema, path) is None:
            return None
        return kind

    def _name(self, column: Column) -> str:
        """The name of the statistics of a column or struct field that has a type."""
        if not column.path:
            return column.name
        name = leaf_name(self._schema, (column.name, *column.path))
        assert name is not None
        return name

    def _opaque(self, node: Node, *, want: bool, null: bool) -> StatsPredicate:
        """A condition without a statistics test.

        On partition columns alone it is evaluated exactly; otherwise it cannot skip files.
        """
        mentioned = referenced_columns(node)
        if mentioned and mentioned <= self._partition and is_supported(node):
            return PartitionEval(node, want, null)
        return Unprunable(node, REASON_NOT_PRUNABLE)

    def _or_null(self, test: StatsPredicate, name: str, null: bool) -> StatsPredicate:  # noqa: FBT001 -- named `null`
        """Add the rows in which the column is NULL, if `null` is set."""
        return _or((test, IsNull(name))) if null else test

    def _null_safe_equal(self, column: Column, value: Node, *, want: bool) -> StatsPredicate:
        """`<=>`, which is never NULL."""
        if isinstance(value, Literal) and value.value is None:
            return IsNull(self._name(column), negated=not want)
        return self._literal_comparison(Call("=" if want else "<>", (column, value)), not want)

    def _literal_comparison(self, node: Call, null: bool) -> StatsPredicate:  # noqa: FBT001 -- named `null`
        """A comparison of a column with a literal; with NULL it is NULL for every row."""
        column, literal = node.args
        assert isinstance(column, Column)
        assert isinstance(literal, Literal)
        if literal.value is None:
            return ALL_ROWS if null else NO_ROWS
        return self._or_null(self._compare(node, column, literal), self._name(column), null)

    def _compare(self, node: Call, column: Column, literal: Literal) -> StatsPredicate:
        """A comparison with a literal that is not NULL, for the rows that are not NULL."""
        kind, name = self._type(column), self._name(column)
        assert kind is not None
        is_partition = name in self._partition
        pair = None if comparison_type(kind) is None else enclose_literal(literal, kind)
        snapped = None if is_partition else snap_to_integer(node.op, literal, kind)
        if snapped is not None:
            return Comparison(name, *snapped)
        if pair is not None and (not is_partition or pair[0] == pair[1]):
            return Comparison(name, node.op, *pair)
        if is_partition and not isinstance(literal.value, str):
            return PartitionEval(node, want=True, null=False)
        if is_partition and (pair is not None or pa.types.is_string(kind)):
            return PartitionEval(node, want=True, null=False)
        return Unprunable(node, REASON_NOT_COMPARABLE)

    def _in(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """IN and NOT IN with literals, some of which may be NULL."""
        column, *values = node.args
        assert isinstance(column, Column)
        literals = [value for value in values if isinstance(value, Literal)]
        non_null = [value for value in literals if value.value is not None]
        name, kind = self._name(column), self._type(column)
        coerced = None if kind is None else coerce_literals(non_null, kind)
        if coerced is None:
            return self._opaque(node, want=want, null=null)
        non_null = coerced
        # With a NULL in the list IN is TRUE or NULL, never FALSE.
        if len(non_null) < len(literals) and want == null:
            return ALL_ROWS if want else NO_ROWS
        op = "=" if want else "<>"
        tests = [self._compare(Call(op, (column, v)), column, v) for v in non_null]
        if not want:
            return self._or_null(_and(_not_in_list(name, tests)), name, null)
        return self._or_null(self._in_list(name, tests), name, null)

    def _in_list(self, name: str, tests: list[StatsPredicate]) -> StatsPredicate:
        """Merge equalities with one column into a single `In`, if all are exact."""
        exact = [test for test in tests if isinstance(test, Comparison) and test.exact]
        if len(exact) < len(tests) or len(tests) < 2:
            return _or(tuple(tests))
        return In(name, tuple(sorted({test.down for test in exact})))

    def _prefix_pattern(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """LIKE, starts_with and prefix as a prefix test.

        A pattern with more than a prefix is weakened to its prefix. That is safe for rows that
        match, not under NOT, where it is `Unprunable`.
        """
        column, literal, *escape = node.args
        assert isinstance(column, Column)
        assert isinstance(literal, Literal)
        kind, name = self._type(column), self._name(column)
        if not pa.types.is_string(kind) or not isinstance(literal.value, str):
            return Unprunable(node, REASON_NOT_COMPARABLE)
        text, is_prefix_function = literal.value, node.op != "like"
        wildcards = LIKE_WILDCARDS + "".join(str(e.value) for e in escape if isinstance(e, Literal))
        prefix = text if is_prefix_function else _take_until(text, wildcards)
        if enclose_literal(Literal(prefix, "text"), kind) is None:
            return Unprunable(node, REASON_NOT_COMPARABLE)
        if not is_prefix_function and prefix == text:
            equality = Call("=" if want else "<>", (column, literal))
            return self._literal_comparison(equality, null)
        if not want and not is_prefix_function and text != prefix + "%":
            return Unprunable(node, REASON_NOT_PRUNABLE)
        if want and not prefix:
            return Unprunable(node, REASON_NOT_PRUNABLE)
        return self._or_null(StartsWith(name, prefix, negated=not want), name, null)


def _not_in_list(name: str, tests: list[StatsPredicate]) -> tuple[StatsPredicate, ...]:
    """The conjuncts of a NOT IN, with the exact values merged into one `In`."""
    exact = [test for test in tests if isinstance(test, Comparison) and test.exact]
    if len(exact) < 2:
        return tuple(tests)
    rest = [test for test in tests if not (isinstance(test, Comparison) and test.exact)]
    values = tuple(sorted({test.down for test in exact}))
    return (*rest, In(name, values, negated=True))


def _take_until(text: str, stops: str) -> str:
    """The part of `text` before the first character of `stops`."""
    for position, character in enumerate(text):
        if character in stops:
            return text[:position]
    return text


def _and(parts: tuple[StatsPredicate, ...]) -> StatsPredicate:
    """Conjunction, with constants folded."""
    if NO_ROWS in parts:
        return NO_ROWS
    kept = tuple(part for part in parts if part != ALL_ROWS)
    return ALL_ROWS if not kept else kept[0] if len(kept) == 1 else And(kept)


def _or(parts: tuple[StatsPredicate, ...]) -> StatsPredicate:
    """Disjunction, with constants folded."""
    if ALL_ROWS in parts:
        return ALL_ROWS
    kept = tuple(part for part in parts if part != NO_ROWS)
    return NO_ROWS if not kept else kept[0] if len(kept) == 1 else Or(kept)


def nan_free_columns(test: StatsPredicate, schema: pa.Schema) -> frozenset[str]:
    """Floating-point columns that cannot be NaN in the rows of a test."""
    if isinstance(test, And):
        return frozenset().union(*(nan_free_columns(part, schema) for part in test.parts))
    if isinstance(test, Or):
        per_part = [nan_free_columns(part, schema) for part in test.parts]
        return frozenset.intersection(*per_part)
    if isinstance(test, Comparison) and test.op in ("=", "<", "<="):
        kind = stats_type(schema, test.name)
        return frozenset({test.name}) if may_have_nan(kind) else frozenset()
    if isinstance(test, In) and not test.negated and may_have_nan(stats_type(schema, test.name)):
        return frozenset({test.name})
    return frozenset()

"""Rewrite predicate trees into tests that file statistics can answer. Pure.

A test denotes a set of rows: those for which a part of the predicate is TRUE, or FALSE under a NOT,
optionally including those for which it is NULL. `StatsPredicateBuilder.rows(node, want, null)`
returns the rows for which `node` evaluates to `want`, or to NULL if `null` is set. NOT is
eliminated in the process by the rules of three-valued logic.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.formats import find_field_type, leaf_name, stats_type
from arrowlog.predicate import (
    BOOLEAN_OPS,
    COMPARISON_OPS,
    INFINITE_DAYS,
    INFINITE_MICROS,
    LIKE_WILDCARDS,
    SWAPPED_COMPARISONS,
    Call,
    Column,
    ForeignExpr,
    Literal,
    ValueSet,
    case_branches,
    case_spellings,
    choose_encloser,
    coerce_literals,
    drop_implied,
    enclose_literal,
    fold_comparison,
    is_natural,
    is_supported,
    literal_kinds,
    may_have_nan,
    merge_equalities,
    natural_values,
    parse_monotone,
    referenced_columns,
    snap_to_integer,
    solve_comparison,
    split_between,
    unwrap_cast,
)
from arrowlog.snapshot import comparison_type, has_only_ordered_text, to_comparable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from arrowlog.predicate import LiteralBounds, MonotoneExpr, Node

    _Compared = tuple[pa.DataType, str, bool, Callable[[Literal], LiteralBounds | None] | None]

# Comparisons with one side, and the end of the literal's enclosure that decides them.
_RANGE_SIDES = {"<": "up", "<=": "up", ">": "down", ">=": "down"}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class And(msgspec.Struct, frozen=True):
    """Rows that satisfy all parts."""

    parts: tuple[StatsPredicate, ...]


class Or(msgspec.Struct, frozen=True):
    """Rows that satisfy at least one part."""

    parts: tuple[StatsPredicate, ...]


class Comparison(msgspec.Struct, frozen=True):
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


class ColumnComparison(msgspec.Struct, frozen=True):
    """Rows whose values in two columns of one type compare with each other. Never with `<>`."""

    left: str
    op: str
    right: str


class In(msgspec.Struct, frozen=True):
    """Rows whose value is in a sorted list of exact values; if `negated`, is not in it.

    `values` are Python values or, of a long list, an Arrow array in the type of the bounds.
    """

    name: str
    values: tuple[Any, ...] | pa.Array
    negated: bool = False


class StartsWith(msgspec.Struct, frozen=True):
    """Rows whose text starts with `prefix`; if `negated`, rows with a text that does not."""

    name: str
    prefix: str
    negated: bool = False


class IsNull(msgspec.Struct, frozen=True):
    """Rows in which the column is NULL; if `negated`, rows in which it is not."""

    name: str
    negated: bool = False


class IsNaN(msgspec.Struct, frozen=True):
    """Rows in which a floating-point column is NaN."""

    name: str


class PartitionEval(msgspec.Struct, frozen=True):
    """Rows for which a condition on partition columns alone is `want`, or NULL if `null` is set.

    It is evaluated on the partition values of each file.
    """

    node: Node
    want: bool
    null: bool


class Unprunable(msgspec.Struct, frozen=True):
    """Rows of a condition that statistics cannot decide; `why` is the reason `explain` shows."""

    node: Node
    why: str


class ConstantResult(msgspec.Struct, frozen=True):
    """All rows (True) or no rows (False)."""

    value: bool


StatsPredicate = (
    And
    | Or
    | Comparison
    | ColumnComparison
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
REASON_NOT_MONOTONE = "not prunable: expression keeps no order"
# Up to this many values of an IN list, an expression is compared with each; else with their range.
_EXPRESSION_VALUES_MAX = 64
# Branches of a CASE, each of which is tested together with the negation of those before it.
_BRANCHES_MAX = 16
_CASE_FUNCTIONS = {"lower": "lower", "lcase": "lower", "upper": "upper", "ucase": "upper"}
_PREFIX_FUNCTIONS = ("left", "substr", "substring")
_GLOB_WILDCARDS = "*?[\\"
_CONDITIONAL_OPS = frozenset({"case", "if", "coalesce", "ifnull", "nvl", "nullif"})


class StatsPredicateBuilder:
    """Rewrites the predicate trees of one table into tests."""

    def __init__(self, schema: pa.Schema, partition_columns: Iterable[str]) -> None:
        """`schema` gives the column types; values of `partition_columns` are known exactly."""
        self._schema = schema
        self._partition = frozenset(partition_columns)
        self._types: dict[Column, pa.DataType | None] = {}
        self._compared: dict[Column, _Compared] = {}

    def rows(self, node: Node, *, want: bool = True, null: bool = False) -> StatsPredicate:  # noqa: C901 -- a branch each
        """The rows for which a node evaluates to `want`, or to NULL if `null` is set."""
        if isinstance(node, Literal):
            if node.kind not in ("bool", "null"):
                return Unprunable(node, REASON_NOT_COMPARABLE)
            return ALL_ROWS if (null if node.value is None else node.value is want) else NO_ROWS
        if isinstance(node, Column):
            return self._boolean_column(node, want=want, null=null)
        if isinstance(node, (ForeignExpr, ValueSet)):
            return Unprunable(node, REASON_NOT_PRUNABLE)
        if self._is_simple(node):
            node = node if want else Call(_NEGATED[node.op], node.args)
            return self._literal_comparison(node, null)
        node = unwrap_cast(node, self._schema)
        if node.op in ("and", "or"):
            conditions = merge_equalities(node)
            reduced = node.op == "and" and want and not null
            conditions = drop_implied(conditions, self._type) if reduced else conditions
            parts = tuple(self.rows(arg, want=want, null=null) for arg in conditions)
            return _and(parts) if (node.op == "and") is want else _or(parts)
        if node.op == "not":
            return self.rows(node.args[0], want=not want, null=null)
        if node.op in ("is true", "is false"):
            inner = node.op == "is true"
            return self.rows(node.args[0], want=inner is want, null=not want)
        if node.op == "between":
            return self._between(node, want=want, null=null)
        if node.op in _CONDITIONAL_OPS and self._is_open(node):
            branches = case_branches(node)
            if branches is not None:
                return self._case(branches, node, want=want, null=null)
        if node.op == "is null" and isinstance(node.args[0], Call) and self._is_open(node):
            return self._is_null_call(node, node.args[0], want=want)
        return self._call(node, want=want, null=null)

    def _is_simple(self, node: Call) -> bool:
        """Whether a call compares a column that has statistics with a literal: most calls do."""
        if node.op not in COMPARISON_OPS:
            return False
        column, literal = node.args
        plain = isinstance(column, Column) and isinstance(literal, Literal)
        return plain and self._type(column) is not None  # type: ignore[arg-type]

    def _is_open(self, node: Node) -> bool:
        """Whether a condition depends on more than partition values, which decide it exactly."""
        return not referenced_columns(node) <= self._partition

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
        elif self._is_open(node) and len(literal_kinds(ends)) > 1:
            return self._opaque(node, want=want, null=null)
        return self.rows(split_between(Call("between", (column, *ends))), want=want, null=null)

    def _call(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:  # noqa: C901 -- a branch each
        """A call other than AND, OR, NOT, IS TRUE, IS FALSE and BETWEEN."""
        op, args = node.op, node.args
        first = args[0] if args else None
        if not isinstance(first, Column) or (kind := self._type(first)) is None:
            turns = op in SWAPPED_COMPARISONS and len(args) == 2
            if turns and (isinstance(args[1], Column) or isinstance(first, Literal)):
                turned = Call(SWAPPED_COMPARISONS[op], (args[1], args[0]))
                if not isinstance(args[1], Literal):
                    return self._call(turned, want=want, null=null)
            return self._expression(node, want=want, null=null)
        if op == "is null":
            return IsNull(self._name(first), negated=not want)
        if op == "in" and isinstance(args[1], ValueSet):
            return self._in_set(node, first, args[1], want=want, null=null)
        if not all(isinstance(arg, Literal) for arg in args[1:]):
            return self._two_columns(node, want=want, null=null)
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
        if op in ("ilike", "glob") and self._name(first) not in self._partition:
            return self._folded_prefix(node, first, want=want, null=null)
        return self._opaque(node, want=want, null=null)

    def _type(self, column: Column) -> pa.DataType | None:
        """The type of a column or struct field; None if it has no statistics of its own.

        Fields of structs that the schema lacks, and structs inside structs, have none.
        """
        if column not in self._types:
            path = (column.name, *column.path)
            kind = find_field_type(self._schema, path) if column.path else None
            if kind is not None and pa.types.is_nested(kind):
                kind = None
            if kind is not None and leaf_name(self._schema, path) is None:
                kind = None
            self._types[column] = kind if column.path else self._schema.field(column.name).type
        return self._types[column]

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
        known = self._compared.get(column) or self._look_at(column)
        kind, name, is_partition, enclose = known
        pair = None if enclose is None else enclose(literal)
        if pair is not None and pair[0] == pair[1]:
            return Comparison(name, node.op, *pair)
        snapped = None if is_partition else snap_to_integer(node.op, literal, kind)
        if snapped is not None:
            return Comparison(name, *snapped)
        if pair is not None and not is_partition:
            return Comparison(name, node.op, *pair)
        if is_partition and not isinstance(literal.value, str):
            return PartitionEval(node, want=True, null=False)
        if is_partition and (pair is not None or pa.types.is_string(kind)):
            return PartitionEval(node, want=True, null=False)
        return Unprunable(node, REASON_NOT_COMPARABLE)

    def _look_at(self, column: Column) -> _Compared:
        """Type, name, whether it is a partition column, and how it encloses literals, if it can."""
        kind, name = self._type(column), self._name(column)
        assert kind is not None
        enclose = None if comparison_type(kind) is None else choose_encloser(kind)
        self._compared[column] = kind, name, name in self._partition, enclose
        return self._compared[column]

    def _in(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """IN and NOT IN with literals, some of which may be NULL."""
        column, *values = node.args
        assert isinstance(column, Column)
        literals = [value for value in values if isinstance(value, Literal)]
        non_null = [value for value in literals if value.value is not None]
        name, kind = self._name(column), self._type(column)
        exact = None if kind is None or len(non_null) < 2 else natural_values(non_null, kind)
        if exact is not None and (len(non_null) == len(literals) or want != null):
            return self._or_null(In(name, exact, negated=not want), name, null)
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

    def _in_set(
        self, node: Call, column: Column, members: ValueSet, *, want: bool, null: bool
    ) -> StatsPredicate:
        """IN and NOT IN with a value set."""
        name, kind = self._name(column), self._type(column)
        if kind is None or comparison_type(kind) is None:
            return Unprunable(node, REASON_NOT_COMPARABLE)
        if members.has_null and want == null:
            return ALL_ROWS if want else NO_ROWS
        if pa.types.is_string(kind) and not has_only_ordered_text(members.values):
            return Unprunable(node, REASON_NOT_COMPARABLE)
        values = members.sorted_by(lambda array: to_comparable(array, kind))
        return self._or_null(In(name, values, negated=not want), name, null)

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

    # Expressions: rewritten to conditions on their columns that hold wherever they do.

    def _expression(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """A condition on the value of an expression, or one that no statistics can answer."""
        first = node.args[0] if node.args else None
        plain = isinstance(first, Call) and all(isinstance(arg, Literal) for arg in node.args[1:])
        if not plain or not self._is_open(node) or len(node.args) < 2:
            return self._opaque(node, want=want, null=null)
        assert isinstance(first, Call)
        literals = [arg for arg in node.args[1:] if isinstance(arg, Literal)]
        comparable = node.op in COMPARISON_OPS or node.op == "in"
        if first.op in _CONDITIONAL_OPS and comparable:
            return self._compare_branches(node, first, want=want, null=null)
        if first.op in _CASE_FUNCTIONS or first.op in _PREFIX_FUNCTIONS:
            return self._text_function(node, first, want=want, null=null)
        if first.op == "abs" and node.op in COMPARISON_OPS:
            return self._absolute(node, first, want=want, null=null)
        monotone = parse_monotone(first, self._schema)
        if not comparable or monotone is None or self._type(monotone.column) is None:
            return Unprunable(node, REASON_NOT_MONOTONE if comparable else REASON_NOT_PRUNABLE)
        if len(literal_kinds(literals)) > 1 or (null and monotone.fallible):
            return Unprunable(node, REASON_NOT_COMPARABLE)
        test = self._solve(monotone, node, literals, want=want, null=null)
        if test is None:
            return Unprunable(node, REASON_NOT_COMPARABLE)
        return test

    def _solve(
        self, monotone: MonotoneExpr, node: Call, literals: list[Literal], *, want: bool, null: bool
    ) -> StatsPredicate | None:
        """Conditions on the column of a monotone expression; None if a literal is uncertain."""
        name = self._name(monotone.column)
        known = [literal for literal in literals if literal.value is not None]
        if not known:  # NULL for every row
            return ALL_ROWS if null else NO_ROWS
        if len(known) < len(literals) and want == null:
            return ALL_ROWS if want else NO_ROWS  # IN is TRUE or NULL then, never FALSE
        op = "=" if node.op == "in" else node.op
        op = op if want else _NEGATED[op]
        tests: list[StatsPredicate | None]
        if op == "<>" and len(known) > _EXPRESSION_VALUES_MAX:
            tests = [IsNull(name, negated=True)]
        elif op == "<>":  # less or greater than each of them
            sides = [self._solve_one(monotone, s, literal) for literal in known for s in "<>"]
            certain = tuple(side for side in sides if side is not None)
            if len(certain) < len(sides):
                return None
            pairs = zip(certain[::2], certain[1::2], strict=True)
            tests = [_and(tuple(_or(pair) for pair in pairs))]
        elif len(known) <= _EXPRESSION_VALUES_MAX:
            tests = [self._solve_one(monotone, op, literal) for literal in known]
        else:
            ends = zip((">=", "<="), _ends(known), strict=False)
            tests = [self._solve_one(monotone, sign, literal) for sign, literal in ends]
            tests = [_and(tuple(test for test in tests if test is not None))]
        certain = tuple(test for test in tests if test is not None)
        if len(certain) < len(tests):
            return None
        return self._or_null_result(_or(certain), monotone, null)

    def _solve_one(
        self, monotone: MonotoneExpr, op: str, literal: Literal
    ) -> StatsPredicate | None:
        conditions = solve_comparison(monotone, op, literal)
        if conditions is None:
            return None
        name = self._name(monotone.column)
        parts: list[StatsPredicate] = [IsNull(name, negated=True)]
        for condition in conditions:
            if condition.op:
                parts.append(Comparison(name, condition.op, condition.value, condition.value))
            elif not condition.value:
                parts.append(NO_ROWS)
        test = _and(tuple(parts[1:] or parts))
        # NaN is greater than every result, whichever way the expression runs, and greater than a
        # literal that no other result exceeds.
        covers_nan = monotone.increasing and test != NO_ROWS
        if op in (">", ">=") and not covers_nan and may_have_nan(monotone.type):
            return _or((test, IsNaN(name)))
        return test

    def _or_null_result(
        self,
        test: StatsPredicate,
        monotone: MonotoneExpr,
        null: bool,  # noqa: FBT001 -- named `null`
    ) -> StatsPredicate:
        """Add the rows for which an expression is NULL, if `null` is set."""
        if not null:
            return test
        name = self._name(monotone.column)
        parts: tuple[StatsPredicate, ...] = (test, IsNull(name))
        if monotone.infinite_is_null:
            is_date = pa.types.is_date32(monotone.type)
            end = INFINITE_DAYS if is_date else INFINITE_MICROS
            parts += (Comparison(name, ">=", end, end), Comparison(name, "<=", -end, -end))
        return _or(parts)

    def _is_null_call(self, node: Call, operand: Call, *, want: bool) -> StatsPredicate:
        """IS [NOT] NULL of a condition or of a monotone expression."""
        if operand.op in BOOLEAN_OPS:
            if want:
                sides = (self.rows(operand, want=side, null=True) for side in (True, False))
                return _and(tuple(sides))
            return _or(tuple(self.rows(operand, want=side) for side in (True, False)))
        monotone = parse_monotone(operand, self._schema)
        if monotone is None or self._type(monotone.column) is None or (want and monotone.fallible):
            return Unprunable(node, REASON_NOT_PRUNABLE)
        if not want:
            return IsNull(self._name(monotone.column), negated=True)
        return self._or_null_result(NO_ROWS, monotone, null=True)

    def _two_columns(self, node: Call, *, want: bool, null: bool) -> StatsPredicate:
        """A comparison of two columns of one type, by the bounds of both."""
        op, args = node.op, node.args
        opaque = self._opaque(node, want=want, null=null)
        if isinstance(opaque, PartitionEval) or op not in COMPARISON_OPS:
            return opaque
        left, right = args
        if not isinstance(left, Column) or not isinstance(right, Column):
            return opaque
        kinds = self._type(left), self._type(right)
        if kinds[0] is None or kinds[1] is None or not _comparable_types(kinds[0], kinds[1]):
            return Unprunable(node, REASON_NOT_COMPARABLE)
        names = self._name(left), self._name(right)
        op = op if want else _NEGATED[op]
        test: StatsPredicate = ColumnComparison(names[0], op, names[1])
        if op == "<>" or names[0] == names[1]:
            test = _and(tuple(IsNull(name, negated=True) for name in names))
        return _or((test, *(IsNull(name) for name in names))) if null else test

    def _absolute(self, node: Call, operand: Call, *, want: bool, null: bool) -> StatsPredicate:
        """`abs(x) > 5` as `x > 5 OR x < -5`."""
        inner, literal = operand.args[0], node.args[1]
        assert isinstance(literal, Literal)
        if literal.kind not in ("int", "decimal", "double") or literal.value is None:
            return Unprunable(node, REASON_NOT_COMPARABLE)
        assert not isinstance(literal.value, (str, bytes))
        if literal.value != literal.value:  # NaN
            return Unprunable(node, REASON_NOT_COMPARABLE)
        op = node.op if want else _NEGATED[node.op]
        if op == "<>" and literal.value < 0:  # true of every value: neither bound excludes one
            return Unprunable(node, REASON_NOT_COMPARABLE)
        negated = literal.value
        negated = negated.copy_negate() if isinstance(negated, Decimal) else -negated
        mirrored = Call(SWAPPED_COMPARISONS[op], (inner, Literal(negated, literal.kind)))
        parts = tuple(self.rows(part, null=null) for part in (Call(op, (inner, literal)), mirrored))
        return _and(parts) if op in ("<", "<=", "<>") else _or(parts)

    def _case(
        self, branches: list[tuple[Node, Node]], node: Node, *, want: bool, null: bool
    ) -> StatsPredicate:
        """A CASE of conditions: the rows of each branch that no earlier branch takes."""
        if len(branches) > _BRANCHES_MAX:
            return Unprunable(node, REASON_NOT_PRUNABLE)
        tests: list[StatsPredicate] = []
        earlier: list[StatsPredicate] = []
        for condition, result in branches:
            own = (self.rows(condition), self.rows(result, want=want, null=null))
            tests.append(_and((*earlier, *own)))
            earlier.append(self.rows(condition, want=False, null=True))
        return _or(tuple(tests))

    def _compare_branches(
        self, node: Call, operand: Call, *, want: bool, null: bool
    ) -> StatsPredicate:
        """A comparison of a CASE or COALESCE, as the CASE of the comparisons of its results.

        Only if all results have one type: otherwise they would be converted before the comparison.
        """
        branches = case_branches(operand)
        if branches is None or not self._same_type([result for _, result in branches]):
            return Unprunable(node, REASON_NOT_PRUNABLE)
        compared = [
            (condition, fold_comparison(Call(node.op, (result, *node.args[1:]))))
            for condition, result in branches
        ]
        return self._case(compared, node, want=want, null=null)

    def _same_type(self, results: list[Node]) -> bool:
        """Whether values have one type, in which they are compared with a literal as they are."""
        kinds = {self._type(result) for result in results if isinstance(result, Column)}
        if len(kinds) > 1 or None in kinds:
            return False
        if not all(isinstance(result, (Column, Literal)) for result in results):
            return False
        literals = literal_kinds(results)
        return len(literals) <= 1 and all(
            is_natural(kind, literal) for kind in kinds if kind is not None for literal in literals
        )

    def _text_function(
        self, node: Call, operand: Call, *, want: bool, null: bool
    ) -> StatsPredicate:
        """`lower(s) = 'abc'` and the like: what the text must begin with, in all spellings."""
        column, *rest = operand.args
        kind = self._type(column) if isinstance(column, Column) else None
        texts = [arg.value for arg in node.args[1:] if isinstance(arg, Literal)]
        plain = kind is not None and pa.types.is_string(kind) and want
        if not plain or not all(isinstance(text, str) for text in texts):
            return Unprunable(node, REASON_NOT_MONOTONE)
        assert isinstance(column, Column)
        # A substring is a prefix only if it begins at the first character.
        is_substring = operand.op in ("substr", "substring")
        extra = {"left": 1, "substr": 2, "substring": 2}.get(operand.op, 0)
        if len(rest) != extra or (is_substring and rest[0] != Literal(1, "int")):
            return Unprunable(node, REASON_NOT_MONOTONE)
        prefixes = [str(text) for text in texts]
        if node.op == "like":
            stops = LIKE_WILDCARDS + "".join(prefixes[1:])
            prefixes = [_take_until(prefixes[0], stops)]
        elif node.op not in ("=", "in", "starts_with", "prefix"):
            return Unprunable(node, REASON_NOT_MONOTONE)
        if len(prefixes) > _EXPRESSION_VALUES_MAX:
            return Unprunable(node, REASON_NOT_MONOTONE)
        fold = _CASE_FUNCTIONS.get(operand.op)
        return self._prefixes(node, column, prefixes, fold, null)

    def _folded_prefix(
        self, node: Call, column: Column, *, want: bool, null: bool
    ) -> StatsPredicate:
        """ILIKE and GLOB as tests of the prefix before the first wildcard."""
        pattern = node.args[1]
        text = pattern.value if isinstance(pattern, Literal) else None
        kind = self._type(column)
        if not want or not isinstance(text, str) or not pa.types.is_string(kind):
            return Unprunable(node, REASON_NOT_PRUNABLE)
        if node.op == "glob":
            return self._prefixes(node, column, [_take_until(text, _GLOB_WILDCARDS)], None, null)
        escape = "".join(str(arg.value) for arg in node.args[2:] if isinstance(arg, Literal))
        prefix = _take_until(text, LIKE_WILDCARDS + escape)
        ascii_part = "".join(c.lower() if c.isascii() else c for c in prefix)
        return self._prefixes(node, column, [ascii_part], "lower", null)

    def _prefixes(
        self,
        node: Call,
        column: Column,
        prefixes: list[str],
        fold: str | None,
        null: bool,  # noqa: FBT001
    ) -> StatsPredicate:
        """Texts that begin with one of some prefixes, after folding them to lower or upper case."""
        name, kind = self._name(column), self._type(column)
        assert kind is not None
        tests: list[StatsPredicate] = []
        for prefix in prefixes:
            for spelling in [prefix] if fold is None else case_spellings(prefix, fold):
                usable = enclose_literal(Literal(spelling, "text"), kind) is not None
                if not spelling or not usable:
                    return Unprunable(node, REASON_NOT_MONOTONE)
                tests.append(StartsWith(name, spelling))
        return self._or_null(_or(tuple(tests)), name, null)


def _not_in_list(name: str, tests: list[StatsPredicate]) -> tuple[StatsPredicate, ...]:
    """The conjuncts of a NOT IN, with the exact values merged into one `In`."""
    exact = [test for test in tests if isinstance(test, Comparison) and test.exact]
    if len(exact) < 2:
        return tuple(tests)
    rest = [test for test in tests if not (isinstance(test, Comparison) and test.exact)]
    values = tuple(sorted({test.down for test in exact}))
    return (*rest, In(name, values, negated=True))


def _comparable_types(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types are compared as they are."""
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return True
    return bool(left == right) and comparison_type(left) is not None


def _ends(literals: list[Literal]) -> tuple[Literal, ...]:
    """The least and the greatest of literals of one kind; none of texts, which may be times."""
    if literals[0].kind == "text":
        return ()
    ordered = sorted(literals, key=_value_of)
    return ordered[0], ordered[-1]


def _value_of(literal: Literal) -> Any:
    return literal.value


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
    kept = _keep_strongest([part for part in parts if part is not ALL_ROWS and part != ALL_ROWS])
    return ALL_ROWS if not kept else kept[0] if len(kept) == 1 else And(kept)


def _keep_strongest(parts: list[StatsPredicate]) -> tuple[StatsPredicate, ...]:
    """The conjuncts without lower and upper bounds of a column that others imply.

    A test costs a pass over all files. Generated predicates repeat bounds, and so do views on top
    of views.
    """
    strongest: dict[tuple[str, bool], Comparison] = {}
    for part in parts:
        if isinstance(part, Comparison) and part.op in _RANGE_SIDES:
            key = part.name, part.op in ("<", "<=")
            known = strongest.get(key)
            if known is None or _is_stronger(part, known):
                strongest[key] = part
    chosen = set(map(id, strongest.values()))
    return tuple(
        part
        for part in parts
        if id(part) in chosen or not (isinstance(part, Comparison) and part.op in _RANGE_SIDES)
    )


def _is_stronger(test: Comparison, other: Comparison) -> bool:
    """Whether a bound on one side of a column implies another on the same side."""
    end, known = (getattr(each, _RANGE_SIDES[each.op]) for each in (test, other))
    if end is None or known is None:  # beyond all values of the type: skips nothing
        return known is None
    if end == known:
        return test.op in ("<", ">")
    return bool(end < known if test.op in ("<", "<=") else end > known)


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

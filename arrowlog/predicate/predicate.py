"""Parse a predicate from any of its four forms into one AST, and evaluate it on rows.

SQL text, tuples, polars expressions and pyarrow expressions have one meaning, which is DuckDB's:
NaN is greater than every number and equal to itself, NULL is unknown, and timestamps without a zone
are UTC. `docs/predicates.md` has the complete table.

A part of an expression without a DuckDB equivalent is evaluated by its own engine, and its values
enter the rest of the tree as a column. So `~(f > 5)` next to such a part means the same as it does
alone, and the same as in data skipping.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, empty_table, repeat_bool
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.predicate.ast import (
    BOOLEAN_OPS,
    COMPARISON_OPS,
    TRUE,
    VALUE_OPS,
    Call,
    Column,
    ForeignExpr,
    Literal,
    ValueSet,
    column_type,
    is_evaluable,
    is_supported,
    join_nodes,
    referenced_columns,
    walk_nodes,
)
from arrowlog.predicate.emit.duckdb import evaluate_node, fold_constants, infer_type
from arrowlog.predicate.emit.text import format_node
from arrowlog.predicate.limits import (
    PREDICATE_CONDITIONS_MAX,
    check_predicate_size,
    check_text_growth,
    predicate_too_deep_error,
    predicate_too_long_error,
)
from arrowlog.predicate.literals import (
    LITERALS_MAX,
    check_literal,
    collect_comparisons,
    collect_literals,
    evaluate_membership,
    to_double,
)
from arrowlog.predicate.parse.sql import parse_sql
from arrowlog.predicate.rewrites import relax_condition
from arrowlog.predicate.searches import SEARCH_OP, SearchCondition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.predicate.ast import Node

# Operators that bring their arguments to a common type.
_COERCING_OPS = frozenset({*COMPARISON_OPS, "<=>", "in", "between"})
_FORMS_HINT = "Use SQL text, a list of tuples, a polars expression or a pyarrow expression."


class Predicate(msgspec.Struct, frozen=True):
    """A condition on the rows of a table.

    `columns` are all columns it references. `understood` is False if it contains a `ForeignExpr`
    part or an unknown function: such a part skips no files, and a `ForeignExpr` part is evaluated
    by the engine that it comes from.
    """

    tree: Node
    columns: frozenset[str]
    understood: bool

    @classmethod
    def from_tree(cls, tree: Node) -> Predicate:
        """The predicate of a tree that has been checked already, or that only skips files."""
        return cls(tree, referenced_columns(tree), is_supported(tree))

    @classmethod
    def from_conjuncts(cls, parts: Sequence[Node]) -> Predicate:
        """The AND of trees, as `from_tree`; true for every row if there are none."""
        return cls.from_tree(join_nodes("and", parts) if parts else TRUE)

    @property
    def computable(self) -> bool:
        """Whether it can be evaluated row by row."""
        return is_evaluable(self.tree)

    def __str__(self) -> str:
        """SQL-like text for people."""
        return format_node(self.tree)


def parse_predicate(where: Any, schema: pa.Schema, *, now_micros: int | None = None) -> Predicate:
    """Parse a predicate from any form. None is true for every row; a Predicate is returned as is.

    `now_micros` (microseconds since 1970) is the value of `current_timestamp`; the default is the
    current time. Raises InvalidRequest if `where` is not a row predicate over `schema`, or is too
    large, too deep or too expensive to evaluate.
    """
    if isinstance(where, Predicate):
        return where
    if now_micros is None:
        now_micros = time.time_ns() // 1000
    try:
        tree = _parse_form(where, schema, now_micros)
        if isinstance(tree, Call) and tree.op == "and":
            return _prepare_conjuncts(tree.args, schema)
        if _compared(tree) is not None:
            return _prepare_conjuncts([tree], schema)
        return Predicate.from_tree(_prepare(tree, schema))
    except RecursionError:
        raise predicate_too_deep_error() from None


def _prepare(tree: Node, schema: pa.Schema) -> Node:
    """Check a condition, fold its constants and convert its literals. Raises InvalidRequest."""
    check_predicate_size(tree)
    tree = collect_literals(tree, schema)
    for part in walk_nodes(tree):
        if isinstance(part, Literal):
            check_literal(part)
    check_text_growth(tree)
    tree = _decimals_to_doubles(fold_constants(tree), schema)
    _check_boolean(tree, schema)
    return tree


def _prepare_conjuncts(parts: Sequence[Node], schema: pa.Schema) -> Predicate:
    """The predicate of an AND: `_prepare` for its parts.

    A comparison of a column with a literal needs none of the passes over its tree but two, and
    there may be hundreds.
    """
    if len(parts) > PREDICATE_CONDITIONS_MAX:
        raise predicate_too_long_error()
    if len(parts) > LITERALS_MAX:
        parts = collect_comparisons("and", parts, schema)
    compared = [_compared(part) for part in parts]
    others = [part for part, pair in zip(parts, compared, strict=True) if pair is None]
    if len(others) == len(parts):
        return Predicate.from_tree(_prepare(join_nodes("and", parts), schema))
    if others:
        check_predicate_size(Call("and", tuple(others)))
    prepared: list[Node] = []
    names: set[str] = set()
    rest: list[Node] = []
    is_float: dict[Column, bool] = {}
    for part, pair in zip(parts, compared, strict=True):
        if pair is None:
            rest.append(_prepare(part, schema))
            prepared.append(rest[-1])
            continue
        column, literal = pair
        check_literal(literal)
        names.add(column.name)
        if literal.kind == "decimal":
            if column not in is_float:
                kind = column_type(column, schema)
                is_float[column] = kind is not None and bool(pa.types.is_floating(kind))
            if is_float[column]:
                op = part.op  # type: ignore[union-attr]
                prepared.append(Call(op, (column, to_double(literal))))
                continue
        prepared.append(part)
    remaining = Predicate.from_conjuncts(rest)
    tree = join_nodes("and", prepared)
    return Predicate(tree, remaining.columns | names, remaining.understood)


def _compared(node: Node) -> tuple[Column, Literal] | None:
    """The column and the literal that a node compares; None if it is anything else."""
    if isinstance(node, Call) and node.op in COMPARISON_OPS:
        column, literal = node.args
        if isinstance(column, Column) and isinstance(literal, Literal):
            return column, literal
    return None


def parse_pushed_filter(expression: Any, schema: pa.Schema) -> Node:
    """A tree that is true for every row for which an engine evaluates its own filter as true.

    `expression` is a polars or pyarrow expression that an engine has pushed down. What cannot be
    told about it from the tree alone, the engine's rules included, is a `ForeignExpr` part: the
    tree is for data skipping, and the engine applies the filter itself.
    """
    try:
        tree = parse_predicate(expression, schema).tree
    except InvalidRequest:
        return TRUE
    # For Arrow, no comparison with NaN is true.
    return relax_condition(tree, schema, nan_ordered=not isinstance(expression, pc.Expression))


def _parse_form(where: Any, schema: pa.Schema, now_micros: int) -> Node:
    """Dispatch on the form and return its AST. Other parsers than that of SQL are loaded here."""
    if where is None:
        return TRUE
    if isinstance(where, str):
        return parse_sql(where, schema, now_micros)
    if isinstance(where, pc.Expression):
        from arrowlog.predicate.parse.pyarrow import parse_pyarrow

        return parse_pyarrow(where, schema)
    if type(where).__module__.partition(".")[0] == "polars" and hasattr(where, "meta"):
        from arrowlog.predicate.parse.polars import parse_polars

        return parse_polars(where, schema)
    from arrowlog.predicate.parse.tuples import parse_tuples

    if isinstance(where, (list, tuple)):
        return parse_tuples(where, schema)
    if isinstance(where, SearchCondition):
        if where.op == SEARCH_OP:
            return parse_tuples((where.args[0], SEARCH_OP, where.args[1]), schema)
        parts = [_parse_form(part, schema, now_micros) for part in where.args]
        return Call("not", tuple(parts)) if where.op == "not" else join_nodes(where.op, parts)
    raise InvalidRequest(
        f"A value of type {type(where).__name__} is not a predicate.", next=_FORMS_HINT
    )


def _decimals_to_doubles(node: Node, schema: pa.Schema) -> Node:
    """Replace decimal literals by doubles where they are compared with floating-point values.

    In DuckDB the literal 0.1 is a decimal in SQL and a double from Python, and only the decimal is
    rounded to 32 bits in a comparison with a 32-bit float. Here, as in Spark, neither is.
    """
    if not isinstance(node, Call):
        return node
    if node.op in _COERCING_OPS and any(getattr(arg, "kind", "") == "decimal" for arg in node.args):
        kinds = (_operand_type(arg, schema) for arg in node.args if not isinstance(arg, Literal))
        if any(kind is not None and pa.types.is_floating(kind) for kind in kinds):
            return Call(node.op, tuple(map(to_double, node.args)), node.detail)
    args = tuple(
        _decimals_to_doubles(arg, schema) if isinstance(arg, Call) else arg for arg in node.args
    )
    changed = any(new is not old for new, old in zip(args, node.args, strict=True))
    return Call(node.op, args, node.detail) if changed else node


def _operand_type(node: Node, schema: pa.Schema) -> pa.DataType | None:
    """The type of an operand of a comparison; None if unknown."""
    if isinstance(node, Column):
        return column_type(node, schema)
    return infer_type(node, schema) if is_supported(node) else None


def _check_boolean(node: Node, schema: pa.Schema) -> None:
    """Raise InvalidRequest unless a node has a boolean value."""
    if isinstance(node, Call) and node.op in ("and", "or", "not"):
        for arg in node.args:
            _check_boolean(arg, schema)
        return
    if isinstance(node, ForeignExpr):
        _check_foreign_type(node, schema)
        return
    not_boolean = isinstance(node, Call) and node.op in VALUE_OPS
    if (
        isinstance(node, Call)
        and not not_boolean
        and not _is_condition(node)
        and is_supported(node)
    ):
        result_type = infer_type(node, schema)
        not_boolean = result_type is not None and not _is_boolean(result_type)
    if isinstance(node, Literal):
        not_boolean = node.kind not in ("bool", "null")
    if isinstance(node, Column):
        kind = column_type(node, schema)
        not_boolean = kind is not None and not pa.types.is_boolean(kind)
    if not_boolean:
        raise _not_boolean_error(format_node(node))


def _is_boolean(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _is_condition(node: Call) -> bool:
    """Whether a call is boolean or NULL whatever the types of its arguments are."""
    return node.op in BOOLEAN_OPS


def evaluate_predicate(predicate: Predicate, columns: pa.Table) -> pa.ChunkedArray:
    """Evaluate a predicate: TRUE for the rows that match, FALSE where it is FALSE or NULL.

    Raises InvalidRequest if a column is missing or the evaluation fails.
    """
    if isinstance(predicate.tree, Literal):
        constant = repeat_bool(predicate.tree.value is True, columns.num_rows)
        return pa.chunked_array([constant], pa.bool_())
    missing = sorted(predicate.columns - set(columns.column_names))
    if missing:
        raise InvalidRequest(
            f"The rows have no column {missing[0]!r}.",
            next="Pass every column that the predicate references.",
        )
    return pc.fill_null(_evaluate(predicate.tree, columns), FALSE)


def _evaluate(node: Node, columns: pa.Table) -> pa.ChunkedArray:
    """TRUE, FALSE or NULL for every row."""
    if isinstance(node, ForeignExpr) and node.source is not None:
        return pc.cast(_evaluate_foreign(node, columns), pa.bool_())
    foreign_values: dict[str, pa.ChunkedArray] = {}
    tree = _bind_foreign(node, columns, foreign_values)
    inputs = columns.select(sorted(referenced_columns(tree) - set(foreign_values)))
    for name, values in foreign_values.items():
        inputs = inputs.append_column(name, values)
    return pc.cast(evaluate_node(tree, inputs), pa.bool_())


def _bind_foreign(
    node: Node, columns: pa.Table, foreign_values: dict[str, pa.ChunkedArray]
) -> Node:
    """Replace each foreign part by a column of its values, which its own engine computes.

    The values are added to `foreign_values` under names that start with NUL.
    """
    if isinstance(node, ForeignExpr) and node.source is not None:
        name = f"\0answer {len(foreign_values)}"
        foreign_values[name] = _evaluate_foreign(node, columns)
        return Column(name)
    if not isinstance(node, Call) or (is_supported(node) and not _has_value_set(node)):
        return node
    if node.op == "in" and isinstance(node.args[-1], ValueSet):
        name = f"\0answer {len(foreign_values)}"
        foreign_values[name] = evaluate_membership(node, columns)
        return Column(name)
    return Call(
        node.op,
        tuple(_bind_foreign(arg, columns, foreign_values) for arg in node.args),
        node.detail,
    )


def _has_value_set(node: Node) -> bool:
    return any(isinstance(part, ValueSet) for part in walk_nodes(node))


# Foreign parts, each evaluated by the engine that it comes from.


def _not_boolean_error(what: str) -> InvalidRequest:
    """The error for an expression whose value is not boolean."""
    return InvalidRequest(
        f"{what} is a value, not a condition.",
        next="Compare it with something. Use SQL text, a list of tuples, a polars expression or a"
        " pyarrow expression.",
    )


def _evaluate_foreign(node: ForeignExpr, columns: pa.Table) -> pa.ChunkedArray:
    """Evaluate a foreign part for every row, with the engine it comes from."""
    return (
        _evaluate_with_arrow(node, columns)
        if _is_arrow(node)
        else _evaluate_with_polars(node, columns)
    )


def _check_foreign_type(node: ForeignExpr, schema: pa.Schema) -> None:
    """Raise InvalidRequest if the engine reports that a foreign part is not boolean.

    Other errors are left to the evaluation of the rows.
    """
    if node.source is None:
        return
    empty = empty_table(schema)
    if _is_arrow(node):
        try:
            kind = _project(node.source, empty).type
        except (pa.ArrowException, TypeError):
            return
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise _not_boolean_error(str(node.source))
        return
    frame = pl.DataFrame(pl.from_arrow(empty)).lazy()
    try:
        dtype = frame.select(node.source).collect_schema().dtypes()[0]
    except pl.exceptions.PolarsError:
        return
    if dtype not in (pl.Boolean, pl.Null, pl.Unknown):
        raise _not_boolean_error(str(node.source))


def _is_arrow(node: ForeignExpr) -> bool:
    return isinstance(node.source, pc.Expression)


def _evaluate_with_arrow(node: ForeignExpr, columns: pa.Table) -> pa.ChunkedArray:
    try:
        return _project(node.source, columns)
    except (pa.ArrowException, TypeError) as error:
        raise _evaluation_error(node, error) from None


def _project(expression: pc.Expression, columns: pa.Table) -> pa.ChunkedArray:
    """Evaluate an Arrow expression for every row, in row order."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(columns))
    project = acero.ProjectNodeOptions([expression], ["answer"])
    plan = acero.Declaration.from_sequence([source, acero.Declaration("project", project)])
    return plan.to_table(use_threads=False)["answer"]


def _evaluate_with_polars(node: ForeignExpr, columns: pa.Table) -> pa.ChunkedArray:
    frame = pl.DataFrame(pl.from_arrow(columns))
    # A condition without a column has length 1; combined with a full column it is broadcast.
    always_true = pl.repeat(None, pl.len()).is_null()
    try:
        result = frame.select(always_true & node.source).to_series()
    except pl.exceptions.PolarsError as error:
        raise _evaluation_error(node, error) from None
    return pa.chunked_array([result.to_arrow()])


def _evaluation_error(node: ForeignExpr, error: Any) -> InvalidRequest:
    message = str(error).partition("\n")[0]
    return InvalidRequest(
        f"{node.text} cannot be evaluated: {message}",
        next="Check that the functions accept columns of these types.",
    )

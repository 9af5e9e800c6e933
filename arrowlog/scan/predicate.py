"""What a user asks for, in any of four forms, as one tree; and its exact value row by row.

SQL text, tuples, a polars expression and a pyarrow expression mean the same thing here: what
DuckDB says. NaN is above every number and equal to itself, NULL is unknown, times without a zone
are UTC. `docs/predicates.md` has the whole table.

A part of an expression that DuckDB has no equal for is evaluated by the expression's own engine,
and its values go into the rest like a column. So `~(f > 5)` is the same condition beside such a
part as it is alone, and the one that files are pruned by.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.log.arrays import FALSE, flags
from arrowlog.scan.cost import check_cost
from arrowlog.scan.engine import computable, evaluate, folded, kind_of, known
from arrowlog.scan.expressions import from_arrow
from arrowlog.scan.foreign import check_source, not_a_condition, own_answer
from arrowlog.scan.forms import from_tuples
from arrowlog.scan.limits import check_size, too_deep
from arrowlog.scan.literals import check_literal, double_of
from arrowlog.scan.polars_form import from_polars
from arrowlog.scan.sql import read_sql
from arrowlog.scan.tree import (
    ARITHMETIC,
    COMPARISONS,
    CONDITIONS,
    TRUE,
    Call,
    Column,
    Foreign,
    Literal,
    columns_of,
    describe,
    walk,
)

if TYPE_CHECKING:
    from arrowlog.scan.tree import Node

_COMPARED = frozenset({*COMPARISONS, "<=>", "in", "between"})
_FORMS = "Use SQL text, a list of tuples, a polars expression or a pyarrow expression."


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on the rows of a table.

    `columns` are all it mentions. `understood` is false if a part of it is beyond us: such a part
    prunes nothing, and the engine that the part comes from evaluates it.
    """

    tree: Node
    columns: frozenset[str]
    understood: bool

    @property
    def computable(self) -> bool:
        """Whether it can be evaluated row by row."""
        return computable(self.tree)

    def __str__(self) -> str:
        """As text a person can read."""
        return describe(self.tree)


def parse(where: Any, schema: pa.Schema, *, now_micros: int | None = None) -> Predicate:
    """A predicate from any form; None is true for every row.

    `now_micros` (microseconds since 1970) is what `current_timestamp` stands for.
    """
    if isinstance(where, Predicate):
        return where
    if now_micros is None:
        now_micros = time.time_ns() // 1000
    try:
        tree = _read(where, schema, now_micros)
        check_size(tree)
        for part in walk(tree):
            if isinstance(part, Literal):
                check_literal(part)
        check_cost(tree)
        tree = _as_doubles(folded(tree), schema)
        _check_condition(tree, schema)
        understood = known(tree)
        columns = columns_of(tree)
    except RecursionError:
        raise too_deep() from None
    return Predicate(tree, columns, understood)


def _read(where: Any, schema: pa.Schema, now_micros: int) -> Node:
    """The tree of any form."""
    if where is None:
        return TRUE
    if isinstance(where, str):
        return read_sql(where, schema, now_micros)
    if isinstance(where, pc.Expression):
        return from_arrow(where, schema)
    if type(where).__module__.partition(".")[0] == "polars" and hasattr(where, "meta"):
        return from_polars(where, schema)
    if isinstance(where, (list, tuple)):
        return from_tuples(where, schema)
    raise InvalidRequest(f"A {type(where).__name__} is no predicate.", next=_FORMS)


def _as_doubles(node: Node, schema: pa.Schema) -> Node:
    """The tree with 0.1 as a double wherever it is compared with a float.

    To DuckDB 0.1 in SQL is a decimal, and the same number from Python a double; beside a 32-bit
    float only the first would be rounded to 32 bits. Here, as in Spark, neither is.
    """
    if not isinstance(node, Call):
        return node
    if node.op in _COMPARED and any(getattr(arg, "kind", "") == "decimal" for arg in node.args):
        kinds = (_kind(arg, schema) for arg in node.args if not isinstance(arg, Literal))
        if any(kind is not None and pa.types.is_floating(kind) for kind in kinds):
            return Call(node.op, tuple(map(double_of, node.args)), node.detail)
    args = tuple(_as_doubles(arg, schema) if isinstance(arg, Call) else arg for arg in node.args)
    changed = any(new is not old for new, old in zip(args, node.args, strict=True))
    return Call(node.op, args, node.detail) if changed else node


def _kind(node: Node, schema: pa.Schema) -> pa.DataType | None:
    """The type of one side of a comparison; None if it cannot be told."""
    if isinstance(node, Column):
        return _type_of(node, schema)
    return kind_of(node, schema) if known(node) else None


def _check_condition(node: Node, schema: pa.Schema) -> None:
    """Only what can be true or false is a condition."""
    if isinstance(node, Call) and node.op in ("and", "or", "not"):
        for arg in node.args:
            _check_condition(arg, schema)
        return
    if isinstance(node, Foreign):
        check_source(node, schema)
        return
    wrong = isinstance(node, Call) and node.op in ARITHMETIC
    if isinstance(node, Call) and not wrong and not _plain(node) and known(node):
        found = kind_of(node, schema)
        wrong = found is not None and not _truth(found)
    if isinstance(node, Literal):
        wrong = node.kind not in ("bool", "null")
    if isinstance(node, Column):
        kind = _type_of(node, schema)
        wrong = kind is not None and not pa.types.is_boolean(kind)
    if wrong:
        raise not_a_condition(describe(node))


def _truth(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _plain(node: Call) -> bool:
    """Whether it is surely true, false or NULL, whatever the columns are."""
    return node.op in CONDITIONS


def _type_of(node: Column, schema: pa.Schema) -> pa.DataType | None:
    kind = schema.field(node.name).type
    for part in node.path:
        index = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
        if index < 0:
            return None
        kind = kind.field(index).type
    return kind


def matching(predicate: Predicate, columns: pa.Table) -> pa.ChunkedArray:
    """For every row, whether the predicate is TRUE; what is NULL is not."""
    if isinstance(predicate.tree, Literal):
        answer = flags(predicate.tree.value is True, columns.num_rows)
        return pa.chunked_array([answer], pa.bool_())
    missing = sorted(predicate.columns - set(columns.column_names))
    if missing:
        raise InvalidRequest(f"The rows have no column {missing[0]!r}.")
    return pc.fill_null(_answer(predicate.tree, columns), FALSE)


def _answer(node: Node, columns: pa.Table) -> pa.ChunkedArray:
    """TRUE, FALSE or NULL for every row."""
    if isinstance(node, Foreign) and node.source is not None:
        return pc.cast(own_answer(node, columns), pa.bool_())
    answers: dict[str, pa.ChunkedArray] = {}
    tree = _answered(node, columns, answers)
    used = columns.select(sorted(columns_of(tree) - set(answers)))
    for name, answer in answers.items():
        used = used.append_column(name, answer)
    return pc.cast(evaluate(tree, used), pa.bool_())


def _answered(node: Node, columns: pa.Table, answers: dict[str, pa.ChunkedArray]) -> Node:
    """The tree with a column of answers in place of each part that another engine evaluates."""
    if isinstance(node, Foreign) and node.source is not None:
        name = f"\0answer {len(answers)}"
        answers[name] = own_answer(node, columns)
        return Column(name)
    if not isinstance(node, Call) or known(node):
        return node
    return Call(node.op, tuple(_answered(arg, columns, answers) for arg in node.args), node.detail)

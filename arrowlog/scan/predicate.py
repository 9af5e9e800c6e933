"""What a user asks for, in any of four forms, as one tree; and its exact value row by row.

SQL text, tuples, a polars expression and a pyarrow expression mean the same thing here: what
DuckDB says. NaN is above every number and equal to itself, NULL is unknown, times without a zone
are UTC.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.log.arrays import FALSE, flags
from arrowlog.scan.engine import evaluate, folded, kind_of, known
from arrowlog.scan.expressions import from_arrow
from arrowlog.scan.forms import from_tuples
from arrowlog.scan.polars_form import from_polars
from arrowlog.scan.sql import read_sql
from arrowlog.scan.tree import (
    ARITHMETIC,
    CONDITIONS,
    TRUE,
    Call,
    Column,
    Literal,
    columns_of,
    describe,
)

if TYPE_CHECKING:
    from arrowlog.scan.tree import Node

_SHORTER = "Write a list of values as IN (…)."
_FORMS = "Use SQL text, a list of tuples, a polars expression or a pyarrow expression."


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on the rows of a table.

    `columns` are all it mentions. `understood` is false if a part of it is beyond us: such a part
    prunes nothing. `source` is then the expression it came from, which its own engine evaluates.
    """

    tree: Node
    columns: frozenset[str]
    understood: bool
    source: Any = field(default=None, repr=False, compare=False)

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
        tree, source = _read(where, schema, now_micros)
        tree = folded(tree)
        _check_condition(tree, schema)
        understood = known(tree)
        columns = columns_of(tree)
    except RecursionError:
        raise InvalidRequest(
            "The predicate is too long a chain, or nested too deeply.", next=_SHORTER
        ) from None
    if not understood and source is not None:
        _check_source(source, schema)
    return Predicate(tree, columns, understood, None if understood else source)


def _read(where: Any, schema: pa.Schema, now_micros: int) -> tuple[Node, Any]:
    """The tree of any form, and the expression it came from."""
    source = None
    if where is None:
        tree: Node = TRUE
    elif isinstance(where, str):
        tree = read_sql(where, schema, now_micros)
    elif isinstance(where, pc.Expression):
        tree, source = from_arrow(where, schema), where
    elif type(where).__module__.partition(".")[0] == "polars" and hasattr(where, "meta"):
        tree, source = from_polars(where, schema), where
    elif isinstance(where, (list, tuple)):
        tree = from_tuples(where, schema)
    else:
        raise InvalidRequest(f"A {type(where).__name__} is no predicate.", next=_FORMS)
    return tree, source


def _check_condition(node: Node, schema: pa.Schema) -> None:
    """Only what can be true or false is a condition."""
    if isinstance(node, Call) and node.op in ("and", "or", "not"):
        for arg in node.args:
            _check_condition(arg, schema)
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
        raise _value(describe(node))


def _value(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} is a value, not a condition.", next=f"Compare it with something. {_FORMS}"
    )


def _truth(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _plain(node: Call) -> bool:
    """Whether it is surely true, false or NULL, whatever the columns are."""
    return node.op in CONDITIONS


def _check_source(source: Any, schema: pa.Schema) -> None:
    """Of what only its own engine understands, that engine says whether it is a condition."""
    empty = schema.empty_table()
    if isinstance(source, pc.Expression):
        try:
            empty.filter(source)
        except (pa.ArrowException, TypeError) as error:
            if "bool" in str(error):
                raise _value(str(source)) from None
        return
    import polars as pl

    try:
        kind = pl.DataFrame(pl.from_arrow(empty)).lazy().select(source).collect_schema().dtypes()[0]
    except pl.exceptions.PolarsError:
        return  # said when rows are asked for
    if kind not in (pl.Boolean, pl.Null, pl.Unknown):
        raise _value(str(source))


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
    if predicate.source is not None:
        return _own_engine(predicate, columns)
    used = columns.select(sorted(predicate.columns))
    answer = pc.cast(evaluate(predicate.tree, used), pa.bool_())
    return pc.fill_null(answer, FALSE)


def _own_engine(predicate: Predicate, columns: pa.Table) -> pa.ChunkedArray:
    """What we cannot express is evaluated by the engine whose expression it is."""
    if isinstance(predicate.source, pc.Expression):
        numbered = columns.append_column("\0row", pa.array(range(columns.num_rows), pa.int64()))
        rows = numbered.filter(predicate.source)["\0row"]
        return pc.is_in(numbered["\0row"], value_set=rows.combine_chunks())
    import polars as pl

    frame = pl.DataFrame(pl.from_arrow(columns))
    found = frame.select(pl.repeat(None, pl.len()).is_null() & predicate.source)
    answer = found.to_series().fill_null(value=False)
    return pa.chunked_array([answer.to_arrow()])

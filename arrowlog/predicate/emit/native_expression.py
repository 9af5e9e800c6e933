"""Evaluate the parts of a predicate that only polars or pyarrow can evaluate.

Every reader uses this module, so the result does not depend on which engine consumes the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from arrowlog.predicate.ast import ForeignExpr


def not_boolean_error(what: str) -> InvalidRequest:
    """The error for an expression whose value is not boolean."""
    return InvalidRequest(
        f"{what} is a value, not a condition.",
        next="Compare it with something. Use SQL text, a list of tuples, a polars expression or a"
        " pyarrow expression.",
    )


def evaluate_foreign(node: ForeignExpr, columns: pa.Table) -> pa.ChunkedArray:
    """Evaluate a foreign part for every row, with the engine it comes from."""
    return (
        _evaluate_with_arrow(node, columns)
        if _is_arrow(node)
        else _evaluate_with_polars(node, columns)
    )


def check_foreign_type(node: ForeignExpr, schema: pa.Schema) -> None:
    """Raise InvalidRequest if the engine reports that a foreign part is not boolean.

    Other errors are left to the evaluation of the rows.
    """
    if node.source is None:
        return
    empty = schema.empty_table()
    if _is_arrow(node):
        try:
            kind = _project(node.source, empty).type
        except (pa.ArrowException, TypeError):
            return
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise not_boolean_error(str(node.source))
        return
    frame = pl.DataFrame(pl.from_arrow(empty)).lazy()
    try:
        dtype = frame.select(node.source).collect_schema().dtypes()[0]
    except pl.exceptions.PolarsError:
        return
    if dtype not in (pl.Boolean, pl.Null, pl.Unknown):
        raise not_boolean_error(str(node.source))


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

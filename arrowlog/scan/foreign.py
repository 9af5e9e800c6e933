"""Parts of an expression that only polars or pyarrow can evaluate, by them, for rows of Arrow.

Every reader asks here, so the answer is the same whichever engine takes the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    from arrowlog.scan.tree import Foreign


def not_a_condition(what: str) -> InvalidRequest:
    """The error for something that has a value, but is neither true nor false."""
    return InvalidRequest(
        f"{what} is a value, not a condition.",
        next="Compare it with something. Use SQL text, a list of tuples, a polars expression or a"
        " pyarrow expression.",
    )


def own_answer(node: Foreign, columns: pa.Table) -> pa.ChunkedArray:
    """The value of a part for every row, by the engine whose expression it is."""
    return _by_arrow(node, columns) if _is_arrow(node) else _by_polars(node, columns)


def check_source(node: Foreign, schema: pa.Schema) -> None:
    """Refuse what its own engine says is no condition. Other errors come up with the rows."""
    if node.source is None:
        return
    empty = schema.empty_table()
    if _is_arrow(node):
        try:
            kind = _projected(node.source, empty).type
        except (pa.ArrowException, TypeError):
            return
        if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise not_a_condition(str(node.source))
        return
    frame = pl.DataFrame(pl.from_arrow(empty)).lazy()
    try:
        found = frame.select(node.source).collect_schema().dtypes()[0]
    except pl.exceptions.PolarsError:
        return
    if found not in (pl.Boolean, pl.Null, pl.Unknown):
        raise not_a_condition(str(node.source))


def _is_arrow(node: Foreign) -> bool:
    return isinstance(node.source, pc.Expression)


def _by_arrow(node: Foreign, columns: pa.Table) -> pa.ChunkedArray:
    try:
        return _projected(node.source, columns)
    except (pa.ArrowException, TypeError) as error:
        raise _failed(node, error) from None


def _projected(expression: pc.Expression, columns: pa.Table) -> pa.ChunkedArray:
    """The value of an expression for every row, in the order of the rows."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(columns))
    project = acero.ProjectNodeOptions([expression], ["answer"])
    steps = acero.Declaration.from_sequence([source, acero.Declaration("project", project)])
    return steps.to_table(use_threads=False)["answer"]


def _by_polars(node: Foreign, columns: pa.Table) -> pa.ChunkedArray:
    frame = pl.DataFrame(pl.from_arrow(columns))
    # A condition without a column gives one answer; beside a whole column it is repeated.
    every = pl.repeat(None, pl.len()).is_null()
    try:
        answer = frame.select(every & node.source).to_series()
    except pl.exceptions.PolarsError as error:
        raise _failed(node, error) from None
    return pa.chunked_array([answer.to_arrow()])


def _failed(node: Foreign, error: Any) -> InvalidRequest:
    words = str(error).partition("\n")[0]
    return InvalidRequest(
        f"{node.text} cannot be evaluated: {words}",
        next="Check that the functions take columns of these types.",
    )

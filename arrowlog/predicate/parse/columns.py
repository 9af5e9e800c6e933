"""Resolve the column names of a predicate. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import Column

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES_SHOWN_MAX = 12


def resolve_column(name: str, schema: pa.Schema) -> Column:
    """A column by its exact name. Raises InvalidRequest, listing the columns, if there is none."""
    if schema.get_field_index(name) < 0:
        raise unknown_column_error(name, schema)
    return Column(name)


def unknown_column_error(name: str, schema: pa.Schema, where: str = "") -> InvalidRequest:
    """The error for a column that a schema lacks; `where` says which part of a text names it."""
    known = ", ".join(schema.names[:_NAMES_SHOWN_MAX])
    more = ", …" if len(schema.names) > _NAMES_SHOWN_MAX else ""
    return InvalidRequest(
        f"{f'{where}: there' if where else 'There'} is no column {name!r}.",
        next=f"The columns are {known}{more}.",
    )

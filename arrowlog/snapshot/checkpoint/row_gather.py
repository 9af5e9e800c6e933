"""Gather rows of a table in another order, without copying its texts beforehand. Pure.

The texts of many files are in the many buffers in which they were decoded. Arrow gathers from one
buffer only, and copying them into one takes as much memory again. Views of the texts, 16 bytes
each, refer to the buffers where they are: they are gathered instead, and become texts again a few
rows at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, to_numpy

_VIEW_BYTES = 16


class GatheredRows(Protocol):
    """Rows of a checkpoint that is being written, numbered in any order."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    @property
    def nbytes(self) -> int:
        """The size of all rows in memory."""

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""

    def slice(self, start: int, count: int) -> pa.Table:
        """Return up to `count` rows from a number on, a sample of all."""

    def take(self, rows: pa.Array) -> pa.Table:
        """Return some rows, given by their numbers, in that order."""


class RowGatherer:
    """The columns of a table, prepared so that rows can be gathered from them again and again."""

    def __init__(self, table: pa.Table) -> None:
        """Copy columns other than texts into one piece each, unless they are."""
        self._table = table
        self._columns = [_prepare(column) for column in table.columns]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self._table.num_rows)

    @property
    def nbytes(self) -> int:
        """The size of the table."""
        return int(self._table.nbytes)

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._table.schema

    def slice(self, start: int, count: int) -> pa.Table:
        """Return up to `count` rows from a number on."""
        return self._table.slice(start, count)

    def take(self, rows: pa.Array) -> pa.Table:
        """Return some rows, given by their numbers, in that order."""
        return pa.table([column.take(rows) for column in self._columns], schema=self.schema)


def _prepare(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | _TextViews:
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.type == pa.string() and column.num_chunks and _can_gather_views():
        return _TextViews(column)
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid:  # more text than one array can hold
        return column


class _TextViews:
    """A column of texts as views of their buffers."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        import numpy as np

        views = pc.cast(column, pa.string_view()).combine_chunks()
        self._valid = pc.is_valid(views) if views.null_count else None
        _, fixed, *self._texts = views.buffers()
        words = np.frombuffer(fixed, np.uint64, 2 * len(views), _VIEW_BYTES * views.offset)
        self._views = words.reshape(-1, 2)

    def take(self, rows: pa.Array) -> pa.Array:
        views = self._views.take(to_numpy(rows), axis=0)
        valid = None
        if self._valid is not None:
            valid = self._valid.take(rows).buffers()[1]
        buffers = [valid, pa.py_buffer(views), *self._texts]
        return pc.cast(pa.Array.from_buffers(pa.string_view(), len(rows), buffers), pa.string())


@cache
def _can_gather_views() -> bool:
    """Whether this release of Arrow builds arrays of views from buffers, and casts them."""
    texts = [make_array(["a", None, "a text that is not inside its view"], pa.string())] * 2
    column = pa.chunked_array(texts)
    rows = make_array([5, 1, 0, 2], pa.int64())
    try:
        return bool(_TextViews(column).take(rows).equals(column.combine_chunks().take(rows)))
    except (pa.ArrowException, ValueError, TypeError, AttributeError):
        return False

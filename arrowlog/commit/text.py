"""Partition values and statistics as the text stored in a log. Pure."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa


def text_of(value: object, kind: pa.DataType) -> str | None:
    """Return the log text of a value of a column, or None for null.

    Text is returned unchanged: it may come from a log. Raises `ValueError` with the reason if the
    value has no such text.

    >>> text_of(dt.date(2024, 1, 31), pa.date32()), text_of(True, pa.bool_())
    ('2024-01-31', 'true')
    """
    if value is None or isinstance(value, str):
        return _checked(value)
    if isinstance(value, pa.Scalar):
        return text_of(value.as_py(), kind)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.datetime):
        return _timestamp_text(value, kind)
    if isinstance(value, dt.date):
        return value.isoformat()
    if hasattr(value, "item"):  # a numpy scalar
        return text_of(value.item(), kind)
    raise ValueError(f"values of type {type(value).__name__} cannot be stored in a log")


def _checked(text: str | None) -> str | None:
    if text is not None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it contains an unpaired surrogate") from None
    return text


def _timestamp_text(value: dt.datetime, kind: pa.DataType) -> str:
    """Return ISO-8601 with microseconds: in UTC with `Z` if the column has a zone, else without."""
    if pa.types.is_date(kind):
        raise ValueError("the column holds dates")
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return value.isoformat(timespec="microseconds") + ("Z" if zoned else "")

"""Values as the text that stands in a log. Pure."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa


def text_of(value: object, kind: pa.DataType) -> str | None:
    """A value of a column as text; `ValueError` says why it has none.

    Text stays as it is: it may come from a log.

    >>> text_of(dt.date(2024, 1, 31), pa.date32()), text_of(True, pa.bool_())
    ('2024-01-31', 'true')
    """
    if value is None or isinstance(value, str):
        return _clean(value)
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
        return _moment(value, kind)
    if isinstance(value, dt.date):
        return value.isoformat()
    if hasattr(value, "item"):  # a scalar of numpy
        return text_of(value.item(), kind)
    raise ValueError(f"a {type(value).__name__} has no text in a log")


def _clean(text: str | None) -> str | None:
    if text is not None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it has half a character in it") from None
    return text


def _moment(value: dt.datetime, kind: pa.DataType) -> str:
    """ISO-8601 with every digit; a moment in time in UTC, a reading of a clock without a zone."""
    if pa.types.is_date(kind):
        raise ValueError("the column holds dates")
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return value.isoformat(timespec="microseconds") + ("Z" if zoned else "")

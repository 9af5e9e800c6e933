"""pyarrow expressions as trees.

A pyarrow expression cannot be looked into. Pickled, it is an Arrow file: its literals are columns,
and the metadata of its schema lists calls, fields and literals in the order they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.scan.literals import scalar_literal
from arrowlog.scan.tree import NULL, Call, Column, Foreign, Literal, joined

if TYPE_CHECKING:
    from arrowlog.scan.tree import Node

_CALLS = {
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and_kleene": "and",
    "or_kleene": "or",
    "invert": "not",
}
_KEYS = ("call", "end", "field_ref", "nested_field_ref", "literal", "options")


class _Beyond(Exception):
    """A part of an expression that has no equal here."""


def from_arrow(expression: Any, schema: pa.Schema) -> Node:
    """The tree of a pyarrow expression; what has no equal here is a foreign part of it."""
    entries = values = None
    if not any("\n" in name for name in schema.names):
        entries, values = _opened(expression)
    if entries is None or values is None:
        return Foreign(str(expression), frozenset(schema.names))
    node = _Reader(entries, values, schema).whole()
    return node or Foreign(str(expression), frozenset(schema.names))


def _opened(expression: Any) -> tuple[list[tuple[str, str]] | None, pa.RecordBatch | None]:
    _, (buffer,) = expression.__reduce__()
    with pa.ipc.open_file(buffer) as reader:
        values = reader.get_batch(0)
    text = values.schema.to_string(
        truncate_metadata=False, show_field_metadata=False, show_schema_metadata=True
    )
    _, mark, lines = text.rpartition("-- schema metadata --\n")
    entries = [line.partition(": '") for line in lines.split("\n")] if mark else []
    if any(key not in _KEYS or not value.endswith("'") for key, _, value in entries):
        return None, None
    return [(key, value[:-1]) for key, _, value in entries], values


class _Open:
    """A call whose end has not been read yet."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.args: list[Node] = []
        self.options: dict[str, Any] = {}
        self.columns: set[str] = set()


class _Reader:
    """One pass over the entries of one expression; calls in calls are a list, however deep."""

    def __init__(
        self, entries: list[tuple[str, str]], values: pa.RecordBatch, schema: pa.Schema
    ) -> None:
        self._entries = entries
        self._values = values
        self._schema = schema

    def whole(self) -> Node | None:
        """The one node that all entries make; None if they do not."""
        opened = [_Open()]
        at = 0
        while at < len(self._entries):
            key, value = self._entries[at]
            at += 1
            top = opened[-1]
            if key == "call":
                opened.append(_Open(value))
            elif key == "options":
                raw = self._values.column(int(value))[0]
                top.options = {field.name: raw[field.name] for field in raw.type}
            elif key == "literal":
                found = scalar_literal(self._values.column(int(value))[0])
                top.args.append(found or Foreign("a literal", frozenset()))
            elif key == "end":
                if len(opened) == 1:
                    return None
                opened.pop()
                _close(top, opened[-1])
            else:
                count = int(value) if key == "nested_field_ref" else 1
                start = at if key == "nested_field_ref" else at - 1
                at = start + count
                self._field(top, self._entries[start:at], count)
        last = opened[0].args
        return last[0] if len(opened) == 1 and len(last) == 1 else None

    def _field(self, top: _Open, entries: list[tuple[str, str]], count: int) -> None:
        names = [name for kind, name in entries if kind == "field_ref"]
        if len(names) != count or not names:
            top.columns.update(self._schema.names)
            top.args.append(Foreign("a nested field", frozenset(self._schema.names)))
            return
        if self._schema.get_field_index(names[0]) < 0:
            raise InvalidRequest(
                f"There is no column {names[0]!r}.",
                next=f"The columns are {', '.join(self._schema.names[:12])}.",
            )
        top.columns.add(names[0])
        top.args.append(Column(names[0], tuple(names[1:])))


def _close(call: _Open, outer: _Open) -> None:
    """A call is read to its end: its node goes to the one around it."""
    try:
        node = _node(call.name, tuple(call.args), call.options)
    except _Beyond:
        node = Foreign(f"{call.name}(…)", frozenset(call.columns))
    outer.args.append(node)
    outer.columns |= call.columns


def _node(name: str, args: tuple[Node, ...], options: dict[str, Any]) -> Node:
    foreign = any(isinstance(arg, Foreign) for arg in args)
    if foreign and name not in ("and_kleene", "or_kleene"):
        raise _Beyond
    if name in ("and_kleene", "or_kleene"):
        return joined(_CALLS[name], args)
    if name in _CALLS:
        return Call(_CALLS[name], args)
    if name == "is_valid":
        return Call("not", (Call("is null", args),))
    if name == "is_null" and not options["nan_is_null"].as_py():
        return Call("is null", args)
    if name == "is_nan":
        return Call("isnan", args)
    if name in ("starts_with", "match_like") and not options["ignore_case"].as_py():
        pattern = Literal(str(options["pattern"].as_py()), "text")
        if name == "starts_with":
            return Call(name, (*args, pattern))
        return Call("like", (*args, pattern, Literal("\\", "text")))
    if name == "is_in":
        return _in(args[0], options)
    raise _Beyond


def _in(column: Node, options: dict[str, Any]) -> Node:
    """In pyarrow `isin` is never unknown: a NULL row is in the set, or it is not."""
    found = [scalar_literal(value) for value in options["value_set"].values]
    if any(value is None for value in found) or options["null_matching_behavior"].as_py() != 0:
        raise _Beyond
    values = [value for value in found if value is not None and value is not NULL]
    inside: Node = Call("is true", (Call("in", (column, *values)),))
    if not values:
        inside = Literal(False, "bool")
    if len(values) < len(found):
        inside = Call("or", (inside, Call("is null", (column,))))
    return inside

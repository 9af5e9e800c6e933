"""pyarrow expressions as trees.

A pyarrow expression cannot be looked into. Pickled, it is an Arrow file: its literals are columns,
and the metadata of its schema lists calls, fields and literals in the order they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import InvalidRequest
from arrowlog.scan.literals import scalar_literal
from arrowlog.scan.tree import NULL, Call, Column, Foreign, Literal

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
    node, end = _Reader(entries, values, schema).node(0)
    return node if end == len(entries) else Foreign(str(expression), frozenset(schema.names))


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


class _Reader:
    """One pass over the entries of one expression."""

    def __init__(
        self, entries: list[tuple[str, str]], values: pa.RecordBatch, schema: pa.Schema
    ) -> None:
        self._entries = entries
        self._values = values
        self._schema = schema

    def node(self, at: int) -> tuple[Node, int]:
        """The node that begins at an entry, and where the next one begins."""
        key, value = self._entries[at]
        if key == "literal":
            found = scalar_literal(self._values.column(int(value))[0])
            return found or Foreign("a literal", frozenset()), at + 1
        if key == "field_ref":
            return Column(self._known(value)), at + 1
        if key == "nested_field_ref":
            parts = self._entries[at + 1 : at + 1 + int(value)]
            names = [name for kind, name in parts if kind == "field_ref"]
            if len(names) != int(value):
                return Foreign("a nested field", frozenset(self._schema.names)), at + 1 + len(parts)
            return Column(self._known(names[0]), tuple(names[1:])), at + 1 + len(parts)
        return self._call(value, at + 1)

    def _known(self, name: str) -> str:
        if self._schema.get_field_index(name) < 0:
            raise InvalidRequest(
                f"There is no column {name!r}.",
                next=f"The columns are {', '.join(self._schema.names[:12])}.",
            )
        return name

    def _call(self, name: str, at: int) -> tuple[Node, int]:
        args: list[Node] = []
        options: dict[str, Any] = {}
        raw: pa.Scalar | None = None
        start = at
        while self._entries[at][0] != "end":
            if self._entries[at][0] == "options":
                raw = self._values.column(int(self._entries[at][1]))[0]
                options = {field.name: raw[field.name] for field in raw.type}
                at += 1
                continue
            arg, at = self.node(at)
            args.append(arg)
        try:
            node = _node(name, tuple(args), options)
        except _Beyond:
            fields = {value for key, value in self._entries[start:at] if key == "field_ref"}
            node = Foreign(f"{name}(…)", frozenset(fields))
        return node, at + 1


def _node(name: str, args: tuple[Node, ...], options: dict[str, Any]) -> Node:
    foreign = any(isinstance(arg, Foreign) for arg in args)
    if foreign and name not in ("and_kleene", "or_kleene"):
        raise _Beyond
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

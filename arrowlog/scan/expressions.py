"""pyarrow expressions as trees.

A pyarrow expression cannot be looked into. Pickled, it is an Arrow file: its literals are columns,
and the metadata of its schema lists calls, fields and literals in the order they are written.

Arrow computes the values of functions that have no equal here. Comparisons, IN and AND, OR and NOT
are never left to it: beside a NaN they would have another meaning than in SQL.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.scan.limits import CONDITIONS_MAX, on_deep_stack, too_deep, too_long
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
    "xor": "<>",
    "coalesce": "coalesce",
}
_NUMBERED = ("literal", "options")
_OWN_DEPTH_MAX = 500  # levels of an expression that Arrow evaluates itself
_KEYS = ("call", "end", "field_ref", "nested_field_ref", "literal", "options")


class _Beyond(Exception):
    """A part of an expression that has no equal here."""


def from_arrow(expression: Any, schema: pa.Schema) -> Node:
    """The tree of a pyarrow expression; what has no equal here is a foreign part of it."""
    entries = values = None
    if not any("\n" in name for name in schema.names):
        entries, values = _opened(expression)
    if entries is None or values is None:
        return Foreign(_text(expression), frozenset(schema.names), expression)
    node = _Reader(entries, values, schema).whole()
    if node is None or isinstance(node, Foreign):
        _check_depth(entries)
        columns = frozenset(schema.names) if node is None else node.columns
        return Foreign(_text(expression), columns, expression)
    return _with_sources(node, entries, values)


def _text(expression: Any) -> str:
    return on_deep_stack(lambda: str(expression))


def _check_depth(entries: list[tuple[str, str]]) -> None:
    """Refuse what Arrow would have to evaluate as it is, and by recursion."""
    depth = 0
    for key, _ in entries:
        depth += (key == "call") - (key == "end")
        if depth > _OWN_DEPTH_MAX:
            raise too_deep()


def _with_sources(node: Node, entries: list[tuple[str, str]], values: pa.RecordBatch) -> Node:
    """The tree with an expression in each foreign part, made of the entries it was read from."""
    if isinstance(node, Foreign):
        own = entries[slice(*node.source)]
        _check_depth(own)
        part = _part(own, values)
        return Foreign(str(part), node.columns, part)
    if not isinstance(node, Call):
        return node
    args = tuple(_with_sources(arg, entries, values) for arg in node.args)
    return Call(node.op, args, node.detail)


def _part(entries: list[tuple[str, str]], values: pa.RecordBatch) -> pc.Expression:
    """An expression from entries, with only the values that these name."""
    places: dict[str, int] = {}
    renumbered = [
        (key, str(places.setdefault(value, len(places))) if key in _NUMBERED else value)
        for key, value in entries
    ]
    # Arrow wants one row, which a batch without columns does not have.
    columns = [*(values.column(int(value)) for value in places), pa.nulls(1)]
    schema = pa.schema([pa.field("", column.type) for column in columns])
    schema = schema.with_metadata(pa.KeyValueMetadata(renumbered))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as out:
        out.write_batch(batch)
    revive, _ = pc.scalar(True).__reduce__()
    found: pc.Expression = revive(sink.getvalue())
    return found


def _opened(expression: Any) -> tuple[list[tuple[str, str]] | None, pa.RecordBatch | None]:
    try:
        _, (buffer,) = on_deep_stack(expression.__reduce__)
    except pa.ArrowNotImplementedError as error:
        raise InvalidRequest(
            f"The expression {expression} cannot be read: {error}.",
            next='Name columns as pyarrow.compute.field("name"), not by their number.',
        ) from None
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

    def __init__(self, name: str = "", start: int = 0) -> None:
        self.name = name
        self.start = start
        self.args: list[Node | _Chain] = []
        self.options: dict[str, Any] = {}
        self.columns: set[str] = set()
        self.opaque = False  # whether an argument is a value that only Arrow can compare

    def nodes(self) -> tuple[Node, ...]:
        """Its arguments, chains among them as the one node they make."""
        return tuple(arg.node() if isinstance(arg, _Chain) else arg for arg in self.args)


class _Chain:
    """The parts of an AND or OR so far. A chain is one inside another, in a pile of thousands."""

    def __init__(self, call: _Open) -> None:
        """Takes over the longer one of two chains of its kind, and adds the rest to it."""
        self.op = _CALLS[call.name]
        first, second = call.args
        self.parts: deque[Node] = deque()
        if self._takes(second) and len(self._parts(first)) <= len(second.parts):
            self.parts = second.parts
            self.parts.extendleft(reversed(self._parts(first)))
        elif self._takes(first):
            self.parts = first.parts
            self.parts.extend(self._parts(second))
        else:
            self.parts.extend((*self._parts(first), *self._parts(second)))

    def _takes(self, given: Node | _Chain) -> TypeGuard[_Chain]:
        return isinstance(given, _Chain) and given.op == self.op

    def _parts(self, given: Node | _Chain) -> deque[Node]:
        if isinstance(given, _Chain):
            return given.parts if given.op == self.op else deque([given.node()])
        return deque([given])

    def node(self) -> Node:
        """The AND or OR of all parts."""
        return joined(self.op, self.parts)


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
        at = calls = 0
        while at < len(self._entries):
            key, value = self._entries[at]
            at += 1
            top = opened[-1]
            if key == "call":
                opened.append(_Open(value, at - 1))
                calls += value not in ("and_kleene", "or_kleene")
                if calls > CONDITIONS_MAX:
                    raise too_long()
            elif key == "options":
                raw = self._values.column(int(value))[0]
                top.options = {field.name: raw[field.name] for field in raw.type}
            elif key == "literal":
                found = scalar_literal(self._values.column(int(value))[0])
                top.opaque |= found is None
                top.args.append(found or Foreign("a literal", frozenset(), (at - 1, at)))
            elif key == "end":
                if len(opened) == 1:
                    return None
                opened.pop()
                _close(top, opened[-1], at)
            else:
                begin = at - 1
                count = int(value) if key == "nested_field_ref" else 1
                start = at if key == "nested_field_ref" else at - 1
                at = start + count
                self._field(top, self._entries[start:at], count, (begin, at))
        last = opened[0].nodes()
        return last[0] if len(opened) == 1 and len(last) == 1 else None

    def _field(
        self, top: _Open, entries: list[tuple[str, str]], count: int, span: tuple[int, int]
    ) -> None:
        names = [name for kind, name in entries if kind == "field_ref"]
        if len(names) != count or not names:
            top.opaque = True
            top.columns.update(self._schema.names)
            top.args.append(Foreign("a nested field", frozenset(self._schema.names), span))
            return
        if self._schema.get_field_index(names[0]) < 0:
            raise InvalidRequest(
                f"There is no column {names[0]!r}.",
                next=f"The columns are {', '.join(self._schema.names[:12])}.",
            )
        top.columns.add(names[0])
        top.args.append(Column(names[0], tuple(names[1:])))


def _close(call: _Open, outer: _Open, end: int) -> None:
    """A call is read to its end: its node goes to the one around it.

    Until the whole is read, the source of a foreign part is the span of its entries.
    """
    node: Node | _Chain
    try:
        if call.opaque:
            raise _Beyond
        if call.name in ("and_kleene", "or_kleene") and len(call.args) == 2:
            node = _Chain(call)
        else:
            node = _node(call.name, call.nodes(), call.options)
    except _Beyond:
        node = Foreign(f"{call.name}(…)", frozenset(call.columns), (call.start, end))
    outer.args.append(node)
    outer.columns |= call.columns


def _node(name: str, args: tuple[Node, ...], options: dict[str, Any]) -> Node:
    if name in ("and_kleene", "or_kleene"):
        return joined(_CALLS[name], args)
    if name in _CALLS:
        return Call(_CALLS[name], args)
    if name == "is_valid":
        return Call("not", (Call("is null", args),))
    if name == "is_null" and not _flag(options, "nan_is_null"):
        return Call("is null", args)
    if name == "is_nan":
        return Call("isnan", args)
    if name in ("starts_with", "match_like") and not _flag(options, "ignore_case"):
        pattern = Literal(str(options["pattern"].as_py()), "text")
        if name == "starts_with":
            return Call(name, (*args, pattern))
        return Call("like", (*args, pattern, Literal("\\", "text")))
    if name == "is_in":
        return _in(args[0], options)
    raise _Beyond


def _flag(options: dict[str, Any], name: str) -> bool:
    """Whether an option is set; one that was not given is not."""
    return name in options and bool(options[name].as_py())


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

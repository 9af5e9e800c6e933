"""Parse pyarrow expressions to the predicate AST.

pyarrow offers no way to inspect an expression. Pickled, it is an Arrow IPC file: the literals are
its columns, and the schema metadata lists calls, fields and literals in the order in which they are
written.

Arrow evaluates the functions that the AST cannot represent. Comparisons, IN, AND, OR and NOT are
never left to it, since they treat NaN differently from SQL.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import InvalidRequest
from arrowlog.predicate.ast import (
    COMPARISON_OPS,
    NULL,
    Call,
    Column,
    ForeignExpr,
    Literal,
    Untranslatable,
    join_nodes,
    resolve_column,
)
from arrowlog.predicate.limits import (
    PREDICATE_CONDITIONS_MAX,
    predicate_too_deep_error,
    predicate_too_long_error,
    run_on_deep_stack,
)
from arrowlog.predicate.literals import literal_from_scalar, make_null_safe_in

if TYPE_CHECKING:
    from arrowlog.predicate.ast import Node

_OPERATORS = {
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
# Metadata entries whose value is the index of a column with the literal or the options.
_INDEXED_KEYS = ("literal", "options")
# Levels of an expression that Arrow evaluates itself, which it does recursively.
_FOREIGN_DEPTH_MAX = 500
_ENTRY_KEYS = ("call", "end", "field_ref", "nested_field_ref", "literal", "options")


def parse_pyarrow(expression: Any, schema: pa.Schema) -> Node:
    """Parse a pyarrow expression; parts that the AST cannot represent become `ForeignExpr` nodes.

    If the serialized form cannot be read, the whole expression becomes one `ForeignExpr` node over
    all columns. Raises InvalidRequest if it references an unknown column or a column by number, or
    is too large or too deep.
    """
    entries = values = None
    # Entries are separated by line breaks, so a name that contains one would be ambiguous.
    if not any("\n" in name for name in schema.names):
        entries, values = _deserialize(expression)
    if entries is None or values is None:
        return ForeignExpr(_format(expression), frozenset(schema.names), expression)
    node = _EntryParser(entries, values, schema).parse()
    if node is None or isinstance(node, ForeignExpr):
        _check_depth(entries)
        columns = frozenset(schema.names) if node is None else node.columns
        return ForeignExpr(_format(expression), columns, expression)
    return _attach_sources(node, entries, values)


def _format(expression: Any) -> str:
    return run_on_deep_stack(lambda: str(expression))


def _check_depth(entries: list[tuple[str, str]]) -> None:
    """Raise InvalidRequest for an expression too deep for Arrow's recursive evaluation."""
    depth = 0
    for key, _ in entries:
        depth += (key == "call") - (key == "end")
        if depth > _FOREIGN_DEPTH_MAX:
            raise predicate_too_deep_error()


def _attach_sources(node: Node, entries: list[tuple[str, str]], values: pa.RecordBatch) -> Node:
    """Rebuild the expression of every foreign part from the entries it was parsed from."""
    if isinstance(node, ForeignExpr):
        part_entries = entries[slice(*node.source)]
        _check_depth(part_entries)
        expression = _rebuild(part_entries, values)
        return ForeignExpr(str(expression), node.columns, expression)
    if not isinstance(node, Call):
        return node
    args = tuple(_attach_sources(arg, entries, values) for arg in node.args)
    return Call(node.op, args, node.detail)


def _rebuild(entries: list[tuple[str, str]], values: pa.RecordBatch) -> pc.Expression:
    """Build an expression from metadata entries and the values that these reference."""
    new_indices: dict[str, int] = {}
    renumbered = [
        (
            key,
            str(new_indices.setdefault(value, len(new_indices))) if key in _INDEXED_KEYS else value,
        )
        for key, value in entries
    ]
    # Arrow expects a batch of one row; without columns it would have none, hence the null column.
    columns = [*(values.column(int(value)) for value in new_indices), pa.nulls(1)]
    schema = pa.schema([pa.field("", column.type) for column in columns])
    schema = schema.with_metadata(pa.KeyValueMetadata(renumbered))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as out:
        out.write_batch(batch)
    deserialize, _ = pc.scalar(True).__reduce__()
    expression: pc.Expression = deserialize(sink.getvalue())
    return expression


def _deserialize(expression: Any) -> tuple[list[tuple[str, str]] | None, pa.RecordBatch | None]:
    """The metadata entries of an expression and the batch with its values; None if unreadable.

    Raises InvalidRequest for an expression that Arrow cannot serialize.
    """
    try:
        _, (buffer,) = run_on_deep_stack(expression.__reduce__)
    except pa.ArrowNotImplementedError as error:
        raise InvalidRequest(
            f"The expression {expression} cannot be read: {error}.",
            next='Reference columns by name, as pyarrow.compute.field("name"), not by number.',
        ) from None
    with pa.ipc.open_file(buffer) as reader:
        values = reader.get_batch(0)
    text = values.schema.to_string(
        truncate_metadata=False, show_field_metadata=False, show_schema_metadata=True
    )
    _, separator, lines = text.rpartition("-- schema metadata --\n")
    entries = [line.partition(": '") for line in lines.split("\n")] if separator else []
    if any(key not in _ENTRY_KEYS or not value.endswith("'") for key, _, value in entries):
        return None, None
    return [(key, value[:-1]) for key, _, value in entries], values


class _PendingCall:
    """A call whose end has not been read yet."""

    def __init__(self, name: str = "", start: int = 0) -> None:
        self.name = name
        self.start = start
        self.args: list[Node | _Chain] = []
        self.options: dict[str, Any] = {}
        self.columns: set[str] = set()
        self.opaque = False  # whether an argument cannot be represented in the AST

    def nodes(self) -> tuple[Node, ...]:
        """The arguments, with chains converted to nodes."""
        return tuple(arg.node() if isinstance(arg, _Chain) else arg for arg in self.args)


class _Chain:
    """The operands of an AND or OR parsed so far.

    pyarrow nests a chain of operands in binary calls, thousands of levels deep.
    """

    def __init__(self, call: _PendingCall) -> None:
        """Merge two operands, extending the longer chain in place so that merging stays linear."""
        self.op = _OPERATORS[call.name]
        first, second = call.args
        self.operands: deque[Node] = deque()
        if self._is_same_chain(second) and len(self._operands(first)) <= len(second.operands):
            self.operands = second.operands
            self.operands.extendleft(reversed(self._operands(first)))
        elif self._is_same_chain(first):
            self.operands = first.operands
            self.operands.extend(self._operands(second))
        else:
            self.operands.extend((*self._operands(first), *self._operands(second)))

    def _is_same_chain(self, operand: Node | _Chain) -> TypeGuard[_Chain]:
        return isinstance(operand, _Chain) and operand.op == self.op

    def _operands(self, operand: Node | _Chain) -> deque[Node]:
        if isinstance(operand, _Chain):
            return operand.operands if operand.op == self.op else deque([operand.node()])
        return deque([operand])

    def node(self) -> Node:
        """The AND or OR of all operands."""
        return join_nodes(self.op, self.operands)


class _EntryParser:
    """Parses the entries of one expression in one pass; nested calls are kept on a stack."""

    def __init__(
        self, entries: list[tuple[str, str]], values: pa.RecordBatch, schema: pa.Schema
    ) -> None:
        self._entries = entries
        self._values = values
        self._schema = schema

    def parse(self) -> Node | None:
        """The node that the entries describe; None if they are malformed."""
        stack = [_PendingCall()]
        position = calls = 0
        while position < len(self._entries):
            key, value = self._entries[position]
            position += 1
            top = stack[-1]
            if key == "call":
                stack.append(_PendingCall(value, position - 1))
                calls += value not in ("and_kleene", "or_kleene")
                if calls > PREDICATE_CONDITIONS_MAX:
                    raise predicate_too_long_error()
            elif key == "options":
                options = self._values.column(int(value))[0]
                top.options = {field.name: options[field.name] for field in options.type}
            elif key == "literal":
                literal = literal_from_scalar(self._values.column(int(value))[0])
                top.opaque |= literal is None
                top.args.append(
                    literal or ForeignExpr("a literal", frozenset(), (position - 1, position))
                )
            elif key == "end":
                if len(stack) == 1:
                    return None
                stack.pop()
                _finish_call(top, stack[-1], position, self._schema)
            else:
                first = position - 1
                count = int(value) if key == "nested_field_ref" else 1
                start = position if key == "nested_field_ref" else position - 1
                position = start + count
                self._field(top, self._entries[start:position], count, (first, position))
        roots = stack[0].nodes()
        return roots[0] if len(stack) == 1 and len(roots) == 1 else None

    def _field(
        self, call: _PendingCall, entries: list[tuple[str, str]], count: int, span: tuple[int, int]
    ) -> None:
        names = [name for kind, name in entries if kind == "field_ref"]
        if len(names) != count or not names:
            call.opaque = True
            call.columns.update(self._schema.names)
            call.args.append(ForeignExpr("a nested field", frozenset(self._schema.names), span))
            return
        column = resolve_column(names[0], self._schema)
        call.columns.add(column.name)
        call.args.append(Column(column.name, tuple(names[1:])))


def _finish_call(call: _PendingCall, outer: _PendingCall, end: int, schema: pa.Schema) -> None:
    """Append the node of a complete call to the enclosing call.

    Until the whole expression is parsed, `ForeignExpr.source` is the span of its entries.
    """
    node: Node | _Chain
    try:
        if call.opaque:
            raise Untranslatable
        if call.name in ("and_kleene", "or_kleene") and len(call.args) == 2:
            node = _Chain(call)
        else:
            node = _convert_call(call.name, call.nodes(), call.options, schema)
    except Untranslatable:
        node = ForeignExpr(f"{call.name}(…)", frozenset(call.columns), (call.start, end))
    outer.args.append(node)
    outer.columns |= call.columns


def _convert_call(
    name: str, args: tuple[Node, ...], options: dict[str, Any], schema: pa.Schema
) -> Node:
    """The AST node of a call; raises `Untranslatable` if there is none."""
    if name in ("and_kleene", "or_kleene"):
        return join_nodes(_OPERATORS[name], args)
    if name in _OPERATORS:
        return Call(_OPERATORS[name], args)
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
        return _in(args[0], options, schema)
    if name == "if_else" and args[2] == NULL:
        return _null_for_null(*args[:2])
    raise Untranslatable


def _null_for_null(test: Node, condition: Node) -> Node:
    """Convert `if_else(is_valid(column), condition, null)`, as which DuckDB pushes IN down."""
    negated = test.args[0] if isinstance(test, Call) and test.op == "not" else None
    if not (isinstance(negated, Call) and negated.op == "is null"):
        raise Untranslatable
    return _propagate_null(condition, negated.args[0])


def _propagate_null(condition: Node, column: Node) -> Node:
    """A condition on one column, made NULL where the column is; raises `Untranslatable`."""
    if not isinstance(condition, Call):
        raise Untranslatable
    if condition.op in ("and", "or", "not"):
        args = (_propagate_null(arg, column) for arg in condition.args)
        return Call(condition.op, tuple(args))
    if condition.op == "is true":  # `isin`; the IN inside is NULL for NULL
        return _propagate_null(condition.args[0], column)
    operands = [arg for arg in condition.args if not isinstance(arg, Literal)]
    if condition.op not in (*COMPARISON_OPS, "in") or operands != [column]:
        raise Untranslatable
    return condition


def _flag(options: dict[str, Any], name: str) -> bool:
    """Whether a boolean option is present and true."""
    return name in options and bool(options[name].as_py())


def _in(column: Node, options: dict[str, Any], schema: pa.Schema) -> Node:
    """Convert `isin`, which is never NULL: a NULL row matches only if the set contains NULL."""
    members = options["value_set"].values
    if options["null_matching_behavior"].as_py() != 0:
        raise Untranslatable
    condition = make_null_safe_in(column, members, schema)
    if condition is None:
        raise Untranslatable
    return condition

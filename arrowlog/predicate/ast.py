"""The predicate AST: columns, literals and calls, their operators, and the visitor of trees. Pure.

Every predicate form is parsed into this tree, and every emitter is a visitor of it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import from_numpy, make_array, to_numpy
from arrowlog.config import is_text
from arrowlog.errors import InvalidRequest
from arrowlog.formats import find_field_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from decimal import Decimal

COMPARISON_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARISON_OPS = tuple(COMPARISON_FUNCTIONS)
# Comparisons that mean the same with their operands swapped.
SWAPPED_COMPARISONS = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
ARITHMETIC_OPS = ("+", "-", "*", "/", "//", "%")
# Operators whose result is boolean (or NULL) whatever their arguments are.
BOOLEAN_OPS = frozenset(
    {*COMPARISON_OPS, "<=>", "and", "or", "not", "is null", "in", "between", "is true", "is false"}
    | {"like", "ilike", "glob", "starts_with", "isnan", "~", "indexquery"}
)
# Operators whose result is never boolean.
VALUE_OPS = frozenset({*ARITHMETIC_OPS, "||", "negative", "interval", "list"})
# Deterministic functions: the result depends on the arguments alone, not on the clock, random
# numbers, settings or files.
_FUNCTION_NAMES = """
abs add_months array_contains ascii bit_length ceil ceiling char_length character_length chr
coalesce concat concat_ws contains cos date date_add date_diff date_part date_sub date_trunc
datediff day dayname dayofmonth dayofweek dayofyear ends_with endswith epoch epoch_ms
epoch_us exp floor greatest hour if ifnull ilike instr isfinite isinf isnan isnotnull isnull
last_day lcase least left len length like list_contains ln log log10 log2 lower lpad ltrim
make_date make_timestamp map_extract md5 microsecond millisecond minute mod month monthname
nullif nvl ord position pow power prefix quarter regexp_extract regexp_full_match
regexp_like regexp_matches regexp_replace repeat replace reverse right round rpad rtrim
second sha256 sign sin sqrt starts_with startswith strftime strip_accents strlen strpos
strptime struct_extract substr substring suffix tan timezone to_date to_timestamp translate
trim trunc try_strptime ucase unicode upper week weekday weekofyear year yearweek
"""
SUPPORTED_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_SPECIAL_OPS = frozenset(
    {"and", "or", "not", "is null", "is true", "is false", "in", "between", "<=>", "case"}
    | {"cast", "try_cast", "glob", "element"}
)
SUPPORTED_OPS = frozenset({*COMPARISON_OPS}) | VALUE_OPS | _SPECIAL_OPS | SUPPORTED_FUNCTIONS
_NAMES_SHOWN_MAX = 12
Result = TypeVar("Result")
_Handler = TypeVar("_Handler", bound="Callable[..., Any]")


class Column(msgspec.Struct, frozen=True):
    """A column of the table, or with `path` a field inside a struct column."""

    name: str
    path: tuple[str, ...] = ()


class Literal(msgspec.Struct, frozen=True):
    """A constant value.

    Kinds: null, bool, int, decimal, float, double, text, date, timestamp, timestamptz, blob. A date
    is days and a timestamp microseconds since 1970 (UTC), so that no local time zone is involved.
    `float` is a 32-bit float: values compared with it are rounded to 32 bits.
    """

    value: bool | int | float | str | bytes | Decimal | None
    kind: str


class Call(msgspec.Struct, frozen=True):
    """An operator or function call. `detail` is the type of a cast or the unit of an interval."""

    op: str
    args: tuple[Node, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ForeignExpr:
    """A part of a polars or pyarrow expression that the AST cannot represent.

    It may be a condition or a value, and never skips files. `source` is the expression of that part
    alone, to be evaluated by its own engine; None if no engine here can evaluate it.
    """

    text: str
    columns: frozenset[str]
    source: Any = field(default=None, repr=False, compare=False)


class ValueSet:
    """The members of a long IN list: `values`, without NULL, in the type of the column.

    It stands as the only member of an `in` call. `has_null` says that the list contains NULL too.
    Compared by identity, so that a comparison of trees does not compare all members.
    """

    __slots__ = ("_sorted", "has_null", "values")

    def __init__(self, values: pa.Array, has_null: bool = False) -> None:  # noqa: FBT001, FBT002 -- a field
        """`values` contains neither NULL nor NaN."""
        self.values = values
        self.has_null = has_null
        self._sorted: pa.Array | None = None

    def __repr__(self) -> str:
        """The number of values; they may be millions."""
        return f"ValueSet({len(self.values)} values of {self.values.type})"

    def hashed(self) -> pa.Array:
        """The values for Arrow's `is_in`, to which -0.0 and 0.0 are two values."""
        if not pa.types.is_floating(self.values.type):
            return self.values
        zeros = pc.equal(self.values, pa.scalar(0.0, self.values.type))
        if not pc.any(zeros).as_py():
            return self.values
        both = pc.cast(make_array([0.0, -0.0], pa.float64()), self.values.type)
        return pa.concat_arrays([self.values, both])

    def sorted_by(self, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
        """The values as `convert` returns them, in ascending order; computed once."""
        if self._sorted is None:
            self._sorted = _sort(convert(self.values))
        return self._sorted


def _sort(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = to_numpy(values)
        if bool((numbers[1:] >= numbers[:-1]).all()):
            return values
        return from_numpy(np.sort(numbers))  # several times as fast as Arrow
    return values.take(pc.sort_indices(values))


Node = Column | Literal | Call | ForeignExpr | ValueSet
TRUE = Literal(True, "bool")
FALSE = Literal(False, "bool")
NULL = Literal(None, "null")


class Untranslatable(Exception):
    """A part of a predicate has no equivalent on the other side, be it the AST or an engine.

    Parsers turn it into a `ForeignExpr` node, emitters into None or InvalidRequest.
    """

    def __init__(self, part: Any = None) -> None:
        """`part` is the node or expression without an equivalent, where that is known."""
        super().__init__(part)
        self.part = part


def walk_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants, parents first."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk_nodes(arg)


def referenced_columns(node: Node) -> frozenset[str]:
    """The columns a node references; a struct field counts as its top-level column."""
    names: set[str] = set()
    for part in walk_nodes(node):
        if isinstance(part, Column):
            names.add(part.name)
        elif isinstance(part, ForeignExpr):
            names |= part.columns
    return frozenset(names)


def split_conjuncts(node: Node) -> list[Node]:
    """Split a node at its top-level ANDs."""
    if isinstance(node, Call) and node.op == "and":
        return [part for arg in node.args for part in split_conjuncts(arg)]
    return [node]


def join_nodes(op: str, parts: Iterable[Node]) -> Node:
    """The AND or OR of nodes, with nested calls of the same operator flattened."""
    flat: list[Node] = []
    for part in parts:
        flat += part.args if isinstance(part, Call) and part.op == op else (part,)
    return flat[0] if len(flat) == 1 else Call(op, tuple(flat))


def is_supported(node: Node) -> bool:
    """Whether DuckDB can evaluate every part of a tree."""
    return all(
        not isinstance(part, ForeignExpr)
        and (not isinstance(part, Call) or part.op in SUPPORTED_OPS)
        for part in walk_nodes(node)
    )


def is_evaluable(node: Node) -> bool:
    """Whether every part can be evaluated, by DuckDB or by the engine it comes from."""
    return all(
        part.source is not None
        if isinstance(part, ForeignExpr)
        else not isinstance(part, Call) or part.op in SUPPORTED_OPS
        for part in walk_nodes(node)
    )


def column_type(node: Column, schema: pa.Schema) -> pa.DataType | None:
    """The type of a column or struct field; None if the struct has no such field."""
    return find_field_type(schema, (node.name, *node.path))


def resolve_column(name: str, schema: pa.Schema) -> Column:
    """A column by its exact name. Raises InvalidRequest, listing the columns, if there is none."""
    if not is_text(name) or schema.get_field_index(name) < 0:
        raise unknown_column_error(name, schema)
    return Column(name)


def resolve_struct_path(root: str, names: Sequence[str], schema: pa.Schema) -> Column:
    """A field of a struct column. A name that only differs in case from one field denotes it.

    Raises InvalidRequest if a struct on the path has no such field.
    """
    path: list[str] = []
    for position, name in enumerate(names):
        kind = find_field_type(schema, (root, *path))
        if kind is None or not pa.types.is_struct(kind):
            return Column(root, (*path, *names[position:]))  # left to the engine
        known = [kind.field(index).name for index in range(kind.num_fields)]
        similar = [other for other in known if other.lower() == name.lower()]
        if name not in known and len(similar) != 1:
            where = ".".join((root, *path))
            raise InvalidRequest(
                f"The struct {where} has no field {name!r}.",
                next=f"Its fields are {', '.join(known[:_NAMES_SHOWN_MAX])}.",
            )
        path.append(name if name in known else similar[0])
    return Column(root, tuple(path))


def unknown_column_error(name: str, schema: pa.Schema, where: str = "") -> InvalidRequest:
    """The error for a column that a schema lacks; `where` says which part of a text names it."""
    known = ", ".join(schema.names[:_NAMES_SHOWN_MAX])
    more = ", …" if len(schema.names) > _NAMES_SHOWN_MAX else ""
    return InvalidRequest(
        f"{f'{where}: there' if where else 'There'} is no column {name!r}.",
        next=f"The columns are {known}{more}.",
    )


def handles(*ops: str) -> Callable[[_Handler], _Handler]:
    """Register a method of a `NodeVisitor` for the calls of these operators or functions."""

    def register(method: _Handler) -> _Handler:
        method.ops = ops  # type: ignore[attr-defined]
        return method

    return register


class NodeVisitor(Generic[Result]):
    """Computes a result from a tree, by the type of each node and the operator of each call.

    A subclass overrides `visit_column`, `visit_literal`, `visit_foreign` and `visit_call`, and
    marks methods for single operators with `handles`. Whatever it leaves out raises Untranslatable.
    """

    _handlers: ClassVar[dict[str, Callable[[Any, Call], Any]]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the methods that are marked with `handles`."""
        super().__init_subclass__()
        own = {op: method for method in vars(cls).values() for op in getattr(method, "ops", ())}
        cls._handlers = {**cls._handlers, **own}

    def visit(self, node: Node) -> Result:
        """The result of a node."""
        if isinstance(node, Literal):
            return self.visit_literal(node)
        if isinstance(node, Column):
            return self.visit_column(node)
        if isinstance(node, ValueSet):
            return self.visit_value_set(node)
        if not isinstance(node, Call):
            return self.visit_foreign(node)
        handler = self._handlers.get(node.op)
        result: Result = self.visit_call(node) if handler is None else handler(self, node)
        return result

    def visit_args(self, node: Call) -> list[Result]:
        """The results of a call's arguments."""
        return [self.visit(arg) for arg in node.args]

    def visit_column(self, node: Column) -> Result:
        """The result of a column or struct field."""
        raise Untranslatable(node)

    def visit_literal(self, node: Literal) -> Result:
        """The result of a constant."""
        raise Untranslatable(node)

    def visit_foreign(self, node: ForeignExpr) -> Result:
        """The result of a part that only its own engine can evaluate."""
        raise Untranslatable(node)

    def visit_value_set(self, node: ValueSet) -> Result:
        """The result of the members of a long IN list."""
        raise Untranslatable(node)

    def visit_call(self, node: Call) -> Result:
        """The result of a call of any operator or function without a method of its own."""
        raise Untranslatable(node)

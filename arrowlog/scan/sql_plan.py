"""Data skipping in SQL: the DuckDB query over `file_bounds` that selects the files of a plan.

`FileQueryWriter` writes one condition per node of a test. A condition is FALSE for a file that
certainly has no row that satisfies the test, and TRUE or NULL for any other file: an unknown bound
is NULL, and SQL's three-valued logic carries that to the end, where only FALSE drops the file. This
is a second implementation of the rules of `data_skipping`, from the same tests and bounds.

`file_bounds` has the bounds of the live files, one row per file. For every column of the table, and
every field inside a struct column under the name that `formats.leaf_name` gives it (`min.a.b`):

- `partition.<column>`: the partition value; NULL also where `unreadable.<column>` is true, which
  means that the log has a value that is not of the column's type.
- `min.<column>`, `max.<column>`: no value in the file is below or above. They may be wider than
  what the log has: a time that may have been truncated to milliseconds is widened by up to 999
  microseconds, and contradictory bounds are unknown. A maximum does not cover NaN. A text may be
  truncated: values that start with a text maximum may lie above it.
- `null_count.<column>`, `nan_count.<column>` (of floating-point columns): exact.

`num_records` counts the rows of a file, deleted ones included. NULL means unknown in every column
but `partition.<column>`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import DECIMAL_DIGITS_MAX, from_numpy, to_numpy
from arrowlog.formats import stats_type, struct_leaves
from arrowlog.predicate import (
    format_node,
    may_have_nan,
    query_rows,
    quote_identifier,
    referenced_columns,
    write_condition,
    write_moment,
    write_value,
)
from arrowlog.scan.stats_predicate import (
    And,
    ColumnComparison,
    Comparison,
    ConstantResult,
    In,
    IsNaN,
    IsNull,
    Or,
    PartitionEval,
    StartsWith,
    Unprunable,
    nan_free_columns,
)
from arrowlog.snapshot import comparison_type, high_bounds, low_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from arrowlog.scan.stats_predicate import StatsPredicate
    from arrowlog.snapshot import FileStats, Snapshot

_FILE_COLUMNS = (("path", pa.string()), ("size_bytes", pa.int64()), ("num_records", pa.int64()))


def bounds_schema(schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    """The columns of `file_bounds` for a table; `schema` declares the partition columns too."""
    fields = [*_FILE_COLUMNS]
    for name in partition_columns:
        fields.append((f"partition.{name}", _plain_type(schema.field(name).type)))
        fields.append((f"unreadable.{name}", pa.bool_()))
    data = [(field.name, field.type) for field in schema if field.name not in partition_columns]
    data += [(leaf.name, leaf.type) for leaf in struct_leaves(schema).values()]
    comparable = [(name, kind) for name, kind in data if comparison_type(kind) is not None]
    for side in ("min", "max"):
        fields += [(f"{side}.{name}", _bound_type(kind)) for name, kind in comparable]
    fields += [(f"null_count.{name}", pa.int64()) for name, _ in data]
    fields += [(f"nan_count.{name}", pa.int64()) for name, kind in data if may_have_nan(kind)]
    return pa.schema(fields)


def bounds_table(snapshot: Snapshot, names: Collection[str]) -> pa.Table:
    """Columns of `file_bounds` for the live files of a snapshot, in their order."""
    stats = snapshot.columns
    schema = bounds_schema(stats.schema, snapshot.partition_columns)
    stats.prepare({name.partition(".")[2] for name in names if "." in name})
    columns = {name: _column(snapshot, stats, name, schema.field(name).type) for name in names}
    return pa.table(columns)


def _column(
    snapshot: Snapshot, stats: FileStats, column: str, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """One column of `file_bounds`."""
    prefix, _, name = column.partition(".")
    if column in ("path", "size_bytes"):
        if not snapshot.num_files:
            return pa.nulls(0, kind)
        return snapshot.state.column("path" if column == "path" else "size").cast(kind)
    if column == "num_records":
        return stats.stored_records()
    if prefix == "partition":
        values = stats.partition(name)
        return values if values.type == kind else pc.cast(values, kind)
    if prefix == "unreadable":
        return stats.unreadable(name)
    if prefix == "null_count":
        return stats.usable_null_count(name)
    if prefix == "nan_count":
        return stats.nan_count(name)
    bounds = low_bounds(stats, name) if prefix == "min" else high_bounds(stats, name)
    return _from_comparable(bounds, kind)


def _from_comparable(bounds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bounds in the type of their column, from the type in which they are compared."""
    if pa.types.is_date32(kind):
        bounds = pc.cast(bounds, pa.int32())
    return bounds if bounds.type == kind else pc.cast(bounds, kind)


def _bound_type(kind: pa.DataType) -> pa.DataType:
    """The type of the bounds of a column: numbers as wide as those they are compared with."""
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(DECIMAL_DIGITS_MAX, kind.scale)
    return _plain_type(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_POSITION = "position"
# Longer lists of values are joined instead of compared one by one.
_COMPARED_VALUES_MAX = 8
# Decimals below this compare as they are written; larger ones are given their type.
_PLAIN_DECIMAL_MAX = Decimal(10) ** 15
_DOUBLE_DIGITS = 15  # decimal digits that every double keeps
_REORDERED = r"[\x{E000}-\x{10FFFF}]"  # characters that UTF-16 and code points order differently
_COMMENT_MAX = 200  # characters of a predicate in a comment


class FileQueryWriter:
    """Writes the conditions on `file_bounds` for the tests of one table."""

    def __init__(self, schema: pa.Schema, partition_columns: Iterable[str]) -> None:
        """`schema` gives the column types; values of `partition_columns` are known exactly."""
        self._schema = schema
        self._partition = frozenset(partition_columns)
        self.columns: dict[str, None] = {}  # of `file_bounds` that the conditions read, in order
        self.joins: list[str] = []  # with long lists of values, to which the conditions refer

    def conjuncts(self, test: StatsPredicate) -> list[str]:
        """The conditions that a file must not fail, one per conjunct of the test."""
        parts = test.parts if isinstance(test, And) else (test,)
        nan_free = nan_free_columns(test, self._schema)
        return [self.condition(part, nan_free) for part in parts]

    def condition(self, test: StatsPredicate, nan_free: frozenset[str] = frozenset()) -> str:
        """The condition of a test.

        `nan_free` names columns that another conjunct keeps from being NaN.
        """
        return _join("AND", self._parts(test, nan_free))

    def _parts(self, test: StatsPredicate, nan_free: frozenset[str]) -> list[str]:
        """The conditions that have to hold together; a test without a method keeps every file."""
        write: Callable[[Any, frozenset[str]], list[str]] | None = getattr(
            self, f"_write_{type(test).__name__.lower()}", None
        )
        return ["TRUE"] if write is None else write(test, nan_free)

    def _write_and(self, test: And, nan_free: frozenset[str]) -> list[str]:
        nan_free |= nan_free_columns(test, self._schema)
        parts = [part for inner in test.parts for part in self._parts(inner, nan_free)]
        # Tests of one column share the condition on its NULLs; it is written last.
        return sorted(dict.fromkeys(parts), key=lambda part: part.startswith('"null_count.'))

    def _write_or(self, test: Or, nan_free: frozenset[str]) -> list[str]:
        return [_join("OR", [self.condition(part, nan_free) for part in test.parts])]

    def _write_constantresult(self, test: ConstantResult, _: frozenset[str]) -> list[str]:
        return ["TRUE" if test.value else "FALSE"]

    def _write_unprunable(self, test: Unprunable, _: frozenset[str]) -> list[str]:
        return [f"TRUE {_comment(f'{test.why}: {format_node(test.node)}')}"]

    def _write_partitioneval(self, test: PartitionEval, _: frozenset[str]) -> list[str]:
        names = sorted(referenced_columns(test.node))
        text = write_condition(
            test.node,
            self._schema,
            "partition.{}".format,
            want=test.want,
            null=test.null,
        )
        if text is None:
            return [f"TRUE {_comment(f'cannot be evaluated: {format_node(test.node)}')}"]
        for name in names:
            self._column("partition", name)
        return [_join("OR", [text, *(self._column("unreadable", name) for name in names)])]

    def _write_comparison(self, test: Comparison, nan_free: frozenset[str]) -> list[str]:
        if test.name in self._partition:
            value = self._value(test.down, test.name)
            return self._by_value(test.name, lambda column: f"{column} {test.op} {value}")
        if pa.types.is_string(self._type(test.name)):
            return self._with_values(test.name, self._compare_text(test))
        return self._with_values(test.name, self._compare(test, nan_free))

    def _compare(self, test: Comparison, nan_free: frozenset[str]) -> list[str]:
        """Compare a literal with the bounds of a column that is not text."""
        low, high = (self._column(side, test.name) for side in ("min", "max"))
        down, up = (
            None if value is None else self._value(value, test.name)
            for value in (test.down, test.up)
        )
        if test.op in (">", ">="):
            if down is None:
                return []
            return [self._or_nan(f"{high} {test.op} {down}", test.name, nan_free)]
        if test.op in ("<", "<="):
            return [] if up is None else [f"{low} {test.op} {up}"]
        if test.op == "=":
            parts = [] if up is None else [f"{low} <= {up}"]
            return parts if down is None else [*parts, f"{high} >= {down}"]
        if not test.exact:
            return []
        differs = _join("OR", [f"{low} <> {down}", f"{high} <> {down}"])
        return [self._or_nan(differs, test.name, nan_free)]

    def _compare_text(self, test: Comparison) -> list[str]:
        """Compare a literal with the bounds of a text column; a maximum may be a prefix."""
        low, value = self._column("min", test.name), self._value(test.down, test.name)
        if test.op in ("<", "<="):
            return [f"{low} {test.op} {value}"]
        if test.op == "<>":
            return []  # equal bounds may be truncated, so they do not prove equal rows
        reached = self._reaches(test.name, value)
        return [reached] if test.op != "=" else [f"{low} <= {value}", reached]

    def _reaches(self, name: str, value: str) -> str:
        """Whether a text column may have values from a text on."""
        high = self._column("max", name)
        return _join("OR", [f"{high} >= {value}", f"starts_with({value}, {high})"])

    def _write_columncomparison(
        self, test: ColumnComparison, nan_free: frozenset[str]
    ) -> list[str]:
        left, op, right = test.left, test.op, test.right
        if op in (">", ">="):
            left, op, right = right, op.replace(">", "<"), left
        first, second = self._range(left), self._range(right)
        if first is None or second is None:
            return ["TRUE"]  # the type of a partition column does not compare
        (low, high), (other_low, other_high) = first, second
        is_text = pa.types.is_string(self._type(left))
        op = "<=" if is_text or op == "=" else op
        parts = [self._or_nan(_at_most(low, op, other_high, is_text), right, nan_free)]
        if test.op == "=":
            parts.append(self._or_nan(_at_most(other_low, op, high, is_text), left, nan_free))
        return [*parts, *self._not_all_null(left), *self._not_all_null(right)]

    def _range(self, name: str) -> tuple[str, str] | None:
        """The bounds of a data column; the value of a partition column is both of its bounds."""
        if name not in self._partition:
            return self._column("min", name), self._column("max", name)
        kind = self._type(name)
        if comparison_type(kind) is None or may_have_nan(kind):
            return None
        value = self._column("partition", name)
        if pa.types.is_string(kind):  # bounds have no such texts, whose order writers disagree on
            value = f"CASE WHEN NOT regexp_matches({value}, '{_REORDERED}') THEN {value} END"
        return value, value

    def _not_all_null(self, name: str) -> list[str]:
        if name not in self._partition:
            return self._with_values(name, [])
        value = self._column("partition", name)
        return [f"({value} IS NOT NULL OR {self._column('unreadable', name)})"]

    def _write_in(self, test: In, nan_free: frozenset[str]) -> list[str]:
        listed = test.values.to_pylist() if isinstance(test.values, pa.Array) else test.values
        values = [self._value(value, test.name) for value in listed]
        if test.name in self._partition:
            word, members = "NOT IN" if test.negated else "IN", ", ".join(values)
            return self._by_value(test.name, lambda column: f"{column} {word} ({members})")
        if test.negated:
            return self._with_values(test.name, self._not_in(test, values, nan_free))
        if len(values) <= _COMPARED_VALUES_MAX:
            within = _join("OR", [self._has_value(test.name, value) for value in values])
            return self._with_values(test.name, [within])
        # The file has a value of the list if the first one from its minimum on is within bounds.
        low, alias = self._column("min", test.name), f"listed_{len(self.joins) + 1}"
        self.joins.append(
            f"ASOF LEFT JOIN (SELECT unnest([{', '.join(values)}]) AS value) AS {alias}"
            f" ON {low} <= {alias}.value"
        )
        ends = [f"{low} <= {values[-1]}", self._up_to(test.name, values[0])]
        return self._with_values(test.name, [*ends, self._up_to(test.name, f"{alias}.value")])

    def _has_value(self, name: str, value: str) -> str:
        """Whether a value is within the bounds of a column."""
        return _join("AND", [f"{self._column('min', name)} <= {value}", self._up_to(name, value)])

    def _up_to(self, name: str, value: str) -> str:
        if pa.types.is_string(self._type(name)):
            return self._reaches(name, value)
        return f"{self._column('max', name)} >= {value}"

    def _not_in(self, test: In, values: Sequence[str], nan_free: frozenset[str]) -> list[str]:
        """Drop files in which all rows have one value, and the list contains it; not for text."""
        if pa.types.is_string(self._type(test.name)):
            return []
        low, high = (self._column(side, test.name) for side in ("min", "max"))
        other = _join("OR", [f"{low} <> {high}", f"{low} NOT IN ({', '.join(values)})"])
        return [self._or_nan(other, test.name, nan_free)]

    def _write_startswith(self, test: StartsWith, _: frozenset[str]) -> list[str]:
        prefix = self._value(test.prefix, test.name)
        if test.name in self._partition:
            word = "NOT starts_with" if test.negated else "starts_with"
            return self._by_value(test.name, lambda column: f"{word}({column}, {prefix})")
        low, high = (self._column(side, test.name) for side in ("min", "max"))
        if test.negated:
            others = [f"NOT starts_with({side}, {prefix})" for side in (low, high)]
            return self._with_values(test.name, [_join("OR", others)])
        begins = _join("OR", [f"{low} <= {prefix}", f"starts_with({low}, {prefix})"])
        return self._with_values(test.name, [begins, self._reaches(test.name, prefix)])

    def _write_isnull(self, test: IsNull, _: frozenset[str]) -> list[str]:
        if test.name in self._partition:
            column = self._column("partition", test.name)
            known = f"{column} IS {'NOT ' * test.negated}NULL"
            return [_join("OR", [known, self._column("unreadable", test.name)])]
        if test.negated:
            return self._with_values(test.name, [])
        return [f"{self._column('null_count', test.name)} <> 0"]

    def _write_isnan(self, test: IsNaN, _: frozenset[str]) -> list[str]:
        return self._with_values(test.name, [f"{self._column('nan_count', test.name)} <> 0"])

    def _by_value(self, name: str, compare: Callable[[str], str]) -> list[str]:
        """A comparison of a partition value; NULL fails it, an unreadable value does not."""
        known = f"coalesce({compare(self._column('partition', name))}, FALSE)"
        return [_join("OR", [known, self._column("unreadable", name)])]

    def _with_values(self, name: str, conditions: list[str]) -> list[str]:
        """The conditions on a column, and that not all its values are NULL."""
        rows = self._file_column("num_records")
        return [*conditions, f"{self._column('null_count', name)} <> {rows}"]

    def _or_nan(self, condition: str, name: str, nan_free: frozenset[str]) -> str:
        """A condition on a maximum, which does not cover NaN, or that a file has a NaN."""
        if not may_have_nan(self._type(name)) or name in nan_free:
            return condition
        return _join("OR", [condition, f"{self._column('nan_count', name)} <> 0"])

    def _type(self, name: str) -> pa.DataType:
        return stats_type(self._schema, name)

    def _column(self, prefix: str, name: str) -> str:
        return self._file_column(f"{prefix}.{name}")

    def _file_column(self, name: str) -> str:
        self.columns[name] = None
        return quote_identifier(name) if "." in name else name

    def _value(self, value: Any, name: str) -> str:
        """A value of a test, in the type in which bounds are compared, as a SQL literal."""
        kind = self._type(name)
        if pa.types.is_date(kind):
            return write_moment(value, "date")
        if pa.types.is_timestamp(kind):
            return write_moment(value, "timestamp" if kind.tz is None else "timestamptz")
        if pa.types.is_boolean(kind):
            return write_value(bool(value))
        if isinstance(value, Decimal) and abs(value) >= _PLAIN_DECIMAL_MAX:
            return f"CAST({value:f} AS DECIMAL({DECIMAL_DIGITS_MAX}, {kind.scale}))"
        if isinstance(value, float) and _is_plain_double(value):
            return repr(value)
        text = write_value(value)
        return f"({text})" if "||" in text else text


def write_file_query(
    test: StatsPredicate,
    schema: pa.Schema,
    partition_columns: Iterable[str],
    *,
    version: int,
    predicate: str,
) -> str:
    """The DuckDB query that selects the files of a version that may satisfy a test."""
    writer = FileQueryWriter(schema, partition_columns)
    source = f"file_bounds_at({version})"
    conjuncts = writer.conjuncts(test)
    select = _select("path", [source, *writer.joins], conjuncts)
    return f"-- Files of version {version} that may have rows for: {_one_line(predicate)}\n{select}"


def query_files(test: StatsPredicate, snapshot: Snapshot) -> pa.Array:
    """The mask of the files of a snapshot that may satisfy a test, computed by DuckDB."""
    import numpy as np

    writer = FileQueryWriter(snapshot.columns.schema, snapshot.partition_columns)
    conjuncts = writer.conjuncts(test)
    rows = bounds_table(snapshot, ["size_bytes", *writer.columns])
    positions = from_numpy(np.arange(rows.num_rows))
    kept = query_rows(
        lambda source: _select(_POSITION, [source, *writer.joins], conjuncts),
        rows.append_column(_POSITION, positions),
    )
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[to_numpy(kept[_POSITION])] = True
    return from_numpy(mask)


def _select(column: str, sources: Sequence[str], conjuncts: Sequence[str]) -> str:
    """The query; values are literals in it, names are quoted."""
    lines = [f"SELECT {column}", "FROM " + "\n  ".join(sources)]
    for number, conjunct in enumerate(part for part in conjuncts if part != "TRUE"):
        lines.append(f"{'  AND' if number else 'WHERE'} ({conjunct}) IS NOT FALSE")
    return "\n".join(lines)


def _join(word: str, parts: Sequence[str]) -> str:
    """Conditions joined by AND or OR, each in parentheses if it needs them."""
    if len(parts) == 1:
        return parts[0]
    return f" {word} ".join(_enclose(part) for part in parts)


def _enclose(part: str) -> str:
    """A condition in parentheses, unless it is a single comparison or call."""
    return f"({part})" if " AND " in part or " OR " in part or part.startswith("NOT ") else part


def _at_most(low: str, op: str, high: str, is_text: bool) -> str:  # noqa: FBT001 -- passed on
    """Whether a low bound is below a high bound, which may be a prefix if it is text."""
    below = f"{low} {op} {high}"
    return f"{below} OR starts_with({low}, {high})" if is_text else below


def _is_plain_double(value: float) -> bool:
    """Whether a double is the same when it is written as a decimal and cast to a double."""
    text = repr(value)
    digits = text.replace(".", "").lstrip("-0")
    return digits.isdecimal() and len(digits) <= _DOUBLE_DIGITS


def _one_line(text: str) -> str:
    line = " ".join(text.replace("\0", " ").split())  # NUL would end the query
    return line if len(line) <= _COMMENT_MAX else line[: _COMMENT_MAX - 1] + "…"


def _comment(text: str) -> str:
    return f"/* {_one_line(text).replace('*/', '* /').replace('/*', '/ *')} */"

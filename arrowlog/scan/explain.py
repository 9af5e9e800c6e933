"""Explanations of scan plans: what each conjunct skipped, and why the other files were kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, empty_table, make_array, make_scalar, repeat_value, sum_exactly
from arrowlog.display import format_bytes, format_html_card, format_html_table, format_text_table
from arrowlog.fork_safety import OnFirstUse
from arrowlog.predicate import (
    COMPARISON_OPS,
    TRUE,
    Call,
    Column,
    Literal,
    format_node,
    may_have_nan,
    referenced_columns,
    split_conjuncts,
    walk_nodes,
)
from arrowlog.scan.data_skipping import (
    compute_skip_mask,
    mask_nan_free,
    mask_prefixes_of,
    required_columns,
)
from arrowlog.scan.stats_predicate import (
    REASON_NOT_COMPARABLE,
    REASON_NOT_MONOTONE,
    REASON_NOT_PRUNABLE,
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
    StatsPredicateBuilder,
    Unprunable,
    nan_free_columns,
)
from arrowlog.snapshot import high_bounds, low_bounds

if TYPE_CHECKING:
    from arrowlog.predicate import Node, Predicate
    from arrowlog.scan.read_reports import ReadReport
    from arrowlog.scan.stats_predicate import StatsPredicate
    from arrowlog.snapshot import FileStats, Snapshot

# Conditions that are tests of columns as they stand.
_PLAIN_OPS = frozenset(
    {*COMPARISON_OPS, "<=>", "and", "or", "not", "is null", "is true", "is false", "in"}
    | {"between", "isnan", "like", "starts_with", "prefix", "indexquery"}
)
_MEMBERS_SHOWN_MAX = 12  # of an IN list
_HEADER = ("clause", "dropped", "bytes", "alone", "kept because")
REASON_TEXTS = (
    "dropped",
    "in range",
    "no statistics",
    "truncated bound",
    REASON_NOT_COMPARABLE,
    REASON_NOT_PRUNABLE,
    "NaN possible",
    "partition value matches",
    "partition value unreadable",
    REASON_NOT_MONOTONE,
)
(
    REASON_DROPPED,
    REASON_IN_RANGE,
    REASON_NO_STATISTICS,
    REASON_TRUNCATED_BOUND,
    REASON_INCOMPARABLE,
    REASON_UNPRUNABLE,
    REASON_NAN_POSSIBLE,
    REASON_PARTITION_MATCHES,
    REASON_PARTITION_UNREADABLE,
    REASON_UNORDERED,
) = range(len(REASON_TEXTS))


def reason_code(number: int) -> pa.Scalar:
    """A reason code as a scalar."""
    return make_scalar(number, pa.int8())


def reason_where(mask: pa.Array, number: int, otherwise: pa.Array | int) -> pa.Array:
    """One reason code where the mask is true, another (or an array of codes) elsewhere."""
    other = reason_code(otherwise) if isinstance(otherwise, int) else otherwise
    return pc.if_else(mask, reason_code(number), other)


def classify_files(
    test: StatsPredicate, columns: FileStats, mask: pa.Array | None, nan_free: frozenset[str]
) -> pa.Array:
    """One reason code per file: `REASON_DROPPED`, or why the test kept the file.

    `mask` is the skip mask of the test, `nan_free` as in `dropped`.
    """
    kept_because = _reason_kept(test, columns, nan_free)
    return (
        kept_because
        if mask is None
        else reason_where(pc.fill_null(mask, FALSE), REASON_DROPPED, kept_because)
    )


def _repeat_code(number: int, columns: FileStats) -> pa.Array:
    return pa.repeat(reason_code(number), columns.num_rows)


def _reason_kept(test: StatsPredicate, columns: FileStats, nan_free: frozenset[str]) -> pa.Array:
    """Reason codes for keeping a file, computed for every file."""
    if isinstance(test, ConstantResult):
        return _repeat_code(REASON_IN_RANGE, columns)
    if isinstance(test, Unprunable):
        return _repeat_code(REASON_TEXTS.index(test.why), columns)
    if isinstance(test, (And, Or)):
        return _combine_parts(test, columns, nan_free)
    if isinstance(test, ColumnComparison):
        return _reason_two_columns(test, columns, nan_free)
    names = referenced_columns(test.node) if isinstance(test, PartitionEval) else {test.name}
    if names <= set(columns.partition_columns):
        codes = _repeat_code(REASON_PARTITION_MATCHES, columns)
        for name in names:
            codes = reason_where(columns.unreadable(name), REASON_PARTITION_UNREADABLE, codes)
        return codes
    assert not isinstance(test, PartitionEval)
    return _reason_bounds(test, columns, nan_free)


def _combine_parts(test: And | Or, columns: FileStats, nan_free: frozenset[str]) -> pa.Array:
    """The reason of the first part that could not skip the file.

    A part that lacked information takes precedence over one whose value is in range.
    """
    if isinstance(test, And):
        nan_free |= nan_free_columns(test, columns.schema)
    codes = _repeat_code(REASON_IN_RANGE, columns)
    for part in reversed(test.parts):
        part_codes = classify_files(
            part, columns, compute_skip_mask(part, columns, nan_free), nan_free
        )
        informed = pc.or_(
            pc.equal(part_codes, reason_code(REASON_DROPPED)),
            pc.equal(part_codes, reason_code(REASON_IN_RANGE)),
        )
        codes = pc.if_else(informed, codes, part_codes)
    return codes


def _reason_two_columns(
    test: ColumnComparison, columns: FileStats, nan_free: frozenset[str]
) -> pa.Array:
    """Why the statistics of two columns could not skip a file."""
    codes = _repeat_code(REASON_IN_RANGE, columns)
    for name in (test.left, test.right):
        if name in columns.partition_columns:
            continue
        if may_have_nan(columns.type_of(name)) and name not in nan_free:
            nan_possible = pc.invert(pc.fill_null(mask_nan_free(columns, name), FALSE))
            codes = reason_where(nan_possible, REASON_NAN_POSSIBLE, codes)
    for name in (test.left, test.right):
        if name not in columns.partition_columns:
            for bound in (low_bounds(columns, name), high_bounds(columns, name)):
                codes = reason_where(pc.is_null(bound), REASON_NO_STATISTICS, codes)
    return codes


def _reason_bounds(
    test: Comparison | In | StartsWith | IsNull | IsNaN,
    columns: FileStats,
    nan_free: frozenset[str],
) -> pa.Array:
    """Why the statistics of a data column could not skip a file."""
    name = test.name
    if isinstance(test, IsNaN):
        unknown = pc.is_null(columns.nan_count(name))
        return reason_where(unknown, REASON_NO_STATISTICS, REASON_IN_RANGE)
    if isinstance(test, IsNull):
        unknown = pc.is_null(columns.null_count(name))
        return reason_where(unknown, REASON_NO_STATISTICS, REASON_IN_RANGE)
    low, high = low_bounds(columns, name), high_bounds(columns, name)
    kind = columns.type_of(name)
    op = test.op if isinstance(test, Comparison) else "="
    op = "<>" if isinstance(test, In) and test.negated else op
    needs_high, needs_low = op in (">", ">="), op in ("<", "<=")
    missing = pc.is_null(high) if needs_high else pc.is_null(low)
    if not (needs_high or needs_low):
        missing = pc.or_(missing, pc.is_null(high))
    codes = reason_where(missing, REASON_NO_STATISTICS, REASON_IN_RANGE)
    # A maximum does not cover NaN, so it cannot exclude rows for these operators.
    if may_have_nan(kind) and name not in nan_free and (needs_high or op == "<>"):
        nan_free = mask_nan_free(columns, name)
        codes = reason_where(pc.fill_null(nan_free, FALSE), REASON_IN_RANGE, REASON_NAN_POSSIBLE)
        codes = reason_where(missing, REASON_NO_STATISTICS, codes)
        has_nan = pc.fill_null(pc.invert(nan_free), FALSE)  # then there is no maximum either
        return reason_where(has_nan, REASON_NAN_POSSIBLE, codes)
    value = test.prefix if isinstance(test, StartsWith) else getattr(test, "down", None)
    if pa.types.is_string(kind) and not needs_low and isinstance(value, str):
        return reason_where(mask_prefixes_of(value, high), REASON_TRUNCATED_BOUND, codes)
    return codes


@dataclass(frozen=True, slots=True)
class Clause:
    """One conjunct of a predicate and its effect on the plan.

    `only_files` counts the files that no other clause skips. `kept` counts, by reason, the planned
    files that this clause could not skip. `tested` is the condition on columns by which an
    expression skips files; empty if the clause is such a condition itself, or skips none.
    """

    text: str
    files_dropped: int
    bytes_dropped: int
    only_files: int
    only_bytes: int
    kept: dict[str, int]
    tested: str = ""

    @property
    def redundant(self) -> bool:
        """Whether other clauses skip every file that this clause skips, and it skips some."""
        return self.files_dropped > 0 and self.only_files == 0


@dataclass(frozen=True)
class Explanation:
    """The effect of every clause of a predicate on a plan.

    Prints as text, renders as HTML in notebooks; `to_arrow` has the detail per file and clause.
    """

    predicate: str
    version: int
    files_kept: int
    files_total: int
    bytes_kept: int
    bytes_total: int
    clauses: tuple[Clause, ...]
    searches: tuple[str, ...] = field(default=(), kw_only=True)
    reads: tuple[ReadReport, ...] = field(default=(), kw_only=True, compare=False)
    _paths: pa.ChunkedArray = field(repr=False, compare=False)
    _codes: tuple[pa.Array, ...] = field(repr=False, compare=False)

    @property
    def pruned(self) -> float:
        """Fraction of files skipped, from 0 to 1; 0 for an empty table."""
        return 1 - self.files_kept / self.files_total if self.files_total else 0.0

    def to_arrow(self) -> pa.Table:
        """One row per file and clause: path, clause, whether the clause kept the file, and why."""
        count = self.files_total
        parts = [
            pa.table(
                {
                    "path": self._paths,
                    "clause": _repeat_text(clause.text, count),
                    "kept": pc.not_equal(codes, reason_code(REASON_DROPPED)),
                    "reason": _reason_texts(codes),
                }
            )
            for clause, codes in zip(self.clauses, self._codes, strict=True)
        ]
        return pa.concat_tables(parts).unify_dictionaries() if parts else _empty_table()

    @OnFirstUse
    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                clause.text,
                f"{clause.files_dropped:,}",
                format_bytes(clause.bytes_dropped),
                "redundant" if clause.redundant else f"{clause.only_files:,}",
                ", ".join(f"{reason} {count:,}" for reason, count in clause.kept.items()) or "-",
            )
            for clause in self.clauses
        ]

    @property
    def _tested(self) -> list[tuple[str, str]]:
        return [(clause.text, clause.tested) for clause in self.clauses if clause.tested]

    def _summary(self) -> str:
        return (
            f"version {self.version}: {self.files_kept:,} of {self.files_total:,} files to read"
            f" ({self.pruned:.1%} pruned), {format_bytes(self.bytes_kept)} of"
            f" {format_bytes(self.bytes_total)}"
        )

    def __str__(self) -> str:
        """A summary and one line per clause."""
        lines = [self.predicate, self._summary()]
        if self._rows:
            lines += format_text_table(_HEADER, self._rows, (1, 2, 3))
        lines += [f"{clause}: files are skipped by {tested}" for clause, tested in self._tested]
        lines += self.searches
        lines += map(str, self.reads)
        return "\n".join(lines)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export `to_arrow` through the Arrow C stream interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The explanation as an HTML card."""
        clauses = format_html_table(_HEADER, self._rows, (1, 2, 3)) if self._rows else ""
        facts = [("plan", self._summary())]
        facts += [(clause, f"files are skipped by {tested}") for clause, tested in self._tested]
        facts += [("search", text) for text in self.searches]
        facts += [("read", str(report)) for report in self.reads]
        return format_html_card(self.predicate, facts, clauses)


def explain_plan(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> Explanation:
    """Explain a plan of `snapshot`. `mask` selects the planned files.

    Each clause is evaluated on its own, except that it may rely on other clauses to exclude NaN, as
    planning does.
    """
    columns = snapshot.columns
    builder = StatsPredicateBuilder(columns.schema, snapshot.partition_columns)
    parts = [] if predicate.tree == TRUE else split_conjuncts(predicate.tree)
    tests = [builder.rows(part) for part in parts]
    columns.prepare(set().union(*(required_columns(test) for test in tests)))
    nan_free = nan_free_columns(And(tuple(tests)), columns.schema)
    codes = [
        classify_files(test, columns, compute_skip_mask(test, columns, nan_free), nan_free)
        for test in tests
    ]
    skipped = [pc.equal(file_codes, reason_code(REASON_DROPPED)) for file_codes in codes]
    count = snapshot.num_files
    num_skipping = repeat_value(0, pa.int32(), count)
    for clause_skips in skipped:
        num_skipping = pc.add(num_skipping, pc.cast(clause_skips, pa.int32()))
    skipped_once = pc.equal(num_skipping, make_scalar(1, pa.int32()))
    sizes = snapshot.state.column("size").combine_chunks() if count else pa.nulls(0, pa.int64())
    clauses = [
        replace(
            _summarize_clause(part, file_codes, pc.and_(clause_skips, skipped_once), mask, sizes),
            tested=_describe_rewrite(part, test, columns),
        )
        for part, test, file_codes, clause_skips in zip(parts, tests, codes, skipped, strict=True)
    ]
    paths = snapshot.state.column("path") if count else pa.chunked_array([], pa.string())
    return Explanation(
        str(predicate),
        snapshot.version,
        int(mask.true_count),
        count,
        _sum_sizes(sizes, mask),
        snapshot.size_bytes,
        tuple(clauses),
        paths,
        tuple(codes),
    )


def _describe_rewrite(part: Node, test: StatsPredicate, columns: FileStats) -> str:
    """The condition by which a clause with an expression skips files; empty for other clauses."""
    if not any(isinstance(node, Call) and node.op not in _PLAIN_OPS for node in walk_nodes(part)):
        return ""
    node = _to_node(test, columns)
    return "" if node is None else format_node(node)


def _to_node(test: StatsPredicate, columns: FileStats) -> Node | None:  # noqa: C901 -- by class
    """A test as a predicate tree, for people to read; None if it skips no file."""
    if isinstance(test, (And, Or)):
        parts = [_to_node(part, columns) for part in test.parts]
        known = tuple(part for part in parts if part is not None)
        if not known or (isinstance(test, Or) and len(known) < len(parts)):
            return None
        op = "and" if isinstance(test, And) else "or"
        return known[0] if len(known) == 1 else Call(op, known)
    if isinstance(test, (Unprunable, ConstantResult)):
        return None
    if isinstance(test, PartitionEval):
        return test.node
    if isinstance(test, ColumnComparison):
        return Call(test.op, (_column(test.left, columns), _column(test.right, columns)))
    column = _column(test.name, columns)
    node: Node = Call("is null", (column,))
    if isinstance(test, Comparison):
        value = test.down if test.op in (">", ">=") else test.up
        if value is None:  # beyond all values of the type
            return None
        node = Call(test.op, (column, _literal(value, columns.type_of(test.name))))
    elif isinstance(test, In):
        kind = columns.type_of(test.name)
        members = [_literal(value, kind) for value in test.values[:_MEMBERS_SHOWN_MAX]]
        node = Call("in", (column, *members))
    elif isinstance(test, StartsWith):
        node = Call("starts_with", (column, Literal(test.prefix, "text")))
    elif isinstance(test, IsNaN):
        return Call("isnan", (column,))
    return Call("not", (node,)) if getattr(test, "negated", False) else node


def _column(name: str, columns: FileStats) -> Column:
    """A column, or a struct field by the name of its statistics."""
    if columns.schema.get_field_index(name) >= 0:
        return Column(name)
    root, *path = columns.leaves[name].path
    return Column(root, tuple(path))


def _literal(value: Any, kind: pa.DataType) -> Literal:
    """A bound in the type in which it is compared, as a literal of the column's type."""
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if pa.types.is_date32(kind):
        return Literal(value, "date")
    if pa.types.is_timestamp(kind):
        return Literal(value, "timestamp" if kind.tz is None else "timestamptz")
    if pa.types.is_boolean(kind):
        return Literal(bool(value), "bool")
    return Literal(value, "text" if isinstance(value, str) else "double")


def _summarize_clause(
    part: Node, codes: pa.Array, only: pa.Array, mask: pa.Array, sizes: pa.Array
) -> Clause:
    skipped = pc.equal(codes, reason_code(REASON_DROPPED))
    kept = codes.filter(mask).value_counts().to_pylist()
    kept.sort(key=lambda reason: -reason["counts"])
    return Clause(
        format_node(part),
        int(skipped.true_count),
        _sum_sizes(sizes, skipped),
        int(only.true_count),
        _sum_sizes(sizes, only),
        {REASON_TEXTS[reason["values"]]: reason["counts"] for reason in kept},
    )


def _sum_sizes(sizes: pa.Array, mask: pa.Array) -> int:
    return sum_exactly(sizes.filter(mask))


def _reason_texts(codes: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(codes, make_array(REASON_TEXTS, pa.string()))


def _repeat_text(text: str, count: int) -> pa.DictionaryArray:
    zeros = repeat_value(0, pa.int8(), count)
    return pa.DictionaryArray.from_arrays(zeros, make_array([text], pa.string()))


def _empty_table() -> pa.Table:
    text = pa.dictionary(pa.int8(), pa.string())
    schema = [("path", pa.string()), ("clause", text), ("kept", pa.bool_()), ("reason", text)]
    return empty_table(pa.schema(schema))

"""Explanations of scan plans: what each clause skipped, and why the other files were kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import array_of, same, scalar
from arrowlog.look import html_card, html_table, size_text, text_table
from arrowlog.scan.normal import Every, Normal, without_nan
from arrowlog.scan.prune import columns_needed, dropped
from arrowlog.scan.reasons import DROPPED, REASONS, code, reasons
from arrowlog.scan.tree import TRUE, conjuncts, describe

if TYPE_CHECKING:
    from arrowlog.scan.predicate import Predicate
    from arrowlog.scan.tree import Node
    from arrowlog.state.snapshot import Snapshot

__all__ = ["Clause", "Explanation", "explain", "size_text"]
_HEADER = ("clause", "dropped", "bytes", "alone", "kept because")


@dataclass(frozen=True, slots=True)
class Clause:
    """One conjunct of a predicate and its effect on the plan.

    `only_files` counts the files that no other clause skips. `kept` counts, by reason, the planned
    files that this clause could not skip.
    """

    text: str
    files_dropped: int
    bytes_dropped: int
    only_files: int
    only_bytes: int
    kept: dict[str, int]

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
                    "kept": pc.not_equal(codes, code(DROPPED)),
                    "reason": _reason_texts(codes),
                }
            )
            for clause, codes in zip(self.clauses, self._codes, strict=True)
        ]
        return pa.concat_tables(parts).unify_dictionaries() if parts else _empty_table()

    @cached_property
    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                clause.text,
                f"{clause.files_dropped:,}",
                size_text(clause.bytes_dropped),
                "redundant" if clause.redundant else f"{clause.only_files:,}",
                ", ".join(f"{reason} {count:,}" for reason, count in clause.kept.items()) or "-",
            )
            for clause in self.clauses
        ]

    def _summary(self) -> str:
        return (
            f"version {self.version}: {self.files_kept:,} of {self.files_total:,} files to read"
            f" ({self.pruned:.1%} pruned), {size_text(self.bytes_kept)} of"
            f" {size_text(self.bytes_total)}"
        )

    def __str__(self) -> str:
        """A summary and one line per clause."""
        lines = [self.predicate, self._summary()]
        if self._rows:
            lines += text_table(_HEADER, self._rows, (1, 2, 3))
        return "\n".join(lines)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export `to_arrow` through the Arrow C stream interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The explanation as an HTML card."""
        clauses = html_table(_HEADER, self._rows, (1, 2, 3)) if self._rows else ""
        facts = [("plan", self._summary())]
        return html_card(self.predicate, facts, clauses)


def explain(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> Explanation:
    """Explain a plan of `snapshot`. `mask` selects the planned files.

    Each clause is evaluated on its own, except that it may rely on other clauses to exclude NaN, as
    planning does.
    """
    columns = snapshot.columns
    builder = Normal(columns.schema, snapshot.partition_columns)
    parts = [] if predicate.tree == TRUE else conjuncts(predicate.tree)
    tests = [builder.rows(part) for part in parts]
    columns.prepare(set().union(*(columns_needed(test) for test in tests)))
    nan_free = without_nan(Every(tuple(tests)), columns.schema)
    codes = [reasons(test, columns, dropped(test, columns, nan_free), nan_free) for test in tests]
    skipped = [pc.equal(file_codes, code(DROPPED)) for file_codes in codes]
    count = snapshot.num_files
    num_skipping = same(0, pa.int32(), count)
    for clause_skips in skipped:
        num_skipping = pc.add(num_skipping, pc.cast(clause_skips, pa.int32()))
    skipped_once = pc.equal(num_skipping, scalar(1, pa.int32()))
    sizes = snapshot.state.column("size").combine_chunks() if count else pa.nulls(0, pa.int64())
    clauses = [
        _summarize_clause(part, file_codes, pc.and_(clause_skips, skipped_once), mask, sizes)
        for part, file_codes, clause_skips in zip(parts, codes, skipped, strict=True)
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


def _summarize_clause(
    part: Node, codes: pa.Array, only: pa.Array, mask: pa.Array, sizes: pa.Array
) -> Clause:
    skipped = pc.equal(codes, code(DROPPED))
    kept = codes.filter(mask).value_counts().to_pylist()
    kept.sort(key=lambda reason: -reason["counts"])
    return Clause(
        describe(part),
        int(skipped.true_count),
        _sum_sizes(sizes, skipped),
        int(only.true_count),
        _sum_sizes(sizes, only),
        {REASONS[reason["values"]]: reason["counts"] for reason in kept},
    )


def _sum_sizes(sizes: pa.Array, mask: pa.Array) -> int:
    return int(pc.sum(sizes.filter(mask)).as_py() or 0)


def _reason_texts(codes: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(codes, array_of(REASONS, pa.string()))


def _repeat_text(text: str, count: int) -> pa.DictionaryArray:
    zeros = same(0, pa.int8(), count)
    return pa.DictionaryArray.from_arrays(zeros, array_of([text], pa.string()))


def _empty_table() -> pa.Table:
    text = pa.dictionary(pa.int8(), pa.string())
    schema = [("path", pa.string()), ("clause", text), ("kept", pa.bool_()), ("reason", text)]
    return pa.schema(schema).empty_table()

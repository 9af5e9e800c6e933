"""Why a plan is what it is: which clause dropped what, and why the rest was kept."""

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
_HEADS = ("clause", "dropped", "bytes", "alone", "kept because")


@dataclass(frozen=True, slots=True)
class Clause:
    """One of the conditions that must all hold, and what it did.

    `only_files` are those that no other clause drops. `kept` counts, by reason, the planned files
    this clause could not drop.
    """

    text: str
    files_dropped: int
    bytes_dropped: int
    only_files: int
    only_bytes: int
    kept: dict[str, int]

    @property
    def redundant(self) -> bool:
        """Whether it dropped files, and without it the same ones would be gone."""
        return self.files_dropped > 0 and self.only_files == 0


@dataclass(frozen=True)
class Explanation:
    """The account of a plan. Prints well; HTML in notebooks; `to_arrow` for every detail."""

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
        """The share of files that need not be read, from 0 to 1; 0 for an empty table."""
        return 1 - self.files_kept / self.files_total if self.files_total else 0.0

    def to_arrow(self) -> pa.Table:
        """One row per file and clause: path, clause, whether it was kept by it, and why."""
        count = self.files_total
        parts = [
            pa.table(
                {
                    "path": self._paths,
                    "clause": _constant(clause.text, count),
                    "kept": pc.not_equal(codes, code(DROPPED)),
                    "reason": _words(codes),
                }
            )
            for clause, codes in zip(self.clauses, self._codes, strict=True)
        ]
        return pa.concat_tables(parts).unify_dictionaries() if parts else _nothing()

    @cached_property
    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                clause.text,
                f"{clause.files_dropped:,}",
                size_text(clause.bytes_dropped),
                "redundant" if clause.redundant else f"{clause.only_files:,}",
                ", ".join(f"{why} {n:,}" for why, n in clause.kept.items()) or "-",
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
        """A line for the whole, and one for each clause."""
        lines = [self.predicate, self._summary()]
        if self._rows:
            lines += text_table(_HEADS, self._rows, (1, 2, 3))
        return "\n".join(lines)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """What `to_arrow` gives, for polars, DuckDB and pandas to take as it is."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The same as a table, for notebooks."""
        clauses = html_table(_HEADS, self._rows, (1, 2, 3)) if self._rows else ""
        facts = [("plan", self._summary())]
        return html_card(self.predicate, facts, clauses)


def explain(snapshot: Snapshot, predicate: Predicate, mask: pa.Array) -> Explanation:
    """Look at every clause by itself, in the company of the others."""
    columns = snapshot.columns
    normal = Normal(columns.schema, snapshot.partition_columns)
    parts = [] if predicate.tree == TRUE else conjuncts(predicate.tree)
    tests = [normal.rows(part) for part in parts]
    columns.prepare(set().union(*(columns_needed(test) for test in tests)))
    sane = without_nan(Every(tuple(tests)), columns.schema)
    codes = [reasons(test, columns, dropped(test, columns, sane), sane) for test in tests]
    gone = [pc.equal(found, code(DROPPED)) for found in codes]
    count = snapshot.num_files
    droppers = same(0, pa.int32(), count)
    for each in gone:
        droppers = pc.add(droppers, pc.cast(each, pa.int32()))
    alone = pc.equal(droppers, scalar(1, pa.int32()))
    sizes = snapshot.state.column("size").combine_chunks() if count else pa.nulls(0, pa.int64())
    clauses = [
        _clause(part, found, pc.and_(each, alone), mask, sizes)
        for part, found, each in zip(parts, codes, gone, strict=True)
    ]
    paths = snapshot.state.column("path") if count else pa.chunked_array([], pa.string())
    return Explanation(
        str(predicate),
        snapshot.version,
        int(mask.true_count),
        count,
        _total(sizes, mask),
        snapshot.size_bytes,
        tuple(clauses),
        paths,
        tuple(codes),
    )


def _clause(part: Node, found: pa.Array, only: pa.Array, mask: pa.Array, sizes: pa.Array) -> Clause:
    gone = pc.equal(found, code(DROPPED))
    kept = found.filter(mask).value_counts().to_pylist()
    kept.sort(key=lambda each: -each["counts"])
    return Clause(
        describe(part),
        int(gone.true_count),
        _total(sizes, gone),
        int(only.true_count),
        _total(sizes, only),
        {REASONS[each["values"]]: each["counts"] for each in kept},
    )


def _total(sizes: pa.Array, mask: pa.Array) -> int:
    return int(pc.sum(sizes.filter(mask)).as_py() or 0)


def _words(codes: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(codes, array_of(REASONS, pa.string()))


def _constant(text: str, count: int) -> pa.DictionaryArray:
    zeros = same(0, pa.int8(), count)
    return pa.DictionaryArray.from_arrays(zeros, array_of([text], pa.string()))


def _nothing() -> pa.Table:
    word = pa.dictionary(pa.int8(), pa.string())
    schema = [("path", pa.string()), ("clause", word), ("kept", pa.bool_()), ("reason", word)]
    return pa.schema(schema).empty_table()

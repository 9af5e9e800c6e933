"""The rows of planned splits, and searches in them.

The index of each split is asked for the rows of every search in the predicate. Searches that a row
must match decide which documents are read; the others become boolean columns, and the remaining
predicate is evaluated on the rows exactly.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import empty_table
from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import OnFirstUse
from arrowlog.predicate import (
    TRUE,
    Call,
    Predicate,
    bind_searches,
    evaluate_predicate,
    find_searches,
    is_search,
    search_operands,
    split_conjuncts,
)
from arrowlog.storage import LocalStore, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import numpy as np
    import numpy.typing as npt

    from arrowlog.predicate import Node
    from arrowlog.splits import SplitFiles
    from arrowlog.storage import Store

    Rows = npt.NDArray[np.int64]

SPLIT_SUFFIX = ".split"
# Columns of `RowReader.files` that only splits need.
SPLIT_COLUMNS = ("split.size", "split.modified", "split.footer", "split.records", "split.companion")

_EVALUATED_ROWS = 1 << 16
_SPLITS_AHEAD = 8  # remote splits that are fetched at a time


class SplitCacheOptions(NamedTuple):
    """The settings of the cache of splits; `path` is None for the default folder."""

    path: str | None = None
    max_bytes: int = 4 << 30


class SearchResult(NamedTuple):
    """How many rows of how many splits a search matched."""

    text: str
    documents: int
    total_documents: int
    splits: int
    total_splits: int

    def __str__(self) -> str:
        """One line for `explain`."""
        return (
            f"{self.text}: {self.documents:,} of {self.total_documents:,} documents in"
            f" {self.splits:,} of {self.total_splits:,} splits match"
        )


def mask_splits(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which files are splits, by the end of their names."""
    return pc.ends_with(keys, SPLIT_SUFFIX)


def bind_to_empty(tree: Node, schema: pa.Schema) -> tuple[Predicate, pa.Table]:
    """A predicate without searches and an empty table, to check that it can be evaluated."""
    table = empty_table(schema)
    names = _search_names(tree)
    for name in names.values():
        table = table.append_column(name, pa.nulls(0, pa.bool_()))
    return Predicate.from_tree(bind_searches(tree, names)), table


def refuse_search(tree: Node, key: str) -> None:
    """Raise InvalidRequest if a predicate searches a file that is not a split."""
    if find_searches(tree):
        raise InvalidRequest(
            f"{key} is not a split, so it has no index to search.",
            next="Add a condition that excludes the file, or use LIKE or a regular expression.",
        )


def _search_names(tree: Node) -> dict[Call, str]:
    """A column name for each search; no column of a table starts with NUL."""
    return {search: f"\0search {number}" for number, search in enumerate(find_searches(tree))}


@dataclass(frozen=True)
class SplitScan:
    """Reads splits: `files` are the rows of `RowReader.files` that are splits."""

    root: str
    options: Mapping[str, Any]
    cache_options: SplitCacheOptions
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    predicate: Predicate
    files: pa.Table

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the matching rows, a table per batch of a split."""
        tree = self.predicate.tree
        names = _search_names(tree)
        # Searches that every row must match are answered by the choice of rows.
        conjuncts = [] if tree == TRUE else split_conjuncts(tree)
        rest = [part for part in conjuncts if not is_search(part)]
        bound = Predicate.from_conjuncts([bind_searches(part, names) for part in rest])
        required = [part for part in names if part in conjuncts]
        needed = list(dict.fromkeys([*columns, *sorted(bound.columns - set(names.values()))]))
        tables = self._tables(needed, names, required, bound.columns)
        if not rest:
            yield from (table.select(list(columns)) for table in tables)
            return
        for table in _coalesce(tables):
            matched = table.filter(evaluate_predicate(bound, table))
            if matched.num_rows:
                yield matched.select(list(columns))

    def _tables(
        self,
        needed: Sequence[str],
        names: Mapping[Call, str],
        required: Sequence[Call],
        bound: frozenset[str],
    ) -> Iterator[pa.Table]:
        """Yield the rows that match the required searches, with columns for the others."""
        for number, files in self._opened(needed):
            with files:
                answers = self._answers(files, list(names))
                chosen = _intersect([answers[search] for search in required])
                if chosen is not None and not len(chosen):
                    continue
                bind = {name: answers[s] for s, name in names.items() if name in bound}
                yield from self._read(files, number, needed, chosen, bind)

    def is_indexed(self) -> bool:
        """Whether the indexes alone decide which rows match: searches, AND, OR and NOT."""
        tree = self.predicate.tree
        return tree == TRUE or _is_only(tree, set(find_searches(tree)))

    def count_rows(self) -> int:
        """Count the matching rows, reading as little as that takes."""
        tree = self.predicate.tree
        if is_search(tree):
            return self.results()[0].documents
        if tree == TRUE:
            total = 0
            for _, files in self._opened():
                with files:
                    total += files.meta.num_docs
            return total
        return sum(int(table.num_rows) for table in self.batches(self._narrowest()))

    def _narrowest(self) -> list[str]:
        """A column to read when only the number of rows counts: partition columns cost nothing."""
        return list(self.partition_columns[:1]) or self.schema.names[:1]

    def results(self) -> list[SearchResult]:
        """How many documents of how many splits each search of the predicate matches."""
        from arrowlog.splits import SplitSearch

        searches = find_searches(self.predicate.tree)
        operands = [search_operands(search) for search in searches]
        matched = {search: [0, 0] for search in searches}
        documents = 0
        for _, files in self._opened():
            with files:
                search_split = SplitSearch(files, operands, self.schema.names)
                documents += files.meta.num_docs
                for search in searches:
                    count = search_split.count(*search_operands(search))
                    matched[search][0] += count
                    matched[search][1] += count > 0
        total = self.files.num_rows
        return [
            SearchResult(str(Predicate.from_tree(search)), found, documents, splits, total)
            for search, (found, splits) in matched.items()
        ]

    def _opened(self, needed: Sequence[str] = ()) -> Iterator[tuple[int, SplitFiles]]:
        """Yield the number and the files of each split; the caller closes the files.

        Remote splits are fetched ahead, several at a time: what `needed` columns are read from, or
        what a search has to index.
        """
        opened = self._open_each()
        if isinstance(self._store, LocalStore):
            yield from opened
            return
        ahead: deque[tuple[int, SplitFiles, Future[None]]] = deque()
        pool = ThreadPoolExecutor(_SPLITS_AHEAD)
        try:
            for number, files in opened:
                ahead.append((number, files, pool.submit(self._prefetch, files, needed)))
                if len(ahead) > _SPLITS_AHEAD:
                    yield _ready(ahead.popleft())
            while ahead:
                yield _ready(ahead.popleft())
        finally:  # also if the caller stops early or a split cannot be read
            pool.shutdown(cancel_futures=True)
            for _, files, _ in ahead:
                files.close()

    def _prefetch(self, files: SplitFiles, needed: Sequence[str]) -> None:
        from arrowlog.splits import RowDecoder, SplitSearch

        searches = find_searches(self.predicate.tree)
        if searches:
            operands = [search_operands(search) for search in searches]
            SplitSearch(files, operands, self.schema.names).prefetch()
        else:
            RowDecoder(files, self._stored(needed)).prefetch()

    @OnFirstUse
    def _store(self) -> Store:
        return open_store(self.root, self.options)

    def _open_each(self) -> Iterator[tuple[int, SplitFiles]]:
        from arrowlog.splits import (
            SplitCache,
            SplitFile,
            SplitFiles,
            companion_error,
            default_cache_folder,
        )

        folder = self.cache_options.path or default_cache_folder()
        cache = SplitCache(folder, self.cache_options.max_bytes)
        columns = [self.files[name].to_pylist() for name in ("key", *SPLIT_COLUMNS)]
        for number, (key, size, modified, footer, records, companion) in enumerate(
            zip(*columns, strict=True)
        ):
            if companion:
                raise companion_error(key)
            file = SplitFile(key, size, modified or 0, footer, records)
            yield number, SplitFiles(self._store, file, cache)

    def _stored(self, names: Sequence[str]) -> pa.Schema:
        """The fields of the named columns that are in the splits, not in the log."""
        return pa.schema(
            [self.schema.field(name) for name in names if name not in self.partition_columns]
        )

    def _answers(self, files: SplitFiles, searches: Sequence[Call]) -> dict[Call, Rows]:
        if not searches:
            return {}
        from arrowlog.splits import SplitSearch

        operands = [search_operands(search) for search in searches]
        search_split = SplitSearch(files, operands, self.schema.names)
        return {
            search: search_split.rows(*pair)
            for search, pair in zip(searches, operands, strict=True)
        }

    def _read(
        self,
        files: SplitFiles,
        number: int,
        needed: Sequence[str],
        rows: Rows | None,
        bind: Mapping[str, Rows],
    ) -> Iterator[pa.Table]:
        """Yield the rows of a split with partition columns and the answers of searches."""
        from arrowlog.splits import RowDecoder, mask_members

        stored = self._stored(needed)
        shown = pa.schema([self.schema.field(name) for name in needed])
        for numbers, batch in RowDecoder(files, stored).batches(rows):
            count = len(numbers)
            columns: dict[str, pa.Array] = dict(zip(stored.names, batch.columns, strict=True))
            for name in needed:
                if name in self.partition_columns:
                    value = self.files[f"partition.{name}"][number]
                    columns[name] = pa.repeat(value, count)
            table = pa.table([columns[name] for name in needed], schema=shown)
            for name, found in bind.items():
                table = table.append_column(name, mask_members(numbers, found))
            yield table


def _ready(item: tuple[int, SplitFiles, Future[None]]) -> tuple[int, SplitFiles]:
    """Wait until a split is fetched. Raises the error of fetching it."""
    number, files, fetched = item
    try:
        fetched.result()
    except BaseException:
        files.close()
        raise
    return number, files


def _coalesce(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables: evaluating a condition costs more for each of them than for their rows."""
    pending: list[pa.Table] = []
    rows = 0
    for table in tables:
        pending.append(table)
        rows += table.num_rows
        if rows >= _EVALUATED_ROWS:
            yield pa.concat_tables(pending)
            pending, rows = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _intersect(answers: Sequence[Rows]) -> Rows | None:
    """The rows that all searches match; None if there are no searches."""
    if not answers:
        return None
    import numpy as np

    rows = answers[0]
    for other in answers[1:]:
        rows = np.intersect1d(rows, other, assume_unique=True)
    return rows


def _is_only(node: Node, searches: set[Call]) -> bool:
    """Whether a tree is made of searches, AND, OR and NOT alone."""
    if isinstance(node, Call) and node in searches:
        return True
    return (
        isinstance(node, Call)
        and node.op in ("and", "or", "not")
        and all(_is_only(arg, searches) for arg in node.args)
    )

"""Search a split: an index of its stored values in the local cache, and queries on it.

The term dictionaries of splits are of a kind that the PyPI package cannot read, so the stored
values are indexed again. The first search indexes the fields that it names, because a field costs
as much as a document; a search for other fields indexes all of them, so a split is indexed twice at
most. Text is divided into terms by the tokenizer that the split's schema names. The fields of the
index are numbered like those of the split, and each document has the number of its row.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrowlog.splits import ALL_FIELDS
from arrowlog.splits.bundle import unsupported
from arrowlog.splits.query import (
    ANY_CHARS,
    And,
    Not,
    Or,
    Pattern,
    Range,
    Term,
    check_leaf,
    parse_query,
    parse_value,
    query_error,
)
from arrowlog.splits.reader import RowDecoder
from arrowlog.splits.split_files import (
    open_searcher,
    require_tantivy,
    translate_panics,
    translate_write_errors,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import numpy.typing as npt

    from arrowlog.splits.bundle import IndexMeta, SplitField
    from arrowlog.splits.query import Leaf, Query
    from arrowlog.splits.split_files import SplitFiles

    Rows = npt.NDArray[np.int64]

_ROW = "row"
_INDEXED_FIELDS = "indexed_fields.json"  # in the folder of an index: the numbers of its fields
# tantivy's writer needs 15 MB per thread; more postpones the first flush, not the speed.
_WRITER_BYTES = 64_000_000
_TOKEN_MAX_BYTES = 255  # longer tokens are not indexed
_LIMITED_DEFAULT = re.compile(r"default_limit_([1-9][0-9]{0,5})")
# Beyond this many hits, a search is repeated on ranges of rows: a hit is a Python object.
_WINDOW_ROWS = 1 << 17
_COLUMN_TYPES = {
    "text": pa.string(),
    "i64": pa.int64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.timestamp("us", "UTC"),
    "ip_addr": pa.string(),
}
_REGEX_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")


class _Opened(NamedTuple):
    """An index that is open, and the numbers of the fields that it has values of."""

    fields: frozenset[int]
    searcher: Any


class SplitSearch:
    """Searches one split. The index is built on first use."""

    def __init__(
        self,
        files: SplitFiles,
        searches: Sequence[tuple[str, str]] = (),
        columns: Collection[str] | None = None,
    ) -> None:
        """`files` must stay open while the search is used.

        `searches` are the columns and queries to come: their fields are indexed together.
        `columns` are those of the table: `_indexall` does not search fields of other columns.
        """
        self._files = files
        self._columns = columns
        self._searches = searches
        self._opened: _Opened | None = None

    def rows(self, column: str, text: str) -> Rows:
        """Return the numbers of the rows that match, in increasing order."""
        tantivy = require_tantivy()
        query, searcher = self._prepare(column, text)
        with translate_panics(self._files.key):
            count = searcher.search(query, limit=1).count
            if not count:
                return np.empty(0, np.int64)
            found: list[Any] = []
            for part in self._windows(query, count):
                hits = searcher.search(
                    part,
                    limit=min(count, _WINDOW_ROWS),
                    count=False,
                    order_by_field=_ROW,
                    order=tantivy.Order.Asc,
                ).hits
                found.append(np.fromiter((row for row, _ in hits), np.int64, len(hits)))
        rows = np.concatenate(found)
        assert len(rows) == count
        return rows

    def _windows(self, query: Any, count: int) -> Iterator[Any]:
        """Divide a query with many hits into queries on ranges of rows."""
        if count <= _WINDOW_ROWS:
            yield query
            return
        tantivy = require_tantivy()
        must, kind = tantivy.Occur.Must, tantivy.FieldType.Integer
        total = sum(segment.max_doc for segment in self._files.meta.segments)
        for start in range(0, total, _WINDOW_ROWS):
            window = tantivy.Query.range_query(
                self._schema, _ROW, kind, start, start + _WINDOW_ROWS, include_upper=False
            )
            yield tantivy.Query.boolean_query([(must, query), (must, window)])

    def count(self, column: str, text: str) -> int:
        """Return the number of rows that match."""
        query, searcher = self._prepare(column, text)
        with translate_panics(self._files.key):
            return int(searcher.search(query, limit=1).count)

    def prefetch(self) -> None:
        """Fetch the documents of a remote split that has no index yet."""
        if not (self._files.has_entry("search") or self._files.has_entry("field_search")):
            columns = indexed_columns(self._files.meta, self._expected())
            RowDecoder(self._files, columns).prefetch()

    def _prepare(self, column: str, text: str) -> tuple[Any, Any]:
        """Compile a query, and open an index that has all of its fields."""
        query, fields = self._compile(column, text)
        if self._opened is None or not fields <= self._opened.fields:
            self._opened = self._open(fields | self._expected())
        assert fields <= self._opened.fields  # a field without values would match nothing
        return query, self._opened.searcher

    def _expected(self) -> frozenset[int]:
        """The fields of the searches to come."""
        return frozenset().union(*(self._compile(*search)[1] for search in self._searches))

    def _open(self, fields: frozenset[int]) -> _Opened:
        """Open the index of some fields if it has these, else the index of all fields."""
        files = self._files
        if not files.has_entry("search"):
            folder = files.folder("field_search", lambda path: build_index(files, path, fields))
            indexed = _read_indexed_fields(folder)
            if fields <= indexed:
                return _Opened(indexed, open_searcher(folder, files.key))
        every = frozenset(field.number for field in searchable_fields(files.meta))
        folder = files.folder("search", lambda path: build_index(files, path, every))
        return _Opened(every, open_searcher(folder, files.key))

    @property
    def _schema(self) -> Any:
        return index_schema(tuple(searchable_fields(self._files.meta)))

    def _compile(self, column: str, text: str) -> tuple[Any, frozenset[int]]:
        """Compile a query; returns it, and the numbers of the fields that it searches."""
        meta = self._files.meta
        defaults = (
            [
                field.name
                for field in meta.fields
                if field.kind == "text"
                and field.indexed
                and (self._columns is None or field.name in self._columns)
            ]
            if column == ALL_FIELDS and meta.field(column) is None
            else [column]
        )
        compiler = _Compiler(meta, self._schema, defaults, text, self._files.key)
        return compiler.compile(parse_query(text)), frozenset(compiler.fields)


def searchable_fields(meta: IndexMeta) -> list[SplitField]:
    """The fields that the index has: stored, of a type and with a tokenizer that are known."""
    return [
        field
        for field in meta.fields
        if field.stored
        and field.kind in _COLUMN_TYPES
        and (field.kind != "text" or is_known_tokenizer(field.tokenizer))
    ]


def indexed_columns(meta: IndexMeta, numbers: frozenset[int]) -> pa.Schema:
    """The columns that are read from a split to index the fields with these numbers."""
    fields = [field for field in searchable_fields(meta) if field.number in numbers]
    return pa.schema([(field.name, _COLUMN_TYPES[field.kind]) for field in fields])


@lru_cache(64)
def index_schema(fields: tuple[SplitField, ...]) -> Any:
    """The schema of the index of a split with these fields."""
    builder = require_tantivy().SchemaBuilder()
    builder.add_integer_field(_ROW, fast=True, indexed=False)
    for field in fields:
        name = _index_name(field)
        if field.kind == "text":
            # A raw field has one term; only divided text needs positions, for phrases.
            option = "basic" if field.tokenizer in ("", "raw") else "position"
            tokenizer = field.tokenizer or "raw"
            builder.add_text_field(name, tokenizer_name=tokenizer, index_option=option)
        elif field.kind in ("i64", "date"):
            builder.add_integer_field(name, fast=True)
        elif field.kind == "f64":
            builder.add_float_field(name, fast=True)
        elif field.kind == "bool":
            builder.add_boolean_field(name, indexed=True)
        else:
            builder.add_ip_addr_field(name, fast=True)
    return builder.build()


def _index_name(field: SplitField) -> str:
    """The name of a field in the index; the split's own names may have dots, which mean paths."""
    return f"f{field.number}"


def is_known_tokenizer(name: str) -> bool:
    """Whether text can be divided as the named tokenizer does; an empty name is `raw`."""
    known = ("", "raw", "default", "simple", "en_stem", "whitespace", "raw_lowercase", "lowercase")
    return name in known or _LIMITED_DEFAULT.fullmatch(name) is not None


@lru_cache(64)
def make_analyzer(name: str) -> Any:
    """Build the analyzer of a known tokenizer."""
    tantivy = require_tantivy()
    tokenizer, filters = tantivy.Tokenizer, tantivy.Filter
    if name in ("", "raw"):
        return tantivy.TextAnalyzerBuilder(tokenizer.raw()).build()
    if name in ("raw_lowercase", "lowercase"):
        builder = tantivy.TextAnalyzerBuilder(tokenizer.raw())
        return builder.filter(filters.lowercase()).build()
    limit = _LIMITED_DEFAULT.fullmatch(name)
    longest = filters.remove_long(int(limit[1]) if limit else _TOKEN_MAX_BYTES)
    if name == "whitespace":
        return tantivy.TextAnalyzerBuilder(tokenizer.whitespace()).filter(longest).build()
    builder = tantivy.TextAnalyzerBuilder(tokenizer.simple())
    builder = builder.filter(longest).filter(filters.lowercase())
    if name == "en_stem":
        builder = builder.filter(filters.stemmer("english"))
    return builder.build()


def _is_lowered(tokenizer: str) -> bool:
    return tokenizer not in ("", "raw", "whitespace")


def build_index(files: SplitFiles, folder: str, numbers: frozenset[int]) -> None:
    """Index the stored values of some fields of a split in an empty folder.

    The schema has all fields, so that queries are the same for every index of the split.
    """
    tantivy = require_tantivy()
    every = searchable_fields(files.meta)
    fields = [field for field in every if field.number in numbers]
    columns = indexed_columns(files.meta, numbers)
    with open(os.path.join(folder, _INDEXED_FIELDS), "w", encoding="utf-8") as out:
        json.dump(sorted(field.number for field in fields), out)
    with translate_write_errors(files.key):
        index = tantivy.Index(index_schema(tuple(every)), path=folder)
        for name in {field.tokenizer for field in every if field.kind == "text"}:
            index.register_tokenizer(name or "raw", make_analyzer(name))
        writer = index.writer(heap_size=_WRITER_BYTES, num_threads=1)
        document = tantivy.Document
        setters = {
            "text": document.add_text,
            "i64": document.add_integer,
            "date": document.add_integer,
            "f64": document.add_float,
            "bool": document.add_boolean,
            "ip_addr": document.add_ip_addr,
        }
        slots = [(setters[field.kind], _index_name(field)) for field in fields]
        add_row = document.add_integer
        for rows, batch in RowDecoder(files, columns).batches():
            values = [_index_values(array) for array in batch.columns]
            for row, *items in zip(rows.tolist(), *values, strict=True):
                doc = document()
                add_row(doc, _ROW, row)
                for (add, name), value in zip(slots, items, strict=True):
                    if value is not None:
                        add(doc, name, value)
                writer.add_document(doc)
        writer.commit()
        writer.wait_merging_threads()


def _read_indexed_fields(folder: str) -> frozenset[int]:
    with open(os.path.join(folder, _INDEXED_FIELDS), encoding="utf-8") as file:
        return frozenset(json.load(file))


def _index_values(array: pa.Array) -> list[Any]:
    """The values of a column as they are indexed; NaN is in no range."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    values: list[Any] = array.to_pylist()
    if pa.types.is_floating(array.type):
        # NaN is the only value that differs from itself.
        return [value if value == value else None for value in values]  # noqa: PLR0124
    return values


class _Compiler:
    """Compiles a query to tantivy's query objects for one split."""

    def __init__(
        self, meta: IndexMeta, schema: Any, defaults: Sequence[str], text: str, key: str
    ) -> None:
        self._meta = meta
        self._schema = schema
        self._defaults = defaults
        self._text = text
        self._key = key
        self._tantivy = require_tantivy()
        self.fields: set[int] = set()  # that the compiled query searches

    def compile(self, query: Query) -> Any:
        make, occur = self._tantivy.Query, self._tantivy.Occur
        if isinstance(query, And):
            # A part that is negated becomes an exclusion from the others.
            parts = [
                (occur.MustNot, self.compile(part.part))
                if isinstance(part, Not)
                else (occur.Must, self.compile(part))
                for part in query.parts
            ]
            if all(isinstance(part, Not) for part in query.parts):
                parts.append((occur.Must, make.all_query()))
            return make.boolean_query(parts)
        if isinstance(query, Or):
            return make.boolean_query([(occur.Should, self.compile(p)) for p in query.parts])
        if isinstance(query, Not):
            excluded = self.compile(query.part)
            return make.boolean_query([(occur.Must, make.all_query()), (occur.MustNot, excluded)])
        names = self._defaults if query.field is None else [query.field]
        found = [self._leaf(query, name) for name in names]
        if len(found) == 1:
            return found[0]
        return make.boolean_query([(occur.Should, part) for part in found])

    def _leaf(self, leaf: Leaf, name: str) -> Any:
        field = self._meta.field(name)
        if field is None:  # the column was added to the table after this split
            return self._tantivy.Query.empty_query()
        if field.kind not in _COLUMN_TYPES:
            raise query_error(
                self._text, leaf.position, f"fields of type {field.kind} cannot be searched"
            )
        if not field.stored:
            raise unsupported(
                self._key,
                f"Field {name!r} cannot be searched: the split has its index, but not its values.",
                "Search the table with IndexTables.",
            )
        if field.kind == "text":
            if not is_known_tokenizer(field.tokenizer):
                raise unsupported(
                    self._key,
                    f"Field {name!r} has the tokenizer {field.tokenizer!r}, which is not known.",
                    "Search the table with IndexTables.",
                )
            self.fields.add(field.number)
            return self._text_leaf(leaf, field)
        self.fields.add(field.number)
        check_leaf(leaf, field.kind, self._text)
        return self._value_leaf(leaf, field)

    def _text_leaf(self, leaf: Leaf, field: SplitField) -> Any:
        make, name = self._tantivy.Query, _index_name(field)
        if isinstance(leaf, Range):
            raise query_error(
                self._text,
                leaf.position,
                f"column {field.name!r} is text, of which ranges are not supported",
                "Write a condition such as text >= 'a' outside the query.",
            )
        if isinstance(leaf, Pattern):
            return make.regex_query(self._schema, name, self._regex(leaf, field))
        tokens = make_analyzer(field.tokenizer).pre_tokenize(leaf.text).tokens
        if not tokens:
            return make.empty_query()
        if len(tokens) == 1:
            return make.term_query(self._schema, name, tokens[0].text)
        first = tokens[0].position
        words = [(token.position - first, token.text) for token in tokens]
        return make.phrase_query(self._schema, name, words)

    def _regex(self, leaf: Pattern, field: SplitField) -> str:
        if field.tokenizer == "en_stem":
            raise query_error(
                self._text,
                leaf.position,
                f"column {field.name!r} holds stems of words, which wildcards do not match",
            )
        text = ""
        for part, wild in leaf.parts:
            if wild:
                text += "(?s:.*)" if part == ANY_CHARS else "(?s:.)"
            else:
                # By characters, as tantivy does: `str.lower` ends words with another sigma.
                lowered = _is_lowered(field.tokenizer)
                literal = "".join(map(str.lower, part)) if lowered else part
                text += _REGEX_SPECIAL.sub(r"\\\g<0>", literal)
        return text

    def _value_leaf(self, leaf: Term | Range | Pattern, field: SplitField) -> Any:
        make, kinds = self._tantivy.Query, self._tantivy.FieldType
        assert not isinstance(leaf, Pattern)
        name, kind = _index_name(field), field.kind
        if kind == "bool":
            assert isinstance(leaf, Term)
            return make.term_query(self._schema, name, parse_value(kind, leaf.text))
        type_ = {"f64": kinds.Float, "ip_addr": kinds.IpAddr}.get(kind, kinds.Integer)
        if isinstance(leaf, Term):
            value = parse_value(kind, leaf.text)
            return make.range_query(self._schema, name, type_, value, value)
        return make.range_query(
            self._schema,
            name,
            type_,
            None if leaf.lower is None else parse_value(kind, leaf.lower),
            None if leaf.upper is None else parse_value(kind, leaf.upper),
            include_lower=leaf.include_lower,
            include_upper=leaf.include_upper,
        )

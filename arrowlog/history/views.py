"""The history of a table as DuckDB views.

`ViewSources` provides the Arrow datasets that hold the rows; `ViewConnection` owns a DuckDB
connection and registers the datasets there. The views `file_lifetimes` and `actions` and the macro
`files_at` are SQL over these datasets. DuckDB scans any Arrow dataset and passes on the columns a
query needs and the filters it has pushed down; `LazyDataset` hands both to a function that builds
the tables.

Invariant: what a view says about a version is what log replay says about it. Versions whose commits
are gone ("checkpoint-only versions") contribute the state of their checkpoint.
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import uuid
import weakref
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from arrowlog.arrays import empty_table, make_array, repeat_bool, repeat_value
from arrowlog.config import parse_argument, parse_text
from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.errors import ArrowlogError, InvalidRequest, UnsupportedProtocol
from arrowlog.fork_safety import OnFirstUse, keep_connection_alive, pl
from arrowlog.formats import Protocol
from arrowlog.formats.indextables import (
    classify_log_file,
    decompress,
)
from arrowlog.history import view_columns
from arrowlog.history.view_columns import ViewTypes
from arrowlog.predicate import parse_pyarrow, quote_identifier, referenced_columns
from arrowlog.scan import LazyScanner, bounds_schema, bounds_table
from arrowlog.snapshot import (
    parse_table_schema,
    read_pointer,
    stream_actions,
    with_file_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import duckdb

    from arrowlog.formats import CommitFile, Format, Metadata
    from arrowlog.history.commit_history import CommitBatch, CommitHistory
    from arrowlog.snapshot import Snapshot

    BuildTables = Callable[[Sequence[str], Any], Iterator[pa.Table]]
    ViewRows = Callable[[CommitBatch, Collection[str]], pa.Table]

# A fragment needs a format and a file system. Those of `VersionRanges` are never opened.
_UNUSED_FORMAT = ds.IpcFileFormat()
_UNUSED_FILESYSTEM = LocalFileSystem()
VIEW_NAMES = (
    "commits",
    "actions",
    "adds",
    "removes",
    "skips",
    "metadata",
    "protocols",
    "checkpoints",
    "files",
    "file_lifetimes",
    "file_bounds",
    "file_bounds_by_version",
    "coverage",
)
_LONG, _TEXT, _FLAG = pa.int64(), pa.string(), pa.bool_()
_CHECKPOINT_ROWS = pa.schema(
    [
        ("version", _LONG),
        ("format", _TEXT),
        ("parts", _LONG),
        ("size_bytes", _LONG),
        ("written", view_columns.TIMESTAMP_MS),
        ("last", _FLAG),
    ]
)
_COVERAGE_ROW = pa.schema(
    [("first_version", _LONG), ("last_version", _LONG), ("complete", _FLAG), ("note", _TEXT)]
)
_REMOVED_KEYS = pa.schema([("version", _LONG), ("line", _LONG), ("key", _TEXT)])
# Statements that list the catalog: they must see every view, so all views are defined first.
_CATALOG_QUERY = re.compile(
    r"\b(show|describe|summarize|pragma|information_schema|duckdb_\w+)\b", re.IGNORECASE
)
_METADATA_MARKER = b'"metaData"'  # in every commit that has such an action
_SEARCHED_COMMITS = 512  # commits whose bytes are in memory together
# Connections to close at exit. A stored exception can keep a connection alive until then.
_OPEN_CONNECTIONS: weakref.WeakSet[Any] = weakref.WeakSet()


class LazyDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset whose tables are built on demand.

    `build` receives column names and the filter (or None) and yields tables with exactly these
    columns. It may leave out rows that the filter drops; the filter is applied here in any case.
    """

    def __init__(
        self,
        schema: pa.Schema,
        build: BuildTables,
        on_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`on_error` receives an exception before it is raised: DuckDB passes on only its text."""
        self._schema = schema
        self._build = build
        self._on_error = on_error

    @property
    def schema(self) -> pa.Schema:
        """The columns of the dataset."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 -- pyarrow's name
        **_: Any,
    ) -> LazyScanner:
        """Return a scan of the given columns over the rows that pass the filter."""
        names = list(self._schema.names if columns is None else columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return LazyScanner(schema, lambda: self._batches(names, filter))

    def _batches(self, names: list[str], where: Any) -> Iterator[pa.RecordBatch]:
        needed = list(names)
        if where is not None:
            filter_only = referenced_columns(parse_pyarrow(where, self._schema)) - set(names)
            needed += [name for name in self._schema.names if name in filter_only]
        try:
            for table in self._build(needed, where):
                matching = table if where is None else table.filter(where)
                yield from matching.select(names).to_batches()
        except Exception as error:
            self._on_error(error)
            raise


class VersionRanges:
    """Version ranges, and which of them a filter can match.

    Each range is a dataset fragment that guarantees low <= version <= high. Arrow's own partition
    pruning then evaluates the filter, so every expression that DuckDB pushes down is understood.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Take (low, high) pairs, both ends included."""
        version = pc.field("version")
        schema = pa.schema([("version", pa.int64())])
        self._count = len(ranges)
        fragments = [
            _UNUSED_FORMAT.make_fragment(
                str(number),
                _UNUSED_FILESYSTEM,
                partition_expression=(version >= low) & (version <= high),
            )
            for number, (low, high) in enumerate(ranges)
        ]
        self._dataset = ds.FileSystemDataset(fragments, schema, _UNUSED_FORMAT, _UNUSED_FILESYSTEM)

    def left(self, where: Any, schema: pa.Schema) -> list[int]:
        """Return the indices of the ranges that may have matching rows; all without a filter."""
        if where is None:
            return list(range(self._count))
        dataset = self._dataset.replace_schema(schema)
        return [int(fragment.path) for fragment in dataset.get_fragments(filter=where)]


class ViewSources:
    """The Arrow datasets behind the views of one history.

    Holds no connection: DuckDB holds these datasets, and a reference back would be a cycle that
    Python's garbage collector cannot break.
    """

    def __init__(
        self, past: CommitHistory, load_version: Callable[[int], Snapshot], *, loaded: bool
    ) -> None:
        """`loaded` says whether the newest snapshot is already in memory. Reads nothing yet."""
        self.past = past
        self._load_version = load_version
        self._loaded = loaded
        self._ranges = VersionRanges(past.ranges())
        self._checkpoint_rows: tuple[pa.Table, pa.Table] | None = None

    @OnFirstUse
    def types(self) -> ViewTypes:
        """The column types of the newest schema, plus columns that only older schemas have.

        If the history is complete and no snapshot is loaded, the newest schema is known only after
        every commit is read. They are read here and stay decoded for the query that follows.
        Otherwise the newest schema is that of the snapshot, and the commits are only searched for
        older ones.
        """
        past = self.past
        metadata: list[Metadata] = []  # newest first
        protocol = None
        if past.whole and not self._loaded:
            metadata = [meta for piece in past.pieces() for _, meta in piece.metadata][::-1]
            protocols = [found for piece in past.pieces() for _, found in piece.protocols]
            protocol = protocols[-1] if protocols else None
        if not metadata:  # without any metaData, loading the snapshot raises LogCorrupt
            newest = self._load_version(past.last)
            protocol = newest.protocol
            metadata = [newest.metadata, *_metadata_of_commits(past)]
        table_format = past.listing.format
        newest_schema = parse_table_schema(
            metadata[0], past.last, table_format=table_format, protocol=protocol
        )
        return ViewTypes.of(
            (newest_schema, metadata[0].partition_columns),
            *_readable_schemas(metadata[1:], table_format, protocol or Protocol()),
            table_format=table_format,
        )

    def plain(self) -> dict[str, LazyDataset]:
        """Return the datasets that do not depend on the table's schema, by view name."""
        past = self.past
        return {
            "commits": self._by_commits(view_columns.COMMITS_SCHEMA, self._commits),
            "metadata": self._whole_table(view_columns.METADATA_SCHEMA, self._metadata),
            "protocols": self._whole_table(view_columns.PROTOCOLS_SCHEMA, self._protocols),
            "checkpoints": self._whole_table(
                _CHECKPOINT_ROWS, lambda names: _checkpoints(past).select(names)
            ),
            "coverage": self._whole_table(_COVERAGE_ROW, lambda n: _coverage(past).select(n)),
            "_infos": self._by_commits(
                view_columns.COMMIT_INFO_SCHEMA, view_columns.commit_info_rows
            ),
        }

    def typed(self) -> dict[str, LazyDataset]:
        """Return the datasets whose columns are typed by the table's schema, by view name.

        Names that begin with an underscore are inputs of other views, not meant for users.
        """
        types = self.types
        base = types.adds.append(pa.field("begin_known", _FLAG))
        return {
            "adds": self._by_commits(
                types.adds, lambda p, names: view_columns.add_rows(p, types, names)
            ),
            "removes": self._by_commits(
                types.removes, lambda p, names: view_columns.remove_rows(p, types, names)
            ),
            "skips": self._by_commits(
                types.skips, lambda p, names: view_columns.skip_rows(p, types, names)
            ),
            "files": self._whole_table(types.files, self._files),
            "_base_files": self._whole_table(base, lambda names: self._base_files(names, base)),
            "_implicit_removes": self._whole_table(_REMOVED_KEYS, self._implicit_removes),
            "file_bounds_by_version": self._file_bounds(),
        }

    def _by_commits(self, schema: pa.Schema, rows: ViewRows) -> LazyDataset:
        """Return a dataset that decodes only the blocks a filter on `version` leaves."""

        def make(names: Sequence[str], where: Any) -> Iterator[pa.Table]:
            for piece in self.past.pieces(self._ranges.left(where, schema)):
                yield rows(piece, names)

        return LazyDataset(schema, make, self._record_failure)

    def _whole_table(
        self, schema: pa.Schema, rows: Callable[[Sequence[str]], pa.Table]
    ) -> LazyDataset:
        """Return a dataset that is built as one table, whatever the filter."""

        def make(names: Sequence[str], _: Any) -> Iterator[pa.Table]:
            yield rows(names)

        return LazyDataset(schema, make, self._record_failure)

    def _record_failure(self, error: Exception) -> None:
        self.past.failure = error

    def _commits(self, piece: CommitBatch, names: Collection[str]) -> pa.Table:
        return view_columns.commit_rows(piece, names, self.past.written)

    def _files(self, names: Sequence[str]) -> pa.Table:
        """Return the live files of the newest version.

        Types only the requested columns, unless the snapshot reads its files from a Parquet
        checkpoint or has built its files table already.
        """
        newest = self._load_version(self.past.last)
        typed = newest.state.source.is_typed(newest.schema, newest.partition_columns)
        if not typed and "files" not in newest.__dict__:
            columns = view_columns.add_columns(newest.state.adds, self.types, names)
        else:
            columns = {n: newest.files[n] for n in names if n in newest.files.column_names}
        return view_columns.conform_to_view(columns, self.types.files, names, newest.num_files)

    def _file_bounds(self) -> LazyDataset:
        """Return the bounds of the live files of every version; a filter selects the versions."""
        past, types = self.past, self.types
        schema = bounds_schema(types.typed_schema, types.partition_columns)
        schema = pa.schema([("version", _LONG), *schema])
        versions = range(past.first, past.last + 1)

        def make(names: Sequence[str], where: Any) -> Iterator[pa.Table]:
            ranges = VersionRanges([(version, version) for version in versions])
            for index in ranges.left(where, schema):
                yield self._bounds_of(versions[index], names, schema)

        return LazyDataset(schema, make, self._record_failure)

    def _bounds_of(self, version: int, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Return columns of `file_bounds_by_version` for one version.

        Columns that the schema of the version lacks are unknown.
        """
        snapshot = self._load_version(version)
        known = bounds_schema(snapshot.columns.schema, snapshot.partition_columns).names
        wanted = [name for name in names if name in known] or ["path"]
        bounds = bounds_table(snapshot, wanted)
        columns = {name: bounds[name] for name in wanted}
        columns["version"] = repeat_value(version, _LONG, bounds.num_rows)
        return view_columns.conform_bounds(columns, schema, names, bounds.num_rows)

    def _rows_from_checkpoints(self) -> tuple[pa.Table, pa.Table]:
        if self._checkpoint_rows is None:
            self._checkpoint_rows = _rows_from_checkpoints(self.past, self._load_version)
        return self._checkpoint_rows

    def _implicit_removes(self, names: Sequence[str]) -> pa.Table:
        return self._rows_from_checkpoints()[1].select(names)

    def _base_files(self, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        table = self._rows_from_checkpoints()[0]
        columns = view_columns.add_columns(table, self.types, names)
        columns |= {name: table[name] for name in ("version", "line", "begin_known")}
        return view_columns.conform_to_view(columns, schema, names, table.num_rows)

    def _metadata(self, names: Sequence[str]) -> pa.Table:
        rows = self._by_version(attrgetter("metadata"), attrgetter("metadata"))
        return view_columns.metadata_rows(rows).select(names)

    def _protocols(self, names: Sequence[str]) -> pa.Table:
        rows = self._by_version(attrgetter("protocol"), attrgetter("protocols"))
        return view_columns.protocol_rows(rows).select(names)

    def _by_version(
        self, of_snapshot: Callable[[Snapshot], Any], of_piece: Callable[[CommitBatch], Any]
    ) -> list[Any]:
        """Return (version, line, action) rows; line is None where a checkpoint has the action."""
        rows: list[Any] = [
            (version, None, of_snapshot(self._load_version(version)))
            for version in _checkpoint_only_versions(self.past)
        ]
        for piece in self.past.pieces():
            rows += [(*_version_and_line(piece, seq), action) for seq, action in of_piece(piece)]
        return sorted(rows, key=lambda row: row[0])


class ViewConnection:
    """A DuckDB connection with the history views of one `ViewSources`."""

    def __init__(self, sources: ViewSources) -> None:
        """Register the views that need no schema; the rest follows when a query names one."""
        self.sources = sources
        self.connection = _connect(sandbox=sources.past.options.config.history_sandbox)
        self._whole = False
        self._register(sources.plain())

    def whole(self) -> ViewConnection:
        """Define all views, once, and return self."""
        if not self._whole:
            self._register(self.sources.typed())
            for statement in _view_definitions(self.sources.past, self.sources.types):
                self.connection.execute(statement)
            self._whole = True
        return self

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a lazy DuckDB relation, or None for a statement without a result.

        Raises `InvalidRequest` if DuckDB rejects the query or the sandbox does not allow it, and
        the log's own error if reading the log failed while the query was bound.
        """
        import duckdb

        query = parse_argument(parse_text, query, "query")
        self.sources.past.failure = None
        if self.sources.past.options.config.history_sandbox:
            self._check_only_reads(query)
        if _CATALOG_QUERY.search(query):
            self.whole()
        try:
            if not self._whole:
                # An unknown name may be a typed view, which needs the schema: define all, retry.
                with suppress(duckdb.CatalogException):
                    return self.connection.sql(query)
            return self.whole().connection.sql(query)
        except duckdb.Error as error:
            translated = translate_duckdb_error(error, self.sources)
            raise translated from translated.__cause__

    def _check_only_reads(self, query: str) -> None:
        """Raise `InvalidRequest` for a statement that may change what later queries are told.

        The connection outlives the query, so one that redefines a view, a macro or a setting, or
        opens a transaction, would reach the next one.
        """
        import duckdb

        try:
            statements = self.connection.extract_statements(query)
        except duckdb.Error as error:
            translated = translate_duckdb_error(error, self.sources)
            raise translated from translated.__cause__
        for statement in statements:
            if statement.type != duckdb.StatementType.SELECT:
                raise InvalidRequest(
                    f"A statement of type {statement.type.name} is not allowed in the sandbox.",
                    next="Use SELECT; for anything else, open a connection with table.connect().",
                )

    def _register(self, datasets: dict[str, LazyDataset]) -> None:
        for name, dataset in datasets.items():
            self.connection.register(name, dataset)


def translate_duckdb_error(error: Exception, sources: ViewSources) -> ArrowlogError:
    """Translate a DuckDB error.

    Returns the error of the log if reading the log caused it, else `InvalidRequest` with DuckDB's
    message on one line.
    """
    failure = sources.past.failure
    if isinstance(failure, ArrowlogError):
        return failure
    message = " ".join(str(error).split("\n\nLINE", 1)[0].split())
    kind, _, detail = message.partition(": ")
    if kind == "Invalid Input Error":  # raised by error() in the macro `files_at`
        return InvalidRequest(detail)
    hint = f"The views are {', '.join(VIEW_NAMES)}, and files_at(version), file_bounds_at(version)."
    return InvalidRequest(
        f"The query cannot be answered: {message.rstrip('.')}.",
        next=hint if kind == "Catalog Error" else "",
    )


def _metadata_of_commits(past: CommitHistory) -> list[Metadata]:
    """Return the metaData actions of all commits, newest first.

    Few commits have one, which a search of their bytes shows; only these are decoded. Commits that
    a concurrent cleanup has deleted are left out.
    """
    changing: list[CommitFile] = []
    limit = past.options.config.max_decompressed_bytes
    keys = past.listing.commits
    all_commits = [c for c in past.commits if keys.get(c.version) == c.key]  # no table states
    for start in range(0, len(all_commits), _SEARCHED_COMMITS):
        commits = all_commits[start : start + _SEARCHED_COMMITS]
        contents = past.store.find_many([commit.key for commit in commits])
        changing += (
            commit
            for commit, data in zip(commits, contents, strict=True)
            if data is not None and _METADATA_MARKER in decompress(data, commit.key, limit)
        )
    batches = stream_actions(past.store, past.options, changing)
    found = [action for batch in batches for action in sorted(batch.metadata, key=itemgetter(0))]
    return [metadata for _, metadata in reversed(found)]


def _readable_schemas(
    metadata: Sequence[Metadata], table_format: Format, protocol: Protocol
) -> Iterator[tuple[pa.Schema, Sequence[str]]]:
    """Yield each distinct older schema with its partition columns; skip those that do not parse."""
    distinct = {(meta.schema_string, meta.partition_columns): meta for meta in metadata}
    for meta in distinct.values():
        with suppress(ValueError, UnsupportedProtocol):
            yield table_format.table_schema(meta, protocol), meta.partition_columns


def _version_and_line(piece: CommitBatch, seq: int) -> tuple[int, int]:
    return piece.versions[seq >> SEQ_LINE_BITS].as_py(), seq & ((1 << SEQ_LINE_BITS) - 1)


def _checkpoint_only_versions(past: CommitHistory) -> list[int]:
    """Return the versions whose state comes from a checkpoint, not from the commits before it.

    These are the versions without a commit, those after a version that cannot be read and, unless
    the history is complete, the first version.
    """
    first = [past.first] if past.first else []
    return sorted({*past.missing_versions, *past.resumed_versions(), *first})


def _rows_from_checkpoints(
    past: CommitHistory, load_version: Callable[[int], Snapshot]
) -> tuple[pa.Table, pa.Table]:
    """Return what checkpoint-only versions contribute to `file_lifetimes`.

    The first table has the files that are live at each such version; `begin_known` is true where
    the version's own commit still exists and adds the file. The second has the keys of files that
    were live one version earlier and no longer are. Rows carry negative line numbers.
    """
    tables, removes = [], [empty_table(_REMOVED_KEYS)]
    for version in _checkpoint_only_versions(past):
        state = load_version(version).state
        keys = state.adds["key"].combine_chunks() if state.num_files else pa.nulls(0, _TEXT)
        rows = len(keys)
        begin_known = repeat_bool(False, rows)
        commit = past.listing.commit_file(version)
        if commit is not None:
            actions = next(stream_actions(past.store, past.options, [commit]))
            added = with_file_keys(actions, "add", past.store.root)[0]["key"]
            begin_known = pc.is_in(keys, value_set=added.combine_chunks())
        table = state.adds if rows else pa.table({"key": keys, "path": keys})
        for name, column in (
            ("version", repeat_value(version, _LONG, rows)),
            ("line", _negative_lines(rows)),
            ("begin_known", begin_known),
        ):
            table = table.append_column(name, column)
        tables.append(table)
        if version > past.first:
            before = load_version(past.readable_before(version)).state.adds["key"].combine_chunks()
            gone = before.filter(pc.invert(pc.is_in(before, value_set=keys)))
            versions, lines = repeat_value(version, _LONG, len(gone)), _negative_lines(len(gone))
            removes.append(pa.table([versions, lines, gone], schema=_REMOVED_KEYS))
    if not tables:
        text, number = pa.nulls(0, _TEXT), pa.nulls(0, _LONG)
        empty = {"key": text, "path": text, "version": number, "line": number}
        tables = [pa.table({**empty, "begin_known": repeat_bool(False, 0)})]
    return pa.concat_tables(tables, promote_options="default"), pa.concat_tables(removes)


def _negative_lines(count: int) -> pa.Array:
    """Return -1, -2, …: line numbers that no line of a commit has."""
    return pl.int_range(-1, -1 - count, -1, eager=True).to_arrow()


def _checkpoints(past: CommitHistory) -> pa.Table:
    """Return one row per checkpoint in the log folder, complete or not."""
    table_format = past.listing.format
    log_stats = past.store.stats_from(table_format.log_folder)
    inner = table_format.checkpoint_folder
    folder_stats = (
        past.store.stats_from(table_format.key(inner)) if inner and past.checkpoints() else {}
    )
    last = read_pointer(past.store, table_format)
    rows = []
    for version, forms in past.listing.checkpoints.items():
        for form in forms:
            if form.kind in table_format.state_kinds:
                stat = past.store.stat(form.keys[0])
                if stat is not None:
                    times = stat.size, stat.mtime_ms
                    rows.append((version, form.kind, 1, *times, version == last))
                continue
            is_inner = inner and form.keys[0].startswith(table_format.key(inner))
            stats = folder_stats if is_inner else log_stats
            parts = [
                stat
                for name, stat in stats.items()
                if name in form.names
                or (inner and classify_log_file(name) == ("checkpoint", version))
            ]
            if parts:
                size, written = sum(stat.size for stat in parts), max(s.mtime_ms for s in parts)
                rows.append((version, form.kind, len(parts), size, written, version == last))
    rows.sort()
    columns = list(zip(*rows, strict=True)) or [() for _ in _CHECKPOINT_ROWS]
    arrays = [
        make_array(list(column), _LONG if pa.types.is_timestamp(field.type) else field.type)
        for field, column in zip(_CHECKPOINT_ROWS, columns, strict=True)
    ]
    return pa.table(arrays, names=_CHECKPOINT_ROWS.names).cast(_CHECKPOINT_ROWS)


def _coverage(past: CommitHistory) -> pa.Table:
    note = past.note()
    arrays = [
        make_array([past.first], _LONG),
        make_array([past.last], _LONG),
        repeat_bool(not note, 1),
        make_array([note or None], _TEXT),
    ]
    return pa.table(arrays, schema=_COVERAGE_ROW)


def _connect(*, sandbox: bool) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB connection in UTC that spills to its own temporary folder.

    In a sandbox, external access is off (files, network, extensions) and the configuration is
    locked, so a query cannot switch it on again. Datasets that Python registers stay visible.
    """
    import duckdb

    spill = os.path.join(tempfile.gettempdir(), f"arrowlog-duckdb-{uuid.uuid4().hex[:12]}")
    connection = duckdb.connect(":memory:", config={"temp_directory": spill})
    connection.execute("SET TimeZone = 'UTC'")
    if sandbox:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    if not _OPEN_CONNECTIONS:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _OPEN_CONNECTIONS.add(connection)
    keep_connection_alive(connection)
    return connection


def _close_all() -> None:
    """Close connections before the interpreter shuts down; DuckDB prints errors otherwise."""
    for connection in list(_OPEN_CONNECTIONS):
        connection.close()


if hasattr(os, "register_at_fork"):  # a child must not close its parent's connections
    os.register_at_fork(after_in_child=_OPEN_CONNECTIONS.clear)


def _lifetimes_definition(past: CommitHistory, types: ViewTypes) -> str:
    """Return the statement that defines `file_lifetimes`.

    A lifetime runs from the event that adds a file to the next event of the same key, the end
    excluded. At the first version of an incomplete history `_base_files` stands for the adds and
    removes of that commit. A file that is added and removed in one version has no lifetime.
    """
    columns = [
        quote_identifier(name)
        for name in types.adds.names
        if name not in ("version", "line", "json")
    ]
    rest = [name for name in columns if name not in ('"path"', '"size_bytes"')]
    shared = ", ".join(columns)
    after = f"version > {past.first}" if past.first else "TRUE"
    return f"""
        CREATE TEMP VIEW file_lifetimes AS
        WITH events AS (
            SELECT key, version, line, TRUE AS added FROM adds WHERE {after}
            UNION ALL SELECT key, version, line, FALSE FROM removes WHERE {after}
            UNION ALL SELECT key, version, line, TRUE FROM _base_files
            UNION ALL SELECT key, version, line, FALSE FROM _implicit_removes
        ), spans AS (
            SELECT version, line, added,
                lead(version) OVER (PARTITION BY key ORDER BY version, line) AS end_version
            FROM events
        ), entries AS (
            SELECT version, line, TRUE AS begin_known, {shared} FROM adds WHERE {after}
            UNION ALL SELECT version, line, begin_known, {shared} FROM _base_files
        )
        SELECT e.path, s.version AS begin_version, s.end_version,
            CASE WHEN e.begin_known THEN b.timestamp END AS begin_timestamp,
            c.timestamp AS end_timestamp, e.size_bytes, e.begin_known,
            {", ".join(f"e.{name}" for name in rest)}
        FROM spans s
        JOIN entries e ON e.version = s.version AND e.line = s.line
        LEFT JOIN commits b ON b.version = s.version
        LEFT JOIN commits c ON c.version = s.end_version
        WHERE s.added AND (s.end_version IS NULL OR s.end_version > s.version)
    """  # noqa: S608 -- names are quoted


def _view_definitions(past: CommitHistory, types: ViewTypes) -> list[str]:
    """Return the statements that define `file_lifetimes`, `file_bounds`, `actions` and macros."""
    known = f"; known are versions {past.first} to {past.last}."
    message = f"concat('There is no version ', coalesce(v::VARCHAR, 'NULL'), '{known}')"
    files_at = f"""
        CREATE TEMP MACRO files_at(v) AS TABLE
        SELECT {", ".join(quote_identifier(name) for name in types.files.names)}
        FROM (
            SELECT CASE WHEN v BETWEEN {past.first} AND {past.last} THEN v
                ELSE error({message}) END AS asked
        ) JOIN file_lifetimes
        ON begin_version <= asked AND (end_version IS NULL OR end_version > asked)
    """  # noqa: S608
    no_file = "NULL::VARCHAR AS path, NULL::BIGINT AS size_bytes, NULL::BOOLEAN AS data_change"
    actions = f"""
        CREATE TEMP VIEW actions AS
        SELECT version, line, 'add' AS action, path, size_bytes, data_change FROM adds
        UNION ALL SELECT version, line, 'remove', path, size_bytes, data_change FROM removes
        UNION ALL SELECT version, line, 'mergeskip', path, size_bytes, NULL FROM skips
        UNION ALL SELECT version, line, 'metaData', {no_file} FROM metadata WHERE line IS NOT NULL
        UNION ALL SELECT version, line, 'protocol', {no_file} FROM protocols WHERE line IS NOT NULL
        UNION ALL SELECT version, line, 'commitInfo', {no_file} FROM _infos
    """  # noqa: S608
    lifetimes = _lifetimes_definition(past, types)
    return [lifetimes, files_at, actions, *_bounds_definitions(past, message)]


def _bounds_definitions(past: CommitHistory, message: str) -> list[str]:
    """Return the statements that define `file_bounds` and `file_bounds_at`.

    `message` is the SQL expression of the error for a version that does not exist.
    """
    bounds = f"""
        CREATE TEMP VIEW file_bounds AS
        SELECT * EXCLUDE version FROM file_bounds_by_version WHERE version = {past.last}
    """  # noqa: S608 -- numbers
    bounds_at = f"""
        CREATE TEMP MACRO file_bounds_at(v) AS TABLE
        SELECT * EXCLUDE version FROM file_bounds_by_version
        WHERE version = CASE WHEN v BETWEEN {past.first} AND {past.last} THEN v
            ELSE error({message}) END
    """  # noqa: S608 -- numbers
    return [bounds, bounds_at]

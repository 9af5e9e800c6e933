"""The past of a table as views in DuckDB."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import uuid
import weakref
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.fork_safety import keep_through_forks, pl
from arrowlog.log.arrays import array_of, flags, same
from arrowlog.log.names import CHECKPOINTS, LOG, POINTER, part_of
from arrowlog.log.schema import from_spark
from arrowlog.log.window import LINE_BITS
from arrowlog.scan.engine import quoted
from arrowlog.sql import sheets
from arrowlog.sql.lazy import Lazy, Ranges
from arrowlog.sql.sheets import Types
from arrowlog.state.apply import keyed, schema_of
from arrowlog.state.load import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from arrowlog.log.actions import Metadata
    from arrowlog.sql.past import Past, Piece
    from arrowlog.state.snapshot import Snapshot

    Sheet = Callable[[Piece, Collection[str]], pa.Table]

VIEWS = (
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
    "coverage",
)
_CHECKPOINTS = pa.schema(
    [
        ("version", pa.int64()),
        ("format", pa.string()),
        ("parts", pa.int64()),
        ("size_bytes", pa.int64()),
        ("written", sheets.MILLIS),
        ("last", pa.bool_()),
    ]
)
_COVERAGE = pa.schema(
    [
        ("first_version", pa.int64()),
        ("last_version", pa.int64()),
        ("complete", pa.bool_()),
        ("note", pa.string()),
    ]
)
_LOST = pa.schema([("version", pa.int64()), ("line", pa.int64()), ("key", pa.string())])
_LISTED = re.compile(
    r"\b(show|describe|summarize|pragma|information_schema|duckdb_\w+)\b", re.IGNORECASE
)
_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


class Sources:
    """A past, and the tables that views are made of.

    Holds no connection: what DuckDB holds must not hold DuckDB, or neither would ever go.
    """

    def __init__(self, past: Past, at: Callable[[int], Snapshot], *, loaded: bool) -> None:
        """`at` loads the table at a version; `loaded` says whether the newest one is at hand."""
        self.past = past
        self._at = at
        self._loaded = loaded
        self._ranges = Ranges(past.ranges())
        self._held: tuple[pa.Table, pa.Table] | None = None

    @cached_property
    def types(self) -> Types:
        """The types of the newest version; columns that only older ones have are not lost.

        Without a checkpoint nobody knows the newest schema before all commits are read. Then they
        are read here, once, for whatever is asked next.
        """
        past, found = self.past, []
        if past.whole and not self._loaded:
            found = [meta for piece in past.pieces() for _, meta in piece.metadata][::-1]
        if not found:  # or there is none at all, and whoever loads the table says so
            newest = self._at(past.last)
            first = past.commits[:1] if past.whole else []
            told = next(stream(past.store, past.config, first), None)
            found = [newest.metadata, *(meta for _, meta in (told.metadata if told else ()))]
        return Types.of(
            (schema_of(found[0], past.last), found[0].partition_columns), *_older(found[1:])
        )

    def plain(self) -> dict[str, Lazy]:
        """The tables that need no types of columns."""
        past = self.past
        return {
            "commits": self._by_pieces(sheets.COMMITS, self._commits),
            "metadata": self._lazy(sheets.METADATA, self._metadata),
            "protocols": self._lazy(sheets.PROTOCOLS, self._protocols),
            "checkpoints": self._lazy(_CHECKPOINTS, lambda names: _checkpoints(past).select(names)),
            "coverage": self._lazy(_COVERAGE, lambda names: _coverage(past).select(names)),
            "_infos": self._by_pieces(sheets.INFOS, sheets.infos),
        }

    def typed(self) -> dict[str, Lazy]:
        """The tables whose columns are typed by the table's schema.

        Those that begin with _ are for the views alone.
        """
        types = self.types
        held = types.adds.append(pa.field("begin_known", pa.bool_()))
        return {
            "adds": self._by_pieces(types.adds, lambda p, names: sheets.adds(p, types, names)),
            "removes": self._by_pieces(
                types.removes, lambda p, names: sheets.removes(p, types, names)
            ),
            "skips": self._by_pieces(types.skips, lambda p, names: sheets.skips(p, types, names)),
            "files": self._lazy(types.files, self._files),
            "_held": self._lazy(held, lambda names: self._held_rows(names, held)),
            "_lost": self._lazy(_LOST, self._lost_rows),
        }

    def _by_pieces(self, schema: pa.Schema, sheet: Sheet) -> Lazy:
        def make(names: Sequence[str], where: Any) -> Iterator[pa.Table]:
            for piece in self.past.pieces(self._ranges.left(where, schema)):
                yield sheet(piece, names)

        return Lazy(schema, make, self._failed)

    def _lazy(self, schema: pa.Schema, table: Callable[[Sequence[str]], pa.Table]) -> Lazy:
        def make(names: Sequence[str], _: Any) -> Iterator[pa.Table]:
            yield table(names)

        return Lazy(schema, make, self._failed)

    def _failed(self, error: Exception) -> None:
        self.past.failure = error

    def _commits(self, piece: Piece, names: Collection[str]) -> pa.Table:
        return sheets.commits(piece, names, self.past.written)

    def _files(self, names: Sequence[str]) -> pa.Table:
        """The live files of the newest version."""
        newest = self._at(self.past.last)
        if newest.state.deferred is None and "files" not in newest.__dict__:
            found = sheets.add_columns(newest.state.adds, self.types, names)
        else:
            found = {n: newest.files[n] for n in names if n in newest.files.column_names}
        return sheets.fitted(found, self.types.files, names, newest.num_files)

    def _first_seen(self) -> tuple[pa.Table, pa.Table]:
        """Files at versions that only a checkpoint knows, and files that are gone there."""
        if self._held is None:
            self._held = _held(self.past, self._at)
        return self._held

    def _lost_rows(self, names: Sequence[str]) -> pa.Table:
        return self._first_seen()[1].select(names)

    def _held_rows(self, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        table = self._first_seen()[0]
        found = sheets.add_columns(table, self.types, names)
        found |= {name: table[name] for name in ("version", "line", "begin_known")}
        return sheets.fitted(found, schema, names, table.num_rows)

    def _metadata(self, names: Sequence[str]) -> pa.Table:
        rows: list[Any] = [(v, None, self._at(v).metadata) for v in _unsaid(self.past)]
        for piece in self.past.pieces():
            rows += [(*_place(piece, seq), found) for seq, found in piece.metadata]
        return sheets.metadata_rows(sorted(rows, key=lambda row: row[0])).select(names)

    def _protocols(self, names: Sequence[str]) -> pa.Table:
        rows: list[Any] = [(v, None, self._at(v).protocol) for v in _unsaid(self.past)]
        for piece in self.past.pieces():
            rows += [(*_place(piece, seq), found) for seq, found in piece.protocols]
        return sheets.protocol_rows(sorted(rows, key=lambda row: row[0])).select(names)


class Asked:
    """A DuckDB connection that has the views, and what they are made of."""

    def __init__(self, sources: Sources) -> None:
        """Defines the views that need no schema; the others when a query names one of them."""
        self.sources = sources
        self.connection = _connection(sandbox=sources.past.config.history_sandbox)
        self._whole = False
        self._register(sources.plain())

    def whole(self) -> Asked:
        """With all views."""
        if not self._whole:
            self._register(self.sources.typed())
            for text in _definitions(self.sources.past, self.sources.types):
                self.connection.execute(text)
            self._whole = True
        return self

    def sql(self, query: str) -> Any:
        """The answer, which is worked out when it is looked at; None for what has none."""
        import duckdb

        self.sources.past.failure = None
        if _LISTED.search(query):
            self.whole()
        try:
            if not self._whole:
                with suppress(duckdb.CatalogException):
                    return self.connection.sql(query)
            return self.whole().connection.sql(query)
        except duckdb.Error as error:
            told = explained(error, self.sources)
            raise told from told.__cause__

    def _register(self, datasets: dict[str, Lazy]) -> None:
        for name, dataset in datasets.items():
            self.connection.register(name, dataset)


def explained(error: Exception, sources: Sources) -> ArrowlogError:
    """An error of DuckDB in our words; if the log caused it, what is wrong with the log."""
    failure = sources.past.failure
    if isinstance(failure, ArrowlogError):
        return failure
    words = " ".join(str(error).split("\n\nLINE", 1)[0].split())
    kind, _, what = words.partition(": ")
    if kind == "Invalid Input Error":  # what our own macro has to say
        return InvalidRequest(what)
    hint = f"The views are {', '.join(VIEWS)}, and files_at(version)."
    return InvalidRequest(
        f"The query cannot be answered: {words.rstrip('.')}.",
        next=hint if kind == "Catalog Error" else "",
    )


def _older(found: Sequence[Metadata]) -> Iterator[tuple[pa.Schema, Sequence[str]]]:
    """Schemas that no longer hold; one that cannot be read is nobody's trouble any more."""
    for each in dict.fromkeys((meta.schema_string, meta.partition_columns) for meta in found):
        with suppress(ValueError):
            yield from_spark(each[0]), each[1]


def _place(piece: Piece, seq: int) -> tuple[int, int]:
    return piece.versions[seq >> LINE_BITS].as_py(), seq & ((1 << LINE_BITS) - 1)


def _unsaid(past: Past) -> list[int]:
    """Versions of which only a checkpoint tells what holds there."""
    return sorted({*past.holes, *([past.first] if past.first else [])})


def _held(past: Past, at: Callable[[int], Snapshot]) -> tuple[pa.Table, pa.Table]:
    """The files at versions that only a checkpoint knows; and those that are gone there."""
    tables, lost = [], [_LOST.empty_table()]
    for version in _unsaid(past):
        state = at(version).state
        keys = state.adds["key"].combine_chunks() if state.num_files else pa.nulls(0, pa.string())
        rows = len(keys)
        known = flags(False, rows)
        if version in past.listing.commits:
            here = next(stream(past.store, past.config, [(version, past.listing.commits[version])]))
            said = keyed(here, "add", past.store.root)[0]["key"]
            known = pc.is_in(keys, value_set=said.combine_chunks())
        table = state.adds if rows else pa.table({"key": keys, "path": keys})
        places = {
            "version": same(version, pa.int64(), rows),
            "line": _backwards(rows),
            "begin_known": known,
        }
        for name, column in places.items():
            table = table.append_column(name, column)
        tables.append(table)
        if version > past.first:
            before = at(version - 1).state.adds["key"].combine_chunks()
            gone = before.filter(pc.invert(pc.is_in(before, value_set=keys)))
            at_once = same(version, pa.int64(), len(gone))
            lost.append(pa.table([at_once, _backwards(len(gone)), gone], schema=_LOST))
    if not tables:
        empty = pa.nulls(0, pa.int64())
        nothing = {"key": pa.nulls(0, pa.string()), "path": pa.nulls(0, pa.string())}
        tables = [
            pa.table({**nothing, "version": empty, "line": empty, "begin_known": flags(False, 0)})
        ]
    return pa.concat_tables(tables, promote_options="default"), pa.concat_tables(lost)


def _backwards(count: int) -> pa.Array:
    """-1, -2, …: numbers of lines that are in no file."""
    return pl.int_range(-1, -1 - count, -1, eager=True).to_arrow()


def _checkpoints(past: Past) -> pa.Table:
    """What lies in the log as checkpoints, whole or not."""
    outer = past.store.stats_from(LOG)
    inner = past.store.stats_from(f"{LOG}/{CHECKPOINTS}") if past.checkpoints() else {}
    last = _pointer(past)
    rows = []
    for form, names, stats in (
        ("json", past.listing.json_checkpoints, outer),
        ("parquet", past.listing.parquet_checkpoints, inner),
    ):
        for version in names:
            parts = [
                stat for name, stat in stats.items() if part_of(name) == ("checkpoint", version)
            ]
            if parts:
                size, when = sum(stat.size for stat in parts), max(s.mtime_ms for s in parts)
                rows.append((version, form, len(parts), size, when, version == last))
    rows.sort()
    columns = list(zip(*rows, strict=True)) or [() for _ in _CHECKPOINTS]
    arrays = [
        array_of(list(column), pa.int64() if pa.types.is_timestamp(field.type) else field.type)
        for field, column in zip(_CHECKPOINTS, columns, strict=True)
    ]
    return pa.table(arrays, names=_CHECKPOINTS.names).cast(_CHECKPOINTS)


def _pointer(past: Past) -> int | None:
    """The version that the pointer names, if it can be read at all."""
    import msgspec

    found = past.store.find_many([f"{LOG}/{POINTER}"])[0]
    try:
        told = msgspec.json.decode(found or b"null")
    except msgspec.DecodeError:
        return None
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, int) else None


def _coverage(past: Past) -> pa.Table:
    note = past.note()
    arrays = [
        array_of([past.first], pa.int64()),
        array_of([past.last], pa.int64()),
        flags(not note, 1),
        array_of([note or None], pa.string()),
    ]
    return pa.table(arrays, schema=_COVERAGE)


def _connection(*, sandbox: bool) -> Any:
    """A connection to nothing but memory; in a sandbox, with no way out of it.

    The views stay: what Python has registered is no external access.
    """
    import duckdb

    spill = os.path.join(tempfile.gettempdir(), f"arrowlog-duckdb-{uuid.uuid4().hex[:12]}")
    connection = duckdb.connect(":memory:", config={"temp_directory": spill})
    connection.execute("SET TimeZone = 'UTC'")
    if sandbox:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    if not _OPEN:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _OPEN.add(connection)
    keep_through_forks(connection)
    return connection


def _close_all() -> None:
    """What is still open at the end of the program is closed first: DuckDB complains otherwise."""
    for connection in list(_OPEN):
        connection.close()


if hasattr(os, "register_at_fork"):  # those of the parent must not be closed in a child
    os.register_at_fork(after_in_child=_OPEN.clear)


def _definitions(past: Past, types: Types) -> list[str]:
    """The views that are SQL over other views."""
    columns = [quoted(name) for name in types.adds.names if name not in ("version", "line", "json")]
    rest = [name for name in columns if name not in ('"path"', '"size_bytes"')]
    told = ", ".join(columns)
    after = f"version > {past.first}" if past.first else "TRUE"
    lifetimes = f"""
        CREATE TEMP VIEW file_lifetimes AS
        WITH events AS (
            SELECT key, version, line, TRUE AS added FROM adds WHERE {after}
            UNION ALL SELECT key, version, line, FALSE FROM removes WHERE {after}
            UNION ALL SELECT key, version, line, TRUE FROM _held
            UNION ALL SELECT key, version, line, FALSE FROM _lost
        ), spans AS (
            SELECT version, line, added,
                lead(version) OVER (PARTITION BY key ORDER BY version, line) AS end_version
            FROM events
        ), entries AS (
            SELECT version, line, TRUE AS begin_known, {told} FROM adds WHERE {after}
            UNION ALL SELECT version, line, begin_known, {told} FROM _held
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
    known = f"; known are versions {past.first} to {past.last}."
    refused = f"concat('There is no version ', coalesce(v::VARCHAR, 'NULL'), '{known}')"
    files_at = f"""
        CREATE TEMP MACRO files_at(v) AS TABLE
        SELECT {", ".join(quoted(name) for name in types.files.names)}
        FROM (
            SELECT CASE WHEN v BETWEEN {past.first} AND {past.last} THEN v
                ELSE error({refused}) END AS asked
        ) JOIN file_lifetimes
        ON begin_version <= asked AND (end_version IS NULL OR end_version > asked)
    """  # noqa: S608
    none = "NULL::VARCHAR AS path, NULL::BIGINT AS size_bytes, NULL::BOOLEAN AS data_change"
    actions = f"""
        CREATE TEMP VIEW actions AS
        SELECT version, line, 'add' AS action, path, size_bytes, data_change FROM adds
        UNION ALL SELECT version, line, 'remove', path, size_bytes, data_change FROM removes
        UNION ALL SELECT version, line, 'mergeskip', path, size_bytes, NULL FROM skips
        UNION ALL SELECT version, line, 'metaData', {none} FROM metadata WHERE line IS NOT NULL
        UNION ALL SELECT version, line, 'protocol', {none} FROM protocols WHERE line IS NOT NULL
        UNION ALL SELECT version, line, 'commitInfo', {none} FROM _infos
    """  # noqa: S608
    return [lifetimes, files_at, actions]

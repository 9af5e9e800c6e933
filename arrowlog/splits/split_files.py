"""The inner files of one split: read from a local file, or fetched by ranges into the cache.

Of a remote split, each entry of the cache holds what one kind of read needs: its directory,
`meta.json` and deletions (`meta`), the documents (`rows`), the fast fields (`fast`). A local split
is read in place; entries are made of it only where tantivy needs a folder to open.

tantivy is an optional package. What calls into it is here: its import, folders that it can open,
and the errors that it raises.
"""

from __future__ import annotations

import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from arrowlog.errors import ArrowlogError, DataFileError, InvalidRequest
from arrowlog.fork_safety import OnFirstUse
from arrowlog.splits.bundle import (
    META_FILE,
    Bundle,
    ByteRange,
    ByteView,
    check_inner_file,
    damaged,
    parse_index_meta,
    read_bundle,
    seal_inner_file,
)
from arrowlog.storage import LocalStore, store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from arrowlog.splits.bundle import IndexMeta, Segment
    from arrowlog.splits.local_cache import Kind, SplitCache
    from arrowlog.storage import Store

# Files of a segment in place of which tantivy accepts an empty one when only documents or fast
# fields are read: no fields, and the length of that directory.
_EMPTY_COMPOSITE = b"\x80" + struct.pack("<I", 1)
# No blocks, and the footer of a document store: version, offset of the block index, lz4.
_EMPTY_STORE = b"\x80" + struct.pack("<IQB15x", 2, 0, 1)
_TERM_FILES = ("term", "idx", "pos", "fieldnorm")


@cache
def require_tantivy() -> Any:
    """Import tantivy. Raises InvalidRequest if it is not installed."""
    try:
        import tantivy
    except ImportError:
        raise InvalidRequest(
            "Searching splits, and reading nested columns of splits, needs the package tantivy.",
            next="Install it: pip install 'arrowlog[splits]'.",
        ) from None
    return tantivy


@contextmanager
def translate_panics(key: str) -> Iterator[None]:
    """Raise DataFileError for errors of tantivy.

    tantivy reports damage as ValueError or, through its bindings, as a panic. A panic is not an
    `Exception`, and has no importable class.
    """
    try:
        yield
    except ArrowlogError:
        raise
    except ValueError as error:
        raise damaged(key, str(error).split("\n", 1)[0][:200].rstrip(".")) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise damaged(key, "tantivy cannot read it") from error


@contextmanager
def translate_write_errors(key: str) -> Iterator[None]:
    """Raise InvalidRequest if tantivy cannot write an index to the cache, as on a full disk."""
    try:
        yield
    except ArrowlogError:
        raise
    except ValueError as error:
        reason = str(error).split("\n", 1)[0][:200].rstrip(".")
        raise InvalidRequest(
            f"The index of {key} cannot be written to the cache of splits: {reason}.",
            next="Check the free space, or set `splits.cache.path` to another folder.",
        ) from error


def write_segment_meta(folder: str, document: Mapping[str, Any], segment: Segment) -> None:
    """Write a `meta.json` with one segment, so that document numbers are those of the segment."""
    chosen = [
        item for item in document["segments"] if item["segment_id"].replace("-", "") == segment.id
    ]
    with open(os.path.join(folder, META_FILE), "w", encoding="utf-8") as out:
        json.dump({**document, "segments": chosen}, out)


def write_stubs(folder: str, segment: Segment, *, store: bool) -> None:
    """Write empty files in place of the terms, and with `store` in place of the documents.

    A term query on such a folder finds nothing, without an error: only documents and fast fields
    may be read from it.
    """
    bodies = dict.fromkeys(_TERM_FILES, _EMPTY_COMPOSITE)
    if store:
        bodies["store"] = _EMPTY_STORE
    for extension, body in bodies.items():
        with open(os.path.join(folder, segment.file_name(extension)), "wb") as out:
            out.write(seal_inner_file(body))


def open_searcher(folder: str, key: str) -> Any:
    """Open a searcher on an index folder."""
    tantivy = require_tantivy()
    with translate_panics(key):
        return tantivy.Index.open(folder).searcher()


_DIRECTORY = "directory.json"
# Ranges closer than this are fetched with one request; larger requests are divided.
_COALESCE_BYTES = 1 << 16
_REQUEST_BYTES = 8 << 20
_REQUESTS = 4  # at a time, per split
# A split of up to this size is fetched with one request: its parts would take three or more.
_SMALL_BYTES = 1 << 18
# Checksums that this process has verified, by split and inner file. The oldest are forgotten.
_verified: dict[tuple[str, str], None] = {}
_VERIFIED_MAX = 10_000


class SplitFile(NamedTuple):
    """A split as the log describes it. `footer_start` and `num_records` are None if unknown."""

    key: str
    size: int
    modified_ms: int
    footer_start: int | None = None
    num_records: int | None = None


class SplitFiles:
    """The inner files of a split; a context manager, because it pins entries of the cache."""

    def __init__(self, store: Store, file: SplitFile, cache: SplitCache) -> None:
        """Nothing is read before it is needed."""
        self.key = file.key
        self._store = store
        self._file = file
        self._cache = cache
        self._stack = ExitStack()
        self._pinned: dict[Kind, str] = {}
        self.is_local = isinstance(store, LocalStore)

    def __enter__(self) -> Self:
        """Return the files."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Release the entries of the cache."""
        self.close()

    def close(self) -> None:
        """Release the entries of the cache."""
        self._pinned.clear()
        self.__dict__.pop("_local", None)  # its file is closed with the stack
        self._stack.close()

    @OnFirstUse
    def identity(self) -> str:
        """What distinguishes this split from another one at the same place.

        A local file and an object in memory are identified by their own size and time, a remote
        split by its server and by those in the log: a request per split would cost more than a
        search. The memory of another process is another store at the same address.
        """
        stamp = f"{self._store.server}\n{self._file.modified_ms}"
        if not self.is_local and self._store.cheap_stat:
            stamp = self._object_tag()
        elif self.is_local:
            try:
                found = os.stat(self._path)
            except OSError as error:
                raise self._unreadable(error) from None
            if found.st_size != self._file.size:
                raise damaged(
                    self.key, f"it has {found.st_size} bytes, not {self._file.size} as in the log"
                )
            stamp = f"{found.st_mtime_ns} {found.st_ino}"
        return f"{self._store.root}\n{self.key}\n{self._file.size}\n{stamp}"

    def _object_tag(self) -> str:
        """The tag of the object in a store whose stat costs next to nothing."""
        found = self._store.stat(self.key)
        if found is None:
            raise self._unreadable(FileNotFoundError(self.key))
        return found.tag

    @OnFirstUse
    def meta(self) -> IndexMeta:
        """Segments and fields. Raises DataFileError if they are damaged or contradict the log."""
        if self.is_local:
            found = self._bundle.files[META_FILE]
            data = self._read(found.start, found.end)
        else:
            data = self._cached_file("meta", META_FILE)[:]
        meta = parse_index_meta(data, self._bundle)
        expected = self._file.num_records
        if expected is not None and meta.num_docs != expected:
            raise damaged(self.key, f"it has {meta.num_docs} rows, not {expected} as in the log")
        return meta

    def body(self, name: str) -> ByteView:
        """Return a verified file of the documents (`store` or `del`), without its footer."""
        if self.is_local:
            data = ByteView(self._read, *self._bundle.files[name])
        else:
            data = self._cached_file("meta" if name.endswith(".del") else "rows", name)
        return self._check(name, data)

    def _check(self, name: str, data: ByteView) -> ByteView:
        memo = (self.identity, name)
        body = check_inner_file(data, name, self.key, checksum=memo not in _verified)
        _verified[memo] = None
        while len(_verified) > _VERIFIED_MAX:
            _verified.pop(next(iter(_verified)), None)
        return body

    def index_folder(self, kind: Kind, segment_id: str) -> str:
        """Return a folder that tantivy can open, with one segment.

        `fast` has fast fields and no documents, `documents` has both.
        """
        return os.path.join(
            self.folder(kind, lambda path: self._build_index(path, kind)), segment_id
        )

    def has_entry(self, kind: Kind) -> bool:
        """Whether the cache has an entry of this split."""
        return kind in self._pinned or self._cache.has(self.identity, kind)

    def folder(self, kind: Kind, build: Callable[[str], None]) -> str:
        """Return the folder of an entry of the cache, pinned until the files are closed."""
        found = self._pinned.get(kind)
        if found is None:
            found = self._stack.enter_context(self._cache.entry(self.identity, kind, build))
            self._pinned[kind] = found
        return found

    # Local splits -----------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return self.key if self.key.startswith("/") else f"{self._store.root}/{self.key}"

    @OnFirstUse
    def _local(self) -> ByteView:
        return self._open(self._path)

    def _open(self, path: str) -> ByteView:
        """Open a file, until the files are closed."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, descriptor)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise self._unreadable(error) from None
        return ByteView(lambda start, stop: self._pread(descriptor, start, stop), 0, size)

    def _pread(self, descriptor: int, start: int, stop: int) -> bytes:
        """Return a range of a file. Raises DataFileError if it ends before."""
        parts: list[bytes] = []
        while start < stop:
            try:
                data = os.pread(descriptor, stop - start, start)
            except OSError as error:
                raise self._unreadable(error) from None
            if not data:
                raise damaged(self.key, f"it ends before byte {stop}")
            parts.append(data)
            start += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _unreadable(self, error: OSError) -> DataFileError:
        if isinstance(error, FileNotFoundError):
            what, advice = "The split does not exist.", "Run `arrowlog doctor` on the table."
        else:
            failure = store_error("read", "the split", error)
            what, advice = failure.what, failure.next
        return DataFileError(what, next=advice, file=self.key)

    # Remote splits ----------------------------------------------------------------------------

    def _read(self, start: int, stop: int) -> bytes:
        """Return a range of the split."""
        if self.is_local:
            return self._local.read(start, stop)
        if self._file.size <= _SMALL_BYTES:
            return self._whole[start:stop]
        return self._fetch(start, stop)

    @OnFirstUse
    def _whole(self) -> bytes:
        """All of a small split."""
        return self._fetch(0, self._file.size)

    def _fetch(self, start: int, stop: int) -> bytes:
        try:
            data = self._store.get_range(self.key, start, stop)
        except FileNotFoundError as error:
            raise self._unreadable(error) from None
        if len(data) != stop - start:
            raise damaged(self.key, f"it ends before byte {stop}")
        return data

    @OnFirstUse
    def _bundle(self) -> Bundle:
        if self.is_local:
            return self._read_directory()
        try:
            ranges = json.loads(self._cached_file("meta", _DIRECTORY)[:])
        except ValueError:
            raise damaged(self.key, f"its copy in {self._cache.folder} was changed") from None
        files = {name: ByteRange(*found) for name, found in ranges.items()}
        return Bundle(self.key, files, self._file.footer_start or 0)

    def _read_directory(self) -> Bundle:
        assert self.identity  # a local file exists, and has the size in the log
        return read_bundle(self._read, self._file.size, self.key, self._file.footer_start)

    def _cached_file(self, kind: Kind, name: str) -> ByteView:
        build = self._build_meta if kind == "meta" else self._build_rows
        return self._open(os.path.join(self.folder(kind, build), name))

    def _build_meta(self, folder: str) -> None:
        bundle = self._read_directory()
        # Which documents are deleted is small, and every kind of read needs it.
        names = [name for name in bundle.files if name == META_FILE or name.endswith(".del")]
        self._copy({name: os.path.join(folder, name) for name in names}, bundle)
        with open(os.path.join(folder, _DIRECTORY), "w", encoding="utf-8") as out:
            json.dump(bundle.files, out)

    def _build_rows(self, folder: str) -> None:
        names = [segment.file_name("store") for segment in self.meta.segments]
        self._copy({name: os.path.join(folder, name) for name in names}, self._bundle)

    def _build_index(self, folder: str, kind: Kind) -> None:
        """Build folders that tantivy opens; the files are verified, because tantivy does not."""
        targets: dict[str, str] = {}
        for segment in self.meta.segments:
            place = os.path.join(folder, segment.id)
            os.mkdir(place, 0o700)
            write_segment_meta(place, self.meta.document, segment)
            write_stubs(place, segment, store=kind == "fast")
            names = [segment.file_name("fast"), segment.delete_file]
            names += [segment.file_name("store")] if kind == "documents" else []
            targets |= {name: os.path.join(place, name) for name in names if name is not None}
        self._copy(targets, self._bundle)
        for name, path in targets.items():
            if os.path.getsize(path):
                check_inner_file(self._open(path), name, self.key)
            else:
                raise damaged(self.key, f"{name} is empty")

    def _copy(self, targets: dict[str, str], bundle: Bundle) -> None:
        """Copy inner files to paths, in pieces; from a store, several pieces at a time."""
        pieces = list(_divide(targets, bundle))
        descriptors: dict[str, int] = {}
        try:
            for name, path in targets.items():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptors[name] = os.open(path, flags, 0o600)

            def copy(piece: _Piece) -> None:
                data = memoryview(self._read(piece.start, piece.end))
                for name, found in piece.files:
                    start, end = max(found.start, piece.start), min(found.end, piece.end)
                    part = data[start - piece.start : end - piece.start]
                    written = os.pwrite(descriptors[name], part, start - found.start)
                    if written != len(part):
                        raise OSError("the disk is full")

            if self.is_local or len(pieces) == 1 or self._file.size <= _SMALL_BYTES:
                for piece in pieces:
                    copy(piece)
            else:
                with ThreadPoolExecutor(_REQUESTS) as pool:
                    for _ in pool.map(copy, pieces):
                        pass
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)


class _Piece(NamedTuple):
    """A range to read with one request, and the files that it is a part of."""

    start: int
    end: int
    files: list[tuple[str, ByteRange]]


def _divide(names: Iterable[str], bundle: Bundle) -> Iterable[_Piece]:
    """Join neighbouring files into runs, and divide the runs into requests."""
    ordered = sorted(((name, bundle.files[name]) for name in names), key=lambda item: item[1])
    runs: list[list[tuple[str, ByteRange]]] = []
    for item in ordered:
        if runs and item[1].start - runs[-1][-1][1].end <= _COALESCE_BYTES:
            runs[-1].append(item)
        else:
            runs.append([item])
    for run in runs:
        first, last = run[0][1].start, run[-1][1].end
        for start in range(first, last, _REQUEST_BYTES):
            end = min(start + _REQUEST_BYTES, last)
            inside = [item for item in run if item[1].start < end and item[1].end > start]
            yield _Piece(start, end, inside)

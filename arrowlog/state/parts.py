"""The files of a Parquet checkpoint, read as far as needed and verified before they are decoded.

What is asked for is fetched by ranges, a column of a row group at least, checked against the
manifest, and only then given to the Parquet reader, from memory: what was verified is what is read.
"""

from __future__ import annotations

import mmap
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.log.encode import checksum
from arrowlog.log.names import CHECKPOINTS, LOG
from arrowlog.state.manifest import NEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.log.store import Store
    from arrowlog.state.manifest import Manifest, Part

_GAP = 1 << 18  # bytes nobody needs between two ranges that are cheaper to read than to skip
_END = 8  # bytes at the end of a file: the length of the footer, and magic ones
_THREADED = 64  # columns of row groups from which on threads are worth starting
_RELEASE_SECONDS_MAX = 10.0


class Parts:
    """The rows of a checkpoint. Row groups are numbered through all parts."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Nothing is read yet."""
        self.store = store
        self.manifest = manifest
        self.bytes_read = 0
        self._footers: dict[str, Any] = {}
        sums = manifest.index["sums"].combine_chunks().flatten()
        self._sums = memoryview(sums.buffers()[1]).cast("B").cast("I")[sums.offset :]

    def read(self, groups: Sequence[int] | None, names: Iterable[str]) -> pa.Table:
        """Columns of some row groups, or of all; columns that are not stored are left out."""
        wanted = set(names)
        columns = [i for i, name in enumerate(self.manifest.columns) if name in wanted]
        tables: list[pa.Table] = []
        first = 0
        for part in self.manifest.parts:
            stop = first + part.rowGroups
            some = [g - first for g in groups if first <= g < stop] if groups is not None else None
            if some is None or some:
                tables.append(self._read_part(part, first, some, columns))
            first = stop
        if not tables:  # no rows, but of the right types
            tables.append(self._read_part(self.manifest.parts[0], 0, [], columns))
        return pa.concat_tables(tables)

    def check(self, part: Part) -> pa.Table:
        """Read a whole part: its bytes must be those that were written."""
        return self._read_part(part, 0, None, list(range(len(self.manifest.columns))))

    def _read_part(
        self, part: Part, first: int, groups: list[int] | None, columns: list[int]
    ) -> pa.Table:
        file = self._key(part)
        try:
            source: bytes | mmap.mmap
            if groups is None and len(columns) * 2 > len(self.manifest.columns):
                source, metadata = self._whole(part), None
            else:
                metadata = self._footer(part)
                chosen = range(part.rowGroups) if groups is None else groups
                source = self._image(part, metadata, first, chosen, columns)
            table = _decode(source, metadata, groups, columns)
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            if isinstance(error, FileNotFoundError):
                raise LogCorrupt("it is gone.", next=NEXT, file=file) from None
            why = str(error).partition("\n")[0]
            raise LogCorrupt(f"it cannot be read: {why}.", next=NEXT, file=file) from None
        names = [self.manifest.columns[i] for i in columns]
        if table.column_names != names:
            raise LogCorrupt("its columns are not what its manifest says.", next=NEXT, file=file)
        return table

    def _whole(self, part: Part) -> bytes:
        # One byte more than there should be, to see if there are more.
        data = self.store.get_range(self._key(part), 0, part.sizeInBytes + 1)
        self.bytes_read += len(data)
        self._same(part, part.checksum, data)
        return data

    def _footer(self, part: Part) -> Any:
        if part.name not in self._footers:
            data = self._range(part, part.footerOffset, part.sizeInBytes)
            self._same(part, part.footerChecksum, data)
            self._footers[part.name] = _reader(pa.py_buffer(data), None).metadata
        return self._footers[part.name]

    def _image(
        self, part: Part, metadata: Any, first: int, groups: Iterable[int], columns: list[int]
    ) -> mmap.mmap:
        """The part in memory, of which only what is needed is there. The rest costs nothing."""
        image = mmap.mmap(-1, part.sizeInBytes)
        pieces = []
        width = len(self.manifest.columns)
        for group in groups:
            told = metadata.row_group(group)
            for column in columns:
                start, stop = _place(told.column(column))
                pieces.append((start, stop, self._sums[(first + group) * width + column]))
        for start, stop in _together([(start, stop) for start, stop, _ in pieces]):
            image[start:stop] = self._range(part, start, stop)
        with memoryview(image) as view:
            for start, stop, said in pieces:
                self._same(part, f"crc32:{said:08x}", view[start:stop])
        return image

    def _range(self, part: Part, start: int, stop: int) -> bytes:
        if not 0 <= start < stop <= part.sizeInBytes:
            raise LogCorrupt("its manifest contradicts itself.", next=NEXT, file=self._key(part))
        data = self.store.get_range(self._key(part), start, stop)
        self.bytes_read += len(data)
        if len(data) != stop - start:
            raise LogCorrupt("it is cut off.", next=NEXT, file=self._key(part))
        return data

    def _same(self, part: Part, said: str, data: bytes | memoryview) -> None:
        if checksum(data) != said:
            what = "it is not as it was written: a checksum does not agree."
            raise LogCorrupt(what, next=NEXT, file=self._key(part))

    @staticmethod
    def _key(part: Part) -> str:
        return f"{LOG}/{CHECKPOINTS}/{part.name}"


def notes_of(store: Store, key: str) -> dict[bytes, bytes]:
    """What the writer of a file noted in its footer."""
    stat = store.stat(key)
    if stat is None:
        raise FileNotFoundError(key)
    end = store.get_range(key, max(0, stat.size - _END), stat.size)
    length = int.from_bytes(end[:4], "little") + _END
    try:
        footer = store.get_range(key, max(0, stat.size - length), stat.size)
        return _reader(pa.py_buffer(footer), None).metadata.metadata or {}
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(f"it cannot be read: {why}.", next=NEXT, file=key) from None


def read_whole(data: bytes, file: str) -> pa.Table:
    """All rows of a file that nobody vouches for."""
    try:
        return _read(data, None, lambda reader: reader.read_all(use_threads=True), checked=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(f"it cannot be read: {why}.", next=NEXT, file=file) from None


def places(metadata: Any) -> list[tuple[int, int]]:
    """Where the columns of all row groups are in a file, group by group."""
    return [
        _place(metadata.row_group(group).column(column))
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]


def _place(column: Any) -> tuple[int, int]:
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _together(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those next to each other as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1] + _GAP:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _decode(
    source: bytes | mmap.mmap, metadata: Any, groups: list[int] | None, columns: list[int]
) -> pa.Table:
    def read(reader: Any) -> pa.Table:
        if groups is None:
            return reader.read_all(column_indices=columns, use_threads=True)
        many = len(groups) * len(columns) > _THREADED
        return reader.read_row_groups(groups, column_indices=columns, use_threads=many)

    return _read(source, metadata, read)


def _read(
    source: bytes | mmap.mmap,
    metadata: Any,
    read: Callable[[Any], pa.Table],
    *,
    checked: bool = False,
) -> pa.Table:
    """Read from memory of Python's, and return when no thread of Arrow's refers to it any more.

    A thread of Arrow's pool gives its reader up after the table has been handed over, and needs the
    interpreter for that if the reader holds memory of Python's. If the interpreter is at its end by
    then, it stops the thread in the middle of a C++ destructor, which aborts the process.
    """
    references = sys.getrefcount(source)
    table = read(_reader(pa.py_buffer(source), metadata, checked=checked))
    deadline = time.monotonic() + _RELEASE_SECONDS_MAX
    while sys.getrefcount(source) > references and time.monotonic() < deadline:
        time.sleep(0.0001)
    return table


def _reader(source: pa.Buffer, metadata: Any, *, checked: bool = False) -> Any:
    # `pyarrow.parquet` is a wrapper of this that takes longer to import than a plan takes to make.
    from pyarrow._parquet import ParquetReader

    reader = ParquetReader()
    reader.open(
        pa.BufferReader(source),
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=checked,
    )
    return reader

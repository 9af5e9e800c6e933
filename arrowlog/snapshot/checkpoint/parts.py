"""The part files of a Parquet checkpoint, read by ranges and verified before they are decoded.

Ranges are fetched in units of column chunks, compared with the checksums in the manifest, and only
then given to the Parquet reader, from memory: the bytes that were verified are the bytes that are
decoded.
"""

from __future__ import annotations

import mmap
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import format_checksum
from arrowlog.snapshot.checkpoint.manifest import DAMAGED_CHECKPOINT_NEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrowlog.snapshot.checkpoint.manifest import CheckpointManifest, CheckpointPart
    from arrowlog.storage import Store

# Unneeded bytes between two ranges up to which one request for both is cheaper than two.
_GAP_BYTES_MAX = 1 << 18
_TAIL_BYTES = 8  # the end of a Parquet file: the length of its footer, and `PAR1`
# Column chunks from which on decoding in threads pays.
_THREADED_CHUNKS_MIN = 64
# How long to wait for Arrow's threads to release a buffer; see `_read`.
_RELEASE_SECONDS_MAX = 10.0


class CheckpointPartReader:
    """Reads the rows of a checkpoint. Row groups are numbered across all parts."""

    def __init__(self, store: Store, manifest: CheckpointManifest, folder: str) -> None:
        """Read nothing yet. `folder` is the key of the folder of the parts."""
        self.store = store
        self.folder = folder
        self.manifest = manifest
        self.bytes_read = 0
        self._footers: dict[str, Any] = {}
        sums = manifest.index["sums"].combine_chunks().flatten()
        self._sums = memoryview(sums.buffers()[1]).cast("B").cast("I")[sums.offset :]

    def read(self, groups: Sequence[int] | None, names: Iterable[str]) -> pa.Table:
        """Read columns of some row groups, by default of all; unknown columns are left out.

        Raises `LogCorrupt` naming the part if it is missing, damaged or not what the manifest says.
        """
        wanted = set(names)
        columns = [i for i, name in enumerate(self.manifest.columns) if name in wanted]
        tables: list[pa.Table] = []
        first = 0
        for part in self.manifest.parts:
            stop = first + part.rowGroups
            within = None if groups is None else [g - first for g in groups if first <= g < stop]
            if within is None or within:
                tables.append(self._read_part(part, first, within, columns))
            first = stop
        if not tables:  # an empty table still needs the right types
            tables.append(self._read_part(self.manifest.parts[0], 0, [], columns))
        return pa.concat_tables(tables)

    def check(self, part: CheckpointPart) -> pa.Table:
        """Read and verify a whole part. Raises `LogCorrupt` if it is not what was written."""
        return self._read_part(part, 0, None, list(range(len(self.manifest.columns))))

    def _read_part(
        self, part: CheckpointPart, first: int, groups: list[int] | None, columns: list[int]
    ) -> pa.Table:
        """Read columns of some row groups of a part, by default of all.

        `first` is the number of the part's first row group in the checkpoint.
        """
        file = self.key(part)
        try:
            source: bytes | mmap.mmap
            if groups is None and len(columns) * 2 > len(self.manifest.columns):
                # Most of the file is needed: one request, and one checksum for all of it.
                source, metadata = self._read_file(part), None
            else:
                metadata = self._footer(part)
                chosen = range(part.rowGroups) if groups is None else groups
                source = self._sparse_image(part, metadata, first, chosen, columns)
            table = _decode(source, metadata, groups, columns)
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            if isinstance(error, FileNotFoundError):
                raise missing_part_error(file) from None
            why = str(error).partition("\n")[0]
            raise LogCorrupt(
                f"it cannot be read: {why}.", next=DAMAGED_CHECKPOINT_NEXT, file=file
            ) from None
        names = [self.manifest.columns[i] for i in columns]
        if table.column_names != names:
            raise LogCorrupt(
                "its columns differ from its manifest.", next=DAMAGED_CHECKPOINT_NEXT, file=file
            )
        return table

    def _read_file(self, part: CheckpointPart) -> bytes:
        # One byte more than expected, to notice a file that has grown.
        data = self.store.get_range(self.key(part), 0, part.sizeInBytes + 1)
        self.bytes_read += len(data)
        self._verify(part, part.checksum, data)
        return data

    def _footer(self, part: CheckpointPart) -> Any:
        if part.name not in self._footers:
            data = self._range(part, part.footerOffset, part.sizeInBytes)
            self._verify(part, part.footerChecksum, data)
            self._footers[part.name] = _reader(pa.py_buffer(data), None).metadata
        return self._footers[part.name]

    def _sparse_image(
        self,
        part: CheckpointPart,
        metadata: Any,
        first: int,
        groups: Iterable[int],
        columns: list[int],
    ) -> mmap.mmap:
        """Return the part as an anonymous memory map with only the needed column chunks filled in.

        Pages that are never touched take no memory, and the footer's offsets stay valid.
        """
        image = mmap.mmap(-1, part.sizeInBytes)
        chunks = []
        width = len(self.manifest.columns)
        for group in groups:
            row_group = metadata.row_group(group)
            for column in columns:
                start, stop = _byte_range(row_group.column(column))
                chunks.append((start, stop, self._sums[(first + group) * width + column]))
        for start, stop in _coalesce([(start, stop) for start, stop, _ in chunks]):
            image[start:stop] = self._range(part, start, stop)
        with memoryview(image) as view:
            for start, stop, crc in chunks:
                self._verify(part, f"crc32:{crc:08x}", view[start:stop])
        return image

    def _range(self, part: CheckpointPart, start: int, stop: int) -> bytes:
        if not 0 <= start < stop <= part.sizeInBytes:
            raise LogCorrupt(
                "its manifest gives an impossible byte range.",
                next=DAMAGED_CHECKPOINT_NEXT,
                file=self.key(part),
            )
        data = self.store.get_range(self.key(part), start, stop)
        self.bytes_read += len(data)
        if len(data) != stop - start:
            raise LogCorrupt(
                "it is shorter than its manifest says.",
                next=DAMAGED_CHECKPOINT_NEXT,
                file=self.key(part),
            )
        return data

    def _verify(self, part: CheckpointPart, expected: str, data: bytes | memoryview) -> None:
        if format_checksum(data) != expected:
            what = "it was changed after it was written: a checksum does not match."
            raise LogCorrupt(what, next=DAMAGED_CHECKPOINT_NEXT, file=self.key(part))

    def key(self, part: CheckpointPart) -> str:
        """Return the key of a part in the store."""
        return f"{self.folder}/{part.name}"


def missing_part_error(file: str) -> LogCorrupt:
    """Return the error for a file of a checkpoint that does not exist."""
    return LogCorrupt(
        "it is gone.", next=DAMAGED_CHECKPOINT_NEXT, file=file, code="checkpoint-partial"
    )


def read_footer_metadata(store: Store, key: str) -> dict[bytes, bytes]:
    """Return the key-value metadata in the footer of a Parquet file.

    Raises `FileNotFoundError` if there is no such file, `LogCorrupt` if it is not Parquet.
    """
    stat = store.stat(key)
    if stat is None:
        raise FileNotFoundError(key)
    tail = store.get_range(key, max(0, stat.size - _TAIL_BYTES), stat.size)
    length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
    try:
        footer = store.get_range(key, max(0, stat.size - length), stat.size)
        return _reader(pa.py_buffer(footer), None).metadata.metadata or {}
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(
            f"it cannot be read: {why}.", next=DAMAGED_CHECKPOINT_NEXT, file=key
        ) from None


def decode_unverified_part(data: bytes, file: str) -> pa.Table:
    """Decode a Parquet file that has no checksum but those of its pages.

    Raises `LogCorrupt` naming the file if it cannot be decoded.
    """
    try:
        return _read(data, None, lambda reader: reader.read_all(use_threads=True), checked=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(
            f"it cannot be read: {why}.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        ) from None


def column_chunk_ranges(metadata: Any) -> list[tuple[int, int]]:
    """Return the byte ranges of all column chunks in a file, row group by row group."""
    return [
        _byte_range(metadata.row_group(group).column(column))
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]


def _byte_range(column: Any) -> tuple[int, int]:
    start = column.data_page_offset
    if column.dictionary_page_offset is not None:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _coalesce(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, merging those that overlap or are close to each other."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1] + _GAP_BYTES_MAX:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _decode(
    source: bytes | mmap.mmap, metadata: Any, groups: list[int] | None, columns: list[int]
) -> pa.Table:
    def read(reader: Any) -> pa.Table:
        if groups is None:
            return reader.read_all(column_indices=columns, use_threads=True)
        threads = len(groups) * len(columns) > _THREADED_CHUNKS_MIN
        return reader.read_row_groups(groups, column_indices=columns, use_threads=threads)

    return _read(source, metadata, read)


def _read(
    source: bytes | mmap.mmap,
    metadata: Any,
    read: Callable[[Any], pa.Table],
    *,
    checked: bool = False,
) -> pa.Table:
    """Decode a Python buffer, and return once no thread of Arrow refers to it any more.

    A thread of Arrow's pool destroys its reader after the table has been returned, and needs the
    interpreter for that if the reader holds a Python buffer. If the interpreter is shutting down by
    then, it stops the thread inside a C++ destructor, which aborts the process.
    """
    references = sys.getrefcount(source)
    table = read(_reader(pa.py_buffer(source), metadata, checked=checked))
    deadline = time.monotonic() + _RELEASE_SECONDS_MAX
    while sys.getrefcount(source) > references and time.monotonic() < deadline:
        time.sleep(0.0001)
    return table


def _reader(source: pa.Buffer, metadata: Any, *, checked: bool = False) -> Any:
    # Importing `pyarrow.parquet`, a wrapper of this, takes longer than planning a scan.
    from pyarrow._parquet import ParquetReader

    reader = ParquetReader()
    reader.open(
        pa.BufferReader(source),
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=checked,
    )
    return reader

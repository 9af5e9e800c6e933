"""The files of a Parquet checkpoint: its manifest, and its parts, verified before they are decoded.

The manifest is a JSON file that is written last and makes the parts one checkpoint. Its checksums
identify every part, and every column chunk of every row group, as the bytes that were written; its
own last field is the CRC-32 of everything before it. It holds the whole state except the files,
which are read from the parts on demand.

An incremental checkpoint names parts of earlier checkpoints beside its own, and `dead`: the rows of
these that are no longer live, numbered across all parts. Its `format` is not `parquet`, so that
a release that does not know dead rows refuses the manifest instead of showing them.

Parts are read by ranges, in units of column chunks, which are compared with the checksums in the
manifest, and only then given to the Parquet reader, from memory: the bytes that were verified are
the bytes that are decoded.
"""

from __future__ import annotations

import base64
import binascii
import mmap
import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import from_numpy, to_numpy
from arrowlog.decode import parse_metadata, parse_protocol
from arrowlog.errors import LogCorrupt
from arrowlog.formats import RecentCommits, no_recent_commits
from arrowlog.formats.indextables import (
    CHECKSUM_PREFIX,
    format_checksum,
    metadata_fields,
    parse_parquet_part,
    protocol_fields,
    recent_commits_field,
)
from arrowlog.snapshot.checkpoint.rows import RebuildRecipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrowlog.formats import Metadata, Protocol
    from arrowlog.storage import Store

DAMAGED_CHECKPOINT_NEXT = (
    "Delete it if the commits up to its version exist; the table can be read without it."
)
_FORMAT, _SHARED_FORMAT = "parquet", "parquet+shared"
# The manifest ends with its checksum: these bytes, the checksum, `_END`.
_CHECKSUM_FIELD = b',"checksum":"'
_END = b'"}'
_BROKEN = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    ValueError,
    KeyError,
    binascii.Error,
    pa.ArrowException,
)


class CheckpointPart(msgspec.Struct, frozen=True):
    """A part file of a checkpoint, with the sizes and checksums that identify it."""

    name: str
    sizeInBytes: int  # noqa: N815 -- the names on disk
    numFiles: int  # noqa: N815
    rowGroups: int  # noqa: N815
    checksum: str
    footerOffset: int  # noqa: N815
    footerChecksum: str  # noqa: N815


class _Document(msgspec.Struct):
    """The JSON document of a manifest that arrowlog wrote."""

    version: int
    format: str
    parts: list[CheckpointPart]
    protocol: msgspec.Raw
    metaData: msgspec.Raw  # noqa: N815
    numFiles: int  # noqa: N815
    columns: list[str]
    typed: list[str]
    rebuilt: dict[str, tuple[str, str]]
    index: str
    timestamp: int | None = None
    txns: dict[str, tuple[int, int]] = {}
    recentCommits: tuple[int, list[str | None]] | None = None  # noqa: N815
    checkpointId: str = ""  # noqa: N815
    createdTime: int | None = None  # noqa: N815
    dead: str | None = None
    storedSchema: str = ""  # noqa: N815
    truncation: str = ""


class _Header(msgspec.Struct):
    """The fields by which manifests of other programs are recognised."""

    version: int | None = None
    format: str | None = None


_DECODER = msgspec.json.Decoder(_Document)
_HEADER_DECODER = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A checkpoint without its rows.

    `index` has one row per row group, in the order of the parts: the group's statistics (see
    `groups`), and in `sums` the CRC-32 of each of its column chunks, in the order of `columns`.
    `dead` are the numbers of rows, counted across all parts, that are not live, ascending.
    `stored_schema` is the schema of all parts, encoded; `truncation` how statistics were truncated.
    Both are empty in manifests of earlier releases, whose parts are not shared.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    num_files: int
    parts: tuple[CheckpointPart, ...]
    columns: tuple[str, ...]
    recipe: RebuildRecipe
    index: pa.Table
    timestamp: int | None = None
    txns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recent: RecentCommits = field(default_factory=RecentCommits)
    dead: pa.Array = field(default_factory=lambda: pa.nulls(0, pa.int64()))
    stored_schema: str = ""
    truncation: str = ""

    @property
    def shared_parts(self) -> list[CheckpointPart]:
        """The parts that an earlier checkpoint wrote."""
        return [part for part in self.parts if is_shared_part(part.name, self.version)]

    def group_starts(self) -> Any:
        """Return the number of the first row of each row group, and the number of rows."""
        import numpy as np

        return np.concatenate([np.zeros(1, np.int64), np.cumsum(to_numpy(self.index["rows"]))])

    def live_mask(self, groups: Sequence[int] | None) -> pa.Array | None:
        """Return which rows of some row groups are live, by default of all; None for all rows."""
        if not len(self.dead):
            return None
        import numpy as np

        dead, starts = to_numpy(self.dead), self.group_starts()
        if groups is None:
            mask = np.ones(starts[-1], np.bool_)
            mask[dead] = False
            return from_numpy(mask)
        ends = np.searchsorted(dead, starts)
        masks = [np.ones(starts[group + 1] - starts[group], np.bool_) for group in groups]
        for group, live in zip(groups, masks, strict=True):
            live[dead[ends[group] : ends[group + 1]] - starts[group]] = False
        mask = np.concatenate(masks) if masks else np.ones(0, np.bool_)
        return None if mask.all() else from_numpy(mask)

    def count_live(self, groups: Sequence[int] | None) -> int:
        """Return the number of live rows in some row groups, by default in all."""
        sizes = self.index["rows"]
        if groups is None:
            return int(pc.sum(sizes).as_py() or 0) - len(self.dead)
        if not len(self.dead):
            chosen = array("q", groups)  # `pa.array` imports pandas when it is given a list
            rows = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])
            return int(pc.sum(sizes.take(rows)).as_py() or 0)
        mask = self.live_mask(groups)
        physical = sum(sizes[group].as_py() for group in groups)
        return physical if mask is None else int(mask.true_count)


def is_shared_part(name: str, version: int) -> bool:
    """Whether a part of a version's checkpoint was written by an earlier one."""
    parsed = parse_parquet_part(name)
    return parsed is not None and parsed[0] != version


def encode_stored_schema(schema: pa.Schema) -> str:
    """Encode the schema of the parts for a manifest."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def decode_stored_schema(text: str) -> pa.Schema:
    """Decode the schema of the parts."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def encode_manifest(
    manifest: CheckpointManifest, checkpoint_id: str, now_ms: int, engine: str
) -> bytes:
    """Encode a manifest as JSON, ending with its checksum."""
    document = {
        "version": manifest.version,
        "format": _SHARED_FORMAT if manifest.shared_parts else _FORMAT,
        "checkpointId": checkpoint_id,
        "createdTime": now_ms,
        "engineInfo": engine,
        "numFiles": manifest.num_files,
        "size": manifest.num_files + 2,
        "sizeInBytes": sum(part.sizeInBytes for part in manifest.parts),
        "parts": manifest.parts,
        "protocol": _without_nulls(protocol_fields(manifest.protocol)),
        "metaData": _without_nulls(metadata_fields(manifest.metadata)),
        "timestamp": manifest.timestamp,
        "txns": dict(manifest.txns),
        "recentCommits": recent_commits_field(manifest.recent),
        "columns": manifest.columns,
        "typed": manifest.recipe.typed,
        "rebuilt": dict(manifest.recipe.rebuilt),
        "storedSchema": manifest.stored_schema,
        "truncation": manifest.truncation,
        "index": _encode_index(manifest.index),
    }
    if len(manifest.dead):
        document["dead"] = _encode_index(pa.table({"row": manifest.dead}))
    body = msgspec.json.encode(document)[:-1]
    return body + _CHECKSUM_FIELD + format_checksum(body).encode() + _END


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def decode_manifest(data: bytes, version: int, file: str) -> CheckpointManifest | None:
    """Decode and verify a manifest; None for one of another program, which has no checksums.

    Raises `LogCorrupt` if it is damaged, or belongs to another version.
    """
    try:
        header = _HEADER_DECODER.decode(data)
    except _BROKEN:
        raise LogCorrupt(
            "the manifest is not JSON.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        ) from None
    if header.version is not None and header.version != version:
        raise LogCorrupt(
            f"it is the manifest of version {header.version}.",
            next=DAMAGED_CHECKPOINT_NEXT,
            file=file,
        )
    body, field_start, rest = data.rpartition(_CHECKSUM_FIELD)
    if not field_start or not rest.startswith(CHECKSUM_PREFIX.encode()):
        if header.format is not None:  # only ours have it
            raise LogCorrupt(
                "the manifest is incomplete.",
                next=DAMAGED_CHECKPOINT_NEXT,
                file=file,
                code="checkpoint-partial",
            )
        return None
    if rest != format_checksum(body).encode() + _END:
        raise LogCorrupt(
            "the manifest was changed after it was written: its checksum does not match.",
            next=DAMAGED_CHECKPOINT_NEXT,
            file=file,
        )
    try:
        return _to_manifest(_DECODER.decode(data), version, file)
    except _BROKEN as error:
        why = str(error).partition("\n")[0]
        raise LogCorrupt(
            f"the manifest cannot be read: {why}.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        ) from None


def _to_manifest(document: _Document, version: int, file: str) -> CheckpointManifest:
    shared = document.format == _SHARED_FORMAT
    for part in document.parts:
        parsed = parse_parquet_part(part.name)  # a name may otherwise lead anywhere
        if parsed is None or not (
            parsed[0] == version or (shared and parsed[0] < version and parsed[1])
        ):
            raise LogCorrupt(
                f"the manifest names {part.name!r} as a part.",
                next=DAMAGED_CHECKPOINT_NEXT,
                file=file,
            )
    index = _decode_index(document.index)
    dead = pa.nulls(0, pa.int64())
    if document.dead is not None:
        dead = _decode_index(document.dead)["row"].combine_chunks()
    manifest = CheckpointManifest(
        version,
        parse_protocol(document.protocol),
        parse_metadata(document.metaData),
        document.numFiles,
        tuple(document.parts),
        tuple(document.columns),
        RebuildRecipe(tuple(document.typed), document.rebuilt),
        index,
        document.timestamp,
        document.txns,
        _recent_commits(document, version),
        dead,
        document.storedSchema,
        document.truncation,
    )
    row_groups = sum(part.rowGroups for part in document.parts)
    if (
        document.format not in (_FORMAT, _SHARED_FORMAT)
        or row_groups != index.num_rows
        or not _dead_rows_agree(manifest)
    ):
        raise LogCorrupt(
            "the manifest contradicts itself.", next=DAMAGED_CHECKPOINT_NEXT, file=file
        )
    return manifest


def _dead_rows_agree(manifest: CheckpointManifest) -> bool:
    """Whether the dead rows are ascending rows of the parts, and the number of files fits them."""
    dead = manifest.dead
    if not len(dead):
        return not manifest.shared_parts or manifest.num_files == manifest.count_live(None)
    if dead.type != pa.int64() or dead.null_count:
        return False
    rows, num_rows = to_numpy(dead), int(manifest.group_starts()[-1])
    ascending = bool((rows[1:] > rows[:-1]).all()) and rows[0] >= 0 and rows[-1] < num_rows
    return ascending and manifest.num_files == num_rows - len(rows)


def _recent_commits(document: _Document, version: int) -> RecentCommits:
    """Return the ids of the last commits; unknown if they do not end at the checkpoint."""
    first, ids = document.recentCommits or (version + 1, [])
    recent = RecentCommits(first, tuple(ids))
    return recent if recent.last == version else no_recent_commits(version)


def _encode_index(index: pa.Table) -> str:
    """Encode the index as an Arrow IPC stream in base64."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, index.schema, options=options) as out:
        out.write_table(index)
    return base64.b64encode(sink.getvalue()).decode()


def _decode_index(text: str) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text, validate=True))) as source:
        return source.read_all().combine_chunks()


def with_chunk_checksums(index: pa.Table, sums: Sequence[int], columns: int) -> pa.Table:
    """Add the CRC-32 of all column chunks, given row group by row group, to an index."""
    values = pa.Array.from_buffers(pa.uint32(), len(sums), [None, _uint32_buffer(sums)])
    lists = pa.FixedSizeListArray.from_arrays(values, columns)
    return index.append_column("sums", lists)


def _uint32_buffer(sums: Sequence[int]) -> pa.Buffer:
    """Convert without `pa.array`, which imports pandas when it is given a list."""
    return pa.py_buffer(array("I", sums))


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
        """Read columns of the live rows of some row groups, by default of all.

        Unknown columns are left out. Raises `LogCorrupt` naming the part if it is missing, damaged
        or not what the manifest says.
        """
        table = self.read_with_dead(groups, names)
        live = self.manifest.live_mask(groups)
        if live is None:
            return table
        if len(live) != table.num_rows:
            what = f"the checkpoint has {table.num_rows} rows instead of {len(live)}."
            raise LogCorrupt(what, next=DAMAGED_CHECKPOINT_NEXT, version=self.manifest.version)
        return table.filter(live)

    def read_with_dead(self, groups: Sequence[int] | None, names: Iterable[str]) -> pa.Table:
        """Read columns of all rows of some row groups, as `read` does of the live ones."""
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
        """Read and verify a whole part, with its dead rows.

        Raises `LogCorrupt` if it is not what was written.
        """
        return self._read_part(part, 0, None, list(range(len(self.manifest.columns))))

    def groups_of(self, part: CheckpointPart) -> range:
        """Return the numbers of a part's row groups."""
        first = 0
        for other in self.manifest.parts:
            if other.name == part.name:
                break
            first += other.rowGroups
        return range(first, first + part.rowGroups)

    def read_part(self, part: CheckpointPart) -> pa.Table:
        """Read and verify the live rows of a part. Raises `LogCorrupt` if it is damaged."""
        table = self.check(part)
        live = self.manifest.live_mask(self.groups_of(part))
        if live is not None and len(live) != table.num_rows:
            what = f"it has {table.num_rows} rows instead of {len(live)}."
            raise LogCorrupt(what, next=DAMAGED_CHECKPOINT_NEXT, file=self.key(part))
        return table if live is None else table.filter(live)

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


def read_metadata(data: pa.Buffer) -> Any:
    """Return the metadata of a Parquet file."""
    return _reader(data, None).metadata


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

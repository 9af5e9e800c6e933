"""The layout of a split: inner files back to back, their directory in a footer. Pure.

A split is one object that bundles the files of a tantivy index:

    inner files | META | u32 length of META | HOTCACHE | u32 length of HOTCACHE

META is a magic number, a version and a JSON directory of the inner files by absolute offsets. The
hot cache holds copies of slices for another program and is not needed. Nothing in a split is
trusted: names, offsets, lengths and checksums are verified before a byte is used.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from arrowlog.errors import DataFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

META_FILE = "meta.json"
# Its presence marks an index over Parquet files, which holds no rows of its own.
_COMPANION_MANIFEST = "_parquet_manifest.json"
_COMPANION_FIELD_PREFIX = "__pq_"

_MAGIC = 403_881_646
_BUNDLE_VERSION = 1
_HEADER = struct.Struct("<II")  # magic, version; and, at the end of inner files, length, magic
_LENGTH = struct.Struct("<I")
# The directory of a split with one segment has about 600 bytes. One request of this size reads it
# without its end being known.
_FOOTER_GUESS_BYTES = 1 << 16
# A directory has nine files per segment; this bounds what a damaged length makes a reader fetch.
_FOOTER_MAX_BYTES = 1 << 26
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}|\.managed\.json")
_SEGMENT_ID = re.compile(r"[0-9a-f]{32}")

_FILE_MAGIC = 1337
_FILE_FOOTER_MAX_BYTES = 1 << 16
_CHECKED_BYTES = 1 << 20  # of a file at a time, when its checksum is verified
# The format versions of tantivy's segment files that were read in tests.
INDEX_FORMATS = (6, 7)


class ByteRange(NamedTuple):
    """A half-open range of bytes in the split."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ByteView:
    """A range of bytes that are read when it is sliced. `read(start, stop)` returns a range.

    Files are read, not mapped: a mapped file that is cut off or unreachable ends the process, while
    a failed read is an error.
    """

    read: Callable[[int, int], bytes]
    start: int
    end: int

    @classmethod
    def of(cls, data: bytes) -> ByteView:
        """A view of bytes in memory."""
        return cls(lambda start, stop: data[start:stop], 0, len(data))

    def __len__(self) -> int:
        """The number of bytes."""
        return self.end - self.start

    def __getitem__(self, item: slice) -> bytes:
        """Read a range, given as a slice without a step."""
        start, stop, _ = item.indices(len(self))
        return self.read(self.start + start, self.start + stop) if stop > start else b""

    def part(self, start: int, stop: int) -> ByteView:
        """A view of a part, of which nothing is read."""
        return ByteView(self.read, self.start + start, self.start + stop)


class SplitField(NamedTuple):
    """A field of the index: `kind` is tantivy's name of its type, `number` its position."""

    number: int
    name: str
    kind: str
    stored: bool
    fast: bool
    indexed: bool
    tokenizer: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of the index: `max_doc` documents, of which `num_deleted` are deleted."""

    id: str
    max_doc: int
    num_deleted: int
    delete_opstamp: int | None

    def file_name(self, extension: str) -> str:
        """The name of a file of this segment."""
        return f"{self.id}.{extension}"

    @property
    def delete_file(self) -> str | None:
        """The name of the file that marks the deleted documents; None if none are."""
        return None if self.delete_opstamp is None else f"{self.id}.{self.delete_opstamp}.del"


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """The content of `meta.json`: the segments and the fields; `document` is all of it."""

    segments: tuple[Segment, ...]
    fields: tuple[SplitField, ...]
    document: Mapping[str, Any]

    @property
    def num_docs(self) -> int:
        """The number of documents that are not deleted."""
        return sum(segment.max_doc - segment.num_deleted for segment in self.segments)

    def field(self, name: str) -> SplitField | None:
        """The field of a name; None if the split has no such field."""
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The directory of a split: the range of every inner file by name."""

    key: str
    files: Mapping[str, ByteRange]
    footer_start: int


def damaged(key: str, what: str) -> DataFileError:
    """Return the error for a split whose bytes contradict themselves."""
    return DataFileError(
        f"The split is damaged: {what}.",
        next="Restore the file from a backup, or remove it from the table with `table.remove`.",
        file=key,
    )


def unsupported(key: str, what: str, advice: str) -> DataFileError:
    """Return the error for a split of a kind that cannot be read."""
    return DataFileError(what, next=advice, file=key)


def read_bundle(
    read: Callable[[int, int], bytes],
    size: int,
    key: str,
    footer_start: int | None = None,
) -> Bundle:
    """Read the directory of a split; `read(start, stop)` returns the bytes of a range.

    `footer_start` is the offset in the log; without it, the lengths at the end of the file lead to
    the directory. Raises DataFileError if the directory is damaged or of another version.
    """
    if footer_start is None:
        footer_start = _find_footer(read, size, key)
    if not 0 <= footer_start <= size - 16:
        raise damaged(key, f"its directory would start at byte {footer_start} of {size}")
    stop = min(footer_start + _FOOTER_GUESS_BYTES, size)
    data = read(footer_start, stop)
    try:
        return _parse_directory(data, footer_start, key)
    except _Incomplete:
        pass
    data = read(footer_start, min(footer_start + _FOOTER_MAX_BYTES, size))
    try:
        return _parse_directory(data, footer_start, key)
    except _Incomplete:
        raise damaged(key, "its directory is not JSON, or is cut off") from None


class _Incomplete(Exception):
    """The bytes end before the directory does."""


def _find_footer(read: Callable[[int, int], bytes], size: int, key: str) -> int:
    if size < 16:
        raise damaged(key, f"it has only {size} bytes")
    (hotcache,) = _LENGTH.unpack(read(size - 4, size))
    meta_end = size - 4 - hotcache - 4
    if meta_end < 8:
        raise damaged(key, f"the length of its hot cache, {hotcache}, exceeds the file")
    (length,) = _LENGTH.unpack(read(meta_end, meta_end + 4))
    if length > meta_end:
        raise damaged(key, f"the length of its directory, {length}, exceeds the file")
    return int(meta_end - length)


def _parse_directory(data: bytes, footer_start: int, key: str) -> Bundle:
    """Parse the directory at the start of `data`, and check the length that follows it."""
    if len(data) < 8:
        raise damaged(key, "its directory is cut off")
    magic, version = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise damaged(key, f"no directory of a split starts at byte {footer_start}")
    if version != _BUNDLE_VERSION:
        raise unsupported(
            key,
            f"The split has bundle version {version}; version {_BUNDLE_VERSION} is supported.",
            "Update arrowlog, or read the table with IndexTables.",
        )
    try:
        text = data[8:].decode("utf-8", "surrogateescape")
        directory, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        raise _Incomplete from None
    length = 8 + len(text[:end].encode("utf-8", "surrogateescape"))
    if len(data) < length + 4:
        raise _Incomplete
    (declared,) = _LENGTH.unpack_from(data, length)
    if declared != length:
        raise damaged(key, f"its directory has {length} bytes, not {declared} as it declares")
    return Bundle(key, _check_ranges(directory, footer_start, key), footer_start)


def _check_ranges(directory: Any, footer_start: int, key: str) -> dict[str, ByteRange]:
    """Check names and ranges: no path, no overlap, nothing outside the payload."""
    files = directory.get("files") if isinstance(directory, dict) else None
    if not isinstance(files, dict) or not files:
        raise damaged(key, "its directory lists no files")
    ranges: dict[str, ByteRange] = {}
    for name, item in files.items():
        if not _NAME.fullmatch(name) or ".." in name:
            raise damaged(key, f"{name[:80]!r} is not a name of an inner file")
        start = item.get("start") if isinstance(item, dict) else None
        end = item.get("end") if isinstance(item, dict) else None
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= footer_start:
            raise damaged(key, f"the range of {name} lies outside the file")
        ranges[name] = ByteRange(start, end)
    last_end, last_name = 0, ""
    for name, found in sorted(ranges.items(), key=lambda item: item[1]):
        if found.start < last_end:
            raise damaged(key, f"the ranges of {last_name} and {name} overlap")
        last_end, last_name = found.end, name
    if META_FILE not in ranges:
        raise damaged(key, f"it has no {META_FILE}")
    return ranges


def parse_index_meta(data: bytes, bundle: Bundle) -> IndexMeta:
    """Parse `meta.json`, and check that the split has the files of every segment.

    Raises DataFileError if it is damaged, or if the split is a companion of Parquet files.
    """
    key = bundle.key
    try:
        document = json.loads(data)
        segments = tuple(_parse_segment(item) for item in document["segments"])
        fields = tuple(_parse_field(item, n) for n, item in enumerate(document["schema"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(key, f"its {META_FILE} cannot be parsed") from error
    if _COMPANION_MANIFEST in bundle.files or any(
        field.name.startswith(_COMPANION_FIELD_PREFIX) for field in fields
    ):
        raise companion_error(key)
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise damaged(key, "two of its fields have the same name")
    if len({segment.id for segment in segments}) != len(segments):
        raise damaged(key, "two of its segments have the same id")
    for segment in segments:
        for name in (segment.file_name("store"), segment.file_name("fast"), segment.delete_file):
            if name is not None and name not in bundle.files:
                raise damaged(key, f"it lacks the file {name}")
    return IndexMeta(segments, fields, document)


def companion_error(key: str) -> DataFileError:
    """Return the error for a companion split."""
    return unsupported(
        key,
        "The split is a companion index of Parquet files and holds no rows of its own.",
        "Read the Parquet table that it was built from.",
    )


def _parse_segment(item: Mapping[str, Any]) -> Segment:
    identifier = item["segment_id"].replace("-", "")
    max_doc, deletes = item["max_doc"], item.get("deletes")
    deleted = 0 if deletes is None else deletes["num_deleted_docs"]
    opstamp = None if deletes is None else deletes["opstamp"]
    if not _SEGMENT_ID.fullmatch(identifier):
        raise ValueError("not a segment id")
    if type(max_doc) is not int or type(deleted) is not int or not 0 <= deleted <= max_doc:
        raise ValueError("not a number of documents")
    if opstamp is not None and type(opstamp) is not int:
        raise ValueError("not an opstamp")
    if max_doc >= 1 << 31:  # tantivy's own limit
        raise ValueError("too many documents")
    return Segment(identifier, max_doc, deleted, opstamp)


def _parse_field(item: Mapping[str, Any], number: int) -> SplitField:
    options = item["options"]
    name, kind = item["name"], item["type"]
    if not isinstance(name, str) or not isinstance(kind, str):
        raise ValueError("not a field")
    # Text and JSON fields describe how they are indexed; other fields have a flag.
    indexing = options.get("indexing")
    tokenizer = indexing.get("tokenizer", "default") if isinstance(indexing, dict) else ""
    return SplitField(
        number,
        name,
        kind,
        stored=options.get("stored") is True,
        # A text field names the tokenizer of its fast field instead of a flag.
        fast=options.get("fast") not in (None, False),
        indexed=isinstance(indexing, dict) or options.get("indexed") is True,
        tokenizer=str(tokenizer),
    )


def check_inner_file(data: ByteView, name: str, key: str, *, checksum: bool = True) -> ByteView:
    """Verify the footer and the checksum of a segment file, and return its body.

    `checksum=False` is for a file whose checksum was verified before. Raises DataFileError if they
    do not match, or if the index has an unsupported format.
    """
    if len(data) < 8:
        raise damaged(key, f"{name} is cut off")
    length, magic = _HEADER.unpack(data[-8:])
    if magic != _FILE_MAGIC or length > min(_FILE_FOOTER_MAX_BYTES, len(data) - 8):
        raise damaged(key, f"{name} does not end as a segment file does")
    body = data.part(0, len(data) - 8 - length)
    try:
        footer = json.loads(data[len(body) : -8])
        format_version, crc = footer["version"]["index_format_version"], footer["crc"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(key, f"the footer of {name} cannot be parsed") from error
    if format_version not in INDEX_FORMATS:
        raise unsupported(
            key,
            f"The split has index format {format_version}; formats"
            f" {INDEX_FORMATS[0]} to {INDEX_FORMATS[-1]} are supported.",
            "Update arrowlog, or read the table with IndexTables.",
        )
    if checksum and _crc32(body) != crc:
        raise damaged(key, f"the checksum of {name} does not match")
    return body


def _crc32(data: ByteView) -> int:
    """The checksum of a view, read piece by piece."""
    crc = 0
    for start in range(0, len(data), _CHECKED_BYTES):
        crc = zlib.crc32(data[start : start + _CHECKED_BYTES], crc)
    return crc


def seal_inner_file(body: bytes) -> bytes:
    """Append the footer that tantivy expects to the body of a segment file."""
    footer = json.dumps(
        {
            "version": {"major": 0, "minor": 0, "patch": 0, "index_format_version": 7},
            "crc": zlib.crc32(body),
        },
        separators=(",", ":"),
    ).encode()
    return body + footer + _HEADER.pack(len(footer), _FILE_MAGIC)

"""Files of a Delta table: their paths, their keys and their deletion vectors. Pure.

A path in the log is URI-encoded once, and relative to the table or absolute. The key of a file is
its path and, where there is one, its deletion vector.

A deletion vector says which rows of a data file are deleted, by position. A descriptor in the log
says where its bytes are: inline in the log as Z85 text, or in a file that may hold many of them.
The bytes are a magic number and a 64-bit roaring bitmap in the portable format. Everything that can
be checked is checked: a deletion vector that is not applied would show deleted rows.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import data_span, make_array, null_scalar
from arrowlog.errors import LogCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

# Separates path and deletion vector in a key. It cannot occur in the name of a file.
KEY_SEPARATOR = "\x00"
_FILE_SCHEME = r"^file:/+"


def decode_path(path: str) -> str:
    """Decode a path of the log, once; a `file:` URI becomes an absolute path.

    >>> decode_path("a%20b.parquet"), decode_path("%252521"), decode_path("a+b")
    ('a b.parquet', '%2521', 'a+b')
    >>> decode_path("file:/x/y"), decode_path("file:///x/y"), decode_path("s3://b/y")
    ('/x/y', '/x/y', 's3://b/y')
    """
    decoded = unquote(path)
    if decoded.startswith("file:/"):
        return "/" + decoded[len("file:") :].lstrip("/")
    return decoded


def decode_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a column of paths. Only paths that contain `%` or `file:` cost more than a search."""
    encoded = pc.match_substring(paths, "%") if _contains_percent(paths) else None
    if encoded is not None:
        rows = paths.filter(encoded)
        decoded = make_array([unquote(path) for path in rows.to_pylist()], pa.string())
        mask = pc.fill_null(encoded, make_array([False], pa.bool_())[0])
        paths = pa.chunked_array(
            [pc.replace_with_mask(paths.combine_chunks(), mask.combine_chunks(), decoded)]
        )
    if pc.any(pc.starts_with(paths, "file:/")).as_py():
        paths = pc.replace_substring_regex(paths, _FILE_SCHEME, "/")
    return paths


def _contains_percent(texts: pa.ChunkedArray) -> bool:
    """Whether any text contains `%`: one pass over all bytes, a tenth of a search in each text."""
    percent = make_array([ord("%")], pa.uint8())[0]
    for chunk in texts.chunks:
        if not len(chunk):
            continue
        start, stop = data_span(chunk)
        buffers = [None, chunk.buffers()[2]]
        octets = pa.Array.from_buffers(pa.uint8(), stop - start, buffers, offset=start)
        if pc.min(pc.bit_wise_xor(octets, percent)).as_py() == 0:
            return True
    return False


def deletion_vector_ids(
    storage_type: pa.ChunkedArray, path_or_inline: pa.ChunkedArray, offset: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return the unique ids of deletion vectors; null where a file has none.

    `offset` is text or integers, null where the descriptor has none.
    """
    text = offset if pa.types.is_string(offset.type) else pc.cast(offset, pa.string())
    at, none, empty = make_array(["@", "", ""], pa.string())
    suffix = pc.fill_null(pc.binary_join_element_wise(at, text, empty), none)
    return pc.binary_join_element_wise(storage_type, path_or_inline, suffix, empty)


def file_keys(paths: pa.ChunkedArray, vector_ids: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Return the keys of files: the decoded path and, where there is one, the deletion vector.

    One commit may remove a file with one deletion vector and add it with another. With the path
    alone as the key, the order of the two lines would decide whether the file is live.
    """
    if vector_ids is None or vector_ids.null_count == len(vector_ids):
        return paths
    separator = make_array([KEY_SEPARATOR], pa.string())[0]
    return pc.coalesce(pc.binary_join_element_wise(paths, vector_ids, separator), paths)


def sidecar_name(path: str) -> str:
    """Return the name of a sidecar in `_sidecars/`: the log has its name or its whole path.

    >>> sidecar_name("file:/t/_delta_log/_sidecars/a%20b.parquet")
    'a b.parquet'
    """
    return unquote(path.rsplit("/", 1)[-1])


def paths_of_keys(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the paths that are part of keys."""
    if not pc.any(pc.match_substring(keys, KEY_SEPARATOR)).as_py():
        return keys
    return pc.replace_substring_regex(keys, f"(?s){KEY_SEPARATOR}.*", "")


_MAGIC = 1681511377
# Delta's reader bounds the high 32 bits of a row number by 2^31 - 1.
_HIGH_KEY_MAX = (1 << 31) - 1
_COOKIE_WITH_RUNS, _COOKIE_WITHOUT_RUNS = 12347, 12346
# With fewer containers than this, a bitmap with runs has no table of offsets.
_OFFSETS_MIN_CONTAINERS = 4
_ARRAY_CARDINALITY_MAX = 4096
_BITMAP_BYTES = 8192
_CONTAINERS_MAX = 1 << 16
UUID_CHARS = 20  # of a UUID in Z85
_LENGTH_BYTES = _CRC_BYTES = 4
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES = {char: value for value, char in enumerate(_Z85)}


# The columns of a deletion vector's descriptor in a table of adds, and their types.
VECTOR_COLUMNS: dict[str, pa.DataType] = {
    "storageType": pa.string(),
    "pathOrInlineDv": pa.string(),
    "offset": pa.int64(),
    "sizeInBytes": pa.int64(),
    "cardinality": pa.int64(),
}
_WIDE_BOUNDS = r'"tightBounds"\s*:\s*false'


class InvalidDeletionVector(ValueError):
    """A deletion vector or its descriptor is malformed; the text says how."""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """A descriptor: where a deletion vector is stored, and how many rows it deletes.

    `storage_type` is `u` (a file of the table, by UUID), `p` (a file, by its path) or `i` (inline).
    `offset` is None if the log has none, which is not the same key as 0.
    """

    storage_type: str
    path_or_inline: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @property
    def unique_id(self) -> str:
        """The id that is part of the key of a data file.

        >>> DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 34, 2, 1).unique_id
        'uab^-aqEH.-t@S}K{vb[*k^@1'
        """
        suffix = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline}{suffix}"

    @property
    def file(self) -> str | None:
        """The path of the file, relative to the table or absolute; None if it is inline.

        Raises `InvalidDeletionVector` if the descriptor names no file.
        """
        if self.storage_type == "i":
            return None
        if self.storage_type == "p":
            return decode_path(self.path_or_inline)
        if self.storage_type != "u":
            raise InvalidDeletionVector(f"the storage type {self.storage_type!r} is unknown")
        if len(self.path_or_inline) < UUID_CHARS:
            raise InvalidDeletionVector(f"{self.path_or_inline!r} is too short for a file id")
        folder = self.path_or_inline[:-UUID_CHARS]
        uuid = UUID(bytes=decode_z85(self.path_or_inline[-UUID_CHARS:]))
        return f"{folder}{'/' if folder else ''}deletion_vector_{uuid}.bin"

    @property
    def file_range(self) -> tuple[int, int]:
        """The range of bytes in the file: length, bitmap and checksum."""
        start = self.offset or 0
        return start, start + _LENGTH_BYTES + self.size_in_bytes + _CRC_BYTES

    def decode_inline(self) -> np.ndarray:
        """Return the deleted row numbers of an inline deletion vector, ascending."""
        data = decode_z85(self.path_or_inline)
        if len(data) < self.size_in_bytes:
            raise InvalidDeletionVector(f"it has {len(data)} bytes instead of {self.size_in_bytes}")
        return self._decode(data[: self.size_in_bytes])

    def decode_range(self, data: bytes) -> np.ndarray:
        """Return the deleted row numbers, ascending; `data` is `file_range` of the file."""
        start, stop = self.file_range
        if len(data) != stop - start:
            raise InvalidDeletionVector(
                f"the file ends {stop - start - len(data)} bytes before the deletion vector does"
            )
        (size,) = struct.unpack_from(">i", data, 0)
        if size != self.size_in_bytes:
            raise InvalidDeletionVector(
                f"the file has a deletion vector of {size} bytes at offset {start}, the log says"
                f" {self.size_in_bytes}"
            )
        bitmap = data[_LENGTH_BYTES:-_CRC_BYTES]
        (expected,) = struct.unpack_from(">I", data, len(data) - _CRC_BYTES)
        if zlib.crc32(bitmap) != expected:
            raise InvalidDeletionVector("its checksum does not match: it is damaged")
        return self._decode(bitmap)

    def _decode(self, data: bytes) -> np.ndarray:
        rows = decode_bitmap_array(data)
        if len(rows) != self.cardinality:
            raise InvalidDeletionVector(
                f"it deletes {len(rows)} rows, the log says {self.cardinality}"
            )
        return rows


def decode_z85(text: str) -> bytes:
    """Decode Z85: five characters for four bytes.

    >>> decode_z85("HelloWorld").hex()
    '864fd26fb559f75b'
    """
    if len(text) % 5:
        raise InvalidDeletionVector(f"Z85 text of {len(text)} characters is incomplete")
    octets = bytearray()
    for start in range(0, len(text), 5):
        value = 0
        for char in text[start : start + 5]:
            digit = _Z85_VALUES.get(char)
            if digit is None:
                raise InvalidDeletionVector(f"{char!r} is not a character of Z85")
            value = value * 85 + digit
        if value >= 1 << 32:
            raise InvalidDeletionVector(f"{text[start : start + 5]!r} is more than 32 bits")
        octets += value.to_bytes(4, "big")
    return bytes(octets)


def decode_bitmap_array(data: bytes) -> np.ndarray:
    """Return the members of a serialized bitmap: magic number, then 64-bit portable roaring.

    Raises `InvalidDeletionVector` if the bytes are anything else.
    """
    import numpy as np

    try:
        (magic,) = struct.unpack_from("<i", data, 0)
        if magic != _MAGIC:
            raise InvalidDeletionVector(f"it has the format {magic} instead of {_MAGIC}")
        (count,) = struct.unpack_from("<Q", data, 4)
        if count > len(data):  # each bitmap takes several bytes
            raise InvalidDeletionVector("it declares more bitmaps than it can have")
        position, previous, parts = 12, -1, []
        for _ in range(count):
            (high,) = struct.unpack_from("<I", data, position)
            if not previous < high <= _HIGH_KEY_MAX:
                raise InvalidDeletionVector("its bitmaps are not in order")
            rows, position = _decode_bitmap(data, position + 4)
            parts.append(rows + (high << 32))
            previous = high
    except (struct.error, ValueError) as error:
        if isinstance(error, InvalidDeletionVector):
            raise
        raise InvalidDeletionVector("it ends too early") from None
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _decode_bitmap(data: bytes, position: int) -> tuple[np.ndarray, int]:
    """Return the members of a 32-bit portable roaring bitmap, and the position after it."""
    import numpy as np

    (cookie,) = struct.unpack_from("<I", data, position)
    position += 4
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    if has_runs:
        count = (cookie >> 16) + 1
        run_flags = np.frombuffer(data, np.uint8, (count + 7) // 8, position)
        is_run = np.unpackbits(run_flags, bitorder="little")
        position += len(run_flags)
    elif cookie == _COOKIE_WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, position)
        position += 4
        if count > _CONTAINERS_MAX:
            raise InvalidDeletionVector(f"a bitmap declares {count} containers")
        is_run = np.zeros(count, np.uint8)
    else:
        raise InvalidDeletionVector(f"a bitmap has the unknown cookie {cookie}")
    header = np.frombuffer(data, "<u2", 2 * count, position).astype(np.int64)
    keys, cardinalities = header[::2], header[1::2] + 1
    if np.any(np.diff(keys) <= 0):
        raise InvalidDeletionVector("the containers of a bitmap are not in order")
    position += 4 * count
    if not has_runs or count >= _OFFSETS_MIN_CONTAINERS:
        position += 4 * count  # where each container starts: they follow each other
    parts = []
    for key, cardinality, run in zip(
        keys.tolist(), cardinalities.tolist(), is_run.tolist(), strict=False
    ):
        members, position = _decode_container(data, position, cardinality, run=bool(run))
        parts.append(members + (key << 16))
    return (np.concatenate(parts) if parts else np.zeros(0, np.int64)), position


def _decode_container(
    data: bytes, position: int, cardinality: int, *, run: bool
) -> tuple[np.ndarray, int]:
    """Return the members of a container, 16 bits each, and the position after it."""
    import numpy as np

    if run:
        (count,) = struct.unpack_from("<H", data, position)
        pairs = np.frombuffer(data, "<u2", 2 * count, position + 2).astype(np.int64)
        members = _expand_runs(pairs[::2], pairs[1::2] + 1)
        position += 2 + 4 * count
    elif cardinality <= _ARRAY_CARDINALITY_MAX:
        members = np.frombuffer(data, "<u2", cardinality, position).astype(np.int64)
        if np.any(np.diff(members) <= 0):
            raise InvalidDeletionVector("the values of a container are not in order")
        position += 2 * cardinality
    else:
        bits = np.frombuffer(data, np.uint8, _BITMAP_BYTES, position)
        members = np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(np.int64)
        position += _BITMAP_BYTES
    if len(members) != cardinality:
        raise InvalidDeletionVector(
            f"a container has {len(members)} values instead of {cardinality}"
        )
    return members, position


def _expand_runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the members of runs; they must be ascending, disjoint and below 2^16."""
    import numpy as np

    stops = starts + lengths
    if np.any(starts[1:] < stops[:-1]) or np.any(stops > 1 << 16):
        raise InvalidDeletionVector("the runs of a container are not in order")
    firsts = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return firsts + np.arange(len(firsts), dtype=np.int64)


class _Descriptor(msgspec.Struct, gc=False):
    """A descriptor as it is in the log."""

    storageType: str  # noqa: N815 -- the name on disk
    pathOrInlineDv: str  # noqa: N815
    sizeInBytes: int  # noqa: N815
    cardinality: int
    offset: int | None = None


_DESCRIPTOR = msgspec.json.Decoder(_Descriptor)
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def subtract_deleted(records: pa.ChunkedArray, deleted: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Return how many rows are left; null where there would be less than none."""
    none = make_array([0], pa.int64())[0]
    if deleted is not None:
        records = pc.subtract(records, pc.fill_null(deleted, none))
    possible = pc.greater_equal(records, none)
    if pc.all(possible).as_py() is not False:
        return records
    return pc.if_else(possible, records, null_scalar(records.type))


def with_vector_columns(actions: pa.Table) -> pa.Table:
    """Replace the JSON text of deletion vectors by columns `deletionVector.<field>`.

    Raises `LogCorrupt` for a descriptor that is not valid: the rows of its file are unknown.
    """
    if "deletionVector" not in actions.column_names:
        return actions
    texts = actions["deletionVector"]
    actions = actions.drop_columns(["deletionVector"])
    if texts.null_count == len(texts):
        return actions
    vectors = [_parse_descriptor(text) for text in texts.to_pylist()]
    for name, kind in VECTOR_COLUMNS.items():
        values = [None if vector is None else getattr(vector, name) for vector in vectors]
        column = f"deletionVector.{name}"
        actions = actions.append_column(column, pa.chunked_array([make_array(values, kind)]))
    return actions


def _parse_descriptor(text: str | None) -> _Descriptor | None:
    if text is None:
        return None
    try:
        return _DESCRIPTOR.decode(text)
    except _INVALID as error:
        raise LogCorrupt(
            f"a deletion vector has an invalid descriptor ({error}), so the rows of its file are"
            " unknown.",
            next="Restore the commit from a backup, or read an earlier version.",
        ) from None


def vector_paths(adds: pa.Table) -> Sequence[str]:
    """Return the paths of deletion vectors that are not directly in the table's folder."""
    if "deletionVector.storageType" not in adds.column_names:
        return ()
    vectors = adds.select(["deletionVector.storageType", "deletionVector.pathOrInlineDv"])
    vectors = vectors.filter(pc.is_valid(vectors.column(0)))
    paths = [
        decode_path(text) if kind == "p" else f"{text[:-UUID_CHARS]}/"
        for kind, text in zip(*(column.to_pylist() for column in vectors.columns), strict=True)
        if kind == "p" or (kind == "u" and len(text) > UUID_CHARS)
    ]
    return list(dict.fromkeys(paths))


def find_wide_bounds(adds: pa.Table) -> pa.ChunkedArray | None:
    """Return which files have a deletion vector, or statistics that say so; None for none."""
    masks = []
    if "deletionVector.storageType" in adds.column_names:
        masks.append(pc.is_valid(adds["deletionVector.storageType"]))
    if "stats" in adds.column_names:
        wide = pc.match_substring_regex(adds["stats"], _WIDE_BOUNDS)
        masks.append(pc.fill_null(wide, make_array([False], pa.bool_())[0]))
    inexact = reduce(pc.or_, masks) if masks else None
    return inexact if inexact is not None and pc.any(inexact).as_py() else None

"""Encode adds as the manifests of a table state, column by column. Pure.

Every field becomes pieces of bytes for all entries at once: constants, varints, and texts with
their lengths. Arrow joins the pieces entry by entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, concat_bytes, data_span, make_array, make_scalar
from arrowlog.formats import encode_bytes, encode_long, write_container
from arrowlog.formats.indextables.avro_state import (
    FILE_ENTRY_FIELDS,
    FILE_ENTRY_SCHEMA,
    compute_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrowlog.formats.indextables.avro_state import PartitionBounds

_BINARY = pa.binary()
_ENTRIES_PER_STEP = 1 << 14  # so that the pieces of a step fit the cache
_BLOCK_BYTES = 1 << 17  # of uncompressed entries, about; Java's writer makes blocks of 64 kB
_VARINT_BYTES = 10
_U64 = np.uint64
_INT32_MAX = (1 << 31) - 1
_NULL, _VALUE, _END = b"\x00", b"\x02", b"\x00"  # branches of a union with null, end of a map

Array = np.ndarray[Any, Any]
Pieces = list[Any]  # bytes that are the same in all entries, or a binary array


def encode_manifest(
    adds: pa.Table,
    *,
    version: int,
    timestamp: int,
    sync: bytes,
    path: str = "key",
    codec: str = "zstandard",
) -> bytes:
    """Encode adds as a manifest: a container of entries with all fields.

    Args:
        adds: adds as decoded; maps are columns `field.key`, or JSON text where `raw` is set.
        version: `addedAtVersion` of adds that have none.
        timestamp: `addedAtTimestamp` of adds that have none, in milliseconds.
        sync: the sync marker, 16 random bytes.
        path: the column that holds the path to write, the file's `key` or the `path` as read.
        codec: the codec of the blocks.

    Raises:
        ValueError: a required field is null, or a number does not fit its field.
    """
    defaults = {"addedAtVersion": version, "addedAtTimestamp": timestamp}
    return write_container(FILE_ENTRY_SCHEMA, _blocks(adds, path, defaults), sync, codec)


def manifest_bounds(
    adds: pa.Table, partition_columns: Sequence[str]
) -> dict[str, PartitionBounds] | None:
    """Return the partition bounds of a manifest with these adds; None if no column has any.

    The partition values must be columns: see `flatten_map_columns`.
    """
    bounds = {}
    for name in partition_columns:
        column = f"partitionValues.{name}"
        if column in adds.column_names:
            found = compute_bounds(pc.unique(adds[column]).to_pylist())
            if found is not None:
                bounds[name] = found
    return bounds or None


def _blocks(
    adds: pa.Table, path: str, defaults: dict[str, int]
) -> Iterator[tuple[int, memoryview]]:
    """Yield the number of entries and the bytes of each block."""
    for at in range(0, adds.num_rows, _ENTRIES_PER_STEP):
        entries = _encode_entries(adds.slice(at, _ENTRIES_PER_STEP), path, defaults)
        start, stop = data_span(entries)
        per_block = max(1, _BLOCK_BYTES * len(entries) // max(1, stop - start))
        for first in range(0, len(entries), per_block):
            block = entries.slice(first, per_block)
            yield len(block), concat_bytes(block)


def _encode_entries(adds: pa.Table, path: str, defaults: dict[str, int]) -> pa.Array:
    """Return the encoded entry of each add."""
    pieces: Pieces = []
    for name, (_, kind) in FILE_ENTRY_FIELDS.items():
        source = path if name == "path" else name
        column = _one_chunk(adds[source]) if source in adds.column_names else None
        if column is not None and name in defaults:
            column = pc.fill_null(column, make_scalar(defaults[name], pa.int64()))
        if kind.startswith("map"):
            pieces += _encode_map(adds, name, column, nullable=kind.endswith("?"))
        elif column is None or column.null_count == len(column):
            pieces.append(_absent(name, kind, defaults))
        elif kind.endswith("?"):
            pieces += _ENCODERS[kind[:-1]](column, True)
        elif name in ("dataChange", "hasFooterOffsets"):
            pieces += _encode_booleans(
                pc.fill_null(column, make_scalar(name == "dataChange", pa.bool_()))
            )
        elif column.null_count:
            raise ValueError(f"{name} is null in an add")
        else:
            pieces += _ENCODERS[kind](column, False)
    return _join(pieces, adds.num_rows)


def _absent(name: str, kind: str, defaults: dict[str, int]) -> bytes:
    """Return the encoded default of a field."""
    if kind.endswith("?"):
        return _NULL
    if name in defaults:
        return encode_long(defaults[name])
    if kind == "boolean":
        return b"\x01" if name == "dataChange" else b"\x00"
    raise ValueError(f"{name} is null in an add")


def _join(pieces: Pieces, count: int) -> pa.Array:
    """Concatenate pieces entry by entry; null adds nothing."""
    merged: Pieces = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, bytes) for piece in merged):
        return pa.repeat(_scalar(b"".join(merged)), count)
    columns = [_scalar(piece) if isinstance(piece, bytes) else piece for piece in merged]
    return pc.binary_join_element_wise(
        *columns, _scalar(b""), null_handling="replace", null_replacement=b""
    )


def _scalar(octets: bytes) -> pa.Scalar:
    return make_scalar(octets, _BINARY)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # without chunks
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    return pc.cast(array, pa.string()) if pa.types.is_dictionary(array.type) else array


def _flags(array: pa.Array) -> Array:
    """Return booleans, or which values are there, as numpy bytes."""
    octets = pc.cast(array, pa.uint8())
    return np.frombuffer(octets.buffers()[1], np.uint8)[octets.offset : octets.offset + len(array)]


def _integers(array: pa.Array) -> Array:
    array = pc.fill_null(pc.cast(array, pa.int64()), make_scalar(0, pa.int64()))
    return np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array)]


def varint_array(values: Array, valid: Array | None = None, prefix: bytes = b"") -> pa.Array:
    """Encode integers as zigzag varints, each with `prefix` before it; empty where not valid."""
    bits = ((values << 1) ^ (values >> 63)).view(_U64)
    most = int(bits.max(initial=0)).bit_length()
    width = max(1, (most + 6) // 7)
    octets = np.empty((values.size, len(prefix) + width), np.uint8)
    octets[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    used = np.full(values.size, len(prefix) + 1, np.int32)
    for index in range(width):
        octet = (bits & _U64(0x7F)).astype(np.uint8)
        bits = bits >> _U64(7)
        more = bits != 0
        octets[:, len(prefix) + index] = octet | (more.view(np.uint8) << 7)
        used += more
    if valid is not None:
        used[valid == 0] = 0
    offsets = np.zeros(values.size + 1, np.int32)
    np.cumsum(used, out=offsets[1:])
    data = octets[np.arange(octets.shape[1], dtype=np.int32) < used[:, None]]
    return pa.Array.from_buffers(
        _BINARY, values.size, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _optional(encoded: pa.Array, valid: Array) -> pa.Array:
    """Return encoded values, and the branch of null where there is none."""
    present = pa.Array.from_buffers(
        pa.bool_(), valid.size, [None, pa.py_buffer(np.packbits(valid, bitorder="little"))]
    )
    return pc.if_else(present, encoded, _scalar(_NULL))


def _encode_integers(column: pa.Array, nullable: bool) -> Pieces:  # noqa: FBT001 -- by position
    values = _integers(column)
    if not nullable:
        return [varint_array(values)]
    if not column.null_count:
        return [varint_array(values, prefix=_VALUE)]
    valid = _flags(pc.is_valid(column))
    return [_optional(varint_array(values, valid, _VALUE), valid)]


def _encode_ints(column: pa.Array, nullable: bool) -> Pieces:  # noqa: FBT001
    most = pc.max(pc.abs(column)).as_py()
    if most is not None and most > _INT32_MAX:
        raise ValueError(f"{most} does not fit 32 bits")
    return _encode_integers(column, nullable)


def _encode_texts(column: pa.Array, nullable: bool) -> Pieces:  # noqa: FBT001
    return _text_pieces(column, _VALUE if nullable else b"", _NULL if nullable else b"")


def _text_pieces(column: pa.Array, prefix: bytes, null: bytes) -> Pieces:
    """Return the lengths, with `prefix` before them, and the texts; `null` stands for null."""
    lengths = _integers(pc.binary_length(column))
    texts = column.cast(_BINARY)
    if not column.null_count:
        return [varint_array(lengths, prefix=prefix), texts]
    valid = _flags(pc.is_valid(column))
    heads = varint_array(lengths, valid, prefix)
    return [_optional(heads, valid) if null else heads, texts]


def _encode_booleans(column: pa.Array) -> Pieces:
    flags = np.ascontiguousarray(_flags(column))
    offsets = np.arange(len(column) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(flags)]
    return [pa.Array.from_buffers(_BINARY, len(column), buffers)]


def _encode_arrays(column: pa.Array, nullable: bool) -> Pieces:  # noqa: FBT001, ARG001 -- always
    """Encode JSON texts of lists; each distinct one is encoded once."""
    codes = column.dictionary_encode()
    encoded = [_VALUE + _encode_list(text) for text in codes.dictionary.to_pylist()]
    return [pc.fill_null(make_array(encoded, _BINARY).take(codes.indices), _scalar(_NULL))]


def _encode_list(text: str) -> bytes:
    items = msgspec.json.decode(text, type=list[str])
    return _with_count([encode_bytes(item.encode()) for item in items])


def _with_count(items: list[bytes]) -> bytes:
    return (encode_long(len(items)) if items else b"") + b"".join(items) + _END


_ENCODERS: dict[str, Callable[[pa.Array, bool], Pieces]] = {
    "string": _encode_texts,
    "long": _encode_integers,
    "int": _encode_ints,
    "array": _encode_arrays,
}


def _encode_map(adds: pa.Table, name: str, text: pa.Array | None, *, nullable: bool) -> Pieces:
    """Encode a map: assembled from its columns, or from its JSON text in raw rows."""
    prefix = f"{name}."
    members = {
        column[len(prefix) :]: _one_chunk(adds[column])
        for column in adds.column_names
        if column.startswith(prefix)
    }
    members = {key: column for key, column in members.items() if column.null_count < len(column)}
    if text is None or text.null_count == len(text):
        return _map_pieces(members, adds.num_rows, nullable=nullable)
    raw = pc.fill_null(_one_chunk(adds["raw"]), FALSE)
    codes = text.dictionary_encode()
    encoded = [_encode_members(item, nullable=nullable) for item in codes.dictionary.to_pylist()]
    from_text = make_array(encoded, _BINARY).take(codes.indices)
    from_text = pc.fill_null(from_text, _scalar(_NULL))  # the same byte as the end of an empty map
    pieces = _map_pieces(members, adds.num_rows, nullable=nullable)
    return [pc.if_else(raw, from_text, _join(pieces, adds.num_rows))]


def _encode_members(text: str, *, nullable: bool) -> bytes:
    """Encode the JSON text of a map. Values that are null are left out: Avro's maps have none."""
    members: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    items = []
    for key, raw in members.items():
        octets = bytes(raw)
        if octets != b"null":
            value = msgspec.json.decode(octets) if octets[:1] == b'"' else octets.decode()
            items.append(encode_bytes(key.encode()) + encode_bytes(value.encode()))
    if nullable:
        return _VALUE + _with_count(items) if items else _NULL
    return _with_count(items)


def _map_pieces(members: dict[str, pa.Array], count: int, *, nullable: bool) -> Pieces:
    if not members:
        return [_NULL if nullable else _END]
    union = _VALUE if nullable else b""
    entries: Pieces = []
    missing = np.zeros(count, np.int64)
    for key, column in members.items():
        head = encode_bytes(key.encode())
        entries += _text_pieces(column, head, b"")
        if column.null_count:
            missing += _flags(pc.is_null(column))
    if not missing.any():
        return [union + encode_long(len(members)), *entries, _END]
    sizes = len(members) - missing
    filled = (sizes > 0).view(np.uint8)
    # A map without entries is one byte, whether it is the branch of null or the end of the map.
    counts = varint_array(sizes, filled, union)
    return [counts, *entries, _END]

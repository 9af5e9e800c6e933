"""The document store of a segment, decoded column by column. Pure.

The store is a sequence of compressed blocks of documents, followed by an index of the blocks and a
footer. A document is a count and, per value, a field number, a type code and the value. All
documents of a batch are decoded together: each step reads the next value of every document, so the
cost is one array operation per field instead of one Python object per value.

Every step stays within its document, and the last one must end exactly where the document does;
anything else raises DataFileError. Nested values (arrays, objects) have no columnar form here:
`NestedValues` is raised, and the caller reads such documents through tantivy.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.splits.bundle import damaged, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from arrowlog.splits.bundle import ByteView

    Offsets = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]

_FOOTER = struct.Struct("<IQB15x")  # version, offset of the block index, compression
_STORE_VERSION = 2
_COMPRESSION_NONE, _COMPRESSION_LZ4 = 0, 1
_U32 = np.dtype("<u4")
_U64 = np.dtype("<u8")

# Type codes of values.
TEXT, U64, I64, BYTES, DATE, F64, BOOL, IP = 0, 1, 2, 4, 5, 6, 9, 10
_NESTED_CODES = frozenset({8, 11, 12, 13})  # JSON objects of two forms, NULL, arrays
_FIXED_BYTES = {U64: 8, I64: 8, DATE: 8, F64: 8, BOOL: 1, IP: 16}
_CODES = {
    "text": TEXT,
    "u64": U64,
    "i64": I64,
    "bytes": BYTES,
    "date": DATE,
    "f64": F64,
    "bool": BOOL,
    "ip_addr": IP,
}
# Steps read up to this many bytes past the end of a damaged document before it is noticed.
_PADDING = bytes(32)
# A block holds 16 KiB of documents, or one larger document. More than this is damage.
_BLOCK_MAX_BYTES = 1 << 30
# Offsets into one buffer of documents are 32-bit numbers.
_BUFFER_MAX_BYTES = (1 << 31) - (1 << 20)
_SIGN = np.uint64(1 << 63)


class NestedValues(Exception):
    """A document has arrays or objects, which are not decoded by columns."""


class Block(NamedTuple):
    """A compressed block: its documents and its bytes, both half-open."""

    first_doc: int
    end_doc: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DocStore:
    """The opened store of one segment. `body` is the file without tantivy's footer."""

    body: ByteView
    blocks: tuple[Block, ...]
    compression: int
    key: str

    @classmethod
    def open(cls, body: ByteView, max_doc: int, key: str) -> DocStore:
        """Parse footer and block index. Raises DataFileError unless they cover `max_doc` docs."""
        if len(body) < _FOOTER.size:
            raise damaged(key, "its document store is cut off")
        version, offset, compression = _FOOTER.unpack(body[-_FOOTER.size :])
        if version != _STORE_VERSION:
            raise unsupported(
                key,
                f"The split has a document store of version {version};"
                f" version {_STORE_VERSION} is supported.",
                "Update arrowlog, or read the table with IndexTables.",
            )
        if compression not in (_COMPRESSION_NONE, _COMPRESSION_LZ4):
            raise unsupported(
                key,
                "The documents of the split are compressed with a codec other than lz4.",
                "Read the table with IndexTables.",
            )
        if offset > len(body) - _FOOTER.size:
            raise damaged(key, "the block index of its document store lies outside the file")
        blocks = _read_block_index(body[offset : -_FOOTER.size], key)
        next_doc = next_byte = 0
        for block in blocks:
            if block.first_doc != next_doc or block.start != next_byte:
                raise damaged(key, "the blocks of its document store do not follow each other")
            next_doc, next_byte = block.end_doc, block.end
        if next_doc != max_doc or next_byte > offset:
            raise damaged(key, f"its document store has {next_doc} documents, not {max_doc}")
        return cls(body, blocks, compression, key)

    def batches(
        self, num_docs: int, num_bytes: int, docs: Offsets | None = None
    ) -> Iterator[Sequence[Block]]:
        """Group the blocks to about `num_docs` documents or `num_bytes` decompressed bytes.

        With `docs`, only blocks that hold one of these increasing document numbers. A group has at
        least one block.
        """
        group: list[Block] = []
        count = size = 0
        for block in self._blocks_of(docs):
            if group and (count >= num_docs or size >= num_bytes):
                yield group
                group, count, size = [], 0, 0
            group.append(block)
            count += block.end_doc - block.first_doc
            size += self._decompressed_bytes(block)
        if group:
            yield group

    def _decompressed_bytes(self, block: Block) -> int:
        """The size that a block declares, before it is verified."""
        if self.compression == _COMPRESSION_NONE:
            return block.end - block.start
        return int.from_bytes(self.body[block.start : block.start + 4], "little")

    def _blocks_of(self, docs: Offsets | None) -> Sequence[Block]:
        if docs is None:
            return self.blocks
        ends = np.array([block.end_doc for block in self.blocks], np.int64)
        chosen = np.unique(np.searchsorted(ends, docs, side="right"))
        return [self.blocks[number] for number in chosen.tolist()]

    def documents(self, blocks: Sequence[Block]) -> Documents:
        """Decompress blocks and locate their documents."""
        parts: list[bytes] = []
        starts: list[Offsets] = []
        ends: list[Offsets] = []
        base = 0
        for block, compressed in self._read_blocks(blocks):
            data = self._decompress(compressed)
            offsets = self._document_offsets(data, block) + base
            starts.append(offsets[:-1])
            ends.append(offsets[1:])
            parts.append(data)
            base += len(data)
        if base > _BUFFER_MAX_BYTES:
            raise unsupported(
                self.key,
                "A document of the split is larger than 2 GB.",
                "Read the table with IndexTables.",
            )
        parts.append(_PADDING)
        empty: Offsets = np.empty(0, np.int64)
        return Documents(
            b"".join(parts),
            np.concatenate([empty, *starts]),
            np.concatenate([empty, *ends]),
            self.key,
        )

    def _read_blocks(self, blocks: Sequence[Block]) -> Iterator[tuple[Block, memoryview]]:
        """Yield blocks with their bytes; neighbours are read together."""
        first = 0
        while first < len(blocks):
            last = first
            while last + 1 < len(blocks) and blocks[last + 1].start == blocks[last].end:
                last += 1
            base = blocks[first].start
            data = memoryview(self.body[base : blocks[last].end])
            for block in blocks[first : last + 1]:
                yield block, data[block.start - base : block.end - base]
            first = last + 1

    def _decompress(self, data: memoryview) -> bytes:
        if self.compression == _COMPRESSION_NONE:
            return bytes(data)
        # lz4 expands by 255 at most.
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size > min(_BLOCK_MAX_BYTES, 255 * len(data)):
            raise damaged(self.key, "a block of its document store has an impossible length")
        try:
            decompressed = pa.Codec("lz4_raw").decompress(data[4:], size, asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise damaged(self.key, "a block of its document store cannot be read") from error
        return bytes(decompressed)

    def _document_offsets(self, data: bytes, block: Block) -> Offsets:
        """Return where the documents of a decompressed block start, and where the last one ends.

        A block ends with the u32 offsets of its documents and their u32 count.
        """
        count = block.end_doc - block.first_doc
        end = len(data) - 4 * (count + 1)
        if end < 0 or int.from_bytes(data[-4:], "little") != count:
            raise damaged(self.key, "a block of its document store has another number of documents")
        offsets = np.frombuffer(data, _U32, count, end).astype(np.int64)
        offsets = np.append(offsets, end)
        if offsets[0] != 0 or np.any(offsets[1:] < offsets[:-1]):
            raise damaged(self.key, "the documents of a block do not follow each other")
        return offsets


def _read_block_index(data: bytes, key: str) -> tuple[Block, ...]:
    """Read the lowest layer of the skip list that locates the blocks."""
    try:
        count, position = _read_vint(data, 0)
        ends = []
        for _ in range(min(count, len(data))):
            end, position = _read_vint(data, position)
            ends.append(end)
        if not ends:
            return ()
        start, stop = (ends[-2] if len(ends) > 1 else 0) + position, ends[-1] + position
        if not position <= start <= stop <= len(data):
            raise IndexError
        blocks: list[Block] = []
        while start < stop:
            count, start = _read_vint(data, start)
            if not count:
                continue
            doc, start = _read_vint(data, start)
            offset, start = _read_vint(data, start)
            for _ in range(count):
                num_docs, start = _read_vint(data, start)
                num_bytes, start = _read_vint(data, start)
                blocks.append(Block(doc, doc + num_docs, offset, offset + num_bytes))
                doc += num_docs
                offset += num_bytes
    except IndexError:
        raise damaged(key, "the block index of its document store is cut off") from None
    return tuple(blocks)


def _read_vint(data: bytes, position: int) -> tuple[int, int]:
    """Read a number of 7-bit groups, lowest first; the high bit marks the last byte."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError


class _Values(NamedTuple):
    """The values of a field in a batch: the documents that have one, and where it is."""

    docs: Offsets
    starts: Offsets
    lengths: Offsets | None  # None for values of fixed length


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents in one buffer. `starts` and `ends` are the offsets of each."""

    buffer: bytes
    starts: Offsets
    ends: Offsets
    key: str

    def select(self, docs: Offsets) -> Documents:
        """Keep some documents, by increasing position."""
        return Documents(self.buffer, self.starts[docs], self.ends[docs], self.key)

    def columns(self, kinds: Sequence[str], wanted: Mapping[int, str]) -> dict[int, pa.Array]:
        """Decode the fields in `wanted`, by field number; the value names the field in errors.

        `kinds` has the type of every field of the schema. A field without a value is null. Raises
        NestedValues for arrays and objects, DataFileError for damage and for several values in one
        field.
        """
        if not len(self.starts):
            nothing: Offsets = np.empty(0, np.int64)
            absent = _Values(nothing, nothing, nothing)
            return {number: self._to_arrow(kinds[number], absent) for number in wanted}
        found = _Decoding(self, [_CODES.get(kind, -1) for kind in kinds], wanted).run()
        columns = {}
        for number, name in wanted.items():
            values = found.get(number)
            if values is None:
                columns[number] = pa.nulls(len(self.starts), _arrow_type(kinds[number]))
                continue
            array = self._to_arrow(kinds[number], values)
            if kinds[number] == "text":
                self._check_text(array, name)
            columns[number] = array
        return columns

    def _check_text(self, array: pa.Array, name: str) -> None:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise damaged(self.key, f"a value of field {name!r} is not UTF-8 text") from error

    def _to_arrow(self, kind: str, values: _Values) -> pa.Array:
        count = len(self.starts)
        data = np.frombuffer(self.buffer, np.uint8)
        if kind in ("text", "bytes"):
            assert values.lengths is not None
            return self._slices(kind, values)
        if kind == "ip_addr":
            raw = data[values.starts[:, None] + np.arange(16)].tobytes()
            flat = pa.Array.from_buffers(pa.binary(16), len(values.docs), [None, pa.py_buffer(raw)])
            return _spread(flat, values.docs, count)
        if kind == "bool":
            flat = _to_array((data[values.starts] != 0).view(np.uint8), pa.uint8()).cast(pa.bool_())
            return _spread(flat, values.docs, count)
        # Eight bytes at any address: a view of every byte position, and one gather.
        words = np.ndarray((len(data) - 7,), _U64, self.buffer, strides=(1,))[values.starts]
        if kind == "f64":
            # Doubles are stored as integers in the order of the doubles.
            bits = np.where(words & _SIGN, words ^ _SIGN, ~words)
            return _spread(_to_array(bits, pa.float64()), values.docs, count)
        if kind == "u64":
            return _spread(_to_array(words, pa.uint64()), values.docs, count)
        return _spread(_to_array(words, pa.int64()), values.docs, count)

    def _slices(self, kind: str, values: _Values) -> pa.Array:
        """Gather slices of the buffer.

        Documents lie in order, so starts and ends of the slices are the offsets of an array in
        which every other item is a value and the rest are gaps. Arrow copies the values out of it.
        """
        assert values.lengths is not None
        present = len(values.docs)
        type_ = pa.string() if kind == "text" else pa.binary()
        if not present:
            return pa.nulls(len(self.starts), type_)
        offsets = np.empty(2 * present, np.int32)
        offsets[::2] = values.starts
        offsets[1::2] = values.starts + values.lengths
        gapped = pa.Array.from_buffers(
            type_,
            2 * present - 1,
            [None, pa.py_buffer(offsets), pa.py_buffer(self.buffer)],
        )
        return gapped.take(_positions(values.docs, len(self.starts), step=2))


def _to_array(
    values: npt.NDArray[Any], type_: pa.DataType, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Wrap numbers as an Arrow array. `pyarrow.array` would import pandas first."""
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type_, len(values), [mask, pa.py_buffer(values)])


def _positions(docs: Offsets, count: int, *, step: int) -> pa.Array:
    """For each of `count` documents, the position of its value, or null."""
    if len(docs) == count:
        return _to_array(np.arange(0, step * count, step), pa.int64())
    positions = np.full(count, -1, np.int64)
    positions[docs] = np.arange(0, step * len(docs), step)
    return _to_array(positions, pa.int64(), valid=positions >= 0)


def _spread(values: pa.Array, docs: Offsets, count: int) -> pa.Array:
    """Place the values at their documents; the other documents are null."""
    if len(docs) == count:
        return values
    return values.take(_positions(docs, count, step=1))


def _arrow_type(kind: str) -> pa.DataType:
    return {
        "text": pa.string(),
        "bytes": pa.binary(),
        "f64": pa.float64(),
        "u64": pa.uint64(),
        "bool": pa.bool_(),
        "ip_addr": pa.binary(16),
    }.get(kind, pa.int64())


@dataclass(slots=True)
class _Decoding:
    """One pass over a batch: the next value of every document at a time."""

    documents: Documents
    codes: Sequence[int]  # the type code of every field
    wanted: Mapping[int, str]
    _found: dict[int, list[_Values]] = field(default_factory=dict)

    def run(self) -> dict[int, _Values]:
        """Return the values of the wanted fields that any document has."""
        documents = self.documents
        data = np.frombuffer(documents.buffer, np.uint8)
        counts, position = self._vints(data, documents.starts, documents.ends)
        ends = documents.ends
        docs: Offsets = np.arange(len(position))
        while True:
            going = counts > 0
            if not going.all():
                if np.any(position[~going] != ends[~going]):
                    raise self._damaged()
                docs, position, ends = docs[going], position[going], ends[going]
                counts = counts[going]
                if not len(docs):
                    return {number: self._merge(number) for number in self._found}
            position = self._step(data, docs, position, ends)
            counts = counts - 1

    def _step(self, data: Bytes, docs: Offsets, position: Offsets, ends: Offsets) -> Offsets:
        """Read one value of each document, and return where the next one starts."""
        if np.any(position + 5 > ends):
            raise self._damaged()
        numbers = np.ndarray((len(data) - 3,), _U32, self.documents.buffer, strides=(1,))[position]
        tags = (numbers.astype(np.int64) << 8) | data[position + 4]
        after: Offsets = position + 5
        first = tags[0]
        if np.all(tags == first):
            return self._read(data, int(first), docs, after, ends)
        for tag in np.unique(tags):
            chosen = tags == tag
            after[chosen] = self._read(data, int(tag), docs[chosen], after[chosen], ends[chosen])
        return after

    def _read(
        self, data: Bytes, tag: int, docs: Offsets, position: Offsets, ends: Offsets
    ) -> Offsets:
        number, code = tag >> 8, tag & 0xFF
        if code in _NESTED_CODES:
            raise NestedValues
        if number >= len(self.codes) or code != self.codes[number]:
            raise self._damaged()
        lengths: Offsets | None = None
        if code in (TEXT, BYTES):
            lengths, position = self._vints(data, position, ends)
            after = position + lengths
        else:
            after = position + _FIXED_BYTES[code]
        if np.any(after > ends) or np.any(after < position):
            raise self._damaged()
        if number in self.wanted:
            self._found.setdefault(number, []).append(_Values(docs, position, lengths))
        return after

    def _merge(self, number: int) -> _Values:
        """The values of a field that was met at several steps, in the order of the documents."""
        parts = self._found[number]
        if len(parts) == 1:
            return parts[0]
        docs = np.concatenate([part.docs for part in parts])
        order = np.argsort(docs, kind="stable")
        docs = docs[order]
        if np.any(docs[1:] == docs[:-1]):
            raise several_values(self.documents.key, self.wanted[number])
        starts = np.concatenate([part.starts for part in parts])[order]
        lengths = [part.lengths for part in parts if part.lengths is not None]
        return _Values(docs, starts, np.concatenate(lengths)[order] if lengths else None)

    def _vints(self, data: Bytes, position: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
        """Read a variable-length number at each position, and return the positions after them."""
        if np.any(position >= ends):
            raise self._damaged()
        byte = data[position]
        values: Offsets = (byte & 0x7F).astype(np.int64)
        position = position + 1
        pending = np.flatnonzero(byte < 0x80)
        shift = 7
        while len(pending):
            if shift > 28 or np.any(position[pending] >= ends[pending]):
                raise self._damaged()
            byte = data[position[pending]]
            values[pending] |= (byte & 0x7F).astype(np.int64) << shift
            position[pending] += 1
            pending = pending[byte < 0x80]
            shift += 7
        return values, position

    def _damaged(self) -> Exception:
        return damaged(self.documents.key, "a stored document cannot be decoded")


def several_values(key: str, name: str) -> Exception:
    """Return the error for a field with several values in one document."""
    return unsupported(
        key,
        f"A document of the split has several values in field {name!r}, which is not an array.",
        "Read the other columns, or read the table with IndexTables.",
    )


def format_ip_addresses(values: pa.Array) -> pa.Array:
    """Format addresses, 16 bytes each in little-endian order, as text; mapped IPv4 as IPv4."""
    import ipaddress

    distinct = values.dictionary_encode()
    texts: list[Any] = []
    for raw in distinct.dictionary.to_pylist():
        address = ipaddress.IPv6Address(int.from_bytes(raw, "little"))
        texts.append(str(address.ipv4_mapped or address))
    return make_array(texts, pa.string()).take(pc.cast(distinct.indices, pa.int64()))

"""Encode actions as the bytes of a commit: JSON lines, the commitInfo first.

`commitInfo.numActions` is the number of lines after it and `commitInfo.checksum` the CRC-32 of
their bytes, so that every reader detects a commit that lost a line or has a flipped bit. Adds are
encoded column by column, fast enough for checkpoints of many files. Every field that was read is
written unchanged: maps that the columnar decoder split into columns are assembled again, maps that
were kept as text are copied, and fields without a value are omitted. Pure.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import FALSE, make_array, make_scalar, null_scalar
from arrowlog.formats import FieldKind
from arrowlog.formats.indextables.compression import format_checksum
from arrowlog.formats.indextables.format import ADD_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.formats import Metadata, Protocol

_STRING = pa.string()
_EMPTY_OBJECT = make_scalar("{}", _STRING)
_CONTROL_CHARACTERS = r"[\x00-\x1f]"
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
# Texts from which on they are examined together.
_MANY_TEXTS = 1 << 8
# How deep the JSON of a commit may be nested. What a reader takes depends on its Python: 3.11 takes
# 1,000 levels, less what its callers use, and 3.14 writes more than it can read.
_NESTING_MAX = 500
# Brackets, and strings, because a bracket in a string is text.
_BRACKET_OR_STRING = re.compile(rb'[\[\]{}]|"(?:[^"\\]|\\.)*"')
_Piece: TypeAlias = Any  # a text that is the same for all adds, or an array with one for each


def encode_add_objects(
    adds: pa.Table, changed: Mapping[str, Any] | None = None, *, path: str = "key"
) -> pa.Array:
    """Return the JSON object of each add, as it follows `"add":` in a line, without line breaks.

    `changed` overrides fields with the same value for all adds. `path` is the column that holds the
    path to write: the file's `key`, or the `path` as it was read.
    """
    return _concat_texts(_add_pieces(adds, changed or {}, path), adds.num_rows)


def join_add_objects(
    adds: pa.Table, *, path: str = "key", before: str = "", after: str = ""
) -> memoryview:
    """Return the JSON objects of all adds in one piece, each one between two texts.

    They are joined where they are built: no object of Python is made of an add.
    """
    if adds.num_rows == 0:
        return memoryview(b"")
    texts = _concat_texts([before, *_add_pieces(adds, {}, path), after], adds.num_rows)
    # What was just built has neither an offset nor nulls: the texts follow each other.
    _, offsets, data = texts.buffers()
    size = memoryview(offsets).cast("B").cast("i")[len(texts)]
    return memoryview(data).cast("B")[:size]


def _add_pieces(adds: pa.Table, overrides: Mapping[str, Any], path: str) -> list[_Piece]:
    """Return the pieces of which the JSON objects of adds consist, in their order."""
    pieces = ['{"path":', *_quoted(_one_chunk(adds[path]))]
    for name, kind in ADD_FIELDS.items():
        if name == "path":
            continue
        label = f',"{name}":'
        if name in overrides:
            pieces.append(label + msgspec.json.encode(overrides[name]).decode())
            continue
        members = _member_pieces(adds, name) if kind is FieldKind.FLAT else None
        if members is not None:
            pieces += [label, *members]
            continue
        value = _encode_field(adds, name, kind)
        if name == "partitionValues":  # other readers may require the field
            value = _EMPTY_OBJECT if value is None else pc.fill_null(value, _EMPTY_OBJECT)
        if value is None:
            continue
        if isinstance(value, pa.Scalar):
            pieces.append(label + value.as_py())
        elif value.null_count:
            pieces.append(pc.binary_join_element_wise(_literal(label), value, _literal("")))
        else:
            pieces += [label, value]
    return [*pieces, "}"]


def _member_pieces(adds: pa.Table, name: str) -> list[_Piece] | None:
    """Return the pieces of a map that every add has, from its columns; None if there may be others.

    The first member must be in every map, so that the comma before each other one is right.
    """
    prefix = f"{name}."
    columns = [column for column in adds.column_names if column.startswith(prefix)]
    if not columns or name in adds.column_names:
        return None
    explicit_nulls = name == "partitionValues"
    if adds[columns[0]].null_count and not explicit_nulls:
        return None
    pieces: list[_Piece] = []
    for number, column in enumerate(columns):
        key = msgspec.json.encode(column[len(prefix) :]).decode()
        label, values = f"{',' if number else '{'}{key}:", _one_chunk(adds[column])
        if not values.null_count:
            pieces += [label, *_quoted(values)]
        elif explicit_nulls:
            pieces += [label, pc.fill_null(quote_json_strings(values), _literal("null"))]
        else:
            text = quote_json_strings(values)
            pieces.append(pc.binary_join_element_wise(_literal(label), text, _literal("")))
    return [*pieces, "}"]


def _quoted(texts: pa.Array) -> list[_Piece]:
    """Return the pieces of JSON strings."""
    if texts.null_count or _needs_escape(texts):
        return [quote_json_strings(texts)]
    return ['"', texts, '"']


def encode_json_column(adds: pa.Table, name: str) -> pa.Array:
    """Return a field of the adds that is a map or a list as JSON text; null where it is absent."""
    texts = _encode_field(adds, name, ADD_FIELDS[name])
    return pa.nulls(adds.num_rows, _STRING) if texts is None else texts


def _concat_texts(pieces: Sequence[_Piece], count: int) -> pa.Array:
    """Concatenate `pieces` row by row; a text is the same in all rows, and null adds nothing."""
    if count == 0:
        return pa.nulls(0, _STRING)
    merged: list[Any] = []
    for piece in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    texts = [_literal(piece) if isinstance(piece, str) else piece for piece in (*merged, "")]
    # The last one is the separator.
    return pc.binary_join_element_wise(*texts, null_handling="replace", null_replacement="")


def _literal(text: str) -> pa.Scalar:
    return make_scalar(text, _STRING)


def _one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _encode_field(adds: pa.Table, name: str, kind: FieldKind) -> pa.Array | None:
    """Return a field's JSON text for each add, null where absent; None if no add has the field."""
    column = _one_chunk(adds[name]) if name in adds.column_names else None
    if kind is FieldKind.FLAT:
        return _encode_map(adds, name, column)
    if column is None or column.null_count == len(column):
        return None
    if kind is FieldKind.TEXT or (kind is FieldKind.STATS and not _repeats(column)):
        return quote_json_strings(column)
    if kind in (FieldKind.WORD, FieldKind.STATS):
        words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        return quote_json_strings(pc.cast(words.dictionary, _STRING)).take(words.indices)
    if kind is FieldKind.JSON:
        return _encode_json(column.dictionary_encode())
    return pc.cast(column, _STRING)  # integers and booleans


def _encode_json(words: pa.DictionaryArray) -> pa.Array:
    """Return JSON texts as they are, and quote texts that are not JSON.

    The latter were JSON strings in the log, which the row decoder unquoted.
    """
    texts = words.dictionary.to_pylist()
    not_json = make_array([not _is_json(text) for text in texts], pa.bool_())
    encoded = pc.if_else(not_json, quote_json_strings(words.dictionary), words.dictionary)
    return encoded.take(words.indices)


def _is_json(text: str) -> bool:
    try:
        return msgspec.json.decode(text) is not None
    except (msgspec.DecodeError, RecursionError):
        return False


def _encode_map(adds: pa.Table, name: str, text: pa.Array | None) -> pa.Array | None:
    """Return a map field as JSON: its text in raw rows, assembled from its columns in others."""
    prefix = f"{name}."
    members = [column for column in adds.column_names if column.startswith(prefix)]
    objects = None
    if members:
        explicit_nulls = name == "partitionValues"
        objects = _build_objects(adds, members, len(prefix), explicit_nulls=explicit_nulls)
    if text is None or objects is None:
        return objects if text is None else text
    raw = pc.fill_null(_one_chunk(adds["raw"]), FALSE)
    return pc.if_else(raw, text, objects)


def _build_objects(
    adds: pa.Table, columns: list[str], prefix_length: int, *, explicit_nulls: bool
) -> pa.Array:
    """Build JSON objects from columns of text; the key is the column name without its prefix.

    A null value is written with `explicit_nulls` (a partition value), else omitted (a bound). An
    object without members becomes null.
    """
    pieces: list[_Piece] = []
    for column in columns:
        value = quote_json_strings(_one_chunk(adds[column]))
        key = msgspec.json.encode(column[prefix_length:]).decode()
        if explicit_nulls:
            value = pc.fill_null(value, _literal("null"))
        pieces.append(pc.binary_join_element_wise(_literal(f",{key}:"), value, _literal("")))
    members = _concat_texts(pieces, adds.num_rows)
    if adds.num_rows == 0:
        return members
    empty = pc.equal(members, _literal(""))
    opened = pc.binary_replace_slice(members, 0, 1, "{")  # replaces the first comma
    closed = pc.binary_join_element_wise(opened, _literal("}"), _literal(""))
    return pc.if_else(empty, null_scalar(_STRING), closed)


def quote_json_strings(texts: pa.Array) -> pa.Array:
    """Encode texts as JSON strings; null stays null.

    >>> quote_json_strings(make_array(["day", None], pa.string())).to_pylist()
    ['"day"', None]
    """
    if len(texts) == 0:
        return texts
    needs_escape = _needs_escape(texts)
    escaped = texts
    if needs_escape:
        escaped = pc.replace_substring(escaped, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '\\"')
    quote = _literal('"')
    strings = pc.binary_join_element_wise(quote, escaped, quote, _literal(""))
    if not needs_escape:
        return strings
    # Control characters are rare: encode those texts one by one.
    has_control = pc.match_substring_regex(texts, _CONTROL_CHARACTERS)
    if not pc.any(has_control).as_py():
        return strings
    has_control = pc.fill_null(has_control, FALSE)
    encoded = [msgspec.json.encode(text).decode() for text in texts.filter(has_control).to_pylist()]
    return pc.replace_with_mask(strings, has_control, make_array(encoded, _STRING))


def _needs_escape(texts: pa.Array) -> bool:
    """Whether a text may have characters that JSON escapes."""
    if len(texts) < _MANY_TEXTS or texts.type != _STRING:
        return bool(pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py())
    import numpy as np

    # All bytes at once, several times as fast as text by text.
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)
    first, size = int(ends[0]), int(ends[-1] - ends[0])
    if not size:
        return False
    characters = np.frombuffer(data, np.uint8, size, first)
    if characters.min() < ord(" ") or (characters == ord('"')).any():
        return True
    return bool((characters == ord("\\")).any())


def _repeats(texts: pa.Array) -> bool:
    """Whether few of the texts are distinct, judged by the first ones."""
    if pa.types.is_dictionary(texts.type):
        return True
    sample = texts.slice(0, _MANY_TEXTS)
    return len(sample) == _MANY_TEXTS and len(sample.unique()) <= _MANY_TEXTS // 4


def encode_action(action: str, fields: Mapping[str, Any]) -> bytes:
    """Encode one action as a line. Fields whose value is None are omitted.

    Raises `ValueError` if a field is nested so deeply that some readers would not decode it.
    """
    present = {name: value for name, value in fields.items() if value is not None}
    try:
        line = msgspec.json.encode({action: present})
    except RecursionError:
        line = None
    if line is None or _nests_too_deeply(line):
        raise ValueError(f"it is nested more than {_NESTING_MAX} levels deep")
    return line + b"\n"


def encode_commit(info: Mapping[str, Any], lines: Sequence[bytes]) -> bytes:
    """Encode a commit after version 0: `info` with the action count and checksum, then `lines`.

    Raises `ValueError` as `encode_action` does.
    """
    body = b"".join(lines)
    full_info = {**info, "numActions": len(lines), "checksum": format_checksum(body)}
    return encode_action("commitInfo", full_info) + body


def _nests_too_deeply(line: bytes) -> bool:
    """Whether too many objects and lists of a JSON text are inside each other."""
    if line.count(b"{") + line.count(b"[") <= _NESTING_MAX:
        return False
    steps = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
    depths = accumulate(steps.get(part, 0) for part in _BRACKET_OR_STRING.findall(line))
    return max(depths) > _NESTING_MAX


def encode_first_commit(protocol: Protocol, metadata: Metadata) -> bytes:
    """Encode version 0: exactly one protocol and one metaData."""
    return encode_action("protocol", protocol_fields(protocol)) + encode_action(
        "metaData", metadata_fields(metadata)
    )


def protocol_fields(protocol: Protocol) -> dict[str, Any]:
    """Return the fields of a `protocol` action."""
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": list(protocol.reader_features) or None,
        "writerFeatures": list(protocol.writer_features) or None,
    }


def metadata_fields(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of a `metaData` action."""
    return {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {
            "provider": metadata.format_provider,
            "options": dict(metadata.format_options),
        },
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }


def encode_adds(adds: pa.Table, **changed: Any) -> list[bytes]:
    """Encode decoded adds as lines, with every field that was read; `changed` overrides fields."""
    return [
        b'{"add":%b}\n' % text.encode() for text in encode_add_objects(adds, changed).to_pylist()
    ]


def encode_removes(adds: pa.Table, millis: int, *, data_change: bool) -> list[bytes]:
    """Encode a remove for each decoded add, identified by the `key` of its file.

    The removes carry the extended file metadata: partition values and size.
    """
    columns = [name for name in adds.column_names if name.startswith("partitionValues.")]
    names = ["key", "size", *columns]
    names += [name for name in ("partitionValues", "raw") if name in adds.column_names]
    lines = []
    for row in adds.select(names).to_pylist():
        if row.get("raw"):
            text = row.get("partitionValues")
            partition: Any = None if text is None else msgspec.Raw(text.encode())
        else:
            partition = {name.partition(".")[2]: row[name] for name in columns}
        fields = {
            "path": row["key"],
            "deletionTimestamp": millis,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": partition,
            "size": row["size"],
        }
        lines.append(encode_action("remove", fields))
    return lines

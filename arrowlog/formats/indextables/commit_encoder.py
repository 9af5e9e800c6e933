"""Encode actions as the bytes of a commit: JSON lines, the commitInfo first.

`commitInfo.numActions` is the number of lines after it and `commitInfo.checksum` the CRC-32 of
their bytes, so that every reader detects a commit that lost a line or has a flipped bit. Adds are
encoded column by column, fast enough for checkpoints of many files. Every field that was read is
written unchanged: maps that the columnar decoder split into columns are assembled again, maps that
were kept as text are copied, and fields without a value are omitted. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def encode_add_objects(
    adds: pa.Table, changed: Mapping[str, Any] | None = None, *, path: str = "key"
) -> pa.Array:
    """Return the JSON object of each add, as it follows `"add":` in a line, without line breaks.

    `changed` overrides fields with the same value for all adds. `path` is the column that holds the
    path to write: the file's `key`, or the `path` as it was read.
    """
    pieces = [_literal('{"path":'), quote_json_strings(_one_chunk(adds[path]))]
    overrides = changed or {}
    for name, kind in ADD_FIELDS.items():
        if name == "path":
            continue
        if name in overrides:
            text = msgspec.json.encode(overrides[name]).decode()
            pieces.append(_literal(f',"{name}":{text}'))
            continue
        value = _encode_field(adds, name, kind)
        if name == "partitionValues":  # other readers may require the field
            value = _EMPTY_OBJECT if value is None else pc.fill_null(value, _EMPTY_OBJECT)
        if value is not None:
            pieces.append(pc.binary_join_element_wise(_literal(f',"{name}":'), value, _literal("")))
    pieces += [_literal("}"), _literal("")]
    return _concat_texts(pieces, adds.num_rows)


def encode_json_column(adds: pa.Table, name: str) -> pa.Array:
    """Return a field of the adds that is a map or a list as JSON text; null where it is absent."""
    texts = _encode_field(adds, name, ADD_FIELDS[name])
    return pa.nulls(adds.num_rows, _STRING) if texts is None else texts


def _concat_texts(pieces: list[Any], count: int) -> pa.Array:
    """Concatenate `pieces` row by row; the last piece is the separator, and null adds nothing."""
    if count == 0:
        return pa.nulls(0, _STRING)
    return pc.binary_join_element_wise(*pieces, null_handling="replace", null_replacement="")


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
    if kind in (FieldKind.TEXT, FieldKind.STATS):
        return quote_json_strings(column)
    if kind is FieldKind.WORD:
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
    pieces = []
    for column in columns:
        value = quote_json_strings(_one_chunk(adds[column]))
        key = msgspec.json.encode(column[prefix_length:]).decode()
        if explicit_nulls:
            value = pc.fill_null(value, _literal("null"))
        pieces.append(pc.binary_join_element_wise(_literal(f",{key}:"), value, _literal("")))
    members = _concat_texts([*pieces, _literal("")], adds.num_rows)
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
    needs_escape = pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py()
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


def encode_action(action: str, fields: Mapping[str, Any]) -> bytes:
    """Encode one action as a line. Fields whose value is None are omitted."""
    present = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({action: present}) + b"\n"


def encode_commit(info: Mapping[str, Any], lines: Sequence[bytes]) -> bytes:
    """Encode a commit after version 0: `info` with the action count and checksum, then `lines`."""
    body = b"".join(lines)
    full_info = {**info, "numActions": len(lines), "checksum": format_checksum(body)}
    return encode_action("commitInfo", full_info) + body


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

"""The row decoder: decode JSON lines one by one, exactly and strictly, and commitInfos leniently.

It receives every line that the columnar decoder (`arrowlog.decode.columnar_decoder`) cannot verify,
and its verdict is final. A typed parser reads the line; a line whose fields do not have the right
types raises `LogCorrupt` with file and line. Maps stay JSON text, byte for byte, until
`flatten_map_columns` looks up the keys that a caller needs.

There is one `commitInfo` per commit, of which a snapshot needs few fields. A log of many small
commits has nearly as many commitInfos as files, so one call of a typed parser reads all of them.
Other writers may put anything into a commitInfo. Its content is therefore never an error, only a
line that is not JSON is. If a commitInfo does not have the types that arrowlog writes, all of them
are read one by one, and fields of an unexpected type count as absent. Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import (
    FALSE,
    bytes_to_array,
    concat_bytes,
    concat_typed_arrays,
    make_array,
    make_int64,
    make_scalar,
    null_scalar,
    repeat_bool,
)
from arrowlog.errors import LogCorrupt
from arrowlog.formats import STATS_COUNTS, STATS_MAPS, FieldKind, Metadata, Protocol
from arrowlog.formats.indextables import ACTIONS, ADD_MAP_FIELDS, INDEXTABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrowlog.formats import ActionFields, Format

JSON_NULL = msgspec.Raw(b"null")
JsonInt64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_TYPES: dict[FieldKind, tuple[Any, Any]] = {
    FieldKind.TEXT: (str | None, None),
    FieldKind.WORD: (str | None, None),
    FieldKind.INT: (JsonInt64 | None, None),
    FieldKind.BOOL: (bool | None, None),
    FieldKind.FLAT: (msgspec.Raw, JSON_NULL),
    FieldKind.JSON: (msgspec.Raw, JSON_NULL),
    FieldKind.STATS: (msgspec.Raw, JSON_NULL),
}
_NEXT_STEP = "Restore the file from a backup, or read an earlier version."
_BLANK = b" \t\r"


def make_action_struct(fields: ActionFields, action: str) -> Any:
    """Return the msgspec struct type of an action, built from the tables of its fields."""
    kinds, names = fields.fields[action], fields.required.get(action, ())
    # `__args__[0]` is the type without None: a required field must not be null.
    required = [(name, _TYPES[kinds[name]][0].__args__[0]) for name in names]
    optional = [(name, *_TYPES[kind]) for name, kind in kinds.items() if name not in names]
    return msgspec.defstruct(action, [*required, *optional], gc=False)


class _Protocol(msgspec.Struct, gc=False):
    minReaderVersion: int  # noqa: N815 -- the name on disk
    minWriterVersion: int  # noqa: N815
    readerFeatures: list[str] | None = None  # noqa: N815
    writerFeatures: list[str] | None = None  # noqa: N815


class _Format(msgspec.Struct, gc=False):
    provider: str | None = None
    options: dict[str, str | None] | None = None


class _Metadata(msgspec.Struct, gc=False):
    id: str
    schemaString: str  # noqa: N815
    name: str | None = None
    description: str | None = None
    format: _Format | None = None
    partitionColumns: list[str] | None = None  # noqa: N815
    configuration: dict[str, str | None] | None = None
    createdTime: int | None = None  # noqa: N815


class _PartialMetadata(_Metadata):
    schemaString: str | None = None  # type: ignore[assignment]  # noqa: N815


class _LineDecoder:
    """Decodes a line with any action of one format."""

    def __init__(self, fields: ActionFields) -> None:
        structs = {
            name: make_action_struct(fields, name) | None
            for name in fields.fields
            if name != "commitInfo"
        }
        structs |= {alias: structs[name] for alias, name in fields.aliases.items()}
        metadata = _PartialMetadata if fields.partial_metadata else _Metadata
        structs |= {"protocol": _Protocol | None, "metaData": metadata | None}
        members = [(name, struct, None) for name, struct in structs.items()]
        line = msgspec.defstruct(
            "line", [*members, ("commitInfo", msgspec.Raw, JSON_NULL)], gc=False
        )
        decoder = msgspec.json.Decoder(line)
        self.decode, self.decode_lines = decoder.decode, decoder.decode_lines
        self.actions = [(name, fields.aliases.get(name, name)) for name in line.__struct_fields__]
        self.map_fields = fields.add_map_fields


# One decoder per format and process; building one takes a millisecond.
_line_decoder = cache(_LineDecoder)
_PROTOCOL_PROBE = msgspec.json.Decoder(
    msgspec.defstruct("probe", [("protocol", msgspec.Raw, JSON_NULL)])
)
JSON_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY_JSON = msgspec.json.Decoder()
_TEXTS = msgspec.json.Decoder(list[str | None])
_ABSENT = msgspec.Raw(b"null")  # of a member that is not there, unlike one that is null
_NULL_TEXT = make_scalar("null", pa.string())
_NULL_BYTES = make_scalar(b"null", pa.binary())
_EMPTY_OBJECT = make_scalar("{}", pa.string())
_LINE_FEED = make_scalar("\n", pa.string())
_PLAIN_INTEGER = "^-?(0|[1-9][0-9]{0,17})$"
# Everything msgspec raises for a damaged text.
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def decode_line(
    text: bytes, file: str, number: int, fields: ActionFields = ACTIONS
) -> tuple[str, Any] | None:
    """Return the name of the action in a line and its decoded fields.

    Returns None for a blank line and for an unknown action. Raises `LogCorrupt` with `file` and
    `number` if the line is not a JSON object, holds more than one known action, or a known action
    lacks a required field or has a field of the wrong type. A commitInfo is returned undecoded, as
    `msgspec.Raw`, because other writers may put anything into it.
    """
    if not text.strip(_BLANK):
        return None
    decoder = _line_decoder(fields)
    try:
        text.decode()  # msgspec does not validate UTF-8 in the fields that it skips
        line: Any = decoder.decode(text)
    except JSON_ERRORS as error:
        raise _corrupt_line(text, error, file, number) from None
    decoded: tuple[str, Any] | None = None
    for name, action in decoder.actions:
        value = getattr(line, name)
        if value is None or (name == "commitInfo" and bytes(value) == b"null"):
            continue
        if decoded is not None:
            what = f"the line holds more than one action: {decoded[0]} and {action}."
            raise LogCorrupt(what, next=_NEXT_STEP, file=file, line=number)
        decoded = (action, value)
    if decoded is not None and decoded[0] == "add":
        _check_maps(decoded[1], decoder.map_fields, file, number)
    return decoded


def decode_lines(
    texts: Sequence[bytes], fields: ActionFields
) -> dict[str, tuple[list[int], list[Any]]] | None:
    """Decode many lines with one call: by action, the indexes of its lines and their fields.

    Actions without a line are left out. Returns None if `decode_line` has to look at the lines one
    by one: because one of them is blank, not valid or holds two actions.
    """
    decoder = _line_decoder(fields)
    joined = b"\n".join(texts)
    # msgspec lets a line have two objects, and an object two lines. Between `}` and `{` JSON needs
    # a comma, so that these line feeds are between two objects; then their number tells.
    if joined.count(b"}\n{") != len(texts) - 1 or joined[:1] != b"{" or joined[-1:] != b"}":
        return None
    try:
        if not joined.isascii():
            joined.decode()  # msgspec does not validate UTF-8 in the fields that it skips
        lines = decoder.decode_lines(joined)
    except JSON_ERRORS:
        return None
    if len(lines) != len(texts):
        return None
    decoded: dict[str, tuple[list[int], list[Any]]] = {}
    for name, action in decoder.actions:
        values = list(map(attrgetter(name), lines))
        empty = JSON_NULL if name == "commitInfo" else None
        if all(map(is_, values, repeat(empty))):
            continue
        rows = [row for row, value in enumerate(values) if value is not empty]
        kept = values if len(rows) == len(values) else [values[row] for row in rows]
        if action in decoded or (name == "commitInfo" and b"null" in map(bytes, kept)):
            return None  # two names of one action, and an explicit null: not worth a fast path
        decoded[action] = (rows, kept)
    all_rows = [row for rows, _ in decoded.values() for row in rows]
    if len(set(all_rows)) < len(all_rows) or not _maps_are_objects(decoded, decoder.map_fields):
        return None
    return decoded


def _maps_are_objects(
    decoded: Mapping[str, tuple[list[int], list[Any]]], names: Sequence[str]
) -> bool:
    """Return whether the map fields of all adds are objects or null; see `_check_maps`."""
    _, adds = decoded.get("add", ([], []))
    return not adds or all(
        {bytes(raw)[:1] for raw in map(attrgetter(name), adds)} <= {b"{", b"n"} for name in names
    )


def _check_maps(add: Any, names: Sequence[str], file: str, number: int) -> None:
    """Raise `LogCorrupt` if a map field of an add is neither an object nor null."""
    for name in names:
        if bytes(getattr(add, name))[:1] not in (b"{", b"n"):
            raise LogCorrupt(
                f"add.{name} is not an object.", next=_NEXT_STEP, file=file, line=number
            )


def _corrupt_line(text: bytes, error: Exception, file: str, number: int) -> LogCorrupt:
    if text.startswith(b"\xef\xbb\xbf"):
        why = "the line starts with a byte order mark, which JSON does not allow"
    elif isinstance(error, UnicodeDecodeError):
        why = f"the bytes at position {error.start} are not UTF-8"
    elif isinstance(error, RecursionError):
        why = "the JSON is nested too deeply"
    else:
        why = f"not a valid action: {error}"
    return LogCorrupt(f"{why}.", next=_NEXT_STEP, file=file, line=number)


def probe_protocol(text: bytes) -> Protocol | None:
    """Return the protocol in a line, or None if there is none that can be read. Never raises.

    The protocol of a log that cannot be decoded tells whether a newer writer is the reason.
    """
    if b'"protocol"' not in text:
        return None
    try:
        raw: Any = _PROTOCOL_PROBE.decode(text)
        decoded = msgspec.json.decode(raw.protocol, type=_Protocol | None)
    except JSON_ERRORS:
        return None
    return None if decoded is None else to_protocol(decoded)


def to_protocol(decoded: Any) -> Protocol:
    """Convert a `protocol` action that `decode_line` returned."""
    return Protocol(
        decoded.minReaderVersion,
        decoded.minWriterVersion,
        tuple(decoded.readerFeatures or ()),
        tuple(decoded.writerFeatures or ()),
    )


def parse_protocol(text: bytes | msgspec.Raw) -> Protocol:
    """Parse the JSON object of a `protocol` action. Raises `ValueError` if it is not valid."""
    return to_protocol(msgspec.json.decode(text, type=_Protocol))


def parse_metadata(text: bytes | msgspec.Raw) -> Metadata:
    """Parse the JSON object of a `metaData` action. Raises `ValueError` if it is not valid."""
    return to_metadata(msgspec.json.decode(text, type=_Metadata))


def to_metadata(decoded: Any, default_provider: str = "indextables") -> Metadata:
    """Convert a `metaData` action that `decode_line` returned.

    A property whose value is null is treated as absent. `default_provider` is the provider of the
    data files if the action does not tell.
    """
    table_format = decoded.format or _Format()
    return Metadata(
        id=decoded.id,
        schema_string=decoded.schemaString or "",
        partition_columns=tuple(decoded.partitionColumns or ()),
        configuration=_without_nulls(decoded.configuration),
        name=decoded.name,
        description=decoded.description,
        format_provider=table_format.provider or default_provider,
        format_options=_without_nulls(table_format.options),
        created_time=decoded.createdTime,
    )


def _without_nulls(values: dict[str, str | None] | None) -> dict[str, str]:
    return {key: value for key, value in (values or {}).items() if value is not None}


def build_action_table(
    fields: ActionFields, action: str, rows: Sequence[int], decoded: Sequence[Any]
) -> pa.Table:
    """Build a table from the decoded lines of one action; `rows` are their sequence numbers.

    A field without any value gets no column. Map fields stay JSON text; adds are marked with a
    column `raw` that is true, for `flatten`.
    """
    columns: dict[str, pa.Array] = {"seq": make_array(rows, pa.int64())}
    tuples = zip(*map(msgspec.structs.astuple, decoded), strict=True)
    values_of = dict(zip(decoded[0].__struct_fields__, map(list, tuples), strict=True))
    for name, kind in fields.fields[action].items():
        values = values_of[name]
        if all(map(is_, values, repeat(_TYPES[kind][1]))):  # the default of an absent field
            continue
        if kind in (FieldKind.FLAT, FieldKind.JSON, FieldKind.STATS):
            texts = _json_texts(values)
            if texts.null_count < len(texts):
                columns[name] = texts
        else:
            array = make_array(values, pa.string() if kind is FieldKind.WORD else kind.type)
            columns[name] = array.dictionary_encode() if kind is FieldKind.WORD else array
    if action == "add":
        columns["raw"] = repeat_bool(True, len(decoded))
    return pa.table(columns)


def _json_text(raw: msgspec.Raw) -> str | None:
    """Return the JSON text of a field. A JSON string is unquoted: it may itself hold JSON."""
    text = bytes(raw)
    if text == b"null":
        return None
    return _ANY_JSON.decode(text) if text[:1] == b'"' else text.decode()


def _json_texts(raws: Sequence[msgspec.Raw]) -> pa.Array:
    """Return the JSON texts of a field, as `_json_text` does for one."""
    texts = list(map(bytes, raws))
    firsts = {text[:1] for text in texts}
    if firsts <= {b'"', b"n"}:  # JSON strings and nulls
        return _unquote(texts)
    if b'"' in firsts:
        return make_array([_json_text(raw) for raw in raws], pa.string())
    array = make_array(texts, pa.binary()).view(pa.string())
    return array if b"n" not in firsts else _without(array, pc.equal(array, _NULL_TEXT))


def _unquote(texts: Sequence[bytes]) -> pa.Array:
    """Return the content of JSON strings; null for `null`."""
    joined = b",".join(texts)
    if b"\\" in joined:
        return make_array(_TEXTS.decode(b"[" + joined + b"]"), pa.string())
    array = make_array(texts, pa.binary())
    content = pc.binary_slice(array, 1, -1).view(pa.string())
    return _without(content, pc.equal(array, _NULL_BYTES))


def _without(texts: pa.Array, mask: pa.Array) -> pa.Array:
    """Return the texts with null where the mask is true."""
    return pc.if_else(mask, null_scalar(texts.type), texts) if mask.true_count else texts


def parse_lenient(kind: FieldKind, raw: msgspec.Raw) -> Any:
    """Return an integer or a string, depending on `kind`; None if the value has another type."""
    text = bytes(raw)
    expected: Any = JsonInt64 if kind is FieldKind.INT else str
    try:
        return msgspec.json.decode(text, type=expected | None)
    except JSON_ERRORS:
        return None


def flatten_map_columns(adds: pa.Table, keys: Iterable[str]) -> pa.Table:
    """Return the adds with the map members `keys` as columns: `partitionValues.key` and so on.

    Rows from the columnar decoder have these columns already; for rows with `raw` set, the keys are
    looked up in the JSON text. A key that no row has gets no column. The JSON text is kept, so that
    other keys can be looked up later. Rows keep their order: masks over `adds` apply to the result.
    """
    if "raw" not in adds.column_names or not pc.any(adds["raw"]).as_py():
        return adds
    raw = pc.fill_null(adds["raw"], FALSE).combine_chunks()
    key_list = list(dict.fromkeys(keys))
    text_columns = [name for name in (*ADD_MAP_FIELDS, "stats") if name in adds.column_names]
    raw_rows = adds.select(text_columns).filter(raw)
    flat: dict[str, pa.Array] = {}
    for name in ADD_MAP_FIELDS:
        flat |= _lookup_map(raw_rows, name, key_list)
    flat |= _lookup_stats(raw_rows, key_list)
    if raw_rows.num_rows < adds.num_rows:
        flat = {name: _merge_column(adds, name, raw, values) for name, values in flat.items()}
    columns = {name: adds[name] for name in adds.column_names}
    return pa.table(columns | flat)


def _merge_column(adds: pa.Table, name: str, raw: pa.Array, values: pa.Array) -> pa.Array:
    """Return column `name` of `adds` with the rows in the mask `raw` replaced by `values`."""
    present = name in adds.column_names
    base = adds[name].combine_chunks() if present else pa.nulls(adds.num_rows, values.type)
    return pc.replace_with_mask(base, raw, values)


def _lookup_map(table: pa.Table, name: str, keys: list[str]) -> dict[str, pa.Array]:
    """Look up keys in a column of JSON objects; returns the columns `name.key`."""
    if name not in table.column_names or table[name].null_count == table.num_rows:
        return {}
    texts = _lookup(table[name].combine_chunks(), keys)
    return {f"{name}.{key}": column for key, column in texts.items()}


def _lookup_stats(table: pa.Table, keys: list[str]) -> dict[str, pa.Array]:
    """Look up the row count and the bounds and counts of `keys` in the `stats` column."""
    if "stats" not in table.column_names or table["stats"].null_count == table.num_rows:
        return {}
    members = _lookup_raw(table["stats"].combine_chunks(), ["numRecords", *STATS_MAPS])
    columns = {
        f"stats.{key}": parse_counts(_scalar_texts(raws))
        for key, raws in members.items()
        if key == "numRecords"
    }
    for name in STATS_MAPS:
        if name not in members:
            continue
        inner = make_array(list(map(bytes, members[name])), pa.binary()).view(pa.string())
        for key, texts in _lookup(inner, keys).items():
            counts = name in STATS_COUNTS
            columns[f"stats.{name}.{key}"] = parse_counts(texts) if counts else texts
    return columns


def parse_counts(texts: pa.Array) -> pa.Array:
    """Convert texts to int64. Text that is not an integer becomes null: unknown."""
    plain = pc.match_substring_regex(texts, _PLAIN_INTEGER)
    if plain.true_count == len(texts) - texts.null_count:
        return pc.cast(texts, pa.int64())
    raws = [msgspec.Raw((text or "null").encode()) for text in texts.to_pylist()]
    return make_array([parse_lenient(FieldKind.INT, raw) for raw in raws], pa.int64())


def _members(text: str | bytes | None) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object; empty if the text is not a JSON object.

    Not an error, because other writers may put anything into the statistics.
    """
    if text is None:
        return {}
    try:
        return JSON_OBJECT_DECODER.decode(text)
    except JSON_ERRORS:
        return {}


def _lookup(texts: pa.Array, keys: Sequence[str]) -> dict[str, pa.Array]:
    """Look up keys in JSON objects: a column of text for each key that at least one of them has."""
    return {key: _scalar_texts(raws) for key, raws in _lookup_raw(texts, keys).items()}


def _lookup_raw(texts: pa.Array, keys: Sequence[str]) -> dict[str, list[msgspec.Raw]]:
    """Look up keys in JSON objects: the values of each key that at least one of them has.

    One call reads all objects. If one of them is not an object, or a key cannot be the name of a
    struct's field, each object is read by itself.
    """
    objects = _decode_objects(texts, keys)
    if objects is None:
        maps = [_members(text) for text in texts.to_pylist()]
        present = set().union(*maps)
        return {key: [map_.get(key, JSON_NULL) for map_ in maps] for key in keys if key in present}
    columns = {key: list(map(attrgetter(f"f{i}"), objects)) for i, key in enumerate(keys)}
    return {key: raws for key, raws in columns.items() if not all(map(is_, raws, repeat(_ABSENT)))}


def _decode_objects(texts: pa.Array, keys: Sequence[str]) -> list[Any] | None:
    """Decode JSON objects with one call; None if a text is no object. A null is an empty object.

    Statistics are the text of any writer, so that one text could have two objects, and two texts
    one; see `decode_lines` for why it is excluded.
    """
    texts = pc.fill_null(_without(texts, pc.equal(texts, _NULL_TEXT)), _EMPTY_OBJECT)
    braces = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if braces.true_count < len(texts):
        return None
    array = pc.binary_join(
        pa.ListArray.from_arrays(make_array([0, len(texts)], pa.int32()), texts), _LINE_FEED
    )
    try:
        objects = _members_decoder(tuple(keys)).decode_lines(array[0].as_buffer())
    except JSON_ERRORS:
        return None
    return objects if len(objects) == len(texts) else None


@lru_cache(64)
def _members_decoder(keys: tuple[str, ...]) -> Any:
    """Return a decoder of JSON objects, of which it keeps some members.

    Raises `ValueError` if a key has characters that msgspec does not accept in names.
    """
    names = [f"f{i}" for i in range(len(keys))]
    struct: Any = msgspec.defstruct(
        "members",
        [(name, msgspec.Raw, _ABSENT) for name in names],
        rename=dict(zip(names, keys, strict=True)),
        gc=False,
    )
    return msgspec.json.Decoder(struct)


def _scalar_texts(raws: Sequence[msgspec.Raw]) -> pa.Array:
    """Return scalars as text, as `scalar_text` does for one."""
    data = list(map(bytes, raws))
    firsts = {text[:1] for text in data}
    if firsts <= {b'"', b"n"}:
        return _unquote(data)
    if b'"' in firsts:
        return make_array([scalar_text(raw) for raw in raws], pa.string())
    texts = make_array(data, pa.binary()).view(pa.string())
    if firsts.isdisjoint((b"n", b"{", b"[")):
        return texts
    starts = pc.starts_with
    no_scalar = pc.or_(pc.or_(starts(texts, "{"), starts(texts, "[")), pc.equal(texts, _NULL_TEXT))
    return _without(texts, no_scalar)


def scalar_text(raw: msgspec.Raw) -> str | None:
    """Return a scalar as text, as a map of strings would hold it; numbers keep every digit.

    An object or an array is not a scalar and gives None.
    """
    text = _json_text(raw)
    return None if text is None or (bytes(raw)[:1] in (b"{", b"[")) else text


@dataclass(frozen=True, slots=True)
class NonAddLines:
    """Lines outside the buffer, each ending with a line feed, and their sequence numbers."""

    seq: pa.Array
    lines: pa.Array

    def filter(self, mask: pa.Array, pool: pa.MemoryPool | None = None) -> NonAddLines:
        """Return the lines that a boolean mask selects."""
        seq = pc.filter(self.seq, mask, memory_pool=pool)
        return NonAddLines(seq, pc.filter(self.lines, mask, memory_pool=pool))

    @classmethod
    def join(cls, parts: Sequence[NonAddLines]) -> NonAddLines:
        """Concatenate the lines of several parts."""
        seqs = concat_typed_arrays([part.seq for part in parts], pa.int64())
        return cls(seqs, concat_typed_arrays([part.lines for part in parts], pa.binary()))


COMMIT_INFO_PREFIX = b'{"commitInfo":'


class AppTransaction(msgspec.Struct, gc=False):
    """An application transaction: the version of an idempotent write of application `appId`."""

    appId: str  # noqa: N815 -- the name on disk
    version: int


class CommitInfo(msgspec.Struct, gc=False):
    """The fields of a commitInfo that a snapshot needs."""

    numActions: int | None = None  # noqa: N815
    checksum: str | None = None
    timestamp: JsonInt64 | None = None
    txnId: str | None = None  # noqa: N815
    operation: str | None = None
    txn: AppTransaction | None = None
    inCommitTimestamp: JsonInt64 | None = None  # noqa: N815


def _line_struct(content: Any) -> Any:
    """Return the struct type of a line that holds a commitInfo of type `content`, nothing else."""
    fields = [("commitInfo", content)]
    return msgspec.defstruct("info", fields, forbid_unknown_fields=True, gc=False)


# Three views of a commitInfo: undecoded, the fields of `CommitInfo`, and all fields that a format
# declares.
_RAW_LINE: Any = msgspec.json.Decoder(_line_struct(msgspec.Raw))
_INFO_LINE: Any = msgspec.json.Decoder(_line_struct(CommitInfo))
_INFO_OBJECT = msgspec.json.Decoder(CommitInfo)


class _AllFields:
    """Decodes all fields of the commitInfos of one format."""

    def __init__(self, fields: ActionFields) -> None:
        struct = make_action_struct(fields, "commitInfo")
        self.kinds = fields.fields["commitInfo"]
        self.line: Any = msgspec.json.Decoder(_line_struct(struct))
        self.object: Any = msgspec.json.Decoder(struct)

    def values(self, raw: msgspec.Raw) -> list[Any]:
        """Return the values in the order of the fields; None for an unexpected type."""
        try:
            return self.to_values(self.object.decode(raw))
        except JSON_ERRORS:
            pass
        try:
            members: dict[str, msgspec.Raw] = JSON_OBJECT_DECODER.decode(raw)
        except JSON_ERRORS:
            members = {}
        typed = [(kind, members.get(name, JSON_NULL)) for name, kind in self.kinds.items()]
        return [
            _raw_text(raw) if kind is FieldKind.JSON else parse_lenient(kind, raw)
            for kind, raw in typed
        ]

    def to_values(self, decoded: Any) -> list[Any]:
        """Return the values of a decoded commitInfo in the order of the fields."""
        return [
            _raw_text(getattr(decoded, name)) if kind is FieldKind.JSON else getattr(decoded, name)
            for name, kind in self.kinds.items()
        ]


_all_fields = cache(_AllFields)


@dataclass(frozen=True, slots=True)
class CommitInfoLines:
    """Lines that hold a commitInfo and nothing else.

    Each line ends with a line feed. `seq` are the sequence numbers of the lines, `found` the parsed
    commitInfos. `fields` are those that the format of the log declares.
    """

    seq: pa.Array
    lines: pa.Array
    found: list[CommitInfo]
    fields: ActionFields

    def with_seq_offset(self, by: int) -> CommitInfoLines:
        """Return the same lines with sequence numbers increased by `by`."""
        return replace(self, seq=pc.add(self.seq, make_int64(by)))

    def table(self) -> pa.Table:
        """Return a table with `seq` and every known field that at least one commitInfo has."""
        return build_info_table(self.seq, self.lines, self.fields)


def build_info_table(seq: pa.Array, lines: pa.Array, fields: ActionFields) -> pa.Table:
    """Decode lines of commitInfos one by one; see `CommitInfoLines.table`."""
    declared = _all_fields(fields)
    decoded = _decode_all(declared.line, lines)
    if decoded is None:
        raws = [_RAW_LINE.decode(text).commitInfo for text in lines.to_pylist()]
        rows = [declared.values(raw) for raw in raws]
    else:
        rows = [declared.to_values(line.commitInfo) for line in decoded]
    columns: dict[str, Any] = {"seq": seq}
    for (name, kind), values in zip(declared.kinds.items(), zip(*rows, strict=True), strict=True):
        if any(value is not None for value in values):
            columns[name] = make_array(values, kind.type)
    return pa.table(columns)


def lines_from_raw_infos(
    seqs: Sequence[int], raws: Sequence[msgspec.Raw], fields: ActionFields
) -> CommitInfoLines:
    """Build `CommitInfoLines` from commitInfos that the row decoder extracted from their lines."""
    lines = [b"".join((COMMIT_INFO_PREFIX, bytes(raw), b"}\n")) for raw in raws]
    return CommitInfoLines(
        make_array(seqs, pa.int64()),
        make_array(lines, pa.binary()),
        [parse_commit_info(raw, fields) for raw in raws],
        fields,
    )


def parse_commit_infos(
    seq: pa.Array, lines: pa.Array, fields: ActionFields
) -> tuple[CommitInfoLines, pa.Array | None]:
    """Parse the lines that hold a commitInfo and nothing else.

    Returns them and a mask of the other lines; the mask is None if there are no other lines.
    """
    decoded = _decode_all(_INFO_LINE, lines)
    if decoded is not None:
        return CommitInfoLines(seq, lines, [line.commitInfo for line in decoded], fields), None
    raws = [extract_commit_info(text) for text in lines.to_pylist()]
    is_info = make_array([raw is not None for raw in raws], pa.bool_())
    infos = [parse_commit_info(raw, fields) for raw in raws if raw is not None]
    parsed = CommitInfoLines(seq.filter(is_info), lines.filter(is_info), infos, fields)
    return parsed, pc.invert(is_info)


def _decode_all(decoder: Any, lines: pa.Array) -> list[Any] | None:
    """Decode all lines with one call; None if the decoder rejects any of them.

    All lines begin with a brace. If they end with one, too, each line is one object; see
    `decode_lines`.
    """
    if pc.ends_with(lines, b"}\n").true_count < len(lines):
        return None
    try:
        text = concat_bytes(lines)
        if pc.max(bytes_to_array(text)).as_py() > 127:
            str(text, "utf-8")  # msgspec does not validate UTF-8 in the fields that it skips
        decoded: list[Any] = decoder.decode_lines(text)
    except JSON_ERRORS:
        return None
    return decoded if len(decoded) == len(lines) else None


def extract_commit_info(text: bytes) -> msgspec.Raw | None:
    """Return the commitInfo in a line that holds nothing else; None for any other line."""
    try:
        text.decode()
        raw: msgspec.Raw = _RAW_LINE.decode(text).commitInfo
    except JSON_ERRORS:
        return None
    return None if bytes(raw) == b"null" else raw


def parse_commit_info(info: msgspec.Raw, fields: ActionFields = ACTIONS) -> CommitInfo:
    """Parse a commitInfo. Fields of an unexpected type count as absent; never raises."""
    try:
        return _INFO_OBJECT.decode(info)
    except JSON_ERRORS:
        pass
    declared = _all_fields(fields)
    values = dict(zip(declared.kinds, declared.values(info), strict=True))
    known = ("numActions", "timestamp", "txnId", "inCommitTimestamp")
    return CommitInfo(**{name: values.get(name) for name in known})


def commit_info_from_row(row: Mapping[str, Any]) -> CommitInfo:
    """Build a `CommitInfo` from a row of decoded commitInfos, without the declared action count."""
    txn = row.get("txn")
    try:
        app_transaction = None if txn is None else msgspec.json.decode(txn, type=AppTransaction)
    except JSON_ERRORS:
        app_transaction = None
    return CommitInfo(
        timestamp=row.get("timestamp"),
        txnId=row.get("txnId"),
        txn=app_transaction,
        inCommitTimestamp=row.get("inCommitTimestamp"),
    )


def _raw_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode()


def read_commit_time(data: bytes, table_format: Format = INDEXTABLES) -> int | None:
    """Return the commit's timestamp in milliseconds, as the commit itself declares it.

    That is the time in its commitInfo or, in a commit without one (version 0), the `createdTime` of
    its metaData, if these count in the format. Returns None if it declares neither. Raises
    `LogCorrupt` if the line that holds either is not valid.
    """
    created: int | None = None
    fields = table_format.actions
    for text in data.split(b"\n"):
        if b'"commitInfo"' in text or b'"metaData"' in text:
            action = decode_line(text, "", 0, fields)
            if action is not None and action[0] == "commitInfo":
                info = parse_commit_info(action[1], fields)
                time: int | None = getattr(info, table_format.commit_time_field)
                return time
            if action is not None and action[0] == "metaData":
                created = action[1].createdTime
    return created if table_format.creation_time_counts else None

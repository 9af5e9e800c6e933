"""Decode JSON lines one by one: exact, strict, and the judge of every odd case.

The columnar decoder in `shape` hands over what it cannot prove. Here a line is read by a typed
parser: right fields of the right type, or `LogCorrupt` with file and line. Maps stay JSON text,
byte for byte, until somebody asks for a key of them; then `flatten` looks it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.errors import LogCorrupt
from arrowlog.log.actions import (
    ALIASES,
    FIELDS,
    FLAT_FIELDS,
    REQUIRED,
    STATS_MAPS,
    Kind,
    Metadata,
    Protocol,
)
from arrowlog.log.arrays import FALSE, array_of, flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NULL = msgspec.Raw(b"null")
INT64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_TYPES: dict[Kind, tuple[Any, Any]] = {
    Kind.TEXT: (str | None, None),
    Kind.WORD: (str | None, None),
    Kind.INT: (INT64 | None, None),
    Kind.BOOL: (bool | None, None),
    Kind.FLAT: (msgspec.Raw, NULL),
    Kind.JSON: (msgspec.Raw, NULL),
    Kind.STATS: (msgspec.Raw, NULL),
}
_NEXT = "Restore the file from a backup, or read an earlier version."
_BLANK = b" \t\r"


def struct_of(action: str) -> Any:
    """The fields of an action, as a typed parser takes them."""
    must = REQUIRED[action]
    first = [(name, _TYPES[FIELDS[action][name]][0].__args__[0]) for name in must]
    rest = [(name, *_TYPES[kind]) for name, kind in FIELDS[action].items() if name not in must]
    return msgspec.defstruct(action, [*first, *rest], gc=False)


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


_LINE = msgspec.defstruct(
    "line",
    [
        ("add", struct_of("add") | None, None),
        ("remove", struct_of("remove") | None, None),
        ("mergeskip", struct_of("mergeskip") | None, None),
        ("skip", struct_of("mergeskip") | None, None),
        ("protocol", _Protocol | None, None),
        ("metaData", _Metadata | None, None),
        ("commitInfo", msgspec.Raw, NULL),
    ],
    gc=False,
)
_DECODER = msgspec.json.Decoder(_LINE)
_NAMES = [(name, ALIASES.get(name, name)) for name in _LINE.__struct_fields__]
_PROBE = msgspec.json.Decoder(msgspec.defstruct("probe", [("protocol", msgspec.Raw, NULL)]))
MAP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()
BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def decode_line(text: bytes, file: str, number: int) -> tuple[str, Any] | None:
    """The action in a line and its fields; None for a blank line or an action nobody knows."""
    if not text.strip(_BLANK):
        return None
    try:
        text.decode()
        line: Any = _DECODER.decode(text)
    except BROKEN as error:
        raise _corrupt(text, error, file, number) from None
    found: tuple[str, Any] | None = None
    for name, action in _NAMES:
        value = getattr(line, name)
        if value is None or (name == "commitInfo" and bytes(value) == b"null"):
            continue
        if found is not None:
            what = f"the line holds more than one action: {found[0]} and {action}."
            raise LogCorrupt(what, next=_NEXT, file=file, line=number)
        found = (action, value)
    if found is not None and found[0] == "add":
        _check_maps(found[1], file, number)
    return found


def _check_maps(add: Any, file: str, number: int) -> None:
    for name in FLAT_FIELDS:
        if bytes(getattr(add, name))[:1] not in (b"{", b"n"):
            raise LogCorrupt(f"add.{name} is not an object.", next=_NEXT, file=file, line=number)


def _corrupt(text: bytes, error: Exception, file: str, number: int) -> LogCorrupt:
    if text.startswith(b"\xef\xbb\xbf"):
        why = "the line starts with a byte order mark, which JSON does not allow"
    elif isinstance(error, UnicodeDecodeError):
        why = f"the bytes at position {error.start} are not UTF-8"
    elif isinstance(error, RecursionError):
        why = "the JSON is nested too deeply"
    else:
        why = f"not a valid action: {error}"
    return LogCorrupt(f"{why}.", next=_NEXT, file=file, line=number)


def protocol_of(text: bytes) -> Protocol | None:
    """The protocol in a line, if there is one that can be made out; never an error."""
    if b'"protocol"' not in text:
        return None
    try:
        raw: Any = _PROBE.decode(text)
        found = msgspec.json.decode(raw.protocol, type=_Protocol | None)
    except BROKEN:
        return None
    return None if found is None else to_protocol(found)


def to_protocol(found: Any) -> Protocol:
    """A decoded `protocol` as ours."""
    return Protocol(
        found.minReaderVersion,
        found.minWriterVersion,
        tuple(found.readerFeatures or ()),
        tuple(found.writerFeatures or ()),
    )


def read_protocol(text: bytes | msgspec.Raw) -> Protocol:
    """A `protocol` by itself; `ValueError` if it is none."""
    return to_protocol(msgspec.json.decode(text, type=_Protocol))


def read_metadata(text: bytes | msgspec.Raw) -> Metadata:
    """A `metaData` by itself; `ValueError` if it is none."""
    return to_metadata(msgspec.json.decode(text, type=_Metadata))


def to_metadata(found: Any) -> Metadata:
    """A decoded `metaData` as ours. A null property equals an absent one."""
    form = found.format or _Format()
    return Metadata(
        id=found.id,
        schema_string=found.schemaString,
        partition_columns=tuple(found.partitionColumns or ()),
        configuration=_without_nulls(found.configuration),
        name=found.name,
        description=found.description,
        format_provider=form.provider or "indextables",
        format_options=_without_nulls(form.options),
        created_time=found.createdTime,
    )


def _without_nulls(values: dict[str, str | None] | None) -> dict[str, str]:
    return {key: value for key, value in (values or {}).items() if value is not None}


def table_of(action: str, rows: Sequence[int], found: Sequence[Any]) -> pa.Table:
    """Decoded lines of one action as a table; `rows` says which line each of them is."""
    columns: dict[str, pa.Array] = {"seq": array_of(rows, pa.int64())}
    tuples = zip(*map(msgspec.structs.astuple, found), strict=True)
    fields = dict(zip(found[0].__struct_fields__, map(list, tuples), strict=True))
    for name, kind in FIELDS[action].items():
        values = fields[name]
        if kind in (Kind.FLAT, Kind.JSON, Kind.STATS):
            values = [_text(value) for value in values]
        if any(value is not None for value in values):
            array = array_of(values, pa.string() if kind is Kind.WORD else kind.type)
            columns[name] = array.dictionary_encode() if kind is Kind.WORD else array
    if action == "add":
        columns["raw"] = flags(True, len(found))
    return pa.table(columns)


def _text(raw: msgspec.Raw) -> str | None:
    """The JSON text of a field; a string that holds JSON is that JSON."""
    text = bytes(raw)
    if text == b"null":
        return None
    return _ANY.decode(text) if text[:1] == b'"' else text.decode()


def lenient(kind: Kind, raw: msgspec.Raw) -> Any:
    """A number or a text, if it is one."""
    text = bytes(raw)
    wanted: Any = INT64 if kind is Kind.INT else str
    try:
        return msgspec.json.decode(text, type=wanted | None)
    except BROKEN:
        return None


def flatten(adds: pa.Table, keys: Iterable[str]) -> pa.Table:
    """The adds with `partitionValues.key`, `minValues.key` … as columns, for the keys asked for.

    Rows that came through the columnar decoder have them already; this looks them up in the JSON
    text of the others. The text stays, so nothing is lost for keys nobody asked about. Rows keep
    their order: masks over the adds hold for what comes out.
    """
    if "raw" not in adds.column_names or not pc.any(adds["raw"]).as_py():
        return adds
    raw = pc.fill_null(adds["raw"], FALSE).combine_chunks()
    wanted = list(keys)
    texts = [name for name in (*FLAT_FIELDS, "stats") if name in adds.column_names]
    rest = adds.select(texts).filter(raw)
    found: dict[str, pa.Array] = {}
    for name in FLAT_FIELDS:
        found |= _lookups(rest, name, wanted, f"{name}.")
    found |= _lookup_stats(rest, wanted)
    if rest.num_rows < adds.num_rows:
        found = {name: _placed(adds, name, raw, values) for name, values in found.items()}
    columns = {name: adds[name] for name in adds.column_names}
    return pa.table(columns | found)


def _placed(adds: pa.Table, name: str, raw: pa.Array, values: pa.Array) -> pa.Array:
    """A column in which the raw rows have these values and the others what they had."""
    present = name in adds.column_names
    base = adds[name].combine_chunks() if present else pa.nulls(adds.num_rows, values.type)
    return pc.replace_with_mask(base, raw, values)


def _lookups(table: pa.Table, name: str, keys: list[str], prefix: str) -> dict[str, pa.Array]:
    if name not in table.column_names or table[name].null_count == table.num_rows:
        return {}
    return _lookup([_object(text) for text in table[name].to_pylist()], keys, prefix)


def _lookup_stats(table: pa.Table, keys: list[str]) -> dict[str, pa.Array]:
    if "stats" not in table.column_names or table["stats"].null_count == table.num_rows:
        return {}
    texts = [_object(text) for text in table["stats"].to_pylist()]
    columns = _counts(_lookup(texts, ["numRecords"], "stats."))
    for name in STATS_MAPS:
        inner = [_object(bytes(text.get(name, NULL))) for text in texts]
        found = _lookup(inner, keys, f"stats.{name}.")
        columns |= _counts(found) if name == "nullCount" else found
    return columns


def _counts(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Numbers of rows as integers; what is none is unknown."""
    return {
        name: array_of(
            [lenient(Kind.INT, msgspec.Raw((text or "null").encode())) for text in texts],
            pa.int64(),
        )
        for name, texts in ((name, array.to_pylist()) for name, array in columns.items())
    }


def _object(text: str | bytes | None) -> dict[str, msgspec.Raw]:
    """The members of a JSON object; none if it is something else. Statistics may be anything."""
    if text is None:
        return {}
    try:
        return MAP.decode(text)
    except BROKEN:
        return {}


def _lookup(
    maps: list[dict[str, msgspec.Raw]], keys: list[str], prefix: str
) -> dict[str, pa.Array]:
    present = set().union(*maps)
    return {
        prefix + key: array_of([_scalar(found.get(key, NULL)) for found in maps], pa.string())
        for key in keys
        if key in present
    }


def _scalar(raw: msgspec.Raw) -> str | None:
    """A value as the text a map of strings would hold; numbers keep every digit."""
    text = _text(raw)
    return None if text is None or (bytes(raw)[:1] in (b"{", b"[")) else text

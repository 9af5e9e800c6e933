"""Table states of protocol 4: `state-v<version>/_manifest.avro`, its manifests and pointer. Pure.

A state names the manifests that hold the live files of a version, and the paths among them that
are dead. The schemas here are those that are written; files are read by their own schema, field by
name.

A manifest has bounds of its partition values. Writers order the values pairwise: as integers if
both are, else as floating point numbers if both are, else as text. Over a mix of numbers and other
text that is no order (9 < 10 < 1a < 9), and the bounds may exclude values that they should contain.
So only some bounds can be trusted.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrowlog.arrays import make_array
from arrowlog.errors import LogCorrupt
from arrowlog.formats import (
    MAX_VERSION,
    Container,
    ValueDamaged,
    damaged,
    encode_bytes,
    encode_long,
    read_container,
    read_value,
    unsupported,
    write_container,
)
from arrowlog.formats.indextables.format import (
    STATE_KIND,
    STATE_PROTOCOL_VERSION,
    state_folder_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MANIFEST_FOLDER = "manifests"
STATE_FORMAT_VERSION = 1
ENTRIES_PER_MANIFEST = 50_000  # what other writers put into one manifest, at most
# A state has some hundred bytes per manifest and per tombstone, and becomes Python objects.
_MAX_STATE_BYTES = 1 << 28
_MANIFEST_ID = re.compile(r"[0-9a-f]{16}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_NEXT_STEP = "Restore the file from a backup, or read an earlier version."
_NAMESPACE = "io.indextables.state"
_ANNOTATION_KEY = "arrowlog.state"

# Fields of an entry with their numbers and types, in the order in which they are written. A type
# with a question mark is a union with null.
FILE_ENTRY_FIELDS: dict[str, tuple[int, str]] = {
    "path": (100, "string"),
    "partitionValues": (101, "map"),
    "size": (102, "long"),
    "modificationTime": (103, "long"),
    "dataChange": (104, "boolean"),
    "stats": (110, "string?"),
    "minValues": (111, "map?"),
    "maxValues": (112, "map?"),
    "numRecords": (113, "long?"),
    "footerStartOffset": (120, "long?"),
    "footerEndOffset": (121, "long?"),
    "hasFooterOffsets": (124, "boolean"),
    "deleteOpstamp": (123, "long?"),
    "splitTags": (132, "array?"),
    "numMergeOps": (134, "int?"),
    "docMappingJson": (133, "string?"),
    "docMappingRef": (135, "string?"),
    "uncompressedSizeBytes": (136, "long?"),
    "timeRangeStart": (137, "string?"),
    "timeRangeEnd": (138, "string?"),
    "addedAtVersion": (140, "long"),
    "addedAtTimestamp": (141, "long"),
    "companionSourceFiles": (150, "array?"),
    "companionDeltaVersion": (151, "long?"),
    "companionFastFieldMode": (152, "string?"),
}


def _avro_type(name: str) -> Any:
    if name.endswith("?"):
        return ["null", _avro_type(name[:-1])]
    if name == "map":
        return {"type": "map", "values": "string"}
    return {"type": "array", "items": "string"} if name == "array" else name


def _file_entry_schema() -> str:
    fields = []
    for name, (number, kind) in FILE_ENTRY_FIELDS.items():
        item: dict[str, Any] = {"name": name, "type": _avro_type(kind), "field-id": number}
        if kind.endswith("?"):
            item["default"] = None
        elif name == "hasFooterOffsets":
            item["default"] = False
        fields.append(item)
    schema = {"type": "record", "name": "FileEntry", "namespace": _NAMESPACE, "fields": fields}
    return msgspec.json.encode(schema).decode()


_BOUNDS_ITEM = {
    "type": "record",
    "name": "PartitionBoundsItem",
    "fields": [
        {"name": "min", "type": ["null", "string"], "default": None},
        {"name": "max", "type": ["null", "string"], "default": None},
    ],
}
_INFO_ITEM = {
    "type": "record",
    "name": "ManifestInfoItem",
    "fields": [
        {"name": "path", "type": "string"},
        {"name": "numEntries", "type": "long"},
        {"name": "minAddedAtVersion", "type": "long"},
        {"name": "maxAddedAtVersion", "type": "long"},
        {
            "name": "partitionBounds",
            "type": ["null", {"type": "map", "values": _BOUNDS_ITEM}],
            "default": None,
        },
        {"name": "tombstoneCount", "type": "long", "default": 0},
        {"name": "liveEntryCount", "type": "long", "default": -1},
    ],
}
_STATE = {
    "type": "record",
    "name": "StateManifest",
    "namespace": _NAMESPACE,
    "fields": [
        {"name": "formatVersion", "type": "int"},
        {"name": "stateVersion", "type": "long"},
        {"name": "createdAt", "type": "long"},
        {"name": "numFiles", "type": "long"},
        {"name": "totalBytes", "type": "long"},
        {"name": "manifests", "type": {"type": "array", "items": _INFO_ITEM}},
        {"name": "tombstones", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "schemaRegistry", "type": {"type": "map", "values": "string"}, "default": {}},
        {"name": "protocolVersion", "type": "int", "default": STATE_PROTOCOL_VERSION},
        {"name": "metadata", "type": ["null", "string"], "default": None},
    ],
}
FILE_ENTRY_SCHEMA = _file_entry_schema()
STATE_SCHEMA = msgspec.json.encode(_STATE).decode()


class ManifestInfo(msgspec.Struct, frozen=True):
    """A manifest as its state describes it; `path` is relative to the log folder.

    `partition_bounds` has the least and the greatest partition value per column, None if unknown.
    `num_entries` is exact; the two counts at the end are estimates of the writer.
    """

    path: str
    num_entries: int
    partition_bounds: Mapping[str, PartitionBounds] | None = None
    min_added_at_version: int = 0
    max_added_at_version: int = 0
    tombstone_count: int = 0
    live_entry_count: int = -1


class StateManifest(msgspec.Struct, frozen=True):
    """The state of a table at a version.

    `num_files` and `total_bytes` are estimates of the writer. `schema_registry` maps references to
    doc mappings, without the prefix that some writers put before them. `metadata` is the JSON text
    of the `metaData` action's fields, None if the state has none. `annotation` is JSON that only
    arrowlog writes, in the header of the file, where other readers ignore it.
    """

    state_version: int
    created_at: int
    num_files: int
    total_bytes: int
    manifests: tuple[ManifestInfo, ...] = ()
    tombstones: tuple[str, ...] = ()
    schema_registry: Mapping[str, str] = msgspec.field(default_factory=dict)
    protocol_version: int = STATE_PROTOCOL_VERSION
    metadata: str | None = None
    annotation: bytes | None = None


class StatePointer(msgspec.Struct, frozen=True):
    """The content of `_last_checkpoint` on a table with states: a hint that may be outdated."""

    version: int
    num_files: int
    size_in_bytes: int
    created_time: int


def new_manifest_path(unique: str) -> str:
    """Return the path of a new manifest in the log folder; `unique` is 16 hexadecimal digits."""
    if not _MANIFEST_ID.fullmatch(unique):
        raise ValueError(f"{unique!r} is not 16 hexadecimal digits")
    return f"{MANIFEST_FOLDER}/manifest-{unique}.avro"


def resolve_manifest_path(path: str, version: int, file: str) -> str:
    """Return the path of a manifest relative to the log folder.

    A path with a slash is relative to it already; a bare name is in the folder of the state. Raises
    `LogCorrupt` naming the state's `file` if the path leads elsewhere.
    """
    parts = path.split("/")
    outside = any(part in ("", ".", "..") for part in parts) or _SCHEME.match(path)
    if outside or "\\" in path or not path.isprintable():
        raise LogCorrupt(
            f"the state names the manifest {path!r}, which is not a path inside the log.",
            next="Find out which program wrote this file before you use the table.",
            file=file,
        )
    return path if len(parts) > 1 else f"{state_folder_name(version)}/{path}"


def parse_state(data: bytes, file: str, version: int, limit: int) -> StateManifest:
    """Parse the `_manifest.avro` of a state in the folder of `version`.

    `limit` is the number of bytes that it may have uncompressed. Raises `LogCorrupt` naming `file`
    if it is damaged or belongs to another version, and `UnsupportedProtocol` if it needs a newer
    reader.
    """
    container = read_container(data, file, min(limit, _MAX_STATE_BYTES))
    record = _Record(_only_record(container), file, "the state")
    format_version = record.integer("formatVersion")
    if format_version != STATE_FORMAT_VERSION:
        raise unsupported(file, f"the state has format version {format_version}; 1 is known")
    protocol_version = record.integer("protocolVersion", STATE_PROTOCOL_VERSION)
    if protocol_version > STATE_PROTOCOL_VERSION:
        raise unsupported(
            file, f"the state requires protocol version {protocol_version}; 4 is known"
        )
    state_version = record.integer("stateVersion")
    if state_version != version:
        raise LogCorrupt(
            f"the state in the folder of version {version} says that it is of {state_version}.",
            next=_NEXT_STEP,
            file=file,
            code="state-misnumbered",
        )
    manifests = [
        _Record(item, file, "a manifest of the state") for item in record.list("manifests")
    ]
    return StateManifest(
        state_version,
        record.integer("createdAt"),
        record.integer("numFiles", -1),
        record.integer("totalBytes", -1),
        tuple(_manifest_info(item, version, file) for item in manifests),
        record.texts("tombstones"),
        {
            key.removeprefix("docMappingSchema."): text
            for key, text in record.text_map("schemaRegistry").items()
        },
        protocol_version,
        _unwrap_metadata(record.text("metadata"), file),
        container.metadata.get(_ANNOTATION_KEY),
    )


def _only_record(container: Container) -> Any:
    if container.num_records != 1:
        raise damaged(
            container.file, f"a state has one record, and this one {container.num_records}"
        )
    data = b"".join(bytes(piece) for piece in container.unpack(0, len(container.blocks)))
    try:
        record, end = read_value(container.schema, data, 0)
    except ValueDamaged as error:
        raise damaged(container.file, str(error)) from None
    if end != len(data):
        raise damaged(container.file, "there are bytes after the record")
    return record


def _manifest_info(item: _Record, version: int, file: str) -> ManifestInfo:
    bounds = item.optional_map("partitionBounds")
    num_entries = item.integer("numEntries")
    if num_entries < 0:
        raise damaged(file, "a manifest of the state has a negative number of entries")
    return ManifestInfo(
        resolve_manifest_path(item.required_text("path"), version, file),
        num_entries,
        None
        if bounds is None
        else {
            name: (bound.text("min"), bound.text("max"))
            for name, bound in (
                (name, _Record(value, file, "a partition bound")) for name, value in bounds.items()
            )
        },
        item.integer("minAddedAtVersion", 0),
        item.integer("maxAddedAtVersion", 0),
        item.integer("tombstoneCount", 0),
        item.integer("liveEntryCount", -1),
    )


def _unwrap_metadata(text: str | None, file: str) -> str | None:
    """Return the fields of the `metaData` action; old writers did not wrap them."""
    if text is None:
        return None
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise damaged(file, "the metadata of the state is not a JSON object") from None
    inner = members.get("metaData")
    return text if inner is None else bytes(inner).decode()


class _Record:
    """A decoded record whose fields have the types that the specification gives them."""

    def __init__(self, values: Any, file: str, what: str) -> None:
        self._file, self._what = file, what
        if not isinstance(values, dict):
            raise unsupported(file, f"{what} is not a record")
        self._values: dict[str, Any] = values

    def _wrong(self, name: str) -> Exception:
        return unsupported(self._file, f"{self._what} has no {name!r} of the expected type")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name)
        return value

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name)
        return value

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise self._wrong(name)
        return value

    def list(self, name: str) -> list[Any]:
        value = self._values.get(name, [])
        if not isinstance(value, list):
            raise self._wrong(name)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.list(name)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name)
        return tuple(values)

    def optional_map(self, name: str) -> dict[str, Any] | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name)
        return value

    def text_map(self, name: str) -> dict[str, str]:
        values = self.optional_map(name) or {}
        if not all(isinstance(value, str) for value in values.values()):
            raise self._wrong(name)
        return values


def encode_state(state: StateManifest, sync: bytes) -> bytes:
    """Encode a state as the bytes of `_manifest.avro`; `sync` is 16 random bytes."""
    metadata = None if state.metadata is None else f'{{"metaData":{state.metadata}}}'
    record = b"".join(
        [
            encode_long(STATE_FORMAT_VERSION),
            encode_long(state.state_version),
            encode_long(state.created_at),
            encode_long(state.num_files),
            encode_long(state.total_bytes),
            _encode_items(_encode_info(info) for info in state.manifests),
            _encode_items(_encode_text(path) for path in state.tombstones),
            _encode_items(
                _encode_text(key) + _encode_text(text)
                for key, text in state.schema_registry.items()
            ),
            encode_long(state.protocol_version),
            _encode_optional(metadata),
        ]
    )
    further = {} if state.annotation is None else {_ANNOTATION_KEY: state.annotation}
    return write_container(STATE_SCHEMA, [(1, record)], sync, further=further)


def _encode_info(info: ManifestInfo) -> bytes:
    bounds = b"\x00"
    if info.partition_bounds is not None:
        bounds = b"\x02" + _encode_items(
            _encode_text(name) + _encode_optional(low) + _encode_optional(high)
            for name, (low, high) in info.partition_bounds.items()
        )
    return b"".join(
        [
            _encode_text(info.path),
            encode_long(info.num_entries),
            encode_long(info.min_added_at_version),
            encode_long(info.max_added_at_version),
            bounds,
            encode_long(info.tombstone_count),
            encode_long(info.live_entry_count),
        ]
    )


def _encode_text(text: str) -> bytes:
    return encode_bytes(text.encode())


def _encode_optional(text: str | None) -> bytes:
    return b"\x00" if text is None else b"\x02" + _encode_text(text)


def _encode_items(items: Iterable[bytes]) -> bytes:
    """Encode the items of an array or a map as one block, if there are any."""
    encoded = list(items)
    return (encode_long(len(encoded)) if encoded else b"") + b"".join(encoded) + b"\x00"


def encode_state_pointer(pointer: StatePointer) -> bytes:
    """Encode the content of `_last_checkpoint` that names a state."""
    return msgspec.json.encode(
        {
            "version": pointer.version,
            "size": pointer.num_files,
            "sizeInBytes": pointer.size_in_bytes,
            "numFiles": pointer.num_files,
            "createdTime": pointer.created_time,
            "format": STATE_KIND,
            "stateDir": state_folder_name(pointer.version),
        }
    )


def parse_state_pointer(data: bytes) -> StatePointer | None:
    """Return the pointer in a `_last_checkpoint`; None if it is of another format or damaged.

    A pointer is a hint: one that contradicts itself is treated as absent.
    """
    try:
        values = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get("format") != STATE_KIND:
        return None
    numbers = []
    for name in ("version", "numFiles", "sizeInBytes", "createdTime"):
        value = values.get(name, 0 if name != "version" else None)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_VERSION:
            return None
        numbers.append(value)
    if values.get("stateDir", state_folder_name(numbers[0])) != state_folder_name(numbers[0]):
        return None
    return StatePointer(*numbers)


PartitionBounds = tuple[str | None, str | None]  # the least and the greatest value

_INT64 = range(-(1 << 63), 1 << 63)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Text that some language reads as a number although it does not look like one: infinities and NaN,
# hexadecimal, with a suffix, in spaces.
_ODD_NUMBER = re.compile(
    r"\s.*|.*\s|[+-]?(inf|infinity|nan|0x.*|[0-9.][0-9.e+-]*[df])", re.IGNORECASE
)
_EXACT_DIGITS = 15  # every decimal number of so many digits survives as a double
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})([T ][0-9:.]+(Z|[+-][0-9:]+)?)?")
# Ranges of texts that bounds of text say nothing about. '' is left out of them (as an upper bound
# it could begin any text). The others are numbers to some writers, for which NaN equals
# every number: where a manifest has several of them, the bounds may be those of the other texts.
_BEYOND_BOUNDS = (
    ("", "\0"),
    *((word, word) for word in ("NAN", "NaN", "Nan", "nan")),
    *(("INF", "INFINITY"), ("Inf", "Infinity"), ("inf", "infinity"), ("+", "+nan"), ("-", "-nan")),
)
_SURROGATES = "\ud800"  # characters from here on are sorted differently by UTF-16


def trusted_bounds(bounds: PartitionBounds | None, kind: pa.DataType) -> tuple[str, str] | None:
    """Return sound bounds of a column's partition values as text; None if nothing is known.

    They say nothing about NULL, and for text nothing about ''. Bounds of timestamps are widened to
    whole days, because text with different zones does not sort by time.
    """
    if bounds is None or bounds[0] is None or bounds[1] is None:
        return None
    low, high = bounds[0], bounds[1]
    if pa.types.is_integer(kind):
        trusted = _is_int64(low) and _is_int64(high) and int(low) <= int(high)
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        trusted = _is_exact(low) and _is_exact(high) and float(low) <= float(high)
    elif pa.types.is_date(kind):
        trusted = _is_day(low) and _is_day(high) and low <= high
    elif pa.types.is_timestamp(kind):
        return _widened_days(low, high)
    elif pa.types.is_string(kind):
        odd = _ODD_NUMBER.fullmatch(low) or _ODD_NUMBER.fullmatch(high)
        trusted = not odd and low[:1] > "9" and max(low + high) < _SURROGATES and low <= high
    else:
        trusted = False
    return (low, high) if trusted else None


def _is_int64(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT64


def _is_exact(text: str) -> bool:
    """Return whether a text is a number that a double represents without loss of digits."""
    if not _NUMBER.fullmatch(text):
        return False
    digits = re.sub(r"[eE].*|[^0-9]", "", text).lstrip("0")
    return len(digits) <= _EXACT_DIGITS and math.isfinite(float(text))


def _is_day(text: str) -> bool:
    return _ISO_DATE.fullmatch(text) is not None and _day(text) is not None


def _day(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _widened_days(low: str, high: str) -> tuple[str, str] | None:
    """Return the days of two times, a day earlier and two days later: zones are below a day."""
    first, last = _ISO_TIME.fullmatch(low), _ISO_TIME.fullmatch(high)
    low_day = _day(first[1]) if first else None
    high_day = _day(last[1]) if last else None
    if low_day is None or high_day is None or low_day > high_day:
        return None
    try:
        begin, end = low_day - dt.timedelta(days=1), high_day + dt.timedelta(days=2)
    except OverflowError:
        return None
    return f"{begin.isoformat()}T00:00:00Z", f"{end.isoformat()}T00:00:00Z"


def compute_bounds(values: Iterable[str | None]) -> PartitionBounds | None:
    """Return the bounds of a column's distinct partition values, for a new manifest.

    None if there are none, if one is missing or empty, or if numbers and other text are mixed:
    then other readers would be misled.

    >>> compute_bounds(["9", "10"]), compute_bounds(["9", "1a"]), compute_bounds(["b", "a"])
    (('9', '10'), None, ('a', 'b'))
    """
    texts = list(values)
    if not texts or any(not text for text in texts):
        return None
    known = [text for text in texts if text]
    if all(_is_int64(text) for text in known):
        return min(known, key=int), max(known, key=int)
    if all(_is_exact(text) for text in known):
        return min(known, key=float), max(known, key=float)
    if any(_NUMBER.fullmatch(text) or _ODD_NUMBER.fullmatch(text) for text in known):
        return None
    if any(max(text) >= _SURROGATES for text in known):
        return None
    return min(known), max(known)


def bound_table(
    manifests: Iterable[Mapping[str, PartitionBounds] | None], columns: Mapping[str, pa.DataType]
) -> pa.Table:
    """Return the trusted bounds of manifests as rows for data skipping.

    A row with the number of its `manifest` and the text columns `low.<column>`, `high.<column>`
    describes some of its files; null is unknown. A manifest may be skipped if all its rows can be:
    it has one for the values within its bounds, and for each text column with bounds some for
    values that they may leave out.
    """
    rows: dict[str, list[int | str | None]] = {"manifest": []}
    for name in columns:
        rows |= {f"low.{name}": [], f"high.{name}": []}
    for number, bounds in enumerate(manifests):
        found = {
            name: trusted_bounds((bounds or {}).get(name), kind) for name, kind in columns.items()
        }
        texts = [n for n, kind in columns.items() if pa.types.is_string(kind) and found[n]]
        alternatives = [found]
        for name in texts:
            unknown = found | dict.fromkeys(texts)
            alternatives += [unknown | {name: pair} for pair in _BEYOND_BOUNDS]
        for alternative in alternatives:
            rows["manifest"].append(number)
            for name, pair in alternative.items():
                rows[f"low.{name}"].append(pair and pair[0])
                rows[f"high.{name}"].append(pair and pair[1])
    return _to_table(rows)


def _to_table(rows: dict[str, list[int | str | None]]) -> pa.Table:
    return pa.table(
        {
            name: make_array(values, pa.int64() if name == "manifest" else pa.string())
            for name, values in rows.items()
        }
    )

"""Table states of protocol 4: `state-v<version>/_manifest.avro`, its manifests and pointer. Pure.

A state names the manifests that hold the live files of a version, and the paths among them that
are dead. The schemas here are those that are written; files are read by their own schema, field by
name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

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

    from arrowlog.formats.indextables.partition_bounds import PartitionBounds

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
            next="Do not use the table before you know who wrote this file.",
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

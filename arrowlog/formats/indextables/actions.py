"""The actions of a log and their fields: the one definition that every decoder reads.

The kind of a field says how it is stored in columns:

- TEXT, INT, BOOL: a column of that type.
- WORD: text that repeats from file to file; a dictionary-encoded column.
- FLAT: a map with text values; one column `field.key` per key.
- JSON: anything else; a column of JSON text.
- STATS: JSON text that contains `numRecords`, `minValues`, `maxValues` and `nullCount`; columns
  `stats.numRecords`, `stats.minValues.key` and so on beside the text.

In a table from the columnar decoder, FLAT and STATS fields are already split into columns. A table
from the row decoder holds them as JSON text in a column with the name of the field, and has a
column `raw` that is true; `flatten` in `arrowlog.decode.row_decoder` looks up the keys that are
needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping


class FieldKind(Enum):
    """How a field is stored in columns; see the module docstring."""

    TEXT = pa.string()
    INT = pa.int64()
    BOOL = pa.bool_()
    WORD = pa.dictionary(pa.int32(), pa.string())
    FLAT = "flat"
    JSON = "json"
    STATS = "stats"

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the column with the name of the field."""
        return self.value if isinstance(self.value, pa.DataType) else pa.string()


ADD_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "partitionValues": FieldKind.FLAT,
    "size": FieldKind.INT,
    "modificationTime": FieldKind.INT,
    "dataChange": FieldKind.BOOL,
    "stats": FieldKind.STATS,
    "tags": FieldKind.JSON,
    "minValues": FieldKind.FLAT,
    "maxValues": FieldKind.FLAT,
    "numRecords": FieldKind.INT,
    "footerStartOffset": FieldKind.INT,
    "footerEndOffset": FieldKind.INT,
    "hotcacheStartOffset": FieldKind.INT,
    "hotcacheLength": FieldKind.INT,
    "hasFooterOffsets": FieldKind.BOOL,
    "timeRangeStart": FieldKind.TEXT,
    "timeRangeEnd": FieldKind.TEXT,
    "splitTags": FieldKind.JSON,
    "deleteOpstamp": FieldKind.INT,
    "numMergeOps": FieldKind.INT,
    "docMappingJson": FieldKind.WORD,
    "uncompressedSizeBytes": FieldKind.INT,
    "docMappingRef": FieldKind.WORD,
    "companionSourceFiles": FieldKind.JSON,
    "companionDeltaVersion": FieldKind.INT,
    "companionFastFieldMode": FieldKind.WORD,
}
REMOVE_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "deletionTimestamp": FieldKind.INT,
    "dataChange": FieldKind.BOOL,
    "extendedFileMetadata": FieldKind.BOOL,
    "partitionValues": FieldKind.JSON,
    "size": FieldKind.INT,
    "tags": FieldKind.JSON,
}
SKIP_FIELDS: dict[str, FieldKind] = {
    "path": FieldKind.TEXT,
    "skipTimestamp": FieldKind.INT,
    "reason": FieldKind.TEXT,
    "operation": FieldKind.TEXT,
    "partitionValues": FieldKind.JSON,
    "size": FieldKind.INT,
    "retryAfter": FieldKind.INT,
    "skipCount": FieldKind.INT,
}
COMMIT_INFO_FIELDS: dict[str, FieldKind] = {
    "txnId": FieldKind.TEXT,
    "timestamp": FieldKind.INT,
    "operation": FieldKind.TEXT,
    "operationParameters": FieldKind.JSON,
    "operationMetrics": FieldKind.JSON,
    "readVersion": FieldKind.INT,
    "engineInfo": FieldKind.TEXT,
    "userMetadata": FieldKind.JSON,
    "numActions": FieldKind.INT,
    "checksum": FieldKind.TEXT,
    "txn": FieldKind.JSON,
}

ACTION_FIELDS: dict[str, dict[str, FieldKind]] = {
    "add": ADD_FIELDS,
    "remove": REMOVE_FIELDS,
    "mergeskip": SKIP_FIELDS,
    "commitInfo": COMMIT_INFO_FIELDS,
}
REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    "add": ("path", "size", "modificationTime"),
    "remove": ("path",),
    "mergeskip": ("path", "skipTimestamp", "reason", "operation"),
    "commitInfo": (),
}
ACTION_ALIASES = {"skip": "mergeskip"}  # some writers use the short name
STATS_MAPS = ("minValues", "maxValues", "nullCount")
ADD_MAP_FIELDS = tuple(name for name, kind in ADD_FIELDS.items() if kind is FieldKind.FLAT)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The minimum versions and the features that a client must support to use a table."""

    min_reader_version: int = 1
    min_writer_version: int = 1
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a table: identity, schema, partitioning, properties."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    format_provider: str = "indextables"
    format_options: Mapping[str, str] = field(default_factory=dict)
    created_time: int | None = None

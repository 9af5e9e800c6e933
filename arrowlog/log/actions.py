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
column `raw` that is true; `flatten` in `arrowlog.log.lines` looks up the keys that are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kind(Enum):
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


ADD: dict[str, Kind] = {
    "path": Kind.TEXT,
    "partitionValues": Kind.FLAT,
    "size": Kind.INT,
    "modificationTime": Kind.INT,
    "dataChange": Kind.BOOL,
    "stats": Kind.STATS,
    "tags": Kind.JSON,
    "minValues": Kind.FLAT,
    "maxValues": Kind.FLAT,
    "numRecords": Kind.INT,
    "footerStartOffset": Kind.INT,
    "footerEndOffset": Kind.INT,
    "hotcacheStartOffset": Kind.INT,
    "hotcacheLength": Kind.INT,
    "hasFooterOffsets": Kind.BOOL,
    "timeRangeStart": Kind.TEXT,
    "timeRangeEnd": Kind.TEXT,
    "splitTags": Kind.JSON,
    "deleteOpstamp": Kind.INT,
    "numMergeOps": Kind.INT,
    "docMappingJson": Kind.WORD,
    "uncompressedSizeBytes": Kind.INT,
    "docMappingRef": Kind.WORD,
    "companionSourceFiles": Kind.JSON,
    "companionDeltaVersion": Kind.INT,
    "companionFastFieldMode": Kind.WORD,
}
REMOVE: dict[str, Kind] = {
    "path": Kind.TEXT,
    "deletionTimestamp": Kind.INT,
    "dataChange": Kind.BOOL,
    "extendedFileMetadata": Kind.BOOL,
    "partitionValues": Kind.JSON,
    "size": Kind.INT,
    "tags": Kind.JSON,
}
SKIP: dict[str, Kind] = {
    "path": Kind.TEXT,
    "skipTimestamp": Kind.INT,
    "reason": Kind.TEXT,
    "operation": Kind.TEXT,
    "partitionValues": Kind.JSON,
    "size": Kind.INT,
    "retryAfter": Kind.INT,
    "skipCount": Kind.INT,
}
INFO: dict[str, Kind] = {
    "txnId": Kind.TEXT,
    "timestamp": Kind.INT,
    "operation": Kind.TEXT,
    "operationParameters": Kind.JSON,
    "operationMetrics": Kind.JSON,
    "readVersion": Kind.INT,
    "engineInfo": Kind.TEXT,
    "userMetadata": Kind.JSON,
    "numActions": Kind.INT,
    "checksum": Kind.TEXT,
    "txn": Kind.JSON,
}

FIELDS: dict[str, dict[str, Kind]] = {
    "add": ADD,
    "remove": REMOVE,
    "mergeskip": SKIP,
    "commitInfo": INFO,
}
REQUIRED: dict[str, tuple[str, ...]] = {
    "add": ("path", "size", "modificationTime"),
    "remove": ("path",),
    "mergeskip": ("path", "skipTimestamp", "reason", "operation"),
    "commitInfo": (),
}
ALIASES = {"skip": "mergeskip"}  # some writers use the short name
STATS_MAPS = ("minValues", "maxValues", "nullCount")
FLAT_FIELDS = tuple(name for name, kind in ADD.items() if kind is Kind.FLAT)


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

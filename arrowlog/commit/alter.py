"""Changes to what a table is: its schema, properties and protocol. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.config import resolve
from arrowlog.errors import InvalidRequest, UnsupportedProtocol
from arrowlog.log.actions import Metadata, Protocol
from arrowlog.log.schema import from_spark, to_spark
from arrowlog.state.apply import FEATURES, READER_VERSION, WRITER_VERSION
from arrowlog.state.typed import has_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Where checkpoints are Parquet alone, older readers could not follow once commits are cleaned up.
PARQUET = Protocol(3, 3, ("parquetCheckpoint",), ("parquetCheckpoint",))
_SCHEMA = "Give a pyarrow.Schema, a Spark StructType, or Spark's schema JSON."


def schema_text(schema: object) -> str:
    """Spark's schema JSON, from whatever a user has."""
    if isinstance(schema, pa.Schema):
        try:
            return to_spark(schema)
        except ValueError as error:
            raise InvalidRequest(f"The schema cannot be used: {error}.", next=_SCHEMA) from None
    if isinstance(schema, str):
        return schema
    if hasattr(schema, "json") and hasattr(schema, "fields"):  # a StructType of pyspark
        return str(schema.json())
    if isinstance(schema, dict):
        return json.dumps(schema)
    if hasattr(schema, "__arrow_c_schema__"):
        return schema_text(pa.schema(schema))
    raise InvalidRequest(f"A {type(schema).__name__} is no schema.", next=_SCHEMA)


def check_schema(text: str) -> pa.Schema:
    """The schema as Arrow; what a table cannot have is refused."""
    try:
        schema = from_spark(text)
    except ValueError as error:
        raise InvalidRequest(f"The schema cannot be used: {error}.", next=_SCHEMA) from None
    if len(schema) == 0:
        raise InvalidRequest("The schema has no columns.", next=_SCHEMA)
    lower: dict[str, str] = {}
    for name in schema.names:
        other = lower.setdefault(name.lower(), name)
        if other != name or not name:
            raise InvalidRequest(
                f"The schema has the columns {other!r} and {name!r}, which are one to Spark.",
                next="Rename one.",
            )
    return schema


def check_partitions(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Partition columns: in the schema, once each, of a type that has a text."""
    if isinstance(columns, str):
        raise InvalidRequest(
            f"partition_columns is the text {columns!r}.", next=f"Give a list: [{columns!r}]."
        )
    names = tuple(columns)
    for name in names:
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidRequest(
                f"Partition column {name!r} is not in the schema.",
                next=f"Its columns are {', '.join(schema.names)}.",
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"Partition column {name!r} is there twice.", next="Name it once.")
        if not has_bounds(schema.field(index).type):
            raise InvalidRequest(
                f"{name!r} cannot be a partition column: it is {schema.field(index).type}.",
                next="Use a column of text, numbers, dates or moments.",
            )
    if names and len(names) == len(schema):
        raise InvalidRequest(
            "Every column is a partition column, so files would have none.", next="Leave one out."
        )
    return names


def check_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """Properties as text; those that are settings must have a value that is allowed."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not key:
            raise InvalidRequest(f"{key!r} is no name of a property.", next="Names are text.")
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if any("\ud800" <= letter <= "\udfff" for letter in key + text):
            raise InvalidRequest(f"The property {key!r} has half a character in it.")
        resolve(table={key: text})  # one that is no setting is the user's own
        found[key] = text
    return found


def with_properties(metadata: Metadata, properties: Mapping[str, object]) -> Metadata:
    """Metadata with some properties changed; None takes one away."""
    if not hasattr(properties, "items"):
        raise InvalidRequest(
            f"Properties are a {type(properties).__name__}.", next='Give a map: {"owner": "me"}.'
        )
    gone = {key for key, value in properties.items() if value is None}
    new = check_properties({k: v for k, v in properties.items() if k not in gone})
    kept = {key: value for key, value in metadata.configuration.items() if key not in gone}
    return replace(metadata, configuration={**kept, **new})


def with_columns(metadata: Metadata, columns: object) -> Metadata:
    """Metadata with further columns at the end, null in the files that are there."""
    added = _columns(columns)
    if not added:
        raise InvalidRequest("There are no columns to add.", next=_SCHEMA)
    schema = json.loads(metadata.schema_string)
    for item in added:
        if not item.get("nullable", True):
            raise InvalidRequest(
                f"Column {item.get('name')!r} may not be null, but is in no file that is there.",
                next="Make it nullable.",
            )
    schema["fields"] = [*schema["fields"], *added]
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    check_schema(text)
    return replace(metadata, schema_string=text)


def _columns(columns: object) -> list[dict[str, Any]]:
    if isinstance(columns, pa.Field):
        columns = pa.schema([columns])
    try:
        if isinstance(columns, dict) and "fields" not in columns:
            columns = pa.schema(list(columns.items()))
        elif isinstance(columns, (list, tuple)):
            columns = pa.schema(columns)
        found: list[dict[str, Any]] = json.loads(schema_text(columns))["fields"]
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"These are no columns: {error}.", next=_SCHEMA) from None
    return found


def followed(protocol: Protocol, metadata: Metadata) -> Protocol:
    """The protocol that readers need to follow a table with these settings."""
    if resolve(table=metadata.configuration).checkpoint_format != "parquet":
        return protocol
    if PARQUET.reader_features[0] in protocol.reader_features:
        return protocol
    return Protocol(
        max(protocol.min_reader_version, PARQUET.min_reader_version),
        max(protocol.min_writer_version, PARQUET.min_writer_version),
        tuple(sorted({*protocol.reader_features, *PARQUET.reader_features})),
        tuple(sorted({*protocol.writer_features, *PARQUET.writer_features})),
    )


def raised(
    protocol: Protocol,
    reader: int | None,
    writer: int | None,
    reader_features: Sequence[str],
    writer_features: Sequence[str],
) -> Protocol:
    """A protocol that asks for more; never for less."""
    for version in (reader, writer):
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise InvalidRequest(f"{version!r} is no version of a protocol.", next="Give a number.")
    for features in (reader_features, writer_features):
        if isinstance(features, str) or not all(isinstance(name, str) for name in features):
            raise InvalidRequest(f"{features!r} are no features.", next="Give a list of names.")
    new = Protocol(
        protocol.min_reader_version if reader is None else reader,
        protocol.min_writer_version if writer is None else writer,
        tuple(sorted({*protocol.reader_features, *reader_features})),
        tuple(sorted({*protocol.writer_features, *writer_features})),
    )
    for name, old, now, most in (
        ("reader", protocol.min_reader_version, new.min_reader_version, READER_VERSION),
        ("writer", protocol.min_writer_version, new.min_writer_version, WRITER_VERSION),
    ):
        if now < old:
            raise InvalidRequest(
                f"The table's {name} version is {old} and cannot become {now}.",
                next="Protocols are only ever raised.",
            )
        if now > most:
            raise UnsupportedProtocol(
                f"This arrowlog knows {name} versions up to {most}, not {now}.",
                next="Choose a lower one, or upgrade arrowlog.",
            )
    unknown = sorted({*new.reader_features, *new.writer_features} - FEATURES)
    if unknown:
        raise UnsupportedProtocol(
            f"This arrowlog does not know the feature {unknown[0]!r}.",
            next=f"It knows {', '.join(sorted(FEATURES))}.",
        )
    if new == protocol:
        raise InvalidRequest("The table has that protocol already.", next="Nothing to upgrade.")
    return new

"""Create a table, and change its schema, properties and protocol.

Version 0 is a commit of one protocol and one metadata action.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from arrowlog.clock import SystemClock
from arrowlog.config import is_text, parse_argument, parse_names, resolve
from arrowlog.errors import InvalidRequest, LogCorrupt, TableExists, UnsupportedProtocol
from arrowlog.formats import (
    RETIRED_FOLDER,
    Metadata,
    Protocol,
    format_spark_schema,
    parse_spark_schema,
)
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    INDEXTABLES,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    STATE_PROTOCOL_VERSION,
    classify_names,
    compress,
    encode_first_commit,
)
from arrowlog.snapshot import find_other_log, has_bounds
from arrowlog.transaction.version_race import (
    ContentionBackoff,
    PutContext,
    put_first_version,
    read_table_id,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.storage import Store


# The protocol of new tables, unless their settings require a higher one.
DEFAULT_PROTOCOL = Protocol(2, 2)
# Required where checkpoints are Parquet only: readers without support for them could not read the
# table once its commits are cleaned up.
PARQUET_CHECKPOINT_PROTOCOL = Protocol(3, 3, ("parquetCheckpoint",), ("parquetCheckpoint",))
_SCHEMA_FORMS = "Pass a pyarrow.Schema, a Spark StructType, or Spark's schema JSON."


def to_schema_json(schema: object) -> str:
    """Convert a schema to Spark's schema JSON.

    Accepts a `pyarrow.Schema`, a Spark `StructType`, schema JSON as text or dict, and any object
    with `__arrow_c_schema__`. Text is not validated; see `check_schema`.
    """
    if isinstance(schema, pa.Schema):
        try:
            return format_spark_schema(schema)
        except ValueError as error:
            raise _invalid_schema(error) from None
    if isinstance(schema, str):
        return schema
    if hasattr(schema, "json") and hasattr(schema, "fields"):  # a pyspark StructType
        return str(schema.json())
    if hasattr(schema, "__arrow_c_schema__"):  # also those of polars, which are dicts
        return to_schema_json(pa.schema(schema))
    if isinstance(schema, dict):
        try:
            return json.dumps(schema)
        except TypeError as error:
            raise _invalid_schema(error) from None
    raise InvalidRequest(f"A {type(schema).__name__} is not a schema.", next=_SCHEMA_FORMS)


def check_schema(text: str) -> pa.Schema:
    """Convert Spark's schema JSON to Arrow.

    Raises `InvalidRequest` if a table cannot have it: no columns, unsupported types, or names that
    differ only in case.
    """
    try:
        schema = parse_spark_schema(text)
    except ValueError as error:
        raise _invalid_schema(error) from None
    if len(schema) == 0:
        raise InvalidRequest("The schema has no columns.", next=_SCHEMA_FORMS)
    lower: dict[str, str] = {}
    for name in schema.names:
        other = lower.setdefault(name.lower(), name)
        if other != name or not name:
            raise InvalidRequest(
                f"The schema has the columns {other!r} and {name!r}, which Spark does not"
                " distinguish.",
                next="Rename one.",
            )
    return schema


def _invalid_schema(error: TypeError | ValueError) -> InvalidRequest:
    return InvalidRequest(f"The schema cannot be used: {error}.", next=_SCHEMA_FORMS)


def check_partitions(columns: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Validate partition columns: in the schema, unique, of a type with a text form."""
    if isinstance(columns, str):
        raise InvalidRequest(
            f"partition_columns is the string {columns!r}.", next=f"Pass a list: [{columns!r}]."
        )
    names = parse_argument(parse_names, columns, "partition_columns")
    for name in names:
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidRequest(
                f"Partition column {name!r} is not in the schema.",
                next=f"Columns: {', '.join(schema.names)}.",
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"Partition column {name!r} is given twice.", next="Name it once.")
        if not has_bounds(schema.field(index).type):
            raise InvalidRequest(
                f"{name!r} cannot be a partition column: it has type {schema.field(index).type}.",
                next="Use a column of text, numbers, dates or timestamps.",
            )
    if names and len(names) == len(schema):
        raise InvalidRequest(
            "Every column is a partition column, so files would have no columns.",
            next="Leave one out.",
        )
    return names


def check_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """Convert properties to text, leaving out those that are None.

    Raises `InvalidRequest` for invalid names, and for settings with invalid values.
    """
    texts: dict[str, str] = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not key:
            raise InvalidRequest(
                f"{key!r} is not a valid property name.", next="Use a string that is not empty."
            )
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not is_text(key + text):
            raise InvalidRequest(
                f"The property {key!r} contains an unpaired surrogate.", next="Use valid Unicode."
            )
        resolve(table={key: text})  # raises for invalid settings; ignores properties of users
        texts[key] = text
    return texts


def metadata_with_properties(metadata: Metadata, properties: Mapping[str, object]) -> Metadata:
    """Return the metadata with some properties changed; None removes a property."""
    if not hasattr(properties, "items"):
        raise InvalidRequest(
            f"Properties must be a map, not a {type(properties).__name__}.",
            next='Pass a map such as {"owner": "me"}.',
        )
    removed = {key for key, value in properties.items() if value is None}
    new = check_properties({k: v for k, v in properties.items() if k not in removed})
    kept = {key: value for key, value in metadata.configuration.items() if key not in removed}
    return replace(metadata, configuration={**kept, **new})


def metadata_with_columns(metadata: Metadata, columns: object) -> Metadata:
    """Return the metadata with nullable columns added at the end of the schema."""
    added = _spark_fields(columns)
    if not added:
        raise InvalidRequest("There are no columns to add.", next=_SCHEMA_FORMS)
    schema = json.loads(metadata.schema_string)
    for item in added:
        if not item.get("nullable", True):
            raise InvalidRequest(
                f"Column {item.get('name')!r} is not nullable, but existing files do not have it.",
                next="Make it nullable.",
            )
    schema["fields"] = [*schema["fields"], *added]
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    check_schema(text)
    return replace(metadata, schema_string=text)


def _spark_fields(columns: object) -> list[dict[str, Any]]:
    if isinstance(columns, pa.Field):
        columns = pa.schema([columns])
    try:
        if isinstance(columns, dict) and "fields" not in columns:
            columns = pa.schema(list(columns.items()))
        elif isinstance(columns, (list, tuple)):
            columns = pa.schema(columns)
        fields: list[dict[str, Any]] = json.loads(to_schema_json(columns))["fields"]
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"The columns are invalid: {error}.", next=_SCHEMA_FORMS) from None
    return fields


def required_protocol(protocol: Protocol, metadata: Metadata) -> Protocol:
    """Return the protocol that a table with these settings requires; never a lower one."""
    if resolve(table=metadata.configuration).checkpoint_format != "parquet":
        return protocol
    if PARQUET_CHECKPOINT_PROTOCOL.reader_features[0] in protocol.reader_features:
        return protocol
    return Protocol(
        max(protocol.min_reader_version, PARQUET_CHECKPOINT_PROTOCOL.min_reader_version),
        max(protocol.min_writer_version, PARQUET_CHECKPOINT_PROTOCOL.min_writer_version),
        tuple(sorted({*protocol.reader_features, *PARQUET_CHECKPOINT_PROTOCOL.reader_features})),
        tuple(sorted({*protocol.writer_features, *PARQUET_CHECKPOINT_PROTOCOL.writer_features})),
    )


def raise_protocol(
    protocol: Protocol,
    reader: int | None,
    writer: int | None,
    reader_features: Sequence[str],
    writer_features: Sequence[str],
) -> Protocol:
    """Return the protocol with higher versions or further features.

    Raises `InvalidRequest` if that lowers a version or changes nothing, and `UnsupportedProtocol`
    if this release does not support the result.
    """
    new = Protocol(
        protocol.min_reader_version if reader is None else reader,
        protocol.min_writer_version if writer is None else writer,
        tuple(sorted({*protocol.reader_features, *reader_features})),
        tuple(sorted({*protocol.writer_features, *writer_features})),
    )
    new = _with_one_state_version(new)
    for name, old, now, supported in (
        (
            "reader",
            protocol.min_reader_version,
            new.min_reader_version,
            INDEXTABLES.reader_versions[-1],
        ),
        (
            "writer",
            protocol.min_writer_version,
            new.min_writer_version,
            INDEXTABLES.writer_versions[-1],
        ),
    ):
        if now < old:
            raise InvalidRequest(
                f"The table's {name} version is {old} and cannot become {now}.",
                next="Protocol versions can only be raised.",
            )
        if now > supported:
            raise UnsupportedProtocol(
                f"This release supports {name} versions up to {supported}, not {now}.",
                next="Choose a lower one, or upgrade arrowlog.",
            )
    unknown = sorted({*new.reader_features, *new.writer_features} - INDEXTABLES.features)
    if unknown:
        raise UnsupportedProtocol(
            f"This release does not support the feature {unknown[0]!r}.",
            next=f"It supports {', '.join(sorted(INDEXTABLES.features))}.",
        )
    if new == protocol:
        raise InvalidRequest(
            "The table already has that protocol.", next="There is nothing to upgrade."
        )
    return new


def _with_one_state_version(protocol: Protocol) -> Protocol:
    """Raise both versions to that of table states if one is: a state has one for both."""
    if max(protocol.min_reader_version, protocol.min_writer_version) != STATE_PROTOCOL_VERSION:
        return protocol
    version = STATE_PROTOCOL_VERSION
    return replace(protocol, min_reader_version=version, min_writer_version=version)


def build_metadata(
    schema: object,
    partition_columns: Sequence[str],
    properties: Mapping[str, object] | None,
    name: str | None,
    description: str | None,
) -> Metadata:
    """Return validated metadata for a new table, with a random id.

    Raises `InvalidRequest` naming the argument. See `Table.create`.
    """
    for what, given in (("name", name), ("description", description)):
        if given is not None and (not isinstance(given, str) or not _is_valid_unicode(given)):
            raise InvalidRequest(f"{what} is {given!r}.", next="Pass text.")
    text = to_schema_json(schema)
    columns = check_partitions(partition_columns, check_schema(text))
    return Metadata(
        id=str(uuid4()),
        schema_string=text,
        partition_columns=columns,
        configuration=check_properties(properties or {}),
        name=name,
        description=description,
        created_time=SystemClock().now_ms(),
    )


def _is_valid_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def create_table(
    store: Store,
    config: Config,
    metadata: Metadata,
    *,
    exist_ok: bool,
    adopted_files: bytes | None = None,
) -> None:
    """Commit version 0, unless the log folder contains any commit or checkpoint.

    Of several concurrent callers, exactly one creates the table. `adopted_files` are the lines of
    the adds of a table of another format in the same folder; the new log hides that of the other.

    Raises:
        TableExists: there is a table and `exist_ok` is false, or it has another format.
        LogCorrupt: the log has no commits, but remains of another table.
    """
    names = store.list_from(LOG_FOLDER)
    inner = (
        store.list_from(f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}")
        if CHECKPOINT_FOLDER_NAME in names
        else []
    )
    created = classify_names(names, inner).empty
    if created:
        if adopted_files is None:
            _check_no_other_format(store)
        store.check_writable(LOG_FOLDER)
        check_no_remains(store, names)
        protocol = (
            PARQUET_CHECKPOINT_PROTOCOL
            if config.checkpoint_format == "parquet"
            else DEFAULT_PROTOCOL
        )
        lines = encode_first_commit(protocol, metadata) + (adopted_files or b"")
        data = compress(lines, config.commit_codec(len(lines)), config.compression_gzip_level)
        limit = config.max_decompressed_bytes
        writer = PutContext(store, config, SystemClock(), ContentionBackoff())
        created = put_first_version(
            writer, data, metadata.id, lambda file: read_table_id(file, limit)
        )
    if not created and not exist_ok:
        raise TableExists(
            f"There is already a table at {store.root}.",
            next="Open it with arrowlog.Table, or pass exist_ok=True.",
        )


def _check_no_other_format(store: Store) -> None:
    """Raise `TableExists` if there is a table of another format: its log would be hidden."""
    other = find_other_log(store)
    if other is not None:
        raise TableExists(
            f"There is already a table in the {other.name} format at {store.root}:"
            f" {other.log_folder}/ has its log.",
            next="Open it with arrowlog.Table, or create the table in another folder.",
        )


def check_no_remains(store: Store, names: Sequence[str]) -> None:
    """Raise `LogCorrupt` if an empty log has a pointer or records of deleted versions.

    Records would make commits of the new table invisible. They are not deleted here: the log may be
    damaged instead of dropped, and a caller that is suspended before it deletes them could delete
    those of a table that was created meanwhile.
    """
    remains = [f"{LOG_FOLDER}/{LAST_CHECKPOINT}"] if LAST_CHECKPOINT in names else []
    if RETIRED_FOLDER in names:
        folder = f"{LOG_FOLDER}/{RETIRED_FOLDER}"
        remains += [f"{folder}/{name}" for name in store.list_from(folder)]
    if remains:
        raise LogCorrupt(
            f"{store.root} has the remains of another log, without commits or checkpoints.",
            next=f"If that table was dropped, delete {LOG_FOLDER} completely and create the table"
            " again. If not, restore the log from a backup.",
            file=remains[0],
        )

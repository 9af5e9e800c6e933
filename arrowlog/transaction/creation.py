"""Create a table: version 0, a commit of one protocol and one metadata action."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from arrowlog.clock import SystemClock
from arrowlog.errors import InvalidRequest, LogCorrupt, TableExists
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    RETIRED_FOLDER,
    Metadata,
    Protocol,
    classify_names,
    compress,
    encode_first_commit,
)
from arrowlog.transaction.backoff import ContentionBackoff
from arrowlog.transaction.metadata_changes import (
    PARQUET_CHECKPOINT_PROTOCOL,
    check_partitions,
    check_properties,
    check_schema,
    to_schema_json,
)
from arrowlog.transaction.version_put import PutContext
from arrowlog.transaction.version_put import put_first_version as put_first
from arrowlog.transaction.winning_commits import read_table_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.storage import Store

# The protocol of new tables, unless their settings require a higher one.
DEFAULT_PROTOCOL = Protocol(2, 2)


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


def create_table(store: Store, config: Config, metadata: Metadata, *, exist_ok: bool) -> None:
    """Commit version 0, unless the log folder contains any commit or checkpoint.

    Of several concurrent callers, exactly one creates the table.

    Raises:
        TableExists: there is a table, and `exist_ok` is false.
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
        store.check_writable(LOG_FOLDER)
        _check_no_remains(store, names)
        codec = config.compression_codec if config.compression_enabled else "none"
        protocol = (
            PARQUET_CHECKPOINT_PROTOCOL
            if config.checkpoint_format == "parquet"
            else DEFAULT_PROTOCOL
        )
        data = compress(
            encode_first_commit(protocol, metadata), codec, config.compression_gzip_level
        )
        limit = config.max_decompressed_bytes
        writer = PutContext(store, config, SystemClock(), ContentionBackoff())
        created = put_first(writer, data, metadata.id, lambda file: read_table_id(file, limit))
    if not created and not exist_ok:
        raise TableExists(
            f"There is already a table at {store.root}.",
            next="Open it with arrowlog.Table, or pass exist_ok=True.",
        )


def _check_no_remains(store: Store, names: Sequence[str]) -> None:
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

"""Decode winning commits, as far as the conflict checker needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import repeat_bool
from arrowlog.decode import (
    CommitInfo,
    LineBuffer,
    decode_buffer,
    decode_line,
    extract_commit_info,
    flatten_map_columns,
    parse_commit_info,
    to_metadata,
)
from arrowlog.errors import LogCorrupt
from arrowlog.formats import parse_spark_schema
from arrowlog.formats.indextables import LOG_FOLDER, commit_name, decompress, format_checksum
from arrowlog.snapshot import partition_values, validate_commit_integrity, with_file_keys
from arrowlog.transaction.conflict_checker import WinningCommit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrowlog.decode import ActionBatch
    from arrowlog.formats.indextables import Metadata
    from arrowlog.transaction.conflict_checker import TableHead

# The column of `typed_partition_values` that marks files with an unreadable partition value.
UNREADABLE_PARTITION = "unknown"


def read_winning_commits(
    first: int, commits: Sequence[bytes], head: TableHead, root: str, limit: int, *, files: bool
) -> Iterator[WinningCommit]:
    """Decode the commits from version `first` on, which follow `head`.

    Without `files`, the added and removed files of a commit may be left out. Under contention every
    writer reads every commit, and no file can conflict with an append.

    Args:
        first: version of the first commit.
        commits: the commit files in order of version.
        head: the head before them.
        root: the table's root, to which paths are made relative.
        limit: the maximum decompressed size of a commit in bytes.
        files: whether `added` and `removed` are needed.

    Raises:
        LogCorrupt: a commit is damaged.
    """
    metadata, schema = head.metadata, head.schema
    for version, data in enumerate(commits, first):
        file = f"{LOG_FOLDER}/{commit_name(version)}"
        plain = decompress(data, file, limit)
        summary = None if files else _decode_info_only(version, plain)
        if summary is not None:
            yield summary
            continue
        window = LineBuffer(limit)
        window.append(file, version, plain)
        actions = decode_buffer(window)
        infos = validate_commit_integrity(actions)
        info = infos[-1][1] if infos else CommitInfo()
        changed = _last_metadata(actions)
        if changed is not None:
            metadata, schema = changed
        yield WinningCommit(
            version=version,
            who=info.operation or "another writer",
            txn_id=info.txnId,
            timestamp=info.timestamp,
            txn=None if info.txn is None else (info.txn.appId, info.txn.version),
            protocol=actions.protocols[-1][1] if actions.protocols else None,
            metadata=None if changed is None else metadata,
            schema=None if changed is None else schema,
            added=_added_files(actions, schema, metadata, root),
            removed=with_file_keys(actions, "remove", root)[0]["key"].combine_chunks(),
        )


def _decode_info_only(version: int, plain: bytes) -> WinningCommit | None:
    """Decode only the `commitInfo` line, if the commit changes nothing but files.

    Returns None if the commit has to be decoded in full: it may change metadata or protocol, or it
    has no valid checksum, so that other programs wrote it or it is damaged.
    """
    first_line, _, body = plain.partition(b"\n")
    raw = extract_commit_info(first_line) if first_line.startswith(b'{"commitInfo":') else None
    info = CommitInfo() if raw is None else parse_commit_info(raw)
    # A substring test is enough: a false positive costs only time.
    if info.checksum != format_checksum(body) or b'"metaData"' in body or b'"protocol"' in body:
        return None
    return WinningCommit(
        version=version,
        who=info.operation or "another writer",
        txn_id=info.txnId,
        timestamp=info.timestamp,
        txn=None if info.txn is None else (info.txn.appId, info.txn.version),
    )


def _last_metadata(actions: ActionBatch) -> tuple[Metadata, pa.Schema] | None:
    if not actions.metadata:
        return None
    seq, metadata = actions.metadata[-1]
    try:
        return metadata, parse_spark_schema(metadata.schema_string)
    except ValueError as error:
        file, line = actions.place(seq)
        raise LogCorrupt(f"metaData.schemaString: {error}.", file=file, line=line) from None


def _added_files(
    actions: ActionBatch, schema: pa.Schema, metadata: Metadata, root: str
) -> pa.Table:
    adds, _ = with_file_keys(actions, "add", root)
    return typed_partition_values(adds, schema, metadata.partition_columns)


def typed_partition_values(adds: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Return the path, the `data_change` flag and the typed partition values of added files.

    The columns are `path`, `data_change`, `unknown` and one `partition.<name>` for each partition
    column. `unknown` is true if a partition value of the file is not of its column's type: the
    file may then belong to any partition.
    """
    flat = flatten_map_columns(adds, columns)
    rows = flat.num_rows
    unreadable = pa.chunked_array([repeat_bool(False, rows)])
    values: dict[str, pa.ChunkedArray] = {}
    for name in columns:
        index = schema.get_field_index(name)
        kind = pa.string() if index < 0 else schema.field(index).type
        source = f"partitionValues.{name}"
        if source in flat.column_names:
            values[name], invalid = partition_values(flat[source], kind)
            unreadable = pc.or_(unreadable, pc.fill_null(invalid, False))
        else:
            values[name] = pa.chunked_array([pa.nulls(rows, kind)])
    data_change = pa.chunked_array([repeat_bool(True, rows)])
    if "dataChange" in flat.column_names:
        data_change = pc.fill_null(flat["dataChange"], True)
    return pa.table(
        {"path": flat["key"], "data_change": data_change, UNREADABLE_PARTITION: unreadable}
        | {f"partition.{name}": column for name, column in values.items()}
    )


def read_txn_id(data: bytes, file: str, limit: int) -> str | None:
    """Return the `txnId` of a commit file; None if it does not begin with a `commitInfo`."""
    first_line = decompress(data, file, limit).partition(b"\n")[0]
    raw = extract_commit_info(first_line) if first_line.startswith(b'{"commitInfo":') else None
    return None if raw is None else parse_commit_info(raw).txnId


def read_table_id(data: bytes, limit: int) -> str | None:
    """Return the table id in a version 0 commit file, or None if it has no `metaData`."""
    file = f"{LOG_FOLDER}/{commit_name(0)}"
    for number, text in enumerate(decompress(data, file, limit).split(b"\n"), 1):
        action = decode_line(text, file, number)
        if action is not None and action[0] == "metaData":
            return to_metadata(action[1]).id
    return None

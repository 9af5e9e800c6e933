"""Commits of others, as far as a writer has to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.commit.conflict import Rival
from arrowlog.errors import LogCorrupt
from arrowlog.log.arrays import flags
from arrowlog.log.decode import decode
from arrowlog.log.encode import checksum
from arrowlog.log.envelope import unwrap
from arrowlog.log.infos import Info, info_of, read_info
from arrowlog.log.lines import decode_line, flatten, to_metadata
from arrowlog.log.names import LOG, commit_name
from arrowlog.log.schema import from_spark
from arrowlog.log.window import Window
from arrowlog.state.apply import check_whole, keyed
from arrowlog.state.typed import partition_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrowlog.commit.conflict import Head
    from arrowlog.log.actions import Metadata
    from arrowlog.log.decode import Actions

UNKNOWN = "unknown"  # a column: a partition value of this file cannot be read


def read_rivals(
    first: int, commits: Sequence[bytes], head: Head, root: str, limit: int, *, files: bool
) -> Iterator[Rival]:
    """The commits from version `first` on, which follow the head.

    Without `files`, what they added and removed may be left out: in a crowd, every writer reads
    every commit, and an append goes together with whatever files there are.
    """
    metadata, schema = head.metadata, head.schema
    for version, data in enumerate(commits, first):
        file = f"{LOG}/{commit_name(version)}"
        plain = unwrap(data, file, limit)
        brief = None if files else _brief(version, plain)
        if brief is not None:
            yield brief
            continue
        window = Window(limit)
        window.append(file, version, plain)
        actions = decode(window)
        infos = check_whole(actions)
        info = infos[-1][1] if infos else Info()
        changed = _metadata(actions)
        if changed is not None:
            metadata, schema = changed
        yield Rival(
            version=version,
            who=info.operation or "another writer",
            txn_id=info.txnId,
            timestamp=info.timestamp,
            txn=None if info.txn is None else (info.txn.appId, info.txn.version),
            protocol=actions.protocols[-1][1] if actions.protocols else None,
            metadata=None if changed is None else metadata,
            schema=None if changed is None else schema,
            added=_added(actions, schema, metadata, root),
            removed=keyed(actions, "remove", root)[0]["key"].combine_chunks(),
        )


def _brief(version: int, plain: bytes) -> Rival | None:
    """A commit of ours that is whole and changes only files; None if it takes a closer look."""
    first, _, body = plain.partition(b"\n")
    raw = info_of(first) if first.startswith(b'{"commitInfo":') else None
    info = Info() if raw is None else read_info(raw)
    if info.checksum != checksum(body) or b'"metaData"' in body or b'"protocol"' in body:
        return None
    return Rival(
        version=version,
        who=info.operation or "another writer",
        txn_id=info.txnId,
        timestamp=info.timestamp,
        txn=None if info.txn is None else (info.txn.appId, info.txn.version),
    )


def _metadata(actions: Actions) -> tuple[Metadata, pa.Schema] | None:
    if not actions.metadata:
        return None
    seq, metadata = actions.metadata[-1]
    try:
        return metadata, from_spark(metadata.schema_string)
    except ValueError as error:
        file, line = actions.place(seq)
        raise LogCorrupt(f"metaData.schemaString: {error}.", file=file, line=line) from None


def _added(actions: Actions, schema: pa.Schema, metadata: Metadata, root: str) -> pa.Table:
    adds, _ = keyed(actions, "add", root)
    return partitions_of(adds, schema, metadata.partition_columns)


def partitions_of(adds: pa.Table, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Files with their typed partition values: `path`, `data_change`, `unknown`, then the columns.

    In `unknown` files a partition value cannot be read: they may belong to any partition.
    """
    flat = flatten(adds, columns)
    rows = flat.num_rows
    unknown = pa.chunked_array([flags(False, rows)])
    values: dict[str, pa.ChunkedArray] = {}
    for name in columns:
        index = schema.get_field_index(name)
        kind = pa.string() if index < 0 else schema.field(index).type
        source = f"partitionValues.{name}"
        if source in flat.column_names:
            values[name], odd = partition_values(flat[source], kind)
            unknown = pc.or_(unknown, pc.fill_null(odd, False))
        else:
            values[name] = pa.chunked_array([pa.nulls(rows, kind)])
    change = pa.chunked_array([flags(True, rows)])
    if "dataChange" in flat.column_names:
        change = pc.fill_null(flat["dataChange"], True)
    return pa.table(
        {"path": flat["key"], "data_change": change, UNKNOWN: unknown}
        | {f"partition.{name}": column for name, column in values.items()}
    )


def table_id(data: bytes, limit: int) -> str | None:
    """The id of the table whose version 0 this is; None if it has none."""
    file = f"{LOG}/{commit_name(0)}"
    for number, text in enumerate(unwrap(data, file, limit).split(b"\n"), 1):
        found = decode_line(text, file, number)
        if found is not None and found[0] == "metaData":
            return to_metadata(found[1]).id
    return None

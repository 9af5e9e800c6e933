"""Write logs by hand: for tests of programs that read tables, for demos and benchmarks.

Every form a log may have can be made here, the odd ones included. Nothing here commits: files are
put where you say, whether they are right or wrong. Writers use `Table`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from arrowlog.log.envelope import wrap
from arrowlog.log.names import LOG, POINTER
from arrowlog.log.schema import to_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

Action = dict[str, Any]


def protocol(reader: int = 2, writer: int = 2, **features: Sequence[str]) -> Action:
    """A `protocol` action; `readerFeatures=` and `writerFeatures=` as lists."""
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **features}}


def metadata(
    schema: pa.Schema | str,
    partition_columns: Sequence[str] = (),
    *,
    id: str = "00000000-0000-4000-8000-000000000000",  # noqa: A002 -- the name on disk
    configuration: Mapping[str, str] | None = None,
    created: int = 1_700_000_000_000,
) -> Action:
    """A `metaData` action for an Arrow schema or Spark's schema JSON."""
    return {
        "metaData": {
            "id": id,
            "format": {"provider": "indextables", "options": {}},
            "schemaString": schema if isinstance(schema, str) else to_spark(schema),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration or {}),
            "createdTime": created,
        }
    }


def add(
    path: str, partition_values: Mapping[str, str | None] | None = None, **fields: Any
) -> Action:
    """An `add` action; any field by its name on disk."""
    required = {"size": 1000, "modificationTime": 1_700_000_000_000, "dataChange": True}
    return {
        "add": {"path": path, "partitionValues": dict(partition_values or {}), **required, **fields}
    }


def remove(path: str, **fields: Any) -> Action:
    """A `remove` action."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": 1_700_000_000_000,
            "dataChange": True,
            **fields,
        }
    }


def commit_info(timestamp: int, operation: str = "WRITE", **fields: Any) -> Action:
    """A `commitInfo` action."""
    return {"commitInfo": {"timestamp": timestamp, "operation": operation, **fields}}


def lines(actions: Iterable[Action]) -> bytes:
    """Actions as JSON lines, the way they stand in a commit."""
    compact = {"separators": (",", ":"), "ensure_ascii": False}
    return b"".join(json.dumps(action, **compact).encode() + b"\n" for action in actions)  # type: ignore[arg-type]


def write_commit(
    table: str | os.PathLike[str],
    version: int,
    actions: Iterable[Action] | bytes,
    *,
    codec: str = "none",
    digits: int = 20,
) -> str:
    """Put a commit into a table's log; returns its path."""
    plain = actions if isinstance(actions, bytes) else lines(actions)
    return write_file(table, f"{version:0{digits}d}.json", wrap(plain, codec))


def write_checkpoint(
    table: str | os.PathLike[str],
    version: int,
    actions: Sequence[Action],
    *,
    form: str = "object",
    codec: str = "none",
    parts: int = 2,
) -> str:
    """Put a checkpoint into a table's log: as `object`, `lines`, `actions` or `parts`."""
    name = f"{version:020d}.checkpoint.json"
    if form == "lines":
        return write_file(table, name, wrap(lines(actions), codec))
    if form == "actions":
        document: Action = {"version": version, "size": len(actions), "actions": list(actions)}
    elif form == "parts":
        names = [f"{version:020d}.checkpoint.0123456789ab.{i + 1:05d}.json" for i in range(parts)]
        for i, part in enumerate(names):
            write_file(table, part, wrap(lines(actions[i::parts]) or b"\n", codec))
        manifest = {"version": version, "checkpointId": "0123456789ab", "parts": names}
        return write_file(table, name, json.dumps(manifest).encode())
    else:
        document = {"add": [action["add"] for action in actions if "add" in action]}
        for action in actions:
            document |= {key: action[key] for key in ("protocol", "metaData") if key in action}
    return write_file(table, name, wrap(json.dumps(document).encode(), codec))


def write_pointer(table: str | os.PathLike[str], content: Mapping[str, Any] | bytes) -> str:
    """Write `_last_checkpoint`."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return write_file(table, POINTER, data)


def write_file(table: str | os.PathLike[str], name: str, data: bytes) -> str:
    """Put any file into a table's log folder, at once: a reader sees all of it or none."""
    folder = f"{os.fspath(table)}/{LOG}"
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = f"{path}.{os.getpid()}.tmp"
    with open(draft, "wb") as out:
        out.write(data)
    os.replace(draft, path)
    return path

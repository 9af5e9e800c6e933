"""Write log files directly, for tests of readers, demos and benchmarks.

Every form that a log may have can be produced, including unusual and invalid ones. Nothing here is
checked or committed safely; use `Table` to write tables.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from arrowlog.formats import format_spark_schema
from arrowlog.formats.indextables import LAST_CHECKPOINT, LOG_FOLDER, compress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

Action = dict[str, Any]


def protocol(reader: int = 2, writer: int = 2, **features: Sequence[str]) -> Action:
    """Return a `protocol` action; `readerFeatures=` and `writerFeatures=` are lists."""
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **features}}


def metadata(
    schema: pa.Schema | str,
    partition_columns: Sequence[str] = (),
    *,
    id: str = "00000000-0000-4000-8000-000000000000",  # noqa: A002 -- the name on disk
    configuration: Mapping[str, str] | None = None,
    created: int = 1_700_000_000_000,
) -> Action:
    """Return a `metaData` action for an Arrow schema or Spark's schema JSON."""
    return {
        "metaData": {
            "id": id,
            "format": {"provider": "indextables", "options": {}},
            "schemaString": schema if isinstance(schema, str) else format_spark_schema(schema),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration or {}),
            "createdTime": created,
        }
    }


def add(
    path: str, partition_values: Mapping[str, str | None] | None = None, **fields: Any
) -> Action:
    """Return an `add` action; `fields` are further fields by their name in the log."""
    required = {"size": 1000, "modificationTime": 1_700_000_000_000, "dataChange": True}
    return {
        "add": {"path": path, "partitionValues": dict(partition_values or {}), **required, **fields}
    }


def remove(path: str, **fields: Any) -> Action:
    """Return a `remove` action; `fields` are further fields by their name in the log."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": 1_700_000_000_000,
            "dataChange": True,
            **fields,
        }
    }


def commit_info(timestamp: int, operation: str = "WRITE", **fields: Any) -> Action:
    """Return a `commitInfo` action; `fields` are further fields by their name in the log."""
    return {"commitInfo": {"timestamp": timestamp, "operation": operation, **fields}}


def lines(actions: Iterable[Action]) -> bytes:
    """Encode actions as JSON lines, as in a commit file."""
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
    """Write a commit file, replacing one that exists, and return its path.

    `codec` compresses it; `digits` is the width of the version in its name.
    """
    plain = actions if isinstance(actions, bytes) else lines(actions)
    return write_file(table, f"{version:0{digits}d}.json", compress(plain, codec))


def write_checkpoint(
    table: str | os.PathLike[str],
    version: int,
    actions: Sequence[Action],
    *,
    form: str = "object",
    codec: str = "none",
    parts: int = 2,
) -> str:
    """Write a JSON checkpoint, replacing one that exists, and return its path.

    Args:
        table: the table's folder.
        version: version of the checkpoint.
        actions: its actions.
        form: `object` (one JSON object with a list of adds), `lines` (JSON lines), `actions` (an
            object with a list of actions) or `parts` (a manifest and several files).
        codec: compression.
        parts: number of files of the form `parts`.
    """
    name = f"{version:020d}.checkpoint.json"
    if form == "lines":
        return write_file(table, name, compress(lines(actions), codec))
    if form == "actions":
        document: Action = {"version": version, "size": len(actions), "actions": list(actions)}
    elif form == "parts":
        names = [f"{version:020d}.checkpoint.0123456789ab.{i + 1:05d}.json" for i in range(parts)]
        for i, part in enumerate(names):
            write_file(table, part, compress(lines(actions[i::parts]) or b"\n", codec))
        manifest = {"version": version, "checkpointId": "0123456789ab", "parts": names}
        return write_file(table, name, json.dumps(manifest).encode())
    else:
        document = {"add": [action["add"] for action in actions if "add" in action]}
        for action in actions:
            document |= {key: action[key] for key in ("protocol", "metaData") if key in action}
    return write_file(table, name, compress(json.dumps(document).encode(), codec))


def write_pointer(table: str | os.PathLike[str], content: Mapping[str, Any] | bytes) -> str:
    """Write the checkpoint pointer, `_last_checkpoint`, and return its path."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return write_file(table, LAST_CHECKPOINT, data)


def write_file(table: str | os.PathLike[str], name: str, data: bytes) -> str:
    """Write a file in the log folder atomically, replacing one that exists; return its path."""
    folder = f"{os.fspath(table)}/{LOG_FOLDER}"
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as out:
        out.write(data)
    os.replace(temporary, path)
    return path

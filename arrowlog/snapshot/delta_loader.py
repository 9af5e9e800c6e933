"""Opens the checkpoints of Delta tables: classic, in parts, and V2 in Parquet or JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from arrowlog.decode import ActionBatch, LineBuffer, decode_buffer
from arrowlog.errors import LogCorrupt
from arrowlog.formats import Metadata, Protocol
from arrowlog.formats.delta import DELTA, SIDECAR_FOLDER, VECTOR_COLUMNS, sidecar_name
from arrowlog.snapshot.delta_checkpoint import (
    CheckpointPart,
    DeltaCheckpoint,
    read_state_actions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from arrowlog.formats import CheckpointForm, Format
    from arrowlog.storage import Store

_THREADS = 16  # concurrent footer reads


class OpenedCheckpoint(NamedTuple):
    """A checkpoint of a Delta table: its state, its adds, and adds that were in JSON lines.

    `rows` are the adds in Parquet files. `lines` are the actions of a JSON checkpoint; its adds
    count in addition to `rows`.
    """

    protocol: Protocol
    metadata: Metadata
    txns: Mapping[str, tuple[int, int]]
    rows: DeltaCheckpoint
    lines: ActionBatch | None


def open_delta_checkpoint(
    store: Store,
    table_format: Format,
    version: int,
    form: CheckpointForm,
    count: Callable[[int], None],
    limit: int,
) -> OpenedCheckpoint:
    """Open a checkpoint. Reads footers, and the rows that are neither adds nor removes.

    `count` is called with the size of each file, `limit` is the maximum size of a JSON file. Raises
    `LogCorrupt` if the checkpoint is damaged, `FileNotFoundError` if a file of it is missing.
    """
    if form.kind == "delta-json":
        return _open_json(store, table_format, version, form, count, limit)
    parts = _open_parts(store, form.keys, count)
    actions: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for action, rows in read_state_actions(part).items():
            actions.setdefault(action, []).extend(rows)
    sidecars = _open_sidecars(
        store, table_format, [row["path"] for row in actions["sidecar"]], count
    )
    protocol, metadata = _state_of(actions, form.keys[0], version)
    _check_partition_values([*parts, *sidecars], metadata)
    _check_vectors([*parts, *sidecars])
    _check_version(actions["checkpointMetadata"], form.keys[0], version)
    txns = {row["appId"]: (row["version"], version) for row in actions["txn"]}
    return OpenedCheckpoint(
        protocol, metadata, txns, DeltaCheckpoint(version, [*parts, *sidecars]), None
    )


def _open_parts(
    store: Store, keys: Sequence[str], count: Callable[[int], None]
) -> list[CheckpointPart]:
    if not keys:
        return []
    if len(keys) == 1:
        parts = [CheckpointPart.open(store, keys[0])]
    else:
        with ThreadPoolExecutor(min(_THREADS, len(keys))) as pool:
            parts = list(pool.map(lambda key: CheckpointPart.open(store, key), keys))
    for part in parts:
        count(part.size)
    return parts


def _open_sidecars(
    store: Store, table_format: Format, paths: Sequence[str], count: Callable[[int], None]
) -> list[CheckpointPart]:
    keys = [table_format.key(SIDECAR_FOLDER, sidecar_name(path)) for path in paths]
    return _open_parts(store, keys, count)


def _check_partition_values(parts: Sequence[CheckpointPart], metadata: Metadata) -> None:
    """Raise `LogCorrupt` if the adds of a partitioned table have no partition values.

    They would be read as NULL.
    """
    for part in parts if metadata.partition_columns else ():
        if part.has_adds and not part.has_field(("partitionValues",)):
            raise LogCorrupt("its adds have no partitionValues.", file=part.key)


def _check_vectors(parts: Sequence[CheckpointPart]) -> None:
    """Raise `LogCorrupt` if deletion vectors are not as they have to be: they would be ignored."""
    required = [("deletionVector", name) for name in VECTOR_COLUMNS if name != "offset"]
    for part in parts:
        if part.has_adds and part.has_field(("deletionVector",)):
            missing = [path[-1] for path in required if not part.has_field(path)]
            if missing:
                what = f"its deletion vectors have no {', '.join(missing)}."
                raise LogCorrupt(what, file=part.key)


def _check_version(rows: Sequence[Mapping[str, Any]], key: str, version: int) -> None:
    """Raise `LogCorrupt` if a V2 checkpoint is that of another version than its name says."""
    for row in rows:
        if row.get("version") not in (None, version):
            what = f"the checkpoint is that of version {row['version']}."
            raise LogCorrupt(what, file=key, version=version)


def _state_of(
    actions: Mapping[str, list[dict[str, Any]]], key: str, version: int
) -> tuple[Protocol, Metadata]:
    """Return the protocol and the metadata of a checkpoint, which must have both."""
    if not actions["protocol"] or not actions["metaData"]:
        missing = "metaData" if actions["protocol"] else "protocol"
        raise LogCorrupt(f"the checkpoint has no {missing}.", file=key, version=version)
    protocol, metadata = actions["protocol"][-1], actions["metaData"][-1]
    data_format = metadata.get("format") or {}
    return (
        Protocol(
            protocol["minReaderVersion"],
            protocol["minWriterVersion"],
            tuple(protocol.get("readerFeatures") or ()),
            tuple(protocol.get("writerFeatures") or ()),
        ),
        Metadata(
            id=metadata.get("id") or "",
            schema_string=metadata.get("schemaString") or "",
            partition_columns=tuple(metadata.get("partitionColumns") or ()),
            configuration=_without_nulls(metadata.get("configuration")),
            name=metadata.get("name"),
            description=metadata.get("description"),
            format_provider=data_format.get("provider") or DELTA.default_provider,
            format_options=_without_nulls(data_format.get("options")),
            created_time=metadata.get("createdTime"),
        ),
    )


def _without_nulls(values: Any) -> dict[str, str]:
    return {key: value for key, value in dict(values or {}).items() if value is not None}


def _open_json(
    store: Store,
    table_format: Format,
    version: int,
    form: CheckpointForm,
    count: Callable[[int], None],
    limit: int,
) -> OpenedCheckpoint:
    """Open a V2 checkpoint of JSON lines, which may name sidecars."""
    (key,) = form.keys
    data = store.get(key)
    count(len(data))
    buffer = LineBuffer(limit, None, table_format)
    buffer.append(key, version, data)
    actions = decode_buffer(buffer)
    if not actions.protocols or not actions.metadata:
        raise LogCorrupt("the checkpoint has no protocol or metaData.", file=key, version=version)
    sidecars = actions.table("sidecar")
    paths = sidecars["path"].to_pylist() if sidecars.num_rows else []
    txn = actions.table("txn")
    rows = txn.to_pylist() if txn.num_rows else []
    parts = _open_sidecars(store, table_format, paths, count)
    _check_partition_values(parts, actions.metadata[-1][1])
    _check_vectors(parts)
    return OpenedCheckpoint(
        actions.protocols[-1][1],
        actions.metadata[-1][1],
        {row["appId"]: (row["version"], version) for row in rows},
        DeltaCheckpoint(version, parts),
        actions,
    )

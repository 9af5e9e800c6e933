"""Decode the manifests of a table state: their entries are adds, with the same columns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.decode.avro_columns import AvroColumn, AvroKind, decode_columns
from arrowlog.errors import LogCorrupt
from arrowlog.formats import read_container
from arrowlog.formats.indextables import ADD_FIELDS, FILE_ENTRY_FIELDS, REQUIRED_FIELDS, FieldKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

_KINDS = {
    FieldKind.TEXT: AvroKind.TEXT,
    FieldKind.INT: AvroKind.INT,
    FieldKind.BOOL: AvroKind.BOOL,
    FieldKind.WORD: AvroKind.WORD,
    FieldKind.FLAT: AvroKind.TEXT_MAP,
    FieldKind.JSON: AvroKind.JSON,
    FieldKind.STATS: AvroKind.STATS,
}
# What an entry has in common with an add. `addedAtVersion` and `addedAtTimestamp` are not among
# the columns: writers of the format leave them at 0.
ENTRY_COLUMNS = {
    name: AvroColumn(_KINDS[kind], required=name in REQUIRED_FIELDS["add"])
    for name, kind in ADD_FIELDS.items()
    if name in FILE_ENTRY_FIELDS
}


def decode_file_entries(
    data: bytes,
    file: str,
    limit: int,
    *,
    num_entries: int | None = None,
    fields: Iterable[str] | None = None,
) -> pa.Table:
    """Return the entries of a manifest as a table of adds, in the order of the file.

    Args:
        data: the bytes of the manifest.
        file: its name, for errors.
        limit: the number of bytes that it may have uncompressed.
        num_entries: the number of entries that the state gives for it.
        fields: the fields to decode, all by default; others are skipped.

    Raises:
        LogCorrupt: the manifest is damaged, or does not have `num_entries` entries.
        UnsupportedProtocol: its codec or its schema is not known.
    """
    container = read_container(data, file, limit)
    if num_entries is not None and container.num_records != num_entries:
        raise LogCorrupt(
            f"the manifest has {container.num_records} entries, and its state says {num_entries}.",
            next="Restore the file from a backup, or read an earlier version.",
            file=file,
        )
    wanted = ENTRY_COLUMNS if fields is None else {name: ENTRY_COLUMNS[name] for name in fields}
    return decode_columns(container, wanted)

"""Bytes of a log to columns: `decode` turns a buffer of lines into an `ActionBatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrowlog.decode.columnar_decoder import PIECE_BYTES, concat_column_bytes
from arrowlog.decode.decoder import ActionBatch, decode_buffer, start_decode
from arrowlog.decode.line_buffer import SEQ_LINE_BITS, LineBuffer
from arrowlog.decode.line_splitter import contains_octets
from arrowlog.decode.row_decoder import (
    CommitInfo,
    commit_info_from_row,
    decode_line,
    extract_commit_info,
    flatten_map_columns,
    parse_commit_info,
    parse_metadata,
    parse_protocol,
    probe_protocol,
    read_commit_time,
    to_metadata,
    to_protocol,
)
from arrowlog.decode.stats_text import StatsLookup, StatsMember, lookup_stats, stats_counts
from arrowlog.lazy_names import import_on_first_use

if TYPE_CHECKING:
    from arrowlog.decode.avro_columns import (
        ENTRY_COLUMNS,
        AvroColumn,
        AvroKind,
        decode_columns,
        decode_file_entries,
    )

# Loaded on first use: most tables have no Avro files.
_ON_FIRST_USE = {
    "avro_columns": (
        "ENTRY_COLUMNS",
        "AvroColumn",
        "AvroKind",
        "decode_columns",
        "decode_file_entries",
    ),
}

__all__ = [
    "ENTRY_COLUMNS",
    "PIECE_BYTES",
    "SEQ_LINE_BITS",
    "ActionBatch",
    "AvroColumn",
    "AvroKind",
    "CommitInfo",
    "LineBuffer",
    "StatsLookup",
    "StatsMember",
    "commit_info_from_row",
    "concat_column_bytes",
    "contains_octets",
    "decode_buffer",
    "decode_columns",
    "decode_file_entries",
    "decode_line",
    "extract_commit_info",
    "flatten_map_columns",
    "lookup_stats",
    "parse_commit_info",
    "parse_metadata",
    "parse_protocol",
    "probe_protocol",
    "read_commit_time",
    "start_decode",
    "stats_counts",
    "to_metadata",
    "to_protocol",
]


if not TYPE_CHECKING:
    __getattr__ = import_on_first_use(__name__, _ON_FIRST_USE)

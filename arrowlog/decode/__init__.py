"""Bytes of a log to columns: `decode` turns a buffer of lines into an `ActionBatch`."""

from arrowlog.decode.avro_columns import AvroColumn, AvroKind, decode_columns
from arrowlog.decode.columnar_decoder import PIECE_BYTES, concat_column_bytes
from arrowlog.decode.decoder import (
    SEQ_LINE_BITS,
    ActionBatch,
    LineBuffer,
    decode_buffer,
    start_decode,
)
from arrowlog.decode.file_entries import ENTRY_COLUMNS, decode_file_entries
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

__all__ = [
    "ENTRY_COLUMNS",
    "PIECE_BYTES",
    "SEQ_LINE_BITS",
    "ActionBatch",
    "AvroColumn",
    "AvroKind",
    "CommitInfo",
    "LineBuffer",
    "commit_info_from_row",
    "concat_column_bytes",
    "decode_buffer",
    "decode_columns",
    "decode_file_entries",
    "decode_line",
    "extract_commit_info",
    "flatten_map_columns",
    "parse_commit_info",
    "parse_metadata",
    "parse_protocol",
    "probe_protocol",
    "read_commit_time",
    "start_decode",
    "to_metadata",
    "to_protocol",
]

"""Bytes of a log to columns: `decode` turns a buffer of lines into an `ActionBatch`."""

from arrowlog.decode.columnar_decoder import PIECE_BYTES, concat_column_bytes
from arrowlog.decode.commit_info import (
    CommitInfo,
    commit_info_from_row,
    extract_commit_info,
    parse_commit_info,
    read_commit_time,
)
from arrowlog.decode.decoder import ActionBatch, decode_buffer, start_decode
from arrowlog.decode.line_buffer import SEQ_LINE_BITS, LineBuffer
from arrowlog.decode.row_decoder import (
    decode_line,
    flatten_map_columns,
    parse_metadata,
    parse_protocol,
    probe_protocol,
    to_metadata,
)
from arrowlog.decode.stats_text import StatsMember, lookup_stats, stats_counts

__all__ = [
    "PIECE_BYTES",
    "SEQ_LINE_BITS",
    "ActionBatch",
    "CommitInfo",
    "LineBuffer",
    "StatsMember",
    "commit_info_from_row",
    "concat_column_bytes",
    "decode_buffer",
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
]

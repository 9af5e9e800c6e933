"""The `commitInfo` actions of a log: one per commit, of which a snapshot needs few fields.

A log of many small commits has nearly as many commitInfos as files, so one call of a typed parser
reads all of them. Other writers may put anything into a commitInfo. Its content is therefore never
an error, only a line that is not JSON is. If a commitInfo does not have the types that arrowlog
writes, all of them are read one by one, and fields of an unexpected type count as absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import bytes_to_series, concat_bytes, make_array, make_int64
from arrowlog.decode.row_decoder import (
    JSON_ERRORS,
    JSON_NULL,
    JSON_OBJECT_DECODER,
    JsonInt64,
    decode_line,
    make_action_struct,
    parse_lenient,
)
from arrowlog.formats import FieldKind
from arrowlog.formats.indextables import ACTIONS, INDEXTABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrowlog.formats import ActionFields, Format

COMMIT_INFO_PREFIX = b'{"commitInfo":'


class AppTransaction(msgspec.Struct, gc=False):
    """An application transaction: the version of an idempotent write of application `appId`."""

    appId: str  # noqa: N815 -- the name on disk
    version: int


class CommitInfo(msgspec.Struct, gc=False):
    """The fields of a commitInfo that a snapshot needs."""

    numActions: int | None = None  # noqa: N815
    checksum: str | None = None
    timestamp: JsonInt64 | None = None
    txnId: str | None = None  # noqa: N815
    operation: str | None = None
    txn: AppTransaction | None = None
    inCommitTimestamp: JsonInt64 | None = None  # noqa: N815


def _line_struct(content: Any) -> Any:
    """Return the struct type of a line that holds a commitInfo of type `content`, nothing else."""
    fields = [("commitInfo", content)]
    return msgspec.defstruct("info", fields, forbid_unknown_fields=True, gc=False)


# Three views of a commitInfo: undecoded, the fields of `CommitInfo`, and all fields that a format
# declares.
_RAW_LINE: Any = msgspec.json.Decoder(_line_struct(msgspec.Raw))
_INFO_LINE: Any = msgspec.json.Decoder(_line_struct(CommitInfo))
_INFO_OBJECT = msgspec.json.Decoder(CommitInfo)


class _AllFields:
    """Decodes all fields of the commitInfos of one format."""

    def __init__(self, fields: ActionFields) -> None:
        struct = make_action_struct(fields, "commitInfo")
        self.kinds = fields.fields["commitInfo"]
        self.line: Any = msgspec.json.Decoder(_line_struct(struct))
        self.object: Any = msgspec.json.Decoder(struct)

    def values(self, raw: msgspec.Raw) -> list[Any]:
        """Return the values in the order of the fields; None for an unexpected type."""
        try:
            return self.to_values(self.object.decode(raw))
        except JSON_ERRORS:
            pass
        try:
            members: dict[str, msgspec.Raw] = JSON_OBJECT_DECODER.decode(raw)
        except JSON_ERRORS:
            members = {}
        typed = [(kind, members.get(name, JSON_NULL)) for name, kind in self.kinds.items()]
        return [
            _raw_text(raw) if kind is FieldKind.JSON else parse_lenient(kind, raw)
            for kind, raw in typed
        ]

    def to_values(self, decoded: Any) -> list[Any]:
        """Return the values of a decoded commitInfo in the order of the fields."""
        return [
            _raw_text(getattr(decoded, name)) if kind is FieldKind.JSON else getattr(decoded, name)
            for name, kind in self.kinds.items()
        ]


_all_fields = cache(_AllFields)


@dataclass(frozen=True, slots=True)
class CommitInfoLines:
    """Lines that hold a commitInfo and nothing else.

    Each line ends with a line feed. `seq` are the sequence numbers of the lines, `found` the parsed
    commitInfos. `fields` are those that the format of the log declares.
    """

    seq: pa.Array
    lines: pa.Array
    found: list[CommitInfo]
    fields: ActionFields

    def with_seq_offset(self, by: int) -> CommitInfoLines:
        """Return the same lines with sequence numbers increased by `by`."""
        return replace(self, seq=pc.add(self.seq, make_int64(by)))

    def table(self) -> pa.Table:
        """Return a table with `seq` and every known field that at least one commitInfo has."""
        fields = _all_fields(self.fields)
        decoded = _decode_all(fields.line, self.lines)
        if decoded is None:
            raws = [_RAW_LINE.decode(text).commitInfo for text in self.lines.to_pylist()]
            rows = [fields.values(raw) for raw in raws]
        else:
            rows = [fields.to_values(line.commitInfo) for line in decoded]
        columns: dict[str, Any] = {"seq": self.seq}
        for (name, kind), values in zip(fields.kinds.items(), zip(*rows, strict=True), strict=True):
            if any(value is not None for value in values):
                columns[name] = make_array(values, kind.type)
        return pa.table(columns)


def lines_from_raw_infos(
    seqs: Sequence[int], raws: Sequence[msgspec.Raw], fields: ActionFields
) -> CommitInfoLines:
    """Build `CommitInfoLines` from commitInfos that the row decoder extracted from their lines."""
    lines = [b"".join((COMMIT_INFO_PREFIX, bytes(raw), b"}\n")) for raw in raws]
    return CommitInfoLines(
        make_array(seqs, pa.int64()),
        make_array(lines, pa.binary()),
        [parse_commit_info(raw, fields) for raw in raws],
        fields,
    )


def parse_commit_infos(
    seq: pa.Array, lines: pa.Array, fields: ActionFields
) -> tuple[CommitInfoLines, pa.Array | None]:
    """Parse the lines that hold a commitInfo and nothing else.

    Returns them and a mask of the other lines; the mask is None if there are no other lines.
    """
    decoded = _decode_all(_INFO_LINE, lines)
    if decoded is not None:
        return CommitInfoLines(seq, lines, [line.commitInfo for line in decoded], fields), None
    raws = [extract_commit_info(text) for text in lines.to_pylist()]
    is_info = make_array([raw is not None for raw in raws], pa.bool_())
    infos = [parse_commit_info(raw, fields) for raw in raws if raw is not None]
    parsed = CommitInfoLines(seq.filter(is_info), lines.filter(is_info), infos, fields)
    return parsed, pc.invert(is_info)


def _decode_all(decoder: Any, lines: pa.Array) -> list[Any] | None:
    """Decode all lines with one call; None if the decoder rejects any of them."""
    try:
        text = concat_bytes(lines)
        if pc.max(bytes_to_series(text).to_arrow()).as_py() > 127:
            str(text, "utf-8")  # msgspec does not validate UTF-8 in the fields that it skips
        decoded: list[Any] = decoder.decode_lines(text)
    except JSON_ERRORS:
        return None
    return decoded if len(decoded) == len(lines) else None


def extract_commit_info(text: bytes) -> msgspec.Raw | None:
    """Return the commitInfo in a line that holds nothing else; None for any other line."""
    try:
        text.decode()
        raw: msgspec.Raw = _RAW_LINE.decode(text).commitInfo
    except JSON_ERRORS:
        return None
    return None if bytes(raw) == b"null" else raw


def parse_commit_info(info: msgspec.Raw, fields: ActionFields = ACTIONS) -> CommitInfo:
    """Parse a commitInfo. Fields of an unexpected type count as absent; never raises."""
    try:
        return _INFO_OBJECT.decode(info)
    except JSON_ERRORS:
        pass
    declared = _all_fields(fields)
    values = dict(zip(declared.kinds, declared.values(info), strict=True))
    known = ("numActions", "timestamp", "txnId", "inCommitTimestamp")
    return CommitInfo(**{name: values.get(name) for name in known})


def commit_info_from_row(row: Mapping[str, Any]) -> CommitInfo:
    """Build a `CommitInfo` from a row of decoded commitInfos, without the declared action count."""
    txn = row.get("txn")
    try:
        app_transaction = None if txn is None else msgspec.json.decode(txn, type=AppTransaction)
    except JSON_ERRORS:
        app_transaction = None
    return CommitInfo(
        timestamp=row.get("timestamp"),
        txnId=row.get("txnId"),
        txn=app_transaction,
        inCommitTimestamp=row.get("inCommitTimestamp"),
    )


def _raw_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode()


def read_commit_time(data: bytes, table_format: Format = INDEXTABLES) -> int | None:
    """Return the commit's timestamp in milliseconds, as the commit itself declares it.

    That is the time in its commitInfo or, in a commit without one (version 0), the `createdTime` of
    its metaData, if these count in the format. Returns None if it declares neither. Raises
    `LogCorrupt` if the line that holds either is not valid.
    """
    created: int | None = None
    fields = table_format.actions
    for text in data.split(b"\n"):
        if b'"commitInfo"' in text or b'"metaData"' in text:
            action = decode_line(text, "", 0, fields)
            if action is not None and action[0] == "commitInfo":
                info = parse_commit_info(action[1], fields)
                time: int | None = getattr(info, table_format.commit_time_field)
                return time
            if action is not None and action[0] == "metaData":
                created = action[1].createdTime
    return created if table_format.creation_time_counts else None

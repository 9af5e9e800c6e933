"""The `commitInfo` actions of a log: one per commit, of which a snapshot needs few fields.

A log of many small commits has nearly as many commitInfos as files, so one call of a typed parser
reads all of them. Other writers may put anything into a commitInfo. Its content is therefore never
an error, only a line that is not JSON is. If a commitInfo does not have the types that arrowlog
writes, all of them are read one by one, and fields of an unexpected type count as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.actions import INFO, Kind
from arrowlog.log.arrays import array_of, number, octets, octets_in
from arrowlog.log.lines import BROKEN, INT64, MAP, NULL, decode_line, lenient, struct_of

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = b'{"commitInfo":'


class Txn(msgspec.Struct, gc=False):
    """An application transaction: the version of an idempotent write of application `appId`."""

    appId: str  # noqa: N815 -- the name on disk
    version: int


class Info(msgspec.Struct, gc=False):
    """The fields of a commitInfo that a snapshot needs."""

    numActions: int | None = None  # noqa: N815
    checksum: str | None = None
    timestamp: INT64 | None = None
    txnId: str | None = None  # noqa: N815
    operation: str | None = None
    txn: Txn | None = None


def _line_struct(content: Any) -> Any:
    """Return the struct type of a line that holds a commitInfo of type `content`, nothing else."""
    fields = [("commitInfo", content)]
    return msgspec.defstruct("info", fields, forbid_unknown_fields=True, gc=False)


# Three views of a commitInfo: undecoded, the fields of `Info`, and all fields of `INFO`.
_ALL_FIELDS: Any = struct_of("commitInfo")
_RAW_LINE: Any = msgspec.json.Decoder(_line_struct(msgspec.Raw))
_INFO_LINE: Any = msgspec.json.Decoder(_line_struct(Info))
_ALL_FIELDS_LINE: Any = msgspec.json.Decoder(_line_struct(_ALL_FIELDS))
_INFO_OBJECT = msgspec.json.Decoder(Info)
_ALL_FIELDS_OBJECT = msgspec.json.Decoder(_ALL_FIELDS)


@dataclass(frozen=True, slots=True)
class Infos:
    """Lines that hold a commitInfo and nothing else.

    Each line ends with a line feed. `seq` are the sequence numbers of the lines, `found` the parsed
    commitInfos.
    """

    seq: pa.Array
    lines: pa.Array
    found: list[Info]

    def shifted(self, by: int) -> Infos:
        """Return the same lines with sequence numbers increased by `by`."""
        return Infos(pc.add(self.seq, number(by)), self.lines, self.found)

    def table(self) -> pa.Table:
        """Return a table with `seq` and every known field that at least one commitInfo has."""
        decoded = _decode_all(_ALL_FIELDS_LINE, self.lines)
        if decoded is None:
            raws = [_RAW_LINE.decode(text).commitInfo for text in self.lines.to_pylist()]
            rows = [_field_values(raw) for raw in raws]
        else:
            rows = [_to_values(line.commitInfo) for line in decoded]
        columns: dict[str, Any] = {"seq": self.seq}
        for (name, kind), values in zip(INFO.items(), zip(*rows, strict=True), strict=True):
            if any(value is not None for value in values):
                columns[name] = array_of(values, kind.type)
        return pa.table(columns)


def of_raws(seqs: Sequence[int], raws: Sequence[msgspec.Raw]) -> Infos:
    """Build `Infos` from commitInfos that the row decoder extracted from their lines."""
    lines = [b"".join((HEAD, bytes(raw), b"}\n")) for raw in raws]
    return Infos(
        array_of(seqs, pa.int64()),
        array_of(lines, pa.binary()),
        [read_info(raw) for raw in raws],
    )


def read_infos(seq: pa.Array, lines: pa.Array) -> tuple[Infos, pa.Array | None]:
    """Parse the lines that hold a commitInfo and nothing else.

    Returns them and a mask of the other lines; the mask is None if there are no other lines.
    """
    decoded = _decode_all(_INFO_LINE, lines)
    if decoded is not None:
        return Infos(seq, lines, [line.commitInfo for line in decoded]), None
    raws = [info_of(text) for text in lines.to_pylist()]
    is_info = array_of([raw is not None for raw in raws], pa.bool_())
    infos = [read_info(raw) for raw in raws if raw is not None]
    return Infos(seq.filter(is_info), lines.filter(is_info), infos), pc.invert(is_info)


def _decode_all(decoder: Any, lines: pa.Array) -> list[Any] | None:
    """Decode all lines with one call; None if the decoder rejects any of them."""
    try:
        text = octets_in(lines)
        if pc.max(octets(text).to_arrow()).as_py() > 127:
            str(text, "utf-8")  # msgspec does not validate UTF-8 in the fields that it skips
        decoded: list[Any] = decoder.decode_lines(text)
    except BROKEN:
        return None
    return decoded if len(decoded) == len(lines) else None


def info_of(text: bytes) -> msgspec.Raw | None:
    """Return the commitInfo in a line that holds nothing else; None for any other line."""
    try:
        text.decode()
        raw: msgspec.Raw = _RAW_LINE.decode(text).commitInfo
    except BROKEN:
        return None
    return None if bytes(raw) == b"null" else raw


def read_info(info: msgspec.Raw) -> Info:
    """Parse a commitInfo. Fields of an unexpected type count as absent; never raises."""
    try:
        return _INFO_OBJECT.decode(info)
    except BROKEN:
        pass
    values = dict(zip(INFO, _field_values(info), strict=True))
    return Info(
        numActions=values["numActions"], timestamp=values["timestamp"], txnId=values["txnId"]
    )


def info_of_row(timestamp: int | None, txn: str | None, txn_id: str | None) -> Info:
    """Build an `Info` from the columns of a decoded commitInfo; `txn` is JSON text."""
    try:
        app_transaction = None if txn is None else msgspec.json.decode(txn, type=Txn)
    except BROKEN:
        app_transaction = None
    return Info(timestamp=timestamp, txn=app_transaction, txnId=txn_id)


def _to_values(decoded: Any) -> list[Any]:
    """Return the values of a decoded commitInfo in the order of `INFO`."""
    return [
        _raw_text(getattr(decoded, name)) if kind is Kind.JSON else getattr(decoded, name)
        for name, kind in INFO.items()
    ]


def _field_values(raw: msgspec.Raw) -> list[Any]:
    """Return the values of a commitInfo in the order of `INFO`; None for an unexpected type."""
    try:
        return _to_values(_ALL_FIELDS_OBJECT.decode(raw))
    except BROKEN:
        pass
    try:
        members: dict[str, msgspec.Raw] = MAP.decode(raw)
    except BROKEN:
        members = {}
    typed = [(kind, members.get(name, NULL)) for name, kind in INFO.items()]
    return [_raw_text(raw) if kind is Kind.JSON else lenient(kind, raw) for kind, raw in typed]


def _raw_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode()


def commit_time(data: bytes) -> int | None:
    """Return the commit's timestamp in milliseconds, as the commit itself declares it.

    That is the `timestamp` of its commitInfo or, in a commit without one (version 0), the
    `createdTime` of its metaData. Returns None if it declares neither. Raises `LogCorrupt` if the
    line that holds either is not valid.
    """
    created: int | None = None
    for text in data.split(b"\n"):
        if b'"commitInfo"' in text or b'"metaData"' in text:
            action = decode_line(text, "", 0)
            if action is not None and action[0] == "commitInfo":
                return read_info(action[1]).timestamp
            if action is not None and action[0] == "metaData":
                created = action[1].createdTime
    return created

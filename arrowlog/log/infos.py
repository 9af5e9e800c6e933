"""What commits say of themselves: `commitInfo`, one a commit, of which a state needs little.

A log of many small commits has nearly as many of these as of files. They are read all together by
one call of a typed parser. One that another program wrote may be anything, so they are never an
error unless the line itself is none; those that are not plainly ours are read one by one.
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
    """A step of an application, that must not be taken twice."""

    appId: str  # noqa: N815 -- the name on disk
    version: int


class Info(msgspec.Struct, gc=False):
    """What a state needs of a commitInfo."""

    numActions: int | None = None  # noqa: N815
    checksum: str | None = None
    timestamp: INT64 | None = None
    txnId: str | None = None  # noqa: N815
    operation: str | None = None
    txn: Txn | None = None


def _line(kind: Any) -> Any:
    """A line that holds a commitInfo and nothing else."""
    fields = [("commitInfo", kind)]
    return msgspec.defstruct("info", fields, forbid_unknown_fields=True, gc=False)


_PLAIN: Any = struct_of("commitInfo")
_RAW_LINE: Any = msgspec.json.Decoder(_line(msgspec.Raw))
_INFO_LINE: Any = msgspec.json.Decoder(_line(Info))
_PLAIN_LINE: Any = msgspec.json.Decoder(_line(_PLAIN))
_INFO_ONLY = msgspec.json.Decoder(Info)
_PLAIN_ONLY = msgspec.json.Decoder(_PLAIN)


@dataclass(frozen=True, slots=True)
class Infos:
    """Lines with a commitInfo in them, each ended by a line feed; `seq` says where each stood."""

    seq: pa.Array
    lines: pa.Array
    found: list[Info]

    def shifted(self, by: int) -> Infos:
        """The same, further down."""
        return Infos(pc.add(self.seq, number(by)), self.lines, self.found)

    def table(self) -> pa.Table:
        """Every field of them that any of them has."""
        found = _read_all(_PLAIN_LINE, self.lines)
        if found is None:
            rows = [_fields(_raw(text)) for text in self.lines.to_pylist()]
        else:
            rows = [_texts(line.commitInfo) for line in found]
        columns: dict[str, Any] = {"seq": self.seq}
        for (name, kind), values in zip(INFO.items(), zip(*rows, strict=True), strict=True):
            if any(value is not None for value in values):
                columns[name] = array_of(values, kind.type)
        return pa.table(columns)


def of_raws(seqs: Sequence[int], raws: Sequence[msgspec.Raw]) -> Infos:
    """Of commitInfos that were found in lines spelled otherwise."""
    lines = [b"".join((HEAD, bytes(raw), b"}\n")) for raw in raws]
    return Infos(
        array_of(seqs, pa.int64()),
        array_of(lines, pa.binary()),
        [read_info(raw) for raw in raws],
    )


def read_infos(seq: pa.Array, lines: pa.Array) -> tuple[Infos, pa.Array | None]:
    """The lines that hold a commitInfo and nothing else; and which do not, if any."""
    found = _read_all(_INFO_LINE, lines)
    if found is not None:
        return Infos(seq, lines, [line.commitInfo for line in found]), None
    raws = [info_of(text) for text in lines.to_pylist()]
    right = array_of([raw is not None for raw in raws], pa.bool_())
    infos = [read_info(raw) for raw in raws if raw is not None]
    return Infos(seq.filter(right), lines.filter(right), infos), pc.invert(right)


def _read_all(decoder: Any, lines: pa.Array) -> list[Any] | None:
    """All lines in one go; None if one of them is not as it should be."""
    try:
        text = octets_in(lines)
        if pc.max(octets(text).to_arrow()).as_py() > 127:
            str(text, "utf-8")
        found: list[Any] = decoder.decode_lines(text)
    except BROKEN:
        return None
    return found if len(found) == len(lines) else None


def info_of(text: bytes) -> msgspec.Raw | None:
    """The commitInfo in a line that holds nothing else; None if it is not plainly that."""
    try:
        text.decode()
        raw: msgspec.Raw = _RAW_LINE.decode(text).commitInfo
    except BROKEN:
        return None
    return None if bytes(raw) == b"null" else raw


def _raw(text: bytes) -> msgspec.Raw:
    """The commitInfo in a line that is known to hold one."""
    raw: msgspec.Raw = _RAW_LINE.decode(text).commitInfo
    return raw


def read_info(info: msgspec.Raw) -> Info:
    """What a state needs of a commitInfo. One that another program wrote may be anything."""
    try:
        return _INFO_ONLY.decode(info)
    except BROKEN:
        pass
    found = dict(zip(INFO, _fields(info), strict=True))
    return Info(numActions=found["numActions"], timestamp=found["timestamp"], txnId=found["txnId"])


def info_of_row(timestamp: int | None, txn: str | None, txn_id: str | None) -> Info:
    """The same of one that was decoded as columns."""
    try:
        step = None if txn is None else msgspec.json.decode(txn, type=Txn)
    except BROKEN:
        step = None
    return Info(timestamp=timestamp, txn=step, txnId=txn_id)


def _texts(plain: Any) -> list[Any]:
    """The fields of a commitInfo that is as ours are."""
    return [
        _json(getattr(plain, name)) if kind is Kind.JSON else getattr(plain, name)
        for name, kind in INFO.items()
    ]


def _fields(raw: msgspec.Raw) -> list[Any]:
    """The fields of a commitInfo, as far as they have the types we write."""
    try:
        return _texts(_PLAIN_ONLY.decode(raw))
    except BROKEN:
        pass
    try:
        members: dict[str, msgspec.Raw] = MAP.decode(raw)
    except BROKEN:
        members = {}
    given = [(kind, members.get(name, NULL)) for name, kind in INFO.items()]
    return [_json(raw) if kind is Kind.JSON else lenient(kind, raw) for kind, raw in given]


def _json(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    return None if text == b"null" else text.decode()


def commit_time(data: bytes) -> int | None:
    """When a commit says it was made: its commitInfo, or for a new table its metaData."""
    created: int | None = None
    for text in data.split(b"\n"):
        if b'"commitInfo"' in text or b'"metaData"' in text:
            action = decode_line(text, "", 0)
            if action is not None and action[0] == "commitInfo":
                return read_info(action[1]).timestamp
            if action is not None and action[0] == "metaData":
                created = action[1].createdTime
    return created

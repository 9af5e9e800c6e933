"""Random Delta tables on disk, and a naive reader of them: dictionaries, loops, one line at a time.

The reader replays commits only and decodes deletion vectors with pyroaring, so that it shares
nothing with the code under test. The writer can put any form of checkpoint beside the commits.
"""

from __future__ import annotations

import json
import os
import random
import struct
import urllib.parse
import uuid
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
FORMS = ("classic", "parts", "uuid-parquet", "uuid-json", "sidecars-parquet", "sidecars-json")
ODD_TEXTS = ("", "a", "z", "ä ö", "per%cent", "x" * 40, "\U0001f600" * 3, 'quo"te', "back\\slash")


def encode_z85(data: bytes) -> str:
    data += bytes(-len(data) % 4)
    text = ""
    for start in range(0, len(data), 4):
        value = int.from_bytes(data[start : start + 4], "big")
        text += "".join(Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


def decode_z85(text: str) -> bytes:
    data = b""
    for start in range(0, len(text), 5):
        value = 0
        for char in text[start : start + 5]:
            value = value * 85 + Z85.index(char)
        data += value.to_bytes(4, "big")
    return data


def serialize_bitmap(rows) -> bytes:
    return struct.pack("<i", 1681511377) + BitMap64(rows).serialize()


@dataclass
class DeltaTable:
    """A generated table; `features` choose what it uses."""

    root: str
    rng: random.Random
    mapping: str = "none"
    vectors: bool = False
    partitioned: bool = False
    version: int = -1
    columns: list[dict] = field(default_factory=list)
    live: dict[tuple, dict] = field(default_factory=dict)
    next_id: int = 1
    metadata: dict = field(default_factory=dict)
    protocol: dict = field(default_factory=dict)
    txns: dict[str, dict] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return Path(self.root) / "_delta_log"

    def commit(self, actions: list[dict]) -> None:
        self.version += 1
        os.makedirs(self.log, exist_ok=True)
        info = {"timestamp": self.version, "operation": "TEST", "operationParameters": {"n": 1}}
        lines = [{"commitInfo": info}, *actions]
        self.rng.shuffle(lines)
        text = "\n".join(json.dumps(line, ensure_ascii=self.rng.random() < 0.5) for line in lines)
        name = f"{self.version:020d}.json"
        (self.log / name).write_text(text + ("\n" if self.rng.random() < 0.8 else ""))
        for action in actions:
            if "txn" in action:
                self.txns[action["txn"]["appId"]] = action["txn"]

    def column(self, name: str, kind) -> dict:
        metadata = {}
        if self.mapping != "none":
            physical = f"col-{uuid.UUID(int=self.rng.getrandbits(128))}"
            metadata = {
                "delta.columnMapping.id": self.next_id,
                "delta.columnMapping.physicalName": physical,
            }
        self.next_id += 1
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    def create(self) -> None:
        inner = {"type": "struct", "fields": [self.column("x", "long"), self.column("y", "string")]}
        self.columns = [
            self.column("id", "long"),
            self.column("name", "string"),
            self.column("price", "decimal(12,3)"),
            self.column("at", "timestamp"),
            self.column("nested", inner),
            self.column("part", self.rng.choice(["string", "integer", "date"])),
        ]
        features = ["v2Checkpoint"]
        features += ["deletionVectors"] if self.vectors else []
        features += ["columnMapping"] if self.mapping != "none" else []
        self.protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        self.protocol |= {"readerFeatures": features, "writerFeatures": [*features, "odd"]}
        self.commit([self.protocol_action(), self.metadata_action()])

    def protocol_action(self) -> dict:
        return {"protocol": self.protocol}

    def metadata_action(self) -> dict:
        schema = {"type": "struct", "fields": self.columns}
        configuration = {"delta.enableDeletionVectors": str(self.vectors).lower()}
        if self.mapping != "none":
            configuration["delta.columnMapping.mode"] = self.mapping
        partition = next((c["name"] for c in self.columns if c["name"].startswith("part")), None)
        self.metadata = {
            "id": "a-table",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [partition] if self.partitioned else [],
            "configuration": configuration,
            "createdTime": 1,
        }
        return {"metaData": self.metadata}

    def random_rows(self) -> list[dict]:
        rng = self.rng
        start, count = rng.randrange(0, 1000), rng.randint(1, 12)
        partition = {"string": rng.choice(ODD_TEXTS[1:]), "integer": rng.randint(-3, 3)}
        partition["date"] = f"2024-01-{rng.randint(1, 28):02d}"
        kind = self.columns[-1]["type"] if self.columns[-1]["name"].startswith("part") else "string"
        part = rng.choice([None, partition[kind], partition[kind]])
        return [
            {
                "id": rng.choice([start + i, start + i, None]),
                "name": rng.choice(ODD_TEXTS),
                "price": None if rng.random() < 0.2 else str(start + i) + ".125",
                "at": (start + i) * 3_600_000_000 + rng.choice([0, 1, 999]),
                "nested": {"x": i, "y": rng.choice(ODD_TEXTS)} if rng.random() < 0.8 else None,
                "part": part if self.partitioned else rng.choice([None, partition[kind]]),
            }
            for i in range(count)
        ]

    def write_file(self) -> dict:
        """Write a data file and return its add."""
        rows = self.random_rows()
        folder = self.rng.choice(["", "a b/", "x%y/", "ä/"])
        name = f"{folder}f-{self.rng.getrandbits(64):016x}.parquet"
        partition = self.metadata["partitionColumns"]
        fields = [c for c in self.columns if c["name"] not in partition]
        table = pa.table(
            {
                f.name: _array(f, [_value(c, row.get(key)) for row in rows])
                for c, key, f in ((c, c["name"].partition("-")[0], arrow_field(c)) for c in fields)
            },
            schema=pa.schema([arrow_field(c) for c in fields]),
        )
        path = Path(self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=3)
        add = {
            "path": urllib.parse.quote(name, safe="/"),
            "partitionValues": {},
            "size": path.stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
        }
        if partition:
            column = next(c for c in self.columns if c["name"] == partition[0])
            value = rows[0]["part"]
            add["partitionValues"] = {physical(column): None if value is None else str(value)}
        if self.rng.random() < 0.85:
            add["stats"] = json.dumps(_stats(fields, rows), ensure_ascii=False)
        return add

    def delete_rows(self, add: dict) -> tuple[dict, dict] | None:
        """Return the remove and the add that delete more rows of a file; None if all are gone."""
        count = pq.read_metadata(Path(self.root) / urllib.parse.unquote(add["path"])).num_rows
        deleted = set(naive_vector(self.root, add.get("deletionVector")))
        left = [row for row in range(count) if row not in deleted]
        if not left:
            return None
        deleted |= set(self.rng.sample(left, self.rng.randint(1, len(left))))
        vector = self.write_vector(sorted(deleted))
        new = {**add, "deletionVector": vector}
        if "stats" in add:
            stats = {**json.loads(add["stats"]), "tightBounds": False}
            new["stats"] = json.dumps(stats, ensure_ascii=False)
        gone = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
        if "deletionVector" in add:
            gone["deletionVector"] = add["deletionVector"]
        return gone, new

    def write_vector(self, rows: list[int]) -> dict:
        data = serialize_bitmap(rows)
        common = {"sizeInBytes": len(data), "cardinality": len(rows)}
        kind = self.rng.choice("uuip")
        if kind == "i":
            return {"storageType": "i", "pathOrInlineDv": encode_z85(data), **common}
        number = uuid.UUID(int=self.rng.getrandbits(128))
        folder = self.rng.choice(["", "ab"]) if kind == "u" else ""
        place = Path(self.root) / folder / f"deletion_vector_{number}.bin"
        place.parent.mkdir(exist_ok=True)
        before = b"\x01" + bytes(self.rng.randrange(40)) if self.rng.random() < 0.7 else b""
        framed = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        place.write_bytes(before + framed)
        offset = {"offset": len(before)} if before or self.rng.random() < 0.5 else {}
        if kind == "p":
            return {"storageType": "p", "pathOrInlineDv": f"file:{place}", **offset, **common}
        text = folder + encode_z85(number.bytes)
        return {"storageType": "u", "pathOrInlineDv": text, **offset, **common}

    def step(self) -> None:
        """Make one random commit."""
        rng = self.rng
        actions: list[dict] = []
        for key, add in list(self.live.items()):
            chance = rng.random()
            if chance < 0.1:
                gone = {k: add[k] for k in ("path", "deletionVector") if k in add}
                actions.append({"remove": {**gone, "dataChange": True, "deletionTimestamp": 2}})
                del self.live[key]
            elif chance < 0.3 and self.vectors:
                pair = self.delete_rows(add)
                if pair is not None:
                    actions += [{"remove": pair[0]}, {"add": pair[1]}]
                    del self.live[key]
                    self.live[file_key(pair[1])] = pair[1]
        for _ in range(rng.randint(0, 3)):
            add = self.write_file()
            actions.append({"add": add})
            self.live[file_key(add)] = add
        if rng.random() < 0.2:
            version = rng.randint(0, 9)
            actions.append({"txn": {"appId": rng.choice("ab"), "version": version}})
        if rng.random() < 0.15 and self.mapping != "none":
            index = rng.randrange(4)
            column = self.columns[index]
            name = f"{column['name'].partition('-')[0]}-{self.version}"
            self.columns = [*self.columns]
            self.columns[index] = {**column, "name": name}
            actions.append(self.metadata_action())
        if rng.random() < 0.1:
            actions.append({"futureAction": {"x": [1]}})
        self.commit(actions)

    def checkpoint(self, form: str) -> None:
        """Write a checkpoint of the newest version in one of `FORMS`."""
        structs = self.rng.choice(["text", "struct", "both"])
        adds = list(self.live.values())
        self.rng.shuffle(adds)
        tombstone = {"path": "gone.parquet", "deletionTimestamp": 1, "dataChange": False}
        others = [self.protocol_action(), self.metadata_action_of_state(), {"remove": tombstone}]
        others += [{"txn": txn} for txn in self.txns.values()]
        rows = [{"add": self.checkpoint_add(add, structs)} for add in adds]
        stem = f"{self.version:020d}.checkpoint"
        number = uuid.UUID(int=self.rng.getrandbits(128))
        if form == "classic":
            self.write_rows(self.log / f"{stem}.parquet", [*others, *rows], structs)
        elif form == "parts":
            half = len(rows) // 2
            pieces = [[*others[:1], *rows[:half]], [*others[1:], *rows[half:]]]
            for index, piece in enumerate(pieces, 1):
                path = self.log / f"{stem}.{index:010d}.{2:010d}.parquet"
                self.write_rows(path, piece, structs)
        else:
            self.write_v2(form, f"{stem}.{number}", others, rows, structs)

    def metadata_action_of_state(self) -> dict:
        return {"metaData": self.metadata}

    def write_v2(self, form, stem, others, rows, structs) -> None:
        content = [{"checkpointMetadata": {"version": self.version}}, *others]
        if form.startswith("sidecars"):
            (self.log / "_sidecars").mkdir(exist_ok=True)
            inside = rows[: len(rows) // 3] if self.rng.random() < 0.3 else []
            outside = rows[len(inside) :]
            for start in range(0, len(outside), 3):
                name = f"{uuid.UUID(int=self.rng.getrandbits(128))}.parquet"
                path = self.log / "_sidecars" / name
                self.write_rows(path, outside[start : start + 3], structs)
                sidecar = {"path": name, "sizeInBytes": path.stat().st_size, "modificationTime": 1}
                content.append({"sidecar": sidecar})
            rows = inside
        if form.endswith("json"):
            lines = [*content, *(_json_row(row) for row in rows)]
            (self.log / f"{stem}.json").write_text("\n".join(map(json.dumps, lines)))
        else:
            self.write_rows(self.log / f"{stem}.parquet", [*content, *rows], structs)

    def checkpoint_add(self, add: dict, structs: str) -> dict:
        row = {**add, "dataChange": False}
        if "stats" in add and structs != "text":
            stats = json.loads(add["stats"])
            row["stats_parsed"] = _typed_stats(stats, self.columns)
            if structs == "struct":
                del row["stats"]
        return row

    def write_rows(self, path: Path, rows: list[dict], structs: str) -> None:
        text, number, flag = pa.string(), pa.int64(), pa.bool_()
        strings = pa.map_(text, text)
        vector = [("storageType", text), ("pathOrInlineDv", text), ("offset", pa.int32())]
        vector += [("sizeInBytes", pa.int32()), ("cardinality", number)]
        add = [("path", text), ("partitionValues", strings), ("size", number)]
        add += [("modificationTime", number), ("dataChange", flag)]
        add += [("deletionVector", pa.struct(vector))]
        if structs != "struct":
            add.append(("stats", text))
        if structs != "text":
            add.append(("stats_parsed", _stats_type(self.columns)))
        kinds = {
            "add": pa.struct(add),
            "remove": pa.struct([("path", text), ("deletionTimestamp", number)]),
            "metaData": pa.struct(
                [
                    ("id", text),
                    ("format", pa.struct([("provider", text), ("options", strings)])),
                    ("schemaString", text),
                    ("partitionColumns", pa.list_(text)),
                    ("configuration", strings),
                    ("createdTime", number),
                ]
            ),
            "protocol": pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(text)),
                    ("writerFeatures", pa.list_(text)),
                ]
            ),
            "txn": pa.struct([("appId", text), ("version", number)]),
            "sidecar": pa.struct(
                [("path", text), ("sizeInBytes", number), ("modificationTime", number)]
            ),
            "checkpointMetadata": pa.struct([("version", number)]),
        }
        columns = {
            name: pa.array([_fit(row.get(name), kind) for row in rows], kind)
            for name, kind in kinds.items()
        }
        pq.write_table(pa.table(columns), path, row_group_size=self.rng.choice([2, 5, 1000]))


def _fit(value, kind):
    """Drop what a struct type lacks, and give maps as pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_struct(kind):
        return {f.name: _fit(value.get(f.name), f.type) for f in kind}
    return value


def _json_row(row: dict) -> dict:
    add = {key: value for key, value in row["add"].items() if key != "stats_parsed"}
    return {"add": add}


def physical(column: dict) -> str:
    return column["metadata"].get("delta.columnMapping.physicalName", column["name"])


TYPES = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "string": pa.string(),
    "decimal(12,3)": pa.decimal128(12, 3),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


def arrow_field(column: dict) -> pa.Field:
    """The field of a column in a data file."""
    kind = column["type"]
    if isinstance(kind, dict):
        arrow = pa.struct([arrow_field(inner) for inner in kind["fields"]])
    else:
        arrow = TYPES[kind]
    number = column["metadata"].get("delta.columnMapping.id")
    metadata = None if number is None else {"PARQUET:field_id": str(number)}
    return pa.field(physical(column), arrow, metadata=metadata)


def _array(item: pa.Field, values: list) -> pa.Array:
    return pa.array(values, item.type)


def _value(column: dict, value):
    """A value as pyarrow takes it, with physical names inside structs."""
    kind = column["type"]
    if value is None:
        return None
    if isinstance(kind, dict):
        return {physical(c): _value(c, value[c["name"]]) for c in kind["fields"]}
    if kind.startswith("decimal"):
        from decimal import Decimal

        return Decimal(value)
    if kind == "date":
        from datetime import date

        return date.fromisoformat(value)
    return value


def _timestamp_text(micros: int) -> str:
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=micros // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _stats(columns: list[dict], rows: list[dict]) -> dict:
    stats: dict = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for column in columns:
        key, name, kind = column["name"].partition("-")[0], physical(column), column["type"]
        values = [row.get(key) for row in rows if row.get(key) is not None]
        if isinstance(kind, dict):
            inner = _stats(kind["fields"], [value or {} for value in (r.get(key) for r in rows)])
            for part in ("minValues", "maxValues", "nullCount"):
                if inner[part]:
                    stats[part][name] = inner[part]
            continue
        stats["nullCount"][name] = len(rows) - len(values)
        if not values:
            continue
        if kind.startswith("decimal"):
            low, high = min(values, key=float), max(values, key=float)
            stats["minValues"][name], stats["maxValues"][name] = float(low), float(high)
        elif kind == "timestamp":
            stats["minValues"][name] = _timestamp_text(min(values))
            stats["maxValues"][name] = _timestamp_text(max(values))
        elif kind == "string":
            low = min(values, key=lambda text: text.encode())
            high = max(values, key=lambda text: text.encode())
            stats["minValues"][name] = low[:32]
            stats["maxValues"][name] = high if len(high) <= 32 else high[:32] + "\U0010ffff"
        else:
            stats["minValues"][name], stats["maxValues"][name] = min(values), max(values)
    return stats


def _stats_type(columns: list[dict]) -> pa.DataType:
    def bounds(items):
        return pa.struct(
            [
                (
                    physical(c),
                    bounds(c["type"]["fields"])
                    if isinstance(c["type"], dict)
                    else TYPES[c["type"]],
                )
                for c in items
            ]
        )

    def counts(items):
        return pa.struct(
            [
                (
                    physical(c),
                    counts(c["type"]["fields"]) if isinstance(c["type"], dict) else pa.int64(),
                )
                for c in items
            ]
        )

    return pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", bounds(columns)),
            ("maxValues", bounds(columns)),
            ("nullCount", counts(columns)),
            ("tightBounds", pa.bool_()),
        ]
    )


def _typed_stats(stats: dict, columns: list[dict]) -> dict:
    from datetime import date, datetime
    from decimal import Decimal

    def typed(items, values):
        found = {}
        for column in items:
            value, kind = values.get(physical(column)), column["type"]
            if value is None:
                continue
            if isinstance(kind, dict):
                value = typed(kind["fields"], value)
            elif kind.startswith("decimal"):
                value = Decimal(str(value))
            elif kind == "timestamp":
                value = datetime.fromisoformat(value)
            elif kind == "date":
                value = date.fromisoformat(value)
            found[physical(column)] = value
        return found

    return {
        **stats,
        "minValues": typed(columns, stats["minValues"]),
        "maxValues": typed(columns, stats["maxValues"]),
    }


# The naive reader.


def file_key(action: dict) -> tuple:
    vector = action.get("deletionVector") or {}
    place = (vector.get("storageType"), vector.get("pathOrInlineDv"), vector.get("offset"))
    return (urllib.parse.unquote(action["path"]), *place)


@dataclass
class NaiveState:
    """What the commits up to a version say."""

    live: dict[tuple, dict] = field(default_factory=dict)
    metadata: dict = field(default_factory=dict)
    protocol: dict = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)

    @property
    def schema(self) -> dict:
        return json.loads(self.metadata["schemaString"])


def naive_state(root: str, version: int) -> NaiveState:
    """Replay the commits up to a version."""
    state = NaiveState()
    for number in range(version + 1):
        text = (Path(root) / "_delta_log" / f"{number:020d}.json").read_text()
        actions = [json.loads(line) for line in text.split("\n") if line.strip()]
        for action in actions:
            if "remove" in action:
                state.live.pop(file_key(action["remove"]), None)
        for action in actions:
            if "add" in action:
                state.live[file_key(action["add"])] = action["add"]
            elif "metaData" in action:
                state.metadata = action["metaData"]
            elif "protocol" in action:
                state.protocol = action["protocol"]
            elif "txn" in action:
                state.txns[action["txn"]["appId"]] = action["txn"]["version"]
    return state


def compact_commits(root: str, first: int, last: int) -> None:
    """Write the compacted commit of some versions: their reconciled actions."""
    log = Path(root) / "_delta_log"
    kept: dict[tuple, dict] = {}
    for number in range(first, last + 1):
        text = (log / f"{number:020d}.json").read_text()
        actions = [json.loads(line) for line in text.split("\n") if line.strip()]
        for kind in ("remove", "add"):
            kept |= {("file", *file_key(a[kind])): a for a in actions if kind in a}
        for action in actions:
            for kind in ("protocol", "metaData", "txn"):
                if kind in action:
                    kept[kind, action[kind].get("appId")] = action
    lines = [json.dumps(action) + "\n" for action in kept.values()]
    (log / f"{first:020d}.{last:020d}.compacted.json").write_text("".join(lines) or "\n")


def naive_vector(root: str, vector: dict | None) -> list[int]:
    """The deleted rows that a descriptor stands for."""
    if not vector:
        return []
    kind, text = vector["storageType"], vector["pathOrInlineDv"]
    if kind == "i":
        data = decode_z85(text)[: vector["sizeInBytes"]]
    else:
        if kind == "p":
            place = Path(urllib.parse.unquote(text).removeprefix("file:"))
        else:
            number = uuid.UUID(bytes=decode_z85(text[-20:]))
            place = Path(root) / text[:-20] / f"deletion_vector_{number}.bin"
        start = vector.get("offset") or 0
        data = place.read_bytes()[start + 4 : start + 4 + vector["sizeInBytes"]]
    return list(BitMap64.deserialize(data[4:]))


def naive_rows(root: str, state: NaiveState) -> list[dict]:
    """All rows of a state, with logical names."""
    mode = state.metadata["configuration"].get("delta.columnMapping.mode", "none")
    rows = []
    for add in state.live.values():
        table = pq.read_table(Path(root) / urllib.parse.unquote(add["path"]), partitioning=None)
        deleted = set(naive_vector(root, add.get("deletionVector")))
        for number, row in enumerate(table.to_pylist()):
            if number not in deleted:
                shown = {}
                for column in state.schema["fields"]:
                    if column["name"] in state.metadata["partitionColumns"]:
                        text = add["partitionValues"].get(physical(column))
                        shown[column["name"]] = _partition_value(column["type"], text)
                    else:
                        shown[column["name"]] = _logical(column, row.get(physical(column)))
                rows.append(shown)
    del mode
    return rows


def _partition_value(kind: str, text: str | None):
    from datetime import date

    if text is None or text == "":
        return None
    return {"string": str, "integer": int, "date": date.fromisoformat}[kind](text)


def _logical(column: dict, value):
    kind = column["type"]
    if value is None or not isinstance(kind, dict):
        return value
    return {c["name"]: _logical(c, value.get(physical(c))) for c in kind["fields"]}


def random_table(root: str, seed: int) -> DeltaTable:
    """A table with some commits; features and content follow from the seed."""
    rng = random.Random(seed)
    table = DeltaTable(
        root,
        rng,
        mapping=rng.choice(["none", "none", "name", "id"]),
        vectors=rng.random() < 0.6,
        partitioned=rng.random() < 0.6,
    )
    table.create()
    for _ in range(rng.randint(1, 8)):
        table.step()
    return table

"""Tables of protocol 4 as the two families of other writers leave them, written with fastavro.

`write_state` is the commit of one family; the other writes a JSON commit and then a state.
"""

import gzip
import io
import json
import os

import fastavro
import pyarrow as pa

from arrowlog import testing
from arrowlog.formats.indextables import compute_bounds
from arrowlog.formats.indextables.avro_state import (
    FILE_ENTRY_SCHEMA,
    STATE_SCHEMA,
    state_folder_name,
)

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
PARTITIONS = ("p",)
NEW_FIELDS = {"deleteOpstamp", "docMappingJson", "timeRangeStart", "timeRangeEnd"}
CREATED = 1_700_000_000_000
STATE_FILE = "_manifest.avro"


def add(path, p=None, low=None, high=None, **fields):
    """An add as JSON commits have it."""
    bounds = {}
    if low is not None:
        bounds = {
            "minValues": {"id": str(low)},
            "maxValues": {"id": str(low if high is None else high)},
        }
    return testing.add(path, {} if p is None else {"p": p}, **bounds, **fields)


def first_commit(root, schema=SCHEMA, partitions=PARTITIONS, configuration=None, actions=()):
    """Version 0, compressed in an envelope: the protocol and the metadata."""
    head = [
        testing.protocol(4, 4),
        testing.metadata(schema, partitions, configuration=configuration),
    ]
    testing.write_commit(root, 0, [*head, *actions], codec="gzip")


def container(schema, records, codec="zstandard"):
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(json.loads(schema)), records, codec=codec)
    return out.getvalue()


def entry_schema(fields=25):
    """The schema of entries: 25 fields, or the 21 of the older writers."""
    schema = json.loads(FILE_ENTRY_SCHEMA)
    if fields == 21:
        schema["fields"] = [item for item in schema["fields"] if item["name"] not in NEW_FIELDS]
    return json.dumps(schema)


def entry(action):
    """An entry of a manifest: the fields of an add, without nulls in its maps."""
    fields = dict(action["add"])
    for name in ("partitionValues", "minValues", "maxValues"):
        if isinstance(fields.get(name), dict):
            fields[name] = {key: text for key, text in fields[name].items() if text is not None}
    return {"hasFooterOffsets": False, "addedAtVersion": 0, "addedAtTimestamp": 0, **fields}


def manifest(root, name, adds, codec="zstandard", fields=25):
    """Write a manifest and return its path in the log."""
    path = f"manifests/manifest-{name}.avro"
    data = container(entry_schema(fields), [entry(action) for action in adds], codec)
    testing.write_file(root, path, data)
    return path


def bounds_of(adds, partitions=PARTITIONS):
    """The partition bounds of a manifest, as other writers compute them."""
    found = {}
    for name in partitions:
        texts = {action["add"]["partitionValues"].get(name) for action in adds} - {None, ""}
        pair = compute_bounds(sorted(texts))
        if pair is not None:
            found[name] = {"min": pair[0], "max": pair[1]}
    return found or None


def info(path, count, bounds=None, **fields):
    """What a state says about a manifest."""
    return {
        "path": path,
        "numEntries": count,
        "minAddedAtVersion": 0,
        "maxAddedAtVersion": 0,
        "partitionBounds": bounds,
        **fields,
    }


def state_record(version, infos, tombstones=(), **fields):
    files = sum(item["numEntries"] for item in infos) - len(tombstones)
    return {
        "formatVersion": 1,
        "stateVersion": version,
        "createdAt": CREATED + 1000 * version,
        "numFiles": files,
        "totalBytes": 1000 * files,
        "manifests": infos,
        "tombstones": list(tombstones),
        **fields,
    }


def put_state(root, version, infos, tombstones=(), *, codec="zstandard", **fields):
    """Write the record of a state."""
    record = state_record(version, infos, tombstones, **fields)
    return testing.write_file(root, state_path(version), container(STATE_SCHEMA, [record], codec))


def state_path(version):
    return f"{state_folder_name(version)}/{STATE_FILE}"


def write_state(root, version, groups, tombstones=(), *, codec="zstandard", fields=21, **more):
    """Write a state with a new manifest for each group of adds."""
    infos = []
    for number, adds in enumerate(groups):
        path = manifest(root, f"{version:04x}{number:04x}", adds, codec, fields)
        infos.append(info(path, len(adds), bounds_of(adds)))
    put_state(root, version, infos, tombstones, codec=codec, **more)
    return infos


def pointer(root, version, files=0):
    """Write the pointer to a state."""
    content = {
        "version": version,
        "size": files,
        "sizeInBytes": 0,
        "numFiles": files,
        "createdTime": CREATED,
        "parts": None,
        "checkpointId": None,
        "format": "avro-state",
        "stateDir": state_folder_name(version),
    }
    testing.write_pointer(root, content)


def log_file(root, name):
    return os.path.join(os.fspath(root), "_transaction_log", name)


def flip(path, at=-1):
    """Change one byte of a file."""
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[at] ^= 0xFF
        file.seek(0)
        file.write(data)


def read_record(root, version):
    """The record of a state, by fastavro."""
    with open(log_file(root, state_path(version)), "rb") as file:
        (record,) = fastavro.reader(file)
    return record


def entries_of(root, record):
    """The entries of all manifests of a state, in order, with nothing left out."""
    found = []
    for item in record["manifests"]:
        path = item["path"]
        if "/" not in path:
            path = f"{state_folder_name(record['stateVersion'])}/{path}"
        with open(log_file(root, path), "rb") as file:
            entries = list(fastavro.reader(file))
        assert len(entries) == item["numEntries"]
        found += entries
    return found


def state_versions(root):
    names = os.listdir(log_file(root, ""))
    return sorted(int(name[7:]) for name in names if name.startswith("state-v"))


def as_states_only(root):
    """The files that a reader of states alone sees: a list, with repeats."""
    record = read_record(root, state_versions(root)[-1])
    dead = set(record["tombstones"])
    return sorted(item["path"] for item in entries_of(root, record) if item["path"] not in dead)


def json_lines(root, version):
    with open(log_file(root, f"{version:020d}.json"), "rb") as file:
        data = file.read()
    if data[:2] == b"\x01\x01":
        data = gzip.decompress(data[2:])
    return [json.loads(line) for line in data.splitlines()]


def as_pointer_and_commits(root):
    """The files that a reader sees that starts at the pointer and applies later commits.

    It drops earlier entries of a path, lets tombstones beat all entries, and applies all adds of
    the commits before all their removes.
    """
    with open(log_file(root, "_last_checkpoint"), "rb") as file:
        content = json.load(file)
    assert content["format"] == "avro-state"
    version = content["version"]
    assert content["stateDir"] == state_folder_name(version)
    while version + 1 in state_versions(root):
        version += 1
    record = read_record(root, version)
    live = {item["path"] for item in entries_of(root, record)} - set(record["tombstones"])
    removes = set()
    while os.path.exists(log_file(root, f"{version + 1:020d}.json")):
        version += 1
        for line in json_lines(root, version):
            live |= {line["add"]["path"]} if "add" in line else set()
            removes |= {line["remove"]["path"]} if "remove" in line else set()
    return sorted(live - removes)

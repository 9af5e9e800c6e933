"""Random logs and a naive model of them: dictionaries, loops, one line at a time."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import pyarrow as pa

from arrowlog import testing
from arrowlog.formats.indextables.compression import CODEC_BYTES

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(20, 4)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
ODD_NAMES = (
    "plain",
    "with space",
    "per%20cent",
    "ünïcödé",
    "日本",
    "quote'd",
    "equals=sign",
    "comma,comma",
    'double"quote',
    "back\\slash",
    "new\nline",
    "emoji😀",
    "colon:10:00",
    "line\u2028sep",
    "dots...inside",
    "#hash?query",
)


@dataclass
class History:
    """A generated log: its commits, and the live files and metadata of every version."""

    root: str
    rng: random.Random
    live: dict[str, dict] = field(default_factory=dict)
    states: list[dict[str, dict]] = field(default_factory=list)
    metadata: list[dict] = field(default_factory=list)
    commits: list[bytes] = field(default_factory=list)


def replay(history: History, content: bytes) -> None:
    """Apply a commit line by line, as the protocol says."""
    for text in content.decode().split("\n"):
        if not text.strip():
            continue
        action = json.loads(text)
        if isinstance(action.get("add"), dict):
            add = {k: v for k, v in action["add"].items() if v is not None}
            history.live[key_of(add["path"], history.root)] = add
        elif isinstance(action.get("remove"), dict):
            history.live.pop(key_of(action["remove"]["path"], history.root), None)
        elif isinstance(action.get("metaData"), dict):
            history.metadata.append(action["metaData"])
    history.states.append(dict(history.live))


def key_of(path: str, root: str) -> str:
    for spelled in (f"file://{root}/", f"file:{root}/", f"{root}/"):
        if path.startswith(spelled):
            return path[len(spelled) :]
    return path


def random_add(rng: random.Random, path: str) -> dict:
    day = rng.choice(
        ["2024-01-01", "2024-02-29", "1969-12-31", None, "", "__HIVE_DEFAULT_PARTITION__"]
    )
    low = rng.choice([rng.randrange(1000), -5, 2**53 + 1, 2**63 - 10])
    add = testing.add(path, {"day": day}, size=rng.randrange(10**9))["add"]
    if rng.random() < 0.1:
        del add["dataChange"]
    if rng.random() < 0.7:
        names = sorted([rng.choice(ODD_NAMES), rng.choice(ODD_NAMES)])
        add["minValues"] = {"id": str(low), "name": names[0], "price": "1.5000"}
        add["maxValues"] = {"id": str(low + 5), "name": names[1], "price": "99999.1234"}
        if rng.random() < 0.3:
            add["minValues"]["unknown column"] = "x"
        if rng.random() < 0.2:
            add["maxValues"]["id"] = None
    if rng.random() < 0.5:
        counts = {"id": rng.randrange(3), "name": 0}
        stats = {"numRecords": rng.randrange(100), "nullCount": counts}
        if rng.random() < 0.3:
            stats |= {"minValues": {"id": low, "price": 0.25}, "maxValues": {"id": low + 1}}
        add["stats"] = json.dumps(stats, separators=rng.choice([(",", ":"), (", ", ": ")]))
    if rng.random() < 0.3:
        add["numRecords"] = rng.randrange(100)
    if rng.random() < 0.2:
        add["tags"] = rng.choice([{}, {"a": "b"}, {"k": rng.choice(ODD_NAMES), "z": ""}])
    if rng.random() < 0.2:
        add |= {"footerStartOffset": 5, "hasFooterOffsets": True, "splitTags": ["x", "y"]}
        add |= {"docMappingJson": '{"fields":[{"name":"id"}]}', "numMergeOps": 3}
    if rng.random() < 0.1:
        add["somethingNew"] = rng.choice([1, "x", [1, 2], {"a": {"b": None}}, 1.5, None])
    if rng.random() < 0.1:
        add["timeRangeStart"] = None
    return add


def random_line(rng: random.Random, action: dict) -> bytes:
    """Encode an action in the style of one of several writers."""
    style = rng.random()
    if style < 0.85:
        text = json.dumps(action, separators=(",", ":"), ensure_ascii=False)
    elif style < 0.95:
        text = json.dumps(action, ensure_ascii=True)
    else:
        text = "  " + json.dumps(action, sort_keys=True, ensure_ascii=False) + " "
    return text.encode() + b"\n"


def random_commit(history: History, version: int) -> bytes:
    rng = history.rng
    if version == 0:
        meta = testing.metadata(SCHEMA, ["day"])
        return b"".join(random_line(rng, action) for action in (testing.protocol(), meta))
    actions: list[dict] = []
    names = list(history.live)
    kind = rng.choice(
        ["append"] * 4 + ["overwrite", "merge", "again", "twice", "skip", "meta", "empty"]
    )
    if kind in ("overwrite", "merge"):
        gone = names if kind == "overwrite" else rng.sample(names, min(len(names), 3))
        actions += [testing.remove(name) for name in gone]
    if kind == "again" and names:
        name = rng.choice(names)
        actions += [testing.remove(name), {"add": random_add(rng, name)}]
    if kind == "twice" and names:
        name = rng.choice(names)
        actions += [{"add": random_add(rng, name)}, testing.remove(name)]
    if kind == "skip":
        skip = {
            "path": "x",
            "skipTimestamp": 1,
            "reason": 'a "b"',
            "operation": "merge",
            "skipCount": 2,
        }
        actions.append({rng.choice(["mergeskip", "skip"]): skip})
    if kind == "meta":
        actions.append(testing.metadata(SCHEMA, ["day"], configuration={"v": str(version)}))
    if kind != "empty":
        for number in range(rng.randrange(1, 6)):
            actions.append({"add": random_add(rng, random_path(history, version, number))})
    if rng.random() < 0.3:
        actions.append({rng.choice(["txn", "cdc", "unknown"]): {"appId": "x", "deep": [[{}]]}})
    if rng.random() < 0.7:
        info = testing.commit_info(1_700_000_000_000 + version, numActions=len(actions))
        actions.insert(rng.choice([0, len(actions)]), info)
    lines = [random_line(rng, action) for action in actions] or [b"\n"]
    if rng.random() < 0.1 and not any(b"commitInfo" in line for line in lines):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice([b"\n", b"   \n"]))
    content = b"".join(lines)
    return content[:-1] if rng.random() < 0.1 and content.strip() else content


def random_path(history: History, version: int, number: int) -> str:
    rng = history.rng
    path = f"day=2024-01-01/{rng.choice(ODD_NAMES)}-{version}-{number}.parquet"
    if history.live and rng.random() < 0.15:
        path = rng.choice(list(history.live))
    if rng.random() < 0.1:
        prefix = rng.choice(
            [f"{history.root}/", f"file://{history.root}/", f"file:{history.root}/"]
        )
        path = prefix + path
    return path


def write(root: str, seed: int, versions: int) -> History:
    """Write a random log and return its model."""
    rng = random.Random(seed)
    history = History(str(root), rng)
    digits = rng.choice([20, 20, 20, 18])
    for version in range(versions):
        content = random_commit(history, version)
        codec = rng.choice(["none", "none", "gzip", *CODEC_BYTES])
        testing.write_commit(root, version, content, codec=codec, digits=digits)
        history.commits.append(content)
        replay(history, content)
    return history


def actions_at(history: History, version: int) -> list[dict]:
    """Return the actions of a checkpoint of a version."""
    adds = [{"add": add} for add in history.states[version].values()]
    known = [m for m in history.metadata if m in _metadata_until(history, version)]
    return [testing.protocol(), {"metaData": known[-1]}, *adds]


def _metadata_until(history: History, version: int) -> list[dict]:
    found = []
    for content in history.commits[: version + 1]:
        for text in content.decode().split("\n"):
            if text.strip() and json.loads(text).get("metaData"):
                found.append(json.loads(text)["metaData"])
    return found

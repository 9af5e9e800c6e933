"""Random damage to the files of a log, and a naive model of how far it can still be read."""

import hashlib
import json
import os

from arrowlog.formats.indextables import ADD_FIELDS
from arrowlog.formats.indextables.format import LOG_FOLDER, classify_log_file


def files_of(folder):
    """Return the bytes of every file below a folder, by relative path."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = f"{base}/{name}"
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def fingerprint(folder):
    """Return a checksum of every file below a folder, by relative path."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files_of(folder).items()}


def cut(data, rng):
    """Cut a file off at a random place that is not the end of a line."""
    for _ in range(100):
        at = rng.randrange(len(data))
        if at == 0 or (data[at - 1 : at] != b"\n" and data[at : at + 1] != b"\n"):
            return data[:at]
    return b""


def flip(data, rng):
    """Flip a random bit of a file."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def reachable(commits, checkpoints, damaged):
    """Return the newest version that can be read, or -1.

    `commits` and `checkpoints` are the versions that exist; `damaged` are pairs of kind and version
    that cannot be read.
    """
    good = {v for v in commits if ("commit", v) not in damaged}
    reached = -1
    while reached + 1 in good:
        reached += 1
    whole = [v for v in checkpoints if ("checkpoint", v) not in damaged and v > reached]
    if whole:
        reached = max(whole)
        while reached + 1 in good:
            reached += 1
    return reached


def known(add, key):
    """Return an add as a repaired log must have it: known fields only, without nulls."""
    kept = {name: value for name, value in add.items() if name in ADD_FIELDS and value is not None}
    for name in ("partitionValues", "minValues", "maxValues"):
        if name in kept:
            kept[name] = {k: v for k, v in kept[name].items() if v is not None}
        if not kept.get(name):
            kept.pop(name, None)
    if isinstance(kept.get("stats"), str):
        kept["stats"] = json.loads(kept["stats"])
    return kept | {"path": key, "dataChange": True}


def kind_of(name):
    """Return the kind and version of a file of a log."""
    return classify_log_file(os.path.basename(name))


def put(root, keys):
    """Create empty data files."""
    for key in keys:
        path = f"{root}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass


def log_of(root):
    """Return the folder of a table's log."""
    return f"{root}/{LOG_FOLDER}"

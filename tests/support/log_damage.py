"""Random damage to the files of a log, and a naive idea of how far it can be read afterwards."""

import hashlib
import json
import os

from arrowlog.formats.indextables.actions import ADD_FIELDS
from arrowlog.formats.indextables.file_names import LOG_FOLDER, classify_log_file


def files_of(folder):
    """Every file below a folder, by its path in it."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = f"{base}/{name}"
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def fingerprint(folder):
    """What a folder holds, bytes and names."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files_of(folder).items()}


def cut(data, rng):
    """A file that was not written to its end, never cut where a line ends."""
    for _ in range(100):
        at = rng.randrange(len(data))
        if at == 0 or (data[at - 1 : at] != b"\n" and data[at : at + 1] != b"\n"):
            return data[:at]
    return b""


def flip(data, rng):
    """A file with one bit changed."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def reachable(commits, checkpoints, damaged):
    """The version that can be read, by the rules, and -1 if none can.

    `commits` and `checkpoints` are versions that are there, `damaged` those that cannot be read, as
    pairs of kind and version.
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
    """An add as a repaired log must have it: every field that is known, null equals absent."""
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
    """What a file of a log is, and of which version."""
    return classify_log_file(os.path.basename(name))


def put(root, keys):
    """Data files with nothing in them."""
    for key in keys:
        path = f"{root}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass


def log_of(root):
    """The folder of a table's log."""
    return f"{root}/{LOG_FOLDER}"

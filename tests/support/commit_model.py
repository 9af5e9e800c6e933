"""The content of a log, read with the standard library only, as a reference for arrowlog."""

import json
import zlib


class Violation(AssertionError):
    """Something happened that must never happen."""


def insist(holds, what):
    """Raise a `Violation` that says what is wrong, unless the condition holds."""
    if not holds:
        raise Violation(what)


def commit_lines(data):
    """Return the lines of a commit file, decompressed if it is in an envelope."""
    plain = zlib.decompress(data[2:], 31) if data[:2] == b"\x01\x01" else data
    insist(plain.endswith(b"\n"), "a commit is torn")
    return plain.split(b"\n")[:-1]


class CommitModel:
    """The commits that count, and the live files after each of them.

    The first file that is put at a version is its commit. A file that is put there later, when the
    first one has been deleted, is dead: no reader may apply it.
    """

    def __init__(self):
        """Start with an empty log."""
        self.ids, self.live = [], []

    def put(self, version, data):
        """Take note of a file that was put; return whether it is the commit of its version."""
        insist(version <= len(self.ids), f"version {version} leaves a gap")
        if version < len(self.ids):
            return False
        live, txn_id = set(self.live[-1]) if self.live else set(), None
        for line in commit_lines(data):
            action = json.loads(line)
            if "add" in action:
                live.add(action["add"]["path"])
            elif "remove" in action:
                path = action["remove"]["path"]
                insist(path in live, f"version {version} removes {path}, which is not live")
                live.remove(path)
            elif "commitInfo" in action:
                txn_id = action["commitInfo"].get("txnId")
        insist(txn_id is None or txn_id not in self.ids, f"{txn_id} is committed twice")
        self.ids.append(txn_id)
        self.live.append(frozenset(live))
        return True

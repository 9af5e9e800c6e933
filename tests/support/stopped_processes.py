"""Real processes over one table, stopped, continued and killed at random moments.

A program of its own: `python stopped_processes.py stress ROOT SEED SECONDS`. Writers append,
restore and report what was acknowledged; truncators checkpoint, truncate and clean up. Before a
commit file is deleted, its bytes are kept in `ROOT.kept`, so that `CommitModel` can replay the
whole log afterwards.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

import arrowlog
from arrowlog.errors import ArrowlogError, CommitStateUnknown
from arrowlog.storage import LocalStore
from support.commit_model import CommitModel

LOG = "_transaction_log"
SCHEMA = pa.schema([("id", pa.int64())])
WRITERS = 4


def write(root, seed, told):
    """Append and restore until killed; report every commit before the next one."""
    rng = random.Random(seed)
    table = arrowlog.Table(root)
    with open(told, "a", buffering=1) as out:
        for number in range(10**9):
            add = arrowlog.add_file(f"{seed}-{number}", {}, size=1, modification_time=1)
            try:
                if rng.random() < 0.05:
                    result = table.restore(rng.randint(table.earliest_version, table.version))
                else:
                    result = table.append([add])
            except CommitStateUnknown as error:
                out.write(json.dumps(["unknown", error.version, error.txn_id]) + "\n")
            except ArrowlogError as error:
                out.write(json.dumps(["error", type(error).__name__, str(error)[:200]]) + "\n")
            else:
                out.write(json.dumps(["done", result.version, result.txn_id]) + "\n")


def truncate(root, seed, told):
    """Checkpoint, truncate and clean up until killed."""
    rng = random.Random(seed)
    short = {"logRetention.duration": "0s", "checkpointRetention.duration": "0s"}
    with open(told, "a", buffering=1) as out:
        while True:
            try:
                if rng.random() < 0.5:
                    arrowlog.Table(root).truncate_history()
                else:
                    table = arrowlog.Table(root, options=short)
                    table.checkpoint()
                    table.cleanup()
                out.write(json.dumps(["truncated"]) + "\n")
            except ArrowlogError as error:
                out.write(json.dumps(["error", type(error).__name__, str(error)[:200]]) + "\n")
            time.sleep(rng.uniform(0, 0.05))


def keep_what_is_deleted(root):
    """Copy every commit file before this process deletes it."""
    kept = Path(f"{root}.kept")
    kept.mkdir(exist_ok=True)
    plain = LocalStore.delete

    def delete(self, keys):
        for key in keys:
            name = os.path.basename(key)
            if name.removesuffix(".json").isdigit() and f"{LOG}/{name}" == key:
                data = self.find_many([key])[0]
                if data is not None:
                    place = kept / f"{name}.{time.time_ns()}"
                    draft = kept / f".{place.name}"
                    draft.write_bytes(data)
                    draft.rename(place)
            plain(self, [key])

    LocalStore.delete = delete


def start(role, root, seed):
    """Start a process in a role."""
    told = f"{root}.told.{role}.{seed}"
    return subprocess.Popen([sys.executable, __file__, role, root, str(seed), told])


def stress(root, seed, seconds):
    """Stop, continue, kill and replace processes until the time is up and all have worked.

    The time limits the number of attempts, not the result.
    """
    rng = random.Random(seed)
    arrowlog.Table.create(root, SCHEMA)
    roles = ["write"] * WRITERS + ["truncate"] * 2
    running = [(role, start(role, root, rng.randrange(1 << 32))) for role in roles]
    stopped = {}
    counts = {"stops": 0, "kills": 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end or not _all_have_worked(root):
        time.sleep(rng.uniform(0, 0.1))
        for place, until in list(stopped.items()):
            if time.monotonic() > until:
                running[place][1].send_signal(signal.SIGCONT)
                del stopped[place]
        place = rng.randrange(len(running))
        role, process = running[place]
        if rng.random() < 0.01:
            process.kill()
            process.wait()
            stopped.pop(place, None)
            running[place] = role, start(role, root, rng.randrange(1 << 32))
            counts["kills"] += 1
        elif place not in stopped:
            process.send_signal(signal.SIGSTOP)
            stopped[place] = time.monotonic() + rng.choice([0.02, 0.2, 1, 3])
            counts["stops"] += 1
    for _, process in running:
        process.kill()
        process.wait()
    return counts


def _all_have_worked(root):
    """Whether a commit was acknowledged and a truncation has finished."""
    reports = [path.read_text() for path in Path(root).parent.glob(f"{Path(root).name}.told.*")]
    return any('["done"' in text for text in reports) and any(
        '["truncated"' in text for text in reports
    )


def replay(root):
    """Return the version of each commit by its transaction id, and the files that are live."""
    found = {}
    for path in sorted(Path(f"{root}.kept").glob("[0-9]*"), key=lambda p: int(p.suffix[1:])):
        found.setdefault(int(path.name.split(".")[0]), path.read_bytes())
    for path in Path(root, LOG).glob("*.json"):
        if path.stem.isdigit():
            found.setdefault(int(path.stem), path.read_bytes())
    model = CommitModel()
    for version in sorted(found):
        model.put(version, found[version])
    ids = {txn_id: version for version, txn_id in enumerate(model.ids) if txn_id is not None}
    return ids, model.live[-1]


def check(root):
    """Compare what was acknowledged with the log, and the log with what a reader sees."""
    ids, live = replay(root)
    told = []
    for path in Path(root).parent.glob(f"{Path(root).name}.told.*"):
        lines = path.read_text().splitlines(keepends=True)
        told += [json.loads(line) for line in lines if line.endswith("\n")]
    done = [line for line in told if line[0] == "done"]
    lost = [line for line in done if ids.get(line[2]) != line[1]]
    seen = arrowlog.Table(root).snapshot()
    shown = set(seen.files["path"].to_pylist())
    return {
        "acknowledged": len(done),
        "lost": lost,
        "unknown": sum(line[0] == "unknown" for line in told),
        "errors": [line for line in told if line[0] == "error"],
        "truncations": sum(line[0] == "truncated" for line in told),
        "version": seen.version,
        "versions": max(ids.values(), default=0),
        "differ": sorted(shown ^ live)[:10],
    }


def main():
    """Run in a role, or stress a table and print the result as JSON."""
    role, root, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if role in ("write", "truncate"):
        keep_what_is_deleted(root)
        {"write": write, "truncate": truncate}[role](root, seed, sys.argv[4])
        return
    counts = stress(root, seed, float(sys.argv[4]))
    print(json.dumps({**counts, **check(root)}))


if __name__ == "__main__":
    main()

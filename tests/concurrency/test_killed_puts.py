"""A killed writer leaves a complete object or none."""

import os
import random
import signal
import time

import pytest
from support.case_count import cases, first_seed
from support.waiting import wait_until

from arrowlog.storage import LocalStore, local

LOG = "_transaction_log"
SIZE = 300_000


@pytest.mark.promise("storage.whole_or_absent")
@pytest.mark.fork
@pytest.mark.parametrize("named", [False, True], ids=["O_TMPFILE", "named"])
def test_killed_writer_leaves_no_partial_object(tmp_path, monkeypatch, named):
    if named:
        monkeypatch.setattr(local, "_O_TMPFILE", None)
    seed = first_seed()
    rng = random.Random(seed)
    store = LocalStore(str(tmp_path / "table"))
    for cycle in range(cases(100)):
        child = os.fork()
        if child == 0:
            for number in range(1_000):
                store.put_if_absent(f"{LOG}/{cycle:04d}-{number:04d}", b"x" * SIZE)
                store.replace(f"{LOG}/pointer", b"y" * rng.choice([1, SIZE]))
            os._exit(0)
        if cycle % 10 == 0:  # waits until the child has written, on a machine of any speed
            wait_until(lambda name=f"{cycle:04d}-0001": name in store.stats_from(LOG), "a commit")
        time.sleep(rng.uniform(0, 0.01))  # a random moment is the point of the test
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    stats = store.stats_from(LOG)
    drafts = {name for name in stats if name.startswith(".") and name.endswith(".tmp")}
    sizes = {stat.size for name, stat in stats.items() if name not in drafts | {"pointer"}}
    assert sizes == {SIZE}
    assert stats["pointer"].size in (1, SIZE)
    commits = [name for name in drafts if "pointer" not in name]
    assert named or not commits  # an O_TMPFILE file disappears with its writer

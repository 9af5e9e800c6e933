"""Parts of a handle that are created on first use."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import arrowlog
from arrowlog.fork_safety import OnFirstUse

LAZY = ["_checkpointer", "_session", "_history_session"]


@pytest.fixture
def table(root):
    return arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))


def test_reading_creates_neither_session_nor_checkpointer(table):
    table.snapshot()
    assert table.scan("id = 7").num_files == 0
    assert not set(LAZY) & set(vars(table))


def test_commit_creates_its_parts_once(table):
    table.append([arrowlog.add_file("a", size=1)])
    session = table._session
    table.append([arrowlog.add_file("b", size=1)])
    assert table._session is session
    assert set(LAZY) & set(vars(table)) == {"_checkpointer", "_session"}


def test_concurrent_first_uses_get_the_same_part():
    barrier, made = threading.Barrier(4), []

    class Owner:
        @OnFirstUse
        def part(self):
            barrier.wait(60)  # each of them creates one
            made.append(object())
            return made[-1]

    owner = Owner()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: owner.part, range(4)))
    assert len(made) == 4
    assert len(set(map(id, parts))) == 1
    assert owner.part is parts[0]


def test_no_module_uses_functools_cached_property():
    """Before Python 3.12, its lock is shared by all instances of a class."""
    package = Path(arrowlog.__file__).parent
    users = [path for path in package.rglob("*.py") if "import cached_property" in path.read_text()]
    assert [path.name for path in users] == ["fork_safety.py"]

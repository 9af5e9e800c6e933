"""Tables with Avro states where a stat costs a request: found by listings from the pointer."""

import os
import uuid

import pytest
from support import state_tables as st

import arrowlog
from arrowlog.storage import open_store


def paths(table, **which):
    return sorted(table.snapshot(**which).files["path"].to_pylist())


@pytest.fixture
def remote(tmp_path):
    """A memory URI, and a function that copies the local files there."""
    uri, local = f"memory://{uuid.uuid4().hex}/t", tmp_path / "table"
    store = open_store(uri, None)
    copied = set()

    def copy():
        for folder, _, names in os.walk(local):
            for name in names:
                path = os.path.join(folder, name)
                key = os.path.relpath(path, local)
                if key not in copied or name.startswith("_last"):
                    with open(path, "rb") as file:
                        store.replace(key, file.read())
                copied.add(key)

    return uri, local, copy


@pytest.mark.parametrize("pointed", [None, 1, 2])
def test_states_and_metadata_are_found_from_the_pointer(remote, pointed):
    uri, local, copy = remote
    st.first_commit(local)
    st.write_state(local, 1, [[st.add("a")]])
    st.write_state(local, 2, [[st.add("a"), st.add("b")]])
    if pointed is not None:
        st.pointer(local, pointed)
    copy()
    table = arrowlog.Table(uri)
    assert table.snapshot().version == 2
    assert paths(table) == ["a", "b"]
    assert paths(table, version=1) == ["a"]
    assert paths(table, version=0) == []
    st.write_state(local, 3, [[st.add("c")]])
    copy()
    assert paths(table) == ["c"]
    assert table.snapshot() is table.snapshot()


def test_commits_with_states_over_a_network(remote):
    uri, _, _ = remote
    table = arrowlog.Table.create(uri, st.SCHEMA, st.PARTITIONS)
    table.upgrade_protocol(reader=4, writer=4)
    other = arrowlog.Table(uri)
    for number in range(4):
        handle = table if number % 2 else other
        handle.append([arrowlog.add_file(f"f{number}", partition_values={"p": "x"}, size=1)])
    table.remove(["f1"])
    for handle in (table, other, arrowlog.Table(uri)):
        assert paths(handle) == ["f0", "f2", "f3"]
    assert arrowlog.Table(uri).snapshot().report.checkpoint == 6

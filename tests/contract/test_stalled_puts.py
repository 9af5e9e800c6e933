"""On every store, a put that arrives too late is detected before it is acknowledged."""

import pyarrow as pa
import pytest

import arrowlog
from arrowlog import clock
from arrowlog.formats.indextables.format import LOG_FOLDER, commit_name
from arrowlog.maintenance import cleanup, procedures

SCHEMA = pa.schema([("id", pa.int64())])


def file(path):
    return arrowlog.add_file(path, {}, size=1, modification_time=1)


@pytest.fixture
def later(monkeypatch):
    """A clock that tests advance; the store's clock is not affected."""
    real, passed = clock._read, [0.0]
    monkeypatch.setattr(clock, "_read", lambda: real() + passed[0])
    monkeypatch.setattr(cleanup, "MIN_COMMIT_AGE_SECONDS", 0)
    monkeypatch.setattr(procedures, "MIN_COMMIT_AGE_SECONDS", 0)
    return passed


@pytest.mark.promise("commit.stalled_writers")
@pytest.mark.parametrize("op", ["append", "overwrite", "restore"])
def test_stalled_put_does_not_land_below_a_truncation(place, later, monkeypatch, op):
    quiet = {"checkpoint.enabled": False}
    writer = arrowlog.Table.create(place.uri, SCHEMA, storage_options=place.options, options=quiet)
    other = arrowlog.Table(place.uri, place.options, options=quiet)
    writer.append([file("first")])
    writer.append([file("second")])
    put = writer._store.put_if_absent
    stalled = []

    def put_late(key, data):
        if not stalled:
            stalled.append(key)
            for number in range(3):
                other.append([file(f"other{number}")])
            other.truncate_history()
            later[0] += 60
        return put(key, data)

    monkeypatch.setattr(writer._store, "put_if_absent", put_late)
    others = ["other0", "other1", "other2"]
    if op == "append":
        writer.append([file("late")])
        expected = ["first", "late", *others, "second"]
    elif op == "overwrite":  # whatever is there
        writer.overwrite([file("late")])
        expected = ["late"]
    else:
        with pytest.raises(arrowlog.CommitConflict, match="were cleaned up"):
            writer.restore(1)
        expected = ["first", *others, "second"]
    assert stalled == [f"{LOG_FOLDER}/{commit_name(3)}"]
    reader = arrowlog.Table(place.uri, place.options)
    assert sorted(reader.snapshot().files["path"].to_pylist()) == sorted(expected)
    assert reader.version == (5 if op == "restore" else 6)
    assert place.read(f"{LOG_FOLDER}/{commit_name(3)}") is None  # withdrawn


def test_uncontended_append_is_one_put_request(place, monkeypatch):
    """Over a network, an append without concurrent writers is one request."""
    table = arrowlog.Table.create(place.uri, SCHEMA, storage_options=place.options)
    table.append([file("first")])
    asked = []
    for name in (
        "list_from",
        "stats_from",
        "find_many",
        "get",
        "get_many",
        "stat",
        "put_if_absent",
    ):
        plain = getattr(table._store, name)

        def note(*given, name=name, plain=plain):
            asked.append((name, *given[:1]))
            return plain(*given)

        monkeypatch.setattr(table._store, name, note)
    table.append([file("second")])
    if table._store.cheap_stat:
        assert asked.index(("list_from", f"{LOG_FOLDER}/_retired")) >= 0
    else:
        assert asked == [("put_if_absent", f"{LOG_FOLDER}/{commit_name(2)}")]


@pytest.mark.promise("commit.stalled_writers")
def test_reader_ignores_a_late_put_below_a_truncation(place, later, monkeypatch):
    """Between its listing and its reads, commits are truncated and a stalled put lands below."""
    quiet = {"checkpoint.enabled": False, "transaction.compression.enabled": False}
    writer = arrowlog.Table.create(place.uri, SCHEMA, storage_options=place.options, options=quiet)
    writer.append([file("f0")])
    key = f"{LOG_FOLDER}/{commit_name(1)}"
    stray = b"\n".join(line for line in place.read(key).split(b"\n") if b"commitInfo" not in line)
    stray = stray.replace(b"f0", b"xx")
    reader = arrowlog.Table(place.uri, place.options)
    read_into, done = reader._store.read_into, []

    def read_late(*arguments):
        if not done:
            writer.append([file("f1")])
            done.append(writer.truncate_history())
            writer._store.put_if_absent(key, stray)
        return read_into(*arguments)

    monkeypatch.setattr(reader._store, "read_into", read_late)
    assert sorted(reader.snapshot().files["path"].to_pylist()) == ["f0", "f1"]
    assert place.read(key) == stray

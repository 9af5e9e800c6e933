"""Partition bounds select the manifests of an Avro state to read, and never lose a file."""

import os

import pyarrow as pa
import pytest
from support import state_tables as st

import arrowlog
from arrowlog.errors import LogCorrupt
from arrowlog.storage.local import LocalStore


class _Counting(LocalStore):
    """A store that records which manifests are read."""

    read: list = []  # noqa: RUF012 -- set anew by each test

    def get(self, key):
        if "/manifests/" in key:
            self.read.append(key)
        return super().get(key)


def counted(table, monkeypatch):
    reads = []
    monkeypatch.setattr(_Counting, "read", reads)
    monkeypatch.setattr(table._store, "__class__", _Counting)
    return reads


@pytest.fixture
def days(root):
    """Four manifests, one per day, with two files each."""
    schema = pa.schema([("p", pa.date32()), ("id", pa.int64())])
    st.first_commit(root, schema)
    groups = [
        [st.add(f"d{day}/{n}", f"2024-01-0{day}", 10 * day + n) for n in range(2)]
        for day in range(1, 5)
    ]
    st.write_state(root, 1, groups)
    return root


def test_only_manifests_that_may_match_are_read_once(days, monkeypatch):
    table = arrowlog.Table(days)
    reads = counted(table, monkeypatch)
    plan = table.scan("p = DATE '2024-01-03'")
    assert plan.paths == ["d3/0", "d3/1"]
    assert len(reads) == 1
    assert plan.size_bytes == 2000
    assert table.scan("p = DATE '2024-01-03' AND id = 30").paths == ["d3/0"]
    assert len(reads) <= 2  # the bounds of `id` are another field
    assert table.scan("p >= DATE '2024-01-03'").num_files == 4
    assert table.scan("id = 11").paths == ["d1/1"]
    assert len({*reads}) == 4


def test_missing_manifest_is_ignored_if_bounds_exclude_it(days):
    for name in os.listdir(st.log_file(days, "manifests")):
        if not name.endswith("0002.avro"):
            os.remove(st.log_file(days, f"manifests/{name}"))
    plan = arrowlog.Table(days).scan("p = DATE '2024-01-03'")
    assert plan.paths == ["d3/0", "d3/1"]
    with pytest.raises(LogCorrupt):
        arrowlog.Table(days).scan("p > DATE '2024-01-03'")


def test_opening_reads_no_manifest(days, monkeypatch):
    table = arrowlog.Table(days)
    reads = counted(table, monkeypatch)
    snapshot = table.snapshot()
    assert snapshot.version == 1
    assert snapshot.schema.names == ["p", "id"]
    assert not reads


def test_manifests_are_read_once_for_all_versions(days, monkeypatch):
    table = arrowlog.Table(days)
    reads = counted(table, monkeypatch)
    assert table.snapshot().num_files == 8
    infos = st.read_record(days, 1)["manifests"]
    extra = st.manifest(days, "extra", [st.add("new", "2024-01-09")])
    st.put_state(days, 2, [*infos, st.info(extra, 1)])
    assert table.snapshot().num_files == 9
    assert len(reads) == 5


def test_later_commits_are_not_pruned_with_the_manifests(days):
    table = arrowlog.Table(days)
    table_options = {"avroState.allowStateOnly": True}
    arrowlog.Table(days, options=table_options).append(
        [arrowlog.add_file("late", partition_values={"p": "2024-01-03"}, size=1)]
    )
    assert sorted(table.scan("p = DATE '2024-01-03'").paths) == ["d3/0", "d3/1", "late"]


TEXTS = ["9", "1a", "", None, "b", "𝄞"]
TESTS = [
    "p = '{}'",
    "p < '{}'",
    "p >= '{}'",
    "p <> '{}'",
    "p IN ('{}', 'b')",
    "NOT (p > '{}')",
    "p LIKE '{}%'",
    "p IS NULL",
    "p IS NOT NULL",
    "p IS DISTINCT FROM '{}'",
    "p = '{}' OR p IS NULL",
]


def test_text_bounds_lose_no_file(root):
    st.first_commit(root)
    groups = []
    for number, low in enumerate(TEXTS):
        for high in TEXTS[number:]:
            values = [low, high]
            groups.append([st.add(f"f{len(groups)}-{n}", value) for n, value in enumerate(values)])
    # Bounds as other writers compute them: pairwise over non-empty values.
    infos = []
    for number, adds in enumerate(groups):
        path = st.manifest(root, f"{number:08x}", adds)
        texts = sorted(
            {item["add"]["partitionValues"].get("p") for item in adds} - {None, ""}, key=_key
        )
        bounds = {"p": {"min": texts[0], "max": texts[-1]}} if texts else None
        infos.append(st.info(path, len(adds), bounds))
    st.put_state(root, 1, infos)
    table, in_memory = arrowlog.Table(root), arrowlog.Table(root)
    everything = (
        in_memory.snapshot().state.source.adds()
    )  # from here on, files are evaluated one by one
    assert everything.num_rows == sum(map(len, groups))
    for text in TEXTS:
        for test in TESTS:
            if text is None:
                continue
            predicate = test.format(text)
            pruned = table.scan(predicate).paths
            assert sorted(pruned) == sorted(in_memory.scan(predicate).paths), predicate


@pytest.mark.parametrize(
    ("predicate", "read"),
    [
        ("p = 'eu'", 1),
        ("p IN ('us', 'zz')", 1),
        ("p >= 'us'", 2),
        ("p LIKE 'ch%'", 1),
        ("p = ''", 4),
        ("p < 'd'", 4),  # '' is
        ("p IS NULL", 4),
        ("p = 'none'", 0),
    ],
)
def test_manifests_are_skipped_by_text(root, monkeypatch, predicate, read):
    st.first_commit(root)
    regions = ("ch", "eu", "us", "vn")
    st.write_state(root, 1, [[st.add(f"{p}/{n}", p) for n in range(2)] for p in regions])
    table = arrowlog.Table(root)
    reads = counted(table, monkeypatch)
    table.scan(predicate).paths  # noqa: B018 -- reads the manifests
    assert len(reads) == read


def test_numeric_text_bounds_of_other_writers_lose_no_file(root):
    """A writer for which NaN equals every number computes these bounds in this order of values."""
    st.first_commit(root)
    adds = [st.add(f"f{n}", text) for n, text in enumerate(["inf", "nan", "a", "m"])]
    path = st.manifest(root, "00000001", adds)
    other = st.manifest(root, "00000002", [st.add("g", "x")])
    infos = [
        st.info(path, 4, {"p": {"min": "a", "max": "m"}}),
        st.info(other, 1, {"p": {"min": "x", "max": "x"}}),
    ]
    st.put_state(root, 1, infos)
    assert arrowlog.Table(root).scan("p = 'nan'").paths == ["f1"]
    assert arrowlog.Table(root).scan("p > 'n'").paths == ["f1", "g"]
    assert arrowlog.Table(root).scan("p = 'x'").among.num_files == 1


def _key(text):
    """Numbers before other text, as one order of many that a pairwise comparison allows."""
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)


def test_explain_covers_all_files(days):
    explanation = arrowlog.Table(days).scan("p = DATE '2024-01-03' AND id = 30").explain()
    assert explanation.to_arrow().num_rows >= 8

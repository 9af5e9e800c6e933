"""Compaction: fewer files with the same rows in the same order, also with concurrent writers."""

import datetime as dt
import json
import math
import random
import subprocess
import sys
import threading
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.case_count import cases, first_seed

import arrowlog
from arrowlog.errors import CommitConflict, InvalidRequest, StoreUnavailable
from arrowlog.formats.indextables.compression import decompress
from arrowlog.maintenance import compaction as room
from arrowlog.maintenance import file_rewriter
from arrowlog.storage import LocalStore

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64()), ("text", pa.string())])


def make(root, schema=SCHEMA, partitions=("day",)):
    return arrowlog.Table.create(root, schema, list(partitions))


def rows(first, count=3, day="a"):
    ids = list(range(first, first + count))
    texts = [f"text {number}" for number in ids]
    return pa.table({"day": [day] * count, "id": ids, "text": texts}, schema=SCHEMA)


def read(table, version=None):
    return table.scan(version=version).to_arrow_dataset().to_table()


def day(table, value, version=None):
    """The ids of a partition in the order of the table."""
    found = read(table, version)
    pairs = zip(found["day"].to_pylist(), found["id"].to_pylist(), strict=True)
    return [number for name, number in pairs if name == value]


def small_table(root, files=6):
    table = make(root)
    for number in range(files):
        both = [rows(10 * number, day="a"), rows(10 * number + 5, day="b")]
        table.write(pa.concat_tables(both))
    return table


def test_small_files_become_one_per_partition(root):
    table = small_table(root)
    before = table.snapshot()
    planned = table.compact(dry_run=True)
    assert table.refresh().version == before.version
    assert (planned.num_groups, planned.files_removed, planned.bytes_added) == (2, 12, 0)
    done = table.compact()
    assert (done.num_groups, done.files_removed, done.files_added) == (2, 12, 2)
    assert done.bytes_removed == planned.bytes_removed == before.size_bytes
    assert (done.num_records, done.skipped, done.num_conflicts) == (36, (), 0)
    after = table.refresh()
    assert after.num_files == 2
    assert after.version == before.version + 2
    for name in "ab":
        assert day(table, name) == day(table, name, before.version)
    assert after.num_records == before.num_records
    assert after.schema == before.schema
    told = done.to_arrow()
    assert told["status"].to_pylist() == ["compacted"] * 2
    assert told["version"].to_pylist() == [before.version + 1, before.version + 2]
    assert sorted(told["path"].to_pylist()) == sorted(after.files["path"].to_pylist())
    assert "12 files became 2" in repr(done)


def test_compaction_commits_with_data_change_false(root):
    table = small_table(root, 2)
    table.compact()
    text = (root / "_transaction_log" / f"{3:020d}.json").read_bytes()
    info, *rest = (json.loads(line) for line in decompress(text, "", 1 << 20).splitlines())
    assert info["commitInfo"]["operation"] == "COMPACT"
    changes = [fields["dataChange"] for action in rest for fields in action.values()]
    assert changes == [False] * 3
    assert [next(iter(action)) for action in rest] == ["remove", "remove", "add"]


def test_second_compaction_does_nothing(root):
    table = small_table(root)
    table.compact()
    again = table.compact()
    assert (again.num_groups, again.to_arrow().num_rows) == (0, 0)
    assert table.refresh().version == 8


def test_earlier_versions_keep_their_rows_and_vacuum_keeps_their_files(root):
    table = small_table(root)
    then = read(table, 3)
    table.compact()
    assert table.vacuum("0s", force=True).num_files == 0
    assert read(table, 3) == then
    table.truncate_history()
    assert table.vacuum("0s", force=True).num_files == 12
    assert day(table, "a") == [n for first in range(0, 60, 10) for n in range(first, first + 3)]


def test_target_size_and_limits(root):
    table = small_table(root)
    size = table.snapshot().files["size_bytes"][0].as_py()
    few = table.compact(target_size=3 * size + 50, dry_run=True)
    assert [len(done.group.sources) for done in few.groups] == [3, 3, 3, 3]
    assert table.compact(target_size=3 * size + 50, max_groups=1, dry_run=True).num_groups == 1
    two = table.compact(max_files_per_group=2, dry_run=True)
    assert {len(done.group.sources) for done in two.groups} == {2}
    assert table.compact(target_size=size, dry_run=True).num_groups == 0
    assert table.compact(where="day = 'b'").files_removed == 6
    assert day(table, "a") == day(table, "a", 6)
    table.refresh()
    assert table.scan("day = 'a'").num_files == 6
    assert table.scan("day = 'b'").num_files == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"target_size": "big"}, "target_size"),
        ({"max_groups": 0}, "max_groups"),
        ({"max_files_per_group": 1}, "max_files_per_group"),
        ({"max_groups": True}, "max_groups"),
        ({"where": "nothing = 1"}, "nothing"),
    ],
)
def test_wrong_requests_are_refused(root, given, match):
    table = small_table(root, 1)
    with pytest.raises(InvalidRequest, match=match):
        table.compact(**given)


ODD = pa.schema(
    [
        ("p", pa.date32()),
        ("f", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.decimal128(9, 2)),
        ("s", pa.string()),
        ("l", pa.list_(pa.int64())),
        ("b", pa.binary()),
        ("o", pa.bool_()),
    ]
)


def odd_rows(rng, count):
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    pick = lambda *values: rng.choice([None, *values])  # noqa: E731
    return pa.Table.from_pylist(
        [
            {
                "p": pick(dt.date(2024, 1, 1), dt.date(1969, 12, 31)),
                "f": pick(1.5, -0.0, math.nan, math.inf, -math.inf),
                "t": pick(moment, moment + dt.timedelta(microseconds=rng.randrange(10**9))),
                "d": pick(Decimal("1.10"), Decimal("-7.00")),
                "s": pick("a", "é😀", "z" * rng.randrange(40), ""),
                "l": pick([1, None], []),
                "b": pick(b"\0", b"x"),
                "o": pick(True, False),
            }
            for _ in range(count)
        ],
        schema=ODD,
    )


def test_statistics_equal_those_of_a_single_write(tmp_path):
    """Exactly the statistics that a single write of the same rows would record."""
    first = first_seed()
    for case in range(cases(6)):
        seed = first + case
        print("case", seed)
        rng = random.Random(seed)
        parts = [odd_rows(rng, rng.randrange(1, 8)) for _ in range(rng.randrange(2, 7))]
        many, once = (make(tmp_path / f"{name}{case}", ODD, ["p"]) for name in ("many", "once"))
        for part in parts:
            many.write(part)
        once.write(pa.concat_tables(parts))
        many.compact()
        told = [
            table.refresh().files.select(
                [n for n in table.snapshot().files.column_names if n[:3] in ("par", "min", "max")]
                + [n for n in table.snapshot().files.column_names if n.startswith("null_count.")]
                + ["num_records"]
            )
            for table in (many, once)
        ]
        keys = [[str(row) for row in table.to_pylist()] for table in told]
        assert sorted(keys[0]) == sorted(keys[1])
        both = [read(table) for table in (many, once)]
        text = [[str(row) for row in table.to_pylist()] for table in both]
        assert sorted(text[0]) == sorted(text[1])


def test_added_columns_are_null_and_unknown_columns_are_kept(root):
    table = make(root, pa.schema([("id", pa.int64())]), ())
    table.write(pa.table({"id": [1]}))
    table.add_columns([pa.field("late", pa.string())])
    table.write(pa.table({"id": [2], "late": ["x"]}))
    pq.write_table(pa.table({"extra": [b"e"], "id": pa.array([3], pa.int32())}), root / "o.parquet")
    table.append([arrowlog.add_parquet(table, "o.parquet")])
    assert table.compact().files_removed == 3
    table.refresh()
    assert read(table).to_pylist() == [
        {"id": 1, "late": None},
        {"id": 2, "late": "x"},
        {"id": 3, "late": None},
    ]
    (path,) = table.snapshot().files["path"].to_pylist()
    stored = pq.read_table(root / path)
    assert stored.schema.names == ["id", "late", "extra"]
    assert stored.schema.field("id").type == pa.int64()
    assert stored["extra"].to_pylist() == [None, None, b"e"]


def test_common_tags_are_kept_and_merges_counted(root):
    table = make(root, pa.schema([("id", pa.int64())]), ())
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), root / f"{number}.parquet")
        tags = {"team": "x", "by": str(number)}
        add = arrowlog.add_parquet(table, f"{number}.parquet", tags=tags, numMergeOps=number)
        table.append([add])
    table.compact()
    files = table.refresh().files
    assert dict(files["tags"][0].as_py()) == {"team": "x"}
    assert files["num_merge_ops"].to_pylist() == [3]


def damage(path):
    """Change a byte in the middle of the pages, not in the footer."""
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["missing", "torn", "no parquet", "changed", "other rows"])
def test_unreadable_file_is_skipped_and_the_rest_compacted(root, how):
    table = make(root)
    for number in range(4):
        path = root / f"day=a/{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        # Files with page checksums: a flipped bit in one without them may be a value.
        pq.write_table(rows(10 * number).drop(["day"]), path, write_page_checksum=True)
        table.append([arrowlog.add_parquet(table, f"day=a/{number}.parquet", {"day": "a"})])
    bad = root / "day=a/2.parquet"
    if how == "missing":
        bad.unlink()
    elif how == "torn":
        bad.write_bytes(bad.read_bytes()[:-9])
    elif how == "no parquet":
        bad.write_bytes(b"something else")
    elif how == "changed":
        damage(bad)
    else:
        pq.write_table(rows(20, 9).drop(["day"]), bad)
    done = table.compact()
    assert [path for path, _ in done.skipped] == ["day=a/2.parquet"]
    assert (done.num_groups, done.files_removed, done.num_records) == (1, 3, 9)
    live = table.refresh().files["path"].to_pylist()
    assert len(live) == 2
    assert "day=a/2.parquet" in live
    active = table.skips.active()
    assert active["path"].to_pylist() == ["day=a/2.parquet"]
    assert active["reason"].to_pylist() == [done.skipped[0][1]]
    again = table.compact()
    assert (again.num_groups, again.skipped) == (0, ())
    pq.write_table(rows(20).drop(["day"]), bad)
    assert table.compact().num_groups == 0
    mended = table.compact(include_skipped=True)
    assert (mended.num_groups, mended.files_removed) == (1, 2)
    assert sorted(day(table, "a")) == [n for f in range(0, 40, 10) for n in range(f, f + 3)]


def test_column_with_different_case_keeps_its_values(root):
    table = make(root, pa.schema([("id", pa.int64()), ("s", pa.string())]), ())
    table.write(pa.table({"id": [1, 2], "s": ["a", "b"]}))
    pq.write_table(
        pa.table({"ID": pa.array([3, 4], pa.int64()), "s": ["c", "d"]}), root / "x.parquet"
    )
    table.append([arrowlog.add_file("x.parquet", size=(root / "x.parquet").stat().st_size)])
    before = read(table).sort_by("s")
    assert before["id"].to_pylist() == [1, 2, 3, 4]
    assert table.compact().files_removed == 2
    assert read(table).sort_by("s") == before
    assert table.scan("id >= 3").to_arrow_dataset().count_rows() == 2


@pytest.mark.parametrize(
    "stored",
    [
        {"ID": [3], "Id": [4]},
        {"id": [3], "st": [{"A": 1}]},
        {"id": [3], "li": [[{"inner": {"B": 1}}]]},
    ],
    ids=["ambiguous", "struct", "nested"],
)
def test_file_with_ambiguous_columns_is_skipped(root, stored):
    inner = pa.struct([("inner", pa.struct([("b", pa.int64())]))])
    types = [("id", pa.int64()), ("st", pa.struct([("a", pa.int64())])), ("li", pa.list_(inner))]
    table = make(root, pa.schema(types), ())
    for number in (1, 2):
        table.write(pa.table({"id": [number]}))
    pq.write_table(pa.table(stored), root / "x.parquet")
    table.append([arrowlog.add_file("x.parquet", size=(root / "x.parquet").stat().st_size)])
    done = table.compact()
    assert [path for path, _ in done.skipped] == ["x.parquet"]
    assert "x.parquet" in table.refresh().files["path"].to_pylist()


def test_files_without_a_parquet_name_are_ignored(root):
    table = make(root)
    adds = [arrowlog.add_file(f"{n}.split", {"day": "a"}, size=10) for n in range(3)]
    table.append(adds)
    done = table.compact()
    assert (done.num_groups, done.skipped, table.refresh().version) == (0, (), 1)


def test_store_failure_records_no_skip(root, monkeypatch):
    table = small_table(root)

    def get_range(*_):
        raise StoreUnavailable("The store did not answer.")

    monkeypatch.setattr(LocalStore, "get_range", get_range)
    done = table.compact()
    assert {found.status for found in done.groups} == {"failed"}
    assert done.skipped == ()
    monkeypatch.undo()
    assert table.skips.history().num_rows == 0
    assert table.compact().num_groups == 2


def test_full_temporary_disk_is_reported_and_records_no_skip(root, monkeypatch):
    table = small_table(root)

    def no_room():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", no_room)
    done = table.compact()
    assert {found.status for found in done.groups} == {"failed"}
    assert "No space left" in done.groups[0].reason
    assert (done.skipped, table.refresh().version) == ((), 6)


def between(monkeypatch, act):
    """Run a function after a group was rewritten, before it is committed."""
    whole = room.rewrite

    def rewritten(store, task):
        found = whole(store, task)
        act(task)
        return found

    monkeypatch.setattr(room, "rewrite", rewritten)


def test_concurrent_append_does_not_conflict(root, monkeypatch):
    table = small_table(root)
    other = arrowlog.Table(root)
    numbers = iter(range(1000, 2000, 10))
    between(monkeypatch, lambda _: other.write(rows(next(numbers))))
    done = table.compact()
    assert done.num_groups == 2
    assert day(table, "b") == day(table, "b", 6)
    assert set(day(table, "a")) == {*day(table, "a", 6), 1000, 1001, 1002, 1010, 1011, 1012}


@pytest.mark.parametrize("how", ["remove", "replace", "drop", "overwrite"])
def test_concurrent_removal_aborts_only_its_group(root, monkeypatch, how):
    table = small_table(root)
    other = arrowlog.Table(root)

    def act(task):
        if task.group.partition["day"] != "a":
            return
        key = task.group.keys[0]
        if how == "remove":
            other.remove([key])
        elif how == "drop":
            other.drop_partitions("day = 'a'")
        elif how == "overwrite":
            other.write(rows(500), mode="overwrite", where="day = 'a'")
        else:
            source = task.group.sources[0]
            facts = {"size": source.size, "modification_time": source.modification_time}
            pq.write_table(rows(700).drop(["day"]), root / key)
            other.commit([arrowlog.add_file(key, {"day": "a"}, **facts)])

    between(monkeypatch, act)
    done = table.compact()
    assert [found.status for found in done.groups] == ["conflict", "compacted"]
    assert done.num_conflicts == 1
    seen = {"remove": 15, "drop": 0, "overwrite": 3, "replace": 18}
    table.refresh()
    assert len(day(table, "a")) == seen[how]
    assert day(table, "b") == day(table, "b", 6)
    monkeypatch.undo()
    assert table.compact().num_conflicts == 0


def test_file_removed_during_the_read_is_a_conflict_and_no_skip(root, monkeypatch):
    table = small_table(root)
    other = arrowlog.Table(root)
    whole = file_rewriter._open
    once = threading.Lock()

    def _open(store, source, schema):
        if source.key.startswith("day=a"):
            if once.acquire(blocking=False):  # footers are read by several threads
                other.drop_partitions("day = 'a'")
            raise file_rewriter.UnreadableFile(source.key, "it is not there")
        return whole(store, source, schema)

    monkeypatch.setattr(file_rewriter, "_open", _open)
    done = table.compact()
    assert [found.status for found in done.groups] == ["conflict", "compacted"]
    assert done.skipped == ()
    assert table.skips.history().num_rows == 0


def test_concurrent_added_column_does_not_conflict(root, monkeypatch):
    table = small_table(root)
    other = arrowlog.Table(root)
    calls = []
    between(
        monkeypatch,
        lambda _: calls.append(1) or other.add_columns([pa.field(f"c{len(calls)}", pa.int64())]),
    )
    assert table.compact().num_groups == 2
    assert table.refresh().num_files == 2
    assert read(table)["c1"].null_count == 36


def test_compaction_works_on_every_store(place, monkeypatch):
    monkeypatch.setattr("arrowlog.clock.SystemClock.sleep", lambda *_: None)
    how = {"storage_options": place.options}
    if hasattr(place, "accelerate"):
        how["options"] = {"store.accelerate": place.accelerate}
    table = arrowlog.Table.create(place.uri, SCHEMA, ["day"], **how)
    for number in range(3):
        table.write(rows(10 * number, day="ü/%"))
    done = table.compact()
    assert (done.num_groups, done.files_removed, done.num_records) == (1, 3, 9)
    assert day(table, "ü/%") == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    table.truncate_history()
    assert table.vacuum("0s", force=True).num_files == 3
    assert day(table, "ü/%") == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_progress_is_reported_per_group(root):
    table = small_table(root)
    told = []
    table.compact(progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


MEASURE = """
import resource, sys, arrowlog
table = arrowlog.Table(sys.argv[1])
table.snapshot().files
if sys.argv[2] == "warm":
    table.compact(max_groups=1, max_files_per_group=2)
else:
    assert table.compact(target_size="1GB").num_groups == 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_group_size(tmp_path):
    """300 MB of rows are rewritten with only a few row groups in memory."""
    schema = pa.schema([("id", pa.int64()), ("noise", pa.binary())])
    peaks = {}
    for name, files in (("warm", 2), ("large", 20)):
        root = tmp_path / name
        table = make(root, schema, ())
        rng = random.Random(1)
        for number in range(files):
            noise = [rng.randbytes(1000) for _ in range(15_000)]
            pq.write_table(
                pa.table({"id": range(len(noise)), "noise": noise}, schema=schema),
                root / f"{number}.parquet",
                row_group_size=5000,
                compression="none",
            )
            table.append([arrowlog.add_parquet(table, f"{number}.parquet")])
        command = [sys.executable, "-c", MEASURE, str(root), name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[name] = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    print(peaks)
    assert peaks["large"] - peaks["warm"] < 150 << 20


@pytest.mark.promise("maintenance.compaction_keeps_rows")
def test_compactions_race_with_writers_and_removers(root):
    """Five handles on one table: every row exists once, except for removed ones."""
    make(root)
    errors, written, removed = [], [], []

    def guarded(act, times):
        def run():
            table = arrowlog.Table(root)
            try:
                for number in range(times):
                    act(table, number)
            except BaseException as error:  # noqa: BLE001 -- the test says what it was
                errors.append(error)

        return threading.Thread(target=run)

    def write(offset):
        def act(table, number):
            first = offset + 10 * number
            table.write(rows(first, day="ab"[number % 2]))
            written.extend(range(first, first + 3))

        return act

    def remove(table, number):
        files = table.refresh().files
        path = files["path"].to_pylist()[:1]
        ids = pq.read_table(root / path[0], partitioning=None)["id"].to_pylist() if path else []
        try:
            if path:
                table.remove(path)
                removed.extend(ids)
        except CommitConflict:
            pass

    compactors = [guarded(lambda table, _: table.compact(max_files_per_group=5), cases(6))]
    compactors.append(guarded(lambda table, _: table.compact(), cases(6)))
    threads = [guarded(write(0), cases(12)), guarded(write(100_000), cases(12)), *compactors]
    threads.append(guarded(remove, cases(3)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    table = arrowlog.Table(root)
    assert sorted(read(table)["id"].to_pylist()) == sorted(set(written) - set(removed))
    table.compact()
    assert table.refresh().num_files <= 2

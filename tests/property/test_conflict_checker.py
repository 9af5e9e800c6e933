"""The conflict checker for every pair of operations, against a hand-written table."""

import itertools
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases, first_seed

from arrowlog.errors import ConcurrentAppend, ConcurrentRemove, MetadataChanged, ProtocolChanged
from arrowlog.formats.base import Metadata, Protocol
from arrowlog.formats.table_schema import format_spark_schema
from arrowlog.predicate.predicate import parse_predicate
from arrowlog.transaction.conflict_checker import (
    ReadSet,
    TableHead,
    WinningCommit,
    advance_head,
    check_conflict,
)
from arrowlog.transaction.prepared_commits import reads_partitions, reads_whole_table

SCHEMA = pa.schema([("p", pa.string()), ("id", pa.int64())])
METADATA = Metadata("table", format_spark_schema(SCHEMA), ("p",))
HEAD = TableHead(5, Protocol(2, 2), METADATA, SCHEMA, 100, {"app": (1, 3)})


def keys(*names):
    return pa.array(names, pa.string())


def files(*rows):
    """Files as (path, partition) or (path, partition, data change, unknown)."""
    full = [(*row, *(True, False)[len(row) - 2 :]) for row in rows]
    columns = list(zip(*full, strict=True)) or [[], [], [], []]
    return pa.table(
        {
            "path": pa.array(columns[0], pa.string()),
            "partition.p": pa.array(columns[1], pa.string()),
            "data_change": pa.array(columns[2], pa.bool_()),
            "unknown": pa.array(columns[3], pa.bool_()),
        }
    )


def where(part):
    return reads_partitions(parse_predicate(f"p = '{part}'", SCHEMA))


# What is there: f in partition x, g in partition y.
OURS = {
    "append": ReadSet(),
    "remove f": ReadSet(removes=keys("f")),
    "overwrite all": ReadSet(),
    "overwrite x": ReadSet(removes=keys("f"), reads=where("x")),
    "overwrite z": ReadSet(reads=where("z")),
    "read all": ReadSet(reads=reads_whole_table),
    "compact": ReadSet(removes=keys("f", "g")),
    "metadata": ReadSet(metadata=True),
    "protocol": ReadSet(protocol=True),
}


def metadata(schema=SCHEMA, **changes):
    new = replace(METADATA, schema_string=format_spark_schema(schema), **changes)
    return {"metadata": new, "schema": schema}


WINNERS = {
    "append x": {"added": files(("n", "x"))},
    "append y": {"added": files(("n", "y"))},
    "append null": {"added": files(("n", None))},
    "append unreadable": {"added": files(("n", None, True, True))},
    "remove f": {"removed": keys("f")},
    "remove g": {"removed": keys("g")},
    "add f again": {"added": files(("f", "x"))},
    "add f again, same rows": {"added": files(("f", "x", False))},
    "overwrite all": {"removed": keys("f", "g"), "added": files(("n", "x"))},
    "compact": {"removed": keys("f", "h"), "added": files(("n", "x", False))},
    "compact others": {"removed": keys("h", "i"), "added": files(("n", "x", False))},
    "nothing": {},
    "same metadata": metadata(),
    "properties": metadata(configuration={"a": "b"}),
    "renamed": metadata(name="other"),
    "column": metadata(SCHEMA.append(pa.field("c", pa.int64()))),
    "needed column": metadata(SCHEMA.append(pa.field("c", pa.int64(), nullable=False))),
    "other type": metadata(pa.schema([("p", pa.string()), ("id", pa.string())])),
    "column gone": metadata(pa.schema([("p", pa.string()), ("q", pa.string())])),
    "partitions": metadata(partition_columns=("id",)),
    "another table": metadata(id="another"),
    "same protocol": {"protocol": Protocol(2, 2)},
    "protocol": {"protocol": Protocol(3, 3)},
}
HARMLESS = {"properties", "renamed", "column"}
METADATA_KINDS = HARMLESS | {
    "needed column",
    "other type",
    "column gone",
    "partitions",
    "another table",
}
GO_FOR_F = {"remove f", "add f again", "add f again, same rows", "overwrite all", "compact"}
NEW_IN = {
    "x": {"append x", "append unreadable", "add f again", "overwrite all"},
    "z": {"append unreadable"},
    "all": {
        "append x",
        "append y",
        "append null",
        "append unreadable",
        "add f again",
        "overwrite all",
    },
}
REMOVE_F = {"remove f", "overwrite x", "compact"}
READS = {"overwrite x": "x", "overwrite z": "z", "read all": "all"}


def expected(ours, theirs, exact):
    """The expected conflict, one line per rule."""
    changes = ours in ("metadata", "protocol")
    if theirs == "protocol" and (exact or changes):
        return ProtocolChanged
    if theirs in METADATA_KINDS - HARMLESS:
        return MetadataChanged
    if theirs in HARMLESS and (exact or ours == "metadata"):
        return MetadataChanged
    if ours in REMOVE_F and theirs in GO_FOR_F:
        return ConcurrentRemove
    if ours == "compact" and theirs == "remove g":
        return ConcurrentRemove
    if ours in READS and theirs in NEW_IN[READS[ours]]:
        return ConcurrentAppend
    return None


def winner(kind, version=6):
    parts = {"added": files(), "removed": keys(), **WINNERS[kind]}
    return WinningCommit(version=version, who="WINNER", timestamp=150, txn_id="r", **parts)


@pytest.mark.promise("commit.conflicts_are_found")
@pytest.mark.parametrize("exact", [False, True], ids=["", "with read_version"])
@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("theirs", WINNERS)
def test_every_pair_of_operations_conflicts_as_expected(ours, theirs, exact):
    found = check_conflict(replace(OURS[ours], exact=exact), HEAD, winner(theirs))
    kind = expected(ours, theirs, exact)
    assert type(found) is (type(None) if kind is None else kind)
    if found is not None:
        assert found.version == 6
        assert "WINNER" in str(found)
        assert "repeat the operation" in found.next


PATHS = st.sampled_from(["f", "g", "h", "i", "é", "日"])
PARTS = st.sampled_from(["x", "y", "z", None])
ADDED = st.lists(st.tuples(PATHS, PARTS, st.booleans(), st.booleans()), max_size=4)


@pytest.mark.promise("commit.conflicts_are_found")
@settings(max_examples=cases(600))
@given(
    removes=st.lists(PATHS, max_size=3, unique=True),
    part=st.sampled_from(["x", "y", "z"]),
    reads=st.sampled_from(["nothing", "part", "all"]),
    added=ADDED,
    removed=st.lists(PATHS, max_size=3, unique=True),
)
def test_file_conflicts_equal_a_naive_model(removes, part, reads, added, removed):
    how = {"nothing": None, "part": where(part), "all": reads_whole_table}[reads]
    read_set = ReadSet(removes=keys(*removes), reads=how)
    other = WinningCommit(6, "WINNER", added=files(*added), removed=keys(*removed))
    found = check_conflict(read_set, HEAD, other)
    touched = set(removes) & ({row[0] for row in added} | set(removed))
    unseen = [
        row
        for row in added
        if row[2] and (reads == "all" or (reads == "part" and (row[1] == part or row[3])))
    ]
    kind = ConcurrentRemove if touched else ConcurrentAppend if unseen else type(None)
    assert type(found) is kind


def test_read_sets_without_files_need_no_files_of_the_winner():
    """A winning commit read without its files is only checked against such read sets."""
    brief = WinningCommit(6, "WINNER")
    for name, read_set in OURS.items():
        looks = name in REMOVE_F or name in READS
        assert read_set.depends_on_files == looks
        if not looks:
            assert check_conflict(read_set, HEAD, brief) is None


def test_log_tip_advances_over_winning_commits():
    seed = first_seed()
    rng = random.Random(seed)
    for _ in range(cases(300)):
        head, steps, times = HEAD, dict(HEAD.txns), [HEAD.timestamp]
        for version in range(6, 12):
            kind = rng.choice(list(WINNERS))
            txn = rng.choice([None, ("app", rng.randrange(5)), ("other", rng.randrange(5))])
            when = rng.choice([None, rng.randrange(200)])
            seen = replace(winner(kind, version), txn=txn, timestamp=when)
            last, head = head, advance_head(head, seen)
            if txn is not None and txn[1] > steps.get(txn[0], (-1, 0))[0]:
                steps[txn[0]] = (txn[1], version)
            times += [] if when is None else [when]
            assert head.version == version
            assert head.txns == steps
            assert head.timestamp == max(times)
            assert head.protocol == (seen.protocol or last.protocol)
            assert head.metadata == (seen.metadata or last.metadata)
            assert head.schema == (last.schema if seen.schema is None else seen.schema)


@pytest.mark.parametrize(
    ("ours", "theirs"), list(itertools.product(["append", "metadata"], ["properties", "column"]))
)
def test_messages_name_what_was_changed(ours, theirs):
    found = check_conflict(replace(OURS[ours], exact=True), HEAD, winner(theirs))
    said = {"properties": "changed the table's properties", "column": "changed the schema"}
    assert said[theirs] in str(found)
    assert "changed the table's metadata" in str(
        check_conflict(replace(OURS[ours], exact=True), HEAD, winner("renamed"))
    )
    assert "partition columns" in str(
        check_conflict(replace(OURS[ours], exact=True), HEAD, winner("partitions"))
    )
    assert "replaced the table" in str(check_conflict(OURS[ours], HEAD, winner("another table")))

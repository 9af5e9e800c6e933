"""Report facts against a naive model of the table."""

import random
from collections import Counter, defaultdict
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.report.measures import order_times

SCHEMA = pa.schema(
    [("p", pa.string()), ("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())]
)
START, HOUR = 1_704_067_200_000, 3_600_000
# Prefixes of each other: a maximum may be truncated, so it covers values that start with it.
WORDS = ("a", "ab", "abc", "b", "ba", "c", "", "ü")


def bounds_of(rng):
    """Return bounds by column: both, one of them, or none."""
    minima, maxima = {}, {}
    for column, values in (
        ("id", sorted(rng.sample(range(12), 2))),
        ("name", sorted(rng.choices(WORDS, k=2))),
        ("x", sorted([rng.choice([-1.5, -0.0, 0.0, 2.0, 3.25]) for _ in range(2)])),
    ):
        if rng.random() < 0.85:
            minima[column] = str(values[0])
        if rng.random() < 0.85:
            maxima[column] = str(values[1])
    return minima, maxima


def random_table(root, rng):
    """Write a random history; return the live adds of every version and their commits' times."""
    live, versions, times = {}, [], []
    for version in range(rng.randrange(1, 9)):
        actions = [testing.protocol(), testing.metadata(SCHEMA, ["p"])] if version == 0 else []
        time = START + version * HOUR * rng.choice([1, 1, 30])
        time = max([time, *times])
        for n in range(rng.randrange(4)):
            minima, maxima = bounds_of(rng)
            path = f"{version}-{n}"
            if live and rng.random() < 0.15:
                path = rng.choice(sorted(live))  # added again, with other statistics
            rows = rng.choice([5, 9, None])
            nulls = {c: rng.choice([0, 2, rows]) for c in ("id", "name") if rng.random() < 0.6}
            nulls = {c: count for c, count in nulls.items() if count is not None}
            fields = {"size": rng.choice([0, 1, 7, 4096, 5000, 1 << 30])}
            fields |= {"minValues": minima, "maxValues": maxima}
            fields |= {} if rows is None else {"numRecords": rows}
            if nulls:
                counts = ",".join(f'"{c}":{count}' for c, count in nulls.items())
                fields["stats"] = f'{{"nullCount":{{{counts}}}}}'
            action = testing.add(path, {"p": rng.choice(["u", "v", None])}, **fields)
            actions.append(action)
            live[path] = action["add"]
        added = {action["add"]["path"] for action in actions if "add" in action}
        for path in sorted(set(live) - added):
            if rng.random() < 0.25:
                actions.append(testing.remove(path))
                del live[path]
        info = testing.commit_info(time, rng.choice(["WRITE", "MERGE"]))
        testing.write_commit(root, version, [info, *actions])
        versions.append(dict(live))
        times.append(time)
    return versions, times


@pytest.mark.parametrize("seed", range(cases(25)))
def test_report_facts_equal_a_naive_model(seed, tmp_path):
    rng = random.Random(seed)
    versions, times = random_table(tmp_path, rng)
    facts = arrowlog.Table(tmp_path).report(data_files=False).facts
    assert not facts.unavailable
    live = versions[-1]
    assert facts.summary.num_files == len(live)
    check_timeline(facts.timeline, versions, times)
    if not live:
        assert facts.file_sizes is facts.partitions is facts.columns is None
        return
    check_sizes(facts.file_sizes, live)
    check_partitions(facts.partitions, live)
    check_columns(facts.columns, live, arrowlog.Table(tmp_path))


def check_timeline(timeline, versions, times):
    by_time = {}
    for version, (live, time) in enumerate(zip(versions, times, strict=True)):
        by_time[time] = (version, len(live), sum(add["size"] for add in live.values()))
    points = {p.time.timestamp() * 1000: (p.version, p.files, p.bytes) for p in timeline.growth}
    assert points.pop(times[0], by_time[times[0]]) is not None
    assert points.items() <= by_time.items()
    assert timeline.growth[-1].version == len(versions) - 1
    before, moved = {}, Counter()
    for live in versions:
        for path in live.keys() - before.keys():
            moved["files_added"] += 1
            moved["bytes_added"] += live[path]["size"]
        for path in before.keys() - live.keys():
            moved["files_removed"] += 1
            moved["bytes_removed"] += before[path]["size"]
        before = live
    for name in ("files_added", "files_removed", "bytes_added", "bytes_removed"):
        assert sum(getattr(each, name) for each in timeline.churn) == moved[name]
        assert sum(getattr(each, name) for each in timeline.operations) == moved[name]
    assert sum(each.commits for each in timeline.churn) == len(versions)
    assert timeline.num_moved == 0


def check_sizes(sizes, live):
    naive = Counter(max(add["size"], 0).bit_length() for add in live.values())
    assert {b.high.bit_length() - 1: b.files for b in sizes.buckets if b.files} == naive
    for bucket in sizes.buckets:
        inside = [a["size"] for a in live.values() if bucket.low <= a["size"] < bucket.high]
        assert (bucket.files, bucket.bytes) == (len(inside), sum(inside))
    ordered = sorted(add["size"] for add in live.values())
    assert (sizes.minimum, sizes.maximum) == (ordered[0], ordered[-1])
    assert sizes.median == ordered[(len(ordered) - 1) // 2]
    assert sizes.small_files == sum(size < 16 << 20 for size in ordered)


def check_partitions(partitions, live):
    groups = defaultdict(list)
    for add in live.values():
        groups[add["partitionValues"].get("p")].append(add)
    assert partitions.total == len(groups)
    assert partitions.single_file == sum(len(group) == 1 for group in groups.values())
    found = {each.values[0]: (each.files, each.bytes, each.rows) for each in partitions.largest}
    for value, group in groups.items():
        rows = [add.get("numRecords") for add in group]
        total = None if None in rows else sum(rows)
        assert found[value] == (len(group), sum(add["size"] for add in group), total)


def check_columns(columns, live, table):
    assert columns.files_with_rows == sum("numRecords" in add for add in live.values())
    by_name = {each.name: each for each in columns.items}
    assert list(by_name) == SCHEMA.names
    for name in ("id", "name", "x"):
        check_column(by_name[name], name, live, table)
    partition = by_name["p"]
    asked = [add["partitionValues"].get("p") for add in live.values()]
    lookups = [value for value in asked if value is not None for _ in ("min", "max")]
    check_lookups(partition, "p", lookups, table)


def check_column(facts, name, live, table):
    parse = {"id": int, "name": str, "x": float}[name]
    with_both = 0
    counts = {"minValues": 0, "maxValues": 0}
    lookups = []
    for add in live.values():
        low, high = add["minValues"].get(name), add["maxValues"].get(name)
        with_both += low is not None and high is not None
        counts["minValues"] += low is not None
        counts["maxValues"] += high is not None
        lookups += [parse(bound) for bound in (low, high) if bound is not None]
    assert facts.files_with_bounds == with_both
    assert facts.files_with_min == counts["minValues"]
    assert facts.files_with_max == counts["maxValues"]
    check_lookups(facts, name, lookups, table)


def check_lookups(facts, name, values, table):
    """The cost of lookups equals what the planner plans for each of them."""
    if not values:
        assert facts.lookup_files is None
        assert facts.verdict == "none"
        return
    planned = {value: table.scan([(name, "=", value)]).num_files for value in set(values)}
    assert facts.lookup_files == pytest.approx(sum(planned[v] for v in values) / len(values))
    assert facts.max_overlap == max(planned.values())


@given(st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=9), st.integers(0, 12))
def test_order_times_moves_as_few_times_as_possible(times, latest):
    ordered, moved = order_times(times, latest)
    known = [t for t in times if t is not None]
    if not known:
        assert (ordered, moved) == ([], 0)
        return
    assert ordered == sorted(ordered)
    assert len(ordered) == len(times)
    trusted = [t for t in known if t <= latest] or known
    runs = (run for size in range(len(trusted), 0, -1) for run in combinations(trusted, size))
    longest = next(run for run in runs if list(run) == sorted(run))
    assert moved == len(known) - len(longest)
    if known == times == sorted(times) and times[-1] <= latest:
        assert ordered == times

"""`Table.diff` of random histories, against a comparison of the live adds one by one."""

import random

import pytest
from support.case_count import cases

import arrowlog
from arrowlog import testing

SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
)
# The same statistics spelled in two ways, others, and none: (text, what it says).
STATS = [
    ('{"numRecords":5,"minValues":{"id":1},"maxValues":{"id":2}}', (5, 1, 2)),
    ('{ "maxValues": {"id": 2}, "numRecords": 5, "minValues": {"id": 1}}', (5, 1, 2)),
    ('{"numRecords":5,"minValues":{"id":0},"maxValues":{"id":2}}', (5, 0, 2)),
    ('{"numRecords":6}', (6, None, None)),
    (None, (None, None, None)),
]
VERSIONS = 9


def write(root, rng):
    """Write a log; returns what each live file says, by path, for every version."""
    metadata = {"id": "x", "format": {"provider": "parquet", "options": {}}, "createdTime": 1}
    metadata |= {"schemaString": SCHEMA, "partitionColumns": ["p"], "configuration": {}}
    protocol = {"minReaderVersion": 2, "minWriterVersion": 2}
    testing.write_commit(root, 0, [{"protocol": protocol}, {"metaData": metadata}])
    live, states = {}, [{}]
    for version in range(1, VERSIONS):
        actions = []
        for number in rng.sample(range(20), rng.randrange(1, 12)):
            path = f"f{number}.parquet"
            if rng.random() < 0.3:
                actions.append(testing.remove(path))
                live.pop(path, None)
                continue
            stats, meaning = rng.choice(STATS)
            tags, size = rng.choice([None, {"a": "b"}, {"a": "c"}]), rng.choice([1, 2])
            partition = rng.choice(["a", "b", None])
            fields = {"size": size, "stats": stats, "tags": tags, "modificationTime": 7}
            fields["dataChange"] = rng.random() < 0.5
            actions.append(testing.add(path, {"p": partition}, **fields))
            live[path] = (partition, size, meaning, tags)
        testing.write_commit(root, version, actions)
        states.append(dict(live))
    return states


def expected(old, new):
    """The rows of a diff: (change, path, partition, sizes, record counts)."""
    found = []
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        change = "changed" if before and after else "added" if after else "removed"
        sizes = [each and each[1] for each in (before, after)]
        records = [each and each[2][0] for each in (before, after)]
        found.append((change, path, (after or before)[0], *sizes, *records))
    return sorted(found)


@pytest.mark.parametrize("seed", range(cases(12)))
def test_diff_is_what_differs_between_the_live_adds(tmp_path, seed):
    rng = random.Random(seed)
    states = write(str(tmp_path), rng)
    table = arrowlog.Table(str(tmp_path))
    if seed % 3 == 0:
        table.checkpoint()
    for a, b in [(0, VERSIONS - 1), *(rng.sample(range(VERSIONS), 2) for _ in range(4))]:
        names = ["change", "path", "partition.p", "size_bytes_before", "size_bytes_after"]
        names += ["num_records_before", "num_records_after"]
        found = table.diff(a, b).files.select(names).to_pylist()
        assert [tuple(row.values()) for row in found] == expected(states[a], states[b]), (a, b)

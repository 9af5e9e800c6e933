"""The row decoder decodes many lines in one call, with the result of decoding each line alone."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import small_table
from support.case_count import cases

import arrowlog
from arrowlog.decode import LineBuffer, decode_buffer, flatten_map_columns
from arrowlog.decode.row_decoder import build_action_table, decode_line, decode_lines
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import ACTIONS

KEYS = ["id", "day of week", "größe", 'a"b', "x\\y", "t\tab", ""]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = st.none() | TEXTS | st.integers(-(10**25), 10**25) | st.booleans() | st.floats(-1e9, 1e9)
VALUES = SCALARS | st.lists(st.integers(), max_size=1) | st.dictionaries(TEXTS, TEXTS, max_size=1)
MAPS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
COUNTS = st.dictionaries(st.sampled_from(KEYS), st.integers(-5, 2**70) | TEXTS, max_size=3)
STATS = st.none() | st.fixed_dictionaries(
    {}, optional={"numRecords": st.integers(0, 9), "nullCount": COUNTS, "minValues": MAPS}
)


@st.composite
def add_lines(draw):
    """One `add` line: fields in any order, some left out, statistics as an object or as text."""
    stats = draw(STATS)
    fields = {
        "path": draw(TEXTS),
        "size": draw(st.integers(0, 2**62)),
        "partitionValues": draw(MAPS | st.none()),
        "minValues": draw(MAPS | st.none()),
        "stats": json.dumps(stats) if stats is not None and draw(st.booleans()) else stats,
        "dataChange": draw(st.booleans()),
        "modificationTime": draw(st.integers(0, 2**62)),
    }
    kept = [name for name in fields if name in ACTIONS.required["add"] or draw(st.booleans())]
    order = draw(st.permutations(kept))
    content = {"add": {name: fields[name] for name in order}}
    return content, json.dumps(content, ensure_ascii=draw(st.booleans())).encode()


def naive_text(value):
    """A scalar as a map of strings would hold it."""
    if value is None or isinstance(value, (dict, list)):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def one_by_one(texts):
    by_action = {}
    for row, text in enumerate(texts):
        action = decode_line(text, "", 0, ACTIONS)
        if action is not None:
            rows, values = by_action.setdefault(action[0], ([], []))
            rows.append(row)
            values.append(action[1])
    return by_action


@settings(max_examples=cases(300), deadline=None)
@given(st.lists(add_lines(), min_size=1, max_size=8))
def test_map_members_equal_a_naive_reader(adds):
    decoded = decode_lines([line for _, line in adds], ACTIONS)
    table = build_action_table(ACTIONS, "add", *decoded["add"])
    flat = flatten_map_columns(table, [*KEYS, *KEYS])

    def column(name):
        return flat[name].to_pylist() if name in flat.column_names else [None] * len(adds)

    contents = [content["add"] for content, _ in adds]
    assert column("path") == [add["path"] for add in contents]
    assert column("size") == [add["size"] for add in contents]
    stats = [add.get("stats") or {} for add in contents]
    stats = [json.loads(text) if isinstance(text, str) else text for text in stats]
    for key in KEYS:
        for name in ("partitionValues", "minValues"):
            expected = [naive_text((add.get(name) or {}).get(key)) for add in contents]
            assert column(f"{name}.{key}") == expected
        expected = [naive_text((each.get("minValues") or {}).get(key)) for each in stats]
        assert column(f"stats.minValues.{key}") == expected
        counts = [(each.get("nullCount") or {}).get(key) for each in stats]
        found = column(f"stats.nullCount.{key}")
        exact = [(f, c) for f, c in zip(found, counts, strict=True) if isinstance(c, int)]
        assert all(f == (c if -(2**63) <= c < 2**63 else None) for f, c in exact)
    assert column("stats.numRecords") == [each.get("numRecords") for each in stats]


LINES = st.one_of(
    add_lines().map(lambda add: add[1]),
    st.sampled_from(
        [
            b'{"remove":{"path":"a","deletionTimestamp":1}}',
            b'{"commitInfo":{"timestamp":5}}',
            b'{"commitInfo":null}',
            b'{"unknown":{"a":1}}',
            b'{"protocol":{"minReaderVersion":1,"minWriterVersion":1}}',
            b'{"add":{"path":"a"},"remove":{"path":"b"}}',
            b'{"add":{"path":"a","path":"b","size":1,"modificationTime":1}}',
            b'{"add":{"path":"a","size":1,"modificationTime":1,"tags":[]}}',
            b'{"add":{"path":"\xff","size":1,"modificationTime":1}}',
            b"",
            b" ",
            b"{",
            b"[]",
            b"null",
        ]
    ),
)


def comparable(decoded):
    return {
        name: (rows, [bytes(value) if name == "commitInfo" else value for value in values])
        for name, (rows, values) in decoded.items()
    }


@settings(max_examples=cases(300), deadline=None)
@given(st.lists(LINES, max_size=6))
def test_batch_decoding_equals_line_by_line_or_is_declined(texts):
    together = decode_lines(texts, ACTIONS)
    if together is not None:
        assert comparable(together) == comparable(one_by_one(texts))


def test_regular_lines_are_decoded_as_a_batch():
    """The lines of most logs take the fast path. The test above would pass without one."""
    lines = [
        b'{"add":{"path":"a","size":1,"modificationTime":1}}',
        b'{"commitInfo":{}}',
        b'{"x":1}',
    ] * 3
    assert [len(rows) for rows, _ in decode_lines(lines, ACTIONS).values()] == [3, 3]


def test_corrupt_line_among_many_is_named(tmp_path):
    path = small_table.write(str(tmp_path / "table"))
    log = tmp_path / "table" / "_transaction_log"
    name = max(file.name for file in log.iterdir() if file.suffix == ".json")
    good = b'{"add":{"path":"p%d","size":1,"modificationTime":1,"dataChange":true}}\n'
    lines = b"".join(good % n for n in range(20)) + b'{"add":{"path":7}}\n'
    (log / name).write_bytes(lines)
    with pytest.raises(LogCorrupt, match="line 21"):
        arrowlog.Table(path).snapshot()


GOOD = b'{"add":{"path":"%s","size":1,"modificationTime":1}}'


@pytest.mark.parametrize(
    "texts",
    [
        [GOOD % b"a", b"", GOOD % b"b" + GOOD % b"c"],
        [GOOD % b"a" + GOOD % b"b", b'{"add":', b'{"path":"c","size":1,"modificationTime":1}}'],
        [GOOD % b"a" + b" " + GOOD % b"b", GOOD[:-1] % b"c", b"}"],
    ],
)
def test_objects_that_span_lines_are_refused(texts):
    """msgspec decodes a sequence of objects even if they are not one per line."""
    assert decode_lines(texts, ACTIONS) is None
    window = LineBuffer(1 << 20)
    window.append("file", 1, b"\n".join([GOOD % b"first", *texts, GOOD % b"last", b""]))
    with pytest.raises(LogCorrupt):
        decode_buffer(window)


def test_commit_infos_that_span_lines_are_refused():
    info = b'{"commitInfo":{"timestamp":5}}'
    files = [info] * 7 + [info + info, b'{"commitInfo":', b'{"commitInfo":{}}}']
    window = LineBuffer(1 << 20)
    window.fill([f"{i}" for i in range(10)], list(range(10)), [text + b"\n" for text in files])
    with pytest.raises(LogCorrupt):
        decode_buffer(window)


def test_invalid_statistics_are_not_joined_with_their_neighbours():
    """Texts that are no JSON by themselves, but would be if joined with others."""
    texts = ['{"numRecords":1},{"numRecords":2}', '{"x":"', '"}', '{"numRecords":3}']
    for separator in (",", "\n"):
        stats = [text.replace("},{", "}" + separator + "{") for text in texts]
        adds = pa.table({"stats": stats, "raw": [True] * 4})
        flat = flatten_map_columns(adds, [])
        assert flat["stats.numRecords"].to_pylist() == [None, None, None, 3]

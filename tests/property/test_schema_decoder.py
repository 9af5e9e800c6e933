"""The schema decoder agrees with the row decoder on every line, or leaves the line to it.

Lines are generated with fields in any order, optional fields, unusual values and spellings, and
some of them are damaged. Blocks of two lines count as large, so that a few lines reach every path
through the decoder.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from support.case_count import cases, first_seed

from arrowlog import testing
from arrowlog.decode import (
    LineBuffer,
    decode_buffer,
    decoder,
    flatten_map_columns,
    schema_decoder,
    start_decode,
)
from arrowlog.decode.row_decoder import build_action_table, decode_line
from arrowlog.errors import LogCorrupt
from arrowlog.formats import ActionFields, FieldKind
from arrowlog.formats.delta.format import ACTIONS as DELTA_ACTIONS
from arrowlog.formats.indextables import ACTIONS

LIMIT = 1 << 24
KEYS = [
    "id",
    "day",
    "größe",
    'a"b',
    "x\\y",
    "t\tab",
    "",
    "a.b",
    "tags",
    "path",
    'q"tags',
    "\U0001f600",
]
TEXTS = [
    "",
    "a",
    "2024-01-01",
    "é",
    "\U0001f600",
    'q"q',
    "b\\s",
    "}",
    "]",
    "a:1.5,b",
    ":1}",
    "\x7f",
]
TEXTS += ["tab\t", "nul\0", "\u2028", "NaN", "-0", "1e400", "{}", "null", " ", "x" * 300]
NUMBERS = ["0", "-0", "7", "-12", "9007199254740993", "9223372036854775807", "9223372036854775808"]
NUMBERS += ["1.0", "-0.0", "0.10", "1e400", "1E5", "12345678901234567890123", "1e-7"]
ODD = [
    "null",
    "true",
    "[]",
    "{}",
    '"text"',
    "[1]",
    '{"k":{}}',
    "NaN",
    "-Infinity",
    "01",
    "1.",
    "+1",
]
SPICE = [b'"', b"\\", b",", b"{", b"}", b"[", b"]", b":", b"\r", b"\t", b"\0", b" ", b"0", b"-"]
SPICE += [b"\xff", b"\xc3\xa9", b"null", b'\\"', b"\\u00e9", b"\\ud800", b"\\udc00", b"\\u0000"]
SPICE += [b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x7f", b"9" * 25, b'"path":"twice",', b"NaN", b"}{"]
SPICE += [b'}}{"add":{"path":"b","size":1,"modificationTime":1}}', b"[" * 3000, b'"add":null,']


class Lines:
    """Generates the lines of one log, with irregularities chosen once per log."""

    def __init__(self, rng):
        self.rng = rng
        self.odd = rng.choice([0, 0, 0, 0.002, 0.02])
        self.texts = TEXTS if rng.random() < 0.5 else TEXTS[:4]
        self.keys = rng.sample(KEYS, rng.choice([1, 2, 4])) if rng.random() < 0.5 else ["id", "day"]
        self.ascii = rng.random() < 0.5
        self.spaces = rng.choice(["", "", "", " "])
        self.number_bounds = rng.random() < 0.5
        self.absent = rng.choice([0, 0.1, 0.5])

    def text(self):
        return json.dumps(self.rng.choice(self.texts), ensure_ascii=self.ascii)

    def number(self):
        return self.rng.choice(NUMBERS) if self.rng.random() < self.odd * 5 else str(self.small())

    def small(self):
        return self.rng.randrange(100)

    def value(self, usual):
        return self.rng.choice(ODD + NUMBERS) if self.rng.random() < self.odd else usual

    def join(self, members, opening="{", closing="}"):
        members = self.rng.sample(members, len(members))
        return opening + f",{self.spaces}".join(members) + closing

    def member(self, key, value):
        return f"{json.dumps(key, ensure_ascii=self.ascii)}:{self.spaces}{self.value(value)}"

    def map(self, make):
        keys = [key for key in self.keys if self.rng.random() >= self.absent]
        return self.join([self.member(key, make()) for key in keys])

    def bound(self):
        if not self.number_bounds:
            return self.text()
        return self.rng.choice([self.text, self.number, lambda: "true"])() if self.odd else "1.50"

    def stats(self):
        parts = {
            "numRecords": self.number(),
            "minValues": self.map(self.bound),
            "maxValues": self.map(self.bound),
            "nullCount": self.map(self.number),
            "nanCount": self.map(self.number),
            "tightBounds": "true",
            "deep": '{"a":[{"b":1.5}]}',
        }
        text = self.join([self.member(k, v) for k, v in parts.items() if self.rng.random() < 0.7])
        return json.dumps(text, ensure_ascii=self.ascii)

    def add(self):
        fields = {
            "path": self.text(),
            "size": self.number(),
            "modificationTime": self.number(),
            "dataChange": self.rng.choice(["true", "false"]),
            "partitionValues": self.map(self.text),
            "minValues": self.map(self.text),
            "stats": self.stats(),
            "tags": self.map(self.text),
            "splitTags": self.join([self.text()] * self.rng.randrange(3), "[", "]"),
            "deletionVector": '{"storageType":"u","offset":1}',
            "docMappingRef": '"abc"',
            "new": '{"a":[1.5,null],"b":{"c":true}}',
        }
        return self.action("add", fields, ("path", "size", "modificationTime"))

    def remove(self):
        fields = {
            "path": self.text(),
            "deletionTimestamp": self.number(),
            "partitionValues": self.map(self.text),
            "tags": self.value("null"),
        }
        return self.action("remove", fields, ("path",))

    def action(self, action, fields, required):
        kept = [
            self.member(name, value)
            for name, value in fields.items()
            if (name in required and self.rng.random() >= self.odd)
            or self.rng.random() >= self.absent
        ]
        if self.rng.random() < self.odd:
            kept += [self.rng.choice(kept or ['"x":1'])]
        line = f'{{"{action}":{self.spaces}{self.join(kept)}'
        if self.rng.random() < self.odd:
            line += self.rng.choice([',"remove":null', ',"x":1', ',"metaData":{}', ',"add":{}'])
        return (line + "}").encode()

    def make(self, count):
        kinds = self.rng.choice([[self.add], [self.add], [self.remove], [self.add, self.remove]])
        return [self.rng.choice(kinds)() for _ in range(count)]


def damage(rng, lines):
    lines = list(lines)
    for _ in range(rng.choice([0, 0, 1, 2])):
        number = rng.randrange(len(lines))
        text = bytearray(lines[number])
        at = rng.randrange(len(text) + 1)
        what = rng.randrange(5)
        if what == 0 and at < len(text):
            text[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            text[at:at] = rng.choice(SPICE)
        elif what == 2:
            del text[at : at + rng.choice([1, 1, 3, 20, 1000])]
        elif what == 3:
            text[at : at + 1] = rng.choice(SPICE)
        else:
            text += rng.choice([b" ", b"\r", bytes(text), b"x", b"\n", b"}"])
        lines[number : number + 1] = bytes(text).split(b"\n")
    return lines


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(schema_decoder, "_LEARNED_BLOCK_LINES", 4)
    monkeypatch.setattr(schema_decoder._BlockReader, "smallest_block", 2)
    monkeypatch.setattr(schema_decoder, "_NUM_SAMPLES", 8)


def rows_of(columns, count):
    """The values of each row by column. A column without values counts as absent."""
    table = pa.table({name: _plain(column) for name, column in columns.items()})
    found = table.to_pylist() if columns else [{}] * count
    return [{k: v for k, v in row.items() if v is not None} for row in found]


def _plain(column):
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def all_keys(value):
    """The keys of all objects in a value, and in texts that are JSON themselves."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return all_keys(json.loads(value))
        except ValueError:
            return set()
    members = value.values() if isinstance(value, dict) else value
    keys = set(value) if isinstance(value, dict) else set()
    return keys.union(*map(all_keys, members)) if isinstance(value, (dict, list)) else keys


def expected_rows(texts, action, fields):
    """The row decoder's result for lines that hold one action."""
    decoded = [decode_line(text, "", 0, fields) for text in texts]
    assert {name for name, _ in decoded} <= {action}
    table = build_action_table(fields, action, range(len(texts)), [value for _, value in decoded])
    if action == "add":
        table = flatten_map_columns(table, sorted(all_keys(list(map(json.loads, texts)))))
    flat = {name for name, kind in fields.fields[action].items() if kind is FieldKind.FLAT}
    dropped = {"seq", "raw", *flat}
    names = [name for name in table.column_names if name not in dropped]
    return rows_of({name: table[name] for name in names}, len(texts))


def check(lines, fields):
    """Compare both decoders; returns how many lines the schema decoder decoded."""
    data = bytearray(b"\n".join([*lines, b""]))
    matches, left = schema_decoder.decode_by_schema(memoryview(data), fields)
    if matches:
        data[:] = bytes(len(data))  # the buffer is reused for other lines afterwards
    assert left.num_lines == len(lines)
    assert [text[:-1] for text in left.texts.to_pylist()] == [
        lines[i] for i in left.rows.to_pylist()
    ]
    rows = [row for match in matches for row in match.rows.to_pylist()]
    assert sorted(rows + left.rows.to_pylist()) == list(range(len(lines)))
    for match in matches:
        texts = [lines[row] for row in match.rows.to_pylist()]
        if texts:
            found = rows_of(match.columns, len(texts))
            assert found == expected_rows(texts, match.action, fields)
    return len(rows)


@pytest.mark.promise("snapshot.decoders_agree")
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("fields", [ACTIONS, DELTA_ACTIONS], ids=["indextables", "delta"])
def test_schema_decoder_equals_row_decoder(fields):
    first = first_seed()
    num_lines = num_decoded = 0
    for seed in range(first, first + cases(400)):
        print("seed", seed)
        rng = random.Random(seed)
        lines = damage(rng, Lines(rng).make(rng.randrange(1, 30)))
        num_lines += len(lines)
        num_decoded += check(lines, fields)
    assert num_decoded > num_lines / 3  # otherwise nothing was compared


def outcome(data, *, columnar):
    window = LineBuffer(LIMIT)
    window.append("file", 3, data)
    try:
        actions = decode_buffer(window, columnar=columnar)
    except LogCorrupt as error:
        return error.file, error.line, str(error)
    found = {}
    for name in actions.tables:
        table = actions.table(name).sort_by("seq")
        if name == "add":
            table = flatten_map_columns(table, KEYS)
            table = table.drop_columns(
                [n for n in ("raw", "partitionValues", "minValues") if n in table.column_names]
            )
        found[name] = rows_of({n: table[n] for n in table.column_names}, table.num_rows)
    return found


@pytest.mark.promise("snapshot.decoders_agree")
def test_logs_give_the_same_actions_or_the_same_error(monkeypatch):
    monkeypatch.setattr(decoder, "SCHEMA_MIN_LINES", 50)
    first = first_seed()
    for seed in range(first, first + cases(60)):
        print("seed", seed)
        rng = random.Random(seed)
        data = b"\n".join([*damage(rng, Lines(rng).make(200)), b""])
        assert outcome(data, columnar=True) == outcome(data, columnar=False)


ADD = b'{"add":{"path":"%d","size":1,"modificationTime":1,"partitionValues":{"add":"v"},"new":1.5}}'
ADD_START = b'{"add":{"path":"3","size":1,"modificationTime":1,"partitionValues":'
ODD_ADDS = [
    [ADD % 1 + ADD % 2, ADD_START, b'{"add":"v"},"new":1.5}}'],
    [ADD % 1 + ADD % 2, b""],
    [ADD % 1 + b"\0"],
    [b"\xef\xbb\xbf" + ADD % 1],
    [ADD.replace(b"1.5", b"NaN") % 1],
    [ADD.replace(b"1.5", b"-Infinity") % 1],
    [ADD.replace(b"1.5", b"1e400") % 1],
    [ADD.replace(b":1,", b":null,") % 1],
    [ADD.replace(b'"size":1,', b"") % 1],
    [b'{"add":null}'],
    [b'{"add":null,"remove":{"path":"a"}}'],
    [ADD[:-1] % 1 + b',"remove":{"path":"a"}}'],
    [ADD[:-1] % 1 + b',"remove":null}'],
    [ADD.replace(b"}}", b',"size":2}}') % 1],
    [ADD.replace(b'"v"', b'"v","add":"w"') % 1],
    [ADD.replace(b'"v"', b"5") % 1],
    [ADD.replace(b'"v"', b'"\\ud800"') % 1],
    [ADD.replace(b'"v"', b'"\xff"') % 1],
    [ADD.replace(b'"v"', b'"\xed\xa0\x80"') % 1],
    [ADD.replace(b"1.5", b"[" * 100_000) % 1],
    [ADD.replace(b"1.5", b'{"a":' * 100_000) % 1],
    [ADD % 1 + b"\r"],
    [ADD % 1 + b" "],
    [ADD % 1 + b"}"],
    [ADD[:-1] % 1],
]


@pytest.mark.parametrize("odd", ODD_ADDS, ids=range(len(ODD_ADDS)))
@pytest.mark.parametrize("last", [False, True])
def test_irregular_lines_are_left_to_the_row_decoder(odd, last):
    regular = [ADD % number for number in range(300)]
    lines = regular + odd if last else regular[:200] + odd + regular[200:]
    matches, left = schema_decoder.decode_by_schema(b"\n".join([*lines, b""]), ACTIONS)
    assert set(odd) <= {text[:-1] for text in left.texts.to_pylist()}
    utf8 = b"\xff" not in odd[0] and b"\xed" not in odd[0]
    assert sum(len(match.rows) for match in matches) >= (150 if utf8 else 0)
    check(lines, ACTIONS) if all(decodes(text) for text in lines) else None


def decodes(text):
    try:
        return decode_line(text, "", 0, ACTIONS)
    except LogCorrupt:
        return False


def test_lines_with_a_rare_field_are_decoded():
    """A field that no sample has is learned when a block of lines is rejected."""
    lines = [ADD % number for number in range(2000)]
    lines[999] = ADD.replace(b'"v"', b'"v","rare":"x"') % 999
    lines[1500] = ADD.replace(b"1.5", b'1.5,"tags":{"a":"}"},"newer":[{}]') % 1500
    assert check(lines, ACTIONS) == 2000 - 1  # the tag has a brace


def test_lines_with_distinct_fields_are_left_to_the_row_decoder():
    lines = [ADD.replace(b'"v"', b'"v","k%d":"x"' % number) % number for number in range(2000)]
    assert check(lines, ACTIONS) == 0


def test_regular_lines_among_some_irregular_ones_are_decoded():
    odd = ADD.replace(b'"v"', b"5")
    lines = [(odd if number % 1000 == 7 else ADD) % number for number in range(8000)]
    assert check(lines, ACTIONS) >= 8000 - 8 * 128


ODD_STATS = [
    ['{"numRecords":1', ',"x":{}}', '{"numRecords":2}{"numRecords":3}'],
    ['{"numRecords":1}{"numRecords":2}', ""],
    ["\ufeff" + '{"numRecords":1}'],
    [' {"numRecords":1}'],
    ["[]", "null", "5", '"{}"', "{"],
    ['{"numRecords":1,"numRecords":2}'],
    ['{"x":NaN}', '{"x":Infinity}'],
    ['{"numRecords":1.5}', '{"numRecords":"9"}', '{"numRecords":true}', '{"numRecords":[1]}'],
    ['{"minValues":{"id":1.50}}', '{"minValues":{"id":"a:1.5,b"}}', '{"minValues":{"id":-0}}'],
    ['{"minValues":{"id":01}}', '{"minValues":{"id":1.}}'],
    ['{"minValues":7,"maxValues":[1],"nullCount":null}'],
]


@pytest.mark.parametrize("odd", ODD_STATS, ids=range(len(ODD_STATS)))
@pytest.mark.parametrize("bounds", [False, True])
def test_irregular_statistics_equal_the_row_decoder(odd, bounds):
    add = ADD.replace(b"1.5", b'1.5,"stats":%b')
    regular = ['{"x":1.5,"minValues":{"id":1.50}}'] if bounds else ['{"x":1.5,"numRecords":1}']
    texts = regular * 300 + odd + regular * 5
    lines = [add % (i, json.dumps(text).encode()) for i, text in enumerate(texts)]
    assert check(lines, ACTIONS) >= 150


@pytest.mark.parametrize("key", ["tags", 'q\\"tags'])
def test_raw_text_of_a_field_is_not_taken_from_another_field(key):
    other = f'{{"{key}":{{"a":"other"}}}}'.encode()
    lines = [ADD.replace(b"1.5", other + b',"tags":{"b":"mine"}') % i for i in range(300)]
    assert check(lines, ACTIONS) == 0
    lines = [ADD.replace(b"1.5", b'1.5,"tags":{"b":"mine","tags":"x"}') % i for i in range(300)]
    assert check(lines, ACTIONS) == 300


@pytest.mark.parametrize("large", [False, True])
def test_log_without_a_line_template_is_decoded_columnar(large):
    """The comparison of whole logs above would pass if all lines went to the row decoder."""
    rng = random.Random(5)
    fields = {"path": "a", "size": 1, "modificationTime": 2, "tags": {"a": "b"}, "numRecords": 3}
    fields |= {"minValues": {"id": "1", "day": "2"}, "stats": '{"nullCount":{"id":0}}'}
    names = [rng.sample(list(fields), len(fields)) for _ in range(1000)]
    adds = [{name: fields[name] for name in order} for order in names]
    data = b"".join(json.dumps({"add": add}).encode() + b"\n" for add in adds)
    window = LineBuffer(LIMIT)
    window.append("file", 3, data)
    with ThreadPoolExecutor(2) as pool:
        table = start_decode(window, pool if large else None).finish().table("add")
    assert "raw" not in table.column_names
    assert set(table["tags"].to_pylist()) == {'{"a": "b"}'}
    assert set(table["stats.nullCount.id"].to_pylist()) == {0}
    assert table["seq"].to_pylist() == list(range(1, 1001))


def test_null_action_is_left_to_the_row_decoder():
    """Also in a format without required fields."""
    fields = ActionFields({"add": {"size": FieldKind.INT}, "remove": {}, "commitInfo": {}})
    lines = [b'{"add":{"size":%d}}' % number for number in range(300)] + [b'{"add":null}']
    matches, left = schema_decoder.decode_by_schema(b"\n".join([*lines, b""]), fields)
    assert left.rows.to_pylist() == [300]
    assert matches[0].columns["size"].to_pylist() == list(range(300))


def test_what_one_file_taught_does_not_mislead_the_next():
    """Files without a common shape, one after the other through one buffer; their fields change."""
    rng = random.Random(4)
    window = LineBuffer(LIMIT)
    for version in range(1, 8):
        lines = []
        for number in range(500):
            stats = {"numRecords": number, "nullCount": {f"c{version % 3}": number % 7}}
            if version > 4:
                stats["minValues"] = {"id": number / 3 if version > 5 else number}
            content = {
                "path": f"v{version}-{number}",
                "partitionValues": {"day": f"{number % 9}"},
                "size": number,
                "modificationTime": 7,
                "dataChange": True,
                "stats": json.dumps(stats),
            }
            if version % 2:
                content["tags"] = {f"tag{version}": str(rng.random())}
            names = rng.sample(list(content), len(content))
            lines.append(json.dumps({"add": {name: content[name] for name in names}}).encode())
        data = b"\n".join([*lines, b""])
        window.clear()
        window.append("file", version, data)
        adds = decode_buffer(window).table("add").sort_by("seq")
        plain = LineBuffer(LIMIT)
        plain.append("file", version, data)
        expected = decode_buffer(plain, columnar=False).table("add").sort_by("seq")
        keys = ["day", "id", "c0", "c1", "c2"]
        found, wanted = (flatten_map_columns(table, keys) for table in (adds, expected))
        for name in wanted.column_names:
            if name not in ("raw", "partitionValues"):
                column = found[name].to_pylist() if name in found.column_names else [None] * 500
                assert column == wanted[name].to_pylist(), (version, name)
    assert window.learned


ONE_TAG = pa.chunked_array([pa.array([None, {"a": "1"}], pa.struct([("a", pa.string())]))])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"{}", b'"tags": {"a":"1"}'),  # a space
        (b'{"tags":{"a":"1"}}', b'"tags": {"a":"1"}'),  # in another line than the field
        (b'{"tags":{"a":"1"}}', b'"tags":{"a":"1"}'),  # in one more line
        (b"{}", b'"x":{"tags":{}},"tags":{"a":"1"}'),  # twice in a line
        (b"{}", b'"tags":{"a":"}"}'),  # ends within a string
        (b"{}", b'"tags":{"a":"\\""}'),
    ],
)
def test_text_of_a_field_is_found_without_a_pattern_only_if_it_is_certain(first, second):
    lines = [b'{"add":{"x":%s}}\n' % first, b'{"add":{%s}}\n' % second]
    plain = [lines[0].replace(b"tags", b"toga"), b'{"add":{"tags":{"a":"1"},"x":{}}}\n']
    texts = pa.array([b"before\n", *lines], pa.binary())[1:]
    assert schema_decoder._find_plain_json("tags", ONE_TAG, texts) is None
    texts = pa.array([b"before\n", *plain], pa.binary())[1:]
    found = schema_decoder._find_plain_json("tags", ONE_TAG, texts)
    assert found.to_pylist() == [None, '{"a":"1"}']


def test_array_that_its_line_does_not_close_is_not_found():
    column = pa.chunked_array([pa.array([["a"], ["b"]])])
    texts = pa.array([b'{"add":{"l":["a"}}\n', b'{"add":{"l":["b"]}}\n'], pa.binary())
    assert schema_decoder._find_plain_json("l", column, texts) is None
    assert schema_decoder._find_plain_json("l", column[1:], texts[1:]).to_pylist() == ['["b"]']


def test_irregular_log_is_read_without_polars(monkeypatch):
    rng, actions = random.Random(1), []
    for number in range(900):
        tags = {"tags": {"run": str(number)}} if number % 2 else {}
        add = testing.add(f"part-{number}", {"day": "1"}, **tags)["add"]
        actions.append({"add": dict(rng.sample(list(add.items()), len(add)))})
    data = testing.lines(actions)
    expected = outcome(data, columnar=False)
    monkeypatch.setattr(schema_decoder, "pl", None)
    assert outcome(data, columnar=True) == expected
    window = LineBuffer(1 << 20)
    window.append("1.json", 1, data)
    assert "raw" not in decode_buffer(window).table("add").column_names

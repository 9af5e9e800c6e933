"""String maps such as `tags` are parsed as a batch with the result of parsing each alone."""

import json

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases

from arrowlog.arrays import make_array
from arrowlog.snapshot import file_table

TEXTS = st.sampled_from(["a", "b", "", "a b", "é", "x:y", "c,d", "{", "}", ",", ":", "}{"])
ODD_TEXTS = TEXTS | st.sampled_from(['q"', "\\", "\n", "\u2028", "\0", '":"', '","'])
NOT_MAPS = ["null", "[]", "{}", "", '"a"', '{"a":1}', '{"a":null}', '{"a":{}}', '{"a":"b"', "{}{}"]
NOT_MAPS += ['{"a":"b"},{"c":"d"}', '{"a":"b"}{"c":"d"}', '{"a":"b"}\n{"c":"d"}', '{"a":"', '"}']
NOT_MAPS += [
    '{"a":"\n"}',
    '{"a":"\t"}',
    ' {"a":"b"}',
    '{"a":"b"} ',
    '{"a": "b"}',
    '{"a":"\\ud800"}',
]


def maps_of(texts):
    """JSON objects with any number of members, including duplicate keys."""

    def to_json(members, escaped):
        encoded = [[json.dumps(text, ensure_ascii=escaped) for text in each] for each in members]
        return "{" + ",".join(f"{key}:{value}" for key, value in encoded) + "}"

    members = st.lists(st.tuples(texts, texts), max_size=3)
    return st.builds(to_json, members, st.booleans())


def one_by_one(texts):
    parsed = [file_table._parse_json(text, file_table._TAGS) for text in texts]
    return pa.array(parsed, file_table._TAGS)


@settings(max_examples=cases(600), deadline=None)
@given(
    st.lists(maps_of(TEXTS), min_size=1, max_size=4)
    | st.lists(maps_of(ODD_TEXTS) | st.sampled_from(NOT_MAPS), min_size=1, max_size=4)
)
def test_batch_parsing_of_maps_equals_parsing_one_by_one(texts):
    array = make_array(texts, pa.string())
    for parse in (file_table._split_plain_maps, file_table._parse_text_maps):
        together = parse(array)
        assert together is None or together.equals(one_by_one(texts))


def test_values_that_are_punctuation_are_kept():
    texts = ['{"a":",","b":":"}', '{"}{":","}', '{",":"","":","}']
    split = file_table._split_plain_maps(make_array(texts, pa.string()))
    assert split is not None
    assert split.equals(one_by_one(texts))


def test_maps_of_a_slice_are_those_of_its_texts():
    texts = ['{"a":"b"}', '{"c":"d"}', '{"e":"f","g":"h"}', "x"]
    split = file_table._split_plain_maps(make_array(texts, pa.string())[1:3])
    assert split is not None
    assert split.equals(one_by_one(texts[1:3]))


def test_maps_are_parsed_as_a_batch():
    """The test above would pass without a fast path."""
    plain = ['{"a":"b"}', '{"a":"","b c":"d,e"}']
    assert file_table._split_plain_maps(make_array(plain, pa.string())) is not None
    escaped = ["{}", '{"a":"\\n"}', '{"a":null}']
    assert file_table._parse_text_maps(make_array(escaped, pa.string())) is not None

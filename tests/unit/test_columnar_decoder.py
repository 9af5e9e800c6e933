"""Guards of the columnar decoder that random damage rarely reaches."""

import pytest

from arrowlog import testing
from arrowlog.decode.columnar_decoder import build_template, decode_matching_lines, merge_matches
from arrowlog.decode.decoder import LineBuffer, decode_buffer
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables import ACTIONS

COUNT = 60
DATA = testing.lines([testing.add(f"part-{i}", size=100 + i) for i in range(COUNT)])
SHAPE = build_template(DATA.split(b"\n")[0].decode(), ACTIONS)


def test_lines_of_one_template_all_match():
    found = merge_matches([decode_matching_lines(DATA, SHAPE)], COUNT)
    assert found.rows is None
    assert found.columns["path"].to_pylist() == [f"part-{i}" for i in range(COUNT)]


def test_byte_order_mark_makes_its_line_irregular():
    found = decode_matching_lines(b"\xef\xbb\xbf" + DATA, SHAPE)
    assert found.columns["path"].to_pylist() == [f"part-{i}" for i in range(1, COUNT)]
    assert found.odd_rows.tolist() == [0]
    assert found.odd == b"\xef\xbb\xbf" + DATA.splitlines(keepends=True)[0]


def test_carriage_return_does_not_end_a_line():
    joined = DATA.replace(b"\n", b"\r", 1)
    found = merge_matches([decode_matching_lines(joined, SHAPE)], COUNT - 1)
    assert found.odd == joined.split(b"\n")[0] + b"\n"
    window = LineBuffer(1 << 20)
    window.append("7.json", 7, joined)
    with pytest.raises(LogCorrupt) as caught:
        decode_buffer(window)
    assert (caught.value.file, caught.value.line) == ("7.json", 1)


def test_matches_of_pieces_are_merged_in_order():
    lines = DATA.splitlines(keepends=True)
    odd = b'{"add":{"path":"x","size":1,"modificationTime":1}}\n'
    pieces = [b"".join(lines[:30]), b"".join([*lines[30:45], odd, *lines[45:]])]
    found = merge_matches([decode_matching_lines(piece, SHAPE) for piece in pieces], COUNT + 1)
    assert found.rows.tolist() == [*range(45), *range(46, 61)]
    assert found.odd_rows.tolist() == [45]
    assert found.odd == odd

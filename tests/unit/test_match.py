"""Guards of the columnar decoder that random damage rarely reaches, each by itself."""

import pytest

from arrowlog import testing
from arrowlog.errors import LogCorrupt
from arrowlog.log.decode import decode
from arrowlog.log.match import match, together
from arrowlog.log.shape import shape_of
from arrowlog.log.window import Window

COUNT = 60
DATA = testing.lines([testing.add(f"part-{i}", size=100 + i) for i in range(COUNT)])
SHAPE = shape_of(DATA.split(b"\n")[0].decode())


def test_lines_of_one_shape_all_match():
    found = together([match(DATA, SHAPE)], COUNT)
    assert found.rows is None
    assert found.columns["path"].to_pylist() == [f"part-{i}" for i in range(COUNT)]


def test_bytes_that_are_in_no_field_are_not_passed_over():
    found = match(b"\xef\xbb\xbf" + DATA, SHAPE)  # the CSV parser drops a byte order mark
    assert not found.columns
    assert len(found.odd) == COUNT
    assert found.odd[0][1].startswith(b"\xef\xbb\xbf")


def test_a_carriage_return_does_not_end_a_line():
    joined = DATA.replace(b"\n", b"\r", 1)  # for the CSV parser there are still 60 lines
    assert together([match(joined, SHAPE)], COUNT - 1) is None
    window = Window(1 << 20)
    window.append("7.json", 7, joined)
    with pytest.raises(LogCorrupt) as caught:
        decode(window)
    assert (caught.value.file, caught.value.line) == ("7.json", 1)


def test_pieces_are_put_together_in_order():
    lines = DATA.splitlines(keepends=True)
    odd = b'{"add":{"path":"x","size":1,"modificationTime":1}}\n'
    pieces = [b"".join(lines[:30]), b"".join([*lines[30:45], odd, *lines[45:]])]
    found = together([match(piece, SHAPE) for piece in pieces], COUNT + 1)
    assert found.rows.to_list() == [*range(45), *range(46, 61)]
    assert found.odd == [(45, odd[:-1])]

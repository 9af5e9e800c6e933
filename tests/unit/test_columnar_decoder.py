"""Guards of the columnar decoder that random damage rarely reaches."""

import pytest

from arrowlog import testing
from arrowlog.decode import LineBuffer, decode_buffer
from arrowlog.decode.columnar_decoder import build_template, decode_matching_lines, merge_matches
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


def removes(version, count=COUNT):
    found = [testing.remove(f"part-{i}") for i in range(count)]
    for each in found:
        each["remove"]["deletionTimestamp"] = 1_700_000_000_000 + version
    return found


def decoded(window, data, version, *, columnar=True):
    window.clear()
    window.append(f"{version}.json", version, data)
    actions = decode_buffer(window, columnar=columnar)
    return {
        name: actions.table(name).sort_by("seq").select(["seq", "path"]).to_pylist()
        for name in ("add", "remove")
    } | {"times": actions.table("remove").sort_by("seq")["deletionTimestamp"].to_pylist()}


def test_templates_of_adds_and_removes_are_reused_across_files():
    window, known = LineBuffer(1 << 20), []
    for version in range(1, 5):
        data = DATA + testing.lines(removes(version))
        found = decoded(window, data, version)
        assert found == decoded(LineBuffer(1 << 20), data, version, columnar=False)
        assert set(found["times"]) == {1_700_000_000_000 + version}
        known.append(list(window.templates))
    # The time of the first file is a constant; that of the second differs, so it becomes a slot.
    assert [template.action for template in known[1]] == ["remove", "remove", "add"]
    assert known[2] == known[1]
    assert known[3] == known[1]


def test_alternating_lines_of_two_templates_are_decoded():
    adds, gone = DATA.splitlines(keepends=True), testing.lines(removes(3)).splitlines(keepends=True)
    data = b"".join(line for pair in zip(adds, gone, strict=True) for line in pair)
    found = decoded(LineBuffer(1 << 20), data, 3)
    assert found == decoded(LineBuffer(1 << 20), data, 3, columnar=False)
    assert len(found["add"]) == len(found["remove"]) == COUNT

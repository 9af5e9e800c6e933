"""Line splitting: cases that random damage to regular lines rarely reaches."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from arrowlog.decode import line_splitter
from arrowlog.decode.line_splitter import (
    LineLayout,
    adjacent_rows,
    contains_octets,
    count_control_characters,
    count_line_feeds,
    cut_lines,
    find_line_feeds,
    find_octets,
    split_blocks,
    split_lines,
    take_lines,
)


def layout() -> LineLayout:
    """Lines such as `a=1,const,bb=x!`: values behind `a=` and between `bb=` and `!`."""
    found = LineLayout()
    found.add_field(b"a=", b"")
    found.add_field(b"const", None)
    found.add_field(b"bb=", b"!")
    return found.close()


def cut(lines: list[bytes]) -> tuple[list[list[str]], list[int] | None]:
    data = b"".join(line + b"\n" for line in lines)
    found = split_lines(data, layout(), [[0], [1]], None)
    assert found.count == len(lines)
    rows = None if found.rows is None else found.rows.tolist()
    return [part.to_pylist() for part in found.values], rows


def test_values_are_extracted_from_every_line():
    lines = [b"a=1,const,bb=x!", b"a=,const,bb=!", b"a=22,const,bb=!!"]
    assert cut(lines) == ([["1", "", "22"], ["x", "", "!"]], None)


@pytest.mark.parametrize(
    "odd",
    [
        b"a=1,const",
        b"a=1,const,bb=x!,",
        b"a=1,consu,bb=x!",
        b"a=1,cons,bb=xx!",
        b"b=1,const,bb=x!",
        b"a=1,const,bb=x?",
        b"a=1,const,bb!",
        b"a=1,const,bb=",
        b"a,const,bb=x!",
        b'a=",const,bb=x!',
        b"a=1,const,bb=\\!",
        b"a=\x1f,const,bb=x!",
        b"a=1\r,const,bb=x!",
        b"\xef\xbb\xbfa=1,const,bb=x!",
        b"",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_only_the_irregular_line_is_left_out(odd, place):
    lines = [b"a=1,const,bb=x!", b"a=2,const,bb=y y!"]
    lines.insert(place, odd)
    rows = [row for row in range(3) if row != place]
    assert cut(lines) == ([["1", "2"], ["x", "y y"]], rows)


@pytest.mark.parametrize("odd", [[b"a=1", b"const,bb=x!"], [b"a=1,const", b"bb=x!"]])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_line_feed_in_place_of_a_comma_ends_a_line(odd, place):
    """The block has as many commas and line feeds as one without it, and every third is a feed."""
    lines = [b"a=1,const,bb=x!", b"a=2,const,bb=y!"]
    lines[place:place] = odd
    rows = [row for row in range(4) if row not in (place, place + 1)]
    assert cut(lines) == ([["1", "2"], ["x", "y"]], rows)
    assert cut(odd) == ([[], []], [])


def test_invalid_utf_8_is_refused():
    assert cut(["a=é,const,bb=x!".encode()]) == ([["é"], ["x"]], None)
    with pytest.raises(pa.ArrowInvalid):
        cut([b"a=\xff,const,bb=x!"])


def test_blocks_are_whole_lines(monkeypatch):
    monkeypatch.setattr(line_splitter, "_BLOCK_BYTES", 40)
    monkeypatch.setattr(line_splitter, "_BLOCK_MIN_LINES", 1)
    rng = random.Random(5)
    data = b"".join(b"x" * rng.randrange(60) + b"\n" for _ in range(200))
    blocks = list(split_blocks(data))
    assert len(blocks) > 20
    assert b"".join(blocks) == data
    assert all(block.endswith(b"\n") for block in blocks)


def test_octet_searches_equal_bytes_searches(monkeypatch):
    monkeypatch.setattr(line_splitter, "_SEARCHED_BYTES", 7)
    rng = random.Random(6)
    for _ in range(300):
        data = bytes(rng.choices(b".:/\n\tab", (2, 1, 1, 3, 1, 9, 9), k=rng.randrange(40)))
        octets = np.frombuffer(data, np.uint8)
        assert count_line_feeds(data) == data.count(b"\n")
        assert find_line_feeds(data).tolist() == [i for i, o in enumerate(data) if o == 10]
        assert cut_lines(data + b"\n").to_pylist() == (data + b"\n").splitlines(keepends=True)
        assert contains_octets(octets, ord(":")) == (b":" in data)
        for needle in (b":/", b".."):
            assert contains_octets(octets, *needle) == (needle in data)
            places = [i for i in range(len(data)) if data.startswith(needle, i)]
            assert find_octets(data, *needle).tolist() == places
        assert count_control_characters(data) == sum(octet < 32 for octet in data)


def test_runs_of_adjacent_rows():
    rng = random.Random(7)
    for _ in range(200):
        rows = sorted(rng.sample(range(30), rng.randrange(20)))
        runs = adjacent_rows(np.array(rows, np.int64))
        assert [row for start, stop in runs for row in range(start, stop)] == rows
        assert all(stop < later for (_, stop), (later, _) in itertools.pairwise(runs))


@pytest.mark.parametrize("most", [0, 2, 100])
def test_lines_are_extracted_in_runs_or_one_by_one(monkeypatch, most):
    monkeypatch.setattr(line_splitter, "_RUNS_MAX", most)
    lines = [b"x" * (number % 5) + b"\n" for number in range(40)]
    stops = np.cumsum(list(map(len, lines)))
    for rows in ([], [0], [39], [0, 1, 2, 10, 11, 39], list(range(0, 40, 3)), list(range(40))):
        taken = take_lines(b"".join(lines), stops, np.array(rows, np.int64))
        assert bytes(taken) == b"".join(lines[row] for row in rows)


@pytest.mark.parametrize("most", [0, 2, 100])
@pytest.mark.parametrize(
    "kinds", ["aaabbb", "bbbaaa", "abababab", "aabbbaabba", "b", "bbbb", "a" * 50 + "b" * 9]
)
def test_lines_of_another_layout_are_left_out_at_any_position(monkeypatch, most, kinds):
    monkeypatch.setattr(line_splitter, "_RUNS_MAX", most)
    lines = [
        b"a=%d,const,bb=x%d!" % (number, number) if kind == "a" else b"other,%d" % number
        for number, kind in enumerate(kinds)
    ]
    rows = [number for number, kind in enumerate(kinds) if kind == "a"]
    assert cut(lines) == ([[str(n) for n in rows], [f"x{n}" for n in rows]], rows)


def test_block_of_only_commas_finds_all_of_them(monkeypatch):
    monkeypatch.setattr(line_splitter, "_SEARCHED_BYTES", 16)
    assert cut([b",,,,,,,"] * 40 + [b"a=1,const,bb=x!"]) == ([["1"], ["x"]], [40])

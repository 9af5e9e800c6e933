"""Two ways into the buffer, one result: a file at a time in place, or many small ones together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowlog.errors import LogCorrupt
from arrowlog.log.envelope import wrap
from arrowlog.log.window import Window

LINES = st.sampled_from(
    [
        b'{"add":{"path":"a"}}',
        b'{"commitInfo":{}}',
        b"",
        b" ",
        b'{"add":1}',
        b"x",
        b"\r",
        b'{"remove":{}}',
    ]
)
FILES = st.lists(
    st.tuples(st.lists(LINES, min_size=1, max_size=5), st.booleans()).map(
        lambda found: b"\n".join(found[0]) + (b"\n" if found[1] else b"")
    ),
    max_size=6,
).map(lambda files: [text for text in files if text])


def content(window):
    return (
        bytes(window.data[: window.size]),
        window.names,
        window.versions,
        window.lines,
        window.kept,
        window.firsts,
        window.apart,
    )


@given(FILES)
def test_both_ways_give_the_same(texts):
    names = [f"{number}.json" for number in range(len(texts))]
    one, many = Window(1 << 20), Window(1 << 20)
    for number, text in enumerate(texts):
        one.append(names[number], number, text)
    many.extend(names, list(range(len(texts))), texts)
    assert content(one) == content(many)


@given(FILES)
def test_no_line_is_lost(texts):
    window = Window(1 << 20)
    window.extend([str(n) for n in range(len(texts))], list(range(len(texts))), texts)
    kept = bytes(window.data[: window.size]).split(b"\n")[:-1]
    expected = []
    for text in texts:
        expected += (text if text.endswith(b"\n") else text + b"\n").split(b"\n")[:-1]
    assert sorted([*kept, *(text for _, _, text in window.apart)]) == sorted(expected)
    assert sum(window.lines) == len(expected)
    assert sum(window.kept) == len(kept)


def test_files_are_unpacked_and_the_buffer_is_used_again():
    window = Window(1 << 20)
    big = b'{"add":{"path":"a"}}\n' * 20_000
    window.fill(["a", "b"], [1, 2], [wrap(big, "gzip"), wrap(big, "zstd")])
    assert window.size == 2 * len(big)
    before = window.data
    window.clear()
    window.append("c", 3, big)
    assert window.data is before
    assert content(window)[0] == big


def test_a_file_beyond_the_limit_is_refused():
    with pytest.raises(LogCorrupt, match="more than 10 bytes"):
        Window(10).append("f", 0, b"x" * 11)
    with pytest.raises(LogCorrupt, match="empty"):
        Window(10).append("f", 0, b"")

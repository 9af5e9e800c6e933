"""The line buffer: adding files one by one or many small ones at once gives the same content."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowlog.decode import SEQ_LINE_BITS, LineBuffer
from arrowlog.decode import line_buffer as window_module
from arrowlog.errors import LogCorrupt
from arrowlog.formats.indextables.compression import compress, crc32

SUMMED = b'{"commitInfo":{"checksum":"crc32:00000000"}}'
LINES = st.sampled_from(
    [
        b'{"add":{"path":"a"}}',
        b'{"commitInfo":{}}',
        SUMMED,
        b"",
        b" ",
        b'{"add":1}',
        b"x",
        b"\r",
        b'{"remove":{}}',
        '{"add":"ü\u2028"}'.encode(),
    ]
)
FILES = st.lists(
    st.tuples(
        st.lists(LINES, min_size=1, max_size=5),
        st.booleans(),
        st.sampled_from(["none", "none", "gzip", "zstd"]),
    ).map(lambda found: (b"\n".join(found[0]) + (b"\n" if found[1] else b""), found[2])),
    max_size=20,
).map(lambda files: [(text, codec) for text, codec in files if text])


def ended(text):
    return text if text.endswith(b"\n") else text + b"\n"


def kept(window):
    """The lines left in the buffer, by number."""
    numbers = [number for some in window.seq_numbers for number in some.to_pylist()]
    with window.view as view:
        texts = bytes(view).split(b"\n")[:-1]
    assert numbers == sorted(numbers)
    return dict(zip(numbers, texts, strict=True))


def separated(window):
    """The lines that were separated from the adds, by sequence number."""
    found = {}
    for some in window.non_add_lines:
        texts = some.lines.to_pylist()
        assert all(text.endswith(b"\n") for text in texts)
        found |= dict(zip(some.seq.to_pylist(), (text[:-1] for text in texts), strict=True))
    return found


def expected(texts):
    lines = [ended(text).split(b"\n")[:-1] for text in texts]
    return {
        (file << SEQ_LINE_BITS) + number: line
        for file, found in enumerate(lines)
        for number, line in enumerate(found, 1)
    }


def sums(texts):
    heads = [ended(text).partition(b"\n") for text in texts]
    return {
        file: crc32(rest)
        for file, (head, _, rest) in enumerate(heads)
        if b'"checksum":"crc32:' in head
    }


def check(window, names, texts):
    assert kept(window) | separated(window) == expected(texts)
    assert not kept(window).keys() & separated(window).keys()
    assert window.kept == len(kept(window))
    assert window.lines == [ended(text).count(b"\n") for text in texts]
    assert window.names == names
    assert window.versions == list(range(len(texts)))
    assert window.sums == sums(texts)


@given(FILES)
def test_append_loses_no_line(files):
    window, names = LineBuffer(1 << 20), [f"{number}.json" for number in range(len(files))]
    for number, (text, _) in enumerate(files):
        window.append(names[number], number, text)
    check(window, names, [text for text, _ in files])


@given(FILES, st.integers(0, 20))
def test_fill_loses_no_line_and_separates_non_adds(files, cut):
    window, names = LineBuffer(1 << 20), [f"{number}.json" for number in range(len(files))]
    raws = [compress(text, codec) for text, codec in files]
    for part in (slice(0, cut), slice(cut, None)):
        ends = list(accumulate(map(len, raws[part])))
        numbers = list(range(len(files)))[part]
        window.put(names[part], numbers, b"".join(raws[part]), ends)
    check(window, names, [text for text, _ in files])
    if cut == 0 and len(files) >= 8:
        assert all(line.startswith(b'{"add":') for line in kept(window).values())
        assert not any(line.startswith(b'{"add":') for line in separated(window).values())


@given(st.lists(FILES, max_size=2), st.integers(8, 12), st.sampled_from([0, 8, 1 << 11]))
def test_files_collected_in_its_own_memory_lose_no_line(batches, plain, moved):
    """Adds are moved together in that memory, which is used again for the next files."""
    window, texts = LineBuffer(1 << 20), []
    add, remove = b'{"add":{"path":"%d"}}\n', b'{"remove":{"path":"%d"}}\n'
    many = [b'{"commitInfo":{}}\n' + add % n + remove % n + 2 * add % (n, n) for n in range(plain)]
    many = [(text, "none") for text in many]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "_MOVED_BYTES_MIN", moved)
        for files in (*batches, many, many[::-1], *batches):
            raws = [compress(text, codec) for text, codec in files]
            ends = list(accumulate(map(len, raws), initial=0))
            stage = window.staging_memory(1 << 14)
            stage[: ends[-1]] = b"".join(raws)
            numbers = list(range(len(texts), len(texts) + len(files)))
            names = [f"{number}.json" for number in numbers]
            window.put(names, numbers, stage[: ends[-1]], ends[1:])
            texts += [text for text, _ in files]
    check(window, [f"{number}.json" for number in range(len(texts))], texts)


@given(FILES)
def test_fill_beyond_the_limit_appends_one_by_one(files):
    names = [f"{number}.json" for number in range(len(files))]
    raws = [compress(text, codec) for text, codec in files]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "_BATCH_MAX_BYTES", 40)
        window = LineBuffer(1 << 20)
        window.put(names, list(range(len(files))), b"".join(raws), list(accumulate(map(len, raws))))
    check(window, names, [text for text, _ in files])


@given(FILES, FILES, FILES)
def test_append_and_fill_can_be_mixed(first, then, last):
    window = LineBuffer(1 << 20)
    files = [text for text, _ in (*first, *then, *last)]
    names = [f"{number}.json" for number in range(len(files))]
    for number, (text, _) in enumerate(first):
        window.append(names[number], number, text)
    part = slice(len(first), len(first) + len(then))
    texts = [text for text, _ in then]
    ends = list(accumulate(map(len, texts)))
    window.put(names[part], list(range(len(files)))[part], b"".join(texts), ends)
    for number in range(part.stop, len(files)):
        window.append(names[number], number, files[number])
    check(window, names, files)


def test_files_are_decompressed_and_the_buffer_is_reused():
    window = LineBuffer(1 << 20)
    big = b'{"add":{"path":"a"}}\n' * 20_000
    raws = [compress(big, "gzip"), compress(big, "zstd"), big]
    window.fill(["a", "b", "c"], [1, 2, 3], raws)
    assert window.size == 3 * len(big)
    before = window.data
    window.clear()
    window.append("c", 3, big)
    assert window.data is before
    assert bytes(window.view) == big


def test_file_beyond_the_limit_is_refused():
    with pytest.raises(LogCorrupt, match="more than 10 bytes"):
        LineBuffer(10).append("f", 0, b"x" * 11)
    with pytest.raises(LogCorrupt, match="empty"):
        LineBuffer(10).append("f", 0, b"")


@pytest.mark.parametrize(("wrong", "told"), [(b"x" * 11, "more than 10 bytes"), (b"", "empty")])
@pytest.mark.parametrize("at", [0, 5, 11])
def test_invalid_file_among_many_is_named(wrong, told, at):
    raws = [b"x" * 9 + b"\n"] * 12
    raws[at] = wrong
    names = [str(number) for number in range(12)]
    with pytest.raises(LogCorrupt, match=told) as caught:
        LineBuffer(10).put(names, list(range(12)), b"".join(raws), list(accumulate(map(len, raws))))
    assert caught.value.file == str(at)

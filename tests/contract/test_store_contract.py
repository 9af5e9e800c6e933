"""What every store must do, whatever it is made of."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.waiting import SECONDS_MAX

from arrowlog.decode.decoder import SEQ_LINE_BITS, LineBuffer
from arrowlog.errors import ArrowlogError, LogCorrupt, StoreUnavailable
from arrowlog.formats.indextables.compression import CODEC_BYTES, compress, decompress
from arrowlog.storage import LocalStore, PutOutcome, open_store
from arrowlog.storage.fsspec_store import FsspecStore, MemoryStore

LOG = "_transaction_log"
ENOUGH = 1 << 30
LIMIT = 1 << 22


def log(size):
    """A log file of exactly so many bytes: adds, the last of them filled up."""
    line = b'{"add":{"path":"x","size":1,"modificationTime":1}}\n'
    count = max(size // len(line) - 1, 0)
    rest = size - count * len(line)
    head, tail = b'{"add":{"path":"', b'","size":1,"modificationTime":1}}\n'
    fill = rest - len(head) - len(tail)
    data = line * count + (head + b"y" * fill + tail if fill >= 0 else b"{" * rest)
    assert len(data) == size
    return data


def restored(window):
    """The files in a window, put together again from what was left in and what was set apart."""
    with window.view as view:
        kept = bytes(view).split(b"\n")[:-1]
    apart = {
        divmod(seq, 1 << SEQ_LINE_BITS): text[:-1]
        for some in window.non_add_lines
        for seq, text in zip(some.seq.to_pylist(), some.lines.to_pylist(), strict=True)
    }
    files = []
    for file, lines in enumerate(window.lines):
        texts = [
            apart.pop((file, line)) if (file, line) in apart else kept.pop(0)
            for line in range(1, lines + 1)
        ]
        files.append(b"".join(text + b"\n" for text in texts))
    assert not kept
    assert not apart
    return files


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 300_000])
def test_get_gives_all_bytes(place, size):
    data = os.urandom(size)
    place.put("a/b", data)
    found = place.store.get("a/b")
    assert type(found) is bytes
    assert found == data


def test_put_or_find_creates_once_and_finds_nothing_but_what_is_there(place):
    put, key = place.store.put_or_find, f"{LOG}/1"
    assert put(key, b"first") == (PutOutcome.DONE, None)
    outcome, found = put(key, b"second")
    assert outcome is PutOutcome.EXISTS
    assert found in (None, b"first")
    assert place.store.get(key) == b"first"


@pytest.mark.parametrize("name", ["with space", "ü", "a=b%20c", "#1", "a?b", "[x]*", "a:b"])
def test_names_are_taken_as_they_are(place, name):
    place.put(f"{LOG}/{name}", b"1")
    assert place.store.get(f"{LOG}/{name}") == b"1"
    assert place.store.list_from(LOG) == [name]


@pytest.mark.parametrize("key", ["missing", "missing/too", "there/file/below"])
def test_what_is_missing_is_not_found(place, key):
    place.put("there/file", b"1")
    with pytest.raises(FileNotFoundError):
        place.store.get(key)
    with pytest.raises(FileNotFoundError):
        place.store.get_many(["there/file", key, "there/file"])
    with pytest.raises(FileNotFoundError):
        place.store.read_into(LineBuffer(LIMIT), ["there/file", key], [0, 1], ENOUGH)


def test_reading_a_folder_is_an_error_of_ours_or_not_found(place):
    place.put("folder/file", b"1")
    with pytest.raises((ArrowlogError, FileNotFoundError)):
        place.store.get("folder")
    with pytest.raises((ArrowlogError, FileNotFoundError)):
        place.store.read_into(LineBuffer(LIMIT), ["folder"], [0], ENOUGH)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 70_000), (5, 65_541), (69_999, 70_000)])
def test_a_part_of_an_object_is_read(place, start, stop):
    data = os.urandom(70_000)
    place.put("a/b", data)
    found = place.store.get_range("a/b", start, stop)
    assert type(found) is bytes
    assert found == data[start:stop]
    with pytest.raises(FileNotFoundError):
        place.store.get_range("a/missing", start, stop)


def test_get_many_keeps_the_order_and_repeats(place):
    place.put_many({f"k/{number}": str(number).encode() for number in range(50)})
    order = [*range(49, -1, -1), 7, 7]
    assert place.store.get_many([f"k/{n}" for n in order]) == [str(n).encode() for n in order]


@pytest.mark.parametrize("count", [0, 1])
def test_get_many_of_few(place, count):
    place.put("k", b"1")
    assert place.store.get_many(["k"] * count) == [b"1"] * count


@pytest.mark.promise("storage.same_contract")
def test_listing_is_sorted_and_has_only_what_is_directly_in_the_folder(place):
    for name in ("b", "a", "10", "9", "sub/inner", "ab", "_last"):
        place.put(f"{LOG}/{name}", b"1")
    place.put("elsewhere", b"1")
    assert place.store.list_from(LOG) == ["10", "9", "_last", "a", "ab", "b", "sub"]


@pytest.mark.parametrize(
    ("start", "names"),
    [("", ["1", "2", "3"]), ("2", ["2", "3"]), ("20", ["3"]), ("0", ["1", "2", "3"]), ("4", [])],
)
def test_listing_may_begin_at_a_name(place, start, names):
    for name in ("3", "1", "2"):
        place.put(f"{LOG}/{name}", b"1")
    assert place.store.list_from(LOG, start) == names


def test_the_root_can_be_listed(place):
    place.put("one", b"1")
    place.put("folder/two", b"22")
    assert place.store.list_from("") == ["folder", "one"]
    assert place.store.list_from("", "g") == ["one"]
    assert place.store.stats_from("")["one"].size == 1


def test_a_missing_folder_is_an_empty_listing(place):
    assert place.store.list_from(LOG) == []
    assert place.store.list_from("no/such") == []


def test_a_listing_sees_what_came_after_the_last_one(place):
    place.put(f"{LOG}/1", b"1")
    assert place.store.list_from(LOG) == ["1"]
    place.put(f"{LOG}/2", b"1")
    assert place.store.list_from(LOG) == ["1", "2"]
    assert place.store.get(f"{LOG}/2") == b"1"


def test_stat_tells_size_and_time(place):
    place.put("k", b"12345")
    found = place.store.stat("k")
    assert found.size == 5
    assert found.mtime_ms > 1_600_000_000_000
    assert found == place.store.stat("k")


def test_stat_tells_when_an_object_was_replaced(place):
    place.put("k", b"12345")
    before = place.store.stat("k")
    place.put("k", b"123456")
    assert place.store.stat("k") != before


def test_stat_of_what_is_missing_is_none(place):
    place.put("there", b"1")
    assert place.store.stat("missing") is None
    assert place.store.stat("no/such") is None
    assert place.store.stat("there/below") is None


@pytest.mark.parametrize("codec", ["none", *sorted(CODEC_BYTES)])
@pytest.mark.parametrize("size", [1, 4095, 4096, 8192, 65535, 65536, 65537, 300_000])
def test_reading_into_a_window_gives_what_get_gives(place, size, codec):
    data = log(size)
    place.put("k", compress(data, codec))
    window = LineBuffer(LIMIT)
    assert place.store.read_into(window, ["k"], [7], ENOUGH) == (1, len(place.store.get("k")))
    ended = data if data.endswith(b"\n") else data + b"\n"
    assert restored(window) == [ended]
    assert decompress(place.store.get("k"), "k", LIMIT) == data
    assert (window.names, window.versions) == (["k"], [7])


@pytest.mark.parametrize("size", [65535, 65536, 65537, 300_000])
def test_a_file_that_fills_what_was_read_at_once_on_disk(place, size):
    place.put("k", os.urandom(size - 1).replace(b"\n", b"x") + b"\n")
    place.put("k", b"{" + place.store.get("k")[1:])
    window = LineBuffer(LIMIT)
    assert place.store.read_into(window, ["k"], [0], ENOUGH) == (1, size)
    assert restored(window) == [place.store.get("k")]


def test_many_files_of_all_kinds_go_into_one_window_in_order(place):
    sizes = [300_000, 1, 65536, 100, 65537, 65535, 200_000, 300_000]
    codecs = ["none", "none", "gzip", "zstd", "none", "lz4", "gzip", "gzip"]
    keys = [f"k/{number}" for number in range(len(sizes))]
    for key, size, codec in zip(keys, sizes, codecs, strict=True):
        place.put(key, compress(log(size), codec))
    window = LineBuffer(LIMIT)
    for _ in range(2):  # a window is used again
        window.clear()
        place.store.read_into(window, keys, range(8), ENOUGH)
        assert restored(window) == [log(s) if s > 1 else b"{\n" for s in sizes]
        assert window.names == keys
        assert window.versions == list(range(8))


def test_a_file_without_a_last_line_break_does_not_run_into_the_next(place):
    place.put("a", log(1000)[:-1])
    place.put("b", log(500))
    window = LineBuffer(LIMIT)
    place.store.read_into(window, ["a", "b", "a"], [0, 1, 2], ENOUGH)
    assert restored(window) == [log(1000), log(500), log(1000)]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("codec", ["none", *sorted(CODEC_BYTES)])
def test_an_empty_file_is_refused_with_its_name(place, codec, before):
    place.put("full", log(200))
    place.put("empty", compress(b"", codec))
    keys = ["full"] * before + ["empty"]
    with pytest.raises(LogCorrupt) as caught:
        place.store.read_into(LineBuffer(LIMIT), keys, range(len(keys)), ENOUGH)
    assert caught.value.file == "empty"


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_file_above_the_limit_is_refused_with_its_name(place, codec):
    place.put("k", compress(log(10_000), codec))
    with pytest.raises(LogCorrupt, match="more than 9999 bytes") as caught:
        place.store.read_into(LineBuffer(9_999), ["k"], [0], ENOUGH)
    assert caught.value.file == "k"
    place.store.read_into(LineBuffer(10_000), ["k"], [0], ENOUGH)


@pytest.mark.promise("storage.gives_up_in_time")
@pytest.mark.parametrize("count", [1, 3])
def test_reads_that_take_too_long_are_given_up(count):
    """The error must come while the store still hangs, not when it has answered after all."""
    release = threading.Event()

    class Hanging(FsspecStore):
        def get(self, key):
            release.wait(SECONDS_MAX)
            return b""

    store = Hanging("memory://hanging", {}, 2, 0.05)
    with ThreadPoolExecutor(1) as pool:
        try:
            answer = pool.submit(store.get_many, [str(n) for n in range(count)])
            error = answer.exception(timeout=SECONDS_MAX / 2)
        finally:
            release.set()
    assert isinstance(error, StoreUnavailable)
    assert "timeoutSeconds" in str(error)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("{}", LocalStore),
        ("file://{}", LocalStore),
        ("file://localhost{}", LocalStore),
        ("local://{}", LocalStore),
        ("memory://{}", MemoryStore),
    ],
)
def test_an_address_finds_its_store(tmp_path, uri, kind):
    found = open_store(uri.format(tmp_path))
    assert type(found) is kind
    if kind is LocalStore:
        assert found.root == str(tmp_path)


@pytest.mark.parametrize("uri", ["", "  ", "a\0b", "nosuchprotocol://x"])
def test_an_address_without_a_store_is_refused(uri):
    with pytest.raises(ArrowlogError):
        open_store(uri)


def test_a_window_is_filled_until_it_has_enough(place):
    keys = [f"many/{number:03d}" for number in range(300)]
    place.put_many(dict.fromkeys(keys, b"x" * 999 + b"\n"))
    window, done = LineBuffer(LIMIT), 0
    while done < len(keys):
        window.clear()
        count, size = place.store.read_into(window, keys[done:], list(range(done, 300)), 10_000)
        assert count > 0
        assert size == count * 1000
        assert window.names == keys[done : done + count]
        done += count


ODD = ["day=2024-01-01/a b.parquet", "p=a%2Fb/ü.parquet", "x=1/y=/[z]*?.bin", "#1/a:b&c+d.bin"]


def test_walking_finds_every_object_at_any_depth(place):
    assert place.store.walk().num_rows == 0
    keys = [*ODD, "top", f"{LOG}/00000000000000000000.json", f"{LOG}/_checkpoints/x", "a/b/c/d/e"]
    place.put_many({key: key.encode() for key in keys})
    found = place.store.walk()
    assert sorted(found["key"].to_pylist()) == sorted(keys)
    sizes = dict(zip(found["key"].to_pylist(), found["size"].to_pylist(), strict=True))
    assert sizes == {key: len(key.encode()) for key in keys}
    for key, time in zip(found["key"].to_pylist(), found["mtime_ms"].to_pylist(), strict=True):
        assert abs(place.store.stat(key).mtime_ms - time) < 2000, key


def test_what_was_walked_can_be_deleted_whatever_its_name(place):
    place.put_many(dict.fromkeys(ODD, b"1"))
    place.put("stays", b"1")
    found = place.store.walk()["key"].to_pylist()
    place.store.delete([key for key in found if key != "stays"])
    assert place.store.walk()["key"].to_pylist() == ["stays"]


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
def test_a_file_becomes_an_object(place, tmp_path, size):
    data = os.urandom(size)
    with open(tmp_path / "draft", "w+b") as file:
        file.write(data)
        place.store.replace_from("a/b=c d/e", file)
    assert place.read("a/b=c d/e") == data


def test_walking_goes_beyond_a_page(place):
    keys = {f"folder/{number:05d}" for number in range(1_050)}
    place.put_many(dict.fromkeys(keys, b"1"))
    assert set(place.store.walk()["key"].to_pylist()) == keys


def test_walking_stays_inside_the_root(place):
    place.put("in", b"1")
    beside = place.again()
    outer = open_store(f"{place.uri}-beside", place.options)
    outer.replace("out", b"1")
    assert beside.walk()["key"].to_pylist() == ["in"]


def test_walking_a_disk_follows_no_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"1")
    root = tmp_path / "table"
    root.mkdir()
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere" / "file")
    (root / "file").write_bytes(b"1")
    assert LocalStore(str(root)).walk()["key"].to_pylist() == ["file"]

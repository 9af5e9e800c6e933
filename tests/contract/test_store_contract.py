"""The read contract of every store."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.waiting import SECONDS_MAX

from arrowlog.decode import SEQ_LINE_BITS, LineBuffer
from arrowlog.errors import ArrowlogError, LogCorrupt, StoreUnavailable
from arrowlog.formats.indextables.compression import CODEC_BYTES, compress, decompress
from arrowlog.storage import LocalStore, PutOutcome, open_store
from arrowlog.storage.fsspec_store import FsspecStore, MemoryStore

LOG = "_transaction_log"
ENOUGH = 1 << 30
LIMIT = 1 << 22


def log(size):
    """A log file of exactly this many bytes: adds, the last one padded."""
    line = b'{"add":{"path":"x","size":1,"modificationTime":1}}\n'
    count = max(size // len(line) - 1, 0)
    rest = size - count * len(line)
    head, tail = b'{"add":{"path":"', b'","size":1,"modificationTime":1}}\n'
    fill = rest - len(head) - len(tail)
    data = line * count + (head + b"y" * fill + tail if fill >= 0 else b"{" * rest)
    assert len(data) == size
    return data


def restored(window):
    """The files in a line buffer, reassembled from its lines and the lines set apart."""
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


def test_put_or_find_creates_once_and_returns_the_existing_bytes(place):
    put, key = place.store.put_or_find, f"{LOG}/1"
    assert put(key, b"first") == (PutOutcome.DONE, None)
    outcome, found = put(key, b"second")
    assert outcome is PutOutcome.EXISTS
    assert found in (None, b"first")
    assert place.store.get(key) == b"first"


@pytest.mark.parametrize("name", ["with space", "ü", "a=b%20c", "#1", "a?b", "[x]*", "a:b"])
def test_special_characters_in_names_are_read_verbatim(place, name):
    place.put(f"{LOG}/{name}", b"1")
    assert place.store.get(f"{LOG}/{name}") == b"1"
    assert place.store.list_from(LOG) == [name]


@pytest.mark.parametrize("key", ["missing", "missing/too", "there/file/below"])
def test_missing_objects_raise_file_not_found(place, key):
    place.put("there/file", b"1")
    with pytest.raises(FileNotFoundError):
        place.store.get(key)
    with pytest.raises(FileNotFoundError):
        place.store.get_many(["there/file", key, "there/file"])
    with pytest.raises(FileNotFoundError):
        place.store.read_into(LineBuffer(LIMIT), ["there/file", key], [0, 1], ENOUGH)


def test_reading_a_folder_raises(place):
    place.put("folder/file", b"1")
    with pytest.raises((ArrowlogError, FileNotFoundError)):
        place.store.get("folder")
    with pytest.raises((ArrowlogError, FileNotFoundError)):
        place.store.read_into(LineBuffer(LIMIT), ["folder"], [0], ENOUGH)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 70_000), (5, 65_541), (69_999, 70_000)])
def test_get_range_reads_a_part_of_an_object(place, start, stop):
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
def test_get_many_of_zero_to_few_keys(place, count):
    place.put("k", b"1")
    assert place.store.get_many(["k"] * count) == [b"1"] * count


@pytest.mark.promise("storage.same_contract")
def test_listing_is_sorted_and_not_recursive(place):
    for name in ("b", "a", "10", "9", "sub/inner", "ab", "_last"):
        place.put(f"{LOG}/{name}", b"1")
    place.put("elsewhere", b"1")
    assert place.store.list_from(LOG) == ["10", "9", "_last", "a", "ab", "b", "sub"]


@pytest.mark.parametrize(
    ("start", "names"),
    [("", ["1", "2", "3"]), ("2", ["2", "3"]), ("20", ["3"]), ("0", ["1", "2", "3"]), ("4", [])],
)
def test_listing_starts_at_a_name(place, start, names):
    for name in ("3", "1", "2"):
        place.put(f"{LOG}/{name}", b"1")
    assert place.store.list_from(LOG, start) == names


def test_root_can_be_listed(place):
    place.put("one", b"1")
    place.put("folder/two", b"22")
    assert place.store.list_from("") == ["folder", "one"]
    assert place.store.list_from("", "g") == ["one"]
    assert place.store.stats_from("")["one"].size == 1


def test_listing_a_missing_folder_is_empty(place):
    assert place.store.list_from(LOG) == []
    assert place.store.list_from("no/such") == []


def test_listing_includes_objects_added_since_the_last_listing(place):
    place.put(f"{LOG}/1", b"1")
    assert place.store.list_from(LOG) == ["1"]
    place.put(f"{LOG}/2", b"1")
    assert place.store.list_from(LOG) == ["1", "2"]
    assert place.store.get(f"{LOG}/2") == b"1"


def test_stat_returns_size_and_time(place):
    place.put("k", b"12345")
    found = place.store.stat("k")
    assert found.size == 5
    assert found.mtime_ms > 1_600_000_000_000
    assert found == place.store.stat("k")


def test_stat_changes_when_an_object_is_replaced(place):
    place.put("k", b"12345")
    before = place.store.stat("k")
    place.put("k", b"123456")
    assert place.store.stat("k") != before


def test_stat_of_a_missing_object_is_none(place):
    place.put("there", b"1")
    assert place.store.stat("missing") is None
    assert place.store.stat("no/such") is None
    assert place.store.stat("there/below") is None


@pytest.mark.parametrize("codec", ["none", *sorted(CODEC_BYTES)])
@pytest.mark.parametrize("size", [1, 4095, 4096, 8192, 65535, 65536, 65537, 300_000])
def test_read_into_returns_the_same_bytes_as_get(place, size, codec):
    data = log(size)
    place.put("k", compress(data, codec))
    window = LineBuffer(LIMIT)
    assert place.store.read_into(window, ["k"], [7], ENOUGH) == (1, len(place.store.get("k")))
    ended = data if data.endswith(b"\n") else data + b"\n"
    assert restored(window) == [ended]
    assert decompress(place.store.get("k"), "k", LIMIT) == data
    assert (window.names, window.versions) == (["k"], [7])


@pytest.mark.parametrize("size", [65535, 65536, 65537, 300_000])
def test_read_into_of_files_at_the_local_read_size(place, size):
    place.put("k", os.urandom(size - 1).replace(b"\n", b"x") + b"\n")
    place.put("k", b"{" + place.store.get("k")[1:])
    window = LineBuffer(LIMIT)
    assert place.store.read_into(window, ["k"], [0], ENOUGH) == (1, size)
    assert restored(window) == [place.store.get("k")]


def test_read_into_keeps_the_order_of_mixed_codecs_and_sizes(place):
    sizes = [300_000, 1, 65536, 100, 65537, 65535, 200_000, 300_000]
    codecs = ["none", "none", "gzip", "zstd", "none", "lz4", "gzip", "gzip"]
    keys = [f"k/{number}" for number in range(len(sizes))]
    for key, size, codec in zip(keys, sizes, codecs, strict=True):
        place.put(key, compress(log(size), codec))
    window = LineBuffer(LIMIT)
    for _ in range(2):  # a line buffer is reused
        window.clear()
        place.store.read_into(window, keys, range(8), ENOUGH)
        assert restored(window) == [log(s) if s > 1 else b"{\n" for s in sizes]
        assert window.names == keys
        assert window.versions == list(range(8))


def test_file_without_trailing_newline_does_not_merge_with_the_next(place):
    place.put("a", log(1000)[:-1])
    place.put("b", log(500))
    window = LineBuffer(LIMIT)
    place.store.read_into(window, ["a", "b", "a"], [0, 1, 2], ENOUGH)
    assert restored(window) == [log(1000), log(500), log(1000)]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("codec", ["none", *sorted(CODEC_BYTES)])
def test_empty_file_raises_with_its_name(place, codec, before):
    place.put("full", log(200))
    place.put("empty", compress(b"", codec))
    keys = ["full"] * before + ["empty"]
    with pytest.raises(LogCorrupt) as caught:
        place.store.read_into(LineBuffer(LIMIT), keys, range(len(keys)), ENOUGH)
    assert caught.value.file == "empty"


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_file_above_the_size_limit_raises_with_its_name(place, codec):
    place.put("k", compress(log(10_000), codec))
    with pytest.raises(LogCorrupt, match="more than 9999 bytes") as caught:
        place.store.read_into(LineBuffer(9_999), ["k"], [0], ENOUGH)
    assert caught.value.file == "k"
    place.store.read_into(LineBuffer(10_000), ["k"], [0], ENOUGH)


@pytest.mark.promise("storage.gives_up_in_time")
@pytest.mark.parametrize("count", [1, 3])
def test_hanging_reads_time_out(count):
    """The error must be raised while the store still hangs, not after it has responded."""
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
def test_uri_scheme_selects_the_store(tmp_path, uri, kind):
    found = open_store(uri.format(tmp_path))
    assert type(found) is kind
    if kind is LocalStore:
        assert found.root == str(tmp_path)


@pytest.mark.parametrize("uri", ["", "  ", "a\0b", "nosuchprotocol://x"])
def test_invalid_uri_is_refused(uri):
    with pytest.raises(ArrowlogError):
        open_store(uri)


def test_read_into_stops_at_the_byte_budget(place):
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


def test_walk_finds_objects_at_any_depth(place):
    assert place.store.walk().num_rows == 0
    keys = [*ODD, "top", f"{LOG}/00000000000000000000.json", f"{LOG}/_checkpoints/x", "a/b/c/d/e"]
    place.put_many({key: key.encode() for key in keys})
    found = place.store.walk()
    assert sorted(found["key"].to_pylist()) == sorted(keys)
    sizes = dict(zip(found["key"].to_pylist(), found["size"].to_pylist(), strict=True))
    assert sizes == {key: len(key.encode()) for key in keys}
    for key, time in zip(found["key"].to_pylist(), found["mtime_ms"].to_pylist(), strict=True):
        assert abs(place.store.stat(key).mtime_ms - time) < 2000, key


def test_walked_keys_with_special_characters_can_be_deleted(place):
    place.put_many(dict.fromkeys(ODD, b"1"))
    place.put("stays", b"1")
    found = place.store.walk()["key"].to_pylist()
    place.store.delete([key for key in found if key != "stays"])
    assert place.store.walk()["key"].to_pylist() == ["stays"]


@pytest.mark.parametrize("size", [0, 1, 5 << 20])
def test_replace_from_uploads_a_file(place, tmp_path, size):
    data = os.urandom(size)
    with open(tmp_path / "draft", "w+b") as file:
        file.write(data)
        place.store.replace_from("a/b=c d/e", file)
    assert place.read("a/b=c d/e") == data


def test_walk_reads_all_pages(place):
    keys = {f"folder/{number:05d}" for number in range(1_050)}
    place.put_many(dict.fromkeys(keys, b"1"))
    assert set(place.store.walk()["key"].to_pylist()) == keys


def test_walk_stays_inside_the_root(place):
    place.put("in", b"1")
    beside = place.again()
    outer = open_store(f"{place.uri}-beside", place.options)
    outer.replace("out", b"1")
    assert beside.walk()["key"].to_pylist() == ["in"]


def test_walk_of_a_local_disk_follows_no_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"1")
    root = tmp_path / "table"
    root.mkdir()
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere" / "file")
    (root / "file").write_bytes(b"1")
    assert LocalStore(str(root)).walk()["key"].to_pylist() == ["file"]

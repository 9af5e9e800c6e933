"""The write contract of every store: a new object appears complete, once, for one writer."""

import os
import threading

import pytest

from arrowlog.formats.indextables import LOG_FOLDER
from arrowlog.storage import PutOutcome

LOG = "_transaction_log"
NAMES = [
    "with space",
    "ü",
    "a=b%20c",
    "#1",
    "a?b",
    "[x]*",
    "a:b",
    "a+b",
    "a&b",
    "'\"",
    "$~!",
    "<a>",
]


@pytest.mark.parametrize("size", [0, 1, 65_536, 1 << 20, 10_000_000])
def test_put_if_absent_writes_the_whole_object(place, size):
    data = os.urandom(size)
    assert place.store.put_if_absent("k", data) is PutOutcome.DONE
    assert place.read("k") == data
    assert place.store.get("k") == data
    assert place.store.stat("k").size == size


@pytest.mark.promise("storage.same_contract")
@pytest.mark.parametrize("data", [b"", b"mine", b"mine" * 500_000])
def test_put_if_absent_never_overwrites(place, data):
    place.put("k", b"theirs")
    before = place.store.stat("k")
    assert place.store.put_if_absent("k", data) is PutOutcome.EXISTS
    assert place.read("k") == b"theirs"
    assert place.store.stat("k") == before


def test_empty_object_counts_as_existing(place):
    assert place.store.put_if_absent("k", b"") is PutOutcome.DONE
    assert place.store.put_if_absent("k", b"1") is PutOutcome.EXISTS
    assert place.store.get("k") == b""


def test_first_of_two_puts_wins_across_store_instances(place):
    other = place.again()
    assert place.store.put_if_absent("k", b"first") is PutOutcome.DONE
    assert other.put_if_absent("k", b"second") is PutOutcome.EXISTS
    assert place.store.put_if_absent("k", b"first") is PutOutcome.EXISTS
    assert other.put_if_absent("k2", b"first") is PutOutcome.DONE
    assert place.store.put_if_absent("k2", b"second") is PutOutcome.EXISTS
    assert (place.read("k"), place.read("k2")) == (b"first", b"first")


def test_parent_folders_are_created(place):
    assert place.store.put_if_absent("a/b/c/d", b"1") is PutOutcome.DONE
    assert place.store.put_if_absent("a/b/e", b"2") is PutOutcome.DONE
    place.store.replace("f/g", b"3")
    assert place.store.get_many(["a/b/c/d", "a/b/e", "f/g"]) == [b"1", b"2", b"3"]
    assert place.store.list_from("a/b") == ["c", "e"]


@pytest.mark.promise("storage.whole_or_absent")
def test_concurrent_readers_see_complete_objects_only(place):
    """Readers poll while objects are created and replaced."""
    sizes, stop, seen = {1_000_000, 2_000_000}, threading.Event(), set()
    reader = place.again()

    def look():
        while not stop.is_set():
            seen.update(len(data) for data in reader.find_many(keys) if data is not None)

    keys = [f"{LOG}/{number}" for number in range(6)]
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for key in keys:
            assert place.store.put_if_absent(key, b"x" * 1_000_000) is PutOutcome.DONE
        for key in keys:
            place.store.replace(key, b"y" * 2_000_000)
    finally:
        stop.set()
        thread.join()
    assert seen <= sizes


def test_replace_creates_and_overwrites(place):
    for data in (b"1", b"a longer one", b"", b"x" * 3_000_000, b"2"):
        place.store.replace("pointer", data)
        assert place.store.get("pointer") == data
        assert place.read("pointer") == data
        assert place.store.stat("pointer").size == len(data)


def test_deleted_key_can_be_put_again(place):
    place.put("k", b"1")
    place.store.delete(["k"])
    assert place.store.stat("k") is None
    assert place.store.put_if_absent("k", b"2") is PutOutcome.DONE
    assert place.read("k") == b"2"


def test_deleting_missing_objects_is_ignored(place):
    place.put("a", b"1")
    place.put("folder/z", b"1")
    place.put("kept", b"1")
    place.store.delete(["missing", "a", "no/such/folder", "folder/z", "folder/missing"])
    place.store.delete(["missing"])
    place.store.delete([])
    assert place.store.find_many(["a", "folder/z", "kept"]) == [None, None, b"1"]


def test_listing_and_deleting_more_than_one_page(place):
    """S3 lists and deletes a thousand objects per request."""
    names = [f"{number:020d}.json" for number in range(1_105)]
    place.put_many({f"{LOG}/{name}": b"12" for name in names})
    place.put(f"{LOG}/folder/inner", b"1")
    place.put(f"{LOG}x", b"1")
    assert place.store.list_from(LOG) == [*names, "folder"]
    assert place.store.list_from(LOG, names[1_049] + "x") == [*names[1_050:], "folder"]
    stats = place.store.stats_from(LOG, names[40])
    assert sorted(stats) == [*names[40:], "folder"]
    assert {stats[name].size for name in names[40:]} == {2}
    assert stats[names[47]] == place.store.stat(f"{LOG}/{names[47]}")
    place.store.delete([f"{LOG}/{name}" for name in names[1:]])
    assert place.store.list_from(LOG) == [names[0], "folder"]
    assert place.store.get(f"{LOG}x") == b"1"


@pytest.mark.parametrize(
    "start", ["0", "00", "1", "10", "9", "a", "a.", ".", "..", "/", "ü", "\ue000"]
)
def test_listing_starts_at_any_name(place, start):
    names = ["00", "09", "1", "10", "100", "9", "a", "a.b", "ab", "ü"]
    for name in names:
        place.put(f"{LOG}/{name}", b"1")
    assert place.store.list_from(LOG, start) == [name for name in names if name >= start]
    assert list(place.store.stats_from(LOG, start)) == [name for name in names if name >= start]


def test_find_many_keeps_the_order_with_none_for_missing(place):
    place.put_many({f"k/{number}": str(number).encode() for number in range(0, 40, 2)})
    keys = [f"k/{number}" for number in range(39, -1, -1)] + ["k/2", "k/3", "k"]
    wanted = [None if n % 2 else str(n).encode() for n in range(39, -1, -1)] + [b"2", None, None]
    if os.path.isdir(f"{place.store.root}/k"):
        keys, wanted = keys[:-1], wanted[:-1]  # a folder exists and is not an object
    assert place.store.find_many(keys) == wanted
    assert place.store.find_many([]) == []
    assert place.store.find_many(["k/4"]) == [b"4"]
    assert place.store.find_many(["k/5"]) == [None]


def test_changes_by_another_writer_are_visible_immediately(place):
    """A client that caches listings would miss them."""
    store = place.store
    place.put(f"{LOG}/1", b"1")
    assert store.list_from(LOG) == ["1"]
    assert store.stat(f"{LOG}/2") is None
    assert store.find_many([f"{LOG}/2", f"{LOG}/1"]) == [None, b"1"]
    place.put(f"{LOG}/2", b"22")
    assert store.get(f"{LOG}/2") == b"22"
    assert store.get_many([f"{LOG}/2", f"{LOG}/1"]) == [b"22", b"1"]
    assert store.stat(f"{LOG}/2").size == 2
    assert store.put_if_absent(f"{LOG}/2", b"mine") is PutOutcome.EXISTS
    assert {name: stat.size for name, stat in store.stats_from(LOG).items()} == {"1": 1, "2": 2}
    place.again().delete([f"{LOG}/1"])
    assert store.list_from(LOG) == ["2"]
    assert store.find_many([f"{LOG}/1", f"{LOG}/2"]) == [None, b"22"]


def test_resized_object_is_read_completely(place):
    """A client that caches sizes would truncate it."""
    for size in (10, 100_000, 5, 3_000_000, 1):
        place.put(f"{LOG}/_last_checkpoint", b"x" * size)
        assert place.store.stat(f"{LOG}/_last_checkpoint").size == size
        assert place.store.list_from(LOG) == ["_last_checkpoint"]
        assert place.store.get(f"{LOG}/_last_checkpoint") == b"x" * size
        assert place.store.find_many([f"{LOG}/_last_checkpoint"] * 2) == [b"x" * size] * 2


@pytest.mark.parametrize("name", NAMES)
def test_special_characters_in_names_are_written_verbatim(place, name):
    key = f"{name}/{name}"
    assert place.store.put_if_absent(key, b"1") is PutOutcome.DONE
    assert place.read(key) == b"1"
    assert place.store.put_if_absent(key, b"2") is PutOutcome.EXISTS
    place.store.replace(key, b"3")
    assert place.read(key) == b"3"
    assert place.store.list_from(name) == [name]
    assert place.store.stat(key).size == 1
    place.store.delete([key])
    assert place.read(key) is None


def test_check_writable_accepts_a_conforming_store(place):
    place.store.check_writable(LOG_FOLDER)
    place.store.check_writable(LOG_FOLDER)
    assert place.store.list_from(LOG) == []

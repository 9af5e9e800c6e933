"""Splits on S3: which bytes are fetched, with how many requests."""

import os
import random
from collections import Counter

import pytest
from support import faulty_wire, split_tables, store_places
from support.faulty_wire import Meeting
from support.s3_servers import Server

import arrowlog
from arrowlog.splits import SplitCache, SplitFile, SplitFiles
from arrowlog.storage import LocalStore

WORDS = [f"word{number}" for number in range(3000)]
SPLITS, SPLIT_ROWS = 6, 4000
# A directory is fetched with what may follow it; a range covers small gaps between files.
_SLACK_BYTES = 1 << 17


@pytest.fixture(scope="module", params=["s3fs-moto", "obstore-seaweedfs"])
def remote(request, tmp_path_factory):
    """A table on a server behind a proxy, the same table in a folder, and the proxy."""
    client, _, server = request.param.partition("-")
    folder = tmp_path_factory.mktemp("local") / "table"
    local = split_tables.write(str(folder), _days())
    found, writer = request.getfixturevalue(server)
    with faulty_wire.before(found) as wire:
        place = store_places.S3(
            Server("wire", wire.url), accelerate=client == "obstore", writer=writer
        )
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                with open(path, "rb") as file:
                    place.put(os.path.relpath(path, folder), file.read())
        yield place, local, wire


def _days():
    chance = random.Random(7)
    for day in range(SPLITS):
        yield (
            f"d{day}",
            [
                {
                    "id": day * SPLIT_ROWS + number,
                    "text": f"{chance.getrandbits(128):032x}",
                    "body": " ".join(chance.choices(WORDS, k=12)),
                    "score": chance.random(),
                }
                for number in range(SPLIT_ROWS)
            ],
        )


class Traffic:
    """Opens the table with an empty cache, and records what a call reads of splits."""

    def __init__(self, remote, cache):
        self.place, self.local, self.wire = remote
        self.cache = str(cache)

    def open(self):
        options = {"splits.cache.path": self.cache, "store.accelerate": self.place.accelerate}
        return arrowlog.Table(self.place.uri, self.place.options, options=options)

    def reads(self, call):
        """The result of a call, and the requests for splits that it sent."""
        self.wire.reads.clear()
        answer = call()
        return answer, [read for read in self.wire.reads if ".split" in read.path]

    def sizes(self, extension):
        """The bytes of the inner files with an extension, of each split."""
        sizes = {}
        for path in self.local.scan().paths:
            size = os.path.getsize(os.path.join(self.local.uri, path))
            files = SplitFiles(
                LocalStore(self.local.uri),
                SplitFile(path, size, 0),
                SplitCache(f"{self.cache}-local", 1 << 30),
            )
            with files:
                sizes[path] = sum(
                    found.end - found.start
                    for name, found in files._bundle.files.items()
                    if name.endswith(extension)
                )
        return sizes


@pytest.fixture
def traffic(remote, tmp_path):
    return Traffic(remote, tmp_path / "cache")


def rows(plan, columns=None):
    table = plan.to_arrow_dataset().to_table(columns=columns)
    return table.sort_by("id") if "id" in table.column_names else table


def check_ranges(traffic, reads, extensions):
    """Every request is for a range, and the ranges cover some inner files and little else."""
    assert all(read.range is not None for read in reads)
    needed = sum(sum(traffic.sizes(extension).values()) for extension in extensions)
    fetched = sum(read.size for read in reads)
    splits = len({read.path for read in reads})
    assert needed <= fetched <= needed + splits * _SLACK_BYTES
    whole = sum(
        os.path.getsize(os.path.join(traffic.local.uri, path))
        for path in traffic.local.scan().paths
    )
    assert fetched < 0.8 * whole
    # The directory, `meta.json`, and one run of neighbouring files.
    assert set(Counter(read.path for read in reads).values()) <= {2, 3}


def test_rows_are_fetched_by_ranges_and_cached(traffic):
    found, reads = traffic.reads(lambda: rows(traffic.open().scan()))
    assert found.equals(rows(traffic.local.scan()))
    assert len({read.path for read in reads}) == SPLITS
    check_ranges(traffic, reads, [".store"])
    # The directory comes first: the log has its position.
    files = traffic.local.snapshot().files.select(["path", "footer_start_offset"])
    for path, start in zip(*files.to_pydict().values(), strict=True):
        first = next(read for read in reads if read.path.endswith(path))
        assert first.range.startswith(f"bytes={start}-")
    again, reads = traffic.reads(lambda: rows(traffic.open().scan()))
    assert again.equals(found)
    assert reads == []


def test_numeric_columns_are_fetched_without_documents(traffic):
    found, reads = traffic.reads(lambda: rows(traffic.open().scan(), ["id", "score"]))
    assert found.equals(rows(traffic.local.scan(), ["id", "score"]))
    check_ranges(traffic, reads, [".fast"])


def test_searches_fetch_the_documents_once(traffic):
    where = "body indexquery 'word7 AND NOT word9'"
    found, reads = traffic.reads(lambda: rows(traffic.open().scan(where)))
    assert found.equals(rows(traffic.local.scan(where)))
    assert 0 < found.num_rows < SPLITS * SPLIT_ROWS
    check_ranges(traffic, reads, [".store"])
    other = "text indexquery 'f*' OR body indexquery 'word7'"
    for call in (
        lambda: traffic.open().scan(where).count(),
        lambda: rows(traffic.open().scan("body indexquery 'word8'")),
        lambda: rows(traffic.open().scan(other)),  # fields that the first search did not index
        lambda: traffic.open().scan(where).explain(),
    ):
        assert traffic.reads(call)[1] == []
    assert rows(traffic.open().scan(other)).equals(rows(traffic.local.scan(other)))


def test_statistics_skip_splits_without_requests(traffic):
    where = f"body indexquery 'word7' AND id < {SPLIT_ROWS} AND score > 0.5"
    found, reads = traffic.reads(lambda: rows(traffic.open().scan(where)))
    assert found.equals(rows(traffic.local.scan(where)))
    assert len({read.path for read in reads}) == 1
    count, reads = traffic.reads(lambda: traffic.open().scan("day = 'd1'").count())
    assert (count, reads) == (SPLIT_ROWS, [])  # known from the log


def test_splits_are_fetched_in_parallel(traffic):
    meeting = Meeting("GET", ".split", SPLITS)
    traffic.wire.meeting = meeting
    try:
        found = rows(traffic.open().scan())
    finally:
        traffic.wire.meeting = None
    assert meeting.together.is_set()  # all directories were requested concurrently
    assert found.equals(rows(traffic.local.scan()))

"""Arbitrary bytes in a log raise only typed errors, in bounded time and memory."""

import random
import resource
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import log_model, small_table
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.decode import LineBuffer, decode_buffer

EXPECTED = (arrowlog.LogCorrupt, arrowlog.UnsupportedProtocol)
WORDS = [b'{"add":{', b'"path":"x"', b'"size":1', b'"modificationTime":1', b"}", b"}}", b",", b":"]
WORDS += [
    b'"stats":"{\\"numRecords\\":3}"',
    b'{"remove":{',
    b'{"protocol":{',
    b'"minReaderVersion":1',
]
WORDS += [
    b'"minWriterVersion":1',
    b"null",
    b"[",
    b"]",
    b'"',
    b"\\",
    b"9" * 30,
    b"\xff",
    b"\0",
    b"\n",
]
ALPHABET = st.sampled_from(WORDS)


@settings(max_examples=cases(600))
@given(st.one_of(st.binary(max_size=300), st.lists(ALPHABET, max_size=60).map(b"".join)))
def test_arbitrary_bytes_decode_or_raise_a_typed_error(data):
    window = LineBuffer(1 << 20)
    for columnar in (True, False):
        window.clear()
        with suppress(*EXPECTED):
            window.append("file", 1, data * 50 if columnar else data)
            decode_buffer(window, columnar=columnar)


@pytest.mark.promise("errors.typed_and_named")
@pytest.mark.parametrize("seed", range(cases(40)))
def test_table_with_a_mangled_file_opens_or_raises_a_typed_error(tmp_path, seed):
    rng = random.Random(seed)
    print("seed", seed)
    root = tmp_path / "table"
    history = log_model.write(root, seed, versions=6)
    testing.write_checkpoint(
        root, 3, log_model.actions_at(history, 3), form=rng.choice(["object", "parts"])
    )
    files = sorted((root / "_transaction_log").iterdir())
    for _ in range(12):
        victim = rng.choice(files)
        whole = victim.read_bytes()
        broken = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(max(len(broken), 1))
            broken[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        victim.write_bytes(broken)
        with suppress(*EXPECTED):
            arrowlog.Table(root).snapshot().files.num_rows  # noqa: B018 -- the access is the test
        victim.write_bytes(whole)


def test_hostile_commit_needs_bounded_time_and_memory(table):
    wide = b'{"add":{' + b",".join(b'"k%d":1' % i for i in range(30_000)) + b"}}\n"
    hostile = [
        wide * 60,
        b"[" * 5_000_000,
        b'{"x":"' + b"\\u0041" * 1_000_000 + b'"}\n',
        b"{}\n" * 500_000,
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    for content in hostile:
        testing.write_commit(table, 2, content)
        with suppress(*EXPECTED):
            arrowlog.Table(table).snapshot()
    assert (
        time.process_time() - started < 120
    )  # guards against hanging; CPU time of this process only
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000


def test_small_table_fixture_is_readable(table):
    assert small_table.paths(arrowlog.Table(table).snapshot()) == ["good.parquet"]

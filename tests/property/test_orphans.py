"""Orphan classification and bin packing, against naive models."""

import re
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases

from arrowlog.maintenance.compaction import pack_adjacent
from arrowlog.maintenance.retention import classify_files
from arrowlog.storage.base import build_walk_table

LOG = "_transaction_log"
HEX = "0123456789abcdef0123456789abcdef"
FOLDERS = st.sampled_from(
    ["day=1", "_p=1", "_q=1", "a%2Fb", "ü", ".x", "_delta_log", LOG, "_checkpoints", "deep", "t"]
)
NAMES = st.sampled_from(
    [
        "a.parquet",
        "b c.parquet",
        "b%20c.parquet",
        "a.split",
        "a.txt",
        "plain",
        "_a.parquet",
        ".a.crc",
        f".a.parquet.{HEX}.tmp",
        f"{7:020d}.json",
        "_last_checkpoint",
        "7.json",
    ]
)
KEYS = st.builds(
    lambda folders, name: "/".join([*folders, name]), st.lists(FOLDERS, max_size=3), NAMES
)
HORIZON = 1000


def naive(keys, times, live, spoken_of):
    """The classification of each key, one by one."""
    logs = {f"{LOG}/"}
    for key in keys:
        parts = key.split("/")
        for depth, part in enumerate(parts[:-1]):
            if part in (LOG, "_checkpoints"):
                logs.add("".join(f"{p}/" for p in parts[:depth]))
                break
        if re.fullmatch(r"[0-9]{18,}\.json|_last_checkpoint", parts[-1]):
            logs.add("".join(f"{p}/" for p in parts[:-1]))
    logs.discard("")
    endings = {".parquet", ".split"}
    for key in [*live, *spoken_of]:
        found = re.search(r"\.[^./]+$", key)
        endings.add(found[0] if found else "")
    return [fate(k, t, logs, endings, live, spoken_of) for k, t in zip(keys, times, strict=True)]


def fate(key, time, logs, endings, live, spoken_of):
    if any(key.startswith(folder) for folder in logs):
        return "log"
    *folders, name = key.split("/")
    draft = re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", name)
    hidden = [f for f in folders if f[0] in "_." and not f.startswith("_p=")]
    if hidden or (name[0] in "_." and not draft):
        return "hidden"
    for word, keys in (("live", live), ("history", spoken_of)):
        if key in keys or key in {unquote(k) for k in keys}:
            return word
    if time > HORIZON or time < 0:  # unknown time
        return "young"
    found = re.search(r"\.[^./]+$", key)
    if not draft and (found[0] if found else "") not in endings:
        return "other"
    return "orphan"


@pytest.mark.promise("vacuum.deletes_only_orphans")
@settings(max_examples=cases(150))
@given(
    st.dictionaries(KEYS, st.sampled_from([-1, 0, 1, HORIZON, HORIZON + 1]), max_size=12),
    st.data(),
)
def test_classified_files_equal_a_naive_model(times, data):
    keys = list(times)
    some = st.lists(st.one_of(KEYS, st.sampled_from(keys or ["x"])), max_size=4)
    live, spoken_of = data.draw(some), data.draw(some)
    found = classify_files(
        build_walk_table(keys, [1] * len(keys), list(times.values())),
        pa.chunked_array([pa.array(live, pa.string())]),
        pa.chunked_array([pa.array(spoken_of, pa.string())]),
        ["_p", "day"],
        HORIZON,
    )
    assert found["key"].to_list() == keys
    assert found["fate"].to_list() == naive(keys, times.values(), live, spoken_of)


@settings(max_examples=cases(300))
@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 40), st.integers(2, 6))
def test_packed_groups_are_adjacent_and_maximal(sizes, target, most):
    runs = list(pack_adjacent(sizes, target, most))
    seen = [row for run in runs for row in run]
    assert seen == sorted(set(seen))
    for run in runs:
        assert run == list(range(run[0], run[-1] + 1))
        assert 2 <= len(run) <= most
        assert sum(sizes[row] for row in run) <= target
        after = run[-1] + 1  # the next one did not fit, by size or by number
        if after < len(sizes) and len(run) < most:
            assert sum(sizes[row] for row in run) + sizes[after] > target
    for row in range(
        len(sizes) - 1
    ):  # two adjacent files that are left out exceed the target together
        if row not in seen and row + 1 not in seen:
            assert sizes[row] + sizes[row + 1] > target

"""Truncation of long statistics shortens them everywhere and loses no row."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases

import arrowlog
from arrowlog import testing
from arrowlog.config import resolve
from arrowlog.formats.indextables.commit_encoder import encode_adds
from arrowlog.formats.indextables.compression import decompress
from arrowlog.snapshot import ReadOptions, load_snapshot
from arrowlog.snapshot.listing import list_log
from arrowlog.snapshot.stats_truncation import StatsTruncation, truncate_add_fields, truncate_adds
from arrowlog.storage import LocalStore

SCHEMA = pa.schema([("p", pa.string()), ("t", pa.string()), ("n", pa.int64()), ("l", pa.binary())])
PART = pa.schema([("t", pa.string()), ("n", pa.int64())])
TEXTS = st.text(st.sampled_from("ab\ud7ff\ue000😀 "), max_size=9)
MARKED = TEXTS.map(lambda text: text + " [TRUNCATED]")
BOUNDS = st.dictionaries(
    st.sampled_from(["p", "t", "n", "l", "other"]), st.one_of(TEXTS, MARKED, st.none()), max_size=4
)
INNER = st.dictionaries(
    st.sampled_from(["p", "t", "n", "other"]),
    st.one_of(TEXTS, st.integers(), st.just(10**12), st.just([1]), st.none()),
    max_size=4,
)


@st.composite
def adds(draw):
    """One add as it may appear in a log."""
    found = {"path": "x", "partitionValues": {"p": "1"}, "size": 1, "modificationTime": 1}
    for side in ("minValues", "maxValues"):
        if draw(st.booleans()):
            found[side] = draw(BOUNDS)
    if draw(st.booleans()):
        stats = {"numRecords": 1, "minValues": draw(INNER), "maxValues": draw(INNER)}
        found["stats"] = json.dumps(stats) if draw(st.integers(0, 9)) else "{broken" + "x" * 20
    return found


def config(length, strategy):
    return resolve({"stats.truncation.maxLength": length, "stats.truncation.strategy": strategy})


def written_log(root, first, *commits):
    for version, actions in enumerate([[testing.protocol(), *first], *commits]):
        testing.write_commit(root, version, actions)


def said(fields):
    """The bounds of an add as readers see them: nulls count as absent."""
    found = {}
    stats = fields.get("stats")
    try:
        stats = json.loads(stats) if stats else {}
    except ValueError:
        stats = {"broken": stats}
    for side in ("minValues", "maxValues"):
        given = fields.get(side) or {}
        found[side] = {k: v for k, v in given.items() if v is not None}
        inner = {k: v for k, v in (stats.get(side) or {}).items() if v is not None}
        stats = {**stats, side: inner}
    return {**found, "stats": stats}


@settings(max_examples=cases(60))
@given(
    st.lists(adds(), min_size=1, max_size=6),
    st.integers(1, 8),
    st.sampled_from(["drop", "truncate"]),
    st.booleans(),
)
def test_columnar_and_per_add_truncation_agree(tmp_path_factory, given_adds, length, strategy, raw):
    root = tmp_path_factory.mktemp("t") / "table"
    files = [{**item, "path": f"f{n}"} for n, item in enumerate(given_adds)]
    written_log(root, [testing.metadata(SCHEMA, ["p"]), *({"add": f} for f in files)])
    store = LocalStore(str(root))
    settings_ = config(length, strategy)
    how = resolve({"transaction.useOptimized": not raw})
    state = load_snapshot(store, list_log(store), ReadOptions(how)).state
    done = truncate_adds(state.adds, ["p"], settings_, SCHEMA)
    assert done["key"].to_pylist() == state.adds["key"].to_pylist()
    written = [json.loads(text)["add"] for text in encode_adds(done)]
    cut = StatsTruncation.of(settings_)
    by_path = {item["path"]: said(item) for item in written}
    for item in files:
        expected = said(truncate_add_fields(item, ["p"], cut, SCHEMA))
        assert by_path[item["path"]] == expected


@settings(max_examples=cases(300))
@given(
    st.lists(st.text(st.sampled_from("ab\ud7fe\ud7ff"), max_size=6), min_size=1, max_size=5),
    st.integers(1, 4),
    st.booleans(),
)
def test_truncated_bounds_hold_for_every_value(values, length, marked):
    low, high = min(values), max(values)
    if marked:  # truncated by another program before
        low, high = low[:3] + " [TRUNCATED]", high[:3] + " [TRUNCATED]"
    first, last = StatsTruncation(max_length=length, strategy="truncate").shorten(low, high)
    was_long = len(low) > length, len(high) > length
    for value in values:
        assert not was_long[0] or first is None or first <= value
        assert not was_long[1] or last is None or last >= value
    for text in (first, last):
        assert text is None or len(text) <= length


@pytest.mark.parametrize("strategy", ["drop", "truncate"])
def test_truncated_bounds_keep_the_log_small_and_find_every_row(root, strategy):
    schema = pa.schema([("id", pa.int64()), ("body", pa.string())])
    bodies = [f"{n:03d}" + "lorem ipsum " * 400 + f"{n:03d}" for n in range(60)]
    sizes = {}
    for name, enabled in (("whole", "false"), ("short", "true")):
        properties = {
            "spark.indextables.stats.truncation.enabled": enabled,
            "spark.indextables.stats.truncation.strategy": strategy,
            "spark.indextables.stats.truncation.maxLength": "32",
            "spark.indextables.transaction.compression.enabled": "false",
            "spark.indextables.checkpoint.compression.enabled": "false",
        }
        table = arrowlog.Table.create(f"{root}-{name}", schema, properties=properties)
        for n in range(0, 60, 3):
            rows = {"id": list(range(n, n + 3)), "body": bodies[n : n + 3]}
            table.write(pa.table(rows, schema=schema))
        table.wait_for_checkpoint()
        table.checkpoint()
        log = LocalStore(f"{root}-{name}").stats_from("_transaction_log")
        sizes[name] = sum(found.size for found in log.values())
    assert sizes["short"] < sizes["whole"] / 10
    opened = arrowlog.Table(f"{root}-short")
    assert opened.snapshot().report.checkpoint is not None
    for n in (0, 31, 59):
        for where in ([("body", "=", bodies[n])], [("body", ">=", bodies[n]), ("id", "=", n)]):
            assert opened.scan(where).to_polars().collect()["id"].to_list() == [n]
    if strategy == "truncate":
        assert opened.scan([("body", "=", bodies[31])]).num_files == 1


def test_user_adds_and_checkpoints_of_foreign_commits_are_truncated(root):
    long = "x" * 2000
    add = {
        "path": "a",
        "size": 1,
        "modificationTime": 1,
        "minValues": {"t": long, "n": "1"},
        "maxValues": {"t": long, "n": "2"},
        "stats": json.dumps({"numRecords": 1, "minValues": {"t": long}, "nullCount": {"t": 0}}),
        "partitionValues": {"p": long},
    }
    written_log(root, [testing.metadata(SCHEMA, ["p"])], [{"add": {**add, "path": "b"}}])
    table = arrowlog.Table(root)
    table.append([add])
    text = (root / "_transaction_log" / f"{2:020d}.json").read_bytes()
    written = json.loads(decompress(text, "", 1 << 20).splitlines()[1])["add"]
    assert (written["minValues"], written["maxValues"]) == ({"n": "1"}, {"n": "2"})
    assert json.loads(written["stats"]) == {
        "numRecords": 1,
        "minValues": {},
        "nullCount": {"t": 0},
    }
    assert written["partitionValues"] == {"p": long}
    files = table.snapshot().files.sort_by("path")
    assert files["min.t"].to_pylist() == [None, long]
    table.checkpoint()
    for form in ("json", "parquet"):
        names = list((root / "_transaction_log").rglob("*.checkpoint.*"))
        hidden = [p for p in names if (p.parent.name == "_checkpoints") == (form == "json")]
        for path in hidden:
            path.rename(f"{path}.away")
        files = arrowlog.Table(root).snapshot().files.sort_by("path")
        assert files["min.t"].to_pylist() == [None, None], form
        assert files["max.n"].to_pylist() == [2, 2]
        assert pc.all(pc.equal(files["partition.p"], long)).as_py()
        for path in hidden:
            path.with_name(path.name + ".away").rename(path)


@pytest.mark.parametrize("strategy", ["drop", "truncate"])
def test_unused_stats_bound_stays_unused_after_truncation(strategy):
    """The maps win over `stats`: a bound dropped from a map must not come from `stats`."""
    cut = StatsTruncation(max_length=3, strategy=strategy)
    stats = json.dumps({"minValues": {"t": "m"}, "maxValues": {"t": "n"}, "other": "x" * 9})
    last = "\ud7ff" * 9  # no larger value can be represented
    add = {"minValues": {"t": "abcdef"}, "maxValues": {"t": last}, "stats": stats}
    done = truncate_add_fields(add, [], cut, SCHEMA)
    inner = json.loads(done["stats"])
    assert "t" not in (done["maxValues"] or {})
    assert inner["maxValues"] == {}
    assert inner["minValues"] == ({} if strategy == "drop" else {"t": "m"})
    assert done["minValues"] == (None if strategy == "drop" else {"t": "abc"})
    assert inner["other"] == "x" * 9


def test_statistics_of_restored_files_are_truncated(root):
    long = "x" * 2000
    add = {"path": "b", "size": 1, "modificationTime": 1, "minValues": {"t": long, "n": "1"}}
    written_log(root, [testing.metadata(PART)], [{"add": add}])
    table = arrowlog.Table(root)
    table.remove(["b"])
    table.restore(1)
    files = table.refresh().files
    assert (files["min.t"].to_pylist(), files["min.n"].to_pylist()) == ([None], [1])


WORDS = st.text(st.sampled_from("ab\ud7fe\ud7ff\ue000😀%_"), max_size=7)
TESTS = {
    "=": lambda value, word: value == word,
    "<": lambda value, word: value < word,
    "<=": lambda value, word: value <= word,
    ">": lambda value, word: value > word,
    ">=": lambda value, word: value >= word,
    "!=": lambda value, word: value != word,
}


@pytest.mark.promise("scan.no_row_is_lost")
@settings(max_examples=cases(20))
@given(
    st.lists(st.lists(st.one_of(WORDS, st.none()), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(sorted(TESTS)), WORDS), min_size=4, max_size=8),
    st.integers(1, 4),
    st.sampled_from(["drop", "truncate"]),
    st.sampled_from(["commits", "checkpoint", "foreign"]),
)
def test_truncated_bounds_lose_no_row(tmp_path_factory, files, asked, length, strategy, source):
    root = tmp_path_factory.mktemp("t") / "table"
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    properties = {
        "spark.indextables.stats.truncation.maxLength": str(length),
        "spark.indextables.stats.truncation.strategy": strategy,
    }
    if source == "foreign":  # commits with long bounds, as others write them; then a checkpoint
        properties["spark.indextables.stats.truncation.enabled"] = "false"
    table = arrowlog.Table.create(root, schema, properties=properties)
    rows = []
    for words in files:
        start = len(rows)
        rows += words
        ids = list(range(start, start + len(words)))
        table.write(pa.table({"id": ids, "word": words}, schema=schema))
    if source == "foreign":
        table.set_properties({"spark.indextables.stats.truncation.enabled": "true"})
    if source != "commits":
        table.checkpoint()
        table = arrowlog.Table(root)
    for test, word in asked:
        expected = [n for n, w in enumerate(rows) if w is not None and TESTS[test](w, word)]
        found = table.scan([("word", test, word)]).to_polars().collect()["id"].to_list()
        assert sorted(found) == expected, (test, word)

"""Damaged logs raise a typed error with file and line, or give the documented result."""

import gzip
import json
import os
import warnings

import pytest
from support.small_table import GOOD, OPENING, paths

import arrowlog
from arrowlog import testing
from arrowlog.formats.indextables.compression import compress
from arrowlog.formats.indextables.format import commit_name


def raw_add(**fields):
    return json.dumps({"add": GOOD["add"] | fields}).encode()


BAD_LINES = {
    "not json": b"hello",
    "cut off": b'{"add":{"path":"x","size":1',
    "array": b"[1]",
    "null": b"null",
    "number": b"7",
    "two objects": b'{"a":1} {"b":2}',
    "trailing text": raw_add() + b"x",
    "no path": b'{"add":{"size":1,"modificationTime":1}}',
    "no size": b'{"add":{"path":"x","modificationTime":1}}',
    "null size": b'{"add":{"path":"x","size":null,"modificationTime":1}}',
    "no time": b'{"add":{"path":"x","size":1}}',
    "remove without path": b'{"remove":{"dataChange":true}}',
    "skip without reason": b'{"mergeskip":{"path":"x","skipTimestamp":1,"operation":"merge"}}',
    "add is a list": b'{"add":[]}',
    "add is text": b'{"add":"x"}',
    "path is a number": raw_add(path=5),
    "size is text": raw_add(size="1"),
    "size is a float": raw_add(size=1.5),
    "size of 25 digits": raw_add(size=10**24),
    "size of 2^63": raw_add(size=2**63),
    "NaN": raw_add(numRecords=float("nan")),
    "1e400": raw_add().replace(b'"size": 1', b'"size": 1e400'),
    "deep nesting": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep in an add": raw_add()[:-2] + b',"y":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "NUL": raw_add(path="a").replace(b'"a"', b'"a\0"'),
    "zeros": b"\0" * 400,
    "lone surrogate": raw_add(path="a").replace(b'"a"', b'"\\ud800"'),
    "not UTF-8": raw_add(path="a").replace(b'"a"', b'"\xff"'),
    "byte order mark": b"\xef\xbb\xbf" + raw_add(),
    "tab in text": raw_add(path="a").replace(b'"a"', b'"\t"'),
    "two actions": b'{"add":' + raw_add()[8:-1] + b',"remove":{"path":"x"}}',
    "partition values are a list": raw_add(partitionValues=[1]),
    "path leads out": raw_add(path="../other/x.parquet"),
    "path leads out in the middle": raw_add(path="a/../../x.parquet"),
    "another bucket": raw_add(path="s3://other/x.parquet"),
    "file url": raw_add(path="file:///etc/passwd"),
    "absolute": raw_add(path="/etc/passwd"),
    "empty path": raw_add(path=""),
    "protocol without versions": b'{"protocol":{}}',
    "metadata without schema": b'{"metaData":{"id":"x"}}',
    "schema is no json": b'{"metaData":{"id":"x","schemaString":"{"}}',
    "schema of an unknown type": testing.lines(
        [testing.metadata('{"type":"struct","fields":[{"name":"a","type":"color"}]}')]
    )[:-1],
}


@pytest.mark.promise("errors.typed_and_named")
@pytest.mark.parametrize("many", [False, True], ids=["few lines", "many lines"])
@pytest.mark.parametrize("case", BAD_LINES)
def test_invalid_line_raises_with_file_and_line(table, case, many):
    around = [testing.add(f"f{i}", {"day": "2024-01-01"}) for i in range(200 if many else 1)]
    good = testing.lines(around)
    testing.write_commit(table, 2, good + BAD_LINES[case] + b"\n" + good)
    with pytest.raises(arrowlog.LogCorrupt) as caught:
        arrowlog.Table(table).snapshot()
    error = caught.value
    assert error.file == f"_transaction_log/{commit_name(2)}"
    assert error.line == len(around) + 1
    assert str(error.line) in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize("case", BAD_LINES)
def test_versions_before_the_damage_remain_readable(table, case):
    testing.write_commit(table, 2, BAD_LINES[case] + b"\n")
    assert paths(arrowlog.Table(table).snapshot(version=1)) == ["good.parquet"]


HARMLESS = {
    "blank line": b"\n\n",
    "spaces": b"   \n",
    "windows line ends": raw_add(path="w") + b"\r\n",
    "unknown action": b'{"txn":{"appId":"x","version":1}}\n',
    "empty object": b"{}\n",
    "null action": b'{"add":null}\n',
    "line separator in text": raw_add(path="a\u2028b") + b"\n",
    "unknown field": raw_add(path="u", fresh=[1, {"a": None}]) + b"\n",
    "null fields": raw_add(path="n", stats=None, tags=None, minValues=None) + b"\n",
    "integer partition value": raw_add(path="i", partitionValues={"day": 19_000}) + b"\n",
    "stats that are no json": raw_add(path="s", stats="{oops") + b"\n",
    "stats that are a list": raw_add(path="s", stats="[1]") + b"\n",
    "stats as an object": raw_add(path="s", stats={"numRecords": 4}) + b"\n",
    "strange commit info": b'{"commitInfo":{"timestamp":"yesterday","operation":[1]}}\n',
    "commit info of another kind": b'{"commitInfo":7}\n',
    "no line feed at the end": raw_add(path="e"),
    "path with dots": raw_add(path="a..b/..c/d...parquet") + b"\n",
}


@pytest.mark.parametrize("many", [False, True], ids=["few lines", "many lines"])
@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_deviations_remain_readable(table, case, many):
    around = [testing.add(f"f{i}", {"day": "2024-01-01"}) for i in range(200 if many else 1)]
    testing.write_commit(table, 2, testing.lines(around) + HARMLESS[case])
    snapshot = arrowlog.Table(table).snapshot()
    assert snapshot.num_files == len(around) + 1 + (b'"path"' in HARMLESS[case])
    assert snapshot.files.num_rows == snapshot.num_files


def test_paths_outside_the_table_can_be_allowed(table):
    testing.write_commit(table, 2, [testing.add("s3://other/x.parquet", {"day": None})])
    snapshot = arrowlog.Table(table, allow_outside_paths=True).snapshot()
    assert paths(snapshot) == ["good.parquet", "s3://other/x.parquet"]


PACKED = {
    "empty file": b"",
    "cut gzip": compress(testing.lines([GOOD]), "gzip")[:-5],
    "bytes after gzip": compress(testing.lines([GOOD]), "gzip") + b"x",
    "flipped gzip": compress(testing.lines([GOOD]), "gzip")[:20]
    + b"\xff"
    + compress(testing.lines([GOOD]), "gzip")[21:],
    "unknown codec": b"\x01\x09abc",
    "codec missing": b"\x01",
    "cut bare gzip": gzip.compress(testing.lines([GOOD]))[:-3],
    "cut zstd": compress(testing.lines([GOOD]), "zstd")[:-3],
}


@pytest.mark.parametrize("case", PACKED)
def test_invalid_compression_raises_with_the_file(table, case):
    testing.write_file(table, commit_name(2), PACKED[case])
    with pytest.raises(arrowlog.LogCorrupt, match=commit_name(2)):
        arrowlog.Table(table).snapshot()


@pytest.mark.promise("security.bounded_memory")
def test_decompression_bomb_is_refused_before_it_fills_memory(table):
    testing.write_file(table, commit_name(2), compress(b" " * (64 << 20), "gzip"))
    with pytest.raises(arrowlog.LogCorrupt, match="maxDecompressedBytes"):
        arrowlog.Table(table, options={"transaction.maxDecompressedBytes": "1MB"}).snapshot()


def test_commit_with_missing_lines_raises(table):
    actions = [testing.add(f"f{i}", {"day": None}) for i in range(5)]
    info = testing.commit_info(1_700_000_000_001, numActions=5)
    testing.write_commit(table, 2, [info, *actions])
    assert arrowlog.Table(table).snapshot().num_files == 6
    testing.write_commit(table, 2, [info, *actions[:-1]])
    with pytest.raises(arrowlog.LogCorrupt, match="5 actions but has 4"):
        arrowlog.Table(table).snapshot()


NEWER = {
    "reader": testing.protocol(9, 9),
    "feature": testing.protocol(3, 3, readerFeatures=["footerOffsets", "deletionVectors"]),
}


@pytest.mark.parametrize("case", NEWER)
def test_newer_protocol_raises_with_the_required_version_or_feature(table, case):
    testing.write_commit(table, 2, [NEWER[case]])
    with pytest.raises(arrowlog.UnsupportedProtocol, match=r"version 9|deletionVectors"):
        arrowlog.Table(table).snapshot()
    assert paths(arrowlog.Table(table).snapshot(version=1)) == ["good.parquet"]


def test_newer_protocol_is_reported_before_unparsable_lines(table):
    testing.write_commit(
        table, 2, testing.lines([testing.protocol(9, 9)]) + b'{"add":{"v2":true}}\n'
    )
    with pytest.raises(arrowlog.UnsupportedProtocol, match="reader version 9"):
        arrowlog.Table(table).snapshot()


def test_newer_protocol_in_a_checkpoint_raises(table):
    actions = [testing.protocol(9, 9), OPENING[1], GOOD]
    testing.write_checkpoint(table, 1, actions)
    with pytest.raises(arrowlog.UnsupportedProtocol):
        arrowlog.Table(table).snapshot()


def test_log_without_protocol_action_has_protocol_1(root):
    testing.write_commit(root, 0, [OPENING[1]])
    snapshot = arrowlog.Table(root).snapshot()
    assert snapshot.protocol == arrowlog.Protocol(1, 1)


def test_newer_writer_version_does_not_prevent_reading(table):
    testing.write_commit(table, 2, [testing.protocol(2, 7)])
    assert arrowlog.Table(table).snapshot().protocol.min_writer_version == 7


def test_gap_warns_and_later_commits_are_not_read(table):
    testing.write_commit(table, 3, [testing.add("later", {"day": None})])
    with pytest.warns(arrowlog.ArrowlogWarning, match="version 2 is missing"):
        snapshot = arrowlog.Table(table).snapshot()
    assert (snapshot.version, paths(snapshot)) == (1, ["good.parquet"])
    assert "version 2 is missing" in snapshot.report.warnings[0]
    with pytest.raises(arrowlog.LogCorrupt, match="version 2 is missing"):
        arrowlog.Table(table, strict=True).snapshot()
    with pytest.raises(arrowlog.LogCorrupt, match="version 3 cannot be rebuilt"):
        arrowlog.Table(table).snapshot(version=3)


def test_version_zero_may_be_missing_only_with_a_checkpoint(table):
    os.remove(table / "_transaction_log" / commit_name(0))
    with pytest.raises(arrowlog.LogCorrupt, match="no checkpoint to start from"):
        arrowlog.Table(table).snapshot()
    testing.write_checkpoint(table, 1, [*OPENING, GOOD])
    assert paths(arrowlog.Table(table).snapshot()) == ["good.parquet"]


@pytest.mark.promise("snapshot.never_older")
def test_damaged_checkpoint_without_commits_raises_instead_of_an_older_version(table):
    for version in range(2, 5):
        testing.write_commit(table, version, [testing.add(f"f{version}", {"day": None})])
    path = testing.write_checkpoint(table, 3, [*OPENING, GOOD])
    with open(path, "wb") as out:
        out.write(b"broken")
    for version in (1, 2, 3):
        os.remove(table / "_transaction_log" / commit_name(version))
    with pytest.raises(arrowlog.LogCorrupt, match="checkpoint of version 3"):
        arrowlog.Table(table).snapshot()


def test_two_commit_files_for_one_version_raise(table):
    testing.write_commit(table, 1, [GOOD], digits=18)
    with pytest.raises(arrowlog.LogCorrupt, match="both version 1"):
        arrowlog.Table(table)


def test_log_without_metadata_raises(root):
    testing.write_commit(root, 0, [testing.protocol()])
    testing.write_commit(root, 1, [GOOD])
    with pytest.raises(arrowlog.LogCorrupt, match="no metaData"):
        arrowlog.Table(root).snapshot()


def test_log_folder_with_only_unknown_files_raises_table_not_found(root):
    testing.write_file(root, ".00000000000000000000.json.tmp", b"x")
    testing.write_pointer(root, {"version": 3})
    with pytest.raises(arrowlog.TableNotFound):
        arrowlog.Table(root)


def test_unknown_files_in_the_log_folder_are_ignored(table):
    for name in (
        ".tmp",
        "1.json.tmp",
        "notes.txt",
        "_commit_1.json",
        "-1.json",
        "1e3.json",
        "٣.json",
    ):
        testing.write_file(table, name, b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert arrowlog.Table(table).snapshot().version == 1

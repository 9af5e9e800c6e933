"""Each doctor code: a damaged table has the finding, and its fix removes it."""

import os
import random
import shutil
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import log_damage, store_places
from support.event_table import build
from support.parquet_checkpoints import write as write_parquet_checkpoint
from support.small_table import GOOD, OPENING, SCHEMA

import arrowlog
from arrowlog import testing
from arrowlog.formats.indextables.format import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
)
from arrowlog.recovery import log_checks

QUIET = {"checkpoint.enabled": False}
OLD = 1_500_000_000


@pytest.fixture
def events(root):
    """A healthy table of six versions and five data files."""
    build(root)
    assert arrowlog.Table(root).doctor().codes == []
    return root


def commit(root, version):
    return Path(f"{root}/{LOG_FOLDER}/{version:020d}.json")


def found(root, code, severity, **limits):
    """The finding with a code. Nothing is written to find it."""
    before = log_damage.fingerprint(root)
    findings = arrowlog.doctor(root, **limits)
    assert log_damage.fingerprint(root) == before
    hits = [each for each in findings if each.code == code]
    assert hits, findings
    assert hits[0].severity == severity, findings
    assert hits[0].what
    assert hits[0].where
    assert code in findings
    return hits[0]


def mend(root, finding):
    """Run the fix verbatim, and replace the log by a repaired one if there is one."""
    names = {"arrowlog": arrowlog}
    if "table." in finding.fix:
        names["table"] = arrowlog.Table(root, options=QUIET)
    exec(finding.fix, names)
    if "dry_run=True" in finding.fix:  # a dry run
        exec(finding.fix.replace("dry_run=True", ""), names)
    repaired = f"{root}/{LOG_FOLDER}_repaired"
    if os.path.exists(repaired):
        shutil.rmtree(f"{root}/{LOG_FOLDER}")
        os.rename(repaired, f"{root}/{LOG_FOLDER}")


def assert_mended(root, code, severity="error", **limits):
    """The finding is reported, and its own fix removes it."""
    finding = found(root, code, severity, **limits)
    mend(root, finding)
    after = arrowlog.doctor(root, **limits)
    assert code not in after, after
    return finding


def written(root, versions=5, every=0):
    """A table with one file per version and a checkpoint at some versions."""
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=QUIET)
    for number in range(versions):
        rows = {"day": [None], "id": [number]}
        table.write(pa.table(rows, schema=SCHEMA))
        if every and number % every == every - 1:
            table.checkpoint()
    return table


def test_healthy_table_has_no_findings(root):
    table = written(root, every=5)
    findings = table.doctor()
    assert list(findings) == []
    assert len(findings) == 0
    assert findings.healthy
    assert findings.worst is None
    assert "no problems found" in repr(findings)
    assert findings.to_arrow().num_rows == 0


def test_gap(events):
    os.unlink(commit(events, 3))
    finding = assert_mended(events, "gap")
    assert "version 3 is missing although version 4 is there" in finding.what
    assert finding.where == f"{LOG_FOLDER}/{3:020d}.json"


def test_commit_broken_in_the_middle(events):
    commit(events, 3).write_bytes(b'{"add":')
    finding = assert_mended(events, "commit-broken")
    assert "line 1" in finding.what


def test_every_broken_commit_is_reported(events):
    for version in (2, 3, 5):
        commit(events, version).write_bytes(b"{")
    findings = arrowlog.doctor(events)
    broken = [each.where[-7:-5] for each in findings if each.code == "commit-broken"]
    assert broken == ["02", "03", "05"]


def test_commit_torn_at_the_end(root):
    written(root)
    data = commit(root, 5).read_bytes()
    commit(root, 5).write_bytes(data[: len(data) // 2])
    assert_mended(root, "commit-torn")


def test_commit_broken_below_a_checkpoint_is_a_warning(root):
    written(root, every=3)
    commit(root, 2).write_bytes(b"{")
    finding = assert_mended(root, "commit-broken", "warning")
    assert finding.fix.startswith("table.truncate_history(dry_run=True)  # ")


def test_commit_broken_below_a_checkpoint_of_version_0_is_a_warning(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=QUIET)
    table.checkpoint()
    table.write(pa.table({"day": [None], "id": [1]}, schema=SCHEMA))
    commit(root, 0).write_bytes(b"{")
    finding = assert_mended(root, "commit-broken", "warning")
    assert "The checkpoint of version 0 stands for this commit." in finding.what
    assert finding.version == 0


def test_commit_broken_at_version_0_is_fixed_by_repair(root):
    written(root, every=3)
    commit(root, 0).write_bytes(b"{")
    finding = assert_mended(root, "commit-broken", "warning")  # truncation keeps version 0
    assert finding.fix.startswith("arrowlog.repair(")


def test_commit_twice(events):
    testing.write_file(events, f"{3:018d}.json", b'{"add":{}}\n')
    with pytest.raises(arrowlog.LogCorrupt):
        arrowlog.Table(events)
    assert_mended(events, "commit-twice")


def test_odd_name(events):
    testing.write_file(events, f"{10**30}.json", b"{}\n")
    assert_mended(events, "odd-name")


def test_pointer_broken(root):
    written(root, every=5)
    testing.write_pointer(root, b'{"version"')
    assert_mended(root, "pointer-broken", "warning")


@pytest.mark.parametrize("content", [None, {"version": 2}])
def test_pointer_stale(root, content):
    written(root, every=5)
    if content is None:
        os.unlink(f"{root}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
    else:
        testing.write_pointer(root, content)
    assert_mended(root, "pointer-stale", "warning")


def test_history_gap(root):
    written(root, every=5)
    os.unlink(commit(root, 3))
    assert arrowlog.doctor(root).healthy  # the latest version does not need it
    assert_mended(root, "history-gap", "info")


def test_pointer_ahead(events):
    testing.write_pointer(events, {"version": 99})
    assert_mended(events, "pointer-ahead")


@pytest.mark.parametrize(
    "name",
    [f"{5:020d}.checkpoint.json", f"{CHECKPOINT_FOLDER_NAME}/{5:020d}.checkpoint.json"],
)
def test_checkpoint_broken(root, name):
    written(root, every=5)
    path = Path(f"{root}/{LOG_FOLDER}/{name}")
    data = path.read_bytes()
    path.write_bytes(log_damage.flip(data[:-30], random.Random(1)) + data[-30:])
    assert_mended(root, "checkpoint-broken", "warning")


@pytest.mark.filterwarnings("ignore:.*was not used:arrowlog.ArrowlogWarning")
def test_checkpoint_broken_in_a_part(root):
    written(root, every=5)
    path = Path(f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/{5:020d}.checkpoint.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert_mended(root, "checkpoint-broken", "warning")


def test_checkpoint_broken_and_superseded(root):
    written(root, versions=5, every=2)
    path = Path(f"{root}/{LOG_FOLDER}/{2:020d}.checkpoint.json")
    path.write_bytes(b"{")
    for name in os.listdir(f"{root}/{LOG_FOLDER}"):
        os.utime(f"{root}/{LOG_FOLDER}/{name}", (OLD, OLD))
    for name in os.listdir(f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}"):
        os.utime(f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/{name}", (OLD, OLD))
    assert_mended(root, "checkpoint-broken", "info")


def test_checkpoint_partial_without_a_part(root):
    written(root, every=5)
    os.unlink(f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/{5:020d}.checkpoint.parquet")
    assert_mended(root, "checkpoint-partial", "warning")


def test_checkpoint_partial_without_its_manifest(root):
    written(root)
    write_parquet_checkpoint(root, 5)
    os.unlink(f"{root}/{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}/{5:020d}.checkpoint.json")
    assert_mended(root, "checkpoint-partial", "warning")


def test_checkpoint_partial_json(events):
    path = testing.write_checkpoint(events, 6, [*OPENING, GOOD], form="parts")
    os.unlink(path.replace("checkpoint.json", "checkpoint.0123456789ab.00002.json"))
    assert_mended(events, "checkpoint-partial", "warning")


def test_checkpoint_diverges(events):
    testing.write_checkpoint(events, 6, [*OPENING, GOOD])
    assert_mended(events, "checkpoint-diverges")


def test_checkpoint_with_valid_checksums_diverges_from_the_commits(root):
    written(root, every=5)
    data = commit(root, 4).read_bytes()
    commit(root, 3).write_bytes(data)  # a valid commit with another content
    finding = assert_mended(root, "checkpoint-diverges")
    assert "only in the checkpoint" in finding.what


def test_two_tables(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [GOOD])
    log_damage.put(root, ["good.parquet"])
    other = testing.metadata(SCHEMA, ["day"], id="11111111-0000-4000-8000-000000000000")
    testing.write_checkpoint(root, 9, [OPENING[0], other, GOOD])
    finding = assert_mended(root, "two-tables", "warning")
    assert "11111111" in finding.what


def test_duplicate_adds(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [GOOD])
    testing.write_commit(root, 2, [testing.remove("good.parquet"), GOOD])
    log_damage.put(root, ["good.parquet"])
    assert "duplicate-adds" not in arrowlog.doctor(root)
    testing.write_commit(root, 3, [GOOD])
    finding = assert_mended(root, "duplicate-adds", "warning")
    assert "version 3" in finding.what


def test_duplicate_adds_after_a_checkpoint(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [GOOD])
    log_damage.put(root, ["good.parquet"])
    arrowlog.Table(root).checkpoint()
    testing.write_commit(root, 2, [GOOD])
    assert_mended(root, "duplicate-adds", "warning")


def test_removes_without_adds(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [GOOD])
    testing.write_commit(root, 2, [testing.remove("never"), testing.remove("good.parquet")])
    testing.write_commit(root, 3, [testing.remove("good.parquet")])
    finding = assert_mended(root, "removes-without-adds", "info")
    assert finding.count == 2


def test_data_missing(events):
    gone = "day=2024-01-02/part-00001.parquet"
    os.unlink(events / gone)
    finding = assert_mended(events, "data-missing")
    assert finding.where == gone
    assert finding.fix.startswith(f"table.remove([{gone!r}])  # ")
    assert "restore the files from a backup" in finding.fix


def test_many_missing_data_files_are_dropped_by_repair(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [testing.add(f"f{n}", {"day": None}) for n in range(30)])
    log_damage.put(root, [f"f{n}" for n in range(5)])
    finding = assert_mended(root, "data-missing")
    assert finding.count == 25
    assert "arrowlog.repair(" in finding.fix


def test_data_file_of_another_size(events):
    path = events / "day=2024-01-02/part-00001.parquet"
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.slice(0, 10), path)
    assert_mended(events, "data-size", "warning")
    assert arrowlog.Table(events).snapshot().num_records == 4010


def test_orphans(events):
    path = events / "day=2024-01-02/nobodys.parquet"
    path.write_bytes(b"1")
    assert arrowlog.doctor(events).codes == []  # too young
    os.utime(path, (OLD, OLD))
    finding = assert_mended(events, "orphans", "info")
    assert finding.fix == "table.vacuum(older_than='168h')  # Deletes them."
    assert not path.exists()


def test_data_file_checks_can_be_disabled(events):
    os.unlink(events / "day=2024-01-02/part-00001.parquet")
    assert arrowlog.Table(events).doctor(data_files=False).codes == []


def test_missing_statistics(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=QUIET)
    pq.write_table(pa.table({"id": [1, 2]}), f"{root}/a.parquet")
    size = os.path.getsize(f"{root}/a.parquet")
    table.append([arrowlog.add_file("a.parquet", {"day": None}, size=size, tags={"k": "v"})])
    assert "id (1 of 1 files)" in found(root, "stats-missing", "info").what
    assert_mended(root, "stats-missing", "error", assert_stats=["id"])
    assert table.refresh().files["max.id"].to_pylist() == [2]
    assert table.snapshot().files["tags"].to_pylist() == [[("k", "v")]]
    with pytest.raises(arrowlog.InvalidRequest, match="not live files"):
        table.update_statistics(["nobodys.parquet"])
    with pytest.raises(arrowlog.InvalidRequest, match="The columns are: day, id"):
        table.doctor(assert_stats=["no"])


def test_float_columns_without_nan_counts(root):
    """Their maxima cannot be used until the counts are added from the files."""
    schema = pa.schema([("x", pa.float64()), ("y", pa.float32()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, options=QUIET)
    rows = pa.table({"x": [1.5, -0.0], "y": [1.0, float("nan")], "id": [1, 2]}, schema=schema)
    pq.write_table(rows, f"{root}/a.parquet")
    bounds = {"min_values": {"x": "0.0", "id": "1"}, "max_values": {"x": "1.5", "id": "2"}}
    size = os.path.getsize(f"{root}/a.parquet")
    table.append([arrowlog.add_file("a.parquet", size=size, num_records=2, **bounds)])
    assert table.scan("x > 5").num_files == 1
    finding = assert_mended(root, "nan-unknown", "info")
    assert finding.where == "x"
    assert "x (1 of 1 files)" in finding.what
    table.refresh()
    assert table.scan("x > 5").num_files == 0
    assert table.scan("x < 0").num_files == table.scan("x = 0").num_files - 1 == 0
    assert table.scan("y > 5").num_files == 1


def test_statistics_dropped_because_of_their_length(root):
    table = arrowlog.Table.create(root, pa.schema([("text", pa.string())]), options=QUIET)
    table.write(pa.table({"text": ["x" * 2000]}))
    assert_mended(root, "stats-missing", "error", assert_stats=["text"])
    assert table.refresh().files["max.text"][0].as_py() == "x" * 1023 + "y"


def test_float_statistics_that_the_footer_lacks(root):
    schema = pa.schema([("x", pa.float64()), ("id", pa.int64())])
    table = arrowlog.Table.create(root, schema, options=QUIET)
    rows = {"a": [1.5, -2.5], "b": [float("nan"), 3.0]}
    for name, values in rows.items():
        pq.write_table(pa.table({"x": values, "id": [1, 2]}), f"{root}/{name}.parquet")
    table.append([arrowlog.add_parquet(table, f"{name}.parquet") for name in rows])
    assert table.snapshot().files["max.x"].to_pylist() == [None, None]
    table.update_statistics(["a.parquet", "b.parquet"])
    files = table.refresh().files.sort_by("path")
    assert files["min.x"].to_pylist() == [-2.5, 3.0]
    assert files["max.x"].to_pylist() == [1.5, None]  # NaN is above every number
    assert files["max.id"].to_pylist() == [2, 2]


def test_all_null_column_needs_no_bounds(root):
    table = arrowlog.Table.create(root, SCHEMA, ["day"], options=QUIET)
    table.write(pa.table({"day": [None], "id": [None]}, schema=SCHEMA))
    assert table.doctor(assert_stats=["id"]).codes == []


@pytest.mark.parametrize("mark", ["", " [TRUNCATED]"])
def test_possibly_truncated_bounds(root, mark):
    schema = pa.schema([("text", pa.string())])
    table = arrowlog.Table.create(root, schema, options=QUIET)
    adds = []
    for number in range(2):
        path = f"f{number}.parquet"
        pq.write_table(pa.table({"text": [f"{number}" * 40]}), f"{root}/{path}")
        size = os.path.getsize(f"{root}/{path}")
        low = f"{number}" * 32 + mark
        fields = {"size": size, "min_values": {"text": low}, "max_values": {"text": low}}
        adds.append(arrowlog.add_file(path, {}, **fields))
    table.append(adds)
    assert_mended(root, "bounds-truncated", "info")


def test_bounds_truncated_by_a_setting(root):
    options = QUIET | {"stats.truncation.strategy": "truncate", "stats.truncation.maxLength": 40}
    table = arrowlog.Table.create(root, pa.schema([("text", pa.string())]), options=options)
    for letter in "ab":
        table.write(pa.table({"text": [letter * 100]}))
    assert arrowlog.doctor(root).codes == []  # 40 is not a truncation length
    finding = assert_mended(root, "bounds-truncated", "info", options=options)
    assert "maxLength" in finding.fix


def test_too_many_commits_since_the_checkpoint(root):
    written(root, versions=3)
    assert arrowlog.doctor(root, max_commits_since_checkpoint=3).codes == []
    assert_mended(root, "checkpoint-behind", "error", max_commits_since_checkpoint=2)
    for version in range(4, 25):
        testing.write_commit(root, version, [testing.add(f"x{version}", {"day": None})])
    log_damage.put(root, [f"x{version}" for version in range(4, 25)])
    assert_mended(root, "checkpoint-behind", "warning")


def test_small_files(root):
    table = written(root, versions=4)
    assert table.doctor().codes == []
    finding = assert_mended(root, "small-files", max_small_files=3)
    assert finding.fix == "table.compact()  # Merges small files; no row changes."
    assert table.refresh().num_files == 1


def test_skips_piling_up(root):
    table = written(root, versions=2)
    path = table.snapshot().files["path"][0].as_py()
    for _ in range(3):
        table.skips.record(path, reason="cannot be read", operation="merge")
    finding = assert_mended(root, "skips-piling-up", "warning")
    assert "cannot be read" in finding.what


def test_protocol_unknown(root):
    testing.write_commit(root, 0, [testing.protocol(9, 9), OPENING[1]])
    finding = found(root, "protocol-unknown", "error")
    assert finding.fix.startswith("pip install --upgrade arrowlog  # ")
    assert arrowlog.doctor(root).version is None
    testing.write_commit(root, 0, OPENING)  # as a newer arrowlog would read it
    assert "protocol-unknown" not in arrowlog.doctor(root)


def test_checkpoint_with_a_newer_protocol(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_checkpoint(root, 1, [testing.protocol(9, 9), OPENING[1]])
    assert found(root, "protocol-unknown", "error")


def test_table_with_unknown_writer_features(root):
    features = testing.protocol(2, 3, writerFeatures=["deletionVectors"])
    testing.write_commit(root, 0, [features, OPENING[1]])
    finding = found(root, "feature-unknown", "warning")
    assert "deletionVectors" in finding.what
    testing.write_commit(root, 0, OPENING)
    assert arrowlog.doctor(root).codes == []


def test_missing_log(tmp_path):
    findings = arrowlog.doctor(tmp_path / "nowhere")
    assert findings.codes == ["unreadable"]
    assert findings.version is None


def test_log_without_version_0(root):
    testing.write_commit(root, 1, [GOOD])
    finding = found(root, "unreadable", "error")
    assert "backup" in finding.fix
    assert arrowlog.Table(root).doctor().codes[0] == "unreadable"
    testing.write_commit(root, 0, OPENING)
    assert "unreadable" not in arrowlog.doctor(root, data_files=False)


def test_unreadable_log_is_examined_up_to_the_salvageable_version(events):
    commit(events, 5).write_bytes(b"{")
    findings = arrowlog.Table(events).doctor()
    assert findings.codes == ["commit-broken", "unreadable"]
    assert findings.version == 4
    assert_mended(events, "unreadable")


def test_paths_outside_the_table(root):
    testing.write_commit(root, 0, OPENING)
    testing.write_commit(root, 1, [testing.add("/elsewhere/x", {"day": None})])
    finding = found(root, "paths-outside", "error")
    table = eval(finding.fix, {"arrowlog": arrowlog})
    assert "paths-outside" not in table.doctor()


def test_findings_as_arrow_text_and_html(events):
    os.unlink(commit(events, 3))
    (events / "day=2024-01-02/part-00001.parquet").unlink()
    findings = arrowlog.Table(events).doctor()
    assert findings.worst == "error"
    assert not findings.healthy
    assert findings[0].code == findings.codes[0] == "gap"
    assert findings.at_least("warning") == list(findings)
    assert findings.paths("data-missing") == ["day=2024-01-02/part-00001.parquet"]
    frame = pl.DataFrame(findings)
    assert frame.columns == ["code", "severity", "what", "where", "fix", "count"]
    assert frame["severity"].to_list() == ["error", "error"]
    text = str(findings)
    assert f"{events}, version 2: 2 errors" in text
    assert "fix:   arrowlog.repair('" in text
    assert "1 live file does not exist: 'day=2024-01-02/part-00001.parquet'." in text
    html = findings._repr_html_()
    assert "<code>gap</code>" in html
    assert "&#x27;" in html


@pytest.mark.parametrize("kind", ["memory", "s3fs-moto", "obstore-moto"])
def test_doctor_works_on_every_store(kind, request):
    place = store_places.make(kind, request)
    how = {"options": {"store.accelerate": kind != "s3fs-moto"}}
    place.put(f"{LOG_FOLDER}/{0:020d}.json", testing.lines(OPENING))
    place.put(f"{LOG_FOLDER}/{1:020d}.json", testing.lines([GOOD]))
    findings = arrowlog.doctor(place.uri, place.options, **how)
    assert findings.codes == ["data-missing", "stats-missing"]
    place.put("good.parquet", b"1")
    assert arrowlog.doctor(place.uri, place.options, **how).healthy
    table = arrowlog.Table(place.uri, place.options, **how)
    place.put(f"{LOG_FOLDER}/{1:020d}.json", b"{")
    assert table.doctor().codes == ["commit-torn", "unreadable"]


def test_concurrent_cleanup_causes_no_finding(root, monkeypatch):
    table = written(root, every=2)
    whole = log_checks._check_commits

    def late(case):
        if commit(root, 1).exists():
            os.unlink(commit(root, 1))
        whole(case)

    monkeypatch.setattr(log_checks, "_check_commits", late)
    assert table.doctor().codes == []


def test_table_that_only_a_checkpoint_without_manifest_describes_is_explained(root):
    arrowlog.Table.create(root, SCHEMA, properties={"checkpoint.format": "parquet"})
    arrowlog.Table(root).append([arrowlog.add_file("a", size=1)])
    arrowlog.Table(root).checkpoint()
    folder = Path(root) / LOG_FOLDER
    (folder / CHECKPOINT_FOLDER_NAME / f"{1:020d}.checkpoint.json").unlink()
    commit(root, 0).unlink()
    findings = arrowlog.doctor(root)
    assert findings.codes == ["unreadable", "checkpoint-partial"]
    [unreadable] = [finding for finding in findings if finding.code == "unreadable"]
    assert "the checkpoint of version 1 cannot be read" in unreadable.what
    assert "the commit of version 0, which is needed instead, is gone" in unreadable.what

"""Reports: complete, safe to mail and to open, for healthy, unusual and damaged tables."""

import ast
import base64
import hashlib
import html
import io
import json
import os
import re
import stat
import sys
import threading
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from support import browser, event_table, state_tables
from support.log_damage import log_of
from support.s3_servers import BUCKET, KEY
from support.s3_servers import SECRET as S3_SECRET

import arrowlog
from arrowlog import testing
from arrowlog.cli.commands import commands
from arrowlog.clock import SystemClock
from arrowlog.report import ReportFacts, ReportSources, collect_facts
from arrowlog.report.markup import time_labels
from arrowlog.report.page import TableReport

SIZE_MAX = 3_000_000
DAY = 86_400_000
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"' onload=alert(1) x='",
    "<!--slot:script-->",
    "a\x00b\x1b[31m\u202egnp.exe\u2066",
    "]]>&lt;b&gt;{{x}}${y}\\n",
    "javascript:alert(1)",
)
SECTIONS = (
    *("health", "growth", "sizes", "partitions", "pruning", "statistics", "checkpoints"),
    *("retention", "commits"),
)


class Reader(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.ids = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)

    def tags(self):
        return {tag for tag, _ in self.elements}


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "events"
    event_table.build(str(folder))
    return folder


@pytest.fixture(scope="module")
def report(events):
    return arrowlog.Table(events).report()


def markup_of(page):
    """The page without its style sheet and script."""
    return re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)


def test_report_has_every_section_with_the_facts_of_the_log(report):
    page, facts = Reader(report.html), report.facts
    assert [item for item in SECTIONS if item in page.ids] == list(SECTIONS)
    assert not facts.unavailable
    assert (facts.name, facts.format, facts.location) == ("events", "indextables", None)
    summary = facts.summary
    assert (summary.version, summary.num_files, summary.num_records) == (6, 5, 5000)
    assert facts.commits[0].operation == "MERGE"
    assert [each.files for each in facts.timeline.growth] == [0, 1, 2, 3, 4, 5, 5]
    assert facts.timeline.growth[1].time == datetime(2024, 1, 1, 1, tzinfo=UTC)
    verdicts = {each.name: each.verdict for each in facts.columns.items}
    assert verdicts == {"day": "prunes", "id": "prunes", "city": "poor"}
    for shown in ("events", "MERGE", "IndexTables", "does not prune", "5,000"):
        assert shown in page.text


def test_page_is_accessible(report):
    page = Reader(report.html)
    assert {"header", "nav", "main", "footer", "h1", "h2", "caption"} <= page.tags()
    assert len(page.ids) == len(set(page.ids))
    html_tag = next(attrs for tag, attrs in page.elements if tag == "html")
    assert html_tag["lang"] == "en"
    for tag, attrs in page.elements:
        for reference in ("aria-labelledby", "aria-controls", "for"):
            assert set((attrs.get(reference) or "").split()) <= set(page.ids), (tag, attrs)
        if tag == "svg" and attrs.get("class") == "chart":
            assert attrs["role"] == "img"
        if tag == "th":
            assert attrs["scope"] in ("row", "col")
        if tag == "a":
            assert attrs["href"].removeprefix("#") in page.ids
    charts = report.html.count('class="chart"')
    assert charts == 5
    assert report.html.count("<desc ") == charts
    assert page.text.count("Data: ") == 3  # the bar of verdicts has its numbers beside it


def test_page_is_self_contained_and_allows_only_its_own_code(report):
    page = Reader(report.html)
    for tag, attrs in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img")
        assert not set(attrs) & {"src", "srcset", "style", "action", "background", "ping"}
        assert not [name for name in attrs if name.startswith("on")]
    assert "://" not in report.html
    assert "url(" not in report.html
    assert "@import" not in report.html
    script = re.findall(r"<script>(.*?)</script>", report.html, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", report.html, re.DOTALL)
    assert len(script) == len(style) == 1
    assert "eval(" not in script[0]
    assert "innerHTML" not in script[0]
    metas = [attrs for tag, attrs in page.elements if tag == "meta" and "http-equiv" in attrs]
    policy = metas[0]["content"]
    for content, directive in ((script[0], "script-src"), (style[0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def hostile_table(root):
    names = [f"{number}{text}" for number, text in enumerate(HOSTILE)]
    schema = pa.schema([(names[0], pa.string()), *((name, pa.int64()) for name in names[1:])])
    meta = testing.metadata(schema, [names[0]])
    meta["metaData"]["name"] = HOSTILE[1]
    testing.write_commit(root, 0, [testing.protocol(), meta])
    for version, text in enumerate(HOSTILE, 1):
        info = testing.commit_info(1_700_000_000_000 + version, text, engineInfo=text)
        bounds = {name: str(version) for name in names[1:]}
        action = testing.add(
            f"f{version}{text.replace(chr(0), '')}.parquet",
            {names[0]: text},
            minValues=bounds,
            maxValues=bounds,
        )
        testing.write_commit(root, version, [info, action])
    return names


@pytest.mark.parametrize("paths", [False, True])
def test_names_in_a_log_are_escaped(tmp_path, paths, report):
    plain_tags = Reader(report.html).tags() | {"pre", "h4", "em"}
    names = hostile_table(tmp_path / "t")
    made = arrowlog.Table(tmp_path / "t").report(paths=paths)
    # DuckDB cuts names of columns at a zero byte, so the history of this table has no SQL views.
    assert set(made.facts.unavailable) <= {"timeline"}
    page = Reader(made.html)
    assert page.tags() <= plain_tags
    assert [tag for tag, _ in page.elements].count("script") == 1
    allowed = {"class", "id", "href", "data-v", "data-tip", "title", "aria-label", "datetime"}
    for _, attrs in page.elements:
        hostile = {name for name, value in attrs.items() if value and "alert" in value}
        assert hostile <= allowed
        assert not [name for name in attrs if name.startswith("on")]
        assert not (attrs.get("href") or "").startswith("javascript")
    markup = markup_of(made.html)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", markup)
    assert "\\x00" in markup
    assert "\\u202e" in markup
    for text in (*names[:3], HOSTILE[0]):
        assert text in page.text
    assert json.loads(made.to_json())["columns"]["items"][0]["name"] == names[0]


SECRET = "hunter2"


def test_report_has_no_secrets(tmp_path):
    schema = pa.schema([("id", pa.int64())])
    address = f"https://user:{SECRET}@host/a?sig={SECRET}&x=1"
    meta = testing.metadata(schema, configuration={"fs.s3a.secret.key": SECRET, "owner": address})
    meta["metaData"]["description"] = SECRET
    meta["metaData"]["name"] = f"events of {address}"
    info = testing.commit_info(
        1_700_000_000_000,
        f"COPY FROM {address}",
        userMetadata=SECRET,
        operationParameters={"credentials": SECRET},
        engineInfo=f"tool {address}",
    )
    root = tmp_path / "t"
    testing.write_commit(root, 0, [info, testing.protocol(), meta, testing.add("a.parquet")])
    testing.write_commit(root, 1, [testing.add(address, size=5)])
    for outside in (False, True):
        table = arrowlog.Table(root, {"auto_mkdir": False}, allow_outside_paths=outside)
        for paths in (False, True):
            made = table.report(paths=paths)
            assert SECRET not in made.html
            assert SECRET not in made.to_json()
            assert "auto_mkdir" not in made.html


def test_report_on_s3_has_no_credentials_and_an_optional_uri(moto):
    server, _ = moto
    uri = f"s3://{BUCKET}/private/folder/events"
    table = arrowlog.Table.create(
        uri, pa.schema([("id", pa.int64())]), (), None, storage_options=server.options
    )
    table.write(pa.table({"id": [1, 2]}))
    hidden, shown = table.report(), table.report(paths=True)
    assert not hidden.facts.unavailable
    for made in (hidden, shown):
        for text in (made.html, made.to_json()):
            assert not [secret for secret in (KEY, S3_SECRET, server.url) if secret in text]
    assert "private" not in hidden.html
    assert hidden.facts.name == "events"
    assert uri in shown.html


def test_paths_are_hidden_by_default(tmp_path):
    root = tmp_path / "private-folder" / "events"
    schema = pa.schema([("id", pa.int64())])
    opening = [testing.protocol(), testing.metadata(schema)]
    paths = [
        "private-name/one two.parquet",
        "private-name.split",
        "private-name'quoted\".parquet",
        "private name of a file without an extension",
    ]
    testing.write_commit(root, 0, [*opening, *(testing.add(path) for path in paths)])
    testing.write_commit(root, 1, [testing.add(paths[0]), testing.remove("private-name/x y z")])
    table = arrowlog.Table(root)
    hidden, shown = table.report(), table.report(paths=True)
    assert {"data-missing", "duplicate-adds"} <= {f.code for f in hidden.facts.health.items}
    for text in (hidden.html, hidden.to_json()):
        assert "private" not in text
        assert "file-" in text
    assert str(root) in shown.html
    assert html.escape(paths[2]) in shown.html
    assert [each.path for each in shown.facts.file_sizes.largest].count(paths[1]) == 1


def test_report_of_a_damaged_table_names_missing_sections(tmp_path):
    event_table.build(tmp_path / "t")
    commit = f"{log_of(tmp_path / 't')}/{4:020d}.json"
    os.truncate(commit, os.path.getsize(commit) // 2)
    made = arrowlog.Table(tmp_path / "t").report()
    facts = made.facts
    assert facts.health.worst == "error"
    assert facts.summary is None
    assert {"summary", "file_sizes", "columns", "timeline"} <= set(facts.unavailable)
    page = Reader(made.html)
    assert "Cannot be read" in page.text
    assert page.text.count("Not computed.") >= 4
    assert "commit-broken" in page.text
    assert str(tmp_path) not in made.html


def test_damaged_old_commit_affects_only_the_sections_that_need_it(tmp_path):
    event_table.build(tmp_path / "t")
    table = arrowlog.Table(tmp_path / "t")
    table.checkpoint()
    commit = f"{log_of(tmp_path / 't')}/{2:020d}.json"
    os.truncate(commit, os.path.getsize(commit) // 2)
    facts = arrowlog.Table(tmp_path / "t").report().facts
    assert facts.summary.num_files == 5
    assert facts.columns is not None
    assert set(facts.unavailable) <= {"timeline", "commits"}
    assert "timeline" in facts.unavailable


@pytest.mark.parametrize("partitions", [(), ("day",)])
def test_report_of_a_table_without_files(tmp_path, partitions):
    schema = pa.schema([("day", pa.string()), ("id", pa.int64())])
    made = arrowlog.Table.create(tmp_path / "t", schema, partitions).report()
    facts = made.facts
    assert not facts.unavailable
    assert facts.file_sizes is facts.partitions is facts.columns is None
    assert len(facts.timeline.growth) == 1
    assert "The table has no files." in made.html


def test_report_of_a_table_without_statistics(tmp_path):
    schema = pa.schema([("a", pa.binary()), ("b", pa.list_(pa.int64())), ("c", pa.int64())])
    opening = [testing.protocol(), testing.metadata(schema)]
    testing.write_commit(tmp_path / "t", 0, [*opening, testing.add("x"), testing.add("y")])
    made = arrowlog.Table(tmp_path / "t").report()
    verdicts = {each.name: each.verdict for each in made.facts.columns.items}
    assert verdicts == {"a": "unsupported", "b": "unsupported", "c": "none"}
    assert made.facts.columns.files_with_rows == 0
    assert "no bounds" in made.html


def test_struct_fields_are_reported_as_columns(tmp_path):
    schema = pa.schema([("s", pa.struct([("x", pa.int64()), ("y.z", pa.string())]))])
    stats = '{"numRecords":3,"minValues":{"s":{"x":1}},"maxValues":{"s":{"x":%d}}}'
    adds = [testing.add(str(n), stats=stats % n) for n in (2, 3)]
    opening = [testing.protocol(), testing.metadata(schema)]
    testing.write_commit(tmp_path / "t", 0, [*opening, *adds])
    items = arrowlog.Table(tmp_path / "t").report().facts.columns.items
    assert [(each.name, each.files_with_bounds) for each in items] == [("s.x", 2), ("s.`y.z`", 0)]


def test_report_of_a_delta_table(tmp_path):
    import deltalake

    rows = pa.table({"region": ["north", "south"], "amount": [10.0, 20.0]})
    deltalake.write_deltalake(tmp_path / "t", rows, partition_by=["region"])
    made = arrowlog.Table(tmp_path / "t").report()
    assert made.facts.format == "delta"
    assert made.facts.unavailable == {}
    assert made.facts.retention is None
    assert "arrowlog only reads tables of this format" in made.html
    assert made.facts.summary.num_files == 2
    assert "Delta" in Reader(made.html).text


@pytest.mark.parametrize("reader", [3, 4])
def test_report_of_tables_of_newer_protocols(tmp_path, reader):
    table = arrowlog.Table.create(tmp_path / "t", state_tables.SCHEMA, ["p"])
    table.append([arrowlog.add_file("a", {"p": "1"}, size=3)])
    if reader == 3:
        table.upgrade_protocol(3, 3)
        table.checkpoint()
    else:
        table.upgrade_protocol(reader=4, writer=4)
    made = arrowlog.Table(tmp_path / "t").report(data_files=False)
    assert not made.facts.unavailable
    assert made.facts.summary.reader_version == reader
    assert made.facts.checkpoints.commits_since == 0
    assert made.facts.timeline.growth[-1].files == 1


def test_report_of_an_avro_state_without_commits(tmp_path):
    state_tables.first_commit(tmp_path / "t")
    adds = [state_tables.add("a", "1", 1, 5), state_tables.add("b", "2", 3)]
    state_tables.write_state(tmp_path / "t", 1, [adds])
    facts = arrowlog.Table(tmp_path / "t").report(data_files=False).facts
    assert not facts.unavailable
    assert facts.summary.num_files == 2


def at(days):
    return 1_700_000_000_000 + round(days * 86_400_000)


def table_with_times(root, times):
    opening = [testing.protocol(), testing.metadata(pa.schema([("id", pa.int64())]))]
    for version, time in enumerate(times):
        actions = [testing.add(f"f{version}", size=10), *(opening if not version else ())]
        testing.write_commit(root, version, [testing.commit_info(time, "WRITE"), *actions])
    return arrowlog.Table(root)


def facts_at(table, now_ms):
    sources = ReportSources(table._tracker, table._history_session, lambda: table._session)
    return collect_facts(sources, data_files=False, now_ms=now_ms)


def test_growth_is_monotonic_in_time_despite_a_wrong_clock(tmp_path):
    times = [at(0), at(1), at(4000), at(2), 0, at(3), 1 << 61]
    facts = facts_at(table_with_times(tmp_path / "t", times), at(3.5))
    growth = facts.timeline.growth
    assert facts.timeline.num_moved == 2  # the last has no valid time
    assert [point.files for point in growth] == sorted(point.files for point in growth)
    assert growth[0].time.timestamp() * 1000 == at(0)
    assert growth[-1].time.timestamp() * 1000 == at(3)
    assert growth[-1].files == len(times)
    assert "2 commits have times in the future" in TableReport(facts).html


def test_commit_timestamp_ahead_of_the_clock(tmp_path):
    facts = facts_at(table_with_times(tmp_path / "t", [at(5)]), at(0))
    assert facts.timeline.num_moved == 0  # all are ahead: the clock of the reader is behind
    assert "5 days ahead" in TableReport(facts).html


def test_outlook_matches_retention(tmp_path):
    quiet = {"checkpoint.enabled": False}
    days = {"spark.indextables.logRetention.duration": 10 * DAY}
    schema = pa.schema([("id", pa.int64())])
    table = arrowlog.Table.create(tmp_path / "t", schema, (), days, options=quiet)
    for number in range(4):
        table.append([arrowlog.add_file(f"f{number}", size=1)])
        if number in (1, 2):
            table.checkpoint()
    now = SystemClock().now_ms()
    facts = facts_at(table, now)
    assert facts.retention.log_days == 10
    assert [step.days_ahead for step in facts.retention.steps] == [0, 7, 30, 90]
    for step in facts.retention.steps:
        plan = table.retention(now=now + step.days_ahead * DAY)
        assert (step.files, step.commits, step.bytes) == (
            plan.num_files,
            plan.num_commits,
            plan.bytes_freed,
        )
        assert (step.earliest_version, step.num_versions) == (
            plan.earliest_version,
            len(plan.versions),
        )
    assert [step.commits for step in facts.retention.steps] == [0, 0, 2, 2]
    assert facts.checkpoints.version == 3
    assert facts.checkpoints.commits_since == 1


@pytest.mark.parametrize(
    "times", [[0, 0], [-(10**13), 10**12], [-62_135_596_800_000, 253_402_300_799_000], [1 << 62]]
)
def test_any_timestamp_can_be_drawn(tmp_path, times):
    facts = facts_at(table_with_times(tmp_path / "t", times), at(0))
    assert len(TableReport(facts).html) < SIZE_MAX


@pytest.mark.parametrize("seconds", [0, 1, 59, 3600, 86_400, 10**6, 10**8, 10**10])
def test_time_axes_have_few_labels_in_order(seconds):
    start = datetime(1999, 12, 31, 23, 59, 7, tzinfo=UTC)
    labels = time_labels(start, start + timedelta(seconds=seconds))
    assert 1 <= len(labels) <= 8
    assert [label.at for label in labels] == sorted(label.at for label in labels)
    assert all(0 <= label.at <= 1 for label in labels)


@pytest.mark.thorough
def test_page_of_a_wide_table_with_long_names_is_small(tmp_path):
    columns = [(f"{number}{chr(34) * 300}", pa.int64()) for number in range(700)]
    schema = pa.schema([("p", pa.string()), ("q", pa.string()), *columns])
    adds = [testing.add(f"{n}", {"p": "<" * n * 20, "q": "&" * n}) for n in range(300)]
    opening = [testing.protocol(), testing.metadata(schema, ["p", "q"])]
    for version in range(60):
        info = testing.commit_info(at(version), "'" * 5000 + str(version), engineInfo="<" * 5000)
        actions = [*opening, *adds] if version == 0 else []
        testing.write_commit(tmp_path / "t", version, [info, *actions])
    made = arrowlog.Table(tmp_path / "t").report()
    assert made.facts.columns.total == 702
    assert "further columns are left out" in made.html
    assert len(made.html.encode()) < SIZE_MAX


@pytest.mark.thorough
def test_page_of_a_large_table_is_small(tmp_path):
    count = 200_000
    schema = pa.schema([("p", pa.string()), ("id", pa.int64())])
    head = [testing.protocol(), testing.metadata(schema, ["p"])]
    testing.write_commit(tmp_path / "t", 0, head)
    line = (
        '{"add":{"path":"p=%d/%d.parquet","partitionValues":{"p":"%d"},"size":%d,'
        '"modificationTime":0,"dataChange":true,"numRecords":10,"minValues":{"id":"%d"},'
        '"maxValues":{"id":"%d"}}}\n'
    )
    lines = (line % (n % 9999, n, n % 9999, n, 10 * n, 10 * n + 9) for n in range(count))
    content = testing.lines(head) + "".join(lines).encode()
    testing.write_file(tmp_path / "t", f"{5:020d}.checkpoint.json", content)
    made = arrowlog.Table(tmp_path / "t").report(data_files=False)
    assert not made.facts.unavailable
    assert made.facts.summary.num_files == count
    assert made.facts.partitions.total == 9999
    assert {each.name: each.lookup_files for each in made.facts.columns.items}["id"] == 1.0
    assert len(made.html.encode()) < SIZE_MAX / 4


def test_save_replaces_only_reports(report, tmp_path):
    target = tmp_path / "report.html"
    assert report.save(target) == str(target)
    assert target.read_text() == report.html
    target.chmod(0o640)
    target.write_text(report.html[:1500])  # an older one
    report.save(target)
    assert target.read_text() == report.html
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    (tmp_path / "empty.html").touch()
    report.save(tmp_path / "empty.html")
    (tmp_path / "link.html").symlink_to(target)
    report.save(tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    (tmp_path / "thesis.html").write_text("<!doctype html><p>mine</p>")
    for path, message in (
        (tmp_path / "thesis.html", "is not a report"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "report.html", "does not exist"),
        ("s3://bucket/report.html", "is a URL"),
    ):
        with pytest.raises(arrowlog.InvalidRequest, match=message):
            report.save(path)
    assert (tmp_path / "thesis.html").read_text() == "<!doctype html><p>mine</p>"
    assert sorted(os.listdir(tmp_path)) == ["empty.html", "link.html", "report.html", "thesis.html"]


def test_target_is_checked_before_the_report_is_computed(events, tmp_path):
    (tmp_path / "thesis.html").write_text("mine")
    steps = []
    with pytest.raises(arrowlog.InvalidRequest, match="is not a report"):
        arrowlog.Table(events).report(
            tmp_path / "thesis.html", progress=lambda *step: steps.append(step)
        )
    assert not steps


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in folders")
def test_save_to_a_pipe(report, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    report.save(tmp_path / "pipe")
    reader.join()
    assert received == [report.html]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_failed_save_keeps_the_old_report(report, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    report.save(target)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(arrowlog.InvalidRequest, match="No space left on device"):
        report.save(target)
    assert os.listdir(tmp_path) == ["report.html"]
    assert target.read_text() == report.html


def test_notebook_shows_the_page_in_an_iframe(report):
    frame = Reader(report._repr_html_())
    ((tag, attrs),) = frame.elements
    assert tag == "iframe"
    assert attrs["srcdoc"] == report.html
    assert attrs["sandbox"] == "allow-scripts"
    assert repr(report).startswith("TableReport('events', ")


def test_progress_ends_at_the_total(events):
    steps = []
    arrowlog.Table(events).report(progress=lambda done, total: steps.append((done, total)))
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_json_has_all_facts(report):
    assert msgspec.json.decode(report.to_json(), type=ReportFacts) == report.facts


def run(*arguments):
    return CliRunner().invoke(commands, ["report", *map(str, arguments)])


def test_report_command_writes_the_page_and_prints_its_path(events, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(events)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("report.html: ")
    assert Reader((tmp_path / "report.html").read_text()).tags() >= {"main", "svg"}
    assert run(events, "-o", "other.html", "--no-data-files").exit_code == 0
    assert run(events, "-o", "-").output.startswith("<!doctype html>")
    (tmp_path / "mine.txt").write_text("mine")
    refused = run(events, "-o", "mine.txt")
    assert isinstance(refused.exception, arrowlog.InvalidRequest)


def test_report_command_prints_json(events, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(events, "--output", "json")
    assert done.exit_code == 0, done.output
    facts = json.load(io.StringIO(done.output))
    assert facts["summary"]["num_files"] == 5
    assert facts["timeline"]["growth"][1]["time"] == "2024-01-01T01:00:00Z"
    assert os.listdir(tmp_path) == []


def test_report_command_succeeds_for_a_damaged_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    event_table.build(tmp_path / "t")
    os.truncate(f"{log_of(tmp_path / 't')}/{4:020d}.json", 20)
    done = run(tmp_path / "t")
    assert done.exit_code == 0, done.output
    assert "not computed: summary" in done.output


def test_browser_names_in_dev_match_the_tests():
    source = (Path(__file__).parents[2] / "dev.py").read_text()
    names = re.search(r"^BROWSERS = (\(.*?\))$", source, re.MULTILINE)
    assert ast.literal_eval(names[1]) == browser.NAMES

"""The sections of a report as HTML. Pure.

Each function takes all facts and returns the content of one section: what is known, or why it is
not.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from arrowlog.display import format_bytes, format_count
from arrowlog.report.markup import (
    Bar,
    Cell,
    Head,
    Label,
    area_chart,
    bar_chart,
    code,
    data_details,
    data_table,
    format_number,
    format_size,
    inline_bar,
    name,
    stacked_bar,
    text,
    time_labels,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.report.facts import (
        ChurnBucket,
        ColumnFacts,
        FileSizeFacts,
        FindingFacts,
        GrowthPoint,
        PartitionsFacts,
        ReportFacts,
        TimelineFacts,
    )

_UNKNOWN = '<span class="muted">&ndash;</span>'
_ROWS_SHOWN = 12  # of a long table, until the reader asks for all
_UNITS = (("year", 31_557_600), ("day", 86_400), ("hour", 3600), ("minute", 60))
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_VERDICTS = {
    "prunes": ("prunes", "good"),
    "partly": ("prunes partly", "fair"),
    "poor": ("does not prune", "bad"),
    "single": ("one file", "flat"),
    "none": ("no bounds", "flat"),
    "unsupported": ("type without bounds", "flat"),
}
_VERDICT_ORDER = ("poor", "none", "partly", "prunes", "single", "unsupported")


def format_time(time: datetime | None) -> str:
    """Return a time in UTC, to the minute, as markup."""
    if time is None:
        return '<span class="muted">unknown</span>'
    utc = time.astimezone(UTC)
    # Not strftime: it does not pad years below 1000 everywhere.
    shown = f"{utc.year:04d}-{utc.month:02d}-{utc.day:02d} {utc.hour:02d}:{utc.minute:02d}"
    return f'<time datetime="{utc.isoformat()}">{shown} UTC</time>'


def _plain_time(time: datetime) -> str:
    return f"{time.year:04d}-{time.month:02d}-{time.day:02d} {time.hour:02d}:{time.minute:02d}"


def format_age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit, rounded down.

    >>> format_age(7300), format_age(20), format_age(-90_000)
    ('2 hours ago', 'just now', '1 day ahead')
    """
    size = abs(seconds)
    for unit, length in _UNITS:
        if size >= length:
            count = int(size // length)
            spelled = f"{count:,} {unit}{'' if count == 1 else 's'}"
            return f"{spelled} ago" if seconds > 0 else f"{spelled} ahead"
    return "just now"


def _percent(share: float) -> str:
    """Return a share in percent, precise where it is small.

    >>> _percent(0.5), _percent(0.0123), _percent(0.00001), _percent(0.9999)
    ('50%', '1.2%', '<0.1%', '>99.9%')
    """
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{share * 100:.1f}".removesuffix(".0") + "%"


def _count(value: int | None) -> Cell:
    return Cell(_UNKNOWN) if value is None else Cell(f"{value:,}", value)


def _bytes(value: int | None) -> Cell:
    if value is None:
        return Cell(_UNKNOWN)
    return Cell(format_bytes(value), value)


def _time(time: datetime | None) -> Cell:
    return Cell(format_time(time), None if time is None else time.timestamp())


def _unavailable(facts: ReportFacts, section: str) -> str:
    """Return why a section is missing."""
    reason = facts.unavailable.get(section)
    if reason is None:
        return '<p class="empty">There is nothing to show.</p>'
    return f'<p class="empty unavailable"><strong>Not computed.</strong> {text(reason)}</p>'


def _definitions(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in pairs)
    return f'<dl class="numbers">{rows}</dl>'


def health(facts: ReportFacts) -> str:
    """Findings of the doctor, each with its fix."""
    found = facts.health
    scope = f'<p class="muted">{text(found.scope)}</p>' if found.scope else ""
    by_reason: dict[str, list[str]] = {}
    for section, reason in facts.unavailable.items():
        by_reason.setdefault(reason, []).append(section.replace("_", " "))
    missing = "".join(
        f"<li><strong>{text(', '.join(names).capitalize())}</strong>: {text(reason)}</li>"
        for reason, names in by_reason.items()
    )
    missing = f'<h3>Could not be computed</h3><ul class="missing">{missing}</ul>' if missing else ""
    warnings = facts.summary.warnings if facts.summary is not None else ()
    notes = "".join(f"<li>{text(warning)}</li>" for warning in warnings)
    notes = f'<h3>Warnings of the reader</h3><ul class="missing">{notes}</ul>' if notes else ""
    if not found.items:
        return f'<p class="empty">The doctor found no problem.</p>{scope}{missing}{notes}'
    cards = "".join(_finding(finding) for finding in found.items)
    tools = ""
    if len(found.items) > 5:
        tools = (
            '<div class="tools" hidden><label for="findings-q">Filter findings</label>'
            '<input id="findings-q" type="search" data-filter="findings" autocomplete="off"'
            ' spellcheck="false"><output for="findings-q" id="findings-n" aria-live="polite">'
            "</output></div>"
        )
    rest = found.total - len(found.items)
    more = f'<p class="muted">{rest:,} further findings: run the doctor.</p>' if rest else ""
    return f'{scope}{tools}<ul class="findings" id="findings">{cards}</ul>{more}{missing}{notes}'


def _finding(finding: FindingFacts) -> str:
    call, _, comment = finding.fix.partition("  # ")
    fix = ""
    if call.startswith("# "):
        call, comment = "", call[2:]
    if call:
        fix += f'<pre tabindex="0" aria-label="Fix of {text(finding.code)}">{code(call)}</pre>'
    if comment:
        fix += f"<p>{text(comment)}</p>"
    count = f'<span class="muted">{finding.count:,} items</span>' if finding.count > 1 else ""
    # A lone hash says nothing that the text does not.
    told = finding.where and not finding.where.startswith("file-")
    where = f'<p class="muted">In {name(finding.where)}</p>' if told else ""
    what = finding.what[:1].upper() + finding.what[1:]
    word = "note" if finding.severity == "info" else finding.severity
    kind = text(finding.severity)
    return (
        f'<li class="finding {kind}"><h3><span class="pill {kind}">{text(word)}</span>'
        f" {name(finding.code)} {count}</h3><p>{text(what)}</p>{where}"
        f'<div class="fix"><h4>Fix</h4>{fix}</div></li>'
    )


def growth(facts: ReportFacts) -> str:
    """Size and churn over time, and what the operations did."""
    timeline = facts.timeline
    if timeline is None:
        return _unavailable(facts, "timeline")
    points, notes = timeline.growth, []
    if timeline.note:
        notes.append(text(timeline.note))
    if timeline.num_moved:
        moved = timeline.num_moved
        notes.append(
            f"{moved:,} commit{' has a time' if moved == 1 else 's have times'} in the future or"
            " out of order with the versions. They are shown at the time of the commit before."
        )
    note = "".join(f'<p class="muted">{each}</p>' for each in notes)
    first, last = points[0], points[-1]
    lead = (
        f"<p>{_commits(timeline.num_commits)} from {format_time(first.time)} to"
        f" {format_time(last.time)}, versions {timeline.first_version:,} to"
        f" {timeline.last_version:,}.</p>"
    )
    if timeline.first_version == timeline.last_version:
        lead = f"<p>Version {timeline.last_version:,} only, of {format_time(last.time)}.</p>"
    if not any(point.files for point in points):
        return f'{lead}{note}<p class="empty">No file was live at any time.</p>'
    table = data_details("Data: live files over time", _growth_table(points))
    return (
        f'{lead}{note}<div class="pair"><figure><figcaption>Live bytes</figcaption>'
        f"{_growth_chart('live-bytes', 'Live bytes', points, of_bytes=True)}</figure>"
        f"<figure><figcaption>Live files</figcaption>"
        f"{_growth_chart('live-files', 'Live files', points, of_bytes=False)}</figure></div>{table}"
        f"{_churn(timeline)}{_operations(timeline)}"
    )


def _commits(count: int) -> str:
    return f"{count:,} commit{'' if count == 1 else 's'}"


def _growth_chart(ident: str, title: str, points: Sequence[GrowthPoint], *, of_bytes: bool) -> str:
    start, end = points[0].time, points[-1].time
    span = (end - start).total_seconds() or 1.0
    drawn = [
        (
            (point.time - start).total_seconds() / span,
            float(point.bytes if of_bytes else point.files),
            f"{_plain_time(point.time)} · {format_bytes(point.bytes)}, {point.files:,} files",
        )
        for point in points
    ]
    before, after = points[0], points[-1]
    described = (
        f"From {format_bytes(before.bytes)} to {format_bytes(after.bytes)}"
        if of_bytes
        else f"From {before.files:,} to {after.files:,} files"
    )
    labels = time_labels(start, end)
    form = format_size if of_bytes else format_number
    return area_chart(ident, f"{title} over time", f"{described}.", drawn, labels, form)


def _growth_table(points: Sequence[GrowthPoint]) -> str:
    rows = [(_time(p.time), _count(p.version), _count(p.files), _bytes(p.bytes)) for p in points]
    heads = (Head("Time", order="ascending"), *_heads("Version", "Files", "Bytes"))
    return data_table("growth-data", "Live files after the last commit of each period", heads, rows)


def _heads(*titles: str) -> tuple[Head, ...]:
    return tuple(Head(title, numeric=True) for title in titles)


def _churn(timeline: TimelineFacts) -> str:
    buckets = timeline.churn
    start, end = buckets[0].start, buckets[-1].end
    span = (end - start).total_seconds() or 1.0
    bars = [
        Bar(
            (each.start - start).total_seconds() / span,
            (each.end - start).total_seconds() / span,
            max(each.bytes_added, 0),
            max(each.bytes_removed, 0),
            f"{_plain_time(each.start)} · +{format_bytes(each.bytes_added)} in"
            f" {each.files_added:,} files, -{format_bytes(each.bytes_removed)} in"
            f" {each.files_removed:,} files, {each.commits:,} commits",
        )
        for each in buckets
    ]
    added = sum(each.bytes_added for each in buckets)
    removed = sum(each.bytes_removed for each in buckets)
    chart = bar_chart(
        "churn-chart",
        f"Bytes added and removed per {timeline.unit}",
        f"In all, {format_bytes(added)} were added and {format_bytes(removed)} removed.",
        bars,
        time_labels(start, end),
        format_size,
    )
    legend = (
        '<span class="key"><span class="swatch up"></span>added</span>'
        '<span class="key"><span class="swatch down"></span>removed</span>'
    )
    return (
        f"<figure><figcaption>Churn per {timeline.unit} {legend}</figcaption>{chart}</figure>"
        f"{data_details('Data: churn over time', _churn_table(buckets))}"
    )


def _churn_table(buckets: Sequence[ChurnBucket]) -> str:
    heads = (
        Head("From", order="ascending"),
        *_heads("Commits", "Files added", "Files removed", "Bytes added", "Bytes removed"),
    )
    rows = [
        (
            _time(each.start),
            _count(each.commits),
            _count(each.files_added),
            _count(each.files_removed),
            _bytes(each.bytes_added),
            _bytes(each.bytes_removed),
        )
        for each in buckets
    ]
    return data_table(
        "churn-data", "What the commits of each period added and removed", heads, rows
    )


def _operations(timeline: TimelineFacts) -> str:
    heads = (
        Head("Operation"),
        Head("Commits", numeric=True, order="descending"),
        *_heads("Files added", "Files removed", "Bytes added", "Bytes removed"),
        Head("Last"),
    )
    rows = [
        (
            Cell(
                name(each.operation) if each.operation else '<span class="muted">not named</span>',
                each.operation,
            ),
            _count(each.commits),
            _count(each.files_added),
            _count(each.files_removed),
            _bytes(each.bytes_added),
            _bytes(each.bytes_removed),
            _time(each.last),
        )
        for each in timeline.operations
    ]
    rest = timeline.num_operations - len(rows)
    more = f'<p class="muted">{rest:,} rarer operations are left out.</p>' if rest else ""
    table = data_table(
        "operations",
        "What the commits of each operation did",
        heads,
        rows,
        search="Filter operations",
        limit=_ROWS_SHOWN,
    )
    return f"<h3>Operations</h3>{table}{more}"


def _binary_size(size: int) -> str:
    """Format a power of two in binary units.

    >>> _binary_size(4096), _binary_size(1), _binary_size(0)
    ('4 KiB', '1 B', '0 B')
    """
    step = min(max(size.bit_length() - 1, 0) // 10, len(_BINARY_UNITS) - 1)
    return f"{size >> (10 * step)} {_BINARY_UNITS[step]}"


def file_sizes(facts: ReportFacts) -> str:
    """A histogram of file sizes."""
    sizes = facts.file_sizes
    if sizes is None:
        return _no_files(facts, "file_sizes")
    total = sum(bucket.files for bucket in sizes.buckets)
    total_bytes = sum(bucket.bytes for bucket in sizes.buckets)
    chart = _size_chart(sizes, total)
    share = sizes.small_files / total
    held = sizes.small_bytes / total_bytes if total_bytes else 0.0
    lead = (
        f"<p>{_percent(share)} of the files are smaller than {_binary_size(sizes.small_limit)} and"
        f" hold {_percent(held)} of the bytes.</p>"
    )
    numbers = _definitions(
        [
            ("Smallest", format_bytes(sizes.minimum)),
            ("Median", format_bytes(sizes.median)),
            ("Mean", format_bytes(sizes.mean)),
            ("90% are below", format_bytes(sizes.p90)),
            ("Largest", format_bytes(sizes.maximum)),
        ]
    )
    rows = [
        (
            Cell(f"{_binary_size(b.low)} to {_binary_size(b.high)}", b.low),
            _count(b.files),
            Cell(_percent(b.files / total), b.files / total),
            _bytes(b.bytes),
        )
        for b in sizes.buckets
    ]
    heads = (Head("Size", order="ascending"), *_heads("Files", "Share of files", "Bytes"))
    table = data_details(
        "Data: files by size", data_table("sizes-data", "Files by size", heads, rows)
    )
    return (
        f"{lead}{numbers}<figure><figcaption>Files by size</figcaption>{chart}</figure>{table}"
        f"{_largest_files(facts)}"
    )


def _size_chart(sizes: FileSizeFacts, total: int) -> str:
    count = len(sizes.buckets)
    bars = [
        Bar(
            n / count,
            (n + 1) / count,
            bucket.files,
            0,
            f"{_binary_size(bucket.low)} to {_binary_size(bucket.high)} · {bucket.files:,} files,"
            f" {format_bytes(bucket.bytes)}",
        )
        for n, bucket in enumerate(sizes.buckets)
    ]
    every = -(-count // 8)
    labels = [
        Label((n + 0.5) / count, _binary_size(bucket.low))
        for n, bucket in enumerate(sizes.buckets)
        if n % every == 0
    ]
    return bar_chart(
        "sizes-chart",
        "Files by size",
        f"{total:,} files, most of them around {format_bytes(sizes.median)}.",
        bars,
        labels,
        format_number,
    )


def _largest_files(facts: ReportFacts) -> str:
    assert facts.file_sizes is not None
    files = facts.file_sizes.largest
    if not files:
        return ""
    rows = [
        (Cell(name(each.path), each.path), _bytes(each.bytes), _count(each.rows)) for each in files
    ]
    heads = (Head("Path"), Head("Size", numeric=True, order="descending"), *_heads("Rows"))
    table = data_table(
        "largest", "The largest files", heads, rows, search="Filter files", limit=_ROWS_SHOWN
    )
    return f"<h3>Largest files</h3>{table}"


def _no_files(facts: ReportFacts, section: str) -> str:
    if section in facts.unavailable:
        return _unavailable(facts, section)
    return '<p class="empty">The table has no files.</p>'


def partitions(facts: ReportFacts) -> str:
    """Skew of the partitions, and the largest of them."""
    parts = facts.partitions
    if parts is None:
        if facts.summary is not None and not facts.summary.partition_columns:
            return '<p class="empty">The table is not partitioned.</p>'
        return _no_files(facts, "partitions")
    ratio = parts.max_bytes / parts.median_bytes if parts.median_bytes else 0.0
    columns = ", ".join(name(column) for column in parts.columns)
    skew = f"{ratio:,.1f}".removesuffix(".0") + "&times;" if ratio else _UNKNOWN
    lead = (
        f"<p>Partitioned by {columns}. The largest tenth of the partitions holds"
        f" {_percent(parts.tenth_share)} of the bytes.</p>"
    )
    numbers = _definitions(
        [
            ("Partitions", f"{parts.total:,}"),
            ("Median size", format_bytes(parts.median_bytes)),
            ("Largest", format_bytes(parts.max_bytes)),
            ("Largest / median", skew),
            ("Most files in one", f"{parts.max_files:,}"),
            ("With one file", f"{parts.single_file:,}"),
        ]
    )
    return f"{lead}{numbers}{_partition_table(parts)}"


def _partition_table(parts: PartitionsFacts) -> str:
    heads = (
        Head("Partition"),
        Head("Bytes", numeric=True, order="descending"),
        *_heads("Files", "Bytes per file", "Rows"),
    )
    rows = []
    for part in parts.largest:
        values = ", ".join(
            f"{name(column)}={'<em>null</em>' if value is None else name(value)}"
            for column, value in zip(parts.columns, part.values, strict=True)
        )
        share = part.bytes / parts.max_bytes if parts.max_bytes > 0 else 0.0
        rows.append(
            (
                Cell(values, values),
                Cell(f"{format_bytes(part.bytes)}{inline_bar(share)}", part.bytes),
                _count(part.files),
                _bytes(part.bytes // max(part.files, 1)),
                _count(part.rows),
            )
        )
    shown = len(rows)
    caption = (
        "All partitions" if shown == parts.total else f"The largest {shown:,} of {parts.total:,}"
    )
    return data_table(
        "partition-table", caption, heads, rows, search="Filter partitions", limit=_ROWS_SHOWN
    )


def pruning(facts: ReportFacts) -> str:
    """Which columns prune: the cost of a lookup, worst first."""
    columns = facts.columns
    if columns is None:
        return _no_files(facts, "columns")
    items = [each for each in columns.items if each.verdict != "unsupported"]
    if not items:
        return '<p class="empty">No column has a type that can have bounds.</p>'
    counted = [(v, sum(each.verdict == v for each in items)) for v in _VERDICTS]
    parts = [
        (f"share-{_VERDICTS[verdict][1]}", count, f"{_VERDICTS[verdict][0]}: {count:,} columns")
        for verdict, count in counted
        if count
    ]
    described = "; ".join(tip for _, _, tip in parts)
    chart = stacked_bar("verdicts", "Columns by how well they prune", described, parts)
    keys = "".join(
        f'<span class="key"><span class="swatch {_VERDICTS[verdict][1]}"></span>'
        f"{_VERDICTS[verdict][0]} {count:,}</span>"
        for verdict, count in counted
        if count
    )
    order = {verdict: place for place, verdict in enumerate(_VERDICT_ORDER)}
    ranked = sorted(items, key=lambda each: (order[each.verdict], -(each.lookup_files or 0)))
    rows = [_pruning_row(each, columns.num_files) for each in ranked]
    heads = (
        Head("Column"),
        Head("Verdict"),
        Head("Share of files read", numeric=True),
        Head("Files read, mean", numeric=True),
        Head("Files read, most", numeric=True),
    )
    table = data_table(
        "pruning-table",
        f"Lookups column = value over {columns.num_files:,} files, worst first",
        heads,
        rows,
        search="Filter columns",
        limit=_ROWS_SHOWN,
    )
    lead = (
        "<p>How many files a query <code>column = value</code> has to read. The values are the"
        " bounds in the log: values that the table has, or nearly. A file is read unless its"
        " minimum and maximum exclude the value; where ranges of files overlap, a lookup reads"
        " all of them.</p>"
    )
    advice = (
        '<p class="muted">A column that does not prune has wide ranges: sort the rows by it when'
        " files are written, or partition by it. A column without bounds needs statistics"
        " first.</p>"
    )
    return (
        f"{lead}<figure><figcaption>Columns {keys}</figcaption>{chart}</figure>{table}"
        f"{_left_out(facts)}{advice}"
    )


def _pruning_row(column: ColumnFacts, num_files: int) -> tuple[Cell, ...]:
    verdict, kind = _VERDICTS[column.verdict]
    share = None if column.lookup_files is None else column.lookup_files / num_files
    shown = Cell('<span class="muted">all files</span>', 2.0)
    if share is not None:
        shown = Cell(f"{_percent(share)}{inline_bar(share, kind)}", share)
    mean = column.lookup_files
    return (
        _column_name(column),
        Cell(f'<span class="pill {kind}">{verdict}</span>', verdict),
        shown,
        Cell(_UNKNOWN) if mean is None else Cell(f"{mean:,.1f}", mean),
        _count(column.max_overlap),
    )


def _column_name(column: ColumnFacts) -> Cell:
    mark = ' <span class="tag">partition</span>' if column.is_partition else ""
    return Cell(f"{name(column.name)}{mark}", column.name)


def _left_out(facts: ReportFacts) -> str:
    assert facts.columns is not None
    rest = facts.columns.total - len(facts.columns.items)
    return f'<p class="muted">{rest:,} further columns are left out.</p>' if rest else ""


def statistics(facts: ReportFacts) -> str:
    """Coverage of the statistics, by column."""
    columns = facts.columns
    if columns is None:
        return _no_files(facts, "columns")
    total = columns.num_files
    rows = []
    for each in columns.items:
        if each.verdict == "unsupported" and not each.is_partition:
            none = Cell(_UNKNOWN)
            rows.append((_column_name(each), Cell(name(each.type), each.type), *([none] * 5)))
            continue
        nulls = Cell('<span class="muted">unknown</span>')
        if each.counted_rows > 0:
            share = each.null_rows / each.counted_rows
            nulls = Cell(_percent(share), share)
        covered = each.files_with_bounds / total
        kind = "good" if covered == 1 else "fair" if covered >= 0.5 else "bad"
        rows.append(
            (
                _column_name(each),
                Cell(name(each.type), each.type),
                Cell(f"{_percent(covered)}{inline_bar(covered, kind)}", covered),
                _count(each.files_with_min),
                _count(each.files_with_max),
                _count(each.files_with_null_count),
                nulls,
            )
        )
    heads = (
        Head("Column"),
        Head("Type"),
        Head("Files with bounds", numeric=True),
        *_heads("Minimum", "Maximum", "Null count", "Rows that are null"),
    )
    table = data_table(
        "statistics-table",
        f"Statistics of {total:,} files, by column",
        heads,
        rows,
        search="Filter columns",
        limit=_ROWS_SHOWN,
    )
    counted = columns.files_with_rows
    lead = (
        f"<p>{_percent(counted / total)} of the files ({counted:,} of {total:,}) have a row count:"
        f" {format_count(columns.num_rows)} rows.</p>"
    )
    return f"{lead}{table}{_left_out(facts)}"


def checkpoints(facts: ReportFacts) -> str:
    """How far readers are from the newest checkpoint."""
    found = facts.checkpoints
    if found is None:
        return _unavailable(facts, "checkpoints")
    since = found.commits_since
    if found.version is None:
        lead = f"<p>There is no checkpoint: every reader replays {_commits(since)}.</p>"
    else:
        lead = (
            f"<p>The newest checkpoint is of version {found.version:,}; readers replay"
            f" {_commits(since)} after it.</p>"
        )
    if found.interval:
        late = since / found.interval
        kind = "good" if late <= 1 else "fair" if late <= 2 else "bad"
        lead += (
            f'<div class="lag">{inline_bar(late / 2, kind)}<span class="muted">Writers make a'
            f" checkpoint every {found.interval:,} commits. Twice that fills the bar.</span></div>"
        )
    if not found.items:
        return lead
    heads = (
        Head("Version", numeric=True, order="descending"),
        Head("Format"),
        *_heads("Parts", "Bytes"),
        Head("Written"),
    )
    rows = [
        (
            Cell(
                f"{each.version:,}" + (' <span class="tag">last</span>' if each.is_last else ""),
                each.version,
            ),
            Cell(text(each.format), each.format),
            _count(each.parts),
            _bytes(each.size_bytes),
            _time(each.written),
        )
        for each in found.items
    ]
    caption = (
        "All checkpoints"
        if len(rows) == found.total
        else f"The newest {len(rows):,} of {found.total:,} checkpoints"
    )
    return lead + data_table("checkpoint-table", caption, heads, rows, limit=_ROWS_SHOWN)


def _days(days: float) -> str:
    """Format a number of days.

    >>> _days(1), _days(30), _days(0.25)
    ('1 day', '30 days', '6 hours')
    """
    if days < 1:
        hours = days * 24
        return f"{hours:g} hour{'' if hours == 1 else 's'}"
    return f"{days:,.10g} day{'' if days == 1 else 's'}"


def retention(facts: ReportFacts) -> str:
    """What cleanups would delete, now and later."""
    found = facts.retention
    if found is None and "retention" not in facts.unavailable:
        return (
            '<p class="empty">arrowlog only reads tables of this format, and deletes nothing.</p>'
        )
    if found is None:
        return _unavailable(facts, "retention")
    rows = [
        (
            Cell("now" if each.days_ahead == 0 else f"in {each.days_ahead} days", each.days_ahead),
            _count(each.files),
            _count(each.commits),
            _bytes(each.bytes),
            _count(each.earliest_version),
            _count(each.num_versions),
        )
        for each in found.steps
    ]
    heads = (
        Head("Cleanup", order="ascending"),
        *_heads("Files deleted", "Commits among them", "Bytes freed"),
        *_heads("Readable from version", "Readable versions"),
    )
    lead = (
        f"<p>Commits are kept for {_days(found.log_days)} and checkpoints for"
        f" {_days(found.checkpoint_days)}. A cleanup deletes files of the log, never data files,"
        " and time travel ends at the first readable version. The outlook supposes that nothing is"
        " committed until then.</p>"
    )
    if not any(each.files for each in found.steps):
        lead += (
            "<p>No file of the log expires in this time. Commits expire only below a checkpoint"
            " that can be read, and the newest version never does.</p>"
        )
    return lead + data_table("retention-table", "What a cleanup would do", heads, rows)


def commits(facts: ReportFacts) -> str:
    """The last commits."""
    found = facts.commits
    if found is None:
        return _unavailable(facts, "commits")
    heads = (
        Head("Version", numeric=True, order="descending"),
        Head("Time"),
        Head("Operation"),
        *_heads("Files added", "Files removed", "Bytes added", "Rows added"),
        Head("Writer"),
    )
    rows = [
        (
            _count(each.version),
            _time(each.time),
            Cell(
                name(each.operation) if each.operation else _UNKNOWN,
                each.operation,
            ),
            _count(each.adds),
            _count(each.removes),
            _bytes(each.bytes),
            _count(each.rows),
            Cell(name(each.engine) if each.engine else _UNKNOWN, each.engine),
        )
        for each in found
    ]
    return data_table(
        "commit-table",
        f"The last {_commits(len(rows))}",
        heads,
        rows,
        search="Filter commits",
        limit=_ROWS_SHOWN,
    )

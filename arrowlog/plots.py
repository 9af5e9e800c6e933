"""Plots of a table and its history as Altair charts. Requires the `[notebook]` extra.

Data is aggregated before it is plotted: a chart has a few hundred rows, however many files or
commits there are. Times are UTC. `save` writes a chart to a file that needs no network.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.predicate import quote_identifier

if TYPE_CHECKING:
    from arrowlog.scan import ScanPlan
    from arrowlog.table import Table

_BARS_MAX = 60  # more bars cannot be told apart
_POINTS_MAX = 400
_DOTS_MAX = 60  # up to here every point of a curve is also drawn as a dot
_WIDTH = 560  # pixels
_BAR_WIDTH_MAX = 90  # pixels
_BAR_SHARE = 0.9  # of the width of a bar that is drawn, so that neighbours can be told apart
_PNG_SCALE = 2  # pixels per point, for screens of high density
_BYTES_LABEL = "format(datum.value, '~s') + 'B'"  # of Vega: 2.5MB
_SAVED_AS = (".html", ".svg", ".png", ".pdf", ".json")
_INSTALL = "Install it: pip install 'arrowlog[notebook]'"

# Bars of `churn`: the shortest period that needs at most `_BARS_MAX` bars.
_PERIODS = (
    ("second", 1, "1 second"),
    ("minute", 60, "1 minute"),
    ("10 minutes", 600, "10 minutes"),
    ("hour", 3600, "1 hour"),
    ("6 hours", 21_600, "6 hours"),
    ("day", 86_400, "1 day"),
    ("week", 604_800, "7 days"),
    ("month", 2_629_800, "1 month"),
    ("year", 31_557_600, "1 year"),
)
# Bars of `lifetimes`: what it is called, and up to how many seconds.
_AGES = (
    ("under a minute", 60),
    ("minutes", 3600),
    ("hours", 86_400),
    ("days", 604_800),
    ("weeks", 2_629_800),
    ("months", 31_557_600),
    ("years", None),
)
# The clock of a writer may be behind that of another: time never goes back in a chart.
_TIMES = """
    times AS (SELECT version, max(timestamp) OVER (ORDER BY version) AS time FROM commits)
"""
_KEPT, _DROPPED_ALONE, _DROPPED = "#b8bdc7", "#1f6f4a", "#79b791"


def save(chart: Any, path: str | os.PathLike[str]) -> None:
    """Write a chart to a file; the ending of `path` decides the form.

    `.html` is a page with tooltips that contains its scripts (about 1 MB), so that it works
    offline. `.svg`, `.png` and `.pdf` are pictures, `.json` is the Vega-Lite specification. Raises
    `InvalidRequest` for another ending, or if vl-convert is not installed.
    """
    name = os.fspath(path)
    ending = os.path.splitext(name)[1].lower()
    if ending not in _SAVED_AS:
        raise InvalidRequest(
            f"A chart cannot be written as {name}.",
            next=f"Choose one of the endings {', '.join(_SAVED_AS)}.",
        )
    if ending != ".json":
        _require("vl_convert", "A chart is written by vl-convert.")
    if ending == ".html":
        chart.save(name, inline=True)  # without it, the page loads Vega from another host
    elif ending == ".png":
        chart.save(name, scale_factor=_PNG_SCALE)
    else:
        chart.save(name)


def file_sizes(table: Table) -> Any:
    """Plot a histogram of the sizes of the live files, by powers of two."""
    frame = _query(
        table,
        """
        SELECT floor(log2(greatest(size_bytes, 1)))::BIGINT AS power, count(*) AS files,
            sum(size_bytes)::DOUBLE AS bytes
        FROM files GROUP BY ALL ORDER BY ALL
        """,
    )
    alt = _altair()
    powers = frame["power"].to_list() or [0]
    sizes = pl.DataFrame({"power": list(range(min(powers), max(powers) + 1))})
    filled = (
        sizes.join(frame, on="power", how="left")
        .with_columns(
            pl.col("files", "bytes").fill_null(0),
            size=pl.col("power").map_elements(_binary_size, return_dtype=pl.String),
        )
        .sort("power")
    )
    bars = alt.Chart(
        filled, width=_width(filled.height), title="Sizes of the live files"
    ).mark_bar()
    return bars.encode(
        alt.X("size:N", sort=filled["size"].to_list(), title="size, at least").axis(labelAngle=-45),
        alt.Y("files:Q", title="files", axis=alt.Axis(tickMinStep=1)),
        tooltip=["size", alt.Tooltip("files:Q", format=","), alt.Tooltip("bytes:Q", format="~s")],
    )


def partition_skew(table: Table, column: str | None = None) -> Any:
    """Plot the bytes per value of a partition column, largest first.

    `column` defaults to the first partition column. Values beyond the sixty largest are combined.
    Raises `InvalidRequest` if the table is not partitioned by it.
    """
    names = table.snapshot().partition_columns
    if not names:
        raise InvalidRequest("The table is not partitioned.", next="Plot file_sizes instead.")
    name = names[0] if column is None else column
    if name not in names:
        raise InvalidRequest(
            f"{name!r} is not a partition column.", next=f"Partition columns: {', '.join(names)}."
        )
    value = quote_identifier(f"partition.{name}")
    frame = _query(
        table,
        f"""
        WITH parts AS (
            SELECT coalesce({value}::VARCHAR, 'NULL') AS part, sum(size_bytes)::DOUBLE AS bytes,
                count(*) AS files, row_number() OVER (ORDER BY bytes DESC, part) AS place
            FROM files GROUP BY {value}
        )
        SELECT CASE WHEN place <= {_BARS_MAX} THEN part ELSE 'all others' END AS part,
            sum(bytes) AS bytes, sum(files)::BIGINT AS files, min(place) AS place
        FROM parts GROUP BY ALL HAVING count(*) > 0 ORDER BY place
        """,  # noqa: S608 -- the name is quoted
    )
    alt = _altair()
    bars = alt.Chart(frame, width=_width(frame.height), title=f"Bytes by {name}").mark_bar()
    return bars.encode(
        alt.X("part:N", sort=frame["part"].to_list(), title=name).axis(labelAngle=-90),
        alt.Y("bytes:Q", title="bytes", axis=alt.Axis(labelExpr=_BYTES_LABEL)),
        tooltip=["part", alt.Tooltip("files:Q", format=","), alt.Tooltip("bytes:Q", format="~s")],
    )


def growth(table: Table) -> Any:
    """Plot the number and bytes of live files over time."""
    frame = _query(
        table,
        f"""
        WITH {_TIMES}, steps AS (
            SELECT begin_version AS version, 1 AS files, size_bytes AS bytes FROM file_lifetimes
            UNION ALL
            SELECT end_version, -1, -size_bytes FROM file_lifetimes WHERE end_version IS NOT NULL
            UNION ALL SELECT version, 0, 0 FROM commits
        ), versions AS (
            SELECT version, sum(sum(files)) OVER w AS files, sum(sum(bytes)) OVER w AS bytes
            FROM steps GROUP BY version WINDOW w AS (ORDER BY version)
        ), timed AS (
            SELECT *, epoch_ms(time) AS ms FROM versions JOIN times USING (version)
            WHERE time IS NOT NULL
        ), cut AS (
            SELECT *, (ms - min(ms) OVER ()) * {_POINTS_MAX - 1}
                // greatest(max(ms) OVER () - min(ms) OVER (), 1) AS bucket
            FROM timed
        )
        SELECT max(time) AS time, max(version) AS version,
            arg_max(files, version)::DOUBLE AS files, arg_max(bytes, version)::DOUBLE AS bytes
        FROM cut GROUP BY bucket ORDER BY ALL
        """,  # noqa: S608
    )
    alt = _altair()
    dots = alt.OverlayMarkDef(size=16) if frame.height <= _DOTS_MAX else False
    base = alt.Chart(_with_offsets(frame), width=_WIDTH, height=140).mark_area(
        interpolate="step-after", opacity=0.35, line=True, point=dots
    )
    tooltip = [
        alt.Tooltip("time:T", format="%Y-%m-%dT%H:%M:%SZ"),
        alt.Tooltip("version:Q"),
        alt.Tooltip("files:Q", format=","),
        alt.Tooltip("bytes:Q", format="~s"),
    ]
    files = base.encode(
        _time_axis(alt, "time", title=None), alt.Y("files:Q", title="live files"), tooltip=tooltip
    )
    size = base.encode(
        _time_axis(alt, "time"),
        alt.Y("bytes:Q", title="bytes", axis=alt.Axis(labelExpr=_BYTES_LABEL)),
        tooltip=tooltip,
    )
    title = alt.TitleParams("Live files and bytes over time", anchor="middle")
    return alt.vconcat(files, size, title=title)


def churn(table: Table) -> Any:
    """Plot the bytes that were added and removed over time, by operation.

    Bars stand for seconds, hours, days, weeks and so on, whatever gives at most sixty of them.
    """
    (span,) = _query(
        table, "SELECT epoch(max(timestamp)) - epoch(min(timestamp)) AS seconds FROM commits"
    )["seconds"]
    period, seconds, interval = next(
        (each for each in _PERIODS if (span or 0) < each[1] * (_BARS_MAX - 1)), _PERIODS[-1]
    )
    frame = _query(
        table,
        f"""
        WITH {_TIMES}, moves AS (
            SELECT begin_version AS version, size_bytes AS bytes, 'added' AS way
            FROM file_lifetimes WHERE begin_known
            UNION ALL
            SELECT end_version, -size_bytes, 'removed' FROM file_lifetimes
            WHERE end_version IS NOT NULL
        )
        SELECT time_bucket(INTERVAL '{interval}', time) AS start,
            coalesce(operation, 'unknown') AS operation, way, sum(moves.bytes)::DOUBLE AS bytes,
            count(*) AS files
        FROM moves JOIN times USING (version) LEFT JOIN commits USING (version)
        WHERE time IS NOT NULL GROUP BY ALL ORDER BY ALL
        """,  # noqa: S608
    )
    alt = _altair()
    top = pl.col("bytes").cum_sum().over("start", "way")
    frame = frame.with_columns(
        end=pl.col("start") + pl.duration(milliseconds=int(seconds * 1000 * _BAR_SHARE)),
        top=top,
        base=top - pl.col("bytes"),  # Vega-Lite does not stack bars that have two ends in time
    )
    title = f"Bytes added (up) and removed (down) per {period}"
    bars = alt.Chart(_with_offsets(frame), width=_WIDTH, title=title).mark_bar()
    return bars.encode(
        _time_axis(alt, "start"),
        alt.X2("end:T"),
        alt.Y("base:Q", title="bytes", axis=alt.Axis(labelExpr=_BYTES_LABEL)),
        alt.Y2("top:Q"),
        alt.Color("operation:N", title="operation"),
        tooltip=[
            alt.Tooltip("start:T", title="from", format="%Y-%m-%dT%H:%M:%SZ"),
            "operation",
            "way",
            alt.Tooltip("files:Q", format=","),
            alt.Tooltip("bytes:Q", format="~s"),
        ],
    )


def lifetimes(table: Table) -> Any:
    """Plot a histogram of how long removed files lived, and how old live files are.

    Ages are counted up to the time of the newest commit. A file that was there before the history
    begins counts from the first version that is known.
    """
    frame = _query(
        table,
        f"""
        WITH {_TIMES}, lives AS (
            SELECT CASE WHEN end_version IS NULL THEN 'live' ELSE 'removed' END AS now,
                epoch(coalesce(e.time, (SELECT max(time) FROM times))) - epoch(b.time) AS seconds
            FROM file_lifetimes
            LEFT JOIN times b ON b.version = begin_version
            LEFT JOIN times e ON e.version = end_version
        )
        SELECT {_age_case("seconds")} AS age, now, count(*) AS files
        FROM lives WHERE seconds IS NOT NULL GROUP BY ALL ORDER BY ALL
        """,  # noqa: S608 -- constants
    )
    alt = _altair()
    bars = alt.Chart(frame, width=_WIDTH, title="How long files live").mark_bar()
    return bars.encode(
        alt.X("age:N", scale=alt.Scale(domain=[name for name, _ in _AGES]), title="age").axis(
            labelAngle=0
        ),
        alt.Y("files:Q", title="files", axis=alt.Axis(tickMinStep=1)),
        alt.Color("now:N", title=None),
        tooltip=["age", "now", alt.Tooltip("files:Q", format=",")],
    )


def statistics_coverage(table: Table) -> Any:
    """Plot the share of live files that have bounds and null counts, by column."""
    types = [name for name in table.snapshot().files.column_names if name.startswith("min.")]
    columns = [name.removeprefix("min.") for name in types][:_BARS_MAX]
    if not columns:
        raise InvalidRequest("No column of the table can have statistics.")
    parts = [
        f"SELECT {_sql_literal(name)} AS col, {_sql_literal(what)} AS statistic,"  # noqa: S608 -- quoted
        f" count({quote_identifier(f'{what}.{name}')}) / greatest(count(*), 1) AS share FROM files"
        for name in columns
        for what in ("min", "max", "null_count")
    ]
    frame = _query(table, " UNION ALL ".join(parts))
    frame = frame.with_columns(
        label=pl.col("share").map_elements(_percent, return_dtype=pl.String),
        dark=pl.col("share") > 0.6,  # of the scale of colours: white text is legible from here on
    )
    alt = _altair()
    base = alt.Chart(frame, width=alt.Step(84), height=alt.Step(24)).encode(
        alt.X("statistic:N", sort=["min", "max", "null_count"], title=None).axis(
            orient="top", labelAngle=0, ticks=False, domain=False
        ),
        alt.Y("col:N", sort=columns, title=None).axis(ticks=False, domain=False),
        tooltip=["col", "statistic", alt.Tooltip("label:N", title="share")],
    )
    cells = base.mark_rect(stroke="white").encode(
        alt.Color("share:Q", scale=alt.Scale(domain=[0, 1], scheme="blues"), legend=None)
    )
    numbers = base.mark_text().encode(
        alt.Text("label:N"),
        color=alt.when("datum.dark").then(alt.value("white")).otherwise(alt.value("black")),
    )
    return alt.layer(cells, numbers, title="Share of files with statistics")


def pruning(plan: ScanPlan) -> Any:
    """Plot how many files each clause of a plan's predicate prunes, alone and with others."""
    explanation = plan.explain()
    parts = ["dropped by it alone", "dropped by others too", "kept by it"]
    rows = [
        (clause.text, order, part, files)
        for clause in explanation.clauses
        for order, (part, files) in enumerate(
            zip(
                parts,
                (
                    clause.only_files,
                    clause.files_dropped - clause.only_files,
                    explanation.files_total - clause.files_dropped,
                ),
                strict=True,
            )
        )
    ]
    kept = explanation.files_kept
    rows.append(("the whole predicate", 0, parts[0], explanation.files_total - kept))
    rows.append(("the whole predicate", 2, parts[2], kept))
    frame = pl.DataFrame(rows, schema=["clause", "order", "what", "files"], orient="row")
    alt = _altair()
    title = f"{kept:,} of {explanation.files_total:,} files to read"
    bars = alt.Chart(frame, width=_WIDTH - 160, height=alt.Step(26), title=title).mark_bar()
    return bars.encode(
        alt.X("files:Q", title="files", axis=alt.Axis(tickMinStep=1)),
        alt.Y(
            "clause:N", sort=frame["clause"].unique(maintain_order=True).to_list(), title=None
        ).axis(labelLimit=260),
        alt.Color("what:N", title=None)
        .scale(domain=parts, range=[_DROPPED_ALONE, _DROPPED, _KEPT])
        .legend(orient="bottom"),
        alt.Order("order:Q"),
        tooltip=["clause", "what", alt.Tooltip("files:Q", format=",")],
    )


def _query(table: Table, query: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.query(query)))


def _with_offsets(frame: pl.DataFrame) -> pl.DataFrame:
    """Return times as text with their offset.

    Some releases of altair leave it out, and a browser then takes the times for local ones.
    """
    return frame.with_columns(
        pl.col(name).dt.strftime("%Y-%m-%dT%H:%M:%S%.f%z")
        for name, kind in frame.schema.items()
        if isinstance(kind, pl.Datetime)
    )


def _sql_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _width(bars: int) -> int:
    """Return the width of a chart, so that a few bars do not become as wide as a chart."""
    return min(max(bars, 2) * _BAR_WIDTH_MAX, _WIDTH)


def _time_axis(alt: Any, field: str, title: str | None = "time (UTC)") -> Any:
    """Return an axis of times in UTC, whatever the time zone of the reader is."""
    axis = alt.Axis(labelOverlap=True, labelSeparation=6)
    return alt.X(f"{field}:T", title=title, scale=alt.Scale(type="utc"), axis=axis)


def _age_case(seconds: str) -> str:
    """Return the SQL expression that names an age."""
    whens = " ".join(
        f"WHEN {seconds} < {limit} THEN {_sql_literal(name)}" for name, limit in _AGES[:-1]
    )
    return f"CASE {whens} ELSE {_sql_literal(_AGES[-1][0])} END"


def _percent(share: float) -> str:
    """Format a share so that only all is 100% and only nothing is 0%.

    >>> _percent(1.0), _percent(0.99999), _percent(0.5), _percent(0.00001), _percent(0.0)
    ('100%', '99.9%', '50.0%', '0.1%', '0%')
    """
    if share in (0, 1):
        return f"{share:.0%}"
    return f"{min(max(share, 0.001), 0.999):.1%}"


def _binary_size(power: int) -> str:
    """Format a power of two in binary units.

    >>> _binary_size(12), _binary_size(0)
    ('4 KiB', '1 B')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = min(power // 10, len(units) - 1)
    return f"{1 << (power - 10 * step)} {units[step]}"


def _altair() -> Any:
    _require("altair", "Plots need altair.")
    import altair as alt

    return alt


def _require(module: str, what: str) -> None:
    """Import an optional module, or raise `InvalidRequest` with the command that installs it."""
    from importlib import import_module

    try:
        import_module(module)
    except ModuleNotFoundError:
        raise InvalidRequest(what, next=_INSTALL) from None

"""Plots of a table and its history as Altair charts. Requires the `[notebook]` extra.

Data is aggregated before it is plotted: a chart has a few hundred rows, however many files or
commits there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.fork_safety import pl
from arrowlog.predicate import quote_identifier

if TYPE_CHECKING:
    from arrowlog.scan import ScanPlan
    from arrowlog.table import Table

_BARS_MAX = 60  # more bars cannot be told apart
_POINTS_MAX = 400
_WIDTH = 560  # pixels
_SI_FORMAT = "~s"


def file_sizes(table: Table) -> Any:
    """Plot a histogram of the sizes of the live files, by powers of two."""
    frame = _query(
        table,
        """
        SELECT pow(2, floor(log2(greatest(size_bytes, 1)))) AS size, count(*) AS files,
            sum(size_bytes)::DOUBLE AS bytes
        FROM files GROUP BY ALL ORDER BY ALL
        """,
    )
    alt = _altair()
    labelled = frame.with_columns(
        label=pl.col("size").map_elements(_binary_size, return_dtype=pl.String),
    )
    bars = alt.Chart(labelled, width=_WIDTH, title="Sizes of the live files").mark_bar()
    return bars.encode(
        alt.X("label:N", sort=labelled["label"].to_list(), title="at least"),
        alt.Y("files:Q", title="files"),
        tooltip=["label", alt.Tooltip("files:Q", format=","), alt.Tooltip("bytes:Q", format="~s")],
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
                count(*) AS files, row_number() OVER (ORDER BY bytes DESC) AS place
            FROM files GROUP BY {value}
        )
        SELECT CASE WHEN place <= {_BARS_MAX} THEN part ELSE 'all others' END AS part,
            sum(bytes) AS bytes, sum(files)::BIGINT AS files, min(place) AS place
        FROM parts GROUP BY ALL HAVING count(*) > 0 ORDER BY place
        """,  # noqa: S608 -- the name is quoted
    )
    alt = _altair()
    bars = alt.Chart(frame, width=_WIDTH, title=f"Bytes by {name}").mark_bar()
    return bars.encode(
        alt.X("part:N", sort=frame["part"].to_list(), title=name),
        alt.Y("bytes:Q", axis=alt.Axis(format=_SI_FORMAT)),
        tooltip=["part", alt.Tooltip("files:Q", format=","), alt.Tooltip("bytes:Q", format="~s")],
    )


def growth(table: Table) -> Any:
    """Plot the number and bytes of live files by version."""
    frame = _query(
        table,
        f"""
        WITH steps AS (
            SELECT begin_version AS version, 1 AS files, size_bytes AS bytes FROM file_lifetimes
            UNION ALL
            SELECT end_version, -1, -size_bytes FROM file_lifetimes WHERE end_version IS NOT NULL
        ), versions AS (
            SELECT version, sum(sum(files)) OVER w AS files, sum(sum(bytes)) OVER w AS bytes
            FROM steps GROUP BY version WINDOW w AS (ORDER BY version)
        ), cut AS (
            SELECT *, ntile({_POINTS_MAX}) OVER (ORDER BY version) AS bucket FROM versions
        )
        SELECT max(version) AS version, arg_max(files, version)::DOUBLE AS files,
            arg_max(bytes, version)::DOUBLE AS bytes
        FROM cut GROUP BY bucket ORDER BY ALL
        """,  # noqa: S608
    )
    alt = _altair()
    base = alt.Chart(frame, width=_WIDTH, height=140).encode(alt.X("version:Q"))
    files = base.mark_area(interpolate="step-after", opacity=0.6).encode(alt.Y("files:Q"))
    size = base.mark_area(interpolate="step-after", opacity=0.6).encode(
        alt.Y("bytes:Q", axis=alt.Axis(format=_SI_FORMAT))
    )
    return alt.vconcat(files, size, title="Live files and bytes by version")


def churn(table: Table) -> Any:
    """Plot the bytes added and removed by version and operation."""
    frame = _query(
        table,
        f"""
        WITH moves AS (
            SELECT begin_version AS version, size_bytes AS bytes, 'added' AS way
            FROM file_lifetimes WHERE begin_known
            UNION ALL
            SELECT end_version, -size_bytes, 'removed' FROM file_lifetimes
            WHERE end_version IS NOT NULL
        ), told AS (
            SELECT version, coalesce(operation, 'unknown') AS operation, way, moves.bytes,
                version // ((last_version - first_version) // {_POINTS_MAX // 4} + 1) AS bucket
            FROM moves LEFT JOIN commits USING (version), coverage
        )
        SELECT min(version) AS version, operation, way, sum(bytes)::DOUBLE AS bytes,
            count(*) AS files
        FROM told GROUP BY bucket, operation, way ORDER BY ALL
        """,  # noqa: S608
    )
    alt = _altair()
    bars = alt.Chart(frame, width=_WIDTH, title="Bytes added (up) and removed (down)").mark_bar()
    return bars.encode(
        alt.X("version:Q"),
        alt.Y("bytes:Q", axis=alt.Axis(format=_SI_FORMAT)),
        alt.Color("operation:N"),
        tooltip=["version", "operation", "way", alt.Tooltip("bytes:Q", format="~s")],
    )


def lifetimes(table: Table) -> Any:
    """Plot a histogram of the number of versions that removed and live files lived."""
    frame = _query(
        table,
        """
        SELECT pow(2, floor(log2(coalesce(end_version, last_version + 1) - begin_version)))
                ::BIGINT AS versions,
            CASE WHEN end_version IS NULL THEN 'live' ELSE 'removed' END AS now, count(*) AS files
        FROM file_lifetimes, coverage GROUP BY ALL ORDER BY ALL
        """,
    )
    alt = _altair()
    bars = alt.Chart(frame, width=_WIDTH, title="Lifetimes of files").mark_bar()
    return bars.encode(
        alt.X("versions:O", title="versions, at least"),
        alt.Y("files:Q"),
        alt.Color("now:N", title=None),
        tooltip=["versions", "now", alt.Tooltip("files:Q", format=",")],
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
    alt = _altair()
    cells = alt.Chart(frame, title="Share of files with statistics").mark_rect()
    return cells.encode(
        alt.X("statistic:N", sort=["min", "max", "null_count"], title=None),
        alt.Y("col:N", sort=columns, title=None),
        alt.Color("share:Q", scale=alt.Scale(domain=[0, 1])),
        tooltip=["col", "statistic", alt.Tooltip("share:Q", format=".1%")],
    )


def pruning(plan: ScanPlan) -> Any:
    """Plot how many files each clause of a plan's predicate prunes, alone and with others."""
    explanation = plan.explain()
    rows = [
        (clause.text, part, files)
        for clause in explanation.clauses
        for part, files in (
            ("dropped by it alone", clause.only_files),
            ("dropped by others too", clause.files_dropped - clause.only_files),
            ("kept by it", explanation.files_total - clause.files_dropped),
        )
    ]
    rows.append(("the whole predicate", "kept by it", explanation.files_kept))
    rows.append(
        ("the whole predicate", "dropped", explanation.files_total - explanation.files_kept)
    )
    frame = pl.DataFrame(rows, schema=["clause", "what", "files"], orient="row")
    alt = _altair()
    title = f"{explanation.files_kept:,} of {explanation.files_total:,} files to read"
    bars = alt.Chart(frame, width=_WIDTH, title=title).mark_bar()
    return bars.encode(
        alt.X("files:Q", title="files"),
        alt.Y("clause:N", sort=frame["clause"].to_list(), title=None),
        alt.Color("what:N", title=None),
        tooltip=["clause", "what", alt.Tooltip("files:Q", format=",")],
    )


def _query(table: Table, query: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.query(query)))


def _sql_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _binary_size(size: float) -> str:
    """Format a power of two in binary units.

    >>> _binary_size(4096), _binary_size(1)
    ('4 KiB', '1 B')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = min(int(size).bit_length() - 1, 10 * len(units) - 1) // 10
    return f"{int(size) >> (10 * step)} {units[step]}"


def _altair() -> Any:
    try:
        import altair as alt
    except ModuleNotFoundError:
        raise InvalidRequest(
            "Plots need altair.", next="Install it: pip install 'arrowlog[notebook]'"
        ) from None
    return alt

"""The most important rows, which docs/benchmarks.md and the chart show. Pure."""

from benchmarks.figures import ARROWLOG, PER_SECOND, figure_of, ratio, rows_of
from benchmarks.report import TIMES, number, times
from benchmarks.spark import FULL, labels
from benchmarks.tables import Shape

START, END = "<!-- benchmark:start -->", "<!-- benchmark:end -->"
_SPARK = labels(FULL)
_MANY, _MILLION = str(Shape(10_000, 2)), str(Shape(50, 20_000, 50))
_EXPLANATION = (
    "Medians, in milliseconds or in commits per second (/s); in parentheses peak memory. "
    f"A ratio above 1{TIMES} means that arrowlog is better."
)
# (case, shape) of each row.
HEADLINE = [
    ("open", str(Shape(1000, 10))),
    ("open", str(Shape(50, 4000))),
    ("open", str(Shape(10_000, 1))),
    ("open", _MANY),
    ("open", _MILLION),
    ("cached", _MANY),
    ("plan", _MANY),
    ("plan", str(Shape(25, 4000, 50))),
    ("plan", _MILLION),
    ("plan", str(Shape(500, 20_000, 50))),
    ("warm plan", "15,000 files"),
    ("warm plan", "100,000 files"),
    ("warm plan", "1,000,000 files"),
    ("refresh", f"1 new: {_MANY}"),
    ("refresh", f"none new: {_MANY}"),
    ("travel", _MANY),
    ("history", _MANY),
    ("diff", _MANY),
    ("checkpoint", "1,000,000 files"),
    ("commit rate", "disk, 1 process"),
    ("commit rate", "disk, 16 processes"),
    ("commit rate", "S3 + 20 ms, 1 process"),
    ("commit rate", "S3 + 20 ms, 16 processes"),
    ("import", "alone"),
    ("spark", _SPARK["plan"]),
    ("spark", _SPARK["selective"]),
    ("spark", _SPARK["all"]),
    ("spark", _SPARK["write"]),
]


def headline(figures):
    """The rows in `HEADLINE`.

    If a run has few of them (`--quick`, `--only`), all rows with a ratio that are not on a curve.
    """
    rows = {(row[0].case, row[0].shape): row for row in rows_of(figures)}
    chosen = [rows[key] for key in HEADLINE if key in rows]
    if len(chosen) > len(HEADLINE) // 2:
        return chosen
    return [row for row in rows.values() if row[0].x is None and _has_ratio(row)]


def _has_ratio(row):
    return any(ratio(row, figure.engine) for figure in row if figure.engine != ARROWLOG)


def short(title):
    """The part of a title that is shown next to a shape."""
    return title.partition(":")[0]


def markdown(figures, titles, command, about, printed):
    """The block between the markers: the table, the machine (`about`), and the printed tables."""
    lines = [
        "| | arrowlog | deltalake or Spark | | PyIceberg | |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in headline(figures):
        title = titles.get(row[0].case, row[0].case)
        cells = [_cell(figure_of(row, ARROWLOG))]
        for peers in (("deltalake", "spark"), ("pyiceberg",)):
            peer = next((name for name in peers if figure_of(row, name)), peers[0])
            cells += [_cell(figure_of(row, peer))]
            cells += [_bold(times(ratio(row, peer)).replace("x", TIMES))]
        lines.append(
            f"| {short(title)}: {row[0].shape} | {' | '.join(cells)} |".replace(" x ", f" {TIMES} ")
        )
    return "\n".join(
        [
            START,
            *lines,
            "",
            f"{_EXPLANATION} Measured by `{command}` on:  ",
            about.replace("\n", "  \n"),
            "",
            "<details><summary>Every case</summary>",
            "",
            "```",
            printed.strip("\n"),
            "```",
            "",
            "</details>",
            END,
        ]
    )


def _cell(figure):
    if figure is None:
        return ""
    unit = " /s" if figure.unit == PER_SECOND else ""
    return f"{number(figure.median)}{unit}" + (f" ({figure.mb:,.0f} MB)" if figure.mb else "")


def _bold(text):
    return f"**{text}**" if text else ""


def replace_block(text, block):
    """Replace the block between the markers of a text. Raises ValueError if it has none."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"there is no {START} … {END}")
    return f"{before}{block}{after}"

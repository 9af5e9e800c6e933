"""The rows that stand for all: what docs/benchmarks.md and the chart show. Pure."""

from benchmarks.figures import OURS, of, ratio, rows_of
from benchmarks.report import TIMES, number, times
from benchmarks.spark import FULL, labels
from benchmarks.tables import Shape

START, END = "<!-- benchmark:start -->", "<!-- benchmark:end -->"
_SPARK = labels(FULL)
_MANY, _MILLION = str(Shape(10_000, 2)), str(Shape(50, 20_000, 50))
_HOW = (
    "Medians of milliseconds, or of commits a second; beside them the highest peak of memory. "
    f"A ratio above 1{TIMES} says that arrowlog is better."
)
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
    """Those rows; of a run that is not whole, all that have a peer and are not of a curve."""
    rows = {(row[0].case, row[0].shape): row for row in rows_of(figures)}
    found = [rows[key] for key in HEADLINE if key in rows]
    if len(found) > len(HEADLINE) // 2:
        return found
    return [row for row in rows.values() if row[0].x is None and _has_ratio(row)]


def _has_ratio(row):
    return any(ratio(row, figure.who) for figure in row if figure.who != OURS)


def short(title):
    """The words of a title that are enough beside a shape."""
    return title.partition(":")[0]


def markdown(figures, titles, command, about, printed):
    """The block between the marks: the table, what it was measured on, and every case."""
    lines = [
        "| | arrowlog | deltalake or Spark | | PyIceberg | |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in headline(figures):
        title = titles.get(row[0].case, row[0].case)
        cells = [_cell(of(row, OURS))]
        for names in (("deltalake", "spark"), ("pyiceberg",)):
            who = next((name for name in names if of(row, name)), names[0])
            cells += [_cell(of(row, who)), _bold(times(ratio(row, who)).replace("x", TIMES))]
        lines.append(
            f"| {short(title)}: {row[0].shape} | {' | '.join(cells)} |".replace(" x ", f" {TIMES} ")
        )
    told = about.replace("\n", "  \n")
    return "\n".join(
        [
            START,
            *lines,
            "",
            f"{_HOW} Measured by `{command}` on:  ",
            told,
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
    unit = " /s" if figure.unit == "a second" else ""
    return f"{number(figure.median)}{unit}" + (f" ({figure.mb:,.0f} MB)" if figure.mb else "")


def _bold(text):
    return f"**{text}**" if text else ""


def put(text, block):
    """A text with the block between its marks replaced; ValueError if it has no marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"there is no {START} … {END}")
    return f"{before}{block}{after}"

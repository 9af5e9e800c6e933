"""The chart, an SVG: ratios by case on a logarithmic axis, and curves of growing cost. Pure.

The SVG is written without a package, since it has only lines, dots and text. The background is
transparent and all colours are of medium lightness, so that it is legible on white and on black.
"""

import math
from xml.sax.saxutils import escape

from benchmarks.figures import ARROWLOG, curves, ratio, slope
from benchmarks.headline import headline, short
from benchmarks.report import TIMES, times

WIDTH = 960
COLOURS = {
    ARROWLOG: "#a06cf0",
    "deltalake": "#3b82f6",
    "pyiceberg": "#d97706",
    "spark": "#2da44e",
    "fastavro": "#c2410c",
}
GREY, FAINT = "#7d7d7d", "#7d7d7d44"
FONT = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
# The chart of ratios: width of the labels, width of the numbers, height of a row.
LEFT, RIGHT, STEP = 330, 150, 19
PANEL = (WIDTH // 2, 230)  # width and height of the chart of a curve


class Canvas:
    """Collects SVG elements."""

    def __init__(self):
        self.parts = []

    def text(self, x, y, text, *, size=12, colour=GREY, anchor="start", weight=400):
        """Add a text."""
        style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>')

    def line(self, points, *, colour=FAINT, width=1.0):
        """Add a line through all points."""
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        self.parts.append(f'<polyline points="{coordinates}" {style}/>')

    def dot(self, x, y, colour, tooltip):
        """Add a dot with a tooltip."""
        title = f"<title>{escape(tooltip)}</title>"
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">{title}')
        self.parts.append("</circle>")


def chart(figures, titles, about=""):
    """The SVG as text; `about` describes the machine."""
    canvas = Canvas()
    y = _ratios(canvas, headline(figures), titles)
    y = _curves(canvas, curves(figures), titles, y)
    for line in about.split("\n"):
        y += 16
        canvas.text(10, y, line, size=10)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 12:.0f}"'
    title = "<title>arrowlog and its peers: ratios of medians, and growth of cost</title>"
    body = "\n".join(canvas.parts)
    return f'{head} width="{WIDTH}" style="{FONT}">\n{title}\n{body}\n</svg>\n'


def scale(low, high, start, end):
    """A function that maps values to positions on a logarithmic axis."""
    span = math.log(high) - math.log(low)
    return lambda value: start + (math.log(value) - math.log(low)) / span * (end - start)


def decades(low, high):
    """The powers of ten from below `low` to above `high`.

    >>> decades(0.3, 250)
    [0.1, 1.0, 10.0, 100.0, 1000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _ratios(canvas, rows, titles):
    """Draw the ratios, and return the y below them."""
    compared = [(row, {f.engine: ratio(row, f.engine) for f in row}) for row in rows]
    compared = [
        (row, {peer: value for peer, value in ratios.items() if peer != ARROWLOG and value})
        for row, ratios in compared
    ]
    compared = [(row, ratios) for row, ratios in compared if ratios]
    if not compared:
        return 0
    values = [value for _, ratios in compared for value in ratios.values()]
    ticks = decades(min(*values, 1), max(*values, 1))
    place = scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    top, bottom = 84, 84 + STEP * len(compared) + 6
    canvas.text(10, 24, "How many times better arrowlog is than its peers", size=17, weight=600)
    _legend(canvas, [name for name in COLOURS if any(name in by for _, by in compared)])
    for tick in ticks:
        x = place(tick)
        bold = {"colour": GREY, "width": 1.5} if tick == 1 else {}
        canvas.line([(x, top - 8), (x, bottom)], **bold)
        canvas.text(
            x,
            top - 14,
            f"{tick:,.0f}{TIMES}" if tick >= 1 else f"{tick:g}{TIMES}",
            size=11,
            anchor="middle",
        )
    for number, (row, ratios) in enumerate(compared):
        y = top + STEP * (number + 0.5)
        label = f"{short(titles.get(row[0].case, row[0].case))}: {row[0].shape}"
        canvas.text(LEFT - 16, y + 4, label.replace(" x ", f" {TIMES} "), anchor="end")
        for engine, value in ratios.items():
            canvas.line([(place(1), y), (place(value), y)], colour=COLOURS[engine], width=1.5)
        for engine, value in ratios.items():
            text = times(value).replace("x", TIMES)
            tooltip = f"{label}: {text} better than {engine}"
            canvas.dot(place(value), y, COLOURS[engine], tooltip)
            right = WIDTH - (10 if engine == "pyiceberg" else 72)
            canvas.text(right, y + 4, text, colour=COLOURS[engine], anchor="end", weight=600)
    return bottom + 10


def _legend(canvas, names):
    x = 10
    for name in names:
        canvas.dot(x + 5, 44, COLOURS[name], name)
        canvas.text(x + 15, 48, f"than {name}", colour=COLOURS[name])
        x += 130


def _curves(canvas, by_case, titles, top):
    """Draw a panel per case whose cost grows, and return the y below them."""
    if not by_case:
        return top
    canvas.text(10, top + 28, "Growth of cost, with its exponent", size=17, weight=600)
    top += 40
    width, height = PANEL
    for number, (case, by_engine) in enumerate(by_case.items()):
        x, y = number % 2 * width, top + number // 2 * height
        _curve(canvas, (x + 62, y + 34, x + width - 130, y + height - 34), by_engine)
        canvas.text(x + 10, y + 18, titles.get(case, case), size=13, weight=600)
    return top + (len(by_case) + 1) // 2 * height


def _curve(canvas, box, by_engine):
    """Draw the curves of a case ({engine: [(x, y), …]}) into a box (left, top, right, bottom)."""
    left, top, right, bottom = box
    xs = sorted({x for points in by_engine.values() for x, _ in points})
    ys = [y for points in by_engine.values() for _, y in points]
    if len(xs) < 2:
        return
    ticks = decades(min(ys), max(ys))
    across, up = scale(xs[0], xs[-1], left, right), scale(ticks[0], ticks[-1], bottom, top)
    for tick in ticks:
        canvas.line([(left, up(tick)), (right, up(tick))])
        canvas.text(left - 8, up(tick) + 4, _duration(tick), size=10, anchor="end")
    for x in xs:
        canvas.line([(across(x), top), (across(x), bottom)])
        canvas.text(across(x), bottom + 16, f"{x:,.0f}", size=10, anchor="middle")
    ends = {engine: up(points[-1][1]) for engine, points in by_engine.items()}
    for engine, points in by_engine.items():
        colour = COLOURS.get(engine, GREY)
        width = 2.5 if engine == ARROWLOG else 1.8
        canvas.line([(across(x), up(y)) for x, y in points], colour=colour, width=width)
        for x, y in points:
            canvas.dot(across(x), up(y), colour, f"{engine}: {y:,.2f} ms at {x:,.0f}")
    for engine, y in _without_overlap(ends).items():
        exponent = slope(by_engine[engine])
        label = engine if exponent is None else f"{engine} {exponent:.2f}"
        canvas.text(right + 12, y + 4, label, colour=COLOURS.get(engine, GREY), size=11, weight=600)


def _duration(ms):
    return f"{ms / 1000:,g} s" if ms >= 1000 else f"{ms:g} ms"


def _without_overlap(ends, distance=14):
    """Positions of labels, moved down so that none overlaps another.

    >>> _without_overlap({"a": 10.0, "b": 12.0, "c": 50.0})
    {'a': 10.0, 'b': 24.0, 'c': 50.0}
    """
    positions, last = {}, -math.inf
    for engine, y in sorted(ends.items(), key=lambda item: item[1]):
        last = max(y, last + distance)
        positions[engine] = last
    return positions

"""The picture: ratios by case on a log axis, and cost as it grows, as one SVG. Pure.

Drawn by hand: some lines, dots and words need no package. The background is left open, and all
colours are of middle lightness, so that it can be read on white and on black.
"""

import math
from xml.sax.saxutils import escape

from benchmarks.figures import OURS, curves, ratio, slope
from benchmarks.headline import headline, short
from benchmarks.report import TIMES, times

WIDTH = 960
COLOURS = {
    OURS: "#a06cf0",
    "deltalake": "#3b82f6",
    "pyiceberg": "#d97706",
    "spark": "#2da44e",
    "fastavro": "#c2410c",
}
GREY, FAINT = "#7d7d7d", "#7d7d7d44"
FONT = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
LEFT, RIGHT, STEP = 330, 150, 19  # of the ratios: room for names, for numbers, and a row
SMALL = (WIDTH // 2, 230)  # a curve's panel


class Canvas:
    """Collects what is drawn."""

    def __init__(self):
        self.parts = []

    def text(self, x, y, words, *, size=12, colour=GREY, anchor="start", weight=400):
        style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>')

    def line(self, points, *, colour=FAINT, width=1.0):
        told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        self.parts.append(f'<polyline points="{told}" {style}/>')

    def dot(self, x, y, colour, words):
        title = f"<title>{escape(words)}</title>"
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">{title}')
        self.parts.append("</circle>")


def chart(figures, titles, about=""):
    """The SVG as text."""
    canvas = Canvas()
    y = _ratios(canvas, headline(figures), titles)
    y = _curves(canvas, curves(figures), titles, y)
    for words in about.split("\n"):
        y += 16
        canvas.text(10, y, words, size=10)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 12:.0f}"'
    title = "<title>arrowlog beside its peers: ratios of medians, and cost as it grows</title>"
    body = "\n".join(canvas.parts)
    return f'{head} width="{WIDTH}" style="{FONT}">\n{title}\n{body}\n</svg>\n'


def scale(low, high, start, end):
    """From a value to a place, by its logarithm."""
    span = math.log(high) - math.log(low)
    return lambda value: start + (math.log(value) - math.log(low)) / span * (end - start)


def decades(low, high):
    """Powers of ten around all values.

    >>> decades(0.3, 250)
    [0.1, 1.0, 10.0, 100.0, 1000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _ratios(canvas, rows, titles):
    found = [
        (row, {f.who: ratio(row, f.who) for f in row if f.who != OURS and ratio(row, f.who)})
        for row in rows
    ]
    found = [(row, by) for row, by in found if by]
    if not found:
        return 0
    values = [value for _, by in found for value in by.values()]
    ticks = decades(min(*values, 1), max(*values, 1))
    place = scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    top, bottom = 84, 84 + STEP * len(found) + 6
    canvas.text(10, 24, "How many times better than its peers arrowlog is", size=17, weight=600)
    _legend(canvas, [name for name in COLOURS if any(name in by for _, by in found)])
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
    for number, (row, by) in enumerate(found):
        y = top + STEP * (number + 0.5)
        words = f"{short(titles.get(row[0].case, row[0].case))}: {row[0].shape}"
        canvas.text(LEFT - 16, y + 4, words.replace(" x ", f" {TIMES} "), anchor="end")
        for who, value in by.items():
            canvas.line([(place(1), y), (place(value), y)], colour=COLOURS[who], width=1.5)
        for who, value in by.items():
            told = times(value).replace("x", TIMES)
            canvas.dot(place(value), y, COLOURS[who], f"{words}: {told} of {who}")
            right = WIDTH - (10 if who == "pyiceberg" else 72)
            canvas.text(right, y + 4, told, colour=COLOURS[who], anchor="end", weight=600)
    return bottom + 10


def _legend(canvas, names):
    x = 10
    for name in names:
        canvas.dot(x + 5, 44, COLOURS[name], name)
        canvas.text(x + 15, 48, f"than {name}", colour=COLOURS[name])
        x += 130


def _curves(canvas, found, titles, top):
    if not found:
        return top
    words = "Cost as it grows, and the power it grows with"
    canvas.text(10, top + 28, words, size=17, weight=600)
    top += 40
    width, height = SMALL
    for number, (case, by) in enumerate(found.items()):
        x, y = number % 2 * width, top + number // 2 * height
        _curve(canvas, (x + 62, y + 34, x + width - 130, y + height - 34), by)
        canvas.text(x + 10, y + 18, titles.get(case, case), size=13, weight=600)
    return top + (len(found) + 1) // 2 * height


def _curve(canvas, box, by):
    left, top, right, bottom = box
    xs = sorted({x for points in by.values() for x, _ in points})
    ys = [y for points in by.values() for _, y in points]
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
    ends = {who: up(points[-1][1]) for who, points in by.items()}
    for who, points in by.items():
        colour = COLOURS.get(who, GREY)
        width = 2.5 if who == OURS else 1.8
        canvas.line([(across(x), up(y)) for x, y in points], colour=colour, width=width)
        for x, y in points:
            canvas.dot(across(x), up(y), colour, f"{who}: {y:,.2f} ms at {x:,.0f}")
    for who, y in _apart(ends).items():
        power = slope(by[who])
        words = who if power is None else f"{who} {power:.2f}"
        canvas.text(right + 12, y + 4, words, colour=COLOURS.get(who, GREY), size=11, weight=600)


def _duration(ms):
    return f"{ms / 1000:,g} s" if ms >= 1000 else f"{ms:g} ms"


def _apart(ends, least=14):
    """Places of labels, moved so that none covers another.

    >>> _apart({"a": 10.0, "b": 12.0, "c": 50.0})
    {'a': 10.0, 'b': 24.0, 'c': 50.0}
    """
    found, last = {}, -math.inf
    for who, y in sorted(ends.items(), key=lambda item: item[1]):
        last = max(y, last + least)
        found[who] = last
    return found

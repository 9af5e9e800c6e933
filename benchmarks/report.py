"""The results table, as text for a terminal of 140 columns. Pure.

Each row has a label, then median, best run and memory of arrowlog and of up to two peers, how many
times better arrowlog is than each of them, and with `--against` the change of its median. A heading
above each group of rows names the unit and the peers.
"""

from benchmarks.figures import (
    ARROWLOG,
    COUNT_UNITS,
    MORE_IS_BETTER,
    curves,
    figure_of,
    ratio,
    slope,
)

# Widths of the columns.
LABEL, NUMBER, MEMORY, RATIO, CHANGE = 38, 9, 7, 10, 7
PEERS_MAX = 2
TIMES = "\N{MULTIPLICATION SIGN}"  # for Markdown and SVG; the terminal gets an "x"
FIGURES_END = LABEL + (1 + PEERS_MAX) * (2 * NUMBER + MEMORY)  # the ratios start here
WIDTH = FIGURES_END + PEERS_MAX * RATIO + CHANGE


def number(value):
    """About three digits, without an exponent.

    >>> [number(v) for v in (0.0812, 3.456, 45.67, 4567.8, 0)]
    ['0.081', '3.46', '45.7', '4,568', '0']
    """
    if value == 0:
        return "0"
    digits = 3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def whole(value):
    """A count."""
    return f"{value:,.0f}"


def times(value):
    """A ratio; "" for None.

    >>> [times(v) for v in (0.934, 9.26, 25.4, 1234.5, None)]
    ['0.93x', '9.3x', '25x', '1,234x', '']
    """
    if value is None:
        return ""
    return f"{value:,.{2 if value < 2 else 1 if value < 20 else 0}f}x"


def change(value):
    """A relative change in percent; "" for None.

    >>> [change(v) for v in (0.123, -0.5, None)]
    ['+12%', '-50%', '']
    """
    return "" if value is None else f"{value:+.0%}"


def heading(title, unit, peers, *, against=False):
    """The two lines above a group of rows."""
    engines = [ARROWLOG, *peers]
    above = f"{'':<{LABEL}}" + "".join(f"{name:^{2 * NUMBER + MEMORY}}" for name in engines)
    if peers:
        above += f"{'times better than':>{FIGURES_END + len(peers) * RATIO - len(above)}}"
    best = "most" if unit in MORE_IS_BETTER else "least"
    below = f"{f'{title} [{unit}]':<{LABEL}}"
    below += f"{'median':>{NUMBER}}{best:>{NUMBER}}{'MB':>{MEMORY}}" * len(engines)
    below = f"{below:<{FIGURES_END}}"
    below += "".join(f"{name[: RATIO - 1]:>{RATIO}}" for name in peers)
    below += " " * RATIO * (PEERS_MAX - len(peers)) + (f"{'change':>{CHANGE}}" if against else "")
    return f"\n{above.rstrip()}\n{below.rstrip()}"


def line(row, peers, since=None):
    """The line of a row; `since` is the change of arrowlog's median since an earlier run."""
    text = f"  {row[0].shape:<{LABEL - 2}}"
    for engine in (ARROWLOG, *peers):
        figure = figure_of(row, engine)
        if figure is None:
            text += " " * (2 * NUMBER + MEMORY)
            continue
        memory = "" if figure.mb is None else f"{figure.mb:,.0f}"
        show = whole if figure.unit in COUNT_UNITS else number
        best = show(figure.best) if len(figure.runs) > 1 else ""
        text += f"{show(figure.median):>{NUMBER}}{best:>{NUMBER}}"
        text += f"{memory:>{MEMORY}}"
    text = f"{text:<{FIGURES_END}}"
    text += "".join(f"{times(ratio(row, engine)):>{RATIO}}" for engine in peers)
    text = f"{text:<{FIGURES_END + PEERS_MAX * RATIO}}"
    return f"{text}{change(since):>{CHANGE}}".rstrip()


def slopes(case, figures, peers):
    """The last line of a case whose cost grows, with the exponents; "" for other cases."""
    points = curves([figure for figure in figures if figure.case == case]).get(case)
    if not points:
        return ""
    text = f"  {'exponent of growth':<{LABEL - 2}}"
    for engine in (ARROWLOG, *peers):
        exponent = slope(points.get(engine, []))
        cell = "" if exponent is None else f"{exponent:.2f}"
        text += f"{cell:>{NUMBER}}" + " " * (NUMBER + MEMORY)
    return text.rstrip()


def notes(figures):
    """The notes of single figures, one per line."""
    by_figure = {(f.case, f.shape, f.engine): f.note for f in figures if f.note}
    return "\n".join(f"{', '.join(figure)}: {note}" for figure, note in by_figure.items())


class Printer:
    """Prints rows as they are measured, with a heading at the start of each group."""

    def __init__(self, titles, earlier=None, out=print):
        self._titles, self._earlier, self._out = titles, earlier, out
        self._group, self._peers, self._figures = None, (), []

    def row(self, row, peers, since=None):
        """Print a row, after the heading if it starts a group."""
        group = (row[0].case, row[0].unit, peers)
        if group != self._group:
            self.end()
            self._group, self._peers = group, peers
            title = self._titles.get(row[0].case, row[0].case)
            self._out(heading(title, row[0].unit, peers, against=self._earlier is not None))
        self._figures += row
        self._out(line(row, peers, since))

    def end(self):
        """Print the last line of the group, if it has one."""
        if self._group is not None:
            last = slopes(self._group[0], self._figures, self._peers)
            if last:
                self._out(last)
        self._group, self._figures = None, []

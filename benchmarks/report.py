"""The one table, as text for a terminal of 140 columns. Pure.

Every row: what, then median, best and memory of us and of up to two peers, how many times better we
are than each, and with `--against` the change of our median. A heading starts each group and names
the unit and the peers.
"""

from benchmarks.figures import MORE_IS_BETTER, ONLY_TOLD, OURS, curves, of, ratio, slope

LABEL, NUMBER, MEMORY, RATIO, SINCE = 38, 9, 7, 10, 7
PEERS = 2
TIMES = "\N{MULTIPLICATION SIGN}"  # where more than ASCII is safe
END = LABEL + (1 + PEERS) * (2 * NUMBER + MEMORY)  # of the figures; ratios follow
WIDTH = END + PEERS * RATIO + SINCE


def number(value):
    """Three digits or so, and never an exponent.

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
    """A ratio.

    >>> [times(v) for v in (0.934, 9.26, 25.4, 1234.5, None)]
    ['0.93x', '9.3x', '25x', '1,234x', '']
    """
    if value is None:
        return ""
    return f"{value:,.{2 if value < 2 else 1 if value < 20 else 0}f}x"


def change(value):
    """Of our median since an earlier run.

    >>> [change(v) for v in (0.123, -0.5, None)]
    ['+12%', '-50%', '']
    """
    return "" if value is None else f"{value:+.0%}"


def heading(title, unit, peers, *, against=False):
    """The lines over a group of rows."""
    who = [OURS, *peers]
    above = f"{'':<{LABEL}}" + "".join(f"{name:^{2 * NUMBER + MEMORY}}" for name in who)
    if peers:
        above += f"{'times better than':>{END + len(peers) * RATIO - len(above)}}"
    best = "most" if unit in MORE_IS_BETTER else "least"
    below = f"{f'{title} [{unit}]':<{LABEL}}"
    below += f"{'median':>{NUMBER}}{best:>{NUMBER}}{'MB':>{MEMORY}}" * len(who)
    below = f"{below:<{END}}"
    below += "".join(f"{name[: RATIO - 1]:>{RATIO}}" for name in peers)
    below += " " * RATIO * (PEERS - len(peers)) + (f"{'since':>{SINCE}}" if against else "")
    return f"\n{above.rstrip()}\n{below.rstrip()}"


def line(row, peers, since=None):
    """One row."""
    text = f"  {row[0].shape:<{LABEL - 2}}"
    for who in (OURS, *peers):
        figure = of(row, who)
        if figure is None:
            text += " " * (2 * NUMBER + MEMORY)
            continue
        memory = "" if figure.mb is None else f"{figure.mb:,.0f}"
        show = whole if figure.unit in ONLY_TOLD else number
        best = show(figure.best) if len(figure.runs) > 1 else ""
        text += f"{show(figure.median):>{NUMBER}}{best:>{NUMBER}}"
        text += f"{memory:>{MEMORY}}"
    text = f"{text:<{END}}"
    text += "".join(f"{times(ratio(row, who)):>{RATIO}}" for who in peers)
    text = f"{text:<{END + PEERS * RATIO}}"
    return f"{text}{change(since):>{SINCE}}".rstrip()


def slopes(case, figures, peers):
    """The last row of a case that grows: the power that cost grows with; "" for others."""
    found = curves([figure for figure in figures if figure.case == case]).get(case)
    if not found:
        return ""
    text = f"  {'grows with the power':<{LABEL - 2}}"
    for who in (OURS, *peers):
        power = slope(found.get(who, []))
        text += f"{'' if power is None else f'{power:.2f}':>{NUMBER}}" + " " * (NUMBER + MEMORY)
    return text.rstrip()


def notes(figures):
    """What has to be said of single figures."""
    told = {(f.case, f.shape, f.who): f.note for f in figures if f.note}
    return "\n".join(f"{case}, {shape}, {who}: {note}" for (case, shape, who), note in told.items())


class Printer:
    """Prints rows as they come, with headings where a new group begins."""

    def __init__(self, titles, earlier=None, out=print):
        self._titles, self._earlier, self._out = titles, earlier, out
        self._group, self._peers, self._seen = None, (), []

    def row(self, row, peers, since=None):
        group = (row[0].case, row[0].unit, peers)
        if group != self._group:
            self.end()
            self._group, self._peers = group, peers
            title = self._titles.get(row[0].case, row[0].case)
            self._out(heading(title, row[0].unit, peers, against=self._earlier is not None))
        self._seen += row
        self._out(line(row, peers, since))

    def end(self):
        """The group is whole."""
        if self._group is not None:
            last = slopes(self._group[0], self._seen, self._peers)
            if last:
                self._out(last)
        self._group, self._seen = None, []

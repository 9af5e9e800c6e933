"""HTML and SVG from values: escaped text, accessible tables, and charts. Pure.

Whatever a log holds is text here, never markup. Characters that are invisible or change the order
of the text around them are shown as escapes, and every name is isolated from its surroundings.

Charts are inline SVG, fluid in width, with text that keeps its size, a title and a description.
Positions along the x-axis are percentages, so that a chart fills its place without scaling its
labels. Only curves are drawn in a nested viewport that is stretched. The page has the data of every
chart as a table; tips on hovering are an extra.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING

from arrowlog.display import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Controls, marks and overrides of the direction of text, lone surrogates, and no characters.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff]"
)


def text(value: str) -> str:
    r"""Return a text as HTML, for content and for quoted attributes.

    >>> print(text("<b>\x00"), text("a\u202eb"))
    &lt;b&gt;\x00 a\u202eb
    """
    return escape(_INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], value))


def name(value: str) -> str:
    """Return a name from the log, isolated so that its direction does not spread."""
    return f"<bdi>{text(value)}</bdi>"


def code(value: str) -> str:
    """Return code from the log."""
    return f'<code dir="auto">{text(value)}</code>'


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its markup, and what it is sorted by: a number, or its text.

    An unknown value is None, and sorted last.
    """

    html: str
    value: float | str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column. `order` is the initial order, `ascending` or `descending`, if any."""

    title: str
    numeric: bool = False
    order: str = ""


def data_table(
    ident: str,
    caption: str,
    heads: Sequence[Head],
    rows: Sequence[Sequence[Cell]],
    *,
    search: str = "",
    limit: int = 0,
) -> str:
    """Return a table that can be sorted.

    With `search`, it can be filtered by an input of that label. With `limit`, rows beyond are
    hidden until they are asked for; both need scripts, and without scripts all rows are there.
    """
    head = "".join(_head(each) for each in heads)
    body = "".join(
        f"<tr>{''.join(_cell(cell, heads[n], n == 0) for n, cell in enumerate(row))}</tr>"
        for row in rows
    )
    tools = ""
    if search and len(rows) > 5:
        tools = (
            f'<div class="tools" hidden><label for="{ident}-q">{text(search)}</label>'
            f'<input id="{ident}-q" type="search" data-filter="{ident}" autocomplete="off"'
            f' spellcheck="false"><output for="{ident}-q" id="{ident}-n" aria-live="polite">'
            "</output></div>"
        )
    limited = f' data-limit="{limit}"' if limit and len(rows) > limit else ""
    return (
        f'{tools}<div class="scroll" role="region" aria-labelledby="{ident}-c" tabindex="0">'
        f'<table id="{ident}" data-sortable{limited}><caption id="{ident}-c">'
        f"<span>{text(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(head: Head) -> str:
    kind = ' class="num"' if head.numeric else ""
    order = f' aria-sort="{head.order}"' if head.order else ""
    return f'<th scope="col"{kind}{order}>{text(head.title)}</th>'


def _cell(cell: Cell, head: Head, is_head: bool) -> str:  # noqa: FBT001 -- its place in the row
    value = ""
    if not isinstance(cell.value, str):  # scripts sort by the text of a cell that has no value
        value = f' data-v="{"" if cell.value is None else cell.value}"'
    kind = ' class="num"' if head.numeric else ""
    opening = '<th scope="row"' if is_head else "<td"
    return f"{opening}{kind}{value}>{cell.html}{'</th>' if is_head else '</td>'}"


def data_details(summary: str, table: str) -> str:
    """Return the data of a chart as a table that can be opened."""
    return f"<details><summary>{text(summary)}</summary>{table}</details>"


_PLOT_TOP, _PLOT_HEIGHT, _LABEL_BAND = 18, 170, 24  # pixels
_STRETCHED = 1000  # units of the nested viewport, in both directions
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TICKS_MAX = 6
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
# Steps between the labels of a time axis: seconds, or months where they are negative.
_TIME_STEPS = (
    *(1, 5, 15, 30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY),
    *(-1, -3, -6, -12, -24, -60, -120, -600, -1200, -6000, -12_000, -24_000),
)
_MONTH_SECONDS = 30 * _DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar from `start` to `end`, shares of the width; `up` and `down` are its values."""

    start: float
    end: float
    up: float
    down: float
    tip: str


@dataclass(frozen=True, slots=True)
class Label:
    """A label of the x-axis, at a share of the width."""

    at: float
    text: str


def format_number(value: float) -> str:
    """Format a number for an axis.

    >>> format_number(0), format_number(1500), format_number(2_000_000)
    ('0', '1,500', '2M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:,g}"


def format_size(value: float) -> str:
    """Format a number of bytes for an axis."""
    return format_bytes(round(value)).replace(".0 ", " ")


def time_labels(start: datetime, end: datetime) -> list[Label]:
    """Return labels at even times between two, at most six."""
    seconds = (end - start).total_seconds()
    if seconds <= 0:
        return [Label(0.5, f"{_format_time(start, _DAY)} {start.year}")]
    step = next(
        (s for s in _TIME_STEPS if seconds / (s if s > 0 else -s * _MONTH_SECONDS) <= _TICKS_MAX),
        _TIME_STEPS[-1],
    )
    times = _times_by_seconds(start, end, step) if step > 0 else _times_by_months(start, end, -step)
    labels = [
        Label((time - start).total_seconds() / seconds, _format_time(time, step)) for time in times
    ]
    return labels or [Label(0.5, _format_time(start, 1))]


def _times_by_seconds(start: datetime, end: datetime, step: int) -> list[datetime]:
    first = -(-(start - _EPOCH).total_seconds() // step) * step
    last = (end - _EPOCH).total_seconds()
    count = int((last - first) // step) + 1
    return [_EPOCH + timedelta(seconds=first + number * step) for number in range(count)]


def _times_by_months(start: datetime, end: datetime, step: int) -> list[datetime]:
    month = -(-(start.year * 12 + start.month - 1) // step) * step
    times = []
    while month // 12 <= end.year and month // 12 >= 1:
        time = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if time > end:
            break
        times += [time] if time >= start else []
        month += step
        if month // 12 > 9999:
            break
    return times


def _format_time(time: datetime, step: int) -> str:
    """Format a time as precisely as labels that are `step` apart need."""
    if step <= -12:
        return str(time.year)
    if step < 0:
        return f"{_MONTHS[time.month - 1]} {time.year}"
    if step >= _DAY or (step >= _HOUR and time.hour == 0):
        return f"{time.day} {_MONTHS[time.month - 1]}"
    return f"{time:%H:%M}" if step >= _MINUTE else f"{time:%H:%M:%S}"


def _nice_ceiling(value: float) -> float:
    """Return the lowest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10, 20) if power * step >= value)


def _axis_values(highest: float) -> list[float]:
    """Return the values of an axis: a middle one only where it is a whole number."""
    return [0.0, highest] if highest % 2 else [0.0, highest / 2, highest]


def _frame(ident: str, title: str, description: str, height: int, body: str) -> str:
    """Return a chart of full width with its title and description."""
    return (
        f'<svg class="chart" width="100%" height="{height}" role="img"'
        f' aria-labelledby="{ident}-t {ident}-d">'
        f'<title id="{ident}-t">{text(title)}</title>'
        f'<desc id="{ident}-d">{text(description)}</desc>{body}</svg>'
    )


def _grid(top: float, bottom: float, values: Sequence[float], names: Sequence[str]) -> str:
    """Return lines across the plot with their values above them; `values` from bottom to top.

    Zero has a line and no name: it would lie on the first bar.
    """
    low, high = values[0], values[-1]
    parts = []
    for value, name in zip(values, names, strict=True):
        y = bottom - (value - low) / (high - low) * (bottom - top)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        if value:
            parts.append(f'<text class="tick" x="0" y="{y - 4:.1f}">{text(name)}</text>')
    return "".join(parts)


def _x_axis(labels: Sequence[Label], y: float) -> str:
    """Return labels below the plot; on a narrow screen, every other one is hidden."""
    parts = []
    for number, label in enumerate(labels):
        anchor = "start" if label.at < 0.06 else "end" if label.at > 0.94 else "middle"
        extra = " minor" if number % 2 and len(labels) > 3 else ""
        parts.append(
            f'<text class="tick x{extra}" x="{label.at * 100:.2f}%" y="{y}"'
            f' text-anchor="{anchor}">{text(label.text)}</text>'
        )
    return "".join(parts)


def area_chart(
    ident: str,
    title: str,
    description: str,
    points: Sequence[tuple[float, float, str]],
    labels: Sequence[Label],
    format_value: Callable[[float], str],
) -> str:
    """Draw a value over time as steps: `points` are a share of the width, a value and a tip."""
    highest = _nice_ceiling(max((value for _, value, _ in points), default=0.0))
    # A negative total can only come from a log with wrong sizes; it is drawn as zero.
    heights = [_STRETCHED * (1 - max(value, 0.0) / highest) for _, value, _ in points]
    line = f"M{points[0][0] * _STRETCHED:.1f} {heights[0]:.1f}"
    for (at, _, _), height in zip(points[1:], heights[1:], strict=True):
        line += f"H{at * _STRETCHED:.1f}V{height:.1f}"
    line += f"H{_STRETCHED}"
    area = f"{line}V{_STRETCHED}H{points[0][0] * _STRETCHED:.1f}Z"
    bottom = _PLOT_TOP + _PLOT_HEIGHT
    ends = [at for at, _, _ in points[1:]] + [1.0]
    hits = "".join(
        f'<rect class="hit" x="{at * 100:.2f}%" y="{_PLOT_TOP}"'
        f' width="{max(end - at, 0.002) * 100:.2f}%" height="{_PLOT_HEIGHT}"'
        f' data-tip="{text(tip)}"/>'
        for (at, _, tip), end in zip(points, ends, strict=True)
    )
    values = _axis_values(highest)
    body = (
        f'<svg x="0" y="{_PLOT_TOP}" width="100%" height="{_PLOT_HEIGHT}"'
        f' viewBox="0 0 {_STRETCHED} {_STRETCHED}" preserveAspectRatio="none">'
        f'<path class="area" d="{area}"/><path class="line" d="{line}"/></svg>'
        + _grid(_PLOT_TOP, bottom, values, [format_value(value) for value in values])
        + _x_axis(labels, bottom + 17)
        + hits
    )
    return _frame(ident, title, description, bottom + _LABEL_BAND, body)


def bar_chart(
    ident: str,
    title: str,
    description: str,
    bars: Sequence[Bar],
    labels: Sequence[Label],
    format_value: Callable[[float], str],
) -> str:
    """Draw bars up and down from a common line. Without any value below it, bars only go up."""
    up = max((bar.up for bar in bars), default=0.0)
    down = max((bar.down for bar in bars), default=0.0)
    highest = _nice_ceiling(max(up, down))
    top, bottom = _PLOT_TOP, _PLOT_TOP + _PLOT_HEIGHT
    has_down = down > 0
    # Both directions have one scale; the plot is no taller than the values need.
    ceiling = highest if up > highest / 2 or not has_down else highest / 2
    floor = 0.0 if not has_down else highest if down > highest / 2 else highest / 2
    base = bottom - _PLOT_HEIGHT * floor / (ceiling + floor)
    scale = _PLOT_HEIGHT / (ceiling + floor)
    shapes = []
    for bar in bars:
        gap = min(0.15 * (bar.end - bar.start), 0.004)
        x, width = (bar.start + gap) * 100, max(bar.end - bar.start - 2 * gap, 0.002) * 100
        for kind, value, sign in (("up", bar.up, -1), ("down", bar.down, 1)):
            if value > 0:
                height = max(value * scale, 1.0)  # a value that is not zero can be seen
                y = base if sign > 0 else base - height
                shapes.append(
                    f'<rect class="bar-{kind}" x="{x:.2f}%" y="{y:.1f}" width="{width:.2f}%"'
                    f' height="{height:.1f}"/>'
                )
        shapes.append(
            f'<rect class="hit" x="{bar.start * 100:.2f}%" y="{top}"'
            f' width="{max(bar.end - bar.start, 0.002) * 100:.2f}%" height="{_PLOT_HEIGHT}"'
            f' data-tip="{text(bar.tip)}"/>'
        )
    values = [-floor, 0.0, ceiling] if has_down else _axis_values(ceiling)
    names = [format_value(abs(value)) for value in values]
    if has_down:
        names = [f"-{names[0]}", names[1], f"+{names[2]}"]
    body = (
        _grid(top, bottom, values, names)
        + "".join(shapes)
        + f'<line class="base" x1="0" x2="100%" y1="{base:.1f}" y2="{base:.1f}"/>'
        + _x_axis(labels, bottom + 17)
    )
    return _frame(ident, title, description, bottom + _LABEL_BAND, body)


def stacked_bar(
    ident: str, title: str, description: str, parts: Sequence[tuple[str, int, str]]
) -> str:
    """Draw shares of a whole as one bar: `parts` are a CSS class, a count and a tip."""
    total = sum(count for _, count, _ in parts) or 1
    at, body = 0.0, ""
    for kind, count, tip in parts:
        share = count / total * 100
        if count:
            body += (
                f'<rect class="{kind}" x="{at:.3f}%" y="0" width="{share:.3f}%" height="14"'
                f' data-tip="{text(tip)}"/>'
            )
        at += share
    return _frame(ident, title, description, 14, body)


def inline_bar(share: float, kind: str = "fill") -> str:
    """Draw a share as a small bar for the cell of a table, which also has it as text."""
    width = min(max(share, 0.0), 1.0) * 100
    return (
        '<svg class="meter" width="100%" height="6" aria-hidden="true" focusable="false">'
        '<rect class="rail" width="100%" height="6" rx="3"/>'
        f'<rect class="{kind}" width="{width:.1f}%" height="6" rx="3"/></svg>'
    )

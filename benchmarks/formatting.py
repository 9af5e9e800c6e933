"""Readable numbers, sizes and durations, and Markdown tables. Pure."""

DAY = 86_400


def short(value):
    """A number with at least two digits.

    >>> short(259_200_000), short(0.0123), short(41.27), short(3_812.4)
    ('259,200,000', '0.012', '41', '3,812')
    """
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def size(value):
    """A number of bytes with a suitable unit.

    >>> size(3_500_000_000), size(900), size(70_000_000)
    ('3.5 GB', '900 B', '70 MB')
    """
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= step:
            number = value / step
            return f"{number:.1f} {unit}" if number < 10 else f"{number:,.0f} {unit}"
    return f"{value:.0f} B"


def span(seconds):
    """A duration with a suitable unit.

    >>> span(0.0421), span(8.24), span(300), span(90_000)
    ('42 ms', '8.2 s', '5.0 min', '25 h')
    """
    if seconds < 1:
        return f"{short(seconds * 1000)} ms"
    for unit, step, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            number = seconds / step
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{seconds / DAY:.1f} days"


def markdown_table(head, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)

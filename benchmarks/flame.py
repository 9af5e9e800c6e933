"""Stacks to a picture: `python -m benchmarks.flame STACKS SVG`.

STACKS has a stack a line, outermost frame first, `a;b;c 7`, as `py-spy record --native --format
raw` writes them. Frames below 0.3 % of all samples are left out.
"""

import re
import sys
from dataclasses import dataclass, field
from html import escape

WIDTH, ROW, LETTER = 1400, 17, 6.4
LEAST = 0.003
COLOURS = [  # the first that a frame's text has in it
    ("arrowlog/", "#4c78a8"),
    ("libarrow", "#f58518"),
    ("pyarrow", "#f2a65a"),
    ("polars", "#54a24b"),
    ("libc", "#9d9da1"),
    ("libpython", "#bab0ac"),
    ("", "#88b3d8"),
]
PASSED_OVER = re.compile(
    r"^0x|^Thread\.|^thread_run|_bootstrap|^_worker|^_WorkItem|^<module>|^_start"
)


@dataclass
class Frame:
    name: str
    count: int = 0
    below: dict = field(default_factory=dict)


def read(lines):
    """All stacks as one tree."""
    root = Frame("all")
    for line in lines:
        stack, _, count = line.strip().rpartition(" ")
        frame, many = root, int(count)
        root.count += many
        for name in stack.split(";"):
            if PASSED_OVER.search(name):
                continue
            text = re.sub(r":\d+\)$", ")", re.sub(r"<[^<>()]*>", "", name))
            frame = frame.below.setdefault(text, Frame(text))
            frame.count += many
    return root


def boxes(frame, left, depth, unit):
    """Where each frame is drawn, widest first."""
    found = []
    for child in sorted(frame.below.values(), key=lambda each: -each.count):
        if child.count < LEAST / unit * WIDTH:
            continue
        found.append((left, depth, child.count * unit, child))
        found += boxes(child, left, depth + 1, unit)
        left += child.count * unit
    return found


def draw(root):
    """An SVG that needs nothing else; hovering tells the share."""
    drawn = boxes(root, 0.0, 0, WIDTH / root.count)
    height = ROW * (max(depth for _, depth, _, _ in drawn) + 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
    head += ' font-family="monospace" font-size="11">'
    parts = [head, '<rect width="100%" height="100%" fill="white"/>']
    for left, depth, width, frame in drawn:
        colour = next(colour for mark, colour in COLOURS if mark in frame.name)
        share = f"{100 * frame.count / root.count:.1f} %"
        text = escape(frame.name[: int(width / LETTER)] if width > 4 * LETTER else "")
        top = depth * ROW
        parts.append(
            f'<g><title>{escape(frame.name)}: {share}</title><rect x="{left:.1f}" y="{top}"'
            f' width="{max(width - 0.5, 0.3):.1f}" height="{ROW - 1}" fill="{colour}" rx="1"/>'
            f'<text x="{left + 2:.1f}" y="{top + 12}">{text}</text></g>'
        )
    return "\n".join([*parts, "</svg>\n"])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1]) as stacks:
        picture = draw(read(stacks))
    with open(sys.argv[2], "w") as out:
        out.write(picture)


if __name__ == "__main__":
    main()

"""The shape of a line: the line with its values left out.

Lines of a log come from a program, so thousands of them differ only in a few values. `shape_of`
takes one line apart into constant text and slots; `arrowlog.log.match` decodes all lines that share
the shape. Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrowlog.log.actions import ALIASES, FIELDS, REQUIRED, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

Path = tuple[str, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+')
_WIDTH_MAX = 20_000
_ACTIONS = {*FIELDS, "protocol", "metaData"}
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a shape where lines differ; `index` tells one from the other."""

    index: int
    number: bool = False


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that all lines of a shape have; a number as its text."""

    value: str | bool | None
    number: bool = False


Leaf = Slot | Fixed


@dataclass(slots=True)
class Shape:
    """A line with its values left out.

    `parts` is the line as constant texts and slots. `leaves` says which field a slot is, and the
    value of fields that are the same in all lines. `spans` are the parts that hold a field's JSON
    text.
    """

    action: str = ""
    parts: list[str | Slot] = field(default_factory=list)
    leaves: dict[Path, Leaf] = field(default_factory=dict)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @property
    def slots(self) -> list[Slot]:
        """The places where lines differ, in order."""
        return [part for part in self.parts if isinstance(part, Slot)]


class Odd(Exception):
    """This line has no shape that can be shared."""


def shape_of(line: str, samples: Sequence[str] = ()) -> Shape | None:
    """The shape of one line, or None if it has to be decoded by itself.

    `line` must be known to be valid; what is odd about it is for the line decoder to judge.
    Values that are the same in all `samples` become part of the shape: most statistics of most
    files are no news, and what is not a slot costs nothing. A wrong guess only costs time.
    """
    shape = Shape()
    try:
        known = json.loads(line, object_pairs_hook=_no_duplicates)
        actions = [key for key in known if ALIASES.get(key, key) in _ACTIONS]
        if len(actions) > 1 or line.count(",") > _WIDTH_MAX:
            return None
        shape.action = ALIASES.get(actions[0], actions[0]) if actions else ""
        if shape.action in ("protocol", "metaData"):
            return None
        _walk(shape, line, (), nested=False)
        _check(shape)
        if len(fields_of(shape)) != line.count(",") + 1:
            return None  # a value has a comma in it, or two values share a field
    except (Odd, ValueError, RecursionError):
        return None
    if samples:
        _fix(shape, line, samples)
    return shape


def _fix(shape: Shape, line: str, samples: Sequence[str]) -> None:
    """Make the values that do not differ among the samples part of the shape."""
    pieces = line.split(",")
    others = [other for other in (text.split(",") for text in samples) if len(other) == len(pieces)]
    fixed: dict[Slot, str] = {}
    for item, piece, *rest in zip(fields_of(shape), pieces, *others, strict=True):
        if item.slot is not None and rest and all(other == piece for other in rest):
            fixed[item.slot] = piece[len(item.before) : len(piece) - len(item.after)]
    shape.parts = [fixed.get(p, p) if isinstance(p, Slot) else p for p in shape.parts]
    shape.leaves = {
        path: Fixed(fixed[leaf], leaf.number) if isinstance(leaf, Slot) and leaf in fixed else leaf
        for path, leaf in shape.leaves.items()
    }


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Odd
    return found


def _walk(shape: Shape, text: str, base: Path, *, nested: bool) -> None:
    """Append `text` to the shape, leaving its values out; `base` is where in the line it stands."""
    stack: list[Path | None] = []  # the path of each open object; None within an array
    key: str | None = None
    for token in _TOKEN.findall(text):
        inside = stack[-1] if stack else base
        first = token[0]
        if first == '"' and stack and inside is not None and key is None:
            key = json.loads(token)
            _constant(shape, token, nested=nested)
        elif first in "{[":
            path = inside if inside is None or key is None else (*inside, key)
            _begin(shape, path, len(stack), nested=nested)
            stack.append(None if first == "[" else path)
            key = None
            _constant(shape, token, nested=nested)
        elif first in "}]":
            stack.pop()
            key = None
            _constant(shape, token, nested=nested)
            _end(shape, len(stack), nested=nested)
        elif first in ",:" or first.isspace():
            key = None if first == "," else key
            _constant(shape, token, nested=nested)
        elif inside is None:
            _constant(shape, token, nested=nested)
        else:
            _value(shape, token, inside if key is None else (*inside, key), nested=nested)


def _begin(shape: Shape, path: Path | None, depth: int, *, nested: bool) -> None:
    """Note where the JSON text of a field begins: an object or array, two levels down."""
    if depth == 2 and not nested and path is not None:
        if kind_of(shape, path) in (Kind.JSON, Kind.STATS):
            shape.parts.append("")
            shape.spans[path] = (len(shape.parts) - 1, -1)
        elif kind_of(shape, path) not in (Kind.FLAT, None):
            raise Odd


def _end(shape: Shape, depth: int, *, nested: bool) -> None:
    """Note where it ends."""
    if depth == 2 and not nested:
        for path, (start, stop) in shape.spans.items():
            if stop < 0:
                shape.spans[path] = (start, len(shape.parts))
                shape.parts.append("")


def kind_of(shape: Shape, path: Path) -> Kind | None:
    """The kind of the field that a path leads to or into; None if nobody knows it."""
    if len(path) < 2 or ALIASES.get(path[0], path[0]) != shape.action:
        return None
    return FIELDS.get(shape.action, {}).get(path[1])


def _constant(shape: Shape, text: str, *, nested: bool) -> None:
    text = text.replace('"', '\\"') if nested else text
    if shape.parts and isinstance(shape.parts[-1], str):
        shape.parts[-1] += text
    else:
        shape.parts.append(text)


def _value(shape: Shape, token: str, path: Path, *, nested: bool) -> None:
    if token[0] == '"' and "\\" not in token:
        _constant(shape, '"', nested=nested)
        _slot(shape, path, number=False)
        _constant(shape, '"', nested=nested)
    elif token[0] == '"' and kind_of(shape, path) is Kind.STATS and not nested:
        _stats(shape, token, path)
    elif token[0] == '"':
        shape.leaves[path] = Fixed(json.loads(token))
        _constant(shape, token, nested=nested)
    elif token in _WORDS:
        shape.leaves[path] = Fixed(_WORDS[token])
        _constant(shape, token, nested=nested)
    else:
        _slot(shape, path, number=True)


def _slot(shape: Shape, path: Path, *, number: bool) -> None:
    slot = Slot(len(shape.parts), number)
    shape.leaves[path] = slot
    shape.parts.append(slot)


def _stats(shape: Shape, token: str, path: Path) -> None:
    """Statistics are JSON inside a JSON string: take them apart too, one level of escapes down."""
    inner = json.loads(token)
    if token[1:-1] != inner.replace('"', '\\"') or not inner.startswith("{"):
        raise Odd
    json.loads(inner, object_pairs_hook=_no_duplicates)
    _constant(shape, '"', nested=False)
    shape.parts.append("")
    start = len(shape.parts) - 1
    _walk(shape, inner, path, nested=True)
    shape.spans[path] = (start, len(shape.parts))
    shape.parts.append("")
    _constant(shape, '"', nested=False)


def _check(shape: Shape) -> None:
    """Refuse a shape whose fields are not of their kind; the line decoder says what is wrong."""
    have = {path[1] for path in shape.spans}
    for path, leaf in shape.leaves.items():
        kind = kind_of(shape, path)
        if kind is None or leaf == Fixed(None):
            continue
        have.add(path[1])
        text = not leaf.number and not (isinstance(leaf, Fixed) and isinstance(leaf.value, bool))
        right = {
            Kind.TEXT: text and len(path) == 2,
            Kind.WORD: text and len(path) == 2,
            Kind.INT: leaf.number and len(path) == 2,
            Kind.BOOL: isinstance(leaf, Fixed) and not text and len(path) == 2,
            Kind.FLAT: len(path) == 3,
            Kind.JSON: len(path) > 2,
            Kind.STATS: leaf.number if is_count(path) else len(path) > 2 or text,
        }
        if not right[kind]:
            raise Odd
    if not have.issuperset(REQUIRED.get(shape.action, ())):
        raise Odd


def is_count(path: Path) -> bool:
    """Whether a leaf of statistics is a number of rows."""
    return path[2:] == ("numRecords",) or (len(path) == 4 and path[2] == "nullCount")


@dataclass(frozen=True, slots=True)
class Field:
    """What stands between two commas of a line: constant text, with at most one slot in it."""

    before: str
    slot: Slot | None = None
    after: str = ""


def fields_of(shape: Shape) -> list[Field]:
    """The parts of a shape, cut at its commas."""
    fields: list[Field] = []
    before, slot, after = "", None, ""
    for part in shape.parts:
        if isinstance(part, Slot):
            slot = part
            continue
        first, *rest = part.split(",")
        before, after = (before + first, after) if slot is None else (before, after + first)
        for text in rest:
            fields.append(Field(before, slot, after))
            before, slot, after = text, None, ""
    fields.append(Field(before, slot, after))
    return fields

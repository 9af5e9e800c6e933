"""Line templates: a JSON line with its values replaced by slots.

A program writes the lines of a log, so thousands of lines differ only in a few values.
`build_template` splits one line into constant text and slots; `arrowlog.decode.columnar_decoder`
decodes all lines that fit this template. Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrowlog.formats import FieldKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.formats import ActionFields

JsonPath = tuple[str, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+')
# Commas in a line, and so columns of the CSV parser in `match`. Wider lines go to the row decoder.
_MAX_COMMAS = 20_000
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class TemplateSlot:
    """A position in a template where lines have different values.

    `index` identifies the slot within its template. A slot holds either numbers or the content of
    JSON strings.
    """

    index: int
    number: bool = False


@dataclass(frozen=True, slots=True)
class TemplateConstant:
    """A value that is the same in all lines of a template. A number is held as its text."""

    value: str | bool | None
    number: bool = False


TemplateLeaf = TemplateSlot | TemplateConstant


@dataclass(slots=True)
class LineTemplate:
    """The template of a line.

    `fields` are the fields of all actions, as the format of the log declares them. `parts` is the
    line as a sequence of constant texts and slots. `leaves` maps the path of each scalar to its
    slot, or to its value if that is constant. `spans` maps the path of each field that is kept as
    JSON text to its range in `parts`.
    """

    fields: ActionFields
    action: str = ""
    parts: list[str | TemplateSlot] = field(default_factory=list)
    leaves: dict[JsonPath, TemplateLeaf] = field(default_factory=dict)
    spans: dict[JsonPath, tuple[int, int]] = field(default_factory=dict)

    @property
    def slots(self) -> list[TemplateSlot]:
        """The slots of the template, in order."""
        return [part for part in self.parts if isinstance(part, TemplateSlot)]


class TemplateMismatch(Exception):
    """A line, or a block of lines, that the columnar decoder leaves to the row decoder."""


def build_template(
    line: str, fields: ActionFields, samples: Sequence[str] = ()
) -> LineTemplate | None:
    """Return the template of a line, or None if the line has to be decoded by itself.

    `line` must be valid: the row decoder has accepted it. Values that are the same in all `samples`
    become constants of the template: most statistics of most files repeat, and a constant costs
    nothing to decode. A wrong guess costs only time, because every line is verified.
    """
    template, aliases = LineTemplate(fields), fields.aliases
    known = {*fields.fields, "protocol", "metaData"}
    try:
        members = json.loads(line, object_pairs_hook=_unique_members)
        actions = [key for key in members if aliases.get(key, key) in known]
        if len(actions) > 1 or line.count(",") > _MAX_COMMAS:
            return None
        template.action = aliases.get(actions[0], actions[0]) if actions else ""
        if template.action in ("protocol", "metaData"):
            return None
        _add_json(template, line, (), nested=False)
        _check_kinds(template)
        if len(split_template(template)) != line.count(",") + 1:
            return None  # a value contains a comma, or two values share a field
    except (TemplateMismatch, ValueError, RecursionError):
        return None
    if samples:
        _fix_constants(template, line, samples)
    return template


def _fix_constants(template: LineTemplate, line: str, samples: Sequence[str]) -> None:
    """Replace the slots whose value is the same in all comparable samples by constants."""
    pieces = line.split(",")
    others = [other for other in (text.split(",") for text in samples) if len(other) == len(pieces)]
    constants: dict[TemplateSlot, str] = {}
    for item, piece, *rest in zip(split_template(template), pieces, *others, strict=True):
        if item.slot is not None and rest and all(other == piece for other in rest):
            constants[item.slot] = piece[len(item.before) : len(piece) - len(item.after)]
    template.parts = [
        constants.get(p, p) if isinstance(p, TemplateSlot) else p for p in template.parts
    ]
    template.leaves = {
        path: TemplateConstant(constants[leaf], leaf.number)
        if isinstance(leaf, TemplateSlot) and leaf in constants
        else leaf
        for path, leaf in template.leaves.items()
    }


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raises `TemplateMismatch` for a repeated key (left to row decoding)."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise TemplateMismatch
    return members


def _add_json(template: LineTemplate, text: str, base: JsonPath, *, nested: bool) -> None:
    """Append JSON text to the template, with slots for its scalars.

    `base` is the path of the text within the line. `nested` means that the text is the content of a
    JSON string, so that its quotation marks are escaped in the line.
    """
    stack: list[JsonPath | None] = []  # the path of each open object; None for an array
    key: str | None = None
    for token in _TOKEN.findall(text):
        parent = stack[-1] if stack else base
        first = token[0]
        if first == '"' and stack and parent is not None and key is None:
            key = json.loads(token)
            _add_constant(template, token, nested=nested)
        elif first in "{[":
            path = parent if parent is None or key is None else (*parent, key)
            _open_span(template, path, len(stack), nested=nested)
            stack.append(None if first == "[" else path)
            key = None
            _add_constant(template, token, nested=nested)
        elif first in "}]":
            stack.pop()
            key = None
            _add_constant(template, token, nested=nested)
            _close_span(template, len(stack), nested=nested)
        elif first in ",:" or first.isspace():
            key = None if first == "," else key
            _add_constant(template, token, nested=nested)
        elif parent is None:  # an element of an array has no path, so it is part of the template
            _add_constant(template, token, nested=nested)
        else:
            path = parent if key is None else (*parent, key)
            _add_scalar(template, token, path, nested=nested)


def _open_span(template: LineTemplate, path: JsonPath | None, depth: int, *, nested: bool) -> None:
    """Open the span of a field that is kept as JSON text: an object or array at depth 2.

    Raises `TemplateMismatch` for an object or array in a field that must be a scalar.
    """
    if depth == 2 and not nested and path is not None:
        if field_kind_at(template, path) in (FieldKind.JSON, FieldKind.STATS):
            template.parts.append("")  # a part boundary, where the span begins
            template.spans[path] = (len(template.parts) - 1, -1)
        elif field_kind_at(template, path) not in (FieldKind.FLAT, None):
            raise TemplateMismatch


def _close_span(template: LineTemplate, depth: int, *, nested: bool) -> None:
    """Close the span that `_open_span` opened."""
    if depth == 2 and not nested:
        for path, (start, stop) in template.spans.items():
            if stop < 0:
                template.spans[path] = (start, len(template.parts))
                template.parts.append("")


def field_kind_at(template: LineTemplate, path: JsonPath) -> FieldKind | None:
    """Return the kind of the action's field that contains `path`; None for an unknown field."""
    if len(path) < 2 or template.fields.aliases.get(path[0], path[0]) != template.action:
        return None
    fields = template.fields.fields.get(template.action)
    return None if fields is None else fields.get(path[1])


def _add_constant(template: LineTemplate, text: str, *, nested: bool) -> None:
    text = text.replace('"', '\\"') if nested else text
    if template.parts and isinstance(template.parts[-1], str):
        template.parts[-1] += text
    else:
        template.parts.append(text)


def _add_scalar(template: LineTemplate, token: str, path: JsonPath, *, nested: bool) -> None:
    """Append a scalar: a slot for a number or a plain string, a constant for anything else."""
    if token[0] == '"' and "\\" not in token:
        _add_constant(template, '"', nested=nested)
        _add_slot(template, path, number=False)
        _add_constant(template, '"', nested=nested)
    elif token[0] == '"' and field_kind_at(template, path) is FieldKind.STATS and not nested:
        _add_stats(template, token, path)
    elif token[0] == '"':
        template.leaves[path] = TemplateConstant(json.loads(token))
        _add_constant(template, token, nested=nested)
    elif token in _JSON_CONSTANTS:
        template.leaves[path] = TemplateConstant(_JSON_CONSTANTS[token])
        _add_constant(template, token, nested=nested)
    else:
        _add_slot(template, path, number=True)


def _add_slot(template: LineTemplate, path: JsonPath, *, number: bool) -> None:
    slot = TemplateSlot(len(template.parts), number)
    template.leaves[path] = slot
    template.parts.append(slot)


def _add_stats(template: LineTemplate, token: str, path: JsonPath) -> None:
    """Append statistics, which are JSON inside a JSON string, with slots for their scalars.

    Raises `TemplateMismatch` if escaping the quotation marks alone does not reproduce the token.
    """
    inner = json.loads(token)
    if token[1:-1] != inner.replace('"', '\\"') or not inner.startswith("{"):
        raise TemplateMismatch
    json.loads(inner, object_pairs_hook=_unique_members)
    _add_constant(template, '"', nested=False)
    template.parts.append("")
    start = len(template.parts) - 1
    _add_json(template, inner, path, nested=True)
    template.spans[path] = (start, len(template.parts))
    template.parts.append("")
    _add_constant(template, '"', nested=False)


def _check_kinds(template: LineTemplate) -> None:
    """Raise `TemplateMismatch` if a value does not fit its field or a required field is missing.

    The row decoder then reports what is wrong.
    """
    present = {path[1] for path in template.spans}
    for path, leaf in template.leaves.items():
        kind = field_kind_at(template, path)
        if kind is None or leaf == TemplateConstant(None):
            continue
        present.add(path[1])
        is_text = not leaf.number and not (
            isinstance(leaf, TemplateConstant) and isinstance(leaf.value, bool)
        )
        fits = {
            FieldKind.TEXT: is_text and len(path) == 2,
            FieldKind.WORD: is_text and len(path) == 2,
            FieldKind.INT: leaf.number and len(path) == 2,
            FieldKind.BOOL: isinstance(leaf, TemplateConstant) and not is_text and len(path) == 2,
            FieldKind.FLAT: len(path) == 3,
            FieldKind.JSON: len(path) > 2,
            FieldKind.STATS: leaf.number if is_count_path(path) else len(path) > 2 or is_text,
        }
        if not fits[kind]:
            raise TemplateMismatch
    if not present.issuperset(template.fields.required.get(template.action, ())):
        raise TemplateMismatch


def is_count_path(path: JsonPath) -> bool:
    """Return whether a path in the statistics leads to a row count or a null count."""
    return path[2:] == ("numRecords",) or (len(path) == 4 and path[2] == "nullCount")


@dataclass(frozen=True, slots=True)
class TemplateField:
    """The text between two commas of a line: constant text around at most one slot."""

    before: str
    slot: TemplateSlot | None = None
    after: str = ""


def split_template(template: LineTemplate) -> list[TemplateField]:
    """Split a template at its commas."""
    fields: list[TemplateField] = []
    before, slot, after = "", None, ""
    for part in template.parts:
        if isinstance(part, TemplateSlot):
            slot = part
            continue
        first, *rest = part.split(",")
        before, after = (before + first, after) if slot is None else (before, after + first)
        for text in rest:
            fields.append(TemplateField(before, slot, after))
            before, slot, after = text, None, ""
    fields.append(TemplateField(before, slot, after))
    return fields

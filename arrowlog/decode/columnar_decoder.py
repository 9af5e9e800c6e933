"""The columnar decoder: decode all lines that fit a template, and verify every one of them.

A program writes the lines of a log, so thousands of lines differ only in a few values. A line
template is a JSON line with its values replaced by slots: `build_template` splits one line into
constant text and slots. Then, for a block of lines:

1. Find the commas and line feeds. That is several times faster than any JSON parser reads the line.
   Between two commas there is constant text around at most one value.
2. Cut out the values, and compare the text around them, byte for byte, with the template.
3. Reject values that contain quotation marks, backslashes or control characters.

A line that passes is, provably, the template with those values; nothing else about it needs
parsing. Lines that do not pass are returned, for another template or for the row decoder. Pure: no
I/O, no clock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import concat_bytes, data_span, make_array, make_scalar, repeat_bool
from arrowlog.decode.line_splitter import (
    LineLayout,
    line_end,
    split_blocks,
    split_lines,
    take_lines,
)
from arrowlog.formats import STATS_COUNTS, STATS_MAPS, FieldKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from arrowlog.formats import ActionFields

JsonPath = tuple[str, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|\s+')
# Commas in a line. Lines with more of them go to the row decoder.
_MAX_COMMAS = 20_000
# With so many samples, of which none fits the template of a line, that template is not tried.
_SHAPELESS_MIN_SAMPLES = 8
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSlot:
    """A position in a template where lines have different values.

    `index` identifies the slot within its template. A slot holds either numbers or the content of
    JSON strings. Slots are compared by identity, which makes them fast keys.
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
    # What follows from the above; computed once, because most templates decode many blocks.
    plan: TemplatePlan | None = None
    split: list[TemplateField] | None = None
    field_ends: tuple[list[bytes], list[bytes]] | None = None


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """How to cut lines and what becomes of the values.

    `slots` are in the order of the values in a line. `groups` are the indexes of the values that
    are kept as text, and of the others: the buffer of the latter can be freed. `columns` are the
    name, kind and content of each column that has one scalar of a line; `joined` are the name and
    the parts of each column that has JSON text.
    """

    layout: LineLayout
    slots: list[TemplateSlot]
    groups: tuple[list[int], list[int]]
    columns: list[tuple[str, FieldKind, TemplateLeaf]]
    joined: list[tuple[str, list[str | TemplateSlot]]]
    # Columns of constants by name, which the blocks share: as long as the longest block so far.
    repeated: dict[str, pa.Array] = field(default_factory=dict)


class TemplateMismatch(Exception):
    """A line, or a block of lines, that the columnar decoder leaves to the row decoder."""


def build_template(
    line: str,
    fields: ActionFields,
    samples: Sequence[bytes] = (),
    earlier: Sequence[LineTemplate] = (),
) -> LineTemplate | None:
    """Return the template of a line, or None if the line has to be decoded by itself.

    `line` must be valid: the row decoder has accepted it. Values that are the same in all `samples`
    become constants of the template: most statistics of most files repeat, and a constant costs
    nothing to decode. Unless a template in `earlier` has the same fields and another value: it
    changes from file to file. If none of many samples fits the template, there is none: the lines
    have no common shape. A wrong guess costs only time, because every line is verified.
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
    if len(samples) >= _SHAPELESS_MIN_SAMPLES and not any(which_fit(template, samples)):
        return None
    if samples:
        _fix_constants(template, line, samples, earlier)
    return template


def which_fit(template: LineTemplate, lines: Sequence[bytes]) -> Iterator[bool]:
    """Yield for each line whether it has the constant texts of a template, whatever its values."""
    if template.field_ends is None:
        fields = split_template(template)
        template.field_ends = (
            [item.before.encode() for item in fields],
            [item.after.encode() for item in fields],
        )
    befores, afters = template.field_ends
    for line in lines:
        pieces = line.split(b",")
        yield (
            len(pieces) == len(befores)
            and all(map(bytes.startswith, pieces, befores))
            and all(map(bytes.endswith, pieces, afters))
        )


def fits_again(template: LineTemplate, samples: Sequence[bytes]) -> bool:
    """Return whether a template fits all samples of its action, which are at least half of all."""
    head = str(template.parts[0]).partition(":")[0].encode()
    same = [text for text in samples if text.startswith(head)]
    return 2 * len(same) >= len(samples) > 0 and all(which_fit(template, same))


def _fix_constants(
    template: LineTemplate,
    line: str,
    samples: Sequence[bytes],
    earlier: Sequence[LineTemplate],
) -> None:
    """Replace the slots whose value is the same in all comparable samples by constants."""
    pieces = line.encode().split(b",")
    others = [
        other for other in (text.split(b",") for text in samples) if len(other) == len(pieces)
    ]
    constants: dict[TemplateSlot, str] = {}
    for item, piece, *rest in zip(split_template(template), pieces, *others, strict=True):
        if item.slot is not None and rest and rest.count(piece) == len(rest):
            text = piece.decode()
            constants[item.slot] = text[len(item.before) : len(text) - len(item.after)]
    for other in earlier:
        if other.action == template.action and other.leaves.keys() == template.leaves.keys():
            for path, leaf in template.leaves.items():
                if isinstance(leaf, TemplateSlot) and leaf in constants:
                    fixed = TemplateConstant(constants[leaf], leaf.number)
                    if other.leaves[path] != fixed:
                        del constants[leaf]
    template.parts = [
        constants.get(p, p) if isinstance(p, TemplateSlot) else p for p in template.parts
    ]
    template.leaves = {
        path: TemplateConstant(constants[leaf], leaf.number)
        if isinstance(leaf, TemplateSlot) and leaf in constants
        else leaf
        for path, leaf in template.leaves.items()
    }
    template.split = template.field_ends = None


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
            key = json.loads(token) if "\\" in token else token[1:-1]
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
        if not _fits_kind(kind, path, leaf):
            raise TemplateMismatch
    if not present.issuperset(template.fields.required.get(template.action, ())):
        raise TemplateMismatch


def _fits_kind(kind: FieldKind, path: JsonPath, leaf: TemplateLeaf) -> bool:
    """Return whether a scalar at a path in a field has a type that the field may have."""
    is_bool = isinstance(leaf, TemplateConstant) and isinstance(leaf.value, bool)
    is_text = not leaf.number and not is_bool
    if kind is FieldKind.STATS:
        return leaf.number if is_count_path(path) else len(path) > 2 or is_text
    if kind is FieldKind.FLAT:
        return len(path) == 3
    if kind is FieldKind.JSON:
        return len(path) > 2
    if kind is FieldKind.BOOL:
        return isinstance(leaf, TemplateConstant) and not is_text and len(path) == 2
    return len(path) == 2 and (leaf.number if kind is FieldKind.INT else is_text)


def is_count_path(path: JsonPath) -> bool:
    """Return whether a path in the statistics leads to a number of rows."""
    return path[2:] == ("numRecords",) or (len(path) == 4 and path[2] in STATS_COUNTS)


@dataclass(frozen=True, slots=True)
class TemplateField:
    """The text between two commas of a line: constant text around at most one slot."""

    before: str
    slot: TemplateSlot | None = None
    after: str = ""


def split_template(template: LineTemplate) -> list[TemplateField]:
    """Split a template at its commas."""
    if template.split is None:
        template.split = _split_parts(template.parts)
    return template.split


def _split_parts(parts: Sequence[str | TemplateSlot]) -> list[TemplateField]:
    """Split the parts of a template at their commas."""
    fields: list[TemplateField] = []
    before, slot, after = "", None, ""
    for part in parts:
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


ActionColumns = dict[str, Any]
SlotValues = dict[TemplateSlot, pa.ChunkedArray]

# Bytes per task of a thread.
PIECE_BYTES = 16 << 20
_JSON_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class TemplateMatch:
    """The result of matching `count` lines against a template.

    `columns` are the columns of the matching lines, whose indexes are `rows` (None: all lines
    match). `odd` has the other lines, with their line feeds, and `odd_rows` their indexes.
    """

    columns: ActionColumns
    count: int
    rows: NDArray[np.int64] | None = None
    odd: bytes | memoryview = b""
    odd_rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class LineBlock:
    """A buffer of `count` whole lines, each ending with a line feed."""

    data: bytes | memoryview
    count: int

    def texts(self) -> list[bytes]:
        """Return each line without its line feed."""
        return bytes(self.data).split(b"\n")[: self.count]

    def pieces(self) -> list[bytes | memoryview]:
        """Split the buffer into pieces of whole lines, of about `PIECE_BYTES` bytes each."""
        pieces, start = [], 0
        while start < len(self.data):
            stop = line_end(self.data, start + PIECE_BYTES)
            pieces.append(self.data[start:stop])
            start = stop
        return pieces


def decode_matching_lines(
    data: bytes | memoryview, template: LineTemplate, pool: pa.MemoryPool | None = None
) -> TemplateMatch:
    """Decode the lines of a piece that fit the template, and return the others as they are.

    Malformed input is not an error here: a piece that cannot be verified is returned as lines that
    do not match. `merge_matches` must compare the sum of `count` with the number of lines.
    """
    if template.plan is None:
        template.plan = _plan(template)
    try:
        lines = _split_piece(data, template.plan, pool)
        failed = FailureMasks()
        values = {
            slot: _check_number(failed, value, pool) if slot.number else value
            for slot, value in lines.values.items()
        }
        return _build_match(data, template.plan, lines, values, failed, pool)
    except (TemplateMismatch, pa.ArrowInvalid):  # the row decoder reports what it is
        text = bytes(data)
        count = text.count(b"\n")
        return TemplateMatch({}, count, np.zeros(0, np.int64), text, np.arange(count))


def merge_matches(pieces: Sequence[TemplateMatch], count: int) -> TemplateMatch | None:
    """Merge the matches of the pieces of a buffer of `count` lines.

    Returns None if no line matches, or if the pieces have another number of lines than the buffer.
    """
    matching = [piece for piece in pieces if piece.columns]
    if not matching or sum(piece.count for piece in pieces) != count:
        return None
    columns = {
        name: pa.chunked_array(
            [chunk for piece in matching for chunk in _chunks(piece.columns[name])]
        )
        for name in matching[0].columns
    }
    if all(piece.rows is None for piece in pieces):
        return TemplateMatch(columns, count)
    rows: list[NDArray[np.int64]] = []
    odd_rows: list[NDArray[np.int64]] = []
    start = 0
    for piece in pieces:
        rows.append((np.arange(piece.count) if piece.rows is None else piece.rows) + start)
        odd_rows.append(piece.odd_rows + start)
        start += piece.count
    odd = pieces[0].odd if len(pieces) == 1 else b"".join(piece.odd for piece in pieces)
    return TemplateMatch(columns, count, np.concatenate(rows), odd, np.concatenate(odd_rows))


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


FailureMasks = list["pa.ChunkedArray"]


@dataclass(slots=True)
class _SplitPiece:
    """The values of the slots in those lines of a piece that have the texts of the template.

    The values have the type string. `rows` are the indexes of the lines; None for all. `stops` is
    where each line of the piece ends.
    """

    values: SlotValues
    rows: NDArray[np.int64] | None
    stops: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of lines in the piece."""
        return len(self.stops)


def _plan(template: LineTemplate) -> TemplatePlan:
    """Plan the decoding of lines of a template."""
    layout = LineLayout()
    fields = split_template(template)
    for item in fields:
        layout.add_field(item.before.encode(), None if item.slot is None else item.after.encode())
    layout.close()
    slots = [item.slot for item in fields if item.slot is not None]
    columns: list[tuple[str, FieldKind, TemplateLeaf]] = []
    for path, leaf in template.leaves.items():
        kind = field_kind_at(template, path)
        if kind is not None and leaf != TemplateConstant(None) and _has_column(kind, path):
            kind = FieldKind.INT if kind is FieldKind.STATS and is_count_path(path) else kind
            columns.append((".".join(path[1:]), kind, leaf))
    joined = []
    for path, (start, stop) in template.spans.items():
        parts = template.parts[start:stop]
        if field_kind_at(template, path) is FieldKind.STATS:
            parts = [p.replace('\\"', '"') if isinstance(p, str) else p for p in parts]
        joined.append((path[1], parts))
    texts = {
        leaf
        for _, kind, leaf in columns
        if isinstance(leaf, TemplateSlot) and not leaf.number and kind is not FieldKind.WORD
    }
    kept = [index for index, slot in enumerate(slots) if slot in texts]
    others = [index for index, slot in enumerate(slots) if slot not in texts]
    return TemplatePlan(layout, slots, (kept, others), columns, joined)


def _split_piece(
    data: bytes | memoryview, plan: TemplatePlan, pool: pa.MemoryPool | None
) -> _SplitPiece:
    """Cut the values of all slots out of the lines of a piece, block by block."""
    slots = plan.slots
    chunks: dict[TemplateSlot, list[pa.Array]] = {slot: [] for slot in slots}
    rows: list[NDArray[np.int64]] = []
    stops: list[NDArray[np.int64]] = []
    count = num_matching = begin = 0
    for block in split_blocks(data):
        lines = split_lines(block, plan.layout, plan.groups, pool)
        size = lines.num_matching
        for group, texts in zip(plan.groups, lines.values, strict=True):
            for place, index in enumerate(group):
                chunks[slots[index]].append(texts.slice(place * size, size))
        rows.append((np.arange(size) if lines.rows is None else lines.rows) + count)
        stops.append(np.add(lines.stops, begin, dtype=np.int64))
        count += lines.count
        num_matching += size
        begin += len(block)
    values = {slot: pa.chunked_array(parts, pa.string()) for slot, parts in chunks.items()}
    matching = None if num_matching == count else np.concatenate(rows)
    return _SplitPiece(values, matching, np.concatenate(stops or [np.zeros(0, np.int64)]))


def concat_column_bytes(texts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return all bytes of several columns as one uint8 array, without a copy."""
    parts = []
    for chunk in (chunk for column in texts for chunk in column.chunks):
        start, stop = data_span(chunk)
        buffers = [None, chunk.buffers()[2]]
        parts.append(pa.Array.from_buffers(pa.uint8(), stop - start, buffers, offset=start))
    return pa.chunked_array(parts, pa.uint8())


def _check_number(
    failed: FailureMasks, text: pa.ChunkedArray, pool: pa.MemoryPool | None
) -> pa.ChunkedArray:
    """Check that values are JSON numbers; returns them as int64 if all are integers, else as text.

    An integer is checked by formatting it again: 007, 0x7 and -0 come out different.
    """
    try:
        number = pc.cast(text, pa.int64(), memory_pool=pool)
    except pa.ArrowInvalid:
        _require(failed, pc.match_substring_regex(text, _JSON_NUMBER))
        return text
    if not _is_canonical(text, number):
        formatted = pc.cast(number, pa.string())
        if not formatted.equals(text):
            _require(failed, pc.equal(formatted, text))
    return number


def _require(failed: FailureMasks, passes: pa.ChunkedArray) -> None:
    """Record the lines for which a check is false."""
    if sum(chunk.true_count for chunk in passes.chunks) != len(passes):
        failed.append(pc.invert(passes))


def _is_canonical(text: pa.ChunkedArray, number: pa.ChunkedArray) -> bool:
    """Return whether all texts are decimal digits without leading zeros, by a sufficient test.

    The test: only digits, the smallest and the largest number have the same width, and the total
    length is that width times the count. No text can be shorter than its number, so if the total is
    right, each one is. Sizes and timestamps mostly pass, which saves formatting them; that takes
    three times as long.
    """
    if not len(text):
        return False
    octets = [np.frombuffer(concat_bytes(chunk), np.uint8) for chunk in text.chunks if len(chunk)]
    if any(not len(part) or part.min() < 48 or part.max() > 57 for part in octets):  # "0" to "9"
        return False
    numbers = [
        np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in number.chunks
        if len(chunk)
    ]
    width = len(str(min(int(part.min()) for part in numbers)))
    return width == len(str(max(int(part.max()) for part in numbers))) and sum(
        map(len, octets)
    ) == width * len(text)


def _build_match(
    data: bytes | memoryview,
    plan: TemplatePlan,
    lines: _SplitPiece,
    values: SlotValues,
    failed: FailureMasks,
    pool: pa.MemoryPool | None,
) -> TemplateMatch:
    """Build the result for the lines that were split, less those in the masks `failed`."""
    rows = lines.rows
    if rows is None and not failed:
        return TemplateMatch(_to_columns(plan, values, lines.count, pool), lines.count)
    rows = np.arange(lines.count) if rows is None else rows
    if failed:
        any_failed = failed[0]
        for mask in failed[1:]:
            any_failed = pc.or_(any_failed, mask)
        passed = pc.invert(any_failed)
        rows = rows[np.array(passed.to_pylist(), np.bool_)]
        values = {slot: value.filter(passed) for slot, value in values.items()}
    is_odd = np.ones(lines.count, np.bool_)
    is_odd[rows] = False
    odd_rows = np.flatnonzero(is_odd)
    odd = take_lines(data, lines.stops, odd_rows)
    columns = _to_columns(plan, values, len(rows), pool) if len(rows) else {}
    return TemplateMatch(columns, lines.count, rows, odd, odd_rows)


def _join_parts(
    parts: Sequence[str | TemplateSlot], values: SlotValues, count: int, pool: pa.MemoryPool | None
) -> pa.Array:
    """Concatenate constant texts and slot values for each line."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(
                _to_string(values[part], pool) if isinstance(part, TemplateSlot) else part
            )
    if len(merged) == 1 and isinstance(merged[0], str):
        return pa.repeat(make_scalar(merged[0], pa.string()), count, memory_pool=pool)
    texts = [make_scalar(p, pa.string()) if isinstance(p, str) else p for p in (*merged, "")]
    return pc.binary_join_element_wise(*texts, memory_pool=pool)


def _to_string(value: pa.ChunkedArray, pool: pa.MemoryPool | None) -> pa.ChunkedArray:
    return value if value.type == pa.string() else pc.cast(value, pa.string(), memory_pool=pool)


def _to_columns(
    plan: TemplatePlan, values: SlotValues, count: int, pool: pa.MemoryPool | None
) -> ActionColumns:
    """Build the columns of an action from the slot values and the constants of its template."""
    columns: ActionColumns = {}
    for name, kind, leaf in plan.columns:
        if isinstance(leaf, TemplateSlot):
            columns[name] = _to_column(kind, leaf, values, pool)
            continue
        repeated = plan.repeated.get(name)
        if repeated is None or len(repeated) < count:
            repeated = plan.repeated[name] = _repeat_constant(kind, leaf, count, pool)
        columns[name] = repeated.slice(0, count)
    for name, parts in plan.joined:
        columns[name] = _join_parts(parts, values, count, pool)
    return columns


def _has_column(kind: FieldKind, path: JsonPath) -> bool:
    """Return whether a scalar has a column of its own, beside the JSON text of its field."""
    if kind is FieldKind.STATS and len(path) > 2:
        return is_count_path(path) or (len(path) == 4 and path[2] in STATS_MAPS)
    return kind is not FieldKind.JSON


def _repeat_int(text: str, count: int, pool: pa.MemoryPool | None) -> pa.Array:
    """Repeat a number; raises `TemplateMismatch` if it is not an integer of 64 bits."""
    try:
        number = int(text)
    except ValueError:
        raise TemplateMismatch from None
    if not -(1 << 63) <= number < 1 << 63:
        raise TemplateMismatch
    return pa.repeat(make_scalar(number, pa.int64()), count, memory_pool=pool)


def _to_column(
    kind: FieldKind, slot: TemplateSlot, values: SlotValues, pool: pa.MemoryPool | None
) -> pa.ChunkedArray:
    """Build the column of a slot; raises `TemplateMismatch` if its type does not fit."""
    if kind is FieldKind.INT and not pa.types.is_integer(values[slot].type):
        raise TemplateMismatch
    value = values[slot] if kind is FieldKind.INT else _to_string(values[slot], pool)
    return value.dictionary_encode() if kind is FieldKind.WORD else value


def _repeat_constant(
    kind: FieldKind, constant: TemplateConstant, count: int, pool: pa.MemoryPool | None
) -> pa.Array:
    """Build the column of a constant; raises `TemplateMismatch` if its type does not fit."""
    value = constant.value
    if kind is FieldKind.BOOL:
        return repeat_bool(value is True, count)
    if kind is FieldKind.INT:
        return _repeat_int(str(value), count, pool)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if kind is FieldKind.WORD:
        return pa.DictionaryArray.from_arrays(
            pa.repeat(make_scalar(0, pa.int32()), count), make_array([text], pa.string())
        )
    return pa.repeat(make_scalar(text, pa.string()), count, memory_pool=pool)

"""Decoded adds to JSON again, by columns: what a checkpoint of a million files is made of. Pure.

Every field that was read comes out as it was: maps that the columnar decoder took apart are put
together, those it left as text are kept, and a field without a value is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.actions import ADD, Kind
from arrowlog.log.arrays import FALSE, array_of, null, scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT = pa.string()
_NOTHING = scalar("{}", _TEXT)
_CONTROL = r"[\x00-\x1f]"
_SPECIAL = r'["\\\x00-\x1f]'


def add_objects(
    adds: pa.Table, changed: Mapping[str, Any] | None = None, *, path: str = "key"
) -> pa.Array:
    """The JSON object of each add. `changed` fields are one for all.

    `path` is the column that its path is taken from: the file's `key`, or the `path` as it was
    read. The text is what stands after `"add":` in a line, without line breaks.
    """
    pieces = [_literal('{"path":'), quoted(_whole(adds[path]))]
    fixed = changed or {}
    for name, kind in ADD.items():
        if name == "path":
            continue
        if name in fixed:
            text = msgspec.json.encode(fixed[name]).decode()
            pieces.append(_literal(f',"{name}":{text}'))
            continue
        value = _value(adds, name, kind)
        if name == "partitionValues":  # others may insist on it
            value = _NOTHING if value is None else pc.fill_null(value, _NOTHING)
        if value is not None:
            pieces.append(pc.binary_join_element_wise(_literal(f',"{name}":'), value, _literal("")))
    pieces += [_literal("}"), _literal("")]
    return _joined(pieces, adds.num_rows)


def json_column(adds: pa.Table, name: str) -> pa.Array:
    """A field of adds that is a map or a list, as JSON; null where there is none."""
    found = _value(adds, name, ADD[name])
    return pa.nulls(adds.num_rows, _TEXT) if found is None else found


def _joined(pieces: list[Any], count: int) -> pa.Array:
    """Pieces of text side by side, nothing where a piece is null."""
    if count == 0:
        return pa.nulls(0, _TEXT)
    return pc.binary_join_element_wise(*pieces, null_handling="replace", null_replacement="")


def _literal(text: str) -> pa.Scalar:
    return scalar(text, _TEXT)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _value(adds: pa.Table, name: str, kind: Kind) -> pa.Array | None:
    """The JSON text of a field for each add, null where it has none."""
    column = _whole(adds[name]) if name in adds.column_names else None
    if kind is Kind.FLAT:
        return _map(adds, name, column)
    if column is None or column.null_count == len(column):
        return None
    if kind in (Kind.TEXT, Kind.STATS):
        return quoted(column)
    if kind is Kind.WORD:
        words = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        return quoted(pc.cast(words.dictionary, _TEXT)).take(words.indices)
    if kind is Kind.JSON:
        return _json(column.dictionary_encode())
    return pc.cast(column, _TEXT)  # numbers and truths


def _json(words: pa.DictionaryArray) -> pa.Array:
    """JSON is text already. What stood in the log as a string, and holds no JSON, is one again."""
    texts = words.dictionary.to_pylist()
    odd = array_of([not _is_json(text) for text in texts], pa.bool_())
    known = pc.if_else(odd, quoted(words.dictionary), words.dictionary)
    return known.take(words.indices)


def _is_json(text: str) -> bool:
    try:
        return msgspec.json.decode(text) is not None
    except (msgspec.DecodeError, RecursionError):
        return False


def _map(adds: pa.Table, name: str, text: pa.Array | None) -> pa.Array | None:
    """A map of text: its text where the decoder left it, else put together from its columns."""
    prefix = f"{name}."
    members = [column for column in adds.column_names if column.startswith(prefix)]
    built = None
    if members:
        built = _built(adds, members, len(prefix), always=name == "partitionValues")
    if text is None or built is None:
        return built if text is None else text
    raw = pc.fill_null(_whole(adds["raw"]), FALSE)
    return pc.if_else(raw, text, built)


def _built(adds: pa.Table, members: list[str], cut: int, *, always: bool) -> pa.Array:
    """Objects from columns. A partition without a value is said to be null, a bound is left out."""
    pieces = []
    for column in members:
        value = quoted(_whole(adds[column]))
        key = msgspec.json.encode(column[cut:]).decode()
        if always:
            value = pc.fill_null(value, _literal("null"))
        pieces.append(pc.binary_join_element_wise(_literal(f",{key}:"), value, _literal("")))
    joined = _joined([*pieces, _literal("")], adds.num_rows)
    if adds.num_rows == 0:
        return joined
    empty = pc.equal(joined, _literal(""))
    opened = pc.binary_replace_slice(joined, 0, 1, "{")  # in the place of the first comma
    closed = pc.binary_join_element_wise(opened, _literal("}"), _literal(""))
    return pc.if_else(empty, null(_TEXT), closed)


def quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings, null where there is none.

    >>> quoted(array_of(["day", None], pa.string())).to_pylist()
    ['"day"', None]
    """
    if len(texts) == 0:
        return texts
    special = pc.any(pc.match_substring_regex(texts, _SPECIAL)).as_py()
    plain = texts
    if special:
        plain = pc.replace_substring(plain, "\\", "\\\\")
        plain = pc.replace_substring(plain, '"', '\\"')
    quote = _literal('"')
    done = pc.binary_join_element_wise(quote, plain, quote, _literal(""))
    if not special:
        return done
    odd = pc.match_substring_regex(texts, _CONTROL)
    if not pc.any(odd).as_py():
        return done
    odd = pc.fill_null(odd, FALSE)
    rare = [msgspec.json.encode(text).decode() for text in texts.filter(odd).to_pylist()]
    return pc.replace_with_mask(done, odd, array_of(rare, _TEXT))

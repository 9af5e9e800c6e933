"""Calls into tantivy, an optional package: import, folders it can open, errors it raises."""

from __future__ import annotations

import json
import os
import struct
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.splits.bundle import META_FILE, damaged, seal_inner_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from arrowlog.splits.bundle import Segment

# Files of a segment in place of which tantivy accepts an empty one when only documents or fast
# fields are read: no fields, and the length of that directory.
_EMPTY_COMPOSITE = b"\x80" + struct.pack("<I", 1)
# No blocks, and the footer of a document store: version, offset of the block index, lz4.
_EMPTY_STORE = b"\x80" + struct.pack("<IQB15x", 2, 0, 1)
_TERM_FILES = ("term", "idx", "pos", "fieldnorm")


@cache
def require_tantivy() -> Any:
    """Import tantivy. Raises InvalidRequest if it is not installed."""
    try:
        import tantivy
    except ImportError:
        raise InvalidRequest(
            "Searching splits, and reading nested columns of splits, needs the package tantivy.",
            next="Install it: pip install 'arrowlog[splits]'.",
        ) from None
    return tantivy


@contextmanager
def translate_panics(key: str) -> Iterator[None]:
    """Raise DataFileError for errors of tantivy.

    tantivy reports damage as ValueError or, through its bindings, as a panic. A panic is not an
    `Exception`, and has no importable class.
    """
    try:
        yield
    except ArrowlogError:
        raise
    except ValueError as error:
        raise damaged(key, str(error).split("\n", 1)[0][:200].rstrip(".")) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise damaged(key, "tantivy cannot read it") from error


@contextmanager
def translate_write_errors(key: str) -> Iterator[None]:
    """Raise InvalidRequest if tantivy cannot write an index to the cache, as on a full disk."""
    try:
        yield
    except ArrowlogError:
        raise
    except ValueError as error:
        reason = str(error).split("\n", 1)[0][:200].rstrip(".")
        raise InvalidRequest(
            f"The index of {key} cannot be written to the cache of splits: {reason}.",
            next="Check the free space, or set `splits.cache.path` to another folder.",
        ) from error


def write_segment_meta(folder: str, document: Mapping[str, Any], segment: Segment) -> None:
    """Write a `meta.json` with one segment, so that document numbers are those of the segment."""
    chosen = [
        item for item in document["segments"] if item["segment_id"].replace("-", "") == segment.id
    ]
    with open(os.path.join(folder, META_FILE), "w", encoding="utf-8") as out:
        json.dump({**document, "segments": chosen}, out)


def write_stubs(folder: str, segment: Segment, *, store: bool) -> None:
    """Write empty files in place of the terms, and with `store` in place of the documents.

    A term query on such a folder finds nothing, without an error: only documents and fast fields
    may be read from it.
    """
    bodies = dict.fromkeys(_TERM_FILES, _EMPTY_COMPOSITE)
    if store:
        bodies["store"] = _EMPTY_STORE
    for extension, body in bodies.items():
        with open(os.path.join(folder, segment.file_name(extension)), "wb") as out:
            out.write(seal_inner_file(body))


def open_searcher(folder: str, key: str) -> Any:
    """Open a searcher on an index folder."""
    tantivy = require_tantivy()
    with translate_panics(key):
        return tantivy.Index.open(folder).searcher()

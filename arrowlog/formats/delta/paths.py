"""Paths of files in a Delta log: URI-encoded once, relative to the table or absolute. Pure."""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import data_span, make_array

# Separates path and deletion vector in a key. It cannot occur in the name of a file.
KEY_SEPARATOR = "\x00"
_FILE_SCHEME = r"^file:/+"


def decode_path(path: str) -> str:
    """Decode a path of the log, once; a `file:` URI becomes an absolute path.

    >>> decode_path("a%20b.parquet"), decode_path("%252521"), decode_path("a+b")
    ('a b.parquet', '%2521', 'a+b')
    >>> decode_path("file:/x/y"), decode_path("file:///x/y"), decode_path("s3://b/y")
    ('/x/y', '/x/y', 's3://b/y')
    """
    decoded = unquote(path)
    if decoded.startswith("file:/"):
        return "/" + decoded[len("file:") :].lstrip("/")
    return decoded


def decode_paths(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a column of paths. Only paths that contain `%` or `file:` cost more than a search."""
    encoded = pc.match_substring(paths, "%") if _contains_percent(paths) else None
    if encoded is not None:
        rows = paths.filter(encoded)
        decoded = make_array([unquote(path) for path in rows.to_pylist()], pa.string())
        mask = pc.fill_null(encoded, make_array([False], pa.bool_())[0])
        paths = pa.chunked_array(
            [pc.replace_with_mask(paths.combine_chunks(), mask.combine_chunks(), decoded)]
        )
    if pc.any(pc.starts_with(paths, "file:/")).as_py():
        paths = pc.replace_substring_regex(paths, _FILE_SCHEME, "/")
    return paths


def _contains_percent(texts: pa.ChunkedArray) -> bool:
    """Whether any text contains `%`: one pass over all bytes, a tenth of a search in each text."""
    percent = make_array([ord("%")], pa.uint8())[0]
    for chunk in texts.chunks:
        if not len(chunk):
            continue
        start, stop = data_span(chunk)
        buffers = [None, chunk.buffers()[2]]
        octets = pa.Array.from_buffers(pa.uint8(), stop - start, buffers, offset=start)
        if pc.min(pc.bit_wise_xor(octets, percent)).as_py() == 0:
            return True
    return False


def deletion_vector_ids(
    storage_type: pa.ChunkedArray, path_or_inline: pa.ChunkedArray, offset: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return the unique ids of deletion vectors; null where a file has none.

    `offset` is text or integers, null where the descriptor has none.
    """
    text = offset if pa.types.is_string(offset.type) else pc.cast(offset, pa.string())
    at, none, empty = make_array(["@", "", ""], pa.string())
    suffix = pc.fill_null(pc.binary_join_element_wise(at, text, empty), none)
    return pc.binary_join_element_wise(storage_type, path_or_inline, suffix, empty)


def file_keys(paths: pa.ChunkedArray, vector_ids: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """Return the keys of files: the decoded path and, where there is one, the deletion vector.

    One commit may remove a file with one deletion vector and add it with another. With the path
    alone as the key, the order of the two lines would decide whether the file is live.
    """
    if vector_ids is None or vector_ids.null_count == len(vector_ids):
        return paths
    separator = make_array([KEY_SEPARATOR], pa.string())[0]
    return pc.coalesce(pc.binary_join_element_wise(paths, vector_ids, separator), paths)


def sidecar_name(path: str) -> str:
    """Return the name of a sidecar in `_sidecars/`: the log has its name or its whole path.

    >>> sidecar_name("file:/t/_delta_log/_sidecars/a%20b.parquet")
    'a b.parquet'
    """
    return unquote(path.rsplit("/", 1)[-1])


def paths_of_keys(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the paths that are part of keys."""
    if not pc.any(pc.match_substring(keys, KEY_SEPARATOR)).as_py():
        return keys
    return pc.replace_substring_regex(keys, f"(?s){KEY_SEPARATOR}.*", "")

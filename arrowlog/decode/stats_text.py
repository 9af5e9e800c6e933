"""Statistics as JSON text: look up members of many texts at once, and only those that are needed.

A checkpoint of a Delta table holds one text per file. DuckDB parses them and returns the requested
members as text. It reads a JSON number that is not an integer as a double,
so columns of decimals are looked up text by text, with every digit.
"""

from __future__ import annotations

import sys
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array, null_scalar
from arrowlog.decode.row_decoder import JSON_ERRORS, JSON_NULL, JSON_OBJECT_DECODER, scalar_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec
    from duckdb import DuckDBPyConnection

# Below this many texts, DuckDB costs more than parsing them one by one: importing it, if it is not
# imported yet, or else opening a connection.
_DUCKDB_IMPORT_MIN_TEXTS = 30_000
_DUCKDB_MIN_TEXTS = 2_000


class StatsMember(NamedTuple):
    """A member of the statistics: the keys that lead to it, such as `("minValues", "id")`.

    `exact` keeps every digit of a number that is not an integer.
    """

    keys: tuple[str, ...]
    exact: bool = False


def lookup_stats(
    texts: pa.ChunkedArray, members: Sequence[StatsMember]
) -> dict[StatsMember, pa.ChunkedArray]:
    """Return the text of each member in each of the JSON texts; null where there is none.

    A string is returned without quotation marks, an object or array as null. A text that is not a
    JSON object has no members: the statistics of other programs may be anything.
    """
    return StatsLookup(len(texts)).lookup(texts, members)


class StatsLookup:
    """Looks up members of texts that come in batches, in any thread.

    The batches share one DuckDB instance: to make one costs as much as to parse 50,000 texts. It
    has a single thread, since the caller has threads for the batches.
    """

    def __init__(self, num_texts: int) -> None:
        """Decide how to parse about `num_texts` texts. Imports nothing yet."""
        limit = _DUCKDB_MIN_TEXTS if "duckdb" in sys.modules else _DUCKDB_IMPORT_MIN_TEXTS
        self._fast = num_texts >= limit
        self._lock = Lock()
        self._connection: DuckDBPyConnection | None = None

    def lookup(
        self, texts: pa.ChunkedArray, members: Sequence[StatsMember]
    ) -> dict[StatsMember, pa.ChunkedArray]:
        """Look up members, as `lookup_stats` does."""
        fast = [member for member in members if self._fast and not member.exact]
        exact = [member for member in members if member not in fast]
        columns = {} if not fast else self._lookup_with_duckdb(texts, fast)
        if columns is None:
            exact, columns = [*exact, *fast], {}
        return columns | (_lookup_each(texts, exact) if exact else {})

    def _lookup_with_duckdb(
        self, texts: pa.ChunkedArray, members: Sequence[StatsMember]
    ) -> dict[StatsMember, pa.ChunkedArray] | None:
        """Look up members with DuckDB; None if it rejects a text."""
        import duckdb

        paths = ", ".join(_quoted(_pointer(member.keys)) for member in members)
        columns = ", ".join(f"v[{i}] AS c{i}" for i in range(1, len(members) + 1))
        with self._lock:
            if self._connection is None:
                self._connection = duckdb.connect(config={"threads": 1})
            cursor = self._connection.cursor()
        try:
            found = (
                cursor.from_arrow(pa.table({"s": texts}))
                .project(f"json_extract_string(s, [{paths}]) AS v")
                .project(columns)
                .to_arrow_table()
            )
        except duckdb.Error:
            return None
        finally:
            cursor.close()
        return dict(zip(members, map(_without_containers, found.columns), strict=True))


def _without_containers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null the texts of objects and arrays; that includes strings that look like one."""
    contained = pc.or_(pc.starts_with(texts, "{"), pc.starts_with(texts, "["))
    if not pc.any(contained).as_py():
        return texts
    return pc.if_else(contained, null_scalar(texts.type), texts)


def _pointer(keys: Sequence[str]) -> str:
    """Return a JSON pointer."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _lookup_each(
    texts: pa.ChunkedArray, members: Sequence[StatsMember]
) -> dict[StatsMember, pa.ChunkedArray]:
    """Look up members text by text, exactly."""
    parsed = [_members(text) for text in texts.to_pylist()]
    found = {}
    for member in members:
        values = [_text_at(stats, member.keys) for stats in parsed]
        found[member] = pa.chunked_array([make_array(values, pa.string())])
    return found


def _members(text: str | bytes | None) -> dict[str, msgspec.Raw]:
    try:
        return {} if text is None else JSON_OBJECT_DECODER.decode(text)
    except JSON_ERRORS:
        return {}


def _text_at(stats: dict[str, msgspec.Raw], keys: Sequence[str]) -> str | None:
    for key in keys[:-1]:
        stats = _members(bytes(stats.get(key, JSON_NULL)))
    return scalar_text(stats.get(keys[-1], JSON_NULL))


def stats_counts(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert the texts of counts to int64; null where a text is not an integer."""
    try:
        return pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        integers = pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")
        return pc.cast(pc.if_else(integers, texts, null_scalar(texts.type)), pa.int64())

"""Classify the files in a table's folder. Pure: a listing and the needed keys in, fates out.

The fate of a file is the first of these that applies:

- `log`: it belongs to this table's log, or to a folder that is a log or contains one (another
  table, a copy of a log);
- `hidden`: a name in its path begins with `_` or `.`, and is not that of a partition folder;
- `live`: it is in the latest version;
- `history`: the log references it, so an earlier version may need it;
- `young`: it is so recent that its commit may still be in progress;
- `other`: its extension is not one of a data file;
- `orphan`: none of these. Temporary files that a writer left on a local disk are orphans too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LAST_CHECKPOINT,
    LOG_FOLDER,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

FATES = ("live", "history", "young", "orphan", "other", "hidden", "log")
_DATA_EXTENSIONS = (".parquet", ".split")
_EXTENSION = r"(\.[^./]+)$"
_TEMPORARY = r"(^|/)\.[^/]+\.[0-9a-f]{32}\.tmp$"  # as `LocalStore` names files in progress
_TABLE_FOLDER = rf"^((?:[^/]+/)*?)(?:{LOG_FOLDER}|{CHECKPOINT_FOLDER_NAME})/"  # captures the folder
_LOG_FOLDER = rf"^(.*/)(?:[0-9]{{18,}}\.json|{LAST_CHECKPOINT})$"  # captures a folder that is a log
_AMBIGUOUS = r"%[0-9A-Fa-f]{2}|//|(?:^|/)\./"  # percent-encoding, or redundant path segments
_REGEX_SPECIAL = r"([\\.+*?()|\[\]{}^$#&~-])"


def classify_files(
    walked: pa.Table,
    live: pa.ChunkedArray,
    history: pa.ChunkedArray,
    partition_columns: Sequence[str],
    horizon_ms: int,
) -> pl.DataFrame:
    """Return the files of `Store.walk` with a column `fate`, one of `FATES`.

    `live` are the keys of the latest version, `history` all other keys that the log references.
    Files written after `horizon_ms` are young, as are files whose time is unknown. An extension
    that any referenced file has counts as one of a data file.
    """
    files = pl.DataFrame(pl.from_arrow(walked))
    live_keys, history_keys = expand_path_variants(live), expand_path_variants(history)
    referenced = pl.concat([live_keys, history_keys])
    extensions = referenced.str.extract(_EXTENSION).fill_null("").unique().to_list()
    key = pl.col("key")
    visible = _with_visible_partitions(key, partition_columns)
    is_temporary = visible.str.contains(_TEMPORARY)
    has_hidden_name = visible.str.contains(r"(?:^|/)[_.][^/]*$")
    extension = key.str.extract(_EXTENSION).fill_null("")
    return files.with_columns(
        pl.when(_is_in_log(files["key"]))
        .then(pl.lit("log"))
        .when(visible.str.contains(r"(?:^|/)[_.][^/]*/") | (has_hidden_name & ~is_temporary))
        .then(pl.lit("hidden"))
        .when(key.is_in(live_keys.implode()))
        .then(pl.lit("live"))
        .when(key.is_in(history_keys.implode()))
        .then(pl.lit("history"))
        .when((pl.col("mtime_ms") > horizon_ms) | (pl.col("mtime_ms") < 0))
        .then(pl.lit("young"))
        .when(~is_temporary & ~extension.is_in([*_DATA_EXTENSIONS, *extensions]))
        .then(pl.lit("other"))
        .otherwise(pl.lit("orphan"))
        .alias("fate")
    )


def expand_path_variants(keys: pa.ChunkedArray) -> pl.Series:
    """Return the keys and every other name under which their files may be stored.

    Paths in a log are taken literally. Other programs may nevertheless have written them
    percent-encoded or with redundant slashes, so files of the decoded and the normalized name are
    protected as well.
    """
    unique = pl.Series("key", pl.from_arrow(keys), dtype=pl.String).unique()
    ambiguous = unique.filter(unique.str.contains(_AMBIGUOUS)).to_list()
    variants = {unquote(text) for text in ambiguous} | {_normalized(text) for text in ambiguous}
    variants |= {_normalized(unquote(text)) for text in ambiguous}
    return pl.concat([unique, pl.Series("key", sorted(variants), dtype=pl.String)])


def _normalized(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _is_in_log(keys: pl.Series) -> pl.Series:
    """Return a mask of files in this log, or in a folder that is a log or has one of its own."""
    matches = pl.concat([keys.str.extract(_TABLE_FOLDER), keys.str.extract(_LOG_FOLDER)])
    folders = matches.drop_nulls().unique().to_list()
    inside = keys.str.starts_with(f"{LOG_FOLDER}/")
    for folder in folders:
        if folder:
            inside |= keys.str.starts_with(folder)
    return inside


def _with_visible_partitions(key: pl.Expr, columns: Iterable[str]) -> pl.Expr:
    """Rename partition folders whose column begins with `_` or `.`, so they do not look hidden."""
    for column in columns:
        if column.startswith(("_", ".")):
            names = {column, quote(column, safe=" !$&'()+,;@[]^`{}~")}
            either = "|".join(_escape_regex(name) for name in sorted(names))
            key = key.str.replace_all(rf"(^|/)(?:{either})=", "${1}p=")
    return key


def _escape_regex(text: str) -> str:
    import re

    return re.sub(_REGEX_SPECIAL, r"\\\1", text)

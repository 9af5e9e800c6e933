"""Which files in a table's folder nobody needs. Pure: a listing and the needed keys in, fates out.

Fates, the first that fits:

- `log`: a file of this table's log, of another table in a folder below, or of a log put there;
- `hidden`: in its path a name begins with `_` or `.`, and it is no folder of a partition;
- `live`: it is in the newest version;
- `history`: the log speaks of it, an earlier version may need it;
- `young`: written so lately that a commit may still be on its way;
- `other`: its name does not end like a data file's;
- `orphan`: none of these. Drafts that a writer on a disk left behind are orphans too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from arrowlog.fork_safety import pl
from arrowlog.log.names import CHECKPOINTS, LOG, POINTER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

FATES = ("live", "history", "young", "orphan", "other", "hidden", "log")
_ENDINGS = (".parquet", ".split")
_ENDING = r"(\.[^./]+)$"
_DRAFT = r"(^|/)\.[^/]+\.[0-9a-f]{32}\.tmp$"
_HAS_A_LOG = rf"^((?:[^/]+/)*?)(?:{LOG}|{CHECKPOINTS})/"
_IS_A_LOG = rf"^(.*/)(?:[0-9]{{18,}}\.json|{POINTER})$"
_ODD = r"%[0-9A-Fa-f]{2}|//|(?:^|/)\./"
_ESCAPED = r"([\\.+*?()|\[\]{}^$#&~-])"


def sort_out(
    found: pa.Table,
    live: pa.ChunkedArray,
    spoken_of: pa.ChunkedArray,
    partition_columns: Sequence[str],
    horizon_ms: int,
) -> pl.DataFrame:
    """The files of `Store.walk` with their `fate`.

    `live` has the keys of the newest version, `spoken_of` all others that the log speaks of; files
    written after `horizon_ms` are young, and so are those whose time nobody knows.
    """
    files = pl.DataFrame(pl.from_arrow(found))
    now, then = spelled(live), spelled(spoken_of)
    keys = pl.concat([now, then])
    endings = keys.str.extract(_ENDING).fill_null("").unique().to_list()
    key = pl.col("key")
    plain = _without_partitions(key, partition_columns)
    draft = plain.str.contains(_DRAFT)
    name_hidden = plain.str.contains(r"(?:^|/)[_.][^/]*$")
    ending = key.str.extract(_ENDING).fill_null("")
    return files.with_columns(
        pl.when(_in_log(files["key"]))
        .then(pl.lit("log"))
        .when(plain.str.contains(r"(?:^|/)[_.][^/]*/") | (name_hidden & ~draft))
        .then(pl.lit("hidden"))
        .when(key.is_in(now.implode()))
        .then(pl.lit("live"))
        .when(key.is_in(then.implode()))
        .then(pl.lit("history"))
        .when((pl.col("mtime_ms") > horizon_ms) | (pl.col("mtime_ms") < 0))
        .then(pl.lit("young"))
        .when(~draft & ~ending.is_in([*_ENDINGS, *endings]))
        .then(pl.lit("other"))
        .otherwise(pl.lit("orphan"))
        .alias("fate")
    )


def spelled(keys: pa.ChunkedArray) -> pl.Series:
    """The keys, and every other name that a file of theirs may have.

    Paths in a log are names as they stand. Yet some program may have written them percent-encoded,
    or with slashes to spare; what they may mean is kept as well.
    """
    found = pl.Series("key", pl.from_arrow(keys), dtype=pl.String).unique()
    odd = found.filter(found.str.contains(_ODD)).to_list()
    more = {unquote(text) for text in odd} | {_tidy(text) for text in odd}
    more |= {_tidy(unquote(text)) for text in odd}
    return pl.concat([found, pl.Series("key", sorted(more), dtype=pl.String)])


def _tidy(text: str) -> str:
    return "/".join(part for part in text.split("/") if part not in ("", "."))


def _in_log(keys: pl.Series) -> pl.Series:
    """Files of this log, and everything in a folder that is a log, or has one, of its own."""
    found = pl.concat([keys.str.extract(_HAS_A_LOG), keys.str.extract(_IS_A_LOG)])
    folders = found.drop_nulls().unique().to_list()
    inside = keys.str.starts_with(f"{LOG}/")
    for folder in folders:
        if folder:
            inside |= keys.str.starts_with(folder)
    return inside


def _without_partitions(key: pl.Expr, columns: Iterable[str]) -> pl.Expr:
    """Keys in which no folder of a partition looks hidden."""
    for column in columns:
        if column.startswith(("_", ".")):
            names = {column, quote(column, safe=" !$&'()+,;@[]^`{}~")}
            either = "|".join(_escaped(name) for name in sorted(names))
            key = key.str.replace_all(rf"(^|/)(?:{either})=", "${1}p=")
    return key


def _escaped(text: str) -> str:
    import re

    return re.sub(_ESCAPED, r"\\\1", text)

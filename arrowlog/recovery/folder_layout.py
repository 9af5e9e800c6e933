"""The files in a folder without a log: which are data files, and what their folders say.

The same names are hidden as in Spark: those that begin with `.`, and those that begin with `_`
unless they are folders of a partition (`_day=1`). A folder that has a log of any format is a table
of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.fork_safety import pl
from arrowlog.formats.delta import DELTA
from arrowlog.formats.indextables import LAST_CHECKPOINT, LOG_FOLDER
from arrowlog.snapshot import HIVE_NULL, partition_values
from arrowlog.transaction import is_shortened_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Folders of logs, by name: those of arrowlog's formats and that of Hudi.
_LOG_NAMES = rf"(?:{LOG_FOLDER}|{DELTA.log_folder}|\.hoodie)"
_NESTED_TABLE = rf"^((?:[^/]+/)+?){_LOG_NAMES}/"  # captures the folder of the table
_NESTED_ICEBERG = r"^((?:[^/]+/)+?)metadata/[^/]+\.metadata\.json$"
# Folders at the root that are logs, by name or by what is in them: copies, and other formats.
_LOG_BY_NAME = rf"^({LOG_FOLDER}[^/]*|{DELTA.log_folder}[^/]*|\.hoodie)/"
_LOG_BY_CONTENT = rf"^([^/]+)/(?:[0-9]{{18,}}\.json|{LAST_CHECKPOINT})$"
_ICEBERG_LOG = r"^(metadata)/[^/]+\.metadata\.json$"
_TEMPORARY = r"(?i)(?:^|/)_temporary/|\.(?:tmp|temp|inprogress|_copying_)$"
_PARQUET = r"(?i)\.(?:parquet|parq|pq)$"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INT64_RANGE = range(-(1 << 63), 1 << 63)
LEFT_OUT_SCHEMA = pa.schema(
    [("path", pa.string()), ("size_bytes", pa.int64()), ("reason", pa.string())]
)


@dataclass(frozen=True, slots=True)
class FolderContent:
    """What is in a folder.

    Attributes:
        data: the Parquet files, as `Store.walk` returns files, sorted by key.
        left_out: the other files with the reason: `log`, `nested table`, `hidden`, `temporary` or
            `not Parquet`.
        other_logs: folders beside the table's log that have a log.
    """

    data: pa.Table = field(repr=False)
    left_out: pa.Table = field(repr=False)
    other_logs: tuple[str, ...]


def classify_folder(walked: pa.Table) -> FolderContent:
    """Tell the Parquet files of a table from everything else that is in its folder."""
    files = pl.DataFrame(pl.from_arrow(walked)).sort("key")
    keys, key = files["key"], pl.col("key")
    nested = _matches(keys, (_NESTED_TABLE, _NESTED_ICEBERG))
    logs = _matches(keys, (_LOG_BY_NAME, _LOG_BY_CONTENT, _ICEBERG_LOG))
    classified = files.with_columns(
        pl.when(_is_below(keys, [f"{name}/" for name in logs]))
        .then(pl.lit("log"))
        .when(_is_below(keys, nested))
        .then(pl.lit("nested table"))
        .when(key.str.contains(_TEMPORARY))
        .then(pl.lit("temporary"))
        .when(_is_hidden(key))
        .then(pl.lit("hidden"))
        .when(~key.str.contains(_PARQUET))
        .then(pl.lit("not Parquet"))
        .alias("reason")
    )
    data = classified.filter(pl.col("reason").is_null()).drop("reason")
    rest = classified.filter(pl.col("reason").is_not_null()).select("key", "size", "reason")
    oldest = pl.CompatLevel.oldest()
    left_out = rest.to_arrow(compat_level=oldest).rename_columns(LEFT_OUT_SCHEMA.names)
    return FolderContent(
        data.to_arrow(compat_level=oldest).cast(walked.schema),
        left_out.cast(LEFT_OUT_SCHEMA),
        tuple(name for name in logs if name != LOG_FOLDER),
    )


def _matches(keys: pl.Series, patterns: Iterable[str]) -> list[str]:
    found = pl.concat([keys.str.extract(pattern) for pattern in patterns])
    return [str(text) for text in found.drop_nulls().unique().sort().to_list()]


def _is_below(keys: pl.Series, folders: Iterable[str]) -> pl.Series:
    inside = pl.repeat(value=False, n=len(keys), dtype=pl.Boolean, eager=True)
    for folder in folders:
        inside |= keys.str.starts_with(folder)
    return inside


def _is_hidden(key: pl.Expr) -> pl.Expr:
    folder = key.str.contains(r"(?:^|/)\.[^/]*/|(?:^|/)_[^/=]*/")
    return folder | key.str.contains(r"(?:^|/)[._][^/]*$")


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """The values in the path of a folder, by column: text, or None for NULL.

    `problem` says why the value of a column is not certain.
    """

    values: Mapping[str, str | None]
    problem: str | None = None


def parse_partition_folder(folder: str) -> PartitionFolder:
    """Return the values in the names `column=value` of a path.

    >>> parse_partition_folder("data/day=2024-01-01/city=S%C3%A3o").values
    {'day': '2024-01-01', 'city': 'São'}
    """
    values: dict[str, str | None] = {}
    problem = None
    for part in folder.split("/"):
        name, equals, text = part.partition("=")
        if not equals or not name:
            continue
        value: str | None = None
        try:
            value = unquote(text, errors="strict")
            name = unquote(name, errors="strict")
        except UnicodeDecodeError:
            problem = f"{part!r} is not percent-encoded UTF-8"
        if name in values:
            problem = f"the column {name!r} is in the path twice"
        if is_shortened_folder(part):
            problem = f"the value of {name!r} was too long for the name of the folder and was cut"
        values[name] = None if value == HIVE_NULL else value
    return PartitionFolder(values, problem)


def infer_partition_type(texts: Iterable[str | None]) -> pa.DataType:
    """Return the type of a partition column from all of its values: int64, date32 or string.

    Numbers with leading zeros are text, because `007` and `7` may be two values.

    >>> infer_partition_type(["1", None, "-20"]), infer_partition_type(["01", "2"])
    (DataType(int64), DataType(string))
    """
    known = {text for text in texts if text is not None}
    if known and all(_INTEGER.fullmatch(text) and int(text) in _INT64_RANGE for text in known):
        return pa.int64()
    if (
        known
        and all(_DATE.fullmatch(text) for text in known)
        and not find_invalid_value(known, pa.date32())
    ):
        return pa.date32()
    return pa.string()


def find_invalid_value(texts: Iterable[str | None], kind: pa.DataType) -> str | None:
    """Return the first of some partition values that is not one of the type; None if all are."""
    known: Sequence[str] = sorted({text for text in texts if text is not None})
    if not known:
        return None
    array = pa.chunked_array([make_array(known, pa.string())])
    _, unknown = partition_values(array, kind)
    position = pc.index(unknown, value=True).as_py()
    return None if position < 0 else known[position]

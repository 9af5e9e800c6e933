"""Options of `format("arrowlog")`. Spark passes them as strings, with lower-case names.

| option | meaning |
| --- | --- |
| `path` | URI of the table |
| `versionAsOf`, `timestampAsOf` | the version to read; the latest by default |
| `where` | a predicate on the rows to read |
| `partitionColumns` | partition columns of a table that the first write creates: `day,city` |
| `replaceWhere` | the partitions that an overwrite replaces |
| `startingVersion` | where a stream starts: a version or `latest`; by default at a full snapshot |
| `maxFilesPerTrigger` | the largest number of files in a micro-batch |
| `ignoreDeletes`, `ignoreChanges` | accept commits that remove, or also rewrite, rows |
| `appId` | identifies a stream's batches if it has no checkpoint location |
| `readVersion`, `readTimestamp` | as `versionAsOf`, `timestampAsOf`, which Spark refuses in SQL |
| `readVersion` of an overwrite | the version that its rows come from: later commits conflict |
| `saveMode` | `errorifexists` or `ignore`: write only if there is no table yet |
| `storage.<name>` | a storage option |
| `spark.indextables.<key>` | a setting |
| `session.spark.indextables.<key>` | a setting of the session, which other options override |

Options of a table in Spark's catalog also contain its properties, which are not for this program.
"""

from __future__ import annotations

import difflib
import json
import logging
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from arrowlog.config import PREFIX, Config, parse_bool, select_settings
from arrowlog.errors import InvalidRequest
from arrowlog.spark.settings import SESSION_KNOWN, SESSION_PREFIX
from arrowlog.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTION_NAMES = (
    "path",
    "versionAsOf",
    "timestampAsOf",
    "where",
    "partitionColumns",
    "replaceWhere",
    "startingVersion",
    "maxFilesPerTrigger",
    "ignoreDeletes",
    "ignoreChanges",
    "appId",
    "readVersion",
    "readTimestamp",
    "saveMode",
)
SAVE_MODES = ("errorifexists", "ignore")
# Options that Spark itself adds to those of the user.
_SPARK_OPTION_NAMES = frozenset(
    {"checkpointlocation", "queryname", "outputmode", "paths", "__query_id"}
)
_STORAGE_PREFIX = "storage."
# Properties that Spark passes with the options of a table in its catalog. Every one of them has an
# owner, and may have properties of other programs.
_CATALOG_MARK = "owner"
_TYPO_SIMILARITY = 0.9  # to a known setting; other unknown ones belong to other programs
_LOGGER = logging.getLogger("arrowlog.spark")


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of one read, write or stream."""

    path: str
    version: int | None = None
    timestamp: str | int | None = None
    where: str | None = None
    partition_columns: tuple[str, ...] | None = None
    replace_where: str | None = None
    starting_version: str | None = None
    max_files: int | None = None
    ignore_deletes: bool = False
    ignore_changes: bool = False
    app_id: str | None = None
    save_mode: str | None = None
    read_version: int | None = None
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    settings: Mapping[str, object] = field(default_factory=dict)

    def table(self) -> Table:
        """Open the table."""
        return Table(self.path, self.storage, options=self.settings)


def parse_source_options(given: Mapping[str, str], session: Mapping[str, object]) -> SourceOptions:
    """Parse and check options. Settings among them override the settings of the `session`.

    Raises `InvalidRequest` for a missing path, an unknown option or an invalid value.
    """
    options = {str(key).lower(): value for key, value in given.items()}
    _check_names(options)
    for name, synonym in (("versionasof", "readversion"), ("timestampasof", "readtimestamp")):
        if options.get(synonym) is not None:
            options.setdefault(name, options[synonym])
    path = options.get("path") or options.get("location")
    if not path:
        raise InvalidRequest(
            "The path is missing.",
            next='Pass it to load() or save(), or as the option "path". For a table of Spark\'s'
            " catalog, use SELECT and INSERT in spark.sql after arrowlog.spark.enable(spark).",
        )
    settings = _parse_settings(options)
    session_options: dict[str, object] = {
        key.removeprefix(SESSION_PREFIX): value
        for key, value in options.items()
        if key.startswith(SESSION_PREFIX)
    }
    version = _parse_integer(options, "versionasof")
    if version is not None and options.get("timestampasof") is not None:
        raise InvalidRequest(
            "versionAsOf and timestampAsOf are mutually exclusive.", next="Omit one of them."
        )
    location = options.get("checkpointlocation")
    return SourceOptions(
        path=_normalize_path(path),
        version=version,
        timestamp=_parse_timestamp(options.get("timestampasof")),
        where=options.get("where"),
        partition_columns=_parse_columns(options.get("partitioncolumns")),
        replace_where=options.get("replacewhere"),
        starting_version=options.get("startingversion"),
        max_files=_parse_integer(options, "maxfilespertrigger"),
        ignore_deletes=_parse_flag(options, "ignoredeletes"),
        ignore_changes=_parse_flag(options, "ignorechanges"),
        app_id=options.get("appid") or (f"spark-stream {location}" if location else None),
        save_mode=_parse_save_mode(options.get("savemode")),
        read_version=_parse_integer(options, "readversion"),
        storage={
            _storage_name(key): value
            for key, value in options.items()
            if key.startswith(_STORAGE_PREFIX)
        },
        settings={
            **({} if SESSION_KNOWN in options else session),
            **select_settings(session_options),
            **settings,
        },
    )


def _parse_settings(options: Mapping[str, str]) -> dict[str, object]:
    """Select the settings among options.

    The original data source has settings that arrowlog does not need, such as those of its indexes.
    They are ignored. Raises `InvalidRequest` for a name that looks like a misspelled one.
    """
    given: dict[str, object] = {
        key: value for key, value in options.items() if key.startswith(PREFIX)
    }
    known = select_settings(given)
    names = [item.metadata["key"] for item in fields(Config) if "key" in item.metadata]
    for key in given:
        if key in known:
            continue
        close = difflib.get_close_matches(key, names, n=1, cutoff=_TYPO_SIMILARITY)
        if close:
            raise InvalidRequest(f"Unknown setting {key!r}.", next=f"Did you mean {close[0]!r}?")
        _LOGGER.info("Setting %s is not one of arrowlog's and has no effect.", key)
    return known


def _parse_save_mode(text: str | None) -> str | None:
    if text is None or text.lower() in SAVE_MODES:
        return text and text.lower()
    raise InvalidRequest(
        f"saveMode cannot be {text!r}.", next=f"Allowed: {' and '.join(SAVE_MODES)}."
    )


def _normalize_path(path: str) -> str:
    """Convert Spark's spelling `file:/a` to `/a`."""
    if path.startswith("file:/") and not path.startswith("file://"):
        return path.removeprefix("file:")
    return path


def _parse_timestamp(text: str | None) -> str | int | None:
    """Convert milliseconds since the epoch to an integer; other text is returned unchanged."""
    return int(text) if text is not None and text.strip().isdecimal() else text


def _storage_name(key: str) -> str:
    """Return the name of a storage option; environment-style AWS names are upper case again."""
    name = key.removeprefix(_STORAGE_PREFIX)
    return name.upper() if name.startswith("aws_") else name


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OPTION_NAMES}
    if _CATALOG_MARK in options:
        return
    prefixes = (_STORAGE_PREFIX, PREFIX, SESSION_PREFIX)
    for key in options:
        if key in known or key in _SPARK_OPTION_NAMES or key.startswith(prefixes):
            continue
        close = difflib.get_close_matches(key, known, n=1)
        hint = (
            f"Did you mean {known[close[0]]!r}?"
            if close
            else f"The options are: {', '.join(_OPTION_NAMES)}."
        )
        raise InvalidRequest(f"Unknown option {key!r}.", next=hint)


def _parse_integer(options: Mapping[str, str], key: str) -> int | None:
    text = options.get(key)
    if text is None:
        return None
    minimum = 1 if key == "maxfilespertrigger" else 0
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < minimum:
        raise InvalidRequest(
            f"Option {key!r} cannot be {text!r}.", next=f"Allowed: integers from {minimum}."
        )
    return int(text)


def _parse_flag(options: Mapping[str, str], key: str) -> bool:
    try:
        return parse_bool(options.get(key, "false"))
    except ValueError as error:
        raise InvalidRequest(
            f"Option {key!r} cannot be {options[key]!r}.", next=f"Allowed: {error}."
        ) from None


def _parse_columns(text: str | None) -> tuple[str, ...] | None:
    """Parse comma-separated names or a JSON list of names."""
    if text is None:
        return None
    if text.strip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
        raise InvalidRequest(
            f"partitionColumns is {text!r}, which is not a list of names.",
            next='Use "a,b" or ["a", "b"].',
        )
    return tuple(name.strip() for name in text.split(",") if name.strip())

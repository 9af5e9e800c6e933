"""Options of `format("arrowlog")` as Spark hands them over: texts, their names in lower case.

| option | |
| --- | --- |
| `path` | the table's address |
| `versionAsOf`, `timestampAsOf` | which version to read; the newest by default |
| `where` | a predicate on the rows to read |
| `partitionColumns` | of a table that is made by the first write: `day,city` |
| `replaceWhere` | the partitions that an overwrite replaces |
| `startingVersion`, `maxFilesPerTrigger`, `ignoreDeletes`, `ignoreChanges` | of a stream |
| `appId` | by which a stream's batches are known again, if it has no checkpoint location |
| `storage.<name>` | an option of the store |
| `spark.indextables.<key>` | a setting |
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrowlog.config import PREFIX, parse_bool
from arrowlog.errors import InvalidRequest
from arrowlog.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = (
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
)
_SPARKS = frozenset({"checkpointlocation", "queryname", "outputmode", "paths", "__query_id"})
_STORAGE = "storage."


@dataclass(frozen=True)
class Options:
    """What was asked for."""

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
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    settings: Mapping[str, object] = field(default_factory=dict)

    def table(self) -> Table:
        """The table."""
        return Table(self.path, self.storage, options=self.settings)


def read_options(given: Mapping[str, str], session: Mapping[str, object]) -> Options:
    """Options as Spark gives them; below them the settings of the session, as far as known."""
    found = {str(key).lower(): value for key, value in given.items()}
    _check_names(found)
    if not found.get("path"):
        raise InvalidRequest(
            "There is no path.", next='Give it to load() or save(), or as the option "path".'
        )
    settings = {key: value for key, value in found.items() if key.startswith(PREFIX)}
    version = _number(found, "versionasof")
    if version is not None and found.get("timestampasof") is not None:
        raise InvalidRequest(
            "versionAsOf and timestampAsOf cannot both be given.", next="Leave one out."
        )
    location = found.get("checkpointlocation")
    return Options(
        path=_address(found["path"]),
        version=version,
        timestamp=_moment(found.get("timestampasof")),
        where=found.get("where"),
        partition_columns=_columns(found.get("partitioncolumns")),
        replace_where=found.get("replacewhere"),
        starting_version=found.get("startingversion"),
        max_files=_number(found, "maxfilespertrigger"),
        ignore_deletes=_flag(found, "ignoredeletes"),
        ignore_changes=_flag(found, "ignorechanges"),
        app_id=found.get("appid") or (f"spark-stream {location}" if location else None),
        storage={_storage(key): value for key, value in found.items() if key.startswith(_STORAGE)},
        settings={**session, **settings},
    )


def _address(path: str) -> str:
    """Spark writes `file:/a` for what everybody else writes as `/a` or `file:///a`."""
    if path.startswith("file:/") and not path.startswith("file://"):
        return path.removeprefix("file:")
    return path


def _moment(text: str | None) -> str | int | None:
    """Digits alone are milliseconds."""
    return int(text) if text is not None and text.strip().isdecimal() else text


def _storage(key: str) -> str:
    name = key.removeprefix(_STORAGE)
    return name.upper() if name.startswith("aws_") else name


def _check_names(found: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OURS}
    for key in found:
        if key in known or key in _SPARKS or key.startswith((_STORAGE, PREFIX)):
            continue
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"Did you mean {known[close[0]]!r}?" if close else f"There are: {', '.join(_OURS)}."
        raise InvalidRequest(f"There is no option {key!r}.", next=hint)


def _number(found: Mapping[str, str], key: str) -> int | None:
    text = found.get(key)
    if text is None:
        return None
    least = 1 if key == "maxfilespertrigger" else 0
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < least:
        raise InvalidRequest(
            f"Option {key!r} cannot be {text!r}.", next=f"Allowed: an integer from {least}."
        )
    return int(text)


def _flag(found: Mapping[str, str], key: str) -> bool:
    try:
        return parse_bool(found.get(key, "false"))
    except ValueError as error:
        raise InvalidRequest(
            f"Option {key!r} cannot be {found[key]!r}.", next=f"Allowed: {error}."
        ) from None


def _columns(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them, or a list as JSON has it."""
    if text is None:
        return None
    if text.strip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
        raise InvalidRequest(f"partitionColumns is {text!r}.", next='Give "a,b" or ["a", "b"].')
    return tuple(name.strip() for name in text.split(",") if name.strip())

"""Stranded data: files that commits beyond the break of a damaged log added.

A repair ends before the first commit that cannot be read. The commits after it may be intact, but
they cannot be replayed, because what the broken one did is unknown. Their data files are still in
the table's folder. This module finds them, and tells which can be adopted.

Commits of which one removed a file that another added belong together. Of such a group, only what
it added and removed in the end counts:

- It only added files: these can be adopted.
- It rewrote live files without changing rows, as compaction does: the table has the rows in the old
  files. Nothing is stranded.
- It changed rows and removed live files: its files replace these, by one commit. That removes rows
  that can be read now, so it is not advised without a look.
- It removed a file that the table does not have, or no longer has. The rows of its own files may
  then be in the table in part, for instance if the lost commit was a compaction. That cannot be
  told from the log, so the files are reported, and adopting them is left to the user.

The same holds for files that no log names at all: they may belong to the broken commit, or to a
write that failed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowlog.arrays import sum_exactly
from arrowlog.errors import ArrowlogError
from arrowlog.fork_safety import pl
from arrowlog.formats.indextables import (
    CHECKSUM_PREFIX,
    INDEXTABLES,
    classify_log_file,
    crc32,
    decompress,
)
from arrowlog.maintenance import read_adds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrowlog.config import Config
    from arrowlog.maintenance import OtherLog
    from arrowlog.storage import Store


@dataclass(frozen=True, slots=True)
class StrandedFiles:
    """Data files in the table's folder whose rows the table lacks.

    `log` is the folder of the log that names the files. `replaces` are live files that they
    replace. If `unclear` is set, the table may have some of their rows already; it holds the files
    of which that is unknown. `lost_later` are lost versions of the log after the first that added
    one of the files: these may have removed files again.
    """

    keys: pl.Series = field(repr=False)
    size_bytes: int
    log: str
    replaces: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    lost_later: tuple[int, ...] = ()

    def count_rows(self, store: Store, config: Config) -> int | None:
        """Return the number of rows by the log that names the files; None if it does not tell."""
        keys = self.keys.to_arrow().cast(pa.string())
        adds = read_adds(store, config, self.log, keys)
        if "numRecords" not in adds.column_names or adds["numRecords"].null_count:
            return None
        return sum_exactly(adds["numRecords"])

    def adopt_call(self, log: str | None = None, *, dry_run: bool = False) -> str:
        """Return the call that adds the files to the table again.

        `log` is the folder of the log at the time of the call, if it will be another by then.
        """
        arguments = [repr(self.keys.to_list()), f"from_log={log or self.log!r}"]
        if self.replaces:
            arguments.append(f"replaces={list(self.replaces)!r}")
        if dry_run:
            arguments.append("dry_run=True")
        return f"table.adopt({', '.join(arguments)})"


def find_stranded(
    log: OtherLog,
    break_version: int,
    live: pl.Series,
    known: pl.Series,
    existing: pl.DataFrame,
) -> list[StrandedFiles]:
    """Find the files that commits of a damaged log after `break_version` added.

    `live` are the live files of the table, `known` all files that its own log names, `existing` has
    the `key` and `size` of every file in the folder.
    """
    adds = (
        log.last_adds()
        .filter(pl.col("version") > break_version)
        .filter(~pl.col("key").is_in(known.implode()))
        .join(existing.select("key", "size"), on="key")
    )
    if adds.is_empty():
        return []
    beyond = log.events.filter(pl.col("version") > break_version)
    groups = _group_commits(beyond)
    found = []
    appended = []
    for number in adds["version"].replace_strict(groups).unique(maintain_order=True).to_list():
        versions = [version for version, group in groups.items() if group == number]
        events = beyond.filter(pl.col("version").is_in(versions))
        new = adds.filter(pl.col("version").is_in(versions))
        removed = events.filter(~pl.col("is_add"))["key"].unique(maintain_order=True)
        if removed.is_empty():
            appended.append(new)
            continue
        own = events.filter(pl.col("is_add"))["key"]
        outside = removed.filter(~removed.is_in(own.implode()))
        is_live = outside.is_in(live.implode())
        if is_live.all() and not events["data_change"].any():
            continue  # a rewrite of live files: the table has the rows
        replaces, unclear = outside.filter(is_live), outside.filter(~is_live)
        found.append(_stranded([new], log, replaces, unclear))
    none = pl.Series("key", [], dtype=pl.String)
    return [*([_stranded(appended, log, none, none)] if appended else []), *found]


def _group_commits(events: pl.DataFrame) -> dict[int, int]:
    """Map versions to the number of their group: commits that act on a common file are in one."""
    group = {version: version for version in events["version"].unique().sort().to_list()}

    def root(version: int) -> int:
        while group[version] != version:
            group[version] = group[group[version]]
            version = group[version]
        return version

    shared = (
        events.group_by("key")
        .agg(pl.col("version").unique())
        .filter(pl.col("version").list.len() > 1)
    )
    for versions in shared["version"].to_list():
        for version in versions[1:]:
            group[root(version)] = root(versions[0])
    return {version: root(version) for version in group}


def _stranded(
    parts: Sequence[pl.DataFrame], log: OtherLog, replaces: pl.Series, unclear: pl.Series
) -> StrandedFiles:
    files = pl.concat(parts).sort("at")
    first = int(files["version"][0])
    return StrandedFiles(
        files["key"],
        int(files["size"].sum()),
        log.folder,
        tuple(replaces.to_list()),
        tuple(unclear.to_list()),
        tuple(version for version in log.lost_versions if version > first),
    )


@dataclass(frozen=True, slots=True)
class RepairOrigin:
    """The log from which a repair wrote the table's log.

    `version` is its last version that the table's log contains. `checksum` is that of the commit
    file of this version; None if there was none.
    """

    version: int
    checksum: str | None

    def is_log(self, store: Store, folder: str) -> bool:
        """Return whether the log in a folder is the one that was repaired.

        A table can have been repaired before: files of an earlier log may have been rewritten
        since, so its commits say nothing about what the last repair left out.
        """
        return self.checksum == checksum_commit(store, folder, self.version)


def checksum_commit(store: Store, folder: str, version: int) -> str | None:
    """Return the checksum of the commit file of a version; None if there is none."""
    for name in store.list_from(folder):
        if classify_log_file(name) == ("commit", version):
            data = store.find_many([f"{folder}/{name}"])[0]
            return None if data is None else f"{CHECKSUM_PREFIX}{crc32(data):08x}"
    return None


def read_repair_origin(store: Store, config: Config) -> RepairOrigin | None:
    """Return the origin of the table's log.

    None if the log was not written by a repair, or if its first commits are gone.
    """
    key = INDEXTABLES.commit_file(1).key
    data = store.find_many([key])[0]
    if data is None:
        return None
    try:
        head = decompress(data, key, config.max_decompressed_bytes).partition(b"\n")[0]
        info = json.loads(head).get("commitInfo") or {}
        parameters = info.get("operationParameters") or {}
        version, checksum = parameters.get("sourceVersion"), parameters.get("sourceChecksum")
    except (ArrowlogError, ValueError, AttributeError):
        return None
    is_repair = info.get("operation") == "REPAIR" and "sourceChecksum" in parameters
    return RepairOrigin(version, checksum) if is_repair and isinstance(version, int) else None

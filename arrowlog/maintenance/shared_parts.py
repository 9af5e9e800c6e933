"""Parts that several Parquet checkpoints share, as cleanup has to know them.

Only parts whose names are unique to a writer are shared. Such a name is never used again, and
without a manifest that names it the part means nothing.

A part must not vanish from under a manifest that somebody relies on, whoever is suspended for how
long. Who deletes a part records it first and reads the manifests afterwards. Who writes a manifest,
or relies on one, reads the records afterwards. One of the two sees the other: either the part
stays, or nobody relies on the manifest.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from arrowlog.errors import StoreUnavailable
from arrowlog.formats.indextables import (
    CHECKPOINT_FOLDER_NAME,
    LOG_FOLDER,
    RETIRED_PART_SUFFIX,
    classify_names,
    parse_parquet_part,
    retired_part_name,
)
from arrowlog.snapshot import find_named_parts
from arrowlog.storage import put_identical

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Protocol

    from arrowlog.formats.indextables import LogListing
    from arrowlog.storage import Store

    class Deleting(Protocol):
        """Deletes files of one store, and collects failures."""

        store: Store
        failures: list[str]

        def run(self, keys: Sequence[str]) -> None:
            """Delete files."""

        def fail(self, error: StoreUnavailable) -> None:
            """Record a failure, or raise it if a setting says so."""


_FOLDER = f"{LOG_FOLDER}/{CHECKPOINT_FOLDER_NAME}"
# How long the record of a deleted part is kept: a suspended process may name it until then.
_RECORD_AGE_MS_MIN = 7 * 24 * 3_600_000


def is_shareable_part(key: str) -> bool:
    """Whether a file is a part that other checkpoints than its own may name."""
    folder, _, name = key.rpartition("/")
    parsed = parse_parquet_part(name) if folder == _FOLDER else None
    return parsed is not None and bool(parsed[1])


def find_all_named_parts(
    store: Store, listing: LogListing, parts: frozenset[str]
) -> dict[int, frozenset[str]]:
    """Return which of `parts` the manifest of each checkpoint names, by version.

    A manifest that cannot be read may name any of them.
    """
    named: dict[int, frozenset[str]] = {}
    for version in listing.checkpoints:
        form = listing.checkpoint_form(version, "parquet")
        if form is None:
            continue
        try:
            found = find_named_parts(store, version, form.keys)
        except FileNotFoundError:  # deleted meanwhile
            continue
        named[version] = parts if found is None else parts & found
    return named


def delete_parts(deletion: Deleting, keys: Sequence[str]) -> None:
    """Delete parts that no manifest names any more; all other files of the plan are gone by now.

    A part that cannot be recorded, or that a manifest has named since the plan, stays.
    """
    store = deletion.store
    try:
        for key in keys:
            put_identical(store, retired_part_name(key), b"{}")
        listing = classify_names((), store.list_from(_FOLDER))
        named = find_all_named_parts(store, listing, frozenset(keys))
    except StoreUnavailable as error:
        deletion.fail(error)
        return
    needed = frozenset().union(*named.values())
    deletion.run([key for key in keys if key not in needed])
    with suppress(StoreUnavailable):  # harmless leftovers
        store.delete(_old_records(store, needed))


def _old_records(store: Store, needed: Collection[str]) -> list[str]:
    """Return the records of parts that are gone for so long that nobody can name them any more."""
    stats = store.stats_from(_FOLDER)
    now_ms = max((stat.mtime_ms for stat in stats.values()), default=0)
    return [
        f"{_FOLDER}/{name}"
        for name, stat in stats.items()
        if name.endswith(RETIRED_PART_SUFFIX)
        and name.removesuffix(RETIRED_PART_SUFFIX) not in stats
        and f"{_FOLDER}/{name.removesuffix(RETIRED_PART_SUFFIX)}" not in needed
        and 0 <= stat.mtime_ms < now_ms - _RECORD_AGE_MS_MIN
    ]

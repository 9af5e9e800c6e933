"""Which data file made a read fail, why, and which version added it.

Engines report a failed read in their own exceptions, often without the file: a decompression error
names no path. The files are looked at one by one, and the log is searched for the commit that added
the file, only after a read has failed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.config import resolve
from arrowlog.errors import ArrowlogError, DataFileError, StoreUnavailable
from arrowlog.log.arrays import scalar
from arrowlog.log.store import open_store
from arrowlog.log.store.remote import secrets_in
from arrowlog.log.window import LINE_BITS
from arrowlog.scan.column_types import castable
from arrowlog.scan.spelling import finer
from arrowlog.state.apply import keyed
from arrowlog.state.listing import list_log
from arrowlog.state.load import read_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrowlog.log.decode import Actions
    from arrowlog.log.store import Store

    Check = Callable[[Any], str | Exception | None]

_THREADS = 16
_COMMITS_AT_ONCE = 256
_REASON_MAX = 300
_OF_STORES = (PermissionError, ConnectionError, TimeoutError)  # say nothing about a file's content


def data_file_error(store: Store, key: str, reason: str, version: int) -> DataFileError:
    """The error for a file that `version` of the table has and that cannot be read."""
    added, told = _added(store, key, version)
    return DataFileError(
        f"{reason.rstrip('.')} ({told}).",
        next=f"Restore the file from a backup, or give its rows up with table.remove([{key!r}]);"
        " table.doctor() checks all files.",
        file=key,
        version=added,
    )


def _added(store: Store, key: str, version: int) -> tuple[int | None, str]:
    """The newest version up to `version` that added a file, and the same in words."""
    first = version + 1
    try:
        for lowest, actions in _commits(store, version):
            adds, _ = keyed(actions, "add", store.root)
            mine = adds.filter(pc.equal(adds["key"], scalar(key, pa.string())))
            if mine.num_rows:
                found = actions.versions[pc.max(mine["seq"]).as_py() >> LINE_BITS]
                return found, f"added by version {found}"
            first = lowest
    except (ArrowlogError, OSError):
        return None, "the version that added it cannot be told"
    return None, f"added before version {first}, by a commit that is no longer in the log"


def _commits(store: Store, version: int) -> Iterator[tuple[int, Actions]]:
    """Runs of commits up to a version, the newest first, each with its lowest version."""
    names = list_log(store).commits
    known = sorted(found for found in names if found <= version)
    config = resolve()
    for stop in range(len(known), 0, -_COMMITS_AT_ONCE):
        run = known[max(0, stop - _COMMITS_AT_ONCE) : stop]
        yield run[0], read_commits(store, config, [(found, names[found]) for found in run])


class ReadFailures:
    """Turns what engines raise while rows are read into errors of ours.

    `version` is the version of the table that is read.
    """

    def __init__(
        self,
        root: str,
        options: Mapping[str, Any],
        version: int,
        schema: pa.Schema,
        partition_columns: Sequence[str],
    ) -> None:
        """Nothing is looked at before something fails."""
        self._root = root
        self._options = options
        self._version = version
        stored = [item for item in schema if item.name not in set(partition_columns)]
        self._schema = pa.schema(stored)

    def explained(self, error: Exception, fragments: Mapping[str, Any]) -> Exception:
        """The error to raise instead of `error`; `fragments` are the files by key.

        Errors of ours stay as they are, and so does what no file explains and no store caused.
        """
        if isinstance(error, ArrowlogError):
            return error
        for key, reason in self._problems(error, fragments):
            return self.of_file(key, reason)
        if isinstance(error, MemoryError) or not isinstance(error, (pa.ArrowException, OSError)):
            return error
        return StoreUnavailable(
            f"The rows of version {self._version} could not be read: {self._words(error)}. Each of"
            f" the {len(fragments)} files can be read by itself.",
            next="Try again.",
        )

    def of_file(self, key: str, reason: str) -> DataFileError:
        """The error for one file, with the version that added it."""
        store = open_store(self._root, self._options)
        return data_file_error(store, key, self._masked(reason), self._version)

    def check_types(self, fragments: Mapping[str, Any]) -> None:
        """Raise `DataFileError` for the first file of which no row can be read, by its types.

        Reads no more than footers; those that are known already are not read again.
        """
        seen: set[bytes] = set()
        for key, fragment in fragments.items():
            stored = fragment.physical_schema
            form = stored.remove_metadata().serialize().to_pybytes()
            if form in seen:
                continue
            seen.add(form)
            for item in self._schema:
                index = stored.get_field_index(item.name)
                if index >= 0 and not castable(stored.field(index).type, item.type):
                    kind = stored.field(index).type
                    raise self.of_file(
                        key, f"the column {item.name!r} is {kind} and cannot be read as {item.type}"
                    )

    def _problems(
        self, error: Exception, fragments: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Files that cannot be read and why, those that the error names first."""
        words = str(error)
        named = {key: each for key, each in fragments.items() if each.path in words}
        yield from self._each(_footer_problem, named)
        yield from self._each(_footer_problem, fragments)
        for key, fragment in {**named, **fragments}.items():
            try:
                reason = self._content_problem(fragment)
            except (pa.ArrowException, OSError, ValueError) as damage:  # names that are no UTF-8
                reason = f"the data file is damaged: {self._words(damage)}"
            if reason is not None:
                yield key, reason

    def _each(self, check: Check, fragments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """What a check finds, in the order of the files; several are looked at at a time."""
        if not fragments:
            return
        with ThreadPoolExecutor(min(_THREADS, len(fragments))) as pool:
            found = pool.map(check, map(_fresh, fragments.values()))
            for key, reason in zip(fragments, found, strict=True):
                if isinstance(reason, Exception):
                    raise StoreUnavailable(
                        f"{key} could not be looked at: {self._words(reason)}.",
                        next="Check access and try again.",
                    )
                if reason is not None:
                    yield key, reason

    def _content_problem(self, fragment: Any) -> str | None:
        """Why the rows of a file cannot be read in the table's types; the column if it is one."""
        fragment = _fresh(fragment)
        stored = fragment.physical_schema
        fine = finer(stored, self._schema)
        wanted = [name for name in self._schema.names if stored.get_field_index(name) >= 0]
        doubled = [name for name in self._schema.names if stored.names.count(name) > 1]
        if doubled:
            return f"the file has the column {doubled[0]!r} twice"
        if self._fails(fragment, wanted) is None:
            return None
        for name in wanted:
            error = self._fails(fragment, [name])
            if error is None:
                continue
            if name == fine and "lose data" in str(error):
                why = "has times between two microseconds, which the table's type does not have"
                return f"the column {name!r} {why}"
            kind, table = stored.field(name).type, self._schema.field(name).type
            if kind == table:
                return f"the column {name!r} cannot be read: {self._words(error)}"
            return (
                f"the column {name!r} is {kind} and cannot be read as {table}: {self._words(error)}"
            )
        return "the file cannot be read"

    def _fails(self, fragment: Any, names: list[str]) -> Exception | None:
        """What reading some columns of a file raises. Rows are dropped as they come."""
        import pyarrow.dataset as ds

        whole = ds.FileSystemDataset(
            [fragment], self._schema, fragment.format, filesystem=fragment.filesystem
        )
        try:
            for _ in whole.scanner(columns=names, use_threads=False).to_batches():
                pass
        except Exception as error:  # noqa: BLE001 -- whatever a damaged file or a store leads to
            return error
        return None

    def _words(self, error: Exception) -> str:
        """The first line of an engine's message, without the store's secrets."""
        reason = str(error).split("\n", 1)[0].strip().rstrip(".")[:_REASON_MAX]
        return self._masked(reason) or type(error).__name__

    def _masked(self, words: str) -> str:
        for secret in secrets_in(self._options):
            words = words.replace(secret, "***") if len(secret) > 3 else words
        return words


def _fresh(fragment: Any) -> Any:
    """The same file without a footer that was read before."""
    return fragment.format.make_fragment(fragment.path, fragment.filesystem)


def _footer_problem(fragment: Any) -> str | Exception | None:
    """What is wrong with a file as far as its footer tells; an exception if the store failed."""
    from pyarrow import fs

    try:
        info = fragment.filesystem.get_file_info(fragment.path)
    except Exception as error:  # noqa: BLE001 -- whatever a store raises
        return error
    if info.type == fs.FileType.NotFound:
        return "the data file is missing"
    if info.type != fs.FileType.File:
        return "there is a directory in the place of the data file"
    if info.size == 0:
        return "the data file is empty"
    try:
        fragment.physical_schema  # noqa: B018 -- read on access
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, _OF_STORES):
            return error
        words = str(error).split("\n", 1)[0].rpartition("': ")[2].strip().rstrip(".")
        return f"the data file is damaged: {words[:_REASON_MAX]}"
    except Exception as error:  # noqa: BLE001 -- whatever a store raises
        return error
    return None

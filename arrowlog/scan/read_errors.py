"""Attribute a failed read to a data file, a reason, and the version that added the file.

Engines report a failed read in their own exceptions, often without the file: a decompression error
names no path. Only after a read has failed are the files checked one by one and the log searched
for the commit that added the file.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_scalar
from arrowlog.config import resolve
from arrowlog.decode import SEQ_LINE_BITS
from arrowlog.errors import ArrowlogError, DataFileError, StoreUnavailable
from arrowlog.scan.file_schema import find_column_problem, find_nanosecond_column
from arrowlog.snapshot import (
    ReadOptions,
    list_log,
    open_log,
    read_verified_actions,
    with_file_keys,
)
from arrowlog.storage import find_secrets, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrowlog.decode import ActionBatch
    from arrowlog.storage import Store

    Check = Callable[[Any], str | Exception | None]

_THREADS = 16  # concurrent footer checks
_COMMITS_PER_READ = 256
_REASON_MAX = 300  # characters of an engine's message
# Failures of the store, which say nothing about the content of a file.
_STORE_ERRORS = (PermissionError, ConnectionError, TimeoutError)


def build_data_file_error(store: Store, key: str, reason: str, version: int) -> DataFileError:
    """The error for an unreadable file of `version`; it names the version that added the file."""
    added_version, origin = _find_added_version(store, key, version)
    return DataFileError(
        f"{reason.rstrip('.')} ({origin}).",
        next=f"Restore the file from a backup, or give its rows up with table.remove([{key!r}]);"
        " table.doctor() checks all files.",
        file=key,
        version=added_version,
    )


def _find_added_version(store: Store, key: str, version: int) -> tuple[int | None, str]:
    """The latest version up to `version` that added a file, or None, and a phrase for it."""
    oldest_read = version + 1
    try:
        for lowest, actions in _read_commits_backwards(store, version):
            adds, _ = with_file_keys(actions, "add", store.root)
            matching = adds.filter(pc.equal(adds["key"], make_scalar(key, pa.string())))
            if matching.num_rows:
                added_version = actions.versions[pc.max(matching["seq"]).as_py() >> SEQ_LINE_BITS]
                return added_version, f"added by version {added_version}"
            oldest_read = lowest
    except (ArrowlogError, OSError):
        return None, "the version that added it is unknown"
    return None, f"added before version {oldest_read}, by a commit that is no longer in the log"


def _read_commits_backwards(store: Store, version: int) -> Iterator[tuple[int, ActionBatch]]:
    """Batches of commits up to `version`, newest first, each with its lowest version."""
    table_format = open_log(store).format
    commits = list_log(store, table_format).commit_files()
    commits = [commit for commit in commits if commit.version <= version]
    options = ReadOptions(resolve(), format=table_format)
    for stop in range(len(commits), 0, -_COMMITS_PER_READ):
        batch = commits[max(0, stop - _COMMITS_PER_READ) : stop]
        yield batch[0].version, read_verified_actions(store, options, batch)


class ReadErrorTranslator:
    """Translates errors that engines raise while reading rows into arrowlog's errors.

    `version` is the table version being read.
    """

    def __init__(
        self,
        root: str,
        options: Mapping[str, Any],
        version: int,
        schema: pa.Schema,
        partition_columns: Sequence[str],
    ) -> None:
        """No file is opened before a read has failed."""
        self._root = root
        self._options = options
        self._version = version
        stored = [item for item in schema if item.name not in set(partition_columns)]
        self._schema = pa.schema(stored)

    def translate_read_error(self, error: Exception, fragments: Mapping[str, Any]) -> Exception:
        """The error to raise instead of `error`. `fragments` are the files by key.

        DataFileError if a file is at fault, StoreUnavailable if Arrow or the operating system
        failed although every file is readable. Errors of arrowlog, MemoryError and unrelated
        exceptions are returned unchanged.
        """
        if isinstance(error, ArrowlogError):
            return error
        for key, reason in self._find_problems(error, fragments):
            return self.file_error(key, reason)
        if isinstance(error, MemoryError) or not isinstance(error, (pa.ArrowException, OSError)):
            return error
        return StoreUnavailable(
            f"The rows of version {self._version} could not be read: {self._message_of(error)}."
            f" Each of the {len(fragments)} files is readable on its own.",
            next="Try again.",
        )

    def file_error(self, key: str, reason: str) -> DataFileError:
        """The error for one file, naming the version that added it."""
        store = open_store(self._root, self._options)
        return build_data_file_error(store, key, self._mask_secrets(reason), self._version)

    def check_types(self, fragments: Mapping[str, Any]) -> None:
        """Raise DataFileError for the first file with a column of an incompatible type.

        Reads footers only, and none that has been read already.
        """
        seen: set[bytes] = set()
        for key, fragment in fragments.items():
            stored = fragment.physical_schema
            serialized = stored.remove_metadata().serialize().to_pybytes()
            if serialized in seen:
                continue
            seen.add(serialized)
            problem = find_column_problem(stored, self._schema)
            if problem is not None:
                raise self.file_error(key, problem)

    def _find_problems(
        self, error: Exception, fragments: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Unreadable files and the reasons; files that the error names come first."""
        message = str(error)
        named = {key: each for key, each in fragments.items() if each.path in message}
        yield from self._check_each(_footer_problem, named)
        yield from self._check_each(_footer_problem, fragments)
        for key, fragment in {**named, **fragments}.items():
            try:
                reason = self._content_problem(fragment)
            # ValueError: a column name is not UTF-8.
            except (pa.ArrowException, OSError, ValueError) as damage:
                reason = f"the data file is damaged: {self._message_of(damage)}"
            if reason is not None:
                yield key, reason

    def _check_each(self, check: Check, fragments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Run a check on all files concurrently and yield its findings in file order."""
        if not fragments:
            return
        with ThreadPoolExecutor(min(_THREADS, len(fragments))) as pool:
            results = pool.map(check, map(_without_footer, fragments.values()))
            for key, reason in zip(fragments, results, strict=True):
                if isinstance(reason, Exception):
                    raise StoreUnavailable(
                        f"{key} could not be checked: {self._message_of(reason)}.",
                        next="Check access and try again.",
                    )
                if reason is not None:
                    yield key, reason

    def _content_problem(self, fragment: Any) -> str | None:
        """Why the rows of a file cannot be read in the table's types; None if they can."""
        fragment = _without_footer(fragment)
        stored = fragment.physical_schema
        nanosecond_column = find_nanosecond_column(stored, self._schema)
        wanted = [name for name in self._schema.names if stored.get_field_index(name) >= 0]
        problem = find_column_problem(stored, self._schema)
        if problem is not None:
            return problem
        if self._fails(fragment, wanted) is None:
            return None
        for name in wanted:
            error = self._fails(fragment, [name])
            if error is None:
                continue
            if name == nanosecond_column and "lose data" in str(error):
                problem = "has nanosecond values that the table's type cannot represent"
                return f"the column {name!r} {problem}"
            stored_type, table_type = stored.field(name).type, self._schema.field(name).type
            if stored_type == table_type:
                return f"the column {name!r} cannot be read: {self._message_of(error)}"
            return (
                f"the column {name!r} is {stored_type} and cannot be read as {table_type}:"
                f" {self._message_of(error)}"
            )
        return "the file cannot be read"

    def _fails(self, fragment: Any, names: list[str]) -> Exception | None:
        """The exception that reading some columns of a file raises; None if it succeeds."""
        import pyarrow.dataset as ds

        dataset = ds.FileSystemDataset(
            [fragment], self._schema, fragment.format, filesystem=fragment.filesystem
        )
        try:
            for _ in dataset.scanner(columns=names, use_threads=False).to_batches():
                pass
        except Exception as error:  # noqa: BLE001 -- depends on the damage and the store
            return error
        return None

    def _message_of(self, error: Exception) -> str:
        """The first line of an engine's message, without credentials."""
        reason = str(error).split("\n", 1)[0].strip().rstrip(".")[:_REASON_MAX]
        return self._mask_secrets(reason) or type(error).__name__

    def _mask_secrets(self, text: str) -> str:
        """Replace the credentials in the storage options by asterisks."""
        for secret in find_secrets(self._options):
            text = text.replace(secret, "***") if len(secret) > 3 else text
        return text


def _without_footer(fragment: Any) -> Any:
    """The same file without its cached footer, which must be read again."""
    return fragment.format.make_fragment(fragment.path, fragment.filesystem)


def _footer_problem(fragment: Any) -> str | Exception | None:
    """What is wrong with a file according to the store and its footer; None if nothing.

    Returns the exception if the store failed, since that says nothing about the file.
    """
    from pyarrow import fs

    try:
        info = fragment.filesystem.get_file_info(fragment.path)
    except Exception as error:  # noqa: BLE001 -- depends on the store
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
        if isinstance(error, _STORE_ERRORS):
            return error
        message = str(error).split("\n", 1)[0].rpartition("': ")[2].strip().rstrip(".")
        return f"the data file is damaged: {message[:_REASON_MAX]}"
    except Exception as error:  # noqa: BLE001 -- depends on the store
        return error
    return None

"""Rebuild: a new log for the Parquet files in a folder whose log is lost, or that never had one.

Every file is opened once, several at a time or on the workers of a Spark session: its columns, row
count and bounds come from its footer. The schema is unified over all files, and partition columns
come from folders named `column=value`. All files become one commit, version 0, which is put if
absent: a rebuild that is killed leaves no table, and of several rebuilds one succeeds.

A folder does not tell which of its files were live. Files that were removed from the table, by a
delete, an overwrite or a compaction, come back with their rows if they are still there. So a log
that is only damaged is repaired instead, and other logs in the folder stop a rebuild.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import make_array
from arrowlog.config import parse_argument, parse_names, resolve
from arrowlog.errors import (
    ArrowlogError,
    DataFileError,
    InvalidRequest,
    LogCorrupt,
    TableExists,
    TableNotFound,
    redact,
)
from arrowlog.fork_safety import require_polars
from arrowlog.formats.indextables import LOG_FOLDER, encode_action
from arrowlog.recovery.findings import RebuildProblem, RebuildResult
from arrowlog.recovery.folder_contents import (
    LEFT_OUT_SCHEMA,
    PartitionFolder,
    choose_table_schema,
    classify_folder,
    find_invalid_value,
    infer_partition_type,
    parse_partition_folder,
    unify_schemas,
    widest_type,
)
from arrowlog.snapshot import StatsTruncation, list_log
from arrowlog.storage import LocalStore, find_secrets, open_store
from arrowlog.transaction import (
    InspectedFile,
    build_metadata,
    check_no_remains,
    check_schema,
    create_table,
    inspect_parquet_file,
    relative_data_path,
    to_schema_json,
    validate_adds,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrowlog.config import Config
    from arrowlog.formats import Metadata
    from arrowlog.recovery.folder_contents import FolderContent
    from arrowlog.storage import Store
    from arrowlog.transaction import Add

    Progress = Callable[[int, int], object]

_THREADS = 16  # files that are opened at a time over a network
_LOCAL_THREADS = 4  # on a local disk, where more threads only compete for the interpreter
_FILES_PER_CHUNK = 256  # files that are inspected together; the unit of a Spark task
_MIN_SECRET_CHARACTERS = 4  # masking shorter values would mangle ordinary words
_COMPRESSION_LEVEL = 1  # adds are kept compressed until all files are read; speed counts
_MAX_EXAMPLES = 3  # files that a message names
_FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("modification_time", pa.timestamp("ms", "UTC")),
        ("num_records", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class _Inspection:
    """What inspecting a file needs, on a thread or on a worker of Spark."""

    schema: pa.Schema | None  # given by the caller; None takes that of each file
    partition_columns: tuple[str, ...]
    cut: StatsTruncation

    def inspect(self, store: Store, path: str) -> InspectedFile:
        try:
            relative_data_path(path, store.root, (), path)
        except InvalidRequest as error:  # a name that no log can have, such as `a//b.parquet`
            return InspectedFile(path, misfit=error.what)
        given = self.schema
        choose = choose_table_schema if given is None else lambda _stored, _footer: given
        return inspect_parquet_file(store, path, choose, self.partition_columns, self.cut)

    def inspect_all(self, store: Store, paths: Sequence[str], pool: ThreadPoolExecutor) -> bytes:
        """Inspect files in parallel. The result is compressed, to keep memory low."""
        files = list(pool.map(lambda path: self.inspect(store, path), paths))
        return zlib.compress(pickle.dumps(files), _COMPRESSION_LEVEL)


@dataclass(slots=True)
class _Survey:
    """All files of a folder: their adds, compressed, and by file the schema and what is wrong."""

    chunks: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of the files that have a schema
    records: list[int] = field(default_factory=list)  # by file, as `paths`
    schema_numbers: list[int] = field(default_factory=list)  # by file, as `paths`
    schemas: dict[bytes, int] = field(default_factory=dict)  # serialized, by first appearance
    damaged: dict[str, str] = field(default_factory=dict)  # reason by path
    misfits: dict[str, str] = field(default_factory=dict)
    columns: Counter[str] = field(default_factory=Counter)  # number of files by column

    def add_chunk(self, chunk: bytes) -> None:
        """Take the inspected files of a chunk."""
        self.chunks.append(chunk)
        for file in _unpack(chunk):
            if file.damage is not None:
                self.damaged[file.path] = file.damage
            elif file.misfit is not None:
                self.misfits[file.path] = file.misfit
            else:
                self._add_file(file)

    def _add_file(self, file: InspectedFile) -> None:
        assert file.schema is not None
        assert file.add is not None
        self.paths.append(file.path)
        self.records.append(file.add.num_records or 0)
        key = file.schema.serialize().to_pybytes()
        self.schema_numbers.append(self.schemas.setdefault(key, len(self.schemas)))
        self.columns.update(file.columns)

    def files_with(self, numbers: Iterable[int]) -> list[str]:
        """Return the files that have one of some schemas."""
        wanted = set(numbers)
        pairs = zip(self.paths, self.schema_numbers, strict=True)
        return [path for path, number in pairs if number in wanted]

    def distinct_schemas(self) -> list[pa.Schema]:
        """Return the schemas of all files, each once, that of the first file first."""
        return [pa.ipc.read_schema(pa.py_buffer(data)) for data in self.schemas]


def _unpack(chunk: bytes) -> list[InspectedFile]:
    files: list[InspectedFile] = pickle.loads(zlib.decompress(chunk))  # noqa: S301 -- ours
    return files


@dataclass(frozen=True, slots=True)
class _Partitions:
    """The partition columns, and the values of every folder that has data files."""

    columns: tuple[str, ...]
    folders: Mapping[str, PartitionFolder]

    def values(self, path: str) -> dict[str, str | None]:
        """Return the partition values of a file."""
        folder = self.folders[path.rpartition("/")[0]].values
        return {name: folder[name] for name in self.columns}

    def texts(self, column: str) -> set[str | None]:
        """Return the distinct values of a column."""
        return {folder.values.get(column) for folder in self.folders.values()}


@dataclass(frozen=True, slots=True)
class _Request:
    """What the caller asked for."""

    schema: pa.Schema | None
    partition_columns: tuple[str, ...] | None
    dry_run: bool
    skip_damaged: bool
    ignore_logs: bool


@dataclass(frozen=True, slots=True)
class _Inspector:
    """Who inspects the files: threads of this process, or the workers of a Spark session."""

    store: Store
    storage_options: Mapping[str, Any] = field(repr=False)
    spark: Any
    progress: Progress | None

    def run(self, inspection: _Inspection, keys: Sequence[str]) -> Iterator[bytes]:
        """Yield the inspected files in chunks, in order."""
        if self.spark is None or self.store.root.startswith("memory:"):  # not seen by workers
            return _inspect_here(self.store, inspection, keys, self.progress)
        return _inspect_on_spark(
            self.spark, self.store, self.storage_options, inspection, keys, self.progress
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The table to be made; without metadata if there are problems."""

    result: RebuildResult
    metadata: Metadata | None
    survey: _Survey
    partitions: _Partitions


def rebuild(
    uri: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    partition_columns: Sequence[str] | None = None,
    schema: object = None,
    skip_damaged: bool = False,
    ignore_logs: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, object] | None = None,
    spark: Any = None,
    progress: Progress | None = None,
    allow_unsafe_commits: bool = False,
) -> RebuildResult:
    """Write a new log for the Parquet files in a folder that has none.

    Use it if the log of a table is lost, or to make a table of a plain folder of Parquet files. A
    damaged log is better repaired: it knows which files are live. Here every Parquet file in the
    folder counts, so rows that were deleted, overwritten or compacted come back if their files are
    still there.

    The schema has the columns of the first file, then those that other files add, nullable.
    Integers and floats are widened where files differ; other differences are refused. Folders named
    `column=value` give partition columns: integers or dates if all values are, else text. Row
    counts and bounds are read from footers. Left out, and listed in the result, are names that
    begin with `_` or `.`, temporary files, folders with a log, and files that are not called
    `.parquet`, `.parq` or `.pq`.

    Args:
        uri: path or URL of the folder.
        dry_run: report what would be done, and the problems it would be refused for.
        partition_columns: the partition columns; by default those in the paths, with [] none.
        schema: the schema of the table, as in `Table.create`, instead of that of the files.
        skip_damaged: leave out Parquet files that cannot be opened, instead of refusing.
        ignore_logs: rebuild beside other logs, such as `_transaction_log_old` or `_delta_log`.
        storage_options: see `Table`.
        options: see `Table`.
        spark: a Spark session whose workers read the footers.
        progress: called with the number of files read and their total.
        allow_unsafe_commits: see `Table`.

    Returns:
        Schema, partition columns, files, rows, bytes, files that were left out, and problems.

    Raises:
        TableExists: there is a log, or there are other logs and `ignore_logs` is false.
        TableNotFound: there are no Parquet files in the folder.
        DataFileError: files are damaged, or cannot be those of one table. The message names them.
        InvalidRequest: partition folders contradict each other, or an argument is invalid.
        LogCorrupt: there are remains of a log without commits.
    """
    require_polars("Rebuilding a log")
    given = None if schema is None else check_schema(to_schema_json(schema))
    request = _Request(given, _check_names(partition_columns), dry_run, skip_damaged, ignore_logs)
    config, access = resolve(options), dict(storage_options or {})
    started = time.perf_counter()
    store = _open_store(uri, access, config, unsafe=allow_unsafe_commits)
    result = _rebuild(store, config, request, _Inspector(store, access, spark, progress))
    return replace(result, milliseconds=(time.perf_counter() - started) * 1000)


def _open_store(
    uri: str | os.PathLike[str], access: Mapping[str, Any], config: Config, *, unsafe: bool
) -> Store:
    return open_store(
        uri,
        access,
        parallelism=config.request_ceiling,
        timeout_seconds=config.checkpoint_read_timeout_seconds,
        accelerate=config.store_accelerate,
        unsafe=unsafe,
    )


def _rebuild(
    store: Store, config: Config, request: _Request, inspector: _Inspector
) -> RebuildResult:
    _check_no_log(store)
    content = classify_folder(store.walk())
    if not content.data.num_rows:
        raise _no_files_error(store, content)
    plan = _examine(store, content, request, StatsTruncation.of(config), inspector)
    if request.dry_run:
        return plan.result
    if plan.metadata is None:
        raise _refusal(plan.result.problems, store)
    _commit(store, config, plan.metadata, plan.survey, plan.partitions)
    return replace(plan.result, version=0)


def _check_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(columns, str):
        raise InvalidRequest(
            f"partition_columns is the string {columns!r}.", next=f"Pass a list: [{columns!r}]."
        )
    return None if columns is None else parse_argument(parse_names, columns, "partition_columns")


def _examine(
    store: Store,
    content: FolderContent,
    request: _Request,
    cut: StatsTruncation,
    inspector: _Inspector,
) -> _Plan:
    """Examine all files, and plan the table that they make.

    Without `dry_run`, raises the error for a problem that is known before files are opened.
    """
    problems = [] if request.ignore_logs else _other_logs(store, content)
    problems += _links(store)
    keys: list[str] = content.data["key"].to_pylist()
    partitions, layout_problems = _read_partitions(keys, request.partition_columns)
    problems += layout_problems
    if problems and not request.dry_run:
        raise _refusal(problems, store)
    survey = _Survey()
    for chunk in inspector.run(_Inspection(request.schema, partitions.columns, cut), keys):
        survey.add_chunk(chunk)
    schema, schema_problems = _choose_schema(survey, partitions, request.schema)
    problems += schema_problems + _file_problems(survey, skip_damaged=request.skip_damaged)
    if not survey.paths and not problems:
        raise _no_files_error(store, content)
    metadata = None
    if schema is not None and not problems:
        try:
            metadata = build_metadata(schema, partitions.columns, {}, None, None)
        except InvalidRequest as error:
            problems.append(RebuildProblem("schema-invalid", error.what, error.next, _paths([])))
    files, left_out = _list_files(content, survey)
    result = RebuildResult(
        store.root,
        schema,
        partitions.columns,
        files,
        left_out,
        tuple(problems),
        _notes(survey, partitions, request.schema),
        content.other_logs,
        request.dry_run,
    )
    return _Plan(result, metadata, survey, partitions)


def _check_no_log(store: Store) -> None:
    """Raise if there is a log, or what is left of one."""
    try:
        list_log(store)
    except TableNotFound:
        pass
    except LogCorrupt as error:
        raise _log_exists(store) from error
    else:
        raise _log_exists(store)
    try:
        check_no_remains(store, store.list_from(LOG_FOLDER))
    except LogCorrupt as error:
        raise LogCorrupt(
            error.what,
            next=f"Restore the commits from a backup if there is one. If they are lost, rename"
            f" {LOG_FOLDER} to {LOG_FOLDER}_old and rebuild with ignore_logs=True"
            " (--ignore-logs).",
            file=error.file,
        ) from None


def _log_exists(store: Store) -> TableExists:
    return TableExists(
        f"There is a log at {store.root}/{LOG_FOLDER}, and a rebuild never replaces one.",
        next="Open the table with arrowlog.Table. If the log is damaged, arrowlog.doctor(uri) says"
        " how to repair it.",
    )


def _no_files_error(store: Store, content: FolderContent) -> TableNotFound:
    counts = Counter(content.left_out["reason"].to_pylist())
    others = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
    return TableNotFound(
        f"There are no Parquet files to rebuild a log from in {store.root}"
        f"{f' (left out: {others})' if others else ''}.",
        next="Check the address: it must be the folder of the table.",
    )


def _other_logs(store: Store, content: FolderContent) -> list[RebuildProblem]:
    if not content.other_logs:
        return []
    names = ", ".join(f"{name}/" for name in content.other_logs)
    ways = {
        name: "arrowlog.convert(uri)"
        if name == "_delta_log"
        else f"arrowlog.repair({f'{store.root}/{name}'!r}, {f'{store.root}/{LOG_FOLDER}'!r})"
        for name in content.other_logs
        if name == "_delta_log" or name.startswith(LOG_FOLDER)
    }
    ways_text = " or ".join(ways.values()) or "the program that wrote it"
    problem = RebuildProblem(
        "other-logs",
        f"{store.root} has other logs: {names}. They tell which files are live; a rebuild takes"
        " every file, and rows that were deleted or compacted would come back.",
        f"Use {ways_text}, or rebuild all the same with ignore_logs=True (--ignore-logs).",
        _paths([]),
    )
    return [problem]


def _links(store: Store) -> list[RebuildProblem]:
    """Report symbolic links: readers follow them, listings do not, and two may lead to one file.

    Hidden names are left out of a table, so links of such names are no problem.
    """
    links = store.links() if isinstance(store, LocalStore) else []
    links = [path for path in links if not path.rpartition("/")[2].startswith((".", "_"))]
    if not links:
        return []
    problem = RebuildProblem(
        "links",
        f"{_examples(links)}: symbolic links are not followed, so the rows behind them would not be"
        " in the table.",
        "Replace each link by what it leads to, or remove it if that is not part of the table.",
        _paths(links),
    )
    return [problem]


def _refusal(problems: Sequence[RebuildProblem], store: Store) -> ArrowlogError:
    """Return the error for the first problem; it counts the others."""
    first, others = problems[0], len(problems) - 1
    more = f" There are {others} more problems; rebuild with dry_run=True lists all." * (others > 0)
    if first.code == "other-logs":
        return TableExists(first.what, next=first.next + more)
    if first.code.startswith("partition"):
        return InvalidRequest(f"{store.root}: {first.what}", next=first.next + more)
    file = first.files[0].as_py() if len(first.files) else None
    what = first.what.removeprefix(f"{file}: ").replace(f"{file} ", "the file ", 1)
    return DataFileError(what, next=first.next + more, file=file)


def _examples(paths: Sequence[str]) -> str:
    """Name the first few of some files and count the others."""
    rest = len(paths) - _MAX_EXAMPLES
    names = ", ".join(paths[:_MAX_EXAMPLES])
    return f"{names} and {rest:,} more" if rest > 0 else names


def _count_files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _paths(paths: Sequence[str]) -> pa.Array:
    return make_array(list(paths), pa.string())


def _read_partitions(
    keys: Sequence[str], wanted: Sequence[str] | None
) -> tuple[_Partitions, list[RebuildProblem]]:
    """Read the partition columns and values from the folders of the files."""
    by_folder: dict[str, list[str]] = {}
    for key in keys:
        by_folder.setdefault(key.rpartition("/")[0], []).append(key)
    folders = {folder: parse_partition_folder(folder) for folder in by_folder}
    problems = []
    if wanted is not None:
        columns = tuple(wanted)
        lacking = [f for f, p in folders.items() if not set(columns) <= set(p.values)]
    else:
        layouts: Counter[tuple[str, ...]] = Counter()
        for folder, paths in by_folder.items():
            layouts[tuple(folders[folder].values)] += len(paths)
        columns = layouts.most_common(1)[0][0]
        lacking = [f for f, parsed in folders.items() if tuple(parsed.values) != columns]
    for folder, parsed in folders.items():
        if parsed.problem is not None and (columns or wanted is None):
            problems.append(
                RebuildProblem(
                    "partition-unknown",
                    f"The partition of {_count_files(len(by_folder[folder]))} in {folder} is"
                    f" unknown: {parsed.problem}.",
                    "Move the files to folders with complete values, or leave values in paths out"
                    " with partition_columns=[].",
                    _paths(by_folder[folder]),
                )
            )
            lacking = [each for each in lacking if each != folder]
    if lacking:
        odd = [path for folder in lacking for path in by_folder[folder]]
        layout = "/".join(f"{name}=…" for name in columns) or "no partition folders"
        problems.append(
            RebuildProblem(
                "partition-layout",
                f"{_count_files(len(odd))} of {len(keys):,} are not in folders {layout}:"
                f" {_examples(odd)}.",
                "Move them, or pass the partition_columns that all paths have; [] takes no values"
                " from paths.",
                _paths(odd),
            )
        )
    return _Partitions(columns, folders), problems


def _choose_schema(
    survey: _Survey, partitions: _Partitions, given: pa.Schema | None
) -> tuple[pa.Schema | None, list[RebuildProblem]]:
    """Return the table's schema, None if no file has one, and what is wrong with it."""
    if given is not None:
        return given, _check_given(survey, partitions, given)
    if not survey.paths:
        return None, []
    schemas = survey.distinct_schemas()
    unified = unify_schemas(schemas, leave_out=partitions.columns)
    problems = []
    for conflict in unified.conflicts:
        files = [(what, survey.files_with(numbers)) for what, numbers in conflict.variants]
        most = max(range(len(files)), key=lambda n: len(files[n][1]))
        told = "; ".join(
            f"{what} in {_count_files(len(paths))} ({_examples(paths)})" for what, paths in files
        )
        differing = [path for n, (_, paths) in enumerate(files) if n != most for path in paths]
        problems.append(
            RebuildProblem(
                "schema-conflict",
                f"The files disagree about the column {conflict.column!r}: {told}.",
                "Rewrite the files that differ or move them away, or pass the schema.",
                _paths(differing),
            )
        )
    fields = {item.name: item for item in unified.schema}
    for name in partitions.columns:
        kinds = [s.field(name).type for s in schemas if s.get_field_index(name) >= 0]
        kind = _partition_type(partitions.texts(name), kinds)
        fields[name] = pa.field(name, kind)
    return pa.schema(list(fields.values())), problems


def _partition_type(texts: set[str | None], kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of a partition column: that in the files if the values in paths have it."""
    stored = widest_type(kinds) if kinds else None
    usable = stored is not None and not pa.types.is_null(stored) and not pa.types.is_nested(stored)
    if usable and not pa.types.is_binary(stored) and find_invalid_value(texts, stored) is None:
        return stored
    return infer_partition_type(texts)


def _check_given(
    survey: _Survey, partitions: _Partitions, schema: pa.Schema
) -> list[RebuildProblem]:
    """Check the given schema against the values in paths, and columns that may not be NULL."""
    problems = []
    for name in partitions.columns:
        if schema.get_field_index(name) < 0:
            what = f"The column {name!r} of the paths is not in the schema."
            fix = "Add it, or leave values in paths out with partition_columns=[]."
            problems.append(RebuildProblem("partition-type", what, fix, _paths([])))
            continue
        item = schema.field(name)
        invalid = find_invalid_value(partitions.texts(name), item.type)
        if invalid is None and None in partitions.texts(name) and not item.nullable:
            invalid = "NULL"
        if invalid is not None:
            what = f"The paths have the value {invalid!r} for {name!r}, which is not {item.type}"
            what += "." if item.nullable else " or not allowed to be NULL."
            fix = "Pass another schema, or move these files away."
            problems.append(RebuildProblem("partition-type", what, fix, _paths([])))
    required = [
        item.name for item in schema if not item.nullable and item.name not in partitions.columns
    ]
    with_nulls = list(_files_with_nulls(survey, required)) if required else []
    if with_nulls:
        what = (
            f"{_count_files(len(with_nulls))} may have NULL in columns that are not nullable:"
            f" {_examples(with_nulls)}."
        )
        fix = "Pass a schema in which these columns are nullable."
        problems.append(RebuildProblem("schema-nulls", what, fix, _paths(with_nulls)))
    return problems


def _files_with_nulls(survey: _Survey, required: Sequence[str]) -> Iterator[str]:
    """Return the files that lack a column, or of which the footer does not exclude NULL in it."""
    for chunk in survey.chunks:
        for file in _unpack(chunk):
            if file.add is None or not file.add.num_records:
                continue
            for name in required:
                if name not in file.columns or file.add.null_count.get(name, 0):
                    yield file.path
                    break


def _file_problems(survey: _Survey, *, skip_damaged: bool) -> list[RebuildProblem]:
    problems = []
    if survey.damaged and not skip_damaged:
        paths = sorted(survey.damaged)
        count = f"{_count_files(len(paths))} cannot be opened" if len(paths) > 1 else ""
        what = f"{count}: {_examples(paths)}. The first: " if count else ""
        problems.append(
            RebuildProblem(
                "damaged",
                f"{what}{survey.damaged[paths[0]]}",
                "Restore the files from a backup, or leave them out with skip_damaged=True"
                " (--skip-damaged).",
                _paths(paths),
            )
        )
    if survey.misfits:
        paths = sorted(survey.misfits)
        what = f"{_count_files(len(paths))}: {_examples(paths)}. The first: "
        problems.append(
            RebuildProblem(
                "unsupported",
                f"{what if len(paths) > 1 else ''}{survey.misfits[paths[0]]}",
                "Rewrite the files or move them away, or pass a schema that they fit.",
                _paths(paths),
            )
        )
    return problems


def _list_files(content: FolderContent, survey: _Survey) -> tuple[pa.Table, pa.Table]:
    """Return the files of the table, and the files that are left out with the reasons."""
    taken = pa.table({"key": _paths(survey.paths), "n": make_array(survey.records, pa.int64())})
    data = content.data.join(taken, "key", join_type="inner").sort_by("key")
    times = pc.cast(pc.max_element_wise(data["mtime_ms"], 0), pa.timestamp("ms", "UTC"))
    files = pa.table([data["key"], data["size"], times, data["n"]], schema=_FILES_SCHEMA)
    unusable = {**dict.fromkeys(survey.damaged, "damaged")}
    unusable.update(dict.fromkeys(survey.misfits, "unsupported"))
    if not unusable:
        return files, content.left_out
    reasons = pa.table({"key": _paths(list(unusable)), "reason": _paths(list(unusable.values()))})
    rest = content.data.join(reasons, "key", join_type="inner")
    rest = pa.table([rest["key"], rest["size"], rest["reason"]], schema=LEFT_OUT_SCHEMA)
    return files, pa.concat_tables([content.left_out, rest]).sort_by("path")


def _notes(survey: _Survey, partitions: _Partitions, given: pa.Schema | None) -> tuple[str, ...]:
    in_files = [name for name in partitions.columns if survey.columns[name]]
    notes = [f"{name!r} is in paths and in files: the path counts" for name in in_files]
    if given is not None:
        unread = sorted(set(survey.columns) - set(given.names))
        notes += [
            f"{name!r} is in {_count_files(survey.columns[name])}, but not in the schema, and is"
            " not read"
            for name in unread
        ]
    return tuple(notes)


def _inspect_here(
    store: Store, inspection: _Inspection, keys: Sequence[str], progress: Progress | None
) -> Iterator[bytes]:
    """Inspect files on threads of this process, in order."""
    with ThreadPoolExecutor(_LOCAL_THREADS if store.cheap_stat else _THREADS) as pool:
        for start in range(0, len(keys), _FILES_PER_CHUNK):
            paths = keys[start : start + _FILES_PER_CHUNK]
            yield inspection.inspect_all(store, paths, pool)
            if progress is not None:
                progress(start + len(paths), len(keys))


def _inspect_on_spark(
    spark: Any,
    store: Store,
    storage_options: Mapping[str, Any],
    inspection: _Inspection,
    keys: Sequence[str],
    progress: Progress | None,
) -> Iterator[bytes]:
    """Inspect files on the workers of a Spark session, one task per chunk; yield them in order."""
    parts = [keys[at : at + _FILES_PER_CHUNK] for at in range(0, len(keys), _FILES_PER_CHUNK)]
    rows = pa.table(
        {
            "part": pa.array(range(len(parts)), pa.int32()),
            "paths": pa.array(parts, pa.list_(pa.string())),
        }
    )
    from arrowlog.spark.executors import require_on_workers
    from arrowlog.spark.versions import frame_from_arrow, frame_to_arrow, repartition_by_id

    require_on_workers(spark)
    frame = frame_from_arrow(spark, rows, "part int, paths array<string>")
    frame = repartition_by_id(frame, len(parts), "part")
    work = _worker(store.root, dict(storage_options), inspection)
    done = frame_to_arrow(frame.mapInArrow(work, "part int, files binary"))
    if progress is not None:
        progress(len(keys), len(keys))
    for chunk in done.sort_by("part")["files"]:
        yield chunk.as_py()


def _worker(
    root: str, options: dict[str, Any], inspection: _Inspection
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark's workers run. It is pickled with all that it refers to."""

    def arrowlog_inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(root, options)
        for batch in batches:
            numbers, lists = (column.to_pylist() for column in batch.columns)
            try:
                with ThreadPoolExecutor(_THREADS) as pool:
                    chunks = [inspection.inspect_all(store, paths, pool) for paths in lists]
            except Exception as error:  # noqa: BLE001 -- any error may contain a credential
                text = redact(str(error))
                for secret in find_secrets(options):
                    if len(secret) >= _MIN_SECRET_CHARACTERS:
                        text = text.replace(secret, "***")
                raise RuntimeError(text) from None
            arrays = [pa.array(numbers, pa.int32()), pa.array(chunks, pa.binary())]
            yield pa.record_batch(arrays, ["part", "files"])

    return arrowlog_inspect


def _commit(
    store: Store,
    config: Config,
    metadata: Metadata,
    survey: _Survey,
    partitions: _Partitions,
) -> None:
    """Commit all files as version 0, unless there is a log by now."""
    schema = check_schema(metadata.schema_string)
    lines = bytearray()
    for chunk in survey.chunks:
        adds: list[Add] = [
            replace(file.add, partition_values=partitions.values(file.path))
            for file in _unpack(chunk)
            if file.add is not None
        ]
        for fields in validate_adds(adds, metadata, schema):
            lines += encode_action("add", fields)
    if len(lines) > config.max_decompressed_bytes:
        raise InvalidRequest(
            f"The commit would have {len(lines):,} bytes, more than the"
            f" {config.max_decompressed_bytes:,} that readers decompress.",
            next="Raise transaction.maxDecompressedBytes, here and for all readers, or rebuild the"
            " table in several folders.",
        )
    try:
        create_table(store, config, metadata, exist_ok=False, adopted_files=bytes(lines))
    except TableExists:
        raise TableExists(
            f"Another process created a table at {store.root} meanwhile; nothing was written.",
            next="Open it with arrowlog.Table.",
        ) from None

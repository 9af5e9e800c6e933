"""`spark.read.format("arrowlog")` and `df.write.format("arrowlog")` as calls of this package.

Spark runs a Python data source in processes of its own, which know nothing about the session: they
see no `spark.conf`, only two save modes, and report errors below a traceback. Once a process has
used `arrowlog.spark`, the readers and writers of pyspark therefore treat our formats specially, and
nothing else:

- In classic sessions, `load` and `save` are `arrowlog.spark.read` and `arrowlog.spark.write`.
- Tables of the session's catalog are read by `table` and written by `saveAsTable` and `insertInto`.
  Spark passes no location to a Python data source. `replace` and `createOrReplace` are refused:
  Spark drops the table before it finds out that it cannot write.
- On Spark Connect and in streams, where the server does the work, the settings of the session and
  the save mode travel as options.

A process that never imports `arrowlog.spark` gets the data source as Spark runs it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from threading import Lock
from typing import TYPE_CHECKING, Any

from arrowlog.errors import ArrowlogError, InvalidRequest, TableExists
from arrowlog.spark.catalog import readable_location, refuse_replacement, table_location
from arrowlog.spark.local import WHEN_USED, own_errors, to_spark_error
from arrowlog.spark.options import parse_source_options
from arrowlog.spark.read import open_table
from arrowlog.spark.settings import FORMAT_NAMES, session_options
from arrowlog.spark.sql_tables import SqlSession, refuse_dynamic_overwrite
from arrowlog.spark.target import CREATE_MODES
from arrowlog.spark.types import to_spark_schema
from arrowlog.spark.write import write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pyspark.sql import DataFrame

_FORMAT = FORMAT_NAMES[0]
_NAMES = {name.lower() for name in FORMAT_NAMES}
_MARK = "_arrowlog_format"  # attribute of a reader or writer: whether its format is ours
_HOOKED = "arrowlog_wraps"  # attribute of a replaced method: the original
_LOCK = Lock()
# By module and class: the methods that do the work. Those of Connect exist once it was imported.
_CLASSES = {
    ("pyspark.sql.readwriter", "DataFrameReader"): ("load", "table"),
    ("pyspark.sql.readwriter", "DataFrameWriter"): ("save", "saveAsTable", "insertInto"),
    ("pyspark.sql.readwriter", "DataFrameWriterV2"): ("__init__", "replace", "createOrReplace"),
    ("pyspark.sql.streaming.readwriter", "DataStreamReader"): ("load",),
    ("pyspark.sql.streaming.readwriter", "DataStreamWriter"): ("start",),
    ("pyspark.sql.connect.readwriter", "DataFrameReader"): ("load", "table"),
    ("pyspark.sql.connect.readwriter", "DataFrameWriter"): ("save", "saveAsTable", "insertInto"),
    ("pyspark.sql.connect.readwriter", "DataFrameWriterV2"): ("replace", "createOrReplace"),
    ("pyspark.sql.connect.streaming.readwriter", "DataStreamReader"): ("load",),
    ("pyspark.sql.connect.streaming.readwriter", "DataStreamWriter"): ("start",),
}


def install_hooks() -> None:
    """Make pyspark's readers and writers treat our formats as the module describes. Idempotent."""
    with _LOCK:
        for (module, name), methods in _CLASSES.items():
            if module not in sys.modules:
                continue
            owner = getattr(sys.modules[module], name, None)
            if owner is None:  # another thread is importing it
                continue
            if hasattr(owner, "format"):
                _replace(owner, "format", _format)
            for method in methods:
                _replace(owner, method, _HOOKS[module.count("streaming") > 0, method])


class _PysparkFinder(MetaPathFinder):
    """Has the readers and writers of pyspark hooked as soon as they are imported.

    A program may import them later than this package: those of Connect with its first session.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the modules in question as Python does by itself, and no others."""
        if all(fullname != module for module, _ in _CLASSES):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader)
        return spec


class _HookingLoader(Loader):
    """Loads a module as another loader does, and then installs the hooks."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the other loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and hook what it defines."""
        self._loader.exec_module(module)
        install_hooks()


def watch_imports() -> None:
    """Install the hooks now, and again whenever pyspark loads a reader or writer. Idempotent."""
    if not any(isinstance(finder, _PysparkFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PysparkFinder())
    install_hooks()


def _replace(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    original = owner.__dict__.get(name)
    if original is None or hasattr(original, _HOOKED):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, self, *args, **kwargs)

    setattr(method, _HOOKED, original)
    setattr(owner, name, method)


def _format(original: Callable[..., Any], self: Any, source: str) -> Any:
    ours = isinstance(source, str) and source.lower() in _NAMES
    setattr(self, _MARK, ours)
    return original(self, _FORMAT if ours else source)


def _load(
    original: Callable[..., Any],
    self: Any,
    path: Any = None,
    format: str | None = None,  # noqa: A002 -- Spark's
    schema: Any = None,
    **options: Any,
) -> Any:
    """Load a table in a classic session by `arrowlog.spark.read`, or through Spark."""
    if format is not None:
        self.format(format)
    if not _is_ours(self):
        return original(self, path, schema=schema, **options)
    if schema is not None:
        self.schema(schema)
    self.options(**options)
    frame = _read(self, path) if hasattr(self, "_jreader") else None
    if frame is not None:
        return frame
    with own_errors():
        return original(_with_session_settings(self), _plain_path(path))


def _read(reader: Any, path: Any) -> DataFrame | None:
    """Read what a classic reader describes; None if only the data source can do so.

    That is the case for several paths, and for a schema that is not part of the table's.
    """
    spark = reader._spark  # noqa: SLF001 -- pyspark has no public access to it
    options = _java_options(spark, reader._jreader.extraOptions())  # noqa: SLF001 -- as above
    if isinstance(path, (list, tuple)):
        if len(path) != 1:
            return None
        (path,) = path
    given = options if path is None else {**options, "path": os.fspath(path)}
    try:
        parsed = parse_source_options(given, {})
        table = open_table(spark, parsed.path, parsed.storage, parsed.settings)
        plan = table.scan(parsed.where, parsed.version, parsed.timestamp)
        wanted = reader._jreader.userSpecifiedSchema()  # noqa: SLF001 -- as above
        if wanted.isEmpty():
            return plan.to_spark(spark)
        columns = to_spark_schema(wanted.get().json())
        available = {
            item.name: item for item in to_spark_schema(plan.snapshot.metadata.schema_string)
        }
        if any(available.get(item.name) != item for item in columns):
            return None
        quoted = ["`" + name.replace("`", "``") + "`" for name in columns.names]
        return plan.to_spark(spark).select(*quoted)
    except ArrowlogError as error:
        raise to_spark_error(error) from None


def _save(
    original: Callable[..., Any],
    self: Any,
    path: str | None = None,
    format: str | None = None,  # noqa: A002 -- Spark's
    mode: str | None = None,
    partitionBy: Any = None,  # noqa: N803 -- Spark's
    **options: Any,
) -> None:
    """Save rows in a classic session by `arrowlog.spark.write`, or through Spark."""
    if format is not None:
        self.format(format)
    if not _is_ours(self):
        original(self, path, mode=mode, partitionBy=partitionBy, **options)
        return
    self.mode(mode).options(**options)
    if partitionBy is not None:
        self.partitionBy(partitionBy)
    if _is_clustered(self):
        error = InvalidRequest(
            "The files of a table cannot be clustered by columns.",
            next="Omit clusterBy; use partitionBy, or sort the rows before they are written.",
        )
        raise to_spark_error(error)
    if _mode(self) == "overwrite":
        _check_overwrite(self, path)
    if hasattr(self, "_jwrite"):
        _write(original, self, path)
        return
    request = self._write  # of Spark Connect
    save_mode = CREATE_MODES.get((request.mode or "error").lower())
    if save_mode is not None:
        self.mode("append").option("saveMode", save_mode)
    if request.partitioning_cols:
        self.option("partitionColumns", json.dumps(list(request.partitioning_cols)))
        request.partitioning_cols = []
    original(_with_session_settings(self), _plain_path(path))


def _write(original: Callable[..., Any], writer: Any, path: str | None) -> None:
    java = writer._jwrite  # noqa: SLF001 -- as above
    if any(getattr(java, name)().isDefined() for name in ("numBuckets", "sortColumnNames")):
        original(writer, path)  # refuses it
        return
    spark = writer._spark  # noqa: SLF001 -- as above
    options = _java_options(spark, java.extraOptions())
    mode = java.curmode().name().lower()
    try:
        given = options if path is None else {**options, "path": os.fspath(path)}
        parsed = parse_source_options(given, {})
        columns = parsed.partition_columns
        if java.partitioningColumns().isDefined():
            names = java.partitioningColumns().get()
            columns = tuple(names.apply(number) for number in range(names.size()))
        write(
            writer._df,  # noqa: SLF001 -- as above
            parsed.path,
            mode if parsed.save_mode is None else parsed.save_mode,  # type: ignore[arg-type]
            replace_where=parsed.replace_where,
            partition_columns=columns,
            storage_options=parsed.storage,
            options=parsed.settings,
            read_version=parsed.read_version,
        )
    except ArrowlogError as error:
        raise to_spark_error(error) from None


def _is_clustered(writer: Any) -> bool:
    if not hasattr(writer, "clusterBy"):  # Spark 3.5
        return False
    if hasattr(writer, "_jwrite"):
        return bool(writer._jwrite.clusteringColumns().isDefined())  # noqa: SLF001 -- as above
    return bool(getattr(writer._write, "clustering_cols", ()))  # noqa: SLF001 -- as above


def _check_overwrite(writer: Any, path: str | None) -> None:
    """Refuse to replace a table where the session asks to replace some partitions of it."""
    options = {name.lower(): value for name, value in _writer_options(writer).items()}
    place = options.get("path") if path is None else os.fspath(path)
    if place is None or "replacewhere" in options:
        return
    try:
        refuse_dynamic_overwrite(writer._spark, place)  # noqa: SLF001 -- as above
    except InvalidRequest as error:
        raise to_spark_error(error) from None
    except ArrowlogError:  # the write reports it, with the options of the store
        return


# Tables of the catalog.


def _table(original: Callable[..., Any], self: Any, tableName: str) -> Any:  # noqa: N803 -- Spark's
    """Read a table of the catalog, or one that is named by its path: ours at its location."""
    location = _location(_session(self), tableName, by_path=True)
    return original(self, tableName) if location is None else self.format(_FORMAT).load(location)


def _save_as_table(
    original: Callable[..., Any],
    self: Any,
    name: str,
    format: str | None = None,  # noqa: A002 -- Spark's
    mode: str | None = None,
    partitionBy: Any = None,  # noqa: N803 -- Spark's
    **options: Any,
) -> None:
    """Write a table of the catalog; one that is not there yet is created."""
    if format is not None:
        self.format(format)
    if not _is_ours(self):
        original(self, name, mode=mode, partitionBy=partitionBy, **options)
        return
    self.mode(mode).options(**options)
    if partitionBy is not None:
        self.partitionBy(partitionBy)
    spark = _session(self)
    session = SqlSession(spark)
    if spark.catalog.tableExists(name):
        location = table_location(spark, name)
        if location is None:
            original(self, name)  # Spark decides
            return
        create_mode = CREATE_MODES.get(_mode(self))
        if create_mode is None:
            self.save(location)
        elif create_mode != "ignore":
            raise to_spark_error(TableExists(f"Spark's catalog has a table {name} already."))
        return
    path = {key.lower(): value for key, value in _writer_options(self).items()}.get("path")
    location = session.declare(name, _frame(self).schema, path)
    if not hasattr(self, "_jwrite"):  # Spark Connect refuses both the option and the argument
        given = self._write.options
        self._write.options = {key: given[key] for key in given if key.lower() != "path"}
    try:
        self.mode("errorifexists").save(location)
    except Exception:
        session.spark_sql(f"DROP TABLE IF EXISTS {name}")
        raise


def _insert_into(
    original: Callable[..., Any],
    self: Any,
    tableName: str,  # noqa: N803 -- Spark's
    overwrite: bool | None = None,  # noqa: FBT001 -- Spark's
) -> None:
    """Insert rows into a table of the catalog, by the position of columns."""
    if _location(_session(self), tableName) is None:
        original(self, tableName, overwrite)
        return
    session = SqlSession(_session(self))
    replaces = _mode(self) == "overwrite" if overwrite is None else overwrite
    verb = "OVERWRITE" if replaces else "INTO"
    text = f"INSERT {verb} {tableName} TABLE {{rows}}"
    try:
        session.execute(text, rows=_frame(self))
    except ArrowlogError as error:
        raise to_spark_error(error) from None


def _writer_v2(original: Callable[..., Any], self: Any, df: Any, table: str) -> None:
    """Remember the name of the table as Spark Connect does."""
    original(self, df, table)
    self._table_name = table


def _replace_table(original: Callable[..., Any], self: Any) -> None:
    """Refuse to replace a table of ours: Spark would drop it first."""
    try:
        refuse_replacement(_location(self._spark, self._table_name))
    except InvalidRequest as error:
        raise to_spark_error(error) from None
    original(self)


def _location(spark: Any, name: str, *, by_path: bool = False) -> str | None:
    """Return the location of a table of ours; None for every other table."""
    try:
        return (readable_location if by_path else table_location)(spark, name)
    except Exception:  # noqa: BLE001 -- a catalog that answers otherwise: Spark decides
        return None


def _session(self: Any) -> Any:
    """Return the session of a reader or writer."""
    return self._spark if hasattr(self, "_spark") else self._client


def _frame(writer: Any) -> DataFrame:
    """Return the rows of a writer."""
    rows: Any = writer._df  # noqa: SLF001 -- as above
    if not hasattr(writer, "_jwrite"):  # of Spark Connect: a plan
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

        rows = ConnectFrame(rows, writer._spark)  # noqa: SLF001 -- as above
    frame: DataFrame = rows
    return frame


def _mode(writer: Any) -> str:
    """Return the save mode of a writer in lower case."""
    if hasattr(writer, "_jwrite"):
        return str(writer._jwrite.curmode().name()).lower()  # noqa: SLF001 -- as above
    return (writer._write.mode or "error").lower()  # noqa: SLF001 -- as above


def _writer_options(writer: Any) -> dict[str, Any]:
    if hasattr(writer, "_jwrite"):
        return _java_options(writer._spark, writer._jwrite.extraOptions())  # noqa: SLF001 -- as above
    return dict(writer._write.options)  # noqa: SLF001 -- as above


def _stream(
    original: Callable[..., Any],
    self: Any,
    path: Any = None,
    format: str | None = None,  # noqa: A002 -- Spark's
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Load or start a stream with the settings of the session as options."""
    if format is not None:
        self.format(format)
    if not getattr(self, _MARK, False):
        return original(self, path, None, *args, **kwargs)
    with own_errors():
        return original(_with_session_settings(self), _plain_path(path), None, *args, **kwargs)


_HOOKS: dict[tuple[bool, str], Callable[..., Any]] = {
    (False, "load"): _load,
    (False, "save"): _save,
    (False, "table"): _table,
    (False, "saveAsTable"): _save_as_table,
    (False, "insertInto"): _insert_into,
    (False, "__init__"): _writer_v2,
    (False, "replace"): _replace_table,
    (False, "createOrReplace"): _replace_table,
    (True, "load"): _stream,
    (True, "start"): _stream,
}


def _is_ours(self: Any) -> bool:
    """Return whether a reader or writer of rows has one of our formats."""
    if hasattr(self, _MARK):
        return bool(getattr(self, _MARK))
    for name in ("_jreader", "_jwrite"):
        if hasattr(self, name):  # the format may be the session's default
            try:
                return str(getattr(self, name).source()).lower() in _NAMES
            except Exception:  # noqa: BLE001 -- a Spark that does not show it
                return False
    return False


def _plain_path(path: Any) -> Any:
    """Return a path as text, as Spark takes it; anything else as it is."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _with_session_settings(self: Any) -> Any:
    """Add the settings of the session to a reader or writer, as options that others override."""
    sessions = [getattr(self, name, None) for name in ("_spark", "_client", "_session")]
    for spark in sessions:
        if hasattr(spark, "conf"):
            for key, value in session_options(spark).items():
                self = self.option(key, value)
            break
    return self


def _java_options(spark: Any, options: Any) -> dict[str, str]:
    converters = spark._jvm.scala.jdk.javaapi.CollectionConverters  # noqa: SLF001 -- as above
    return dict(converters.asJava(options.originalMap()))


WHEN_USED.append(install_hooks)

"""Tables in SQL: by path, in the session catalog, at a version.

Spark cannot be taught this from Python, so statements are completed before Spark executes them:

- ``arrowlog.`path` `` becomes a DataFrame that Spark's `sql` accepts as a table.
- Spark does not pass the location of a table in its catalog to a Python data source. It does pass
  the options that a statement gives for it, so the location is added to these.
- Spark's catalog keeps the columns that a table had when it was created there. They are brought up
  to date before a statement that names the table.
- `DESCRIBE HISTORY`, `ALTER TABLE … ADD COLUMNS`, and writes to a table that is named by its path,
  are executed here.

Every other statement goes to Spark unchanged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowlog.errors import ArrowlogError, InvalidRequest, TableNotFound
from arrowlog.spark.catalog import (
    catalog_has,
    refuse_replacement,
    spark_sql,
    table_location,
)
from arrowlog.spark.fit import cast_for_insert
from arrowlog.spark.read import open_table
from arrowlog.spark.settings import FORMAT_NAMES, session_options
from arrowlog.spark.sql_text import SqlText, TableReference, quote_name, quote_text
from arrowlog.spark.types import to_spark_schema
from arrowlog.spark.versions import frame_from_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrowlog.spark.sql_text import AlterText, CreateText, InsertText, TemporaryViewText

LOGGER = logging.getLogger("arrowlog.spark")
_NAMES = tuple(name.lower() for name in FORMAT_NAMES)


class SqlSession:
    """A session whose `sql` also knows our tables."""

    def __init__(self, spark: SparkSession) -> None:
        """`spark.sql` may have been replaced by `enable`."""
        self._spark = spark
        self._versions: dict[str, int] = {}  # by location: what this statement reads
        self._up_to_date: set[str] = set()  # names of tables of the catalog, in this statement
        self.spark_sql = spark_sql(spark)

    def execute(self, text: str, *args: Any, **kwargs: Any) -> DataFrame:
        """Execute a statement. `args` and `kwargs` are those of `SparkSession.sql`."""
        statement = SqlText(text)
        replaced = statement.replaced_table()
        if replaced is not None:
            refuse_replacement(table_location(self._spark, replaced[0].text))
            if statement.uses(_NAMES) and not catalog_has(self._spark, replaced[0].text):
                statement = SqlText(replaced[1])
        history = statement.history()
        if history is not None:
            frame = self._history(*history)
            if frame is not None:
                return frame
        statement = self._insert_first(statement)
        insert = statement.insert()
        if insert is not None and insert.target.path is not None:
            return self._insert(insert, *args, **kwargs)
        alter = statement.alter()
        if alter is not None:
            location = self._locate(alter.target)
            if location is not None:
                return self._alter(alter, location)
        create = statement.create(_NAMES)
        if create is not None:
            return self._create(create, *args, **kwargs)
        view = statement.temporary_view()
        if view is not None and any(each.path for each in SqlText(view.query).references()):
            return self._view(self.execute(view.query, *args, **kwargs), view)
        return self._complete(statement, *args, **kwargs)

    def _insert_first(self, statement: SqlText) -> SqlText:
        """Return `WITH … INSERT` into a table of ours as the equivalent `INSERT … WITH`."""
        text = statement.insert_first()
        if text is None:
            return statement
        moved = SqlText(text)
        insert = moved.insert()
        return moved if insert is not None and self._locate(insert.target) else statement

    def _locate_entry(self, name: str) -> str | None:
        """As `table_location`; the table's columns in the catalog become those of its log."""
        location = table_location(self._spark, name)
        if location is not None and name not in self._up_to_date:
            self._up_to_date.add(name)
            self._update_columns(name, location)
        return location

    def _update_columns(self, name: str, location: str) -> None:
        """Give a table of the catalog the columns that its log has now.

        A catalog that refuses it keeps its columns: the table can still be read by them.
        """
        try:
            schema = open_table(self._spark, location).metadata.schema_string
            wanted = {item.name: _ddl(item.dataType) for item in to_spark_schema(schema)}
        except ArrowlogError:  # reading the table raises the error, or finds the table
            return
        try:
            known = {item.name: _ddl(item.dataType) for item in self._declared_schema(name)}
            gone = [quote_name(column) for column in known if known[column] != wanted.get(column)]
            new = [
                f"{quote_name(column)} {kind}"
                for column, kind in wanted.items()
                if known.get(column) != kind
            ]
            if gone:
                self.spark_sql(f"ALTER TABLE {name} DROP COLUMNS ({', '.join(gone)})")
            if new:
                self.spark_sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(new)})")
        except Exception as error:  # noqa: BLE001 -- catalogs refuse it in many ways
            reason = str(error).strip().split("\n", 1)[0]
            LOGGER.warning("The catalog keeps old columns of the table %s: %s", name, reason)

    def _complete(self, statement: SqlText, *args: Any, **kwargs: Any) -> DataFrame:
        """Complete the tables of a statement and have Spark execute it."""
        replaced: list[tuple[TableReference, str, bool]] = []
        frames: dict[str, DataFrame] = {}
        for reference in self._tables(statement):
            found = self._replacement(reference, f"arrowlog_table_{len(frames)}")
            if found is not None:
                text, frame = found
                if reference.is_query:
                    text = f"SELECT * FROM {text}"  # noqa: S608 -- a table of the statement
                replaced.append((reference, text, frame is not None))
                frames |= {} if frame is None else {f"arrowlog_table_{len(frames)}": frame}
        insert = statement.insert()
        if insert is not None:
            target_text = self._target_text(insert)
            if target_text is not None:
                replaced.insert(0, (insert.target, target_text, False))
        if not replaced:
            return self.spark_sql(statement.text, *args, **kwargs)
        if frames and statement.makes_view():  # Spark drops names of DataFrames after the statement
            raise InvalidRequest(
                "A view of a table that is named by its path must be temporary, without a comment"
                " and without properties.",
                next="Use CREATE TEMPORARY VIEW name AS query, or a table of the catalog.",
            )
        return self._execute_pieces(_pieces(statement.text, replaced), frames, *args, **kwargs)

    def _execute_pieces(
        self,
        pieces: list[tuple[str, bool]],
        frames: dict[str, DataFrame],
        *args: Any,
        **kwargs: Any,
    ) -> DataFrame:
        """Execute a text in pieces. Those that are marked name one of `frames`."""
        if frames and not kwargs:  # braces have a meaning only with named DataFrames
            pieces = [(text if raw else _escape_braces(text), raw) for text, raw in pieces]
        return self.spark_sql("".join(text for text, _ in pieces), *args, **kwargs, **frames)

    def _tables(self, statement: SqlText) -> list[TableReference]:
        """Return the tables of a statement that may have to be replaced."""
        references = statement.references()
        names = statement.common_table_names() if references else set()
        found = [
            each for each in references if len(each.parts) > 1 or each.parts[0].lower() not in names
        ]
        if not statement.describes_table():
            return found
        for each in found:
            if each.path is None:
                self._locate_entry(each.text)  # Spark describes what its catalog has
        return [each for each in found if each.path is not None]

    def _replacement(
        self, reference: TableReference, placeholder: str
    ) -> tuple[str, DataFrame | None] | None:
        """Return the text in place of a table, and the DataFrame that it names; None to keep it."""
        path = reference.path
        if path is not None and ("/" in path or not catalog_has(self._spark, reference.text)):
            reader = self._spark.read.format(FORMAT_NAMES[0])
            for name, value in self._version(reference, path).items():
                reader = reader.option(name, value)
            return f"{{{placeholder}}}", reader.load(path)
        location = self._locate_entry(reference.text)
        if location is None:
            return None
        options = {"path": location, **self._version(reference, location)}
        return self._with_options(reference, options), None

    def _target_text(self, insert: InsertText) -> str | None:
        """Return the text in place of a catalog table that rows are inserted into."""
        location = self._locate_entry(insert.target.text)
        if location is None:
            return None
        options = {"path": location}
        if insert.overwrite:
            refuse_dynamic_overwrite(self._spark, location)
        if insert.overwrite and location in self._versions:
            options["readVersion"] = str(self._versions[location])
        return self._with_options(insert.target, options)

    def _with_options(self, reference: TableReference, options: dict[str, str]) -> str:
        options = {**options, **session_options(self._spark)}
        listed = ", ".join(
            f"{quote_text(key)} = {quote_text(value)}" for key, value in options.items()
        )
        return f"{reference.text} WITH ({listed})"

    def _version(self, reference: TableReference, location: str) -> dict[str, str]:
        """Return the option with the version to read: the same wherever a statement reads a table.

        A client of Spark Connect may have no access to the log. Then the server chooses the
        version, each time it executes the statement.
        """
        if reference.travels:
            return self._time_travel(reference)
        if location not in self._versions:
            try:
                self._versions[location] = open_table(self._spark, location).version
            except ArrowlogError:  # reading it raises the error, or finds the table
                return {}
        return {"readVersion": str(self._versions[location])}

    def _time_travel(self, reference: TableReference) -> dict[str, str]:
        if reference.version is not None:
            return {"readVersion": reference.version.strip("'\"")}
        if reference.timestamp is None:
            return {}
        query = f"SELECT unix_millis(CAST({reference.timestamp} AS TIMESTAMP)) AS millis"
        millis = self.spark_sql(query).collect()[0]["millis"]
        if millis is None:
            raise InvalidRequest(f"TIMESTAMP AS OF {reference.timestamp} is null.")
        return {"readTimestamp": str(millis)}

    def _locate(self, target: TableReference | str) -> str | None:
        if isinstance(target, str):
            return target
        return target.path or table_location(self._spark, target.text)

    def _history(self, target: TableReference | str, limit: int | None) -> DataFrame | None:
        """Return the history of a table, latest version first; None if it is not ours."""
        location = self._locate(target)
        if location is None:
            return None
        table: Any = open_table(self._spark, location)
        history: pa.Table = table.history()
        return to_frame(self._spark, history if limit is None else history.slice(0, limit))

    def _insert(self, insert: InsertText, *args: Any, **kwargs: Any) -> DataFrame:
        """Insert the rows of a query into a table that is named by its path."""
        path = insert.target.path
        assert path is not None
        rows = self.execute(insert.query, *args, **kwargs)
        table = self._spark.read.format(FORMAT_NAMES[0]).load(path)
        rows = cast_for_insert(rows, table.schema, insert.columns, by_name=insert.by_name)
        if insert.overwrite:
            refuse_dynamic_overwrite(self._spark, path)
        mode = "overwrite" if insert.overwrite else "append"
        writer = rows.write.format(FORMAT_NAMES[0]).mode(mode)
        if insert.overwrite and path in self._versions:
            writer = writer.option("readVersion", self._versions[path])
        writer.save(path)
        return self._nothing()

    def _alter(self, alter: AlterText, location: str) -> DataFrame:
        """Add columns to a table. Raises `InvalidRequest` for other changes of columns."""
        from pyspark.sql.types import StructType, _parse_datatype_string

        if alter.added is None:
            raise InvalidRequest(
                "Columns can be added to a table; they cannot be dropped, renamed or changed.",
                next="Write the rows into a new table with the columns that you need.",
            )
        columns = _parse_datatype_string(alter.added)
        if not isinstance(columns, StructType):
            raise InvalidRequest(f"{alter.added!r} is not a list of columns with types.")
        open_table(self._spark, location).add_columns(columns)
        if alter.target.path is None:
            self._update_columns(alter.target.text, location)
        return self._nothing()

    def _view(self, frame: DataFrame, view: TemporaryViewText) -> DataFrame:
        """Create a temporary view of a DataFrame, which stays at its version, or cache it."""
        prefix = "createOrReplace" if view.replaces else "create"
        if view.columns:
            frame = frame.toDF(*view.columns)
        create = getattr(frame, f"{prefix}{'Global' if view.is_global else ''}TempView")
        create(quote_name(view.name))
        if view.cache is not None:
            try:
                return self.spark_sql(view.cache)
            except Exception:
                self._spark.catalog.dropTempView(view.name)
                raise
        return self._nothing()

    def declare(self, name: str, columns: StructType, location: str | None) -> str:
        """Create an entry of the catalog without a log; return its location."""
        place = "" if location is None else f" LOCATION {quote_text(location)}"
        self.spark_sql(
            f"CREATE TABLE {name} ({_column_list(columns)}) USING {FORMAT_NAMES[0]}{place}"
        )
        found = table_location(self._spark, name)
        if found is None:
            raise InvalidRequest(f"Spark's catalog has no location for {name}.")
        return found

    def _create(self, create: CreateText, *args: Any, **kwargs: Any) -> DataFrame:
        """Create a table in the catalog, and its log if there is none at the location."""
        if create.if_not_exists and catalog_has(self._spark, create.name):
            return self._nothing()
        rows = None if create.query is None else self.execute(create.query, *args, **kwargs)
        header = create.header
        if rows is not None and create.schema_position is not None:
            at = create.schema_position
            header = f"{header[:at]} ({_column_list(rows.schema)}){header[at:]}"
        self.spark_sql(header)
        try:
            self._create_log(create, rows)
        except Exception:
            self.spark_sql(f"DROP TABLE IF EXISTS {create.name}")
            raise
        return self._nothing()

    def _create_log(self, create: CreateText, rows: DataFrame | None) -> None:
        location = table_location(self._spark, create.name)
        if location is None:
            raise InvalidRequest(f"Spark's catalog has no location for {create.name}.")
        if rows is None and create.schema_position is not None:
            return  # Spark has read the schema from the log
        empty = rows is None
        if rows is None:
            rows = self._spark.createDataFrame([], self._declared_schema(create.name))
        writer = rows.write.format(FORMAT_NAMES[0]).mode("ignore" if empty else "errorifexists")
        names = create.partition_columns
        (writer.partitionBy(*names) if names else writer).save(location)

    def _declared_schema(self, name: str) -> StructType:
        """Return the columns of a table in the catalog. Spark analyzes a query, and runs none."""
        query = f"SELECT * FROM {name}"  # noqa: S608 -- a name in a statement of the user
        return self.spark_sql(query).schema

    def _nothing(self) -> DataFrame:
        from pyspark.sql.types import StructType

        return self._spark.createDataFrame([], StructType([]))


def refuse_dynamic_overwrite(spark: SparkSession, location: str) -> None:
    """Raise `InvalidRequest` if the session asks to replace only the partitions that have rows.

    An overwrite replaces the whole table, as it also does in Spark if nothing is partitioned.
    """
    mode = spark.conf.get("spark.sql.sources.partitionOverwriteMode") or ""
    if mode.upper() != "DYNAMIC":
        return
    try:
        is_partitioned = bool(open_table(spark, location).partition_columns)
    except TableNotFound:
        return
    if is_partitioned:
        raise InvalidRequest(
            "An overwrite replaces the whole table, but this session asks for dynamic partition"
            " overwrite.",
            next="Set spark.sql.sources.partitionOverwriteMode to STATIC, or say what to replace:"
            " replace_where of arrowlog.spark.write, or the option replaceWhere.",
        )


def to_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Convert rows to a DataFrame, casting types that Spark does not accept from Arrow."""
    fields = [pa.field(item.name, spark_type(item.type), item.nullable) for item in rows.schema]
    return frame_from_arrow(spark, rows.cast(pa.schema(fields)))


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark accepts in place of an Arrow type."""
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string()
    return kind


def _column_list(columns: StructType) -> str:
    return ", ".join(f"{quote_name(item.name)} {_ddl(item.dataType)}" for item in columns)


def _ddl(kind: Any) -> str:
    """Return a type as SQL text; Spark's own text does not quote the names of fields."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        fields = (f"{quote_name(item.name)}: {_ddl(item.dataType)}" for item in kind)
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return str(kind.simpleString())


def _pieces(text: str, replaced: list[tuple[TableReference, str, bool]]) -> list[tuple[str, bool]]:
    """Return a text with tables replaced, in pieces; those that name a DataFrame are marked."""
    pieces = []
    end = 0
    for reference, new_text, is_frame in replaced:  # in the order of the text
        pieces += [(text[end : reference.start], False), (new_text, is_frame)]
        end = reference.stop
    return [*pieces, (text[end:], False)]


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")

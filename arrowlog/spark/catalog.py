"""Tables of ours in the catalog of a Spark session: where they are, and that none is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.local import is_connect
from arrowlog.spark.settings import FORMAT_NAMES
from arrowlog.spark.sql_text import SqlText, quote_name, quote_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

_NAMES = tuple(name.lower() for name in FORMAT_NAMES)


def spark_sql(spark: SparkSession) -> Callable[..., DataFrame]:
    """Return the `sql` method of Spark itself, which `enable` may have replaced."""
    wrapped: Callable[..., DataFrame] = getattr(spark.sql, "arrowlog_wraps", spark.sql)
    return wrapped


def catalog_has(spark: SparkSession, name: str) -> bool:
    """Return whether Spark's catalog has a table of this name."""
    return bool(spark.catalog.tableExists(name))


def table_location(spark: SparkSession, name: str) -> str | None:
    """Return the location of a table of the session catalog; None unless its format is ours.

    `name` is SQL text: `events` or ``db.`events` ``.
    """
    from pyspark.errors import PySparkException

    try:
        find = _shown_entry if is_connect(spark) else _catalog_entry
        provider, location = find(spark, name)
    except PySparkException:  # no such table: Spark reports it
        return None
    if provider.lower() not in _NAMES:
        return None
    # A name without a catalog is one of the current catalog, which may be another.
    is_current = name.count(".") > 1 or spark.catalog.currentCatalog() == "spark_catalog"
    return location if is_current else None


def readable_location(spark: SparkSession, name: str) -> str | None:
    """As `table_location`; also the path in a name such as ``arrowlog.`/data/events` ``."""
    references = SqlText(f"FROM {name}").references()
    if len(references) == 1 and references[0].text == name.strip():
        path = references[0].path
        if path is not None and ("/" in path or not catalog_has(spark, name)):
            return path
    return table_location(spark, name)


def _shown_entry(spark: SparkSession, name: str) -> tuple[str, str]:
    """Return provider and location of a table as a statement shows them; empty if none."""
    references = SqlText(f"FROM {name}").references()
    parts = references[0].parts if references else ()
    if not parts or len(parts) > 3 or (len(parts) == 3 and parts[0].lower() != "spark_catalog"):
        return "", ""
    where = f"IN {quote_name(parts[-2])} " if len(parts) > 1 else ""
    rows = spark_sql(spark)(f"SHOW TABLE EXTENDED {where}LIKE {quote_text(parts[-1])}").collect()
    rows = [row for row in rows if row["tableName"].lower() == parts[-1].lower()]
    if len(rows) != 1 or rows[0]["isTemporary"]:
        return "", ""
    lines = rows[0]["information"].split("\n")
    titles = ("Provider: ", "Location: ")
    found = [
        next((line.removeprefix(title) for line in lines if line.startswith(title)), "")
        for title in titles
    ]
    return found[0], found[1]


def _catalog_entry(spark: SparkSession, name: str) -> tuple[str, str]:
    """As `_shown_entry`, of a classic session: without executing a statement."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    java: Any = spark
    state, jvm = java._jsparkSession.sessionState(), java._jvm  # noqa: SLF001 -- not public
    try:
        parts = state.sqlParser().parseMultipartIdentifier(name)
        names = [parts.apply(number) for number in range(parts.size())]
        if len(names) == 3 and names[0].lower() == "spark_catalog":
            del names[0]  # the catalog of the session does not name itself
        if len(names) > 2:
            return "", ""
        quoted = ".".join(quote_name(each) for each in names)
        identifier = state.sqlParser().parseTableIdentifier(quoted)
        catalog = state.catalog()
        if catalog.isTempView(identifier) or not catalog.tableExists(identifier):
            return "", ""
        entry = catalog.getTableMetadata(identifier)
        if entry.provider().isEmpty():
            return "", ""
        location = jvm.org.apache.hadoop.fs.Path(entry.location()).toString()
    except Py4JJavaError:
        return "", ""
    return entry.provider().get(), location


def refuse_replacement(location: str | None) -> None:
    """Raise `InvalidRequest` if there is a table of ours, which is about to be replaced.

    Spark drops a table before it writes the new rows, and a managed table loses its files.
    """
    if location is not None:
        raise InvalidRequest(
            "A table cannot be replaced: Spark would drop it, with its rows and its history,"
            " before the new rows are written.",
            next="Use INSERT OVERWRITE to replace its rows, or DROP TABLE before CREATE TABLE.",
        )

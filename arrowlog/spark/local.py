"""A local Spark session that needs nothing but Python."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_LOGGING = (Path(__file__).parent / "log4j2.properties").as_uri()
_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(app: str = "arrowlog", **config: object) -> SparkSession:
    """A local Spark session, on a Java that is there or that of `pip install 'arrowlog[java]'`.

    `config` are Spark's own settings: `session(**{"spark.driver.memory": "4g"})`. A session that
    runs already is given again, with these settings where Spark can still change them.
    """
    for name in config:
        if not name.startswith("spark."):
            raise InvalidRequest(
                f"{name!r} is no setting of Spark.",
                next='Its settings begin with "spark.", as in spark.driver.memory.',
            )
    pyspark_sql()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkContext._active_spark_context is not None  # noqa: SLF001 -- no public way
    builder = SparkSession.builder.appName(app)
    for name, value in {**({} if running else _DEFAULTS), **config}.items():
        builder = builder.config(name, _text(value))
    if SparkContext._gateway is not None:  # noqa: SLF001 -- a Java runs already
        return builder.getOrCreate()
    # Spark would take whatever `python3` is for its workers, with other packages, or none.
    preset = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with _environment({**preset, **os.environ, "JAVA_HOME": java_home()}):
        return builder.getOrCreate()


def pyspark_sql() -> Any:
    """The module `pyspark.sql`, or what to install."""
    try:
        import pyspark.sql
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise InvalidRequest(
            "This needs pyspark, which is not installed.",
            next="Install it with: pip install 'arrowlog[spark]'",
        ) from None
    return pyspark.sql


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that Spark's launcher reads; as they were before once it runs."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def check_sendable(options: Mapping[str, Any]) -> None:
    """Refuse storage options that cannot be pickled for a worker."""
    try:
        pickle.dumps(options)
    except Exception as error:  # noqa: BLE001 -- whatever an object refuses with
        raise InvalidRequest(
            f"A storage option cannot be sent to Spark's workers: {type(error).__name__}.",
            next="Give plain values, such as keys and endpoints, instead of objects.",
        ) from None

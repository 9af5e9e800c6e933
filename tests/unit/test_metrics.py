"""Metrics: what is counted and displayed, with threads, forks and pickling."""

import json
import os
import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.logged import SECONDS_MAX, append, create

import arrowlog
from arrowlog.metering import INSTRUMENTS, Histogram, Metrics, child_metrics, metrics


@pytest.fixture(autouse=True)
def from_zero():
    arrowlog.metrics.reset()


def test_table_handle_counts_its_operations(tmp_path):
    table = create(tmp_path / "t", **{"logRetention.duration": "0s"})
    results = [append(table, f"f{number}") for number in range(3)]
    done = table.checkpoint()
    cleaned = table.cleanup()
    found = table.metrics().to_dict()
    assert found["opens"] == 1
    assert (found["commits"], found["commit_attempts"], found["commit_retries"]) == (3, 3, 0)
    assert found["commit_bytes"]["sum"] == sum(result.size_bytes for result in results)
    assert found["commit_ms"]["count"] == 3
    assert found["checkpoints"] == {"call": 1}
    assert found["checkpoint_bytes"]["max"] == done.size_bytes
    assert found["checkpoint_ratio"]["max"] == done.compression_ratio
    assert found["checkpoint_ms"]["call"]["sum"] == pytest.approx(done.milliseconds, abs=0.01)
    assert (found["cleanups"], found["cleanup_files"]) == (1, cleaned.num_files)
    assert found["cleanup_bytes"] == cleaned.bytes_freed
    assert found["loads"] == {"commits": 1}
    assert found["store_requests"]["local"]["write"] >= 5
    assert found["store_bytes_written"]["local"] >= done.size_bytes
    assert json.loads(json.dumps(found)) == found
    assert set(found) == set(INSTRUMENTS)


def test_process_metrics_include_all_handles(tmp_path):
    one, two = create(tmp_path / "1"), create(tmp_path / "2")
    append(one)
    append(two)
    append(two, "b")
    assert (one.metrics()["commits"], two.metrics()["commits"]) == (1, 2)
    assert arrowlog.metrics["commits"] == 3
    del two
    assert arrowlog.metrics["commits"] == 3


def test_conflicts_races_and_duplicates_are_counted(tmp_path):
    table = create(tmp_path / "t")
    append(table)
    other = arrowlog.Table(tmp_path / "t")
    other.snapshot()
    table.remove(["a"])
    with pytest.raises(arrowlog.ConcurrentRemove):
        other.remove(["a"])
    assert other.metrics()["conflicts"] == {"ConcurrentRemove": 1}
    add = arrowlog.add_file("b", {"day": None}, size=1, modification_time=0)
    for _ in range(2):
        table.append([add], txn=("app", 1))
    assert table.metrics()["duplicates"] == 1
    assert table.metrics()["commits"] == 3


def test_caches_and_refreshes_are_counted(tmp_path):
    table = create(tmp_path / "t")
    for number in range(3):
        append(table, f"f{number}")
    reader = arrowlog.Table(tmp_path / "t")
    for _ in range(2):
        for version in range(3):
            reader.snapshot(version=version)
    reader.snapshot()
    reader.snapshot(max_staleness=60)
    found = reader.metrics()
    assert found["cache_requests"] == {"state": 2, "versions": 6}
    assert found["cache_hits"] == {"state": 1, "versions": 3}
    assert found["refreshes"] == 1
    assert found["load_ms"]["commits"]["count"] == 4


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_requests_and_bytes_are_counted_by_store(tmp_path, kind):
    root = tmp_path / "t" if kind == "local" else f"memory://{tmp_path.name}"
    table = create(root)
    result = append(table)
    (store,) = table.metrics()["store_requests"]
    assert store == kind
    assert table.metrics()["store_bytes_written"][kind] == result.size_bytes
    reader = arrowlog.Table(root)
    report = reader.snapshot().report
    assert reader.metrics()["store_bytes_read"][kind] >= report.bytes_read
    assert set(reader.metrics()["store_requests"][kind]) <= {"read", "list", "stat"}


def test_reset_starts_again_at_zero(tmp_path):
    table = create(tmp_path / "t")
    append(table)
    table.metrics().reset()
    assert table.metrics().to_dict() == Metrics().to_dict()
    assert table.metrics().to_arrow().num_rows == 0
    append(table, "b")
    assert table.metrics()["commits"] == table.metrics()["commit_ms"]["count"] == 1
    assert arrowlog.metrics["commits"] == 2  # of the process, which was not reset


def test_dict_arrow_and_text_views_agree(tmp_path):
    table = create(tmp_path / "t")
    append(table)
    table.checkpoint()
    rows = table.metrics().to_arrow().to_pylist()
    found = table.metrics().to_dict()
    for row in rows:
        value = found[row["metric"]]
        for _, label in row["labels"]:
            value = value[label]
        if row["kind"] == "counter":
            assert value == row["count"]
        else:
            assert {name: row[name] for name in value} == value
            assert sum(bucket["count"] for bucket in row["buckets"]) == row["count"]
    assert {"checkpoints", "commits", "store_requests"} <= {row["metric"] for row in rows}


def test_metrics_repr(tmp_path):
    table = create(tmp_path / "t")
    append(table)
    text = repr(table.metrics())
    assert text.startswith("Metrics of this table in the last ")
    assert "\ncommits " in text
    assert "<td" in table.metrics()._repr_html_()
    assert repr(arrowlog.metrics).startswith("Metrics of this process in the last ")
    assert "nothing was counted" in repr(Metrics())


def test_per_hour_frequency_of_checkpoints(tmp_path):
    table = create(tmp_path / "t")
    append(table)
    table.checkpoint()
    seconds = table.metrics().seconds
    assert 0 < table.metrics().per_hour("checkpoints") <= 3600 / seconds
    assert table.metrics().per_hour("vacuums") == 0


def test_quantiles_and_buckets_of_a_histogram():
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in [0.5] * 90 + [1.5] * 5 + [9.0] * 5:
        histogram.add(value)
    found = histogram.to_dict()
    assert (found["min"], found["max"], found["count"]) == (0.5, 9.0, 100)
    assert (found["p50"], found["p95"]) == (1.0, 2.0)
    assert found["buckets"] == [
        {"le": 1.0, "count": 90},
        {"le": 2.0, "count": 5},
        {"le": None, "count": 5},
    ]


def test_no_count_is_lost_between_threads():
    registry = child_metrics()

    def count():
        for _ in range(2000):
            registry.add("commits")
            registry.observe("commit_ms", 1.0)
            registry.count_request("local", "read", received=3)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry["commits"] == registry["commit_ms"]["count"] == 16_000
    assert registry["store_bytes_read"] == {"local": 48_000}
    assert metrics["commits"] == 16_000


@pytest.mark.fork
def test_forked_child_starts_at_zero_and_is_not_blocked():
    registry = child_metrics()
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            registry.add("commits")

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                registry.add("opens")
                counted = (registry["commits"], registry["opens"], metrics["opens"])
                os._exit(0 if counted == (0, 1, 1) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join(SECONDS_MAX)
    assert registry["commits"] > 0
    assert registry["opens"] == 0


def test_results_and_registries_can_be_pickled(tmp_path):
    table = create(tmp_path / "t")
    result = append(table)
    for value in (result, table.checkpoint(), table.cleanup(), table.compact()):
        again = pickle.loads(pickle.dumps(value))
        assert again.milliseconds == value.milliseconds > 0
    assert pickle.loads(pickle.dumps(arrowlog.metrics)) is arrowlog.metrics
    child = pickle.loads(pickle.dumps(table.metrics()))
    assert child["commits"] == 0
    child.add("commits")
    assert (child["commits"], arrowlog.metrics["commits"]) == (1, 2)
    store = pickle.loads(pickle.dumps(table._store))
    assert store.metrics["commits"] == 0


def exported(reader):
    """Return the exported points by name and labels."""
    data = reader.get_metrics_data()
    points = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            assert scope.scope.name == "arrowlog"
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    points[metric.name, *sorted(dict(point.attributes).items())] = point
    return points


def test_all_metrics_are_exported_to_opentelemetry(tmp_path):
    reader = InMemoryMetricReader()
    registry = child_metrics()
    stop = registry.export_to_opentelemetry(MeterProvider([reader]))
    for name, item in INSTRUMENTS.items():
        labels = [f"{label}-x" for label in item.labels]
        if item.kind == "counter":
            registry.add(name, 5, *labels)
        else:
            registry.observe(name, 2.5, *labels)
            registry.observe(name, 7.5, *labels)
    points = exported(reader)
    for name, item in INSTRUMENTS.items():
        point = points[f"arrowlog.{name}", *sorted((each, f"{each}-x") for each in item.labels)]
        if item.kind == "counter":
            assert point.value == 5
        else:
            assert (point.count, point.sum) == (2, 10.0)
    registry.reset()  # exported counters continue
    registry.add("commits", 1)
    assert exported(reader)["arrowlog.commits",].value == 6
    stop()
    registry.observe("commit_ms", 1.0)
    assert exported(reader)["arrowlog.commit_ms",].count == 2


def test_table_operations_are_exported_to_opentelemetry(tmp_path):
    reader = InMemoryMetricReader()
    stop = arrowlog.metrics.export_to_opentelemetry(MeterProvider([reader]))
    table = create(tmp_path / "t")
    before = exported(reader)
    append(table)
    after = exported(reader)
    earlier = before["arrowlog.commits",].value if ("arrowlog.commits",) in before else 0
    assert after["arrowlog.commits",].value - earlier == 1
    assert after["arrowlog.commit_ms",].count == 1
    assert ("arrowlog.store_requests", ("operation", "write"), ("store", "local")) in after
    stop()


def test_opentelemetry_export_requires_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.metrics", None)
    with pytest.raises(arrowlog.InvalidRequest, match=r"arrowlog\[otel\]"):
        child_metrics().export_to_opentelemetry()


def test_every_instrument_is_counted_somewhere():
    sources = [
        path.read_text()
        for path in Path(arrowlog.__file__).parent.rglob("*.py")
        if path.name != "metering.py"
    ]
    sources.append(
        Path(arrowlog.__file__).with_name("metering.py").read_text().split("class _Sh")[1]
    )
    assert not [name for name in INSTRUMENTS if not any(f'"{name}"' in text for text in sources)]


@pytest.mark.parametrize("call", ["vacuum", "adopt", "rebuild"])
def test_every_result_has_its_duration(tmp_path, call):
    table = create(tmp_path / "t")
    table.write(pa.table({"day": pa.array([None], pa.date32()), "id": [1]}))
    if call == "vacuum":
        result = table.vacuum(dry_run=True)
    elif call == "adopt":
        (path,) = table.snapshot().files["path"].to_pylist()
        table.remove([path])
        result = table.adopt([path], partition_values={"day": None}, allow_removed=True)
    else:
        import shutil

        shutil.rmtree(f"{table.uri}/_transaction_log")
        result = arrowlog.rebuild(table.uri)
    assert result.milliseconds > 0


def test_metric_names_are_the_instruments(root):
    table = arrowlog.Table.create(root, pa.schema([("id", pa.int64())]))
    assert "commits" in table.metrics()
    assert "none" not in table.metrics()
    assert list(table.metrics()) == list(table.metrics().to_dict())

"""Delta tables on Spark without Delta's jars: the rows of the files, of mapped and deleted ones."""

import json
import random

import pytest
from support import delta_model

import arrowlog
import arrowlog.spark


def rows_of(frame):
    return sorted(json.dumps(row.asDict(recursive=True), default=str) for row in frame.collect())


@pytest.mark.parametrize(
    ("features", "native"),
    [
        ({"partitioned": True}, True),
        ({"vectors": True, "partitioned": True}, False),
        ({"mapping": "name"}, False),
        ({"mapping": "id", "vectors": True}, False),
    ],
)
def test_spark_reads_the_rows_of_a_delta_table(spark, tmp_path, features, native):
    table = delta_model.DeltaTable(str(tmp_path), random.Random(8), **features)
    table.rng.choice = lambda options: random.Random(str(options)).choice(options[:2])
    table.create()
    add = table.write_file()
    table.commit([{"add": table.write_file()}, {"add": add}])
    if table.vectors:
        gone, new = table.delete_rows(add)
        table.commit([{"remove": gone}, {"add": new}])
    table.live = delta_model.naive_state(str(tmp_path), table.version).live
    table.checkpoint("classic")
    state = delta_model.naive_state(str(tmp_path), table.version)
    names = ["id", "name", "part"]
    frame = arrowlog.spark.read(spark, str(tmp_path)).select(*names)
    expected = [{n: row[n] for n in names} for row in delta_model.naive_rows(str(tmp_path), state)]
    assert rows_of(frame) == sorted(json.dumps(row, default=str) for row in expected)
    if native:
        assert rows_of(arrowlog.spark.read(spark, str(tmp_path), native=True).select(*names))
    else:
        with pytest.raises(arrowlog.InvalidRequest, match="cannot be read by Spark's own"):
            arrowlog.spark.read(spark, str(tmp_path), native=True)


def test_unsupported_operations_on_delta_tables_raise_with_the_format(spark, tmp_path):
    root = str(tmp_path / "table")
    table = delta_model.DeltaTable(root, random.Random(8), partitioned=True)
    table.create()
    table.commit([{"add": table.write_file()}])
    snapshot = arrowlog.spark.snapshot(spark, root)
    assert snapshot.files.equals(arrowlog.Table(root).snapshot().files)
    assert arrowlog.spark.snapshot(spark, root, 0).num_files == 0
    with pytest.raises(arrowlog.InvalidRequest, match="only reads tables in the delta format"):
        arrowlog.spark.checkpoint(spark, root)
    with pytest.raises(arrowlog.InvalidRequest, match="only reads tables in the delta format"):
        arrowlog.spark.write(spark.range(3), root)
    arrowlog.spark.register(spark)
    query = spark.readStream.format("arrowlog").load(root).writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True)
    with pytest.raises(Exception, match="does not stream tables in the delta format"):
        query.start().awaitTermination()

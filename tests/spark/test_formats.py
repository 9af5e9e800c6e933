"""`spark.read.format` and `df.write.format`: settings, save modes, names and errors as Spark's."""

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

import arrowlog
from arrowlog.spark.local import to_spark_error
from arrowlog.spark.options import parse_source_options
from arrowlog.spark.settings import FORMAT_NAMES
from arrowlog.spark.target import resolve_destination

INTERVAL = "spark.indextables.checkpoint.interval"
FORMAT = "spark.indextables.checkpoint.format"


@pytest.fixture
def setting(either):
    """Sets settings of the session, and takes them back."""
    names = []

    def change(name, value):
        names.append(name)
        either.conf.set(name, value)

    yield change
    for name in names:
        either.conf.unset(name)


def rows(spark, count=6):
    return spark.range(count).selectExpr("id", "id % 3 AS p")


def ids(path):
    return sorted(arrowlog.Table(path).scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_every_format_name_reads_and_writes(either, root, name):
    rows(either).write.format(name).partitionBy("p").save(str(root))
    assert arrowlog.Table(root).snapshot().partition_columns == ("p",)
    assert either.read.format(name.upper()).load(str(root)).count() == 6
    assert either.read.load(str(root), format=name, versionAsOf=0).count() == 0
    either.sql(f"CREATE OR REPLACE TEMP VIEW named USING {name} OPTIONS (path '{root}')")
    assert either.sql("SELECT sum(id) FROM named").collect() == [(15,)]


def test_every_format_name_is_found_without_registration(spark, root):
    rows(spark).write.format("indextables").save(str(root))
    for number, name in enumerate(FORMAT_NAMES):
        view = f"found_{number}"
        session = spark.newSession()
        session.sql(f"CREATE TEMP VIEW {view} USING {name} OPTIONS (path '{root}')")
        assert session.table(view).count() == 6


def test_save_modes_match_spark(either, root):
    path = str(root)
    rows(either).write.format("arrowlog").save(path)
    for mode in (None, "error", "errorifexists", "default"):
        writer = rows(either, 3).write.format("arrowlog")
        with pytest.raises(PySparkException, match="There is a table at"):
            writer.save(path, mode=mode)
    rows(either, 3).selectExpr("'x' AS other").write.format("arrowlog").mode("ignore").save(path)
    assert ids(path) == list(range(6))
    rows(either, 3).write.format("arrowlog").mode("append").save(path)
    assert len(ids(path)) == 9
    rows(either, 2).write.format("arrowlog").mode("overwrite").save(path)
    assert ids(path) == [0, 1]
    rows(either, 3).write.format("arrowlog").mode("ignore").save(f"{path}-new")
    assert ids(f"{path}-new") == [0, 1, 2]
    with pytest.raises(PySparkException, match="replaceWhere requires mode overwrite"):
        rows(either).write.format("arrowlog").mode("append").option("replaceWhere", "p=1").save(
            path
        )


def test_other_formats_are_not_affected(either, tmp_path):
    path = str(tmp_path / "plain")
    rows(either).write.parquet(path)
    assert either.read.format("parquet").load(path).count() == 6
    assert either.read.load(path).count() == 6
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        rows(either).write.format("parquet").save(path)


@pytest.mark.parametrize("save_mode", ["errorifexists", "ignore"])
def test_save_mode_applies_to_a_concurrently_created_table(spark, root, save_mode):
    """The mode holds at the commit, not only when the write begins."""
    frame = rows(spark)
    target = resolve_destination(str(root), frame.schema, mode="append", save_mode=save_mode)
    adds = target.write(frame.toArrow().to_batches(), frame.toArrow().schema)
    arrowlog.spark.write(rows(spark, 2), root)
    if save_mode == "ignore":
        assert target.commit(adds, "append") is None
    else:
        with pytest.raises(arrowlog.TableExists):
            target.commit(adds, "append")
    assert ids(root) == [0, 1]
    assert not any((root / add.path).exists() for add in adds)


def test_session_settings_apply_immediately(either, root, setting):
    arrowlog.spark.register(either)
    path = str(root)
    rows(either).write.format("arrowlog").save(path)
    setting(INTERVAL, "often")
    with pytest.raises(PySparkException, match="cannot be 'often'"):
        either.read.format("arrowlog").load(path).count()
    with pytest.raises(PySparkException, match="cannot be 'often'"):
        rows(either).write.format("arrowlog").mode("append").save(path)
    with pytest.raises(PySparkException, match="cannot be 'often'"):
        either.readStream.format("arrowlog").load(path).schema  # noqa: B018 -- Connect is lazy
    given = either.read.format("arrowlog").option(INTERVAL, "5")
    assert given.load(path).count() == 6
    either.conf.unset(INTERVAL)
    assert either.read.format("arrowlog").load(path).count() == 6


def test_setting_precedence_is_option_session_table_default(either, root, setting):
    """An option is stronger than the session, which is stronger than the table's property."""

    def forms(name):
        log = root / name / "_transaction_log"
        names = {path.name for path in log.rglob("*") if "checkpoint" in path.name}
        return {
            "json" if name.endswith(".json") else "parquet"
            for name in names
            if name.endswith((".json", ".parquet"))
        }

    def save(name, *options):
        path = str(root / name)
        arrowlog.Table.create(
            path,
            pa.schema([("id", pa.int64()), ("p", pa.int64())]),
            properties={INTERVAL: "2", FORMAT: "json"},
        )
        for _ in range(3):
            writer = rows(either).write.format("arrowlog").mode("append")
            for key, value in options:
                writer = writer.option(key, value)
            writer.save(path)
        return forms(name)

    assert save("table") == {"json"}
    setting(FORMAT, "parquet")
    assert "parquet" in save("session")
    assert save("option", (FORMAT, "json")) == {"json"}


def test_unrelated_indextables_settings_are_ignored(either, root):
    writer = rows(either).write.format("indextables")
    writer = writer.option("spark.indextables.indexing.typemap.title", "text")
    writer.save(str(root))
    assert ids(root) == list(range(6))
    with pytest.raises(arrowlog.InvalidRequest, match=r"Did you mean.*checkpoint\.interval"):
        parse_source_options({"path": "x", "spark.indextables.checkpoint.intervall": "5"}, {})


def test_error_starts_with_the_message(either, root):
    rows(either).write.format("arrowlog").save(str(root))
    extra = either.range(1).selectExpr("id", "1 AS extra").write.format("arrowlog")
    read = either.read.format("arrowlog")
    wrong = either.read.format("arrowlog").option("wher", "id = 1")
    errors = {
        "There is no table at /nowhere/at-all": lambda: read.load("/nowhere/at-all").collect(),
        "Unknown option 'wher'. Did you mean 'where'?": lambda: wrong.load(str(root)).collect(),
        "The rows have a column 'extra'": lambda: extra.mode("append").save(str(root)),
    }
    for sentence, work in errors.items():
        with pytest.raises(PySparkException) as caught:
            work()
        text = str(caught.value)
        assert "Traceback" not in text
        first = text.split("\n", maxsplit=1)[0]
        assert sentence in first
        # What precedes it is Spark's own class of errors, and the type of ours.
        assert len(first.split(sentence)[0]) < 140


def test_worker_error_starts_with_the_message(sessions, root):
    spark = sessions["connect"]
    rows(spark).write.format("arrowlog").save(str(root))
    frame = spark.read.format("arrowlog").load(str(root))
    for path in arrowlog.Table(root).scan().paths:
        (root / path).unlink()
    with pytest.raises(PySparkException, match="the data file is missing") as caught:
        frame.collect()
    assert "Traceback" not in str(caught.value)


def test_error_of_workers_that_read_a_plan_starts_with_the_message(either, root):
    rows(either).write.format("arrowlog").save(str(root))
    frame = arrowlog.spark.read(either, root, native=False)
    for path in arrowlog.Table(root).scan().paths:
        (root / path).unlink()
    with pytest.raises(PySparkException, match="the data file is missing") as caught:
        frame.collect()
    assert "Traceback" not in str(caught.value)


def test_errors_are_arrowlog_and_spark_errors(spark):
    for kind in (arrowlog.TableNotFound, arrowlog.InvalidRequest):
        error = to_spark_error(kind("Something is wrong.", next="Mend it.", version=7))
        assert isinstance(error, kind)
        assert isinstance(error, AnalysisException)
        assert str(error) == "Something is wrong. Mend it."
        assert (error.version, error.next) == (7, "Mend it.")
        assert error.getMessage() == str(error)
        assert to_spark_error(error) is error
    with pytest.raises(arrowlog.TableNotFound):
        spark.read.format("arrowlog").load("/nowhere/at-all")
    with pytest.raises(arrowlog.TableNotFound, match=r"^There is no table at /nowhere/at-all"):
        spark.readStream.format("arrowlog").load("/nowhere/at-all")
    with pytest.raises(arrowlog.InvalidRequest, match=r"^The path is missing\."):
        spark.read.format("arrowlog").load(["/a", "/b"])
    with pytest.raises(AnalysisException, match="does not exist"):
        spark.readStream.format("parquet").load("/nowhere/at-all")


def test_clustering_is_refused(either, root):
    with pytest.raises(arrowlog.InvalidRequest, match="cannot be clustered"):
        rows(either).write.format("arrowlog").clusterBy("id").save(str(root))


def test_paths_are_objects_or_text(either, root):
    rows(either).write.format("arrowlog").save(root)
    assert either.read.format("arrowlog").load(root).count() == 6
    assert either.readStream.format("arrowlog").load(root).columns == ["id", "p"]


def test_user_schema_selects_columns(spark, root):
    rows(spark).write.format("arrowlog").save(str(root))
    some = spark.read.format("arrowlog").schema("p bigint").load(str(root))
    assert some.columns == ["p"]
    assert "FileScan parquet" in some._jdf.queryExecution().executedPlan().toString()
    assert some.count() == 6
    # Types that are not the table's are converted by the data source.
    other = spark.read.format("arrowlog").schema("id int").load(str(root))
    assert sorted(row.id for row in other.collect()) == list(range(6))
    with pytest.raises(PySparkException, match="has no column 'none'"):
        spark.read.format("arrowlog").schema("none int").load(str(root)).count()


def test_several_paths_are_refused(spark, root):
    rows(spark).write.format("arrowlog").save(str(root))
    assert spark.read.format("arrowlog").load([str(root)]).count() == 6
    with pytest.raises(PySparkException):
        spark.read.format("arrowlog").load([str(root), str(root)]).count()

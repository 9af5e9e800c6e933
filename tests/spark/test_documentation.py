"""The `python spark` blocks of the README and of the documentation run as they are shown."""

from dataclasses import replace

import pytest
from support import doc_tables
from support.doc_pages import blocks, name_of, pages, run_python

import arrowlog

RUN = [page for page in pages() if any(each.info == "python spark" for each in blocks(page))]


@pytest.fixture
def plain_session(spark):
    """The session, without what `enable` has changed afterwards."""
    yield spark
    for name in ("sql", "table"):
        spark.__dict__.pop(name, None)
    spark.catalog.dropTempView("events")


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_spark_code_blocks_run(page, plain_session, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arrowlog.spark, "session", lambda app: plain_session)
    names = doc_tables.prepare(name_of(page), request)
    if page.name == "README.md":
        doc_tables.events(names, request)
    names["arrowlog"] = arrowlog
    for block in blocks(page):
        if block.info == "python spark":
            # Spark runs in another process, whose current folder is that of the tests.
            text = block.text.replace("lake/", f"{tmp_path}/lake/")
            run_python(page, replace(block, text=text), names)

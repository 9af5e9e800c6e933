"""Tables for the pages of the documentation that use existing ones, and checks of their results."""

import os

import pyarrow as pa

from support import event_table, split_tables
from support.s3_servers import BUCKET, KEY, SECRET

GUIDES = "docs/guides"


def prepare(page, request):
    """Create the tables of a page in the current folder; return the names its blocks start with."""
    names = {"__name__": "documentation"}
    for make in TABLES.get(page, ()):
        make(names, request)
    return names


def events(_names, _request):
    """A table of five days."""
    event_table.build("lake/events")


def broken(_names, _request):
    """The same with a commit that is cut off, so that those after it are stranded."""
    event_table.build("lake/broken")
    commit = "lake/broken/_transaction_log/00000000000000000004.json"
    os.truncate(commit, os.path.getsize(commit) // 2)


def documents(_names, request):
    """A table of splits, and a cache of them."""
    request.getfixturevalue("monkeypatch").setenv("XDG_CACHE_HOME", os.path.abspath("cache"))
    texts = ["spark reads sql", "spark alone", "sql alone", "nothing of both"]
    rows = [
        {"id": number, "text": text, "body": text, "score": number / 2}
        for number, text in enumerate(texts)
    ]
    split_tables.write("lake/documents", [("mon", rows[:2]), ("tue", rows[2:])])


def sales(_names, _request):
    """A Delta table of two versions."""
    import deltalake

    rows = pa.table({"region": ["north", "south", "north"], "amount": [10.0, 20.0, 30.0]})
    deltalake.write_deltalake("lake/sales", rows, partition_by=["region"])
    more = pa.table({"region": ["south"], "amount": [40.0]})
    deltalake.write_deltalake("lake/sales", more, mode="append")


def server(_names, request):
    """An S3 server in place of the one that the page names."""
    address, _client = request.getfixturevalue("moto")
    replaced = request.getfixturevalue("replaced")
    replaced |= {"http://127.0.0.1:9000": address.url, "s3://bucket": f"s3://{BUCKET}"}
    for name, value in {"key": KEY, "secret": SECRET}.items():
        replaced[f'"{name}": "…"'] = f'"{name}": "{value}"'
    replaced['"AWS_ACCESS_KEY_ID": "…"'] = f'"AWS_ACCESS_KEY_ID": "{KEY}"'
    replaced['"AWS_SECRET_ACCESS_KEY": "…"'] = f'"AWS_SECRET_ACCESS_KEY": "{SECRET}"'


TABLES = {
    f"{GUIDES}/plan-a-spark-scan.md": (events,),
    f"{GUIDES}/write-with-spark.md": (events,),
    f"{GUIDES}/why-a-query-reads-everything.md": (events,),
    f"{GUIDES}/what-changed-yesterday.md": (events,),
    f"{GUIDES}/maintain-a-table.md": (events,),
    f"{GUIDES}/recover-a-broken-log.md": (events, broken),
    f"{GUIDES}/report.md": (events, broken),
    f"{GUIDES}/run-on-s3.md": (server,),
    f"{GUIDES}/tune.md": (events,),
    f"{GUIDES}/search-splits.md": (documents,),
    f"{GUIDES}/open-delta-tables.md": (sales,),
    f"{GUIDES}/migrate-from-indextables.md": (documents,),
    f"{GUIDES}/migrate-from-delta-rs.md": (sales,),
    f"{GUIDES}/notebooks.md": (events,),
    "docs/concepts/snapshot-isolation.md": (events,),
    "docs/concepts/exactly-once.md": (events,),
    "docs/reference/metrics.md": (events,),
    "docs/reference/settings.md": (events,),
    "docs/reference/sql-views.md": (events,),
    "docs/reference/statements.md": (events,),
    "docs/reference/doctor-codes.md": (events,),
    "docs/security.md": (events,),
}

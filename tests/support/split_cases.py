"""Splits with generated rows, and their rows as the table should show them."""

import datetime as dt
import random

import pyarrow as pa

from arrowlog.splits import RowDecoder, SplitCache, SplitFile, SplitFiles
from arrowlog.storage import LocalStore
from support.split_bundles import field

FIELDS = {
    "id": field("i64"),
    "small": field("i64"),
    "name": field("text"),
    "body": field("text", tokenizer_name="default", fast=False),
    "score": field("f64"),
    "ratio": field("f64"),
    "flag": field("bool"),
    "day": field("date"),
    "at": field("date"),
    "raw": field("bytes"),
    "ip": field("ip_addr"),
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("name", pa.string()),
        ("body", pa.string()),
        ("score", pa.float64()),
        ("ratio", pa.float32()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("ip", pa.string()),
    ]
)
NESTED_FIELDS = {
    "tags": field("json_object"),
    "point": field("json_object"),
    "counts": field("json_object"),
}
NESTED_SCHEMA = pa.schema(
    [
        *SCHEMA,
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int32()), ("label", pa.string())])),
        ("counts", pa.map_(pa.int64(), pa.float64())),
    ]
)
_WORDS = ["spark", "sql", "Lake", "table", "ÆØÅ", "東京", "naïve", "x1", "a-b", "C++", "the", "The"]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def make_rows(seed, count, *, nested=False):
    """Rows as documents are written; a value is None where the document has none."""
    chance = random.Random(seed)

    def maybe(value):
        return None if chance.random() < 0.2 else value

    rows = []
    for number in range(count):
        days = chance.randrange(-30_000, 30_000)
        row = {
            "id": number,
            "small": maybe(chance.randrange(-(1 << 15), 1 << 15)),
            "name": maybe(
                chance.choice(["", "x", "\0", "line\nbreak", *_WORDS]) * chance.randrange(3)
            ),
            "body": maybe(" ".join(chance.choices(_WORDS, k=chance.randrange(9)))),
            "score": maybe(
                chance.choice([0.0, -0.0, 1e300, -1e-300, float("inf"), chance.random()])
            ),
            "ratio": maybe(chance.randrange(-100, 100) / 8),
            "flag": maybe(chance.random() < 0.5),
            "day": maybe(_EPOCH + dt.timedelta(days=days)),
            "at": maybe(_EPOCH + dt.timedelta(days=days, microseconds=chance.randrange(10**11))),
            "raw": maybe(chance.randbytes(chance.choice([0, 1, 3, 130]))),
            "ip": maybe(chance.choice(["10.0.0.1", "255.1.2.3", "::1", "2001:db8::5"])),
        }
        if nested:
            row["tags"] = maybe({"tags": chance.choices([None, *_WORDS], k=chance.randrange(4))})
            row["point"] = maybe({"x": chance.randrange(9), "label": chance.choice(_WORDS)})
            row["counts"] = maybe({str(n): n / 2 for n in range(chance.randrange(3))})
        rows.append(row)
    return rows


def expected(rows):
    """The rows as `to_pylist` gives them."""
    return [{name: _expected(name, value) for name, value in row.items()} for row in rows]


def _expected(name, value):
    if value is None:
        return None
    if name == "day":
        return value.date()
    if name == "tags":
        return value["tags"]
    if name == "counts":
        return [(int(key), item) for key, item in value.items()]
    return value


def open_split(folder, data, num_records=None, name="a.split", size=None):
    """Write the bytes of a split into a folder and open it, with a cache beside it."""
    place = folder / "table"
    place.mkdir(exist_ok=True)
    (place / name).write_bytes(data)
    file = SplitFile(name, len(data) if size is None else size, 0, None, num_records)
    return SplitFiles(LocalStore(str(place)), file, SplitCache(str(folder / "cache"), 1 << 30))


def read_rows(files, schema, rows=None):
    """The rows of a split as dicts, by `id` where there is one."""
    found = []
    for numbers, batch in RowDecoder(files, schema).batches(rows):
        assert len(numbers) == batch.num_rows
        assert batch.schema == schema
        batch.validate(full=True)
        found += batch.to_pylist()
    return sorted(found, key=lambda row: row["id"]) if "id" in schema.names else found

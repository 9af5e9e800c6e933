"""What predicates mean: the tables of docs/predicates.md, layouts and readers to ask, a model.

The model is plain Python: a predicate is a tuple, its answer for a row is True, False or None.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import operator
import pickle
import random
import struct
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import arrowlog

UTC = dt.UTC
PAGE = Path(__file__).parents[2] / "docs" / "predicates.md"
TYPES = {
    "double": pa.float64(),
    "float": pa.float32(),
    "long": pa.int64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
READ = {
    "double": float,
    "float": float,
    "long": int,
    "decimal(10,2)": Decimal,
    "boolean": lambda text: text == "true",
    "string": json.loads,
    "binary": bytes.fromhex,
    "date": dt.date.fromisoformat,
    "timestamp": lambda text: dt.datetime.fromisoformat(text).replace(tzinfo=UTC),
    "timestamp_ntz": dt.datetime.fromisoformat,
}
ANSWERS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Line:
    """A line of the page: `predicate` has this answer for a column `x` that holds a value."""

    kind: str
    value: object
    predicate: str
    answer: bool | None


def lines() -> list[Line]:
    """Every line of the page that says what a predicate is for a value."""
    found = []
    for text in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in text.strip("|").split(" | ")]
        if cells[0].strip() in TYPES and len(cells) >= 4:
            kind, value, predicate, answer = (cell.strip("` |") for cell in cells[:4])
            known = None if value == "NULL" else READ[kind](value)
            found.append(Line(kind, known, predicate, ANSWERS[answer]))
    return found


# Layouts: the same rows, spread over files and written in different ways.


def _parquet(root, rows, cuts, *, stats=True, **options):
    """A table of files that pyarrow wrote, with the bounds of their footers or with none."""
    table = arrowlog.Table.create(root, rows.schema)
    adds = []
    for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, rows.num_rows], strict=True)):
        name = f"{number}.parquet"
        part = rows.slice(start, stop - start)
        pq.write_table(part, root / name, **options)
        bare = arrowlog.add_file(name, size=(root / name).stat().st_size, num_records=len(part))
        adds.append(arrowlog.add_parquet(table, name) if stats else bare)
    table.append(adds)
    return table


def _each(root, rows):
    table = arrowlog.Table.create(root, rows.schema)
    for at in range(rows.num_rows):
        table.write(rows.slice(at, 1))
    return table


def _one(root, rows):
    table = arrowlog.Table.create(root, rows.schema)
    table.write(rows)
    return table


def _compacted(root, rows):
    table = _each(root, rows)
    table.compact()
    assert table.snapshot().num_files == 1
    return table


def _thirds(rows):
    return range(3, rows.num_rows, 3)


def _with_bloom(schema):
    return [item.name for item in schema if not pa.types.is_boolean(item.type)]


LAYOUTS = {
    "one file": _one,
    "a file per row": _each,
    "compacted": _compacted,
    "no statistics": lambda root, rows: _parquet(
        root, rows, _thirds(rows), stats=False, write_statistics=False
    ),
    "plain, small row groups": lambda root, rows: _parquet(
        root, rows, _thirds(rows), use_dictionary=False, row_group_size=2
    ),
    "dictionary, page index, bloom filters": lambda root, rows: _parquet(
        root,
        rows,
        [7],
        use_dictionary=True,
        write_page_index=True,
        bloom_filter_options=dict.fromkeys(_with_bloom(rows.schema), True),
    ),
}


# Readers: the ids of the rows of a plan.


@functools.cache
def _connection():
    return duckdb.connect(config={"threads": "1"})


def _duckdb(plan):
    return plan.to_duckdb(_connection()).to_arrow_table()["id"].to_pylist()


def _workers(plan):
    """What Python workers of Spark do with the pickled parts of a plan."""
    parts = [pickle.loads(pickle.dumps(split)) for split in plan.splits("20kB")]
    return [
        number for part in parts for rows in part.batches() for number in rows["id"].to_pylist()
    ]


READERS = {
    "arrow": lambda plan: plan.to_arrow_dataset().to_table()["id"].to_pylist(),
    "polars": lambda plan: plan.to_polars().collect()["id"].to_list(),
    "duckdb": _duckdb,
    "workers": _workers,
}


# The model.

SIGNS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAN, INF = math.nan, math.inf
FLOATS = [-INF, -1.5, -0.0, 0.0, 0.1, 1.0, 3.0, 1e300, INF, NAN]
MOMENTS = [
    dt.datetime(2024, 1, 1, 12, 0, 0, micros, tzinfo=UTC) for micros in (0, 1, 123_000, 123_456)
]
MOMENTS += [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]
POOLS = {
    "f": FLOATS,
    "g": [struct.unpack("f", struct.pack("f", v))[0] for v in FLOATS if abs(v) != 1e300],
    "n": [-(2**63), -1, 0, 5, 2**53, 2**53 + 1, 2**63 - 1],
    "s": ["", "a", "A", "ab", "a ", "b", "é", "e\u0301", "\ufb01", "😀", "a%", "a😀", "x" * 40],
    "k": [b"", b"a", b"a\x7f", b"a\xff", b"\xff"],
    "d": [dt.date(1969, 12, 31), dt.date(2024, 1, 1), dt.date(2024, 2, 29)],
    "t": MOMENTS,
    "w": [moment.replace(tzinfo=None) for moment in MOMENTS],
    "c": [Decimal(text) for text in ("-1.50", "0.00", "0.01", "1.10", "99999999.99")],
    "b": [True, False],
}
KINDS = {"f": "double", "g": "float", "n": "long", "s": "string", "k": "binary", "d": "date"}
KINDS |= {"t": "timestamp", "w": "timestamp_ntz", "c": "decimal(10,2)", "b": "boolean"}
SCHEMA = pa.schema([("id", pa.int64()), *((name, TYPES[kind]) for name, kind in KINDS.items())])


def rows(seed: int, count: int = 24) -> pa.Table:
    """Random rows of values that are easily taken for others. Every value is there."""
    rng = random.Random(seed)
    columns: dict[str, list] = {"id": list(range(count))}
    for name, pool in POOLS.items():
        values = [*pool, *(rng.choice([*pool, None]) for _ in range(count - len(pool)))]
        rng.shuffle(values)
        columns[name] = values
    return pa.table(columns, schema=SCHEMA)


def _key(value):
    """A value as Python compares it: NaN above everything."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


def _same_kind(value, literal):
    """Both sides as they are compared: a whole number or a decimal beside a double is one."""
    if isinstance(literal, float) and isinstance(value, (int, Decimal)):
        value = float(value)
    return _key(value), _key(literal)


def answer(node, row):
    """TRUE, FALSE or NULL."""
    kind, *rest = node
    if kind == "not":
        inner = answer(rest[0], row)
        return None if inner is None else not inner
    if kind in ("and", "or"):
        answers = [answer(part, row) for part in rest[0]]
        decisive = kind == "or"
        return decisive if decisive in answers else None if None in answers else not decisive
    value = row[rest[0]]
    if kind == "null":
        return value is None
    if value is None:
        return None
    if kind == "compare":
        return SIGNS[rest[1]](*_same_kind(value, rest[2]))
    if kind == "in":
        return any(SIGNS["="](*_same_kind(value, each)) for each in rest[1])
    if kind == "between":
        return _key(rest[1]) <= _key(value) <= _key(rest[2])
    return value.startswith(rest[1]) if kind == "starts" else rest[1] in value


def generate(rng: random.Random, depth: int = 2):
    """A random predicate."""
    draw = rng.random()
    if depth and draw < 0.2:
        return ("not", generate(rng, depth - 1))
    if depth and draw < 0.65:
        parts = [generate(rng, depth - 1) for _ in range(rng.choice([2, 2, 3]))]
        return (rng.choice(["and", "or"]), parts)
    name = rng.choice("fffggnnsskdtwcb")
    pool = POOLS[name]
    if name in "fg":
        pool = [*pool, 0.1, 5.0]
    if name == "n" and rng.random() < 0.3:
        return ("compare", name, rng.choice(list(SIGNS)), float(2**53))
    draw = rng.random()
    if name == "s" and draw < 0.4:
        text = rng.choice(pool)[:2].replace("%", "")
        return (rng.choice(["starts", "contains"]), name, text)
    if draw < 0.1:
        return ("null", name)
    if draw < 0.3 and name != "b":
        return ("in", name, [rng.choice(pool) for _ in range(rng.choice([1, 3, 12]))])
    if draw < 0.4 and name != "b":
        return ("between", name, rng.choice(pool), rng.choice(pool))
    return (
        "compare",
        name,
        rng.choice(list(SIGNS) if name != "b" else ["=", "<>"]),
        rng.choice(pool),
    )


# The four forms of a predicate.


def sql_literal(value) -> str:
    """A value as SQL text."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value) if "e" in repr(value) else f"{value!r}e0"
        return f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, bytes):
        escaped = "".join(rf"\x{byte:02X}" for byte in value)
        return f"CAST('{escaped}' AS BLOB)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        word = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
        return f"{word} '{value.isoformat(' ')}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


def as_sql(node) -> str:
    """A predicate as SQL text."""
    kind, *rest = node
    if kind == "not":
        return f"NOT ({as_sql(rest[0])})"
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(f"({as_sql(part)})" for part in rest[0])
    name = rest[0]
    if kind == "null":
        return f"{name} IS NULL"
    if kind == "compare":
        return f"{name} {rest[1]} {sql_literal(rest[2])}"
    if kind == "in":
        return f"{name} IN ({', '.join(map(sql_literal, rest[1]))})"
    if kind == "between":
        return f"{name} BETWEEN {sql_literal(rest[1])} AND {sql_literal(rest[2])}"
    word = "starts_with" if kind == "starts" else "contains"
    return f"{word}({name}, {sql_literal(rest[1])})"


def as_polars(node) -> pl.Expr:
    """A predicate as a polars expression; `contains` is one that only polars understands."""
    kind, *rest = node
    if kind == "not":
        return ~as_polars(rest[0])
    if kind in ("and", "or"):
        parts = [as_polars(part) for part in rest[0]]
        join = operator.and_ if kind == "and" else operator.or_
        whole = parts[0]
        for part in parts[1:]:
            whole = join(whole, part)
        return whole
    column = pl.col(rest[0])
    if kind == "null":
        return column.is_null()
    if kind == "compare":
        return SIGNS[rest[1]](column, pl.lit(rest[2]))
    if kind == "in":
        return column.is_in(rest[1])
    if kind == "between":
        return column.is_between(pl.lit(rest[1]), pl.lit(rest[2]))
    if kind == "starts":
        return column.str.starts_with(rest[1])
    return column.str.contains(rest[1], literal=True)


def as_arrow(node) -> pc.Expression:
    """A predicate as a pyarrow expression; `contains` is one that only Arrow understands."""
    kind, *rest = node
    if kind == "not":
        return ~as_arrow(rest[0])
    if kind in ("and", "or"):
        parts = [as_arrow(part) for part in rest[0]]
        join = operator.and_ if kind == "and" else operator.or_
        whole = parts[0]
        for part in parts[1:]:
            whole = join(whole, part)
        return whole
    field = pc.field(rest[0])
    if kind == "null":
        return field.is_null()
    if kind == "compare":
        return SIGNS[rest[1]](field, pa.scalar(rest[2]))
    if kind == "in":  # which is never NULL in pyarrow, so that is said here
        return field.isin(pa.array(rest[1])) | (field != field)
    if kind == "between":
        return (field >= pa.scalar(rest[1])) & (field <= pa.scalar(rest[2]))
    if kind == "starts":
        return pc.starts_with(field, rest[1])
    return pc.match_substring(field, rest[1])


def as_tuples(node):
    """A predicate as tuples; None if it has a part that tuples have no word for."""
    kind, *rest = node
    if kind == "or" and all(part[0] != "or" for part in rest[0]):
        parts = [as_tuples(part) for part in rest[0]]
        return None if None in parts else parts
    if kind == "and":
        parts = [as_tuples(part) for part in rest[0]]
        flat = all(part is not None and len(part) == 1 for part in parts)
        return [part[0] for part in parts] if flat else None
    if kind == "null":
        return [(rest[0], "is null")]
    if kind == "compare":
        return [tuple(rest)]
    if kind == "in":
        return [(rest[0], "in", rest[1])]
    if kind == "between":
        return [(rest[0], "between", rest[1:])]
    return [(rest[0], "starts_with", rest[1])] if kind == "starts" else None


def forms(node) -> dict:
    """A predicate in every form that has words for it."""
    found = {"sql": as_sql(node), "polars": as_polars(node), "pyarrow": as_arrow(node)}
    tuples = as_tuples(node)
    return found if tuples is None else {**found, "tuples": tuples}

"""Random tables of real rows, statistics as real writers leave them, and random predicates."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from dataclasses import dataclass, field
from decimal import Context, Decimal

import pyarrow as pa

from arrowlog import testing

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
HIVE = "__HIVE_DEFAULT_PARTITION__"
LONG = "x" * 40
STRINGS = [
    "",
    "a",
    "ab",
    "abc",
    "abd",
    "b",
    "z",
    "zz",
    "é",
    "日本",
    "\uffee",
    "😀",
    "😀x",
    "\ue000",
]
STRINGS += ["a\uffff", "a😀", LONG, LONG + "a", LONG + "b", "[TRUNCATED]", "it's", "100%", "a_b"]
STRINGS += ["A", " ", "10", "9", "2", "a b", "back\\slash", "line\nbreak", "zz [TRUNCATED]"]
STRINGS += ["\u0130x", "\u212a", "\u0131", "\u017f", "aB", "k", "K", "S", "i"]
PLACES = ["x/y", "k=v", "50%", "%20", "a b", "é", "plain", "Z", ""]
INTS = [-5, -1, 0, 1, 2, 3, 7, 10, 100, 2**31 - 1]
LONGS = [*INTS, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**63 - 1, -(2**63)]
DOUBLES = [-1.5, -0.0, 0.0, 0.1, 0.5, 1.0, 2.5, 3.0, 1e300, -1e300, 5e-324]
DOUBLES += [math.nan, math.inf, -math.inf, float(2**53), 0.30000000000000004]
SINGLES = [-1.5, -0.0, 0.0, 0.10000000149011612, 0.5, 1.0, 2.5, 16777216.0, math.nan, math.inf]
DATES = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 1, 1), dt.date(2024, 1, 2)]
DATES += [dt.date(2024, 2, 29), dt.date(9999, 12, 31), dt.date(1, 1, 1)]
MOMENTS = [
    dt.datetime(2024, 1, 1, 12, 0, 0, micros, tzinfo=UTC)
    for micros in (0, 1, 122_999, 123_000, 123_001, 123_456, 123_999, 124_000, 999_999)
]
MOMENTS += [EPOCH, EPOCH - dt.timedelta(microseconds=1), EPOCH - dt.timedelta(microseconds=1500)]
MOMENTS += [dt.datetime(1900, 1, 1, 1, 2, 3, 456, tzinfo=UTC), dt.datetime(2024, 1, 1, tzinfo=UTC)]
CENTS = [Decimal(text) for text in ("-1.50", "0.00", "0.01", "1.00", "1.23", "1.24", "99999999.99")]
WIDE = [Decimal(text) for text in ("-1", "0", "0.1", "0.3", "9007199254740993", "1.0000000001")]
WIDE += [Decimal("9999999999999999999999999.9999999999"), Decimal("12345678901234567.1234567891")]
KINDS = {
    "b": (pa.bool_(), [True, False]),
    "i": (pa.int32(), INTS),
    "n": (pa.int64(), LONGS),
    "r": (pa.float32(), SINGLES),
    "f": (pa.float64(), DOUBLES),
    "s": (pa.string(), STRINGS),
    "d": (pa.date32(), DATES),
    "t": (pa.timestamp("us", "UTC"), MOMENTS),
    "w": (pa.timestamp("us"), [moment.replace(tzinfo=None) for moment in MOMENTS]),
    "c": (pa.decimal128(10, 2), CENTS),
    "m": (
        pa.decimal128(38, 10),
        [value.quantize(Decimal("1e-10"), context=Context(prec=50)) for value in WIDE],
    ),
}


@dataclass
class World:
    """A table on disk, its rows, and where each row is."""

    rng: random.Random
    schema: pa.Schema
    partition_columns: list[str]
    rows: pa.Table = field(default=None)
    names: list[str] = field(default_factory=list)


def build(root, seed: int, files: int = 12) -> World:
    """A random table: schema, rows, and a log with statistics as some writer records them."""
    rng = random.Random(seed)
    letters = rng.sample(list(KINDS), rng.randrange(4, 8))
    fields = [(letter, KINDS[letter][0]) for letter in letters]
    parts = rng.sample(["ps", "pi", "pd", "pt", "pf", "pb", "pc"], rng.randrange(3))
    fields += [(name, KINDS[letter_of(name)][0]) for name in parts]
    rng.shuffle(fields)
    world = World(rng, pa.schema(fields), parts)
    testing.write_commit(root, 0, [testing.protocol(), testing.metadata(world.schema, parts)])
    chunks, adds = [], []
    for number in range(files):
        name = f"file-{number}.parquet"
        columns, values = _data(world, rng.choice([1, 2, 3, 5, 9]))
        rows = len(next(iter(columns.values())))
        table = pa.table(columns, schema=world.schema)
        chunks.append(table.append_column("file", pa.array([name] * rows)))
        adds.append(_add(world, name, columns, values))
        world.names.append(name)
    half = rng.randrange(1, files)
    testing.write_commit(root, 1, adds[:half])
    testing.write_commit(root, 2, adds[half:])
    world.rows = pa.concat_tables(chunks)
    return world


def letter_of(name: str) -> str:
    """The type of a partition column, from its second letter."""
    return name[1] if name[0] == "p" and len(name) == 2 else name


def _data(world: World, count: int) -> tuple[dict, dict]:
    rng = world.rng
    columns, values = {}, {}
    for item in world.schema:
        pool = PLACES if item.name == "ps" else KINDS[letter_of(item.name)][1]
        if item.name in world.partition_columns:
            readable = [v for v in pool if not isinstance(v, float) or math.isfinite(v)]
            value = None if rng.random() < 0.2 else rng.choice(readable)
            columns[item.name], values[item.name] = [value] * count, value
            continue
        few = [rng.choice(pool) for _ in range(rng.choice([1, 1, 2, 3]))]
        nulls = rng.choice([0, 0, 0.3, 1])
        columns[item.name] = [
            None if rng.random() < nulls else rng.choice(few) for _ in range(count)
        ]
    return columns, values


def _add(world: World, name: str, columns: dict, values: dict) -> dict:
    rng = world.rng
    count = len(next(iter(columns.values())))
    texts = {key: _partition_text(rng, key, value) for key, value in values.items()}
    texts = {key: value for key, value in texts.items() if value is not ...}
    low, high, typed_low, typed_high, nulls, nans = {}, {}, {}, {}, {}, {}
    for key, found in columns.items():
        if key in values:
            continue
        if rng.random() < 0.7:
            nulls[key] = sum(value is None for value in found)
        if pa.types.is_floating(world.schema.field(key).type) and rng.random() < 0.7:
            nans[key] = sum(value is not None and math.isnan(value) for value in found)
        bounds = _bounds(rng, found)
        if bounds is None:
            continue
        for text, plain, typed in zip(bounds, (low, high), (typed_low, typed_high), strict=True):
            if rng.random() < 0.08:
                continue  # one side is missing
            if rng.random() < 0.75 or not isinstance(found[0], (int, str, type(None))):
                plain[key] = rng.choice([text] * 20 + [None]) if text is not None else None
            elif text is not None:
                typed[key] = text
    stats: dict = {"nullCount": nulls}
    if nans:
        stats["nanCount"] = nans
    if typed_low or typed_high:
        stats |= {"minValues": typed_low, "maxValues": typed_high}
    fields: dict = {"minValues": low, "maxValues": high, "size": rng.randrange(1, 10**6)}
    if rng.random() < 0.8:
        (stats if rng.random() < 0.3 else fields)["numRecords"] = count
    if rng.random() < 0.9:
        fields["stats"] = json.dumps(stats)
    return testing.add(name, texts, **fields)


def _partition_text(rng: random.Random, name: str, value: object) -> object:
    if value is None:
        return rng.choice([None, HIVE, ...] + ([""] if name != "ps" else []))
    return value if isinstance(value, str) else text_of(value)


def _bounds(rng: random.Random, found: list) -> tuple | None:
    """Minimum and maximum as one of many writers records them."""
    values = [value for value in found if value is not None]
    if not values or rng.random() < 0.1:
        return None
    if isinstance(values[0], str):
        return _text_bounds(rng, values)
    if isinstance(values[0], float):
        return _float_bounds(rng, values)
    low, high = min(values), max(values)
    if isinstance(values[0], dt.datetime) and rng.random() < 0.5:
        return tuple(_cut_moment(rng, value) for value in (low, high))
    return text_of(low), text_of(high)


def _cut_moment(rng: random.Random, value: dt.datetime) -> str:
    """Cut to milliseconds: down, or before 1970 towards zero; as text or as microseconds."""
    zone = value.tzinfo or UTC
    micros = (value.replace(tzinfo=zone) - EPOCH) // dt.timedelta(microseconds=1)
    micros = micros // 1000 * 1000 if rng.random() < 0.5 else math.trunc(micros / 1000) * 1000
    if abs(micros) >= 10**14 and rng.random() < 0.3:
        return str(micros)
    cut = EPOCH + dt.timedelta(microseconds=micros)
    text = cut.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    whole = cut.microsecond == 0 and rng.random() < 0.5  # some write no fraction that is zero
    return f"{text}Z" if whole else f"{text}.{cut.microsecond // 1000:03d}Z"


def _text_bounds(rng: random.Random, values: list[str]) -> tuple:
    order = (lambda text: text.encode("utf-16-be")) if rng.random() < 0.4 else (lambda text: text)
    low, high = min(values, key=order), max(values, key=order)
    style = rng.random()
    if style < 0.25:
        length = rng.choice([1, 2, 32])
        low, high = low[:length], high[:length]
    elif style < 0.35:
        length = rng.choice([1, 32])
        low, high = (v if len(v) <= length else v[:length] + " [TRUNCATED]" for v in (low, high))
    elif style < 0.4 and max(len(low), len(high)) > 20:
        return None, None
    return low, high


def _float_bounds(rng: random.Random, values: list[float]) -> tuple:
    """NaN is left out by Parquet writers, and the maximum for Spark."""
    real = [value for value in values if not math.isnan(value)]
    if len(real) < len(values) and rng.random() < 0.4:
        return (text_of(min(real)) if real else "NaN"), "NaN"
    return (text_of(min(real)), text_of(max(real))) if real else (None, None)


def text_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        text = value.isoformat()
        return text.replace("+00:00", "Z")
    if isinstance(value, float):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(value))
    return str(value)

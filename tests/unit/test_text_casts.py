"""Casting text to the types of the schema: exact, or unknown."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.case_count import cases

from arrowlog.snapshot.typed_values import (
    HIVE_NULL,
    TRUNCATION_MARK,
    cast_integers,
    cast_text,
    has_bounds,
    partition_values,
)

ZONED, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def column(*texts):
    return pa.chunked_array([pa.array(texts, pa.string())])


def plain(values):
    """Values as Python objects; timestamps and dates as integers, which have no range."""
    kind = {ZONED: pa.int64(), NAIVE: pa.int64(), pa.date32(): pa.int32()}.get(values.type)
    return (values if kind is None else values.cast(kind)).to_pylist()


def cast(text, kind, *, upper=False):
    found = cast_text(column(text), kind, upper=upper)
    assert found.type == kind
    return plain(found)[0]


def micros(*parts):
    return (datetime(*parts, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


NEW_YEAR = micros(2024, 1, 1)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-01-01T00:00:00Z", NEW_YEAR),
        ("2024-01-01T00:00:00", NEW_YEAR),
        ("2024-01-01 00:00:00", NEW_YEAR),
        ("2024-01-01T00:00", NEW_YEAR),
        ("2024-01-01T02:00:00+02:00", NEW_YEAR),
        ("2024-01-01T02:00:00+0200", NEW_YEAR),
        ("2023-12-31T15:30:00-08:30", NEW_YEAR),
        ("2024-01-01T00:00:00.000001Z", NEW_YEAR + 1),
        ("2024-01-01T00:00:00.5Z", NEW_YEAR + 500_000),
        ("2024-01-01T00:00:00.123456", NEW_YEAR + 123_456),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1969-12-31T23:59:59", -1_000_000),
        ("1900-02-28T12:00:00Z", micros(1900, 2, 28, 12)),
        ("0001-01-01T00:00:00Z", micros(1, 1, 1)),
        ("9999-12-31T23:59:59.999999Z", micros(9999, 12, 31, 23, 59, 59, 999_999)),
        ("2500-06-01T00:00:00.25", micros(2500, 6, 1, 0, 0, 0, 250_000)),
        ("100000000000000", 10**14),
        ("-100000000000000", -(10**14)),
        ("1704067200000000", NEW_YEAR),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
    ],
)
@pytest.mark.parametrize("kind", [ZONED, NAIVE], ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cast_timestamps(text, moment, kind, upper):
    assert cast(text, kind, upper=upper) == moment


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01",
        "99999999999999",
        "-99999999999999",
        "1704067200000",
        "1704067200",
        "0",
        "9223372036854775808",
        "123456789012345678901234",
        "2024-13-01T00:00:00Z",
        "2024-02-30T00:00:00Z",
        "2024-01-01T25:00:00Z",
        "2024-01-01T00:61:00Z",
        "2024-01-01T00:00:00+99:99",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00.5",
        "2024-01-01T00:00:00.1234567890Z",
        "2024-01-01T00:00:00 Mars/Base",
        " 2024-01-01T00:00:00Z",
        "12024-01-01T00:00:00Z",
        "1e15",
        "100000000000000.5",
        "0x5af3107a4000",
        "now",
        "",
        "NaN",
    ],
)
@pytest.mark.parametrize("kind", [ZONED, NAIVE], ids=str)
def test_ambiguous_timestamp_is_unknown(text, kind):
    assert cast(text, kind) is None


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("2024-01-01T00:00:00.1234567Z", 123_456, 123_457),
        ("2024-01-01T00:00:00.123456001", 123_456, 123_457),
        ("2024-01-01T00:00:00.123456000Z", 123_456, 123_456),
        ("2024-01-01T00:00:00.999999999Z", 999_999, 1_000_000),
        ("2024-01-01T02:00:00.000000001+02:00", 0, 1),
        ("1969-12-31T23:59:59.9999999Z", -1 - NEW_YEAR, 0 - NEW_YEAR),
        ("1969-12-31T23:59:59.123456789Z", -876_544 - NEW_YEAR, -876_543 - NEW_YEAR),
    ],
)
def test_digits_below_a_microsecond_widen_the_bounds(text, low, high):
    assert cast(text, ZONED) - NEW_YEAR == low
    assert cast(text, ZONED, upper=True) - NEW_YEAR == high


DAY = (date(2024, 1, 1) - date(1970, 1, 1)).days


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2024-01-01", DAY),
        ("1970-01-01", 0),
        ("1969-12-31", -1),
        ("0001-01-01", (date.min - date(1970, 1, 1)).days),
        ("9999-12-31", (date.max - date(1970, 1, 1)).days),
        ("2024-02-29", DAY + 59),
        (str(DAY), DAY),
        ("0", 0),
        ("-1", -1),
        ("999999", 999_999),
        ("-999999", -999_999),
        ("1000000", None),
        ("-1000000", None),
        ("20240101", None),
        ("9223372036854775807", None),
        ("-9223372036854775808", None),
        ("9223372036854775808", None),
        ("2023-02-29", None),
        ("2024-1-1", None),
        ("2024/01/01", None),
        ("2024-01-01T00:00:00Z", None),
        ("1.5", None),
        ("0x10", None),
        ("today", None),
        ("", None),
    ],
)
def test_cast_dates(text, day):
    assert cast(text, pa.date32()) == day


@pytest.mark.parametrize(("kind", "bits"), INTEGERS.items(), ids=str)
def test_integers_are_exact_up_to_their_limits_and_unknown_beyond(kind, bits):
    top = 2**bits
    for number in (0, 1, -1, top - 1, -top):
        assert cast(str(number), kind) == number
    for number in (top, -top - 1, 10**25, -(10**25)):
        assert cast(str(number), kind) is None


@pytest.mark.parametrize("number", [2**53 + 1, 2**53 + 3, 2**62 + 1, 2**63 - 1, -(2**53) - 1])
def test_longs_above_2_to_the_53_are_exact(number):
    assert cast(str(number), pa.int64()) == number
    assert plain(cast_text(column(str(number), "junk", "0x1"), pa.int64())) == [number, None, None]


@pytest.mark.parametrize(
    "text",
    [
        "1.0",
        "1e3",
        "0x10",
        "0X10",
        "-0x1",
        "",
        " ",
        " 1",
        "1 ",
        "1_000",
        "1,000",
        "NaN",
        "inf",
        "true",
        "٣",
        "--1",
    ],
)
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_invalid_integer_is_unknown(text, kind):
    assert cast(text, kind) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1.0),
        ("-1.5", -1.5),
        ("+0.25", 0.25),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1E-2", 0.01),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("0.1", 0.1),
        ("NaN", None),
        ("nan", None),
        ("-nan", None),
        ("Infinity", None),
        ("-Infinity", None),
        ("inf", None),
        ("+inf", None),
        ("1e400", None),
        ("-1e400", None),
        ("0x10", None),
        ("0X1p3", None),
        ("1,5", None),
        ("1d", None),
        ("", None),
        (" 1", None),
        ("abc", None),
    ],
)
def test_cast_doubles(text, number):
    assert cast(text, pa.float64()) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5", 1.5),
        ("3.4e38", pa.scalar(3.4e38, pa.float32()).as_py()),
        ("1e39", None),
        ("NaN", None),
    ],
)
def test_cast_floats(text, number):
    assert cast(text, pa.float32()) == number


@pytest.mark.parametrize(
    ("text", "precision", "scale", "number"),
    [
        ("1.50", 10, 2, "1.50"),
        ("1.5", 10, 2, "1.50"),
        ("-0.01", 10, 2, "-0.01"),
        ("1e3", 10, 2, "1000.00"),
        ("99999999.99", 10, 2, "99999999.99"),
        ("100000000.00", 10, 2, None),
        ("0.1234567890123456789", 38, 19, "0.1234567890123456789"),
        (
            "12345678901234567890.123456789012345678",
            38,
            18,
            "12345678901234567890.123456789012345678",
        ),
        ("9" * 38, 38, 0, "9" * 38),
        ("-" + "9" * 38, 38, 0, "-" + "9" * 38),
        ("1" * 39, 38, 0, None),
        ("1" * 40, 38, 0, None),
        ("-" + "1" * 60, 38, 0, None),
        ("1" * 25, 38, 18, None),
        ("1e30", 38, 18, None),
        ("1e400", 38, 0, None),
        ("1.005", 10, 2, None),
        ("0x10", 10, 2, None),
        ("NaN", 10, 2, None),
        ("inf", 10, 2, None),
        ("1,5", 10, 2, None),
        ("", 10, 2, None),
        ("abc", 10, 2, None),
    ],
)
def test_decimals_are_exact_or_unknown(text, precision, scale, number):
    found = cast(text, pa.decimal128(precision, scale))
    assert found == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("t", None),
        ("1", None),
        ("0", None),
        ("yes", None),
        ("", None),
    ],
)
def test_cast_booleans(text, meant):
    assert cast(text, pa.bool_()) is meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("abc", "abc"),
        ("", ""),
        ("10", "10"),
        (HIVE_NULL, HIVE_NULL),
        ("abc [TRUNCATED]", "abc"),
        (" [TRUNCATED]", ""),
        ("é😀 [TRUNCATED]", "é😀"),
        ("[TRUNCATED]", "[TRUNCATED]"),
        ("abc [TRUNCATED] ", "abc [TRUNCATED] "),
        ("abc [truncated]", "abc [truncated]"),
    ],
)
def test_strings_lose_only_the_truncation_mark(text, meant):
    assert cast(text, pa.string()) == meant


@pytest.mark.parametrize(
    ("kind", "yes"),
    [
        (pa.int64(), True),
        (pa.string(), True),
        (pa.date32(), True),
        (ZONED, True),
        (pa.decimal128(5, 2), True),
        (pa.bool_(), True),
        (pa.binary(), False),
        (pa.null(), False),
        (pa.list_(pa.int64()), False),
        (pa.struct([("a", pa.int64())]), False),
        (pa.map_(pa.string(), pa.int64()), False),
    ],
    ids=str,
)
def test_types_with_bounds(kind, yes):
    assert has_bounds(kind) is yes


KINDS = [
    *INTEGERS,
    pa.float32(),
    pa.float64(),
    pa.decimal128(10, 2),
    pa.decimal128(38, 18),
    pa.bool_(),
]
KINDS += [pa.date32(), ZONED, NAIVE, pa.string()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("texts", [[], [None], [None, None], ["junk"], ["junk", None]], ids=repr)
def test_empty_and_null_columns_keep_their_length_and_type(kind, texts):
    found = cast_text(column(*texts), kind)
    assert (found.type, len(found)) == (kind, len(texts))
    if kind != pa.string():
        assert found.null_count == len(texts)


def test_chunked_column_keeps_its_order():
    text = pa.chunked_array([["1"], [], ["x", None, "2"]], pa.string())
    assert cast_text(text, pa.int64()).to_pylist() == [1, None, None, 2]
    assert plain(cast_text(text, pa.date32())) == [1, None, None, 2]


iso = st.datetimes().map(datetime.isoformat)
ODD = [
    "",
    " ",
    "x",
    "0x10",
    "0X10",
    "NaN",
    "inf",
    "-Infinity",
    "1e400",
    "1e5",
    "1.5",
    "-0",
    "+1",
    "true",
    "False",
    "2024-01-01",
    "2024-01-01T00",
    "2024-01-01T00Z",
    "2024-01-01T00:00:00+02",
    "2024-01-01T00:00:00.1234567Z",
    "2024-01-01 05:06:07",
    "2024-01-01T00:00Z",
    "2024-01-01T00:00:00-0830",
    "0" * 25 + "1",
    "1" * 40,
    "9223372036854775808",
    "-9223372036854775808",
    "1.005",
    "a [TRUNCATED]",
    "1704067200000000",
]
texts = st.lists(
    st.none()
    | st.sampled_from(ODD)
    | st.integers(-(10**20), 10**20).map(str)
    | st.integers(-200, 200).map(str)
    | st.floats().map(str)
    | st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str)
    | iso
    | iso.map(lambda text: text + "Z")
    | st.dates().map(str)
    | st.text(max_size=5),
    min_size=1,
    max_size=6,
)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None, max_examples=60)
@given(texts=texts, upper=st.booleans())
def test_value_casts_the_same_alone_and_among_others(kind, texts, upper):
    together = plain(cast_text(column(*texts), kind, upper=upper))
    assert together == [cast(text, kind, upper=upper) for text in texts]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("text", ODD)
def test_unusual_value_casts_the_same_with_any_other(kind, text):
    alone = cast(text, kind)
    for other in ("junk", "0x1", "1", "2024-01-01", "2024-01-01T00:00:00Z", "true", None):
        assert plain(cast_text(column(other, text), kind))[1] == alone


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_any_long_is_exact(seq_numbers):
    assert cast_text(column(*map(str, seq_numbers)), pa.int64()).to_pylist() == seq_numbers


@settings(deadline=None, max_examples=60)
@given(st.datetimes(), st.integers(-14 * 60, 14 * 60).filter(bool))
def test_any_timestamp_with_any_zone_is_exact(when, minutes):
    sign = "+" if minutes > 0 else "-"
    zone = f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    text = when.isoformat(timespec="microseconds") + zone
    naive = (when - EPOCH.replace(tzinfo=None)) // timedelta(microseconds=1)
    assert cast(text, ZONED) == naive - minutes * 60_000_000


def partition(kind, *texts):
    values, unknown = partition_values(column(*texts), kind)
    assert values.type == kind
    return plain(values), unknown.to_pylist()


def test_string_partition_values_are_verbatim_including_empty():
    found, unknown = partition(pa.string(), "a", "", None, HIVE_NULL, "5", "x" + TRUNCATION_MARK)
    assert found == ["a", "", None, None, "5", "x" + TRUNCATION_MARK]
    assert unknown == [False] * 6


@pytest.mark.parametrize(
    ("kind", "good", "value", "bad"),
    [
        (pa.int8(), "5", 5, "128"),
        (pa.int16(), "-5", -5, "1.0"),
        (pa.int32(), "10", 10, "ten"),
        (pa.int64(), str(2**53 + 1), 2**53 + 1, str(2**63)),
        (pa.float32(), "1.5", 1.5, "x"),
        (pa.float64(), "1.5", 1.5, "1,5"),
        (pa.decimal128(5, 2), "1.50", Decimal("1.50"), "1000.00"),
        (pa.bool_(), "true", True, "yes"),
        (pa.date32(), "2024-01-01", DAY, "2024-02-30"),
        (ZONED, "2024-01-01 00:00:00", NEW_YEAR, "2024-01-01"),
        (NAIVE, "2024-01-01T00:00:00", NEW_YEAR, "midnight"),
    ],
    ids=str,
)
def test_partition_values_of_other_types_are_typed_null_or_unknown(kind, good, value, bad):
    found, unknown = partition(kind, good, "", None, HIVE_NULL, bad)
    assert found == [value, None, None, None, None]
    assert unknown == [False, False, False, False, True]
    assert partition(kind, good, good) == ([value, value], [False, False])
    assert partition(kind, "", None, HIVE_NULL) == ([None] * 3, [False] * 3)


def test_binary_partition_values_are_bytes():
    assert partition(pa.binary(), "ab", "5") == ([b"ab", b"5"], [False, False])
    assert partition(pa.binary(), "ab", "x") == ([b"ab", b"x"], [False, False])


def test_partition_value_of_a_null_type_column_is_unknown():
    assert partition(pa.null(), None, "a") == ([None, None], [False, True])


PLAIN_INTEGERS = ["0", "-0", "7", "-12", "007", "127", "-128"]
ODD_INTEGERS = [None, "", "128", "+5", "0x10", "0XF", "1e5", "1.0", " 1", "x", "9" * 25]
ODD_INTEGERS += ["9223372036854775807", "-9223372036854775808", "9223372036854775808"]


@st.composite
def equally_long_columns(draw):
    """Columns of up to four rows, in chunks that are slices; most have plain integers only."""
    count = draw(st.integers(1, 4))
    columns = []
    for _ in range(draw(st.integers(1, 5))):
        known = PLAIN_INTEGERS + ODD_INTEGERS * draw(st.booleans())
        texts = draw(st.lists(st.sampled_from(known), min_size=count, max_size=count))
        array = pa.array(["beyond", *texts, "0x1"], pa.string())
        cut = draw(st.integers(0, count))
        columns.append(pa.chunked_array([array.slice(1, cut), array.slice(1 + cut, count - cut)]))
    return columns


@settings(max_examples=cases(300))
@given(equally_long_columns(), st.sampled_from([*INTEGERS]))
def test_integers_cast_together_are_those_cast_column_by_column(columns, kind):
    found = cast_integers(columns, kind)
    assert [each.type for each in found] == [kind] * len(columns)
    expected = [cast_text(each, kind).to_pylist() for each in columns]
    assert [each.to_pylist() for each in found] == expected

"""Settings: documented defaults, precedence, and errors that help."""

from dataclasses import fields

import pytest

from arrowlog.config import PREFIX, Config, parse_bool, parse_bytes, parse_duration_ms, resolve
from arrowlog.errors import InvalidRequest

DOCUMENTED = {  # as in the IndexTables documents
    "checkpoint.enabled": ("true", True),
    "checkpoint.interval": ("10", 10),
    "checkpoint.parallelism": ("4", 4),
    "checkpoint.read.timeoutSeconds": ("30", 30),
    "checkpoint.retention": ("30", 30),
    "checkpoint.compression": ("snappy", "snappy"),
    "checkpoint.compression.enabled": ("true", True),
    "checkpoint.maxFileSize": ("134217728", 128 << 20),
    "logRetention.duration": ("2592000000", 30 * 86_400_000),
    "checkpointRetention.duration": ("7200000", 2 * 3_600_000),
    "cleanup.enabled": ("true", True),
    "cleanup.failurePolicy": ("continue", "continue"),
    "cleanup.dryRun": ("false", False),
    "transaction.cache.enabled": ("true", True),
    "transaction.cache.expirationSeconds": ("300", 300),
    "transaction.useOptimized": ("true", True),
    "transaction.compression.enabled": ("true", True),
    "transaction.compression.codec": ("gzip", "gzip"),
    "transaction.compression.gzip.level": ("6", 6),
    "stats.truncation.enabled": ("true", True),
    "stats.truncation.maxLength": ("1024", 1024),
    "stats.truncation.strategy": ("drop", "drop"),
    "repair.validateSplits": ("true", True),
    "repair.preserveStats": ("true", True),
    "repair.parallelism": ("4", 4),
    "repair.failOnMissing": ("false", False),
}
OURS = {
    "checkpoint.format": "auto",
    "avroState.allowStateOnly": False,
    "transaction.maxDecompressedBytes": 512 << 20,
    "store.accelerate": True,
    "commit.timeoutSeconds": 60,
    "commit.maxAttempts": 1000,
    "commit.verify": "auto",
    "history.maxMemory": 256 << 20,
    "history.sandbox": False,
    "snapshotCache.path": None,
    "snapshotCache.maxSize": 256 << 20,
    "splits.cache.path": None,
    "splits.cache.maxSize": 4 << 30,
    "transaction.maxMemory": 0,
    "transaction.compression.minSize": 0,
    "transaction.cache.maxVersions": 1000,
    "transaction.cache.maxSize": 256 << 20,
    "transaction.cache.maxStalenessSeconds": 0,
}
SETTINGS = [item for item in fields(Config) if "key" in item.metadata]
NAMES = {item.metadata["key"]: item.name for item in SETTINGS}


def value(config, key):
    return getattr(config, NAMES[PREFIX + key])


@pytest.mark.parametrize(("key", "default"), DOCUMENTED.items())
def test_every_documented_key_has_its_documented_default(key, default):
    written, meant = default
    assert value(resolve(), key) == meant
    assert value(resolve({PREFIX + key: written}), key) == meant


@pytest.mark.parametrize(("key", "default"), OURS.items())
def test_protocol_keys_have_their_documented_defaults(key, default):
    assert value(resolve(), key) == default


def test_every_key_has_a_documented_default():
    assert set(NAMES) == {PREFIX + key for key in (*DOCUMENTED, *OURS)}
    assert all(item.metadata["doc"] for item in SETTINGS)


@pytest.mark.parametrize(
    "key",
    [
        "spark.indextables.checkpoint.interval",
        "SPARK.INDEXTABLES.CHECKPOINT.INTERVAL",
        "Spark.IndexTables.checkpoint.Interval",
        "checkpoint.interval",
        "CHECKPOINT.interval",
        "checkpoint_interval",
    ],
)
@pytest.mark.parametrize("source", ["call", "session", "table"])
def test_keys_are_case_insensitive_with_an_optional_prefix(key, source):
    assert resolve(**{source: {key: "7"}}).checkpoint_interval == 7


KEY = PREFIX + "checkpoint.interval"


@pytest.mark.parametrize(
    ("call", "session", "table", "wins"),
    [
        (1, 2, 3, 1),
        (None, 2, 3, 2),
        (None, None, 3, 3),
        (None, None, None, 10),
        (1, None, 3, 1),
        (1, 2, None, 1),
        (None, 2, None, 2),
    ],
)
def test_precedence_is_call_session_table_default(call, session, table, wins):
    given = [None if number is None else {KEY: number} for number in (call, session, table)]
    assert resolve(*given).checkpoint_interval == wins


def test_precedence_does_not_depend_on_the_spelling():
    call, table = {"checkpoint_interval": 1}, {KEY.lower(): 3}
    assert resolve(call, {KEY.upper(): 2}, table).checkpoint_interval == 1


def test_precedence_applies_to_each_setting():
    found = resolve(
        {"checkpoint.interval": 1}, {"checkpoint.parallelism": 2}, {"repair.parallelism": 3}
    )
    assert found.checkpoint_interval == 1
    assert found.checkpoint_parallelism == 2
    assert found.repair_parallelism == 3


BAD = [
    ("checkpoint.interval", "0", "from 1 to"),
    ("checkpoint.interval", "-1", "from 1 to"),
    ("checkpoint.interval", "ten", "an integer"),
    ("checkpoint.interval", "1.5", "an integer"),
    ("checkpoint.interval", "", "an integer"),
    ("checkpoint.interval", True, "an integer"),
    ("checkpoint.interval", None, "an integer"),
    ("checkpoint.interval", "٣", "an integer"),
    ("checkpoint.interval", 10**12, "an integer"),
    ("checkpoint.enabled", "yes", "true or false"),
    ("checkpoint.enabled", 1, "true or false"),
    ("checkpoint.enabled", "", "true or false"),
    ("checkpoint.format", "orc", "both, json, parquet"),
    ("transaction.compression.codec", "brotli", "gzip, none, zstd, lz4, snappy"),
    ("transaction.compression.gzip.level", "10", "from 0 to 9"),
    ("transaction.compression.gzip.level", "-1", "from 0 to 9"),
    ("stats.truncation.strategy", "cut", "drop, truncate"),
    ("stats.truncation.maxLength", "0", "from 1 to"),
    ("cleanup.failurePolicy", "ignore", "continue, fail"),
    ("logRetention.duration", "30 days", "30d"),
    ("logRetention.duration", "-1", "milliseconds"),
    ("logRetention.duration", True, "milliseconds"),
    ("logRetention.duration", "1.5h", "milliseconds"),
    ("checkpoint.maxFileSize", "0", "128MB"),
    ("checkpoint.maxFileSize", "big", "128MB"),
    ("checkpoint.maxFileSize", "-5MB", "128MB"),
]


@pytest.mark.parametrize(("key", "bad", "allowed"), BAD)
@pytest.mark.parametrize("source", ["call", "session", "table"])
def test_invalid_value_raises_with_key_value_and_allowed_values(key, bad, allowed, source):
    with pytest.raises(InvalidRequest) as caught:
        resolve(**{source: {PREFIX + key: bad}})
    message = str(caught.value)
    assert PREFIX + key in message
    assert repr(bad) in message
    assert allowed in message.partition("Allowed: ")[2]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("checkpoint.intervall", "checkpoint.interval"),
        ("spark.indextables.checkpoint.paralelism", "checkpoint.parallelism"),
        ("TRANSACTION.COMPRESSION.CODEX", "transaction.compression.codec"),
        ("repair_paralelism", "repair.parallelism"),
    ],
)
def test_unknown_key_in_options_raises_with_the_nearest_key(key, meant):
    with pytest.raises(InvalidRequest) as caught:
        resolve({key: "1"})
    assert repr(key) in str(caught.value)
    assert f"Did you mean '{PREFIX}{meant}'?" in str(caught.value)


def test_unknown_key_without_a_near_match_raises_without_suggestion():
    with pytest.raises(InvalidRequest, match="'zzz'") as caught:
        resolve({"zzz": 1})
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("source", ["session", "table"])
def test_keys_of_other_programs_are_ignored_in_session_and_table(source):
    others = {
        "spark.master": "local",
        "delta.appendOnly": "true",
        "spark.indextables.new": "1",
        "": "",
    }
    assert resolve(**{source: others}) == Config()


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0", 0),
        (1500, 1500),
        ("1500", 1500),
        ("15ms", 15),
        ("90 s", 90000),
        ("15m", 900000),
        ("2h", 7200000),
        ("30D", 2592000000),
        (" 1w ", 604800000),
    ],
)
def test_durations(text, millis):
    assert parse_duration_ms(text) == millis


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("1", 1),
        ("5B", 5),
        ("2k", 2048),
        ("2KB", 2048),
        ("2KiB", 2048),
        ("128 MB", 128 << 20),
        ("1G", 1 << 30),
        ("1gib", 1 << 30),
        ("3T", 3 << 40),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "meant"), [(True, True), (False, False), ("TRUE", True), (" False ", False)]
)
def test_booleans(text, meant):
    assert parse_bool(text) is meant


def test_max_memory_of_zero_is_accepted():
    for value in (0, "0", " 0 "):
        assert resolve({"transaction.maxMemory": value}).max_memory == 0
    for value in (False, "00x", -1):
        with pytest.raises(InvalidRequest):
            resolve({"transaction.maxMemory": value})

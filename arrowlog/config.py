"""All settings: attribute name, `spark.indextables.*` key, default, valid values.

The value of a setting is taken from the first of these that defines it: the options of the call,
the Spark session, the table's `configuration`, the default. An invalid value raises
`InvalidRequest` with the key, the value and the valid values.
"""

from __future__ import annotations

import operator
import os
import re
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeGuard

_Parsed = TypeVar("_Parsed")
PREFIX = "spark.indextables."
MIB = 1 << 20
# No file is larger, and no table older: larger sizes and durations mean the same.
_INT64_MAX = (1 << 63) - 1
_DIGITS_MAX = 4000  # Python converts no more at a time
_DIGITS = rf"\d{{1,{_DIGITS_MAX}}}"
_SHOWN_LENGTH_MAX = 200  # of a value in a message

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIT_BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bool(value: object) -> bool:
    """Parse a bool, or `true` or `false` in any case. Raises `ValueError` with valid values."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise ValueError("true or false")


def parse_duration_ms(value: object) -> int:
    """Parse a duration, such as `30d`, `24h`, `90 s`, `1500` or a `timedelta`, into milliseconds.

    Raises `ValueError` with the valid values.

    >>> parse_duration_ms("2h")
    7200000
    """
    if isinstance(value, timedelta) and value >= timedelta(0):
        return value // timedelta(milliseconds=1)
    match = re.fullmatch(rf"({_DIGITS})\s*(ms|s|m|h|d|w)?", _short_text(value).lower())
    if match is None or isinstance(value, (bool, timedelta)):
        raise ValueError("milliseconds, or a duration such as 30d, 24h, 15m")
    return min(int(match[1]) * _UNIT_MS[match[2] or "ms"], _INT64_MAX)


def parse_bytes(value: object) -> int:
    """Parse a size, such as `128MB`, `1G` or `134217728`, into bytes. Units are powers of 1024.

    Raises `ValueError` with the valid values.

    >>> parse_bytes("128MB")
    134217728
    """
    match = re.fullmatch(rf"({_DIGITS})\s*([BKMGT]?)(?:I?B)?", _short_text(value).upper())
    if match is None or isinstance(value, bool) or int(match[1]) == 0:
        raise ValueError("a number of bytes above 0, or a size such as 128MB")
    return min(int(match[1]) * _UNIT_BYTES[match[2]], _INT64_MAX)


def _short_text(value: object) -> str:
    """Return a value as text; "" for an integer with more digits than Python formats."""
    try:
        return str(value).strip()
    except ValueError:
        return ""


def parse_integer(value: object) -> int:
    """Return an integer, also one of numpy. Raises `ValueError` for anything else.

    >>> parse_integer(7)
    7
    """
    if isinstance(value, bool):
        raise ValueError("an integer")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("an integer") from None


def parse_at_least(low: int) -> Callable[[object], int]:
    """Return a parser of integers from `low` on that fit in 64 bits, also those of numpy.

    >>> parse_at_least(1)(7)
    7
    """

    def parse(value: object) -> int:
        with suppress(ValueError):
            number = parse_integer(value)
            if low <= number <= _INT64_MAX:
                return number
        raise ValueError(f"an integer of at least {low}, in 64 bits")

    return parse


def parse_seconds(value: object) -> float:
    """Return a number of seconds, also one of numpy. Raises `ValueError` for anything else.

    >>> parse_seconds(5)
    5.0
    """
    from numbers import Real  # only here: opening a table loads this module

    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            seconds = float(value)
            if seconds >= 0:
                return seconds
    raise ValueError("seconds, as a number that is not negative")


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a string of valid Unicode: surrogates fail in every engine and store."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_text(value: object) -> str:
    """Return a string of valid Unicode. Raises `ValueError` for anything else."""
    if not is_text(value):
        raise ValueError("text of valid Unicode")
    return str(value)


def parse_names(value: object) -> tuple[str, ...]:
    """Return a list of names as a tuple. Raises `ValueError` for anything else, as for a string.

    >>> parse_names(["a", "b"])
    ('a', 'b')
    """
    with suppress(TypeError):
        names = () if isinstance(value, str) else tuple(value)  # type: ignore[arg-type]
        if all(map(is_text, names)) and not isinstance(value, str):
            return names
    raise ValueError("a list of names")


def parse_argument(parse: Callable[[object], _Parsed], value: object, name: str) -> _Parsed:
    """Parse a value with one of the parsers here. Raises `InvalidRequest` naming the argument.

    >>> parse_argument(parse_bytes, "64K", "target_size")
    65536
    """
    try:
        return parse(value)
    except ValueError as error:
        allowed = f"Allowed: {error}."
        raise InvalidRequest(f"{name} cannot be {shorten(value)}.", next=allowed) from None


def shorten(value: object) -> str:
    """Return the `repr` of an argument for a message, or its type if that is too long.

    >>> shorten("a"), shorten(1 << 10_000)
    ("'a'", 'this int')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, or nested too deeply
        text = ""
    return text if 0 < len(text) <= _SHOWN_LENGTH_MAX else f"this {type(value).__name__}"


def _bytes_or_zero(value: object) -> int:
    """Parse a size as `parse_bytes` does, or 0 for the default."""
    if not isinstance(value, bool) and _short_text(value) == "0":
        return 0
    return parse_bytes(value)


def _integer(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = _short_text(value)
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        if is_number and not isinstance(value, bool):
            number = int(text)
            if low <= number <= high:
                return number
        raise ValueError(f"an integer from {low} to {high}")

    return parse


def _one_of(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        text = str(value).strip().lower()
        if text in allowed:
            return text
        raise ValueError(", ".join(allowed))

    return parse


def _folder(value: object) -> str:
    if isinstance(value, str | os.PathLike) and str(value).strip():
        return os.path.abspath(os.path.expanduser(os.fspath(value)))
    raise ValueError("the path of a folder")


def _setting(
    key: str,
    default: Any,
    parse: Callable[[object], object],
    doc: str,
    *,
    table: bool = True,
) -> Any:
    """Declare a setting.

    `table=False` ignores the setting in a table's properties: a table must not decide what its
    readers do with their machine.
    """
    return field(
        default=default, metadata={"key": PREFIX + key, "parse": parse, "doc": doc, "table": table}
    )


_COUNT_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, resolved. Build one with `resolve`; `given` has the names that were set."""

    checkpoint_enabled: bool = _setting(
        "checkpoint.enabled", True, parse_bool, "write checkpoints automatically"
    )
    checkpoint_interval: int = _setting(
        "checkpoint.interval", 10, _integer(1, _COUNT_MAX), "commits between checkpoints"
    )
    checkpoint_retention: int = _setting(
        "checkpoint.retention",
        30,
        _integer(0, _COUNT_MAX),
        "minimum number of commits kept below a checkpoint, whatever their age; the default does"
        " not count if logRetention.duration is set",
    )
    checkpoint_format: str = _setting(
        "checkpoint.format",
        "auto",
        _one_of("auto", "both", "json", "parquet"),
        "format of checkpoints; `auto`: Parquet, and JSON where other readers need it",
    )
    checkpoint_compression: str = _setting(
        "checkpoint.compression",
        "snappy",
        _one_of("snappy", "zstd", "gzip", "lz4", "none", "uncompressed"),
        "codec of Parquet checkpoints",
    )
    checkpoint_compression_enabled: bool = _setting(
        "checkpoint.compression.enabled",
        True,
        parse_bool,
        "compress JSON checkpoints; if not set, as transaction.compression.enabled says",
    )
    checkpoint_max_file_size: int = _setting(
        "checkpoint.maxFileSize",
        128 * MIB,
        parse_bytes,
        "larger checkpoints are split into parts of at most this size; a Parquet part has at least"
        " 64 files, a JSON part at least one",
    )
    checkpoint_parallelism: int = _setting(
        "checkpoint.parallelism",
        4,
        _integer(1, 1024),
        "maximum number of concurrent requests to a remote store, and of parts of a checkpoint that"
        " are made at a time; if not set, obstore reads up to 512 objects at a time",
        table=False,
    )
    checkpoint_read_timeout_seconds: int = _setting(
        "checkpoint.read.timeoutSeconds",
        30,
        _integer(1, 86_400),
        "time limit of a parallel read",
        table=False,
    )
    allow_state_only: bool = _setting(
        "avroState.allowStateOnly",
        False,
        parse_bool,
        "write to a table whose newest version is a table state without a commit",
    )
    log_retention_ms: int = _setting(
        "logRetention.duration",
        2_592_000_000,
        parse_duration_ms,
        "minimum age of a commit before it is deleted",
    )
    checkpoint_retention_ms: int = _setting(
        "checkpointRetention.duration",
        7_200_000,
        parse_duration_ms,
        "minimum age of a superseded checkpoint before it is deleted",
    )
    cleanup_enabled: bool = _setting(
        "cleanup.enabled", True, parse_bool, "clean up the log after each checkpoint"
    )
    cleanup_failure_policy: str = _setting(
        "cleanup.failurePolicy",
        "continue",
        _one_of("continue", "fail"),
        "what to do when a deletion fails",
    )
    cleanup_dry_run: bool = _setting(
        "cleanup.dryRun", False, parse_bool, "report what would be deleted and delete nothing"
    )
    cache_enabled: bool = _setting(
        "transaction.cache.enabled", True, parse_bool, "cache decoded state between reads"
    )
    cache_expiration_seconds: int = _setting(
        "transaction.cache.expirationSeconds",
        300,
        _integer(0, _COUNT_MAX),
        "lifetime of a cached state",
    )
    cache_max_versions: int = _setting(
        "transaction.cache.maxVersions",
        1000,
        _integer(0, _COUNT_MAX),
        "maximum number of earlier versions that a handle caches",
        table=False,
    )
    cache_max_size: int = _setting(
        "transaction.cache.maxSize",
        256 * MIB,
        parse_bytes,
        "maximum memory of the earlier versions that a handle caches",
        table=False,
    )
    cache_max_staleness_seconds: int = _setting(
        "transaction.cache.maxStalenessSeconds",
        0,
        _integer(0, _COUNT_MAX),
        "default of max_staleness: the age up to which a snapshot is returned without asking the"
        " store",
        table=False,
    )
    use_optimized: bool = _setting(
        "transaction.useOptimized",
        True,
        parse_bool,
        "decode by columns; false decodes row by row, for debugging",
    )
    compression_enabled: bool = _setting(
        "transaction.compression.enabled", True, parse_bool, "compress commits and JSON checkpoints"
    )
    compression_codec: str = _setting(
        "transaction.compression.codec",
        "gzip",
        _one_of("gzip", "none", "zstd", "lz4", "snappy"),
        "codec of commits and JSON checkpoints",
    )
    compression_gzip_level: int = _setting(
        "transaction.compression.gzip.level", 6, _integer(0, 9), "gzip level"
    )
    compression_min_size: int = _setting(
        "transaction.compression.minSize",
        0,
        _bytes_or_zero,
        "smaller commits are not compressed: they gain little, but lose the checksum of gzip over"
        " their first line",
    )
    max_decompressed_bytes: int = _setting(
        "transaction.maxDecompressedBytes",
        512 * MIB,
        parse_bytes,
        "maximum decompressed size of a log file",
    )
    max_memory: int = _setting(
        "transaction.maxMemory",
        0,
        _bytes_or_zero,
        "memory beyond which LogTooLarge is raised; 0 uses the limit of the process",
    )
    store_accelerate: bool = _setting(
        "store.accelerate",
        True,
        parse_bool,
        "use obstore for S3 if it is installed",
        table=False,
    )
    commit_timeout_seconds: int = _setting(
        "commit.timeoutSeconds", 60, _integer(1, 86_400), "time limit of a commit including retries"
    )
    commit_max_attempts: int = _setting(
        "commit.maxAttempts",
        1000,
        _integer(1, _COUNT_MAX),
        "races a commit may lose before CommitConflict is raised",
    )
    commit_verify: str = _setting(
        "commit.verify",
        "auto",
        _one_of("auto", "always"),
        "when to verify a put against the log; always where clocks do not count suspended time",
    )
    stats_truncation_enabled: bool = _setting(
        "stats.truncation.enabled", True, parse_bool, "limit the length of text statistics"
    )
    stats_truncation_max_length: int = _setting(
        "stats.truncation.maxLength",
        1024,
        _integer(1, _COUNT_MAX),
        "maximum length of a text statistic in characters",
    )
    stats_truncation_strategy: str = _setting(
        "stats.truncation.strategy",
        "drop",
        _one_of("drop", "truncate"),
        "drop longer text statistics or truncate them",
    )
    repair_validate_splits: bool = _setting(
        "repair.validateSplits", True, parse_bool, "check that each data file exists"
    )
    repair_preserve_stats: bool = _setting(
        "repair.preserveStats", True, parse_bool, "keep statistics in the repaired log"
    )
    repair_parallelism: int = _setting(
        "repair.parallelism", 4, _integer(1, 1024), "concurrent checks for data files"
    )
    repair_fail_on_missing: bool = _setting(
        "repair.failOnMissing", False, parse_bool, "fail if a data file is missing"
    )
    history_memory: int = _setting(
        "history.maxMemory",
        256 * MIB,
        parse_bytes,
        "decoded history beyond this size is spilled to disk",
    )
    history_sandbox: bool = _setting(
        "history.sandbox",
        False,
        parse_bool,
        "deny SQL over the log access to files, network, extensions and settings",
        table=False,
    )
    snapshot_cache_path: str | None = _setting(
        "snapshotCache.path",
        None,
        _folder,
        "local folder that caches the last snapshot of each table; no cache if unset",
        table=False,
    )
    snapshot_cache_max_size: int = _setting(
        "snapshotCache.maxSize",
        256 * MIB,
        parse_bytes,
        "maximum size of a cached snapshot",
        table=False,
    )
    splits_cache_path: str | None = _setting(
        "splits.cache.path",
        None,
        _folder,
        "local folder for unbundled splits and their indexes; the user's cache folder if unset",
        table=False,
    )
    splits_cache_max_size: int = _setting(
        "splits.cache.maxSize",
        4096 * MIB,
        parse_bytes,
        "maximum size of the cache of splits",
        table=False,
    )
    given: frozenset[str] = field(default=frozenset(), repr=False)

    def commit_codec(self, size: int) -> str:
        """Return the codec of a commit of `size` uncompressed bytes."""
        compressed = self.compression_enabled and size >= self.compression_min_size
        return self.compression_codec if compressed else "none"

    @property
    def checkpoint_codec(self) -> str:
        """The codec of JSON checkpoints. Their own switch, if it was set, comes first."""
        enabled = self.checkpoint_compression_enabled
        if "checkpoint_compression_enabled" not in self.given:
            enabled = self.compression_enabled
        return self.compression_codec if enabled else "none"

    @property
    def checkpoint_gzip_level(self) -> int | None:
        """The gzip level of checkpoints; None if it was not set, which is a fast one near 6."""
        given = "compression_gzip_level" in self.given
        return self.compression_gzip_level if given else None

    @property
    def request_ceiling(self) -> int | None:
        """The maximum number of concurrent requests to a store; None leaves it to the store.

        obstore reads up to 512 objects at a time, so that the default of `checkpoint.parallelism`,
        which suits other stores, does not slow it down.
        """
        given = "checkpoint_parallelism" in self.given
        return self.checkpoint_parallelism if given else None


def _fields_by_key() -> dict[str, Field[Any]]:
    """Index the settings by full key, by key without prefix, and by attribute name."""
    known: dict[str, Field[Any]] = {}
    for item in fields(Config):
        if "key" not in item.metadata:
            continue
        key = item.metadata["key"].lower()
        known[key] = known[key.removeprefix(PREFIX)] = known[item.name] = item
    return known


_FIELDS = _fields_by_key()


def resolve(
    call: Mapping[str, object] | None = None,
    session: Mapping[str, object] | None = None,
    table: Mapping[str, object] | None = None,
) -> Config:
    """Resolve the settings in force.

    Keys are case-insensitive, with or without the prefix `spark.indextables.`. An unknown key
    raises `InvalidRequest` in `call` and is ignored in `session` and `table`, which also hold the
    settings of other programs.
    """
    chosen: dict[str, tuple[Field[Any], str, object]] = {}
    for source, strict in ((table, False), (session, False), (call, True)):
        if source is not None and not hasattr(source, "items"):
            raise InvalidRequest(
                f"Options must be a map, not {type(source).__name__}.",
                next='Pass a map such as {"checkpoint.interval": 10}.',
            )
        for key, value in (source or {}).items():
            item = _FIELDS.get(str(key).lower())
            if item is None:
                if strict:
                    raise InvalidRequest(f"There is no option {key!r}.", next=_suggestion(str(key)))
                continue
            if source is not table or item.metadata["table"]:
                chosen[item.name] = item, key, value
    # Only the values in force are parsed: an invalid value that is overridden does no harm.
    values: dict[str, Any] = {name: _parse(*given) for name, given in chosen.items()}
    return Config(**values, given=frozenset(values))


def select_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Select arrowlog's settings from those of a Spark session or data source, by full key.

    >>> select_settings({"spark.indextables.checkpoint.interval": "5", "spark.app.name": "x"})
    {'spark.indextables.checkpoint.interval': '5'}
    """
    ours = {key: value for key, value in settings.items() if key.lower().startswith(PREFIX)}
    return {key: value for key, value in ours.items() if key.lower() in _FIELDS}


def _parse(item: Field[Any], key: str, value: object) -> Any:
    return parse_argument(item.metadata["parse"], value, f"Option {key!r}")


def _suggestion(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key.lower(), _FIELDS, n=1)
    return f"Did you mean {_FIELDS[close[0]].metadata['key']!r}?" if close else ""

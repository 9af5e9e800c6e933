"""Every setting in one place: its name here, its `spark.indextables.*` key, default and limits.

Values are looked up in four places, the first that has one wins: the call's own options, the Spark
session, the table's `configuration`, the default. A bad value is an error that names the key, the
value and what is allowed.
"""

from __future__ import annotations

import os
import re
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "spark.indextables."
MIB = 1 << 20

_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bool(value: object) -> bool:
    """`true`/`false` in any case, or a bool."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise ValueError("true or false")


def parse_duration_ms(value: object) -> int:
    """Milliseconds from an integer, or from text such as `30d`, `24h`, `90 s`, `1500`.

    >>> parse_duration_ms("2h")
    7200000
    """
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d|w)?", str(value).strip().lower())
    if found is None or isinstance(value, bool):
        raise ValueError("milliseconds, or a duration such as 30d, 24h, 15m")
    return int(found[1]) * _DURATION_MS[found[2] or "ms"]


def parse_bytes(value: object) -> int:
    """Bytes from an integer, or from text such as `128MB`, `1G`, `134217728`.

    >>> parse_bytes("128MB")
    134217728
    """
    found = re.fullmatch(r"(\d+)\s*([BKMGT]?)(?:I?B)?", str(value).strip().upper())
    if found is None or isinstance(value, bool) or int(found[1]) == 0:
        raise ValueError("a number of bytes above 0, or a size such as 128MB")
    return int(found[1]) * _SIZE[found[2]]


def _integer(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = str(value).strip()
        digits = text.removeprefix("-")
        if not isinstance(value, bool) and digits.isascii() and digits.isdigit():
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
    """One setting; without `table`, no table may have its readers do it."""
    known = {"key": PREFIX + key, "parse": parse, "doc": doc, "table": table}
    return field(default=default, metadata=known)


_MANY = 1 << 31


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, resolved. Build one with `resolve`."""

    checkpoint_enabled: bool = _setting(
        "checkpoint.enabled", True, parse_bool, "make checkpoints by itself"
    )
    checkpoint_interval: int = _setting(
        "checkpoint.interval", 10, _integer(1, _MANY), "commits between checkpoints"
    )
    checkpoint_retention: int = _setting(
        "checkpoint.retention", 30, _integer(0, _MANY), "commits kept behind a checkpoint at least"
    )
    checkpoint_format: str = _setting(
        "checkpoint.format", "both", _one_of("both", "json", "parquet"), "what a checkpoint writes"
    )
    checkpoint_compression: str = _setting(
        "checkpoint.compression",
        "snappy",
        _one_of("snappy", "zstd", "gzip", "lz4", "none", "uncompressed"),
        "codec inside a Parquet checkpoint",
    )
    checkpoint_compression_enabled: bool = _setting(
        "checkpoint.compression.enabled", True, parse_bool, "compress JSON checkpoints"
    )
    checkpoint_max_file_size: int = _setting(
        "checkpoint.maxFileSize", 128 * MIB, parse_bytes, "a larger checkpoint is cut into parts"
    )
    checkpoint_parallelism: int = _setting(
        "checkpoint.parallelism", 4, _integer(1, 1024), "requests to the store at a time"
    )
    checkpoint_read_timeout_seconds: int = _setting(
        "checkpoint.read.timeoutSeconds", 30, _integer(1, 86_400), "limit for a parallel read"
    )
    log_retention_ms: int = _setting(
        "logRetention.duration", 2_592_000_000, parse_duration_ms, "age before a commit may go"
    )
    checkpoint_retention_ms: int = _setting(
        "checkpointRetention.duration",
        7_200_000,
        parse_duration_ms,
        "age before an old checkpoint may go",
    )
    cleanup_enabled: bool = _setting(
        "cleanup.enabled", True, parse_bool, "clean up after a checkpoint"
    )
    cleanup_failure_policy: str = _setting(
        "cleanup.failurePolicy", "continue", _one_of("continue", "fail"), "when a deletion fails"
    )
    cleanup_dry_run: bool = _setting(
        "cleanup.dryRun", False, parse_bool, "report what would be deleted, delete nothing"
    )
    cache_enabled: bool = _setting(
        "transaction.cache.enabled", True, parse_bool, "keep decoded state between reads"
    )
    cache_expiration_seconds: int = _setting(
        "transaction.cache.expirationSeconds", 300, _integer(0, _MANY), "life of a cached state"
    )
    use_optimized: bool = _setting(
        "transaction.useOptimized",
        True,
        parse_bool,
        "columnar decoding; false decodes line by line, for debugging",
    )
    compression_enabled: bool = _setting(
        "transaction.compression.enabled", True, parse_bool, "compress what is written to the log"
    )
    compression_codec: str = _setting(
        "transaction.compression.codec",
        "gzip",
        _one_of("gzip", "none", "zstd", "lz4", "snappy"),
        "codec for commits and JSON checkpoints",
    )
    compression_gzip_level: int = _setting(
        "transaction.compression.gzip.level", 6, _integer(0, 9), "gzip level"
    )
    max_decompressed_bytes: int = _setting(
        "transaction.maxDecompressedBytes", 512 * MIB, parse_bytes, "a log file may not grow beyond"
    )
    max_memory: int = _setting(
        "transaction.maxMemory",
        0,
        parse_bytes,
        "of this process, before a log is too large for it; 0 is what it may have",
    )
    store_accelerate: bool = _setting(
        "store.accelerate", True, parse_bool, "use obstore for S3 where it is installed"
    )
    commit_timeout_seconds: int = _setting(
        "commit.timeoutSeconds", 60, _integer(1, 86_400), "limit for a commit, tries included"
    )
    commit_max_attempts: int = _setting(
        "commit.maxAttempts", 1000, _integer(1, _MANY), "races a commit may lose before it gives up"
    )
    commit_verify: str = _setting(
        "commit.verify",
        "auto",
        _one_of("auto", "always"),
        "when to ask the log whether a put counts; always where clocks miss suspended time",
    )
    stats_truncation_enabled: bool = _setting(
        "stats.truncation.enabled", True, parse_bool, "shorten long text statistics"
    )
    stats_truncation_max_length: int = _setting(
        "stats.truncation.maxLength", 1024, _integer(1, _MANY), "characters of a text statistic"
    )
    stats_truncation_strategy: str = _setting(
        "stats.truncation.strategy", "drop", _one_of("drop", "truncate"), "what to do with more"
    )
    repair_validate_splits: bool = _setting(
        "repair.validateSplits", True, parse_bool, "look whether each data file exists"
    )
    repair_preserve_stats: bool = _setting(
        "repair.preserveStats", True, parse_bool, "keep statistics in the repaired log"
    )
    repair_parallelism: int = _setting(
        "repair.parallelism", 4, _integer(1, 1024), "data files looked up at a time"
    )
    repair_fail_on_missing: bool = _setting(
        "repair.failOnMissing", False, parse_bool, "stop when a data file is missing"
    )
    history_memory: int = _setting(
        "history.maxMemory", 256 * MIB, parse_bytes, "decoded history beyond it goes to a file"
    )
    history_sandbox: bool = _setting(
        "history.sandbox",
        False,
        parse_bool,
        "SQL over the log reaches no files, no network, no extensions and no settings",
        table=False,
    )
    snapshot_cache_path: str | None = _setting(
        "snapshotCache.path",
        None,
        _folder,
        "a folder of this machine for copies of the last snapshot; none are made without it",
        table=False,
    )
    snapshot_cache_max_size: int = _setting(
        "snapshotCache.maxSize", 256 * MIB, parse_bytes, "no larger copy is made", table=False
    )
    given: frozenset[str] = field(default=frozenset(), repr=False)  # what somebody has set


def _by_key() -> dict[str, Field[Any]]:
    known: dict[str, Field[Any]] = {}
    for item in fields(Config):
        if "key" not in item.metadata:
            continue
        key = item.metadata["key"].lower()
        known[key] = known[key.removeprefix(PREFIX)] = known[item.name] = item
    return known


_KNOWN = _by_key()


def resolve(
    call: Mapping[str, object] | None = None,
    session: Mapping[str, object] | None = None,
    table: Mapping[str, object] | None = None,
) -> Config:
    """The settings in force. Keys may be spelled with or without `spark.indextables.`, in any case.

    A key nobody knows is an error in the call's own options and ignored elsewhere: sessions and
    tables carry other programs' settings too.
    """
    chosen: dict[str, tuple[Field[Any], str, object]] = {}
    for source, strict in ((table, False), (session, False), (call, True)):
        if source is not None and not hasattr(source, "items"):
            raise InvalidRequest(
                f"Options are a {type(source).__name__}.",
                next='Give a map: {"checkpoint.interval": 10}.',
            )
        for key, value in (source or {}).items():
            item = _KNOWN.get(str(key).lower())
            if item is None:
                if strict:
                    raise InvalidRequest(f"There is no option {key!r}.", next=_nearest(key))
                continue
            if source is not table or item.metadata["table"]:
                chosen[item.name] = item, key, value
    # Only what wins is looked at: nobody is kept from work by a value that is not in force.
    values: dict[str, Any] = {name: _parse(*found) for name, found in chosen.items()}
    return Config(**values, given=frozenset(values))


def known_in(settings: Mapping[str, object]) -> dict[str, object]:
    """Those of a Spark session's settings, or of a source's options, that are ours: by full key.

    >>> known_in({"spark.indextables.checkpoint.interval": "5", "spark.app.name": "x"})
    {'spark.indextables.checkpoint.interval': '5'}
    """
    ours = {key: value for key, value in settings.items() if key.lower().startswith(PREFIX)}
    return {key: value for key, value in ours.items() if key.lower() in _KNOWN}


def _parse(item: Field[Any], key: str, value: object) -> Any:
    try:
        return item.metadata["parse"](value)
    except ValueError as error:
        raise InvalidRequest(
            f"Option {key!r} cannot be {value!r}.", next=f"Allowed: {error}."
        ) from None


def _nearest(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key.lower(), _KNOWN, n=1)
    return f"Did you mean {_KNOWN[close[0]].metadata['key']!r}?" if close else ""

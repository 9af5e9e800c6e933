"""Texts that are safe to mail: without secrets and, unless asked for, without paths. Pure.

URLs lose their user info and query strings, as in errors. Without paths, the table is `TABLE`,
files of its log keep their names, and every other path becomes a short hash, by which its owner can
recognize it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrowlog.errors import redact
from arrowlog.fork_safety import pl

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE = "TABLE"
_TEXT_MAX, _LABEL_MAX = 1200, 120  # characters; the rest is cut
# A quoted text, or a run without spaces and the punctuation around a path.
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"(),;]+""")
_DATA_FILE = re.compile(r"\.(?:parquet|split|orc|avro|bin|csv|json|tmp|crc)\b", re.IGNORECASE)


def hash_path(path: str) -> str:
    """Return a short name for a path, the same in every report.

    >>> hash_path("day=1/part-0.parquet")
    'file-87e41d72'
    """
    digest = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    return f"file-{digest[:8]}"


@dataclass(frozen=True, slots=True)
class Redaction:
    """How texts of one report are redacted.

    `root` is the address of the table and `log_folder` the name of its log; `paths` keeps paths.
    """

    root: str
    log_folder: str
    paths: bool

    def clean(self, text: str, files: pa.Array | None = None) -> str:
        """Return a text as a report shows it; `files` are data files that it may name.

        >>> redaction = Redaction("/data/events", "_transaction_log", paths=False)
        >>> redaction.clean("arrowlog.repair('/data/events/_transaction_log')")
        "arrowlog.repair('TABLE/_transaction_log')"
        >>> redaction.clean("'day=1/a b.parquet' is missing.")
        "'file-5a8d553e' is missing."
        """
        shown = redact(text)
        if not self.paths:
            shown = self._without_paths(shown, files)
        return shown if len(shown) <= _TEXT_MAX else f"{shown[:_TEXT_MAX]}…"

    def label(self, text: str) -> str:
        """Return a name, a value or an operation: it is no path, even if it has a slash."""
        shown = redact(text[: 4 * _LABEL_MAX])
        return shown if len(shown) <= _LABEL_MAX else f"{shown[:_LABEL_MAX]}…"

    def name_of_table(self) -> str:
        """Return the last folder of the table's address."""
        last = redact(self.root).rstrip("/").rpartition("/")[2]
        return self.label(last) or _TABLE

    def _without_paths(self, text: str, files: pa.Array | None) -> str:
        # Texts can be as long as the list of the files they concern; only the start is shown.
        shown = text[: 2 * _TEXT_MAX].replace(self.root, _TABLE) if self.root else text
        for path in _named_files(shown, files):
            shown = shown.replace(path, hash_path(path))
        return _TOKEN.sub(lambda match: self._token(match[0]), shown)

    def _token(self, token: str) -> str:
        quote = token[0] if token[0] in "'\"" else ""
        path = token.strip(quote) if quote else token.rstrip(".:")
        tail = token[len(quote) + len(path) :]
        own = path.removeprefix(f"{_TABLE}/")
        in_log = own.startswith(self.log_folder) and ".." not in own and " " not in own
        if path == _TABLE or in_log or not ("/" in path or _DATA_FILE.search(path)):
            return token
        return f"{quote}{hash_path(own)}{tail}"


def _named_files(text: str, files: pa.Array | None) -> list[str]:
    """Return the files that a text names, the longest first."""
    if files is None or not len(files):
        return []
    paths = pl.DataFrame({"path": pl.Series(pl.from_arrow(files), dtype=pl.String)})
    shortened = paths.filter(pl.col("path").str.len_chars() > 0)
    named = shortened.filter(pl.lit(text).str.contains(pl.col("path"), literal=True))
    return sorted(named["path"].unique().to_list(), key=len, reverse=True)

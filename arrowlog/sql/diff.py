"""What is different between two versions: files, schema, properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.log.arrays import scalar
from arrowlog.look import count_text, html_card, html_table, plain, size_text, text_table
from arrowlog.scan.engine import quoted
from arrowlog.sql import sheets
from arrowlog.sql.sheets import Types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.state.snapshot import Snapshot

_SHOWN = 20
_HEADS = ("", "files", "bytes", "rows")
_UNCOMPARED = {"path", "data_change", "stats"}  # the same may be spelled in many ways


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was: a column's type, a property. None is "not there"."""

    what: str
    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """In words."""
        if self.before is None:
            return f"{self.what} {self.name}: {self.after} (new)"
        if self.after is None:
            return f"{self.what} {self.name}: gone (was {self.before})"
        return f"{self.what} {self.name}: {self.before} → {self.after}"


@dataclass(frozen=True)
class Diff:
    """What one has to do to version `a` to have version `b`. Either may be the newer one.

    `files` has one row for each file that is not the same: `change` is added, removed or changed
    (another add of the same file), with sizes and rows before and after.
    """

    a: int
    b: int
    files: pa.Table = field(repr=False)
    changes: tuple[Change, ...] = ()

    @property
    def added(self) -> pa.Table:
        """Files that `b` has and `a` has not."""
        return self._only("added")

    @property
    def removed(self) -> pa.Table:
        """Files that `a` has and `b` has not."""
        return self._only("removed")

    @property
    def changed(self) -> pa.Table:
        """Files that both have, of which the log does not say the same."""
        return self._only("changed")

    @property
    def schema_changes(self) -> tuple[Change, ...]:
        """Columns that came, went, or have another type; other partitioning."""
        return tuple(c for c in self.changes if c.what in ("column", "partitioning"))

    @property
    def property_changes(self) -> tuple[Change, ...]:
        """Properties of the table that are not what they were."""
        return tuple(c for c in self.changes if c.what == "property")

    @property
    def empty(self) -> bool:
        """Whether both are the same."""
        return not self.files.num_rows and not self.changes

    @cached_property
    def bytes_added(self) -> int:
        """Bytes in files that are new, or new in their place."""
        return _sum(self.files, "size_bytes_after") or 0

    @cached_property
    def bytes_removed(self) -> int:
        """Bytes in files that are gone, or were replaced."""
        return _sum(self.files, "size_bytes_before") or 0

    @cached_property
    def rows_added(self) -> int | None:
        """Rows in files that are new, or new in their place; None if a file does not say."""
        return _rows(self.files, "removed", "num_records_after")

    @cached_property
    def rows_removed(self) -> int | None:
        """Rows in files that are gone, or were replaced; None if a file does not say."""
        return _rows(self.files, "added", "num_records_before")

    def to_arrow(self) -> pa.Table:
        """The files, as `files` has them."""
        return self.files

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """What `to_arrow` gives, for polars, DuckDB and pandas to take as it is."""
        return self.files.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """Short, and useful at a prompt."""
        counts = [
            f"{name}={self._only(name).num_rows:,}" for name in ("added", "removed", "changed")
        ]
        return f"Diff({self.a} → {self.b}, {', '.join(counts)}, changes={len(self.changes)})"

    def _only(self, change: str) -> pa.Table:
        return self.files.filter(pc.equal(self.files["change"], scalar(change, pa.string())))

    def _summary(self) -> list[tuple[str, str, str, str]]:
        found = []
        for change, sign, side in (
            ("added", "+", "after"),
            ("removed", "-", "before"),
            ("changed", "~", "after"),
        ):
            part = self._only(change)
            size = size_text(_sum(part, f"size_bytes_{side}") or 0)
            rows = count_text(_sum(part, f"num_records_{side}"))
            found.append((f"{sign} {change}", f"{part.num_rows:,}", size, rows))
        return found

    def _some(self) -> list[tuple[str, str, str]]:
        signs = {"added": "+", "removed": "-", "changed": "~"}
        names = ["change", "path", "size_bytes_before", "size_bytes_after"]
        rows = self.files.select(names).slice(0, _SHOWN).to_pylist()
        return [
            (
                signs[row["change"]],
                row["path"],
                " → ".join(size_text(s) for s in list(row.values())[2:] if s is not None),
            )
            for row in rows
        ]

    def __str__(self) -> str:
        """What changed in numbers, the schema and properties, and the first files."""
        if self.empty:
            return f"version {self.a} → {self.b}: nothing is different"
        lines = [f"version {self.a} → {self.b}", *text_table(_HEADS, self._summary(), (1, 2, 3))]
        lines += [plain(str(change)) for change in self.changes]
        lines += [f"{sign} {plain(path)}  {size}" for sign, path, size in self._some()]
        if self.files.num_rows > _SHOWN:
            lines.append(f"… and {self.files.num_rows - _SHOWN:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        changes = html_table(["changed"], [[str(change)] for change in self.changes])
        return html_card(
            f"version {self.a} → {self.b}",
            (),
            html_table(_HEADS, self._summary(), (1, 2, 3)),
            changes if self.changes else "",
            html_table(["", "path", "size"], self._some(), (2,)) if self.files.num_rows else "",
        )


def diff(a: Snapshot, b: Snapshot) -> Diff:
    """Compare two versions of one table."""
    types = Types.of((b.schema, b.partition_columns), (a.schema, a.partition_columns))
    return Diff(a.version, b.version, _files(a, b, types), tuple(_changes(a, b)))


def _files(a: Snapshot, b: Snapshot, types: Types) -> pa.Table:
    import duckdb

    before, after = _table(a, types), _table(b, types)
    differs = " OR ".join(
        f"a.{quoted(name)} IS DISTINCT FROM b.{quoted(name)}"
        for name in types.files.names
        if name not in _UNCOMPARED
    )
    partitions = [quoted(item.name) for item in types.partitions]
    columns = ["coalesce(b.path, a.path) AS path"]
    columns += [f"CASE WHEN b.key IS NULL THEN a.{n} ELSE b.{n} END AS {n}" for n in partitions]
    for name in ("size_bytes", "num_records", "modification_time"):
        columns += [f"a.{name} AS {name}_before", f"b.{name} AS {name}_after"]
    query = f"""
        SELECT CASE WHEN a.key IS NULL THEN 'added' WHEN b.key IS NULL THEN 'removed'
            ELSE 'changed' END AS change, {", ".join(columns)}, coalesce(b.key, a.key) AS key
        FROM a FULL JOIN b USING (key)
        WHERE a.key IS NULL OR b.key IS NULL OR {differs}
        ORDER BY change, key
    """  # noqa: S608 -- names are quoted
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("a", before)
        connection.register("b", after)
        return connection.sql(query).to_arrow_table()


def _table(snapshot: Snapshot, types: Types) -> pa.Table:
    names = [*types.files.names, "key"]
    adds = snapshot.state.adds
    found = sheets.add_columns(adds, types, names) if adds.num_rows else {}
    return sheets.fitted(found, types.adds, names, adds.num_rows)


def _changes(a: Snapshot, b: Snapshot) -> list[Change]:
    columns = {item.name: str(item.type) for item in a.schema}
    later = {item.name: str(item.type) for item in b.schema}
    found = _compared("column", columns, later)
    if a.partition_columns != b.partition_columns:
        told = [", ".join(s.partition_columns) or None for s in (a, b)]
        found.append(Change("partitioning", "by", *told))
    found += _compared("property", a.metadata.configuration, b.metadata.configuration)
    told_of = [
        {
            "reader version": str(s.protocol.min_reader_version),
            "writer version": str(s.protocol.min_writer_version),
            **{f"reader feature {name}": "on" for name in s.protocol.reader_features},
            **{f"writer feature {name}": "on" for name in s.protocol.writer_features},
        }
        for s in (a, b)
    ]
    found += _compared("protocol", *told_of)
    described: list[Mapping[str, str]] = [
        {
            name: value
            for name, value in (("name", s.metadata.name), ("description", s.metadata.description))
            if value is not None
        }
        for s in (a, b)
    ]
    return found + _compared("table", *described)


def _compared(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    names = [*after, *(name for name in before if name not in after)]
    return [
        Change(what, name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _sum(table: pa.Table, column: str) -> int | None:
    """The sum of what is known; None if nothing is known of a row."""
    values = table[column]
    return None if values.null_count and "records" in column else pc.sum(values).as_py() or 0


def _rows(files: pa.Table, but: str, column: str) -> int | None:
    return _sum(files.filter(pc.not_equal(files["change"], scalar(but, pa.string()))), column)

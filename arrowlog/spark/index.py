"""Spark's `FileIndex` over one version of a table, answered from Python.

Whenever Spark plans a scan, it passes its filters to the index and gets back the files that may
contain matching rows:

- Data filters prune files as far as the log's statistics allow. Spark applies them to the rows
  again.
- Partition filters are not applied again by Spark. They are therefore evaluated exactly, by Spark's
  own code, on the partition values in the log.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc

from arrowlog.arrays import INT_MAX, int64_or_none, number_combinations, repeat_value
from arrowlog.predicate import Predicate, parse_catalyst
from arrowlog.scan import plan_scan
from arrowlog.spark.bridge import jvm_bridge
from arrowlog.spark.types import to_spark_arrow_schema
from arrowlog.spark.versions import frame_from_arrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.scan import ScanPlan
    from arrowlog.snapshot import Snapshot
    from arrowlog.storage import Store

# By `PinnedTable.identity`, which is also the `toString()` of the Java index: `explain` finds the
# Python side of a planned scan by it. Weak, so that an index lives only as long as Spark refers to
# it.
ACTIVE_INDEXES: WeakValueDictionary[str, PythonFileIndex] = WeakValueDictionary()
# Values of an IN list that are fetched from Java, at least one py4j call each. A longer list prunes
# nothing.
_IN_VALUES_MAX = 10_000
_CONCURRENT_STATS = 16


@dataclass(frozen=True)
class PinnedTable:
    """A table at one version, and the root path by which Spark addresses its files."""

    snapshot: Snapshot = field(repr=False)
    store: Store = field(repr=False)
    root: str  # in Hadoop's spelling, not percent-encoded
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def identity(self) -> str:
        """The text by which Spark compares indexes.

        It contains the version, because Spark's cache must not mix versions of a table.
        """
        snapshot = self.snapshot
        return f"arrowlog {self.root} ({snapshot.metadata.id}) version {snapshot.version}"


class PythonFileIndex:
    """Selects the files to read for Spark's filters. Java calls `apply` and no other method."""

    class Java:
        """Makes py4j expose instances to Java as this interface."""

        implements = ("java.util.function.BiFunction",)

    def __init__(self, place: PinnedTable, spark: Any, partition_schema: Any) -> None:
        """`partition_schema` is the Java `StructType` of the partition columns, in table order."""
        self._place = place
        self._spark = spark
        self._jvm = spark._jvm  # noqa: SLF001 -- pyspark has no public access to the JVM
        self._partition_schema = partition_schema
        self._lock = Lock()
        self._sizes: dict[str, int] = {}
        ACTIVE_INDEXES[place.identity] = self

    def apply(self, partition_filters: Any, data_filters: Any) -> Any:
        """Return a Scala `Seq[PartitionDirectory]` of the files that may match the filters.

        Called with "bytes" or "rows" instead of partition filters, it returns the size of the files
        that filters of either kind leave, as `format_sizes` writes it.
        """
        if isinstance(partition_filters, str):
            nothing = self._scala_seq([])
            plan = self.plan(nothing, data_filters)
            return format_sizes(plan, with_rows=partition_filters == "rows")
        return self._directories(self._select(partition_filters, data_filters))

    def index(self) -> Any:
        """Create the Java `FileIndex` that calls back into this object.

        The index reports two root paths. Spark refuses to insert into a relation with more than
        one, and `DataFrame.explain()` shows them: the first names the version.
        """
        snapshot, path = self._place.snapshot, self._jvm.org.apache.hadoop.fs.Path
        label = f"arrowlog-version-{snapshot.version}-of-{snapshot.num_files}-files"
        roots = self._scala_seq([path(label), path(self._place.root)])
        size = min(snapshot.size_bytes, INT_MAX)  # an estimate, a Java long
        identity = self._place.identity
        return jvm_bridge(self._spark).index(self, identity, roots, self._partition_schema, size)

    def plan(self, partition_filters: Any, data_filters: Any) -> ScanPlan:
        """Plan the scan from the log alone, before partition filters are evaluated exactly."""
        schema = self._place.snapshot.columns.schema
        trees = [
            parse_catalyst(expression.toJSON(), schema, _node_reader(expression))
            for filters in (partition_filters, data_filters)
            for expression in _items(filters)
        ]
        predicate = Predicate.from_conjuncts(trees)
        place = self._place
        return plan_scan(place.snapshot, predicate, place.store.root, place.options)

    def _select(self, partition_filters: Any, data_filters: Any) -> SelectedFiles:
        """Select the files to read and group them by partition."""
        files = self.plan(partition_filters, data_filters).scanned_files()
        names = list(self._place.snapshot.partition_columns)
        codes, values = _partitions(files, names)
        attributes, rows = self._partition_rows(values)
        if names and not partition_filters.isEmpty():
            passing = self._evaluate(attributes, rows, partition_filters)
            keep = passing.take(codes)
            files, codes = files.filter(keep), codes.filter(keep)
        order = pc.sort_indices(codes)
        runs = pc.run_end_encode(codes.take(order), run_end_type=pa.int64())
        ends = runs.run_ends.to_pylist()
        return SelectedFiles(files.take(order), rows, runs.values.to_pylist(), ends)

    def _partition_rows(self, values: pa.Table) -> tuple[Any, Any]:
        """Convert partition values to Catalyst: the attributes and an array of `InternalRow`."""
        from pyspark.sql.types import StructType

        if not values.num_columns:
            empty = self._jvm.org.apache.spark.sql.catalyst.InternalRow.empty()
            return None, self._java_array([empty])
        schema = StructType.fromJson(json.loads(self._partition_schema.json()))
        frame = frame_from_arrow(self._spark, values.cast(to_spark_arrow_schema(schema)), schema)
        query = frame._jdf.queryExecution()  # noqa: SLF001 -- as above
        return query.analyzed().output(), query.executedPlan().executeCollect()

    def _evaluate(self, attributes: Any, rows: Any, filters: Any) -> pa.Array:
        """Evaluate partition filters on partition rows in Spark; one boolean per row."""
        condition, *others = _items(filters)
        for other in others:
            condition = self._jvm.org.apache.spark.sql.catalyst.expressions.And(condition, other)
        # Catalyst binds attributes by expression id, and the rows come from another query: give
        # their attributes the ids that the filters refer to.
        ids = {each.name(): each.exprId() for each in _items(condition.references().toSeq())}
        bound = [
            each.withExprId(ids[each.name()]) if each.name() in ids else each
            for each in _items(attributes)
        ]
        passed = jvm_bridge(self._spark).passing(condition, self._scala_seq(bound), rows)
        return pc.equal(
            pa.Array.from_buffers(pa.int8(), len(passed), [None, pa.py_buffer(passed)]), 1
        )

    def _directories(self, chosen: SelectedFiles) -> Any:
        """Convert selected files to Spark's `PartitionDirectory` objects, one per partition."""
        keys = chosen.files["key"].to_pylist()
        sizes = self._actual_sizes(keys, chosen.files["size"].to_pylist())
        times = chosen.files["modificationTime"].to_pylist()
        paths = [self._path(key) for key in keys]
        files = list(zip(paths, sizes, times, strict=True))
        starts = [0, *chosen.ends][: len(chosen.ends)]
        spans = zip(chosen.codes, starts, chosen.ends, strict=True)
        groups = [(code, files[start:end]) for code, start, end in spans]
        return self._to_scala(jvm_bridge(self._spark).directories(chosen.rows, groups))

    def _actual_sizes(self, keys: list[str], logged: list[int]) -> list[int]:
        """Return the file sizes in the store: with a size too small, Spark misses rows.

        A missing file keeps the size in the log; reading it raises the error.
        """
        with self._lock:
            known = dict(self._sizes)
        missing = [key for key in keys if key not in known]
        store = self._place.store
        if store.cheap_stat:
            stats = [store.stat(key) for key in missing]
        else:
            with ThreadPoolExecutor(_CONCURRENT_STATS) as pool:
                stats = list(pool.map(store.stat, missing))
        known.update(
            {key: stat.size for key, stat in zip(missing, stats, strict=True) if stat is not None}
        )
        with self._lock:
            self._sizes.update(known)
        return [known.get(key, size) for key, size in zip(keys, logged, strict=True)]

    def _java_array(self, items: list[Any]) -> Any:
        gateway = self._spark.sparkContext._gateway  # noqa: SLF001 -- as above
        array = gateway.new_array(self._jvm.java.lang.Object, len(items))
        for position, item in enumerate(items):
            array[position] = item
        return array

    def _scala_seq(self, items: list[Any]) -> Any:
        """Convert a Python list to an immutable Scala `Seq`."""
        java_list = self._jvm.java.util.ArrayList()
        for item in items:
            java_list.add(item)
        return self._to_scala(java_list)

    def _to_scala(self, java_list: Any) -> Any:
        return self._jvm.PythonUtils.toSeq(java_list).toSeq()

    def _path(self, key: str) -> str:
        return f"file:{key}" if key.startswith("/") else f"{self._place.root}/{key}"


@dataclass(frozen=True, slots=True)
class SelectedFiles:
    """Selected files, sorted by partition.

    The i-th partition has the values `rows[codes[i]]`, and its files end at row `ends[i]` of
    `files`.
    """

    files: pa.Table
    rows: Any  # a Java array of InternalRow
    codes: list[int]
    ends: list[int]


def format_sizes(plan: ScanPlan, *, with_rows: bool) -> str:
    """Return the bytes and the rows of a plan as Java reads them; -1 for an unknown count.

    Rows are counted only where Spark makes use of them: counting may read a checkpoint.
    """
    rows = int64_or_none(plan.num_records) if with_rows else None
    return f"{min(plan.size_bytes, INT_MAX)} {-1 if rows is None else rows}"


def _items(scala_seq: Any) -> list[Any]:
    return [scala_seq.apply(position) for position in range(scala_seq.size())]


def _node_reader(expression: Any) -> Any:
    """Return the callback of `parse_catalyst` that reads nodes of a Catalyst expression."""

    def read_node(number: int, what: str) -> Any:
        node = expression.apply(number)
        if what == "value":
            return node.value()
        in_values = node.hset()
        if in_values.size() > _IN_VALUES_MAX:
            return None
        return [_to_python(value) for value in _items(in_values.toSeq())]

    return read_node


def _to_python(value: Any) -> Any:
    return value.toString() if hasattr(value, "toString") else value


def _partitions(files: pa.Table, names: list[str]) -> tuple[pa.Array, pa.Table]:
    """Number the distinct partitions; return each file's number, and the partition values.

    The values have one row per partition, at the row of its number.
    """
    values = files.select([f"partition.{name}" for name in names]).rename_columns(names)
    if not names or not files.num_rows:
        return repeat_value(0, pa.int64(), files.num_rows), values
    columns = [column.combine_chunks() for column in values.columns]
    codes, first_rows = number_combinations(columns, files.num_rows)
    return codes, values.take(first_rows)

"""The files of one version of a table, as Spark's planner asks for them.

Spark's `FileIndex`, answered from Python: whenever Spark plans a scan it hands over its filters and
gets back the files that may have rows of them. Filters on data columns are pruned by as far as the
log's statistics allow; Spark applies them to the rows again. Filters on partition columns it does
not apply again, so they are worked out by Spark's own code, on the partition values of the log.
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

from arrowlog.log.arrays import flags, number, same
from arrowlog.scan.plan import scan
from arrowlog.scan.predicate import Predicate
from arrowlog.scan.tree import TRUE, Call, columns_of
from arrowlog.spark.bridge import bridge
from arrowlog.spark.catalyst import tree_of
from arrowlog.spark.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrowlog.log.store import Store
    from arrowlog.scan.plan import ScanPlan
    from arrowlog.scan.tree import Node
    from arrowlog.state.snapshot import Snapshot

LIVE: WeakValueDictionary[str, Listing] = WeakValueDictionary()  # by what Java calls them
_SET_MAX = 10_000
_STATS_AT_ONCE = 16


@dataclass(frozen=True)
class Place:
    """A table at a version, and how Spark names what is in its folder."""

    snapshot: Snapshot = field(repr=False)
    store: Store = field(repr=False)
    root: str  # as Hadoop spells it, nothing escaped
    options: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def identity(self) -> str:
        """What makes two of them the same: a cache of Spark's must not mix versions."""
        snapshot = self.snapshot
        return f"arrowlog {self.root} ({snapshot.metadata.id}) version {snapshot.version}"


class Listing:
    """Which files to read for filters of Spark's. Java calls `apply`, and nothing else."""

    class Java:
        """py4j makes a Java object of this."""

        implements = ("java.util.function.BiFunction",)

    def __init__(self, place: Place, spark: Any, partition_schema: Any) -> None:
        """`partition_schema` is Spark's, of the partition columns, in their order."""
        self._place = place
        self._spark = spark
        self._jvm = spark._jvm  # noqa: SLF001 -- there is no public way into Java
        self._partition_schema = partition_schema
        self._lock = Lock()
        self._sizes: dict[str, int] = {}
        LIVE[place.identity] = self

    def apply(self, partition_filters: Any, data_filters: Any) -> Any:
        """The files that may have rows of the filters, by their partition values."""
        return self._directories(self._chosen(partition_filters, data_filters))

    def index(self) -> Any:
        """Spark's index, which asks this.

        It has two roots, so that Spark writes to neither; `explain()` shows them.
        """
        snapshot, path = self._place.snapshot, self._jvm.org.apache.hadoop.fs.Path
        what = f"arrowlog-version-{snapshot.version}-of-{snapshot.num_files}-files"
        roots = self._seq([path(what), path(self._place.root)])
        size = snapshot.size_bytes
        identity = self._place.identity
        return bridge(self._spark).index(self, identity, roots, self._partition_schema, size)

    def plan(self, partition_filters: Any, data_filters: Any) -> ScanPlan:
        """What the log alone makes of Spark's filters."""
        schema = self._place.snapshot.columns.schema
        trees = [
            tree_of(each.toJSON(), schema, _looking(each))
            for filters in (partition_filters, data_filters)
            for each in _each(filters)
        ]
        tree: Node = Call("and", tuple(trees)) if len(trees) > 1 else trees[0] if trees else TRUE
        predicate = Predicate(tree, columns_of(tree), understood=False)
        place = self._place
        return scan(place.snapshot, predicate, place.store.root, place.options)

    def _chosen(self, partition_filters: Any, data_filters: Any) -> Chosen:
        """The files to read, in the order of their partitions; the partitions; where each ends."""
        files = self.plan(partition_filters, data_filters).scanned()
        names = list(self._place.snapshot.partition_columns)
        codes, values = _partitions(files, names)
        attributes, rows = self._partition_rows(values)
        if names and not partition_filters.isEmpty():
            stay = self._exactly(attributes, rows, partition_filters)
            inside = stay.take(codes)
            files, codes = files.filter(inside), codes.filter(inside)
        order = pc.sort_indices(codes)
        runs = pc.run_end_encode(codes.take(order), run_end_type=pa.int64())
        ends = runs.run_ends.to_pylist()
        return Chosen(files.take(order), rows, runs.values.to_pylist(), ends)

    def _partition_rows(self, values: pa.Table) -> tuple[Any, Any]:
        """Partition values as Spark has them: the attributes, and an array of rows."""
        from pyspark.sql.types import StructType

        if not values.num_columns:
            empty = self._jvm.org.apache.spark.sql.catalyst.InternalRow.empty()
            return None, self._array([empty])
        text = self._partition_schema.json()
        schema = StructType.fromJson(json.loads(text))
        frame = self._spark.createDataFrame(values.cast(arrow_schema(schema)), schema)
        relation = frame._jdf.queryExecution()  # noqa: SLF001 -- as above
        return relation.analyzed().output(), relation.executedPlan().executeCollect()

    def _exactly(self, attributes: Any, rows: Any, filters: Any) -> pa.Array:
        """Which partitions pass Spark's filters, by Spark's own code."""
        condition, *others = _each(filters)
        for other in others:
            condition = self._jvm.org.apache.spark.sql.catalyst.expressions.And(condition, other)
        ids = {each.name(): each.exprId() for each in _each(condition.references().toSeq())}
        bound = [
            each.withExprId(ids[each.name()]) if each.name() in ids else each
            for each in _each(attributes)
        ]
        passed = bridge(self._spark).passing(condition, self._seq(bound), rows)
        return pc.equal(
            pa.Array.from_buffers(pa.int8(), len(passed), [None, pa.py_buffer(passed)]), 1
        )

    def _directories(self, chosen: Chosen) -> Any:
        """Files as Spark takes them: those of one partition together, with its values."""
        keys = chosen.files["key"].to_pylist()
        sizes = self._true_sizes(keys, chosen.files["size"].to_pylist())
        times = chosen.files["modificationTime"].to_pylist()
        paths = [self._path(key) for key in keys]
        each = list(zip(paths, sizes, times, strict=True))
        starts = [0, *chosen.ends][: len(chosen.ends)]
        places = zip(chosen.codes, starts, chosen.ends, strict=True)
        groups = [(code, each[start:end]) for code, start, end in places]
        return self._from_list(bridge(self._spark).directories(chosen.rows, groups))

    def _true_sizes(self, keys: list[str], said: list[int]) -> list[int]:
        """Sizes as the store has them: Spark finds no rows behind a size that is too small.

        What is not there keeps what the log says; reading it will say so.
        """
        with self._lock:
            known = dict(self._sizes)
        missing = [key for key in keys if key not in known]
        store = self._place.store
        if store.cheap_stat:
            stats = [store.stat(key) for key in missing]
        else:
            with ThreadPoolExecutor(_STATS_AT_ONCE) as pool:
                stats = list(pool.map(store.stat, missing))
        known.update(
            {key: stat.size for key, stat in zip(missing, stats, strict=True) if stat is not None}
        )
        with self._lock:
            self._sizes.update(known)
        return [known.get(key, size) for key, size in zip(keys, said, strict=True)]

    def _array(self, items: list[Any]) -> Any:
        gateway = self._spark.sparkContext._gateway  # noqa: SLF001 -- as above
        made = gateway.new_array(self._jvm.java.lang.Object, len(items))
        for at, item in enumerate(items):
            made[at] = item
        return made

    def _seq(self, items: list[Any]) -> Any:
        """An immutable sequence of Scala's."""
        made = self._jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return self._from_list(made)

    def _from_list(self, items: Any) -> Any:
        return self._jvm.PythonUtils.toSeq(items).toSeq()

    def _path(self, key: str) -> str:
        return f"file:{key}" if key.startswith("/") else f"{self._place.root}/{key}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Files in the order of their partitions; rows of Spark's, their numbers, where each ends."""

    files: pa.Table
    rows: Any
    codes: list[int]
    ends: list[int]


def _each(found: Any) -> list[Any]:
    """The items of a sequence of Scala's."""
    return [found.apply(at) for at in range(found.size())]


def _looking(expression: Any) -> Any:
    """What the JSON of an expression leaves out, by the number of its node."""

    def look(at: int, what: str) -> Any:
        node = expression.apply(at)
        if what == "value":
            return node.value()
        found = node.hset()
        if found.size() > _SET_MAX:
            return None
        values = found.toSeq()
        return [_plain(each) for each in _each(values)]

    return look


def _plain(value: Any) -> Any:
    return value.toString() if hasattr(value, "toString") else value


def _partitions(files: pa.Table, names: list[str]) -> tuple[pa.Array, pa.Table]:
    """Which combination of partition values each file has, and the combinations."""
    codes = same(0, pa.int64(), files.num_rows)
    if not names or not files.num_rows:
        return codes, files.select([f"partition.{name}" for name in names]).rename_columns(names)
    for name in names:
        column = files[f"partition.{name}"].combine_chunks()
        each = column.dictionary_encode(null_encoding="encode")
        wide = pc.multiply(codes, number(len(each.dictionary) + 1))
        both = pc.add(wide, pc.cast(each.indices, pa.int64())).dictionary_encode()
        codes = pc.cast(both.indices, pa.int64())
    rows = pc.indices_nonzero(flags(True, files.num_rows))
    numbered = pa.table({"code": codes, "row": rows})
    first = numbered.group_by("code").aggregate([("row", "min")]).sort_by("code")
    values = files.take(first["row_min"])
    return codes, values.select([f"partition.{name}" for name in names]).rename_columns(names)

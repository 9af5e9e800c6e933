"""A rule in Spark's optimizer that makes the sizes of scans known, after pruning too.

Spark chooses joins by the sizes of relations. It takes the size of a file index as a whole,
whatever the filters above it, and knows nothing about a Python data source. The rule runs last in
the optimizer of a classic session:

- A relation below a filter gets the size of the files that the filter leaves.
- A scan of `format("arrowlog")`, as views and tables of the catalog have, becomes a relation that
  Spark's own Parquet reader reads, and joins prune its partitions at run time. Where that is
  impossible, it gets the size of its plan.

The rule changes no rows: filters stay where they are. If anything fails, the plan stays as it was.

Commands pass the optimizer before they are executed, however they were written. So the rule also
refuses to replace a table of the catalog, which Spark would drop first.
"""

from __future__ import annotations

import logging
import pickle
from threading import Lock
from typing import TYPE_CHECKING, Any

from arrowlog.errors import InvalidRequest
from arrowlog.spark.bridge import compile_java, jvm_bridge
from arrowlog.spark.catalog import refuse_replacement, table_location
from arrowlog.spark.index import PinnedTable, format_sizes
from arrowlog.spark.local import is_connect
from arrowlog.spark.native import (
    find_read_obstacle,
    find_unsupported_internals,
    native_relation,
    to_hadoop_uri,
)
from arrowlog.spark.settings import FORMAT_NAMES, session_settings
from arrowlog.spark.types import to_spark_schema
from arrowlog.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from arrowlog.scan import ScanPlan

LOGGER = logging.getLogger("arrowlog.spark")
_RULE_CLASS = "ArrowlogSizes"
# Plan nodes that the Java source extends, by the prefix of the names that it uses for the
# parameters of their constructors.
_EXTENDED_CLASSES = {
    "RELATION": "org.apache.spark.sql.execution.datasources.LogicalRelation",
    "SPLITS": "org.apache.spark.sql.catalyst.plans.logical.LocalRelation",
}
_LOCK = Lock()
# Metadata of the column with the splits that Python workers read: the size of their rows.
SIZES_KEY = "arrowlog.sizes"

_JAVA_SOURCE = """
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTable;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTableAsSelect;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.dynamicpruning.CleanupDynamicPruningFilters$;
import org.apache.spark.sql.execution.dynamicpruning.PartitionPruning$;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.immutable.Seq;

public class ArrowlogSizes extends Rule {
  private final BiFunction python;
  private final Function refusals;
  private final List names;

  public ArrowlogSizes(BiFunction python, Function refusals, List names) {
    this.python = python;
    this.refusals = refusals;
    this.names = names;
  }

  public static Object make(Object python, Object refusals, Object names) {
    return new ArrowlogSizes((BiFunction) python, (Function) refusals, (List) names);
  }

  public TreeNode apply(TreeNode plan) {
    if (plan instanceof ReplaceTable) {
      refuse(((ReplaceTable) plan).name());
    }
    if (plan instanceof ReplaceTableAsSelect) {
      refuse(((ReplaceTableAsSelect) plan).name());
    }
    Replacement replacement = new Replacement(this);
    TreeNode result = plan.transformUp(replacement);
    return replacement.hasNewRelation ? pruneDynamically(result) : result;
  }

  // Throws an exception if a table must not be replaced.
  private void refuse(Object name) {
    if (!(name instanceof ResolvedIdentifier)) {
      return;
    }
    ResolvedIdentifier resolved = (ResolvedIdentifier) name;
    Identifier table = resolved.identifier();
    StringBuilder text = new StringBuilder(quoted(resolved.catalog().name()));
    String[] namespace = table.namespace();
    for (int i = 0; i < namespace.length; i++) {
      text.append('.').append(quoted(namespace[i]));
    }
    Object refusal = refusals.apply(text.append('.').append(quoted(table.name())).toString());
    if (refusal != null) {
      throw new UnsupportedOperationException((String) refusal);
    }
  }

  private static String quoted(String name) { return "`" + name.replace("`", "``") + "`"; }

  // Spark has looked for joins that select partitions before the scans became relations.
  private static TreeNode pruneDynamically(TreeNode plan) {
    if (plan.containsPattern(TreePattern$.MODULE$.DYNAMIC_PRUNING_SUBQUERY())) {
      return plan; // looked for again, what Spark has found would be there twice
    }
    try {
      TreeNode result = ((Rule) PartitionPruning$.MODULE$).apply(plan);
      result = ((Rule) PushDownPredicates$.MODULE$).apply(result);
      return ((Rule) CleanupDynamicPruningFilters$.MODULE$).apply(result);
    } catch (Exception error) {
      return plan;
    }
  }

  // Returns the node in place of `node`; null to keep it.
  LogicalPlan replaced(Object node) {
    try {
      if (node instanceof Filter) {
        return filtered((Filter) node);
      }
      if (node instanceof DataSourceV2ScanRelation) {
        return scanned((DataSourceV2ScanRelation) node);
      }
      if (node instanceof LocalRelation) {
        return splits((LocalRelation) node);
      }
      if (node instanceof LogicalRelation && conf().cboEnabled()) {
        return sized((LogicalRelation) node, new ArrayList(), false);
      }
    } catch (Exception error) {
      return null; // a size is only a hint: the query is right without it
    }
    return null;
  }

  private LogicalPlan filtered(Filter filter) {
    if (!(filter.child() instanceof LogicalRelation)) {
      return null;
    }
    List conjuncts = new ArrayList();
    split(filter.condition(), conjuncts);
    LogicalPlan child = sized((LogicalRelation) filter.child(), conjuncts, true);
    return child == null ? null : new Filter(filter.condition(), child);
  }

  private static void split(Expression condition, List conjuncts) {
    if (condition instanceof And) {
      split((Expression) ((And) condition).left(), conjuncts);
      split((Expression) ((And) condition).right(), conjuncts);
    } else if (!SubqueryExpression.hasSubquery(condition)) {
      conjuncts.add(condition);
    }
  }

  private LogicalPlan sized(LogicalRelation plan, List conjuncts, boolean isFiltered) {
    if (!(plan.relation() instanceof HadoopFsRelation)
        || (plan instanceof Sized && (((Sized) plan).isFiltered || !isFiltered))) {
      return null;
    }
    HadoopFsRelation relation = (HadoopFsRelation) plan.relation();
    if (!(relation.location() instanceof ArrowlogFileIndex)) {
      return null;
    }
    ArrowlogFileIndex index = (ArrowlogFileIndex) relation.location();
    Seq filters = scala.jdk.javaapi.CollectionConverters.asScala(conjuncts).toSeq();
    long[] sizes = parse(index.statistics(filters, conf().cboEnabled()));
    HadoopFsRelation smaller = relation.copy(index.sized(sizes[0]), relation.partitionSchema(),
        relation.dataSchema(), relation.bucketSpec(), relation.fileFormat(), relation.options(),
        relation.sparkSession());
    Object[] arguments = arguments(plan);
    arguments[0] = smaller;
    return new Sized(sizes, isFiltered, RELATION_ARGUMENTS);
  }

  private LogicalPlan splits(LocalRelation plan) {
    Seq output = plan.output();
    if (plan instanceof SizedSplits || output.isEmpty()) {
      return null;
    }
    Metadata metadata = ((Attribute) output.apply(output.size() - 1)).metadata();
    if (!metadata.contains("SIZES_KEY")) {
      return null;
    }
    Object[] arguments = arguments(plan);
    return new SizedSplits(parse(metadata.getString("SIZES_KEY")), SPLITS_ARGUMENTS);
  }

  private LogicalPlan scanned(DataSourceV2ScanRelation plan) throws Exception {
    if (!(plan.scan() instanceof PythonScan)
        || !names.contains(plan.relation().table().name().toLowerCase(java.util.Locale.ROOT))) {
      return null;
    }
    PythonScan scan = (PythonScan) plan.scan();
    PythonDataSourceV2 source = (PythonDataSourceV2) field(scan, "ds");
    byte[] pickled = source.getOrCreateDataSourceInPython((String) field(scan, "shortName"),
        (CaseInsensitiveStringMap) field(scan, "options"),
        scala.Option.apply(scan.readSchema())).dataSource();
    Object answer = python.apply(pickled, scan.readSchema().json());
    Object[] arguments = arguments(plan);
    if (answer instanceof BaseRelation) {
      LogicalRelation relation = LogicalRelation$.MODULE$.apply((BaseRelation) answer, false);
      Object[] relationArguments = arguments(relation);
      relationArguments[1] = plan.output();
      return (LogicalPlan) relation.makeCopy(relationArguments);
    }
    if (answer == null) {
      return null;
    }
    arguments[1] = new SizedScan(scan, parse((String) answer));
    return (LogicalPlan) plan.makeCopy(arguments);
  }

  private static Object field(Object owner, String name) throws Exception {
    java.lang.reflect.Field field = owner.getClass().getDeclaredField(name);
    field.setAccessible(true);
    return field.get(owner);
  }

  static Object[] arguments(TreeNode node) {
    Object[] result = new Object[node.productArity()];
    for (int i = 0; i < result.length; i++) {
      result[i] = node.productElement(i);
    }
    return result;
  }

  // Parses "bytes rows", where rows are -1 if unknown.
  private static long[] parse(String sizes) {
    String[] parts = sizes.split(" ");
    return new long[] {Long.parseLong(parts[0]), Long.parseLong(parts[1])};
  }

  static class Replacement extends scala.runtime.AbstractPartialFunction {
    private final ArrowlogSizes rule;
    boolean hasNewRelation = false;

    Replacement(ArrowlogSizes rule) { this.rule = rule; }

    public boolean isDefinedAt(Object node) { return true; }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      LogicalPlan replaced = rule.replaced(node);
      if (node instanceof DataSourceV2ScanRelation && replaced instanceof LogicalRelation) {
        hasNewRelation = true;
      }
      return replaced == null ? node : replaced;
    }
  }

  // A relation with a known size and, if they were asked for, a known number of rows.
  public static class Sized extends LogicalRelation {
    final boolean isFiltered;
    private final long[] sizes;

    Sized(long[] sizes, boolean isFiltered, RELATION_PARAMETERS) {
      super(RELATION_NAMES);
      this.sizes = sizes;
      this.isFiltered = isFiltered;
    }

    // Spark copies the whole plan before it executes it.
    public TreeNode makeCopy(Object[] arguments) {
      Sized copy = new Sized(sizes, isFiltered, RELATION_ARGUMENTS);
      copy.copyTagsFrom(this);
      copy.setAnalyzed();
      return copy;
    }

    public LogicalPlan clone() { return (LogicalPlan) makeCopy(arguments(this)); }

    // Spark keeps a node in place of an equal one, so this differs from what it replaces.
    public boolean canEqual(Object other) { return other instanceof Sized; }

    public boolean equals(Object other) { return canEqual(other) && super.equals(other); }

    public int hashCode() { return super.hashCode(); }

    public org.apache.spark.sql.catalyst.plans.logical.Statistics computeStats() {
      return statistics(sizes);
    }
  }

  // The splits that Python workers read, with the size of the rows in them.
  public static class SizedSplits extends LocalRelation {
    private final long[] sizes;

    SizedSplits(long[] sizes, SPLITS_PARAMETERS) {
      super(SPLITS_NAMES);
      this.sizes = sizes;
    }

    public TreeNode makeCopy(Object[] arguments) {
      SizedSplits copy = new SizedSplits(sizes, SPLITS_ARGUMENTS);
      copy.copyTagsFrom(this);
      copy.setAnalyzed();
      return copy;
    }

    public LogicalPlan clone() { return (LogicalPlan) makeCopy(arguments(this)); }

    public boolean canEqual(Object other) { return other instanceof SizedSplits; }

    public boolean equals(Object other) { return canEqual(other) && super.equals(other); }

    public int hashCode() { return super.hashCode(); }

    public org.apache.spark.sql.catalyst.plans.logical.Statistics computeStats() {
      return statistics(sizes);
    }
  }

  static org.apache.spark.sql.catalyst.plans.logical.Statistics statistics(long[] sizes) {
    scala.Option rows = scala.Option.empty();
    if (sizes[1] >= 0L) {
      rows = scala.Option.apply(scala.math.BigInt.apply(sizes[1]));
    }
    return new org.apache.spark.sql.catalyst.plans.logical.Statistics(
        scala.math.BigInt.apply(sizes[0]), rows,
        AttributeMap$.MODULE$.apply((Seq) scala.collection.immutable.Nil$.MODULE$), false);
  }

  public static class SizedScan implements SupportsReportStatistics {
    private final Scan scan;
    private final long[] sizes;

    SizedScan(Scan scan, long[] sizes) {
      this.scan = scan;
      this.sizes = sizes;
    }

    public StructType readSchema() { return scan.readSchema(); }

    public String description() { return scan.description(); }

    public Batch toBatch() { return scan.toBatch(); }

    public org.apache.spark.sql.connector.metric.CustomMetric[] supportedCustomMetrics() {
      return scan.supportedCustomMetrics();
    }

    public org.apache.spark.sql.connector.metric.CustomTaskMetric[] reportDriverMetrics() {
      return scan.reportDriverMetrics();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() { return scan.columnarSupportMode(); }

    public org.apache.spark.sql.connector.read.Statistics estimateStatistics() {
      return new ScanStatistics(sizes);
    }
  }

  static class ScanStatistics implements org.apache.spark.sql.connector.read.Statistics {
    private final long[] sizes;

    ScanStatistics(long[] sizes) { this.sizes = sizes; }

    public OptionalLong sizeInBytes() { return OptionalLong.of(sizes[0]); }

    public OptionalLong numRows() {
      return sizes[1] < 0L ? OptionalLong.empty() : OptionalLong.of(sizes[1]);
    }
  }
}
"""


def install_optimizer_rule(spark: SparkSession) -> None:
    """Add the rule to the optimizer of a session. Idempotent; does nothing on Spark Connect.

    A Spark whose internals differ works without it: sizes are those of whole tables.
    """
    if is_connect(spark) or find_unsupported_internals(spark) is not None:
        return
    experimental = spark._jsparkSession.experimental()  # noqa: SLF001 -- not public in pyspark
    with _LOCK:
        rules = experimental.extraOptimizations()
        present = [rules.apply(n).getClass().getName() for n in range(rules.size())]
        if _RULE_CLASS in present:
            return
        try:
            rule = _make_rule(spark)
        except Exception as error:  # noqa: BLE001 -- whatever differs, queries work without it
            reason = str(error).split("\n", 1)[0]
            LOGGER.info("Spark's optimizer is not told the sizes of pruned scans: %s.", reason)
            return
        getattr(experimental, "extraOptimizations_$eq")(rules.appended(rule))


def _make_rule(spark: SparkSession) -> Any:
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
    ensure_callback_server_started(gateway)
    jvm: Any = spark._jvm  # noqa: SLF001 -- as above
    bridge = jvm_bridge(spark)
    source = _JAVA_SOURCE.replace("SIZES_KEY", SIZES_KEY)
    for prefix, name in _EXTENDED_CLASSES.items():
        parameters, names, arguments = _constructor_text(bridge.load(name))
        source = source.replace(f"{prefix}_PARAMETERS", parameters)
        source = source.replace(f"{prefix}_NAMES", names)
        source = source.replace(f"{prefix}_ARGUMENTS", arguments)
    compiled = compile_java(jvm, source, _RULE_CLASS, bridge.class_loader)
    format_names = jvm.java.util.ArrayList()
    for name in FORMAT_NAMES:
        format_names.add(name.lower())
    make = next(method for method in compiled.getMethods() if method.getName() == "make")
    values = jvm.java.util.ArrayList()
    values.add(PythonScans(spark))
    values.add(ReplacedTables(spark))
    values.add(format_names)
    return make.invoke(None, values.toArray())


def _constructor_text(java_class: Any) -> tuple[str, str, str]:
    """Return the parameters of a plan node's constructor as Java source; they vary by version.

    The texts declare the parameters, name them, and cast an array `arguments` to them.
    """
    constructor = max(java_class.getConstructors(), key=lambda each: each.getParameterCount())
    types = [each.getName() for each in constructor.getParameterTypes()]
    names = [f"a{number}" for number in range(len(types))]
    casts = [
        f"((Boolean) arguments[{number}]).booleanValue()"
        if kind == "boolean"
        else f"({kind}) arguments[{number}]"
        for number, kind in enumerate(types)
    ]
    parameters = [f"{kind} {name}" for kind, name in zip(types, names, strict=True)]
    return ", ".join(parameters), ", ".join(names), ", ".join(casts)


class ReplacedTables:
    """Tells the rule which tables must not be replaced. Java calls only `apply`."""

    class Java:
        """Makes py4j expose instances to Java as this interface."""

        implements = ("java.util.function.Function",)

    def __init__(self, spark: SparkSession) -> None:
        """`spark` is the session whose optimizer has the rule."""
        self._spark = spark

    def apply(self, name: str) -> str | None:
        """Return why a table, named with its catalog, must not be replaced; None if it may."""
        try:
            refuse_replacement(table_location(self._spark, name))
        except InvalidRequest as error:
            return str(error)
        return None


class PythonScans:
    """Answers the rule about scans of the Python data source. Java calls only `apply`."""

    class Java:
        """Makes py4j expose instances to Java as this interface."""

        implements = ("java.util.function.BiFunction",)

    def __init__(self, spark: SparkSession) -> None:
        """`spark` is the session whose optimizer has the rule."""
        self._spark = spark

    def apply(self, pickled: bytes, schema_json: str) -> Any:
        """Return a `HadoopFsRelation` in place of a scan, or its size as text.

        `pickled` is the data source of the scan, and `schema_json` the columns that it returns.
        """
        source = pickle.loads(pickled)  # noqa: S301 -- Spark's planner pickled it
        plan: ScanPlan = source.plan(session_settings(self._spark))
        relation = self._relation(plan, source, schema_json) if source.reads_all_rows() else None
        return format_sizes(plan, with_rows=True) if relation is None else relation

    def _relation(self, plan: ScanPlan, source: Any, schema_json: str) -> Any:
        """Return the relation of Spark's own Parquet reader; None where it cannot be used."""
        schema = to_spark_schema(plan.snapshot.metadata.schema_string)
        if to_spark_schema(schema_json) != schema:
            return None
        options = source.storage_options
        store = open_store(plan.root, options)
        place = PinnedTable(plan.snapshot, store, to_hadoop_uri(store.root), options)
        if find_read_obstacle(place, self._spark, schema) is not None:
            return None
        return native_relation(place, self._spark, schema)

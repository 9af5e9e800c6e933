"""The Java part of the integration: the `FileIndex`, and bulk operations on files and rows.

A py4j call takes at least a tenth of a millisecond, and Spark calls an index often. The index is
therefore a Java object that calls Python only to select files, and the static methods below do in
one call what would otherwise take several calls per file. The source is compiled with Janino, which
Spark ships for its own generated code. Janino ignores type arguments and cannot compile lambdas,
hence the raw types.
"""

from __future__ import annotations

import struct
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_JAVA_SOURCE = """
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

public class ArrowlogFileIndex implements FileIndex {
  private static final long BLOCK_BYTES = 134217728L;
  private final BiFunction python;
  private final String identity;
  private final Seq roots;
  private final StructType partitionSchema;
  private final long size;
  private volatile Seq allFiles; // the listing without filters, kept

  public ArrowlogFileIndex(
      BiFunction python, String identity, Seq roots, StructType partitionSchema, long size) {
    this.python = python;
    this.identity = identity;
    this.roots = roots;
    this.partitionSchema = partitionSchema;
    this.size = size;
  }

  public static Object make(
      Object python, Object identity, Object roots, Object partitionSchema, Object size) {
    return new ArrowlogFileIndex((BiFunction) python, (String) identity, (Seq) roots,
        (StructType) partitionSchema, Long.parseLong((String) size));
  }

  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    if (!partitionFilters.isEmpty() || !dataFilters.isEmpty()) {
      return (Seq) python.apply(partitionFilters, dataFilters);
    }
    if (allFiles == null) {
      allFiles = (Seq) python.apply(partitionFilters, dataFilters);
    }
    return allFiles;
  }

  public String[] inputFiles() {
    scala.collection.immutable.Nil$ none = scala.collection.immutable.Nil$.MODULE$;
    Seq directories = listFiles((Seq) none, (Seq) none);
    List paths = new ArrayList();
    for (int i = 0; i < directories.size(); i++) {
      Seq files = ((PartitionDirectory) directories.apply(i)).files();
      for (int j = 0; j < files.size(); j++) {
        paths.add(((FileStatusWithMetadata) files.apply(j)).getPath().toUri().toString());
      }
    }
    String[] result = new String[paths.size()];
    for (int i = 0; i < result.length; i++) {
      result[i] = (String) paths.get(i);
    }
    return result;
  }

  public Seq rootPaths() { return roots; }

  public void refresh() {}

  public long sizeInBytes() { return size; }

  // The same index with the size of some of its files.
  public ArrowlogFileIndex sized(long bytes) {
    return new ArrowlogFileIndex(python, identity, roots, partitionSchema, bytes);
  }

  // The size of the files that filters leave: "bytes rows", with -1 for an unknown number of rows.
  public String statistics(Seq filters, boolean rows) {
    return (String) python.apply(rows ? "rows" : "bytes", filters);
  }

  public StructType partitionSchema() { return partitionSchema; }

  public String toString() { return identity; }

  public int hashCode() { return identity.hashCode(); }

  public boolean equals(Object other) {
    return other instanceof ArrowlogFileIndex
        && ((ArrowlogFileIndex) other).identity.equals(identity);
  }

  // Evaluates a condition on each row: 1 if it is true, 0 if it is false or null.
  public static byte[] passing(Object condition, Object attributes, Object[] rows) {
    BasePredicate predicate = Predicate$.MODULE$.create((Expression) condition, (Seq) attributes);
    predicate.initialize(0);
    byte[] passed = new byte[rows.length];
    for (int i = 0; i < rows.length; i++) {
      passed[i] = (byte) (predicate.eval((InternalRow) rows[i]) ? 1 : 0);
    }
    return passed;
  }

  // Decodes files by partition, big-endian. Per partition: the number of its row and the count of
  // its files; per file: path length, path in UTF-8, size, modification time.
  public static List directories(Object[] rows, byte[] data) throws java.io.IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(data));
    int partitions = in.readInt();
    List result = new ArrayList(partitions);
    for (int i = 0; i < partitions; i++) {
      InternalRow row = (InternalRow) rows[in.readInt()];
      FileStatus[] files = new FileStatus[in.readInt()];
      for (int j = 0; j < files.length; j++) {
        byte[] name = new byte[in.readInt()];
        in.readFully(name);
        long size = in.readLong();
        long modified = in.readLong();
        Path path = new Path(new String(name, "UTF-8"));
        files[j] = new FileStatus(size, false, 1, BLOCK_BYTES, modified, path);
      }
      result.add(PartitionDirectory.apply(row, files));
    }
    return result;
  }

  public static Object format(Object floats) { return new ArrowlogParquetFormat((List) floats); }

  // The number of filters that the format pushes into the Parquet reader.
  public static Object pushedCount(Object format, Object filters) {
    return Integer.valueOf(((ArrowlogParquetFormat) format).pushed((Seq) filters).size());
  }
}

// Spark's Parquet format without pushdown of filters on the given columns. The reader function is
// built by a plain ParquetFileFormat, because tasks deserialize it and cannot load this class.
class ArrowlogParquetFormat extends ParquetFileFormat {
  private final List floats;

  ArrowlogParquetFormat(List floats) { this.floats = floats; }

  public scala.Function1 buildReaderWithPartitionValues(
      SparkSession session, StructType data, StructType partition, StructType required,
      Seq filters, scala.collection.immutable.Map options, Configuration conf) {
    return new ParquetFileFormat().buildReaderWithPartitionValues(
        session, data, partition, required, pushed(filters), options, conf);
  }

  Seq pushed(Seq filters) {
    List kept = new ArrayList();
    for (int i = 0; i < filters.size(); i++) {
      Filter filter = (Filter) filters.apply(i);
      if (!refersToFloats(filter)) {
        kept.add(filter);
      }
    }
    return scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq();
  }

  private boolean refersToFloats(Filter filter) {
    String[][] references = filter.v2references();
    for (int i = 0; i < references.length; i++) {
      for (int j = 0; j < floats.size(); j++) {
        if (references[i][0].equalsIgnoreCase((String) floats.get(j))) {
          return true;
        }
      }
    }
    return false;
  }
}
"""
# What Scala 2.12 calls otherwise; Spark 3.5 may run on it.
_SCALA_2_12 = {
    "collection.immutable.Seq": "collection.Seq",
    "jdk.javaapi.CollectionConverters.asScala": "collection.JavaConverters.asScalaBuffer",
}
_LOCK = Lock()
_BRIDGES: dict[int, Any] = {}  # by id of the gateway, one per JVM


def compile_java(jvm: Any, source: str, name: str, parent: Any) -> Any:
    """Compile Java source with Janino and return its class `name`; `parent` is a class loader."""
    if jvm.scala.util.Properties.versionNumberString().startswith("2.12."):
        for newer, older in _SCALA_2_12.items():
            source = source.replace(newer, older)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(parent)
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name)


class JvmBridge:
    """The compiled Java class, callable from Python."""

    def __init__(self, spark: Any) -> None:
        """Compile the class in the JVM of a session."""
        jvm = spark._jvm  # noqa: SLF001 -- pyspark has no public access to the JVM
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiled = compile_java(jvm, _JAVA_SOURCE, "ArrowlogFileIndex", loader)
        self.class_loader = compiled.getClassLoader()
        self._methods = {method.getName(): method for method in compiled.getMethods()}
        self.gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
        self._jvm = jvm

    def load(self, name: str) -> Any:
        """Return the Java class of this name."""
        return self.class_loader.loadClass(name)

    def _call(self, name: str, *args: Any) -> Any:
        # By reflection: py4j finds classes by name, and this one has its own class loader.
        java_args = self._jvm.java.util.ArrayList()
        for arg in args:
            java_args.add(arg)
        return self._methods[name].invoke(None, java_args.toArray())

    def index(
        self, listing: Any, identity: str, roots: Any, partition_schema: Any, size: int
    ) -> Any:
        """Create the Java `FileIndex` of a table.

        It calls `listing` to select files. Everything else is passed here once, because Spark
        compares indexes often and each call to Python is slow.
        """
        # The size is passed as text: py4j makes an Integer or a Long of an int, by its value.
        return self._call("make", listing, identity, roots, partition_schema, str(size))

    def passing(self, condition: Any, attributes: Any, rows: Any) -> bytes:
        """Evaluate a Catalyst condition on rows; one byte per row, 1 if it is true, else 0."""
        return bytes(self._call("passing", condition, attributes, rows))

    def parquet_format(self, floats: Sequence[str]) -> Any:
        """Return a Parquet format that does not push down filters on the given columns."""
        names = self._jvm.java.util.ArrayList()
        for name in floats:
            names.add(name)
        return self._call("format", names)

    def pushed_count(self, parquet_format: Any, filters: Any) -> int:
        """Return how many of the filters such a format pushes into the Parquet reader."""
        return int(self._call("pushedCount", parquet_format, filters))

    def directories(self, rows: Any, files: Sequence[DirectoryFiles]) -> Any:
        """Return a Java list with one `PartitionDirectory` per partition.

        `files` are indexes into `rows`, each with the files of that partition.
        """
        return self._call("directories", rows, encode_directories(files))


# The index of a partition's row; then path, size in bytes and modification time (ms) of its files.
DirectoryFiles = tuple[int, "Iterable[tuple[str, int, int]]"]


def jvm_bridge(spark: Any) -> JvmBridge:
    """Return the bridge into the JVM of a session; compiled once per JVM."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
    with _LOCK:
        known = _BRIDGES.get(id(gateway))
        # The id of a closed gateway may be reused, so the gateway itself is compared.
        if known is None or known.gateway is not gateway:
            known = _BRIDGES[id(gateway)] = JvmBridge(spark)
    return known


def encode_directories(directories: Sequence[DirectoryFiles]) -> bytes:
    """Encode partitions and their files in the format that the Java `directories` decodes."""
    parts = [struct.pack(">i", len(directories))]
    for row, files in directories:
        encoded_files = [_encode_file(*file) for file in files]
        parts.append(struct.pack(">ii", row, len(encoded_files)))
        parts += encoded_files
    return b"".join(parts)


def _encode_file(path: str, size: int, modified: int) -> bytes:
    name = path.encode()
    return b"".join((struct.pack(">i", len(name)), name, struct.pack(">qq", size, modified)))
